"""Networks of teams that decide one agent after another: the order of agents, tokens of actions, and their base.

    pi(a | o) = prod_m pi(a_m | o, a_1, .., a_{m-1}),    m the place of an agent in the order

Tensors *in order* have the agent at place m as entry m of their agent axis. Agents of a block are ordered among
themselves and blocks keep their order, so that the action space at a place does not depend on the order. Dead agents
are skipped: the action before that of an agent is that of the last live agent before it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.tree import Tree, register_pytree
from coterie.core.types import Action, HiddenState
from coterie.functional.policy_gradient import log_prob_and_entropy
from coterie.kernels import switch
from coterie.nets.by_name import ModulesByName
from coterie.nets.joint_actions import action_size, encode_actions
from coterie.nets.layers import Linear
from coterie.nets.stochastic_actor import ActionParameters
from coterie.nets.team import Block, join_blocks
from coterie.nets.team_view import view_of


@register_pytree
@dataclass(frozen=True)
class AgentOrder:
    """The order in which agents decide.

    Attributes:
        place: [.., N] int64, the place of each agent.
        agent: [.., N] int64, the agent at each place.
    """

    place: Tensor
    agent: Tensor

    def arrange(self, x: Tensor, block: Block | None = None) -> Tensor:
        """Returns x [.., N, D] of agents, or [.., n, D] of those of a block, in order."""
        return _select(x, self.agent, block)

    def restore(self, x: Tensor, block: Block | None = None) -> Tensor:
        """Returns x [.., N, D] in order, or [.., n, D] of a block, by agent."""
        return _select(x, self.place, block)


def _select(x: Tensor, index: Tensor, block: Block | None) -> Tensor:
    if block is not None:
        index = index[..., block.start : block.stop] - block.start
    return x.gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))


def order_of(place: Tensor | None) -> AgentOrder | None:
    """Returns the order with each agent's place [.., N]; None for None, the team's own order."""
    return None if place is None else AgentOrder(place, place.argsort(-1))


def draw_places(blocks: Sequence[Block], generator: torch.Generator, device: torch.device) -> Tensor:
    """Returns random places [N] int64, each block's agents among themselves."""
    return torch.cat([torch.randperm(block.n, generator=generator, device=device) + block.start for block in blocks])


class ActionTokens(nn.Module):
    """Tokens of actions before an agent's own: a W, and a learned token where no agent has decided yet.

    Args:
        blocks: Blocks of the team.
        size: Number of features D of a token.
        generator: Source of the initial weights.
    """

    def __init__(self, blocks: Sequence[Block], size: int, generator: torch.Generator):
        super().__init__()
        self.start = nn.Parameter(torch.randn(size, generator=generator) * size**-0.5)
        self.layers = ModulesByName(
            {
                block.name: Linear(action_size(block.action_spec), size, gain=2**0.5, generator=generator)
                for block in blocks
            }
        )

    def of_block(self, block: Block, action: Action) -> Tensor:
        """Returns the tokens [.., D] of actions of a block's agents."""
        vector = encode_actions(block.action_spec, action).to(self.start.dtype)
        return self.layers[block.name](vector.flatten(0, -2)).unflatten(0, vector.shape[:-1])

    def before(self, tokens: Tensor, alive: Tensor | None) -> Tensor:
        """Returns the token of the last live agent before each agent [.., N, D].

        Args:
            tokens: Tokens of all agents' actions in order [.., N, D].
            alive: [.., N] bool in order; None: all agents are alive.
        """
        start = self.start.expand(*tokens.shape[:-2], 1, -1)
        before = torch.cat([start, tokens[..., :-1, :]], -2)
        if alive is None:
            return before
        number = torch.arange(1, alive.shape[-1], device=alive.device)
        last = torch.where(alive[..., :-1], number, 0).cummax(-1).values
        last = nn.functional.pad(last, (1, 0)).unsqueeze(-1)
        return before.gather(-2, last.expand(before.shape))


