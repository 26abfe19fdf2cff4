"""The networks of MAT: attention of literal numbers, dead agents, and the decoder agent by agent and all at once."""

import math
from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.core.specs import TeamSpec
from coterie.nets.autoregressive import order_of
from coterie.nets.config import NetworkConfig
from coterie.nets.mat import AgentEncoder, AgentValues, Attention, MATActor, TransformerSizes
from coterie.nets.team_view import VIEW, TeamView, view_of

SIZES = TransformerSizes(features=8, blocks=2, heads=2)
N = 3


def team_of(kind="discrete") -> TeamSpec:
    (team,) = env_of(Everything(kind), 1).spec.default_teams()
    return team


def spread_out(module, scale=0.5):
    """Draws all parameters at random, so that attention matters, which it hardly does at the start."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return module


def actor_of(team, sizes=SIZES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    encoder = AgentEncoder(team, NetworkConfig(view="team"), sizes, generator)
    return spread_out(MATActor(encoder, sizes, generator, state_dependent_std=False, init_std=0.5))


def inputs_of(team, samples=6, alive=None, place=None, seed=0):
    """Returns observations of random numbers, zero for dead agents, and random actions."""
    generator = torch.Generator().manual_seed(seed)
    alive = torch.ones(samples, N, dtype=torch.bool) if alive is None else alive
    obs = {}
    for role, at in zip(team.roles, (slice(0, 2), slice(2, 3)), strict=True):
        x = torch.randn(samples, role.n, *role.observation_space.shape, generator=generator)
        obs[role.name] = x * alive[:, at, None]
    obs[VIEW] = TeamView(alive, None, {}, place)
    return obs


def actions_of(team, samples=6, seed=0):
    from coterie.policies.base import RandomPolicy

    policy = RandomPolicy(team, torch.device("cpu"))
    (noise,) = policy.draw_noise(1, samples, torch.Generator().manual_seed(seed))
    return {role.name: _random_action(role, noise[role.name]) for role in team.roles}


def _random_action(role, uniform):
    from coterie.core.types import Action

    spec = role.action
    chosen = [x.argmax(-1, keepdim=True) for x in uniform[..., : spec.mask_size].split(spec.choices, -1)]
    return Action(
        torch.cat(chosen, -1) if spec.choices else None,
        uniform[..., spec.mask_size :] * 2 - 1 if spec.continuous else None,
    )


def agent_by_agent(actor, obs, action):
    """Returns the features in order [M, N, D] as acting computes them, given the actions."""
    order, team_tokens = order_of(view_of(obs).place), []
    for block in actor.blocks:
        tokens = actor.tokens.of_block(block, block.join_actions(action))
        team_tokens.append(tokens if order is None else order.arrange(tokens, block))
    tokens = torch.cat(team_tokens, -2)
    alive = view_of(obs).alive if order is None else view_of(obs).alive.gather(-1, order.agent)
    decoding = actor.start(obs, alive, {})
    token, found = actor.tokens.start.expand(len(tokens), -1), []
    for place in range(tokens.shape[1]):
        found.append(actor.step(decoding, place, token))
        token = torch.where(alive[:, place, None], tokens[:, place], token)
    return torch.stack(found, 1)


def test_attention_is_added_and_normalized():
    """Scores q k / sqrt(2) are 0 and ln 3, so that weights are 1/4 and 3/4; keys are the values."""
    attention = Attention(TransformerSizes(2, 1, 1), torch.Generator())
    attention.query.weight.data, attention.out.weight.data = torch.eye(2), torch.eye(2)
    y = torch.tensor([[[0.0, 1.0], [math.log(3) * 2**0.5, 1.0]]])  # two tokens of one sample
    x = torch.tensor([[[1.0, 0.0]]])
    unnormalized = torch.tensor([1.0 + 0.75 * math.log(3) * 2**0.5, 1.0])
    expected = torch.nn.functional.layer_norm(unnormalized, (2,))
    assert torch.allclose(attention.mix(x, x, (y, y), None)[0, 0], expected, atol=1e-6)


def test_an_agent_that_sees_nobody_reads_zeros():
    attention = spread_out(Attention(TransformerSizes(8, 1, 2), torch.Generator()))
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))
    found = attention(x, x, torch.zeros(5, 3, 3, dtype=torch.bool))
    assert torch.allclose(found, attention.norm(x + attention.out.bias), atol=1e-6)


@pytest.mark.parametrize("kind", list(Everything.KINDS))
@pytest.mark.parametrize("place", [None, (1, 0, 2)])
def test_the_decoder_agent_by_agent_equals_one_pass_over_all(kind, place):
    team = team_of(kind)
    actor = actor_of(team)
    alive = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)
    places = None if place is None else torch.tensor(place).expand(6, N)
    obs, action = inputs_of(team, alive=alive, place=places), actions_of(team)
    at_once, step_by_step = actor.features(obs, action, None, {}), agent_by_agent(actor, obs, action)
    live = alive if place is None else alive.gather(-1, order_of(places).agent)
    assert live.any()
    assert torch.allclose(at_once[live], step_by_step[live], atol=1e-5)
    assert at_once.isfinite().all()
    assert step_by_step.isfinite().all()


def test_dead_agents_change_nothing_for_the_others():
    """Their observations, their actions and their number of tokens do not matter; those of live agents do."""
    team = team_of()
    actor = actor_of(team)
    alive = torch.tensor([[True, False, True]]).expand(6, N)
    obs, action = inputs_of(team, alive=alive), actions_of(team)
    features = actor.features(obs, action, None, {})
    other = dict(obs, guard=obs["guard"].clone())
    other["guard"][:, 1] = 5.0
    acted = dict(action, guard=replace(action["guard"], discrete=action["guard"].discrete.clone()))
    acted["guard"].discrete[:, 1] = (acted["guard"].discrete[:, 1] + 1) % 3
    assert torch.equal(actor.features(other, acted, None, {})[alive], features[alive])
    acted["guard"].discrete[:, 0] = (acted["guard"].discrete[:, 0] + 1) % 3
    changed = actor.features(obs, acted, None, {})
    assert torch.equal(changed[:, 0], features[:, 0])  # an agent does not see its own action
    assert not torch.allclose(changed[:, 2], features[:, 2])


def test_later_agents_see_earlier_ones_in_the_given_order():
    team = team_of()
    actor = actor_of(team)
    for place in (None, (1, 0, 2)):
        places = None if place is None else torch.tensor(place).expand(6, N)
        obs, action = inputs_of(team, place=places), actions_of(team)
        changed = dict(action, guard=replace(action["guard"], discrete=action["guard"].discrete.clone()))
        changed["guard"].discrete[:, 0] = (changed["guard"].discrete[:, 0] + 1) % 3
        one, two = (actor.features(obs, x, None, {}) for x in (action, changed))
        same = [torch.equal(one[:, i], two[:, i]) for i in range(N)]
        assert same == ([True, False, False] if place is None else [True, True, False])


def test_values_of_dead_agents_are_of_the_mean_of_live_ones_and_differ_from_those_of_live_ones():
    team = team_of()
    values = spread_out(AgentValues(team, 1, SIZES, torch.Generator(), state_size=2))
    tokens = torch.randn(2, N, 8, generator=torch.Generator().manual_seed(0))
    alive = torch.tensor([[True, True, False], [False, False, False]])
    state = torch.ones(2, 2)
    found = values(tokens, alive, state)
    mean = tokens[0, :2].mean(0, keepdim=True)
    expected = values.head(torch.cat([mean, torch.zeros(1, 1), torch.ones(1, 2)], -1))
    assert torch.allclose(found[0, 2], expected[0], atol=1e-6)
    nobody = values.head(torch.cat([torch.zeros(1, 9), torch.ones(1, 2)], -1))
    assert torch.allclose(found[1], nobody.expand(N, -1), atol=1e-6)
    other = tokens.clone()
    other[0, 2] = 7.0
    assert torch.equal(values(other, alive, state)[0], found[0])
