"""The order in which agents decide, and tokens of the actions before theirs."""

import torch

from algo_worlds import Everything, env_of
from coterie.core.types import Action
from coterie.nets.autoregressive import ActionTokens, AgentOrder, draw_places, order_of
from coterie.nets.team import team_blocks

BLOCKS = team_blocks(env_of(Everything("hybrid"), 1).spec.default_teams()[0], "role")


def test_orders_are_arranged_and_restored():
    order = order_of(torch.tensor([[2, 0, 1]]))
    assert isinstance(order, AgentOrder)
    assert order.agent.tolist() == [[1, 2, 0]]
    x = torch.tensor([[[10.0], [11.0], [12.0]]])
    assert order.arrange(x).flatten().tolist() == [11, 12, 10]
    assert torch.equal(order.restore(order.arrange(x)), x)


def test_tokens_skip_dead_agents():
    tokens_of = ActionTokens(BLOCKS, 8, torch.Generator())
    tokens = torch.arange(1.0, 4.0).view(1, 3, 1).expand(1, 3, 8)
    start = tokens_of.start
    before = tokens_of.before(tokens, torch.tensor([[True, False, True]]))
    assert torch.equal(before[0, 0], start)
    assert before[0, 1:, 0].tolist() == [1.0, 1.0]
    assert torch.equal(tokens_of.before(tokens, torch.tensor([[False, False, True]]))[0], start.expand(3, -1))
    assert tokens_of.before(tokens, None)[0, 1:, 0].tolist() == [1.0, 2.0]


def test_orders_of_a_block_are_its_agents_among_themselves():
    order = order_of(torch.tensor([[1, 0, 2]]))
    assert order is not None
    x = torch.tensor([[[10.0], [11.0]]])
    assert order.arrange(x, BLOCKS[0]).flatten().tolist() == [11, 10]
    assert order.arrange(torch.tensor([[[12.0]]]), BLOCKS[1]).flatten().tolist() == [12]
    drawn = {
        tuple(draw_places(BLOCKS, torch.Generator().manual_seed(i), torch.device("cpu")).tolist()) for i in range(20)
    }
    assert drawn == {(0, 1, 2), (1, 0, 2)}
    assert order_of(None) is None


def test_a_token_is_a_linear_function_of_choices_and_numbers():
    """The second of three choices, and the number 0.5."""
    tokens = ActionTokens(BLOCKS, 8, torch.Generator())
    found = tokens.of_block(BLOCKS[0], Action(torch.tensor([[[1]]]), torch.tensor([[[0.5]]])))
    weight = tokens.layers["guard"].weight
    assert torch.allclose(found[0, 0], weight[1] + 0.5 * weight[3])