class AutoregressiveActor(ActionParameters):
    """Base of networks by which agents decide one after another, each by its predecessors' actions.

    A subclass computes the features that heads map to parameters of actions: agent by agent while acting, and all at
    once of actions that were taken. Both must give the same.

    Args:
        blocks: Blocks of the team.
        size: Number of features of action tokens.
        generator: Source of the initial weights.
        state_dependent_std: The standard deviation is an output of the network instead of a parameter.
        init_std: Initial standard deviation.

    Attributes:
        heads: By block, called as `head(features [M, D])`, returns `num_outputs` numbers. A subclass sets it.
    """

    heads: ModulesByName

    def __init__(
        self,
        blocks: tuple[Block, ...],
        size: int,
        generator: torch.Generator,
        *,
        state_dependent_std: bool,
        init_std: float,
    ):
        super().__init__(state_dependent_std=state_dependent_std, init_std=init_std)
        self.blocks, self.num_agents = blocks, blocks[-1].stop
        self.agents_can_die = True
        self.tokens = ActionTokens(blocks, size, generator)
        self.create_std(blocks, per_agent=False)

    def initial_hidden_state(self, num_envs: int, device: torch.device) -> HiddenState:
        """Returns the hidden state before the first timestep, by name [B, N, ..]; {} without memory."""
        return {}

    @abstractmethod
    def start(self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState) -> Any:
        """Reads a timestep before the first agent decides, and returns the state of decoding.

        Args:
            obs: By role [B, n, ..] as networks read them, with a `TeamView`, whose `place` is the agents' order.
            first: [B, N] bool.
            hidden_state: By name [B, N, ..].
        """

    @abstractmethod
    def step(self, decoding: Any, place: int, token: Tensor) -> Tensor:
        """Returns the features [B, D] of the agent at a place, after those at all places before.

        Args:
            decoding: State of decoding, which may be changed.
            place: The place.
            token: Token of the last live agent's action before [B, D].
        """

    def finish(self, decoding: Any) -> HiddenState:
        """Returns the next hidden state."""
        return {}

    @abstractmethod
    def features(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor | None, hidden_state: HiddenState
    ) -> Tensor:
        """Returns the features of all agents in order [.., N, D], by one pass over actions that were taken.

        Args:
            obs: By role [M, n, ..], or sequences [L, M, n, ..] if there is memory, else as in `start`.
            action: By role [.., n, ..].
            first: [L, M, N] bool, for networks with memory.
            hidden_state: Before the first timestep, by name [M, N, ..]; {} without memory.
        """

    def unroll(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor, hidden_state: HiddenState
    ) -> HiddenState:
        """Returns the hidden state after sequences, for networks with memory; arguments as in `features`."""
        return {}

    def evaluate(
        self,
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        action: dict[str, Action],
        first: Tensor | None,
        hidden_state: HiddenState,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities and entropies of actions that were taken, [.., N] each; arguments as above."""
        features = self.features(obs, action, first, hidden_state)
        return self.log_probs(features, action_mask, action, order_of(view_of(obs).place))

    def tokens_before(self, obs: dict[str, Tree], action: dict[str, Action], order: AgentOrder | None) -> Tensor:
        """Returns the token before each agent in order [.., N, D], of actions by role [.., n, ..]."""
        parts = {block.name: self.tokens.of_block(block, block.join_actions(action)) for block in self.blocks}
        tokens = join_blocks(parts, self.blocks, -2)
        alive = in_order(view_of(obs).alive, order) if self.agents_can_die else None
        return self.tokens.before(tokens if order is None else order.arrange(tokens), alive)

    def agent_params(self, features: Tensor, order: AgentOrder | None) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Returns the parameters of actions by block, see `params`, of agents with these features in order."""
        found = {}
        for block in self.blocks:
            own = features if len(self.blocks) == 1 else features[..., block.start : block.stop, :]
            output = self.heads[block.name](own.flatten(0, -2)).unflatten(0, own.shape[:-1])
            found[block.name] = self.params(block, output if order is None else order.restore(output, block))
        return found

    def log_probs(
        self, features: Tensor, action_mask: dict[str, Tensor], action: dict[str, Action], order: AgentOrder | None
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities and entropies [.., N] of actions, from features in order [.., N, D]."""
        params = self.agent_params(features, order)
        log_probs, entropies = {}, {}
        for block in self.blocks:
            mean, log_std = params[block.name]
            mask, block_action = block.join_masks(action_mask), block.join_actions(action)
            log_probs[block.name], entropies[block.name] = log_prob_and_entropy(
                block.action_spec, mean, block_action, log_std=log_std, mask=mask, kernels=switch.on
            )
        return join_blocks(log_probs, self.blocks, -1), join_blocks(entropies, self.blocks, -1)


def in_order(x: Tensor, order: AgentOrder | None) -> Tensor:
    """Returns x [.., N] of agents in order."""
    return x if order is None else x.gather(-1, order.agent)
