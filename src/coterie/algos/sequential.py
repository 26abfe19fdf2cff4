"""Agents that are updated one after the other, each with a network of its own: HAPPO, HAA2C, HATRPO and HASAC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from coterie.algos.base_config import LearnerConfig
from coterie.algos.optimizer import Optimizer
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.nets.config import BodyKind, ModuleFactory, ShareParams
from coterie.nets.single_agent import SingleAgent
from coterie.nets.team import Block
from coterie.ranks.ranks import Ranks

A = TypeVar("A", bound=SingleAgent)


def require_own_networks(share_params: ShareParams, *, instead: str) -> None:
    """Raises UserError if agents are to share parameters; `instead` is an algorithm in which they can."""
    if share_params != "none":
        raise UserError(
            f"algo.share_params={share_params}: sequential updates need a network for each agent. Omit it, or "
            f"use algo={instead}."
        )


def require_own_body(body: ModuleFactory | BodyKind | None, name: str | None, *, instead: str) -> None:
    """Raises UserError if agents share the parameters of the network's body, whose name is that of `algo.network`."""
    if body.sees_team if isinstance(body, ModuleFactory) else body is not None:
        raise UserError(
            f"algo.network={name}: agents share its parameters, and sequential updates need a network for each. "
            f"Use it for the critic alone with algo.critic_network={name}, or use algo={instead}."
        )


@dataclass(frozen=True)
class Agent(Generic[A]):
    """One agent of the team.

    Attributes:
        index: Index among the agents of the team.
        block: Its role.
        actor: Its network, in turn with other agents of the role.
        optimizer: Trains its network as `policy`.
    """

    index: int
    block: Block
    actor: A
    optimizer: Optimizer

    @property
    def inside(self) -> int:
        """Index among the agents of its role."""
        return self.index - self.block.start

    def of_role(self, by_role: Mapping[str, Any], axis: int) -> dict[str, Any]:
        """Returns the agent's part of trees by role with agents along an axis, [.., n, ..] to [.., 1, ..]."""
        own = {role: x for role, x in by_role.items() if role == self.block.name}
        return tree_map(lambda x: x.narrow(axis, self.inside, 1), own)

    def of_team(self, tree: Tree, axis: int) -> Any:
        """Returns the agent's part of a tree with all agents along an axis, [.., N, ..] to [.., 1, ..]."""
        return tree_map(lambda x: x.narrow(axis, self.index, 1), tree)


def create_agents(actors: Sequence[tuple[Block, A]], config: LearnerConfig, *, ranks: Ranks) -> list[Agent[A]]:
    """Returns the agents of a team, with an optimizer each.

    Args:
        actors: The network of one agent for each role.
        config: Settings of the optimizers.
        ranks: Ranks that train the team together.
    """
    agents = []
    for block, actor in actors:
        optimizer = Optimizer({"policy": actor.module}, *config.adam_settings)
        for index in range(block.start, block.stop):
            own = optimizer.for_module("policy", weight_decay=config.weight_decay, ranks=ranks)
            agents.append(Agent(index, block, actor, own))
    return agents


def in_random_order(agents: Sequence[Agent[A]], generator: torch.Generator) -> list[Agent[A]]:
    """Returns agents in an order that the generator draws, which is on the CPU and the same for all ranks."""
    return [agents[k] for k in torch.randperm(len(agents), generator=generator).tolist()]


def optimizer_states(agents: Sequence[Agent], team: TeamSpec) -> dict[str, Any]:
    """Returns the states of the agents' optimizers by name of the agent."""
    states = [agent.optimizer.state_dict()["policy"] for agent in agents]
    return dict(zip(team.agents, states, strict=True))


def load_optimizer_states(agents: Sequence[Agent], team: TeamSpec, states: Mapping[str, Any]) -> None:
    """Restores the states of the agents' optimizers."""
    for agent, name in zip(agents, team.agents, strict=True):
        agent.optimizer.load_state_dict({"policy": states[name]})
