"""Networks of single agents of a team that shares no parameters, and derivatives along a direction.

A team's network holds the parameters of a role's n agents as stacked tensors, which one batched product reads. Here an
agent has a network for itself, whose passes and gradients cost those of one agent.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState
from coterie.nets.layers import forward_mode
from coterie.nets.stochastic_actor import StochasticActor
from coterie.nets.team import Block, TeamNetwork
from coterie.nets.user_body import UserBody

M = TypeVar("M", bound=nn.Module)


def agent_tensors(module: nn.Module, agent: int, agents: int) -> list[Tensor]:
    """Returns the parameters of one agent in a module with a set for each of `agents`, as views of the module's.

    Modules of the same architecture return them in the same order, whatever their number of agents. Buffers of users'
    modules are among them.
    """
    if isinstance(module, UserBody):
        part = module.parts[agent]
        return [x.detach() for x in (*part.parameters(), *part.buffers())]
    own = [p.detach().chunk(agents)[agent] for p in module.parameters(recurse=False)]
    return [*own, *(x for child in module.children() for x in agent_tensors(child, agent, agents))]


def alone(team: TeamSpec, block: Block) -> TeamSpec:
    """Returns a team that consists of the first agent of a role."""
    (role,) = block.roles
    return replace(team, roles=(replace(role, agents=role.agents[:1]),), start=0, stop=1, other_roles=())


class SingleAgent(ABC, Generic[M]):
    """A module of one agent, which the agents of a role use in turn.

    Args:
        module: The module of one agent. Its agent has index 0.
        of_team: That of the team, whose agents share no parameters.
        block: The role.
    """

    def __init__(self, module: M, of_team: M, block: Block):
        self.module = module.to(next(of_team.parameters()).device)
        self._of_team, self._block = of_team, block

    @contextmanager
    def of(self, agent: int) -> Iterator[M]:
        """Context of an agent's turn: its parameters are those of the module, and are stored in the team's at the end.

        Args:
            agent: Index among the agents of the role.
        """
        turn, stored = self._tensors(self.module, 0, 1), self._tensors(self._of_team, agent, self._block.n)
        _copy(stored, turn)
        yield self.module
        _copy(turn, stored)

    @abstractmethod
    def _tensors(self, module: M, agent: int, agents: int) -> list[Tensor]:
        """Returns the parameters of one agent in a module that has a set for each of `agents`, as views of them."""


class SingleAgentActor(SingleAgent[StochasticActor]):
    """An actor of one agent.

    Args:
        actor: Actor of the team, whose agents share no parameters.
        team: The team.
        block: The role.
    """

    def __init__(self, actor: StochasticActor, team: TeamSpec, block: Block):
        super().__init__(actor.for_team(alone(team, block), torch.Generator()), actor, block)

    def _tensors(self, module: StochasticActor, agent: int, agents: int) -> list[Tensor]:
        name = self._block.name
        log_std = [module.log_std[name].detach().chunk(agents)[agent]] if name in module.log_std else []
        return [*agent_tensors(module.net.networks[name], agent, agents), *log_std]


class SingleAgentNetwork(SingleAgent[TeamNetwork]):
    """A network of one agent, of the architecture of the team's."""

    def _tensors(self, module: TeamNetwork, agent: int, agents: int) -> list[Tensor]:
        return agent_tensors(module.networks[self._block.name], agent, agents)


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


_one_at_a_time = threading.Lock()
"""Held in forward mode, of which PyTorch has one level per process."""


@torch.no_grad()
def tangent(
    actor: StochasticActor,
    inputs: tuple[dict[str, Tree], Tensor | None, HiddenState],
    direction: Mapping[str, Tensor],
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Returns the derivatives of the parameters of the distributions along a direction of the actor's parameters.

        d/dh f(theta + h v) at h = 0

    They are exact, by differentiation in forward mode.

    Args:
        actor: The actor.
        inputs: Arguments of `StochasticActor.forward`.
        direction: v by name of the parameters, in their shapes.

    Returns:
        As `StochasticActor.forward`.
    """

    def outputs(parameters: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
        found = functional_call(actor, parameters, inputs)
        return {name: tuple(x for x in parts if x is not None) for name, parts in found.items()}

    parameters = {name: p.detach() for name, p in actor.named_parameters()}
    with _one_at_a_time, warnings.catch_warnings():
        # At the first use, PyTorch compiles rules with a function that it calls deprecated.
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)
        token = forward_mode.set(True)
        try:
            found = torch.func.jvp(outputs, (parameters,), (dict(direction),))[1]
        finally:
            forward_mode.reset(token)
    return {name: (parts[0], parts[1] if len(parts) > 1 else None) for name, parts in found.items()}
