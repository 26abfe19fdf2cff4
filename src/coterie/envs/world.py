"""Built-in worlds: pure functions on a dict of [B, ...] tensors, and the one environment that runs any of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.envs.parameters import Parameter, Varying, fitted
from coterie.envs.samplers import Sampler
from coterie.seeds import generator
from coterie.types import Action, EnvSpec, Row, Step

State = dict[str, Tensor]


@dataclass(frozen=True)
class View:
    """What a world shows of a state: see Row. `alive` None means that everyone lives."""

    obs: dict[str, Tensor]
    action_mask: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    alive: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """What a step of a world brought. None stands for zeros or for nobody.

    reward: [B, N]; group_reward: [B, G]; ended: [B] bool, the task is over; agent_ended: [B, N] bool, an agent's life
    is over while the episode goes on; metrics: by name [B], or the function that computes them, which is called only in
    steps that end an episode.
    """

    reward: Tensor
    group_reward: Tensor | None = None
    ended: Tensor | None = None
    agent_ended: Tensor | None = None
    metrics: dict[str, Tensor] | Callable[[], dict[str, Tensor]] = field(default_factory=dict)


class World(ABC):
    """The rules of a world, without randomness and without memory of its own: noise and state are arguments.

    restart_noise, step_noise: how many uniform numbers in [0, 1) a copy needs for a new episode and for a step.
    limit_ends: the step limit counts as an end of the task (terminated), not as a cut (truncated).
    parameters: what may differ between copies and episodes, by name. Where it does, the state has an entry [B] of that
    name; a world reads it there if it is there, and `adjusted` is called on every first state.
    """

    spec: EnvSpec
    restart_noise: int
    step_noise: int = 0
    limit_ends: bool = False
    parameters: Mapping[str, Parameter] = MappingProxyType({})
    adjusted: Callable[[State], State] | None = None
    """What a first state is with the parameters that are in it, where that is more than the entries themselves."""

    @abstractmethod
    def restart(self, noise: Tensor) -> State:
        """The first state of new episodes from noise [B, restart_noise]; entries are [B, ...]."""

    @abstractmethod
    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        """The next state and what the step brought; `state` is left as it is. noise: [B, step_noise] or None."""

    @abstractmethod
    def view(self, state: State) -> View:
        """What agents see of `state`."""

    @abstractmethod
    def render(self, state: State, size: int) -> np.ndarray:
        """A picture of the single copy that `state` holds (its tensors are [1, ...]): uint8 [H, W, 3]."""


class WorldEnv(Varying):
    """Copies of one world in a batch: draws the noise, cuts at the limit, restarts on the next step."""

    def __init__(self, world: World, copies: int, seed: int, device: torch.device | str = "cpu"):
        self.spec, self.copies, self.device = world.spec, copies, torch.device(device)
        self.world = world
        self._generator, self._chance = self._seeded(seed)
        self._samplers: dict[str, Sampler] = {}
        self._on_host = self.device.type == "cpu"
        self._limit = math.inf if world.spec.episode_limit is None else world.spec.episode_limit
        self._n = self.spec.n
        n, groups = self._n, len(self.spec.groups)
        self._everyone = torch.ones(copies, n, dtype=torch.bool, device=self.device)
        self._nobody = torch.zeros(copies, n, dtype=torch.bool, device=self.device)
        self._no_copy = torch.zeros(copies, dtype=torch.bool, device=self.device)
        self._all_copies = ~self._no_copy
        self._no_group_reward = torch.zeros(copies, groups, device=self.device)
        self._state: State = {}
        self._clock = 0
        self._born = torch.zeros(copies, dtype=torch.int64, device=self.device)  # the clock when the episode began
        self._earliest = 0  # no running episode began before
        self._closing = self._no_copy  # the row shown last is a closing one
        self._restarts = not self._on_host  # the next step has to look for copies that restart
        self._no_reward = torch.zeros(copies, n, device=self.device)
        self._no_metrics = {name: torch.zeros(copies, device=self.device) for name in self.spec.metrics}
        self._alive = self._everyone

    def _seeded(self, seed: int) -> tuple[torch.Generator, torch.Generator]:
        """What the world's noise and what its parameters are drawn from."""
        name, device = self.spec.name, self.device
        return generator(seed, "env", name, device=device), generator(seed, "parameters", name, device=device)

    def _noise(self, size: int) -> Tensor:
        return torch.rand(self.copies, size, generator=self._generator, device=self.device)

    def reset(self, seed: int | None = None) -> Row:
        if seed is not None:
            self._generator, self._chance = self._seeded(seed)
        self._state = self._restarted()
        self._clock, self._born, self._earliest = 0, torch.zeros_like(self._born), 0
        self._closing, self._restarts = self._no_copy, not self._on_host
        return self._row(fresh=self._all_copies)

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        self._clock += 1
        if self._closing is self._all_copies:  # nothing that the world did here would be seen
            self._state, self._earliest = self._restarted(), self._clock
            self._born = torch.full_like(self._born, self._clock)
            return self._step(Outcome(self._no_reward, metrics=self._no_metrics), None), self._row(self._all_copies)
        closing, restarts = self._closing, self._restarts
        noise = self._noise(self.world.step_noise) if self.world.step_noise else None
        state, outcome = self.world.step(self._state, action, noise)
        if restarts:
            fresh = self._restarted()
            state = {name: _choose(closing, fresh[name], value) for name, value in state.items()}
            self._born = self._born.masked_fill(closing, self._clock)
            if self._on_host:
                self._earliest = int(self._born.min())
        self._state = state
        step = self._step(outcome, closing if restarts else None)
        return step, self._row(fresh=closing if restarts else self._no_copy)

    def parameters(self) -> dict[str, Parameter]:
        return dict(self.world.parameters)

    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        fitted(self.spec.name, samplers, self.world.parameters)

    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        known = self.world.parameters
        self._samplers = dict(sorted((self._samplers | fitted(self.spec.name, samplers, known)).items()))
        for name in self._samplers:
            if self._state and name not in self._state:  # running episodes go on as without it
                self._state[name] = torch.full((self.copies,), known[name].value, device=self.device)

    def _restarted(self) -> State:
        """A new episode in every copy, with the parameters that it draws."""
        fresh = self.world.restart(self._noise(self.world.restart_noise))
        if not self._samplers:
            return fresh
        noise = torch.rand(len(self._samplers), self.copies, generator=self._chance, device=self.device)
        for row, (name, sampler) in zip(noise, self._samplers.items(), strict=True):
            drawn = sampler.draw(row)
            drawn = drawn.round() if self.world.parameters[name].whole else drawn
            fresh[name] = drawn.to(fresh[name].dtype) if name in fresh else drawn
        return fresh if self.world.adjusted is None else self.world.adjusted(fresh)

    def _step(self, outcome: Outcome, closing: Tensor | None) -> Step:
        """The step as the contract has it: limits apart from ends, nothing for copies that restart."""
        ended = self._no_copy if outcome.ended is None else outcome.ended
        # While no copy can be old enough, there is nothing to compare.
        limited = self._clock - self._earliest >= self._limit
        cut = self._born <= self._clock - self._limit if limited else self._no_copy
        if limited and self.world.limit_ends:
            ended, cut = ended | cut, self._no_copy
        elif limited and outcome.ended is not None:
            cut = cut & ~ended
        reward, group_reward = outcome.reward, outcome.group_reward
        if closing is not None:
            reward = reward.masked_fill(closing[:, None], 0)
            ended, cut = ended & ~closing, cut & ~closing
            if group_reward is not None:
                group_reward = group_reward.masked_fill(closing[:, None], 0)
        self._note_ends(ended, cut)
        terminated, truncated = self._by_agent(ended), self._by_agent(cut)
        if self.spec.mortal:
            if outcome.agent_ended is not None:
                dead = outcome.agent_ended if closing is None else outcome.agent_ended & ~closing[:, None]
                terminated = terminated | dead
            terminated = terminated & self._alive
            truncated = truncated & self._alive & ~terminated
        return Step(
            reward=reward,
            group_reward=self._no_group_reward if group_reward is None else group_reward,
            terminated=terminated,
            truncated=truncated,
            episode_terminated=ended,
            episode_truncated=cut,
            metrics=self._metrics(outcome, closing),
        )

    def _by_agent(self, copies: Tensor) -> Tensor:
        """[B] as [B, N]."""
        return self._nobody if copies is self._no_copy else copies[:, None].expand(self.copies, self._n)

    def _note_ends(self, ended: Tensor, cut: Tensor) -> None:
        """Keeps which copies close with this step. A host looks whether any does; an accelerator would have to wait."""
        if ended is self._no_copy and cut is self._no_copy:
            self._closing, self._restarts = self._no_copy, not self._on_host
            return
        self._closing, self._restarts = ended | cut, True
        if self._on_host:
            closing = int(self._closing.sum())
            self._restarts = closing > 0
            if closing in (0, self.copies):
                self._closing = self._all_copies if closing else self._no_copy

    def _metrics(self, outcome: Outcome, closing: Tensor | None) -> dict[str, Tensor]:
        if callable(outcome.metrics):
            if self._closing is self._no_copy:
                return self._no_metrics
            return {name: value.where(self._closing, 0) for name, value in outcome.metrics().items()}
        if closing is None:
            return outcome.metrics
        return {name: value.masked_fill(closing, 0) for name, value in outcome.metrics.items()}

    def _row(self, fresh: Tensor) -> Row:
        """The row of the present state; fresh: [B] bool, copies whose episode begins here."""
        view = self.world.view(self._state)
        alive = self._everyone if view.alive is None else view.alive
        first = self._by_agent(fresh)
        if self.spec.mortal:
            first = alive & (first | ~self._alive)
        self._alive = alive
        acted = self._all_copies if self._closing is self._no_copy else ~self._closing
        return Row(view.obs, view.action_mask, view.state, alive, first, acted)

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": dict(self._state),
            "age": self._clock - self._born,
            "closing": self._closing,
            "alive": self._alive,
            "generator": self._generator.get_state(),
            **({"chance": self._chance.get_state()} if self._samplers else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = {name: value.to(self.device) for name, value in state["state"].items()}
        self._clock, self._born = 0, -state["age"].to(self.device)
        self._earliest = int(self._born.min())
        self._note_ends(state["closing"].to(self.device), self._no_copy)
        self._alive = state["alive"].to(self.device)
        self._generator.set_state(state["generator"].cpu())
        if "chance" in state:
            self._chance.set_state(state["chance"].cpu())

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        return self.world.render({name: value[copy : copy + 1].cpu() for name, value in self._state.items()}, size)

    def close(self) -> None:
        pass


def _choose(which: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` where `which` [B] holds, else `no`; both [B, ...]."""
    return torch.where(which.view(-1, *[1] * (no.ndim - 1)), yes, no)
