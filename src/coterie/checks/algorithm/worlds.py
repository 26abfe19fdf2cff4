"""Worlds of the checks of algorithms: short episodes, tables of rewards and successors, and a cue to remember."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.probe.single_agent import MemoryConfig, MemoryProbe
from coterie.envs.worlds.world import Observation, Outcome, State, World

SPACES: dict[str, Callable[[], spaces.Space]] = {
    "discrete": lambda: spaces.Discrete(3),
    "continuous": lambda: spaces.Box(-1.0, 1.0, (2,)),
    "multi_discrete": lambda: spaces.MultiDiscrete([3, 2]),
    "hybrid": lambda: spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,))]),
}
"""Action space of each kind."""


@final
class ShortEpisodes(World):
    """Episodes of a few steps with observations and rewards that differ everywhere.

    Args:
        kind: Kind of the actions, a key of `SPACES`.
        agents: Number of agents.
        length: Steps per episode.
        truncates: Episodes are truncated at their end instead of terminated.
        masks: A choice is masked in half of the timesteps.
        dying: The first agent dies in the first step, the others in the second one. The episode continues.
    """

    def __init__(
        self,
        kind: str,
        agents: int,
        *,
        length: int = 3,
        truncates: bool = False,
        masks: bool = False,
        dying: bool = False,
    ):
        self._length, self._truncates, self._masks, self._dying = length, truncates, masks, dying
        names = tuple(f"agent_{i}" for i in range(agents))
        role = RoleSpec("agent", "agent", names, spaces.Box(-2.0, 2.0, (3,)), SPACES[kind]())
        self._agents, self._choices = agents, role.action.mask_size
        self.reset_noise_size = agents
        limit = length if truncates else None
        self.spec = EnvSpec("short", (role,), {"global": 3 * agents}, agents_can_die=dying, episode_limit=limit)

    def reset(self, noise: Tensor) -> State:
        return {"x": noise, "age": torch.zeros(len(noise), dtype=torch.int64)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        own, x, age = action["agent"], state["x"], state["age"] + 1
        reward = x.clone()
        if own.discrete is not None:
            reward = reward + own.discrete.float().mean(-1) * (x - 0.5)
        if own.continuous is not None:
            reward = reward + own.continuous.mean(-1) * (x - 0.5)
        dies = torch.zeros_like(x, dtype=torch.bool)
        if self._dying:
            dies[:, 0], dies[:, 1:] = age == 1, (age == 2)[:, None]
        terminated = None if self._truncates else age >= self._length
        return {"x": (x + 0.37) % 1.0, "age": age}, Outcome(reward, terminated=terminated, agent_terminated=dies)

    def observe(self, state: State) -> Observation:
        x, age = state["x"], state["age"][:, None].expand(state["x"].shape)
        obs = torch.stack([x, (age % 2).float(), 1 - x], -1)
        alive = torch.ones(x.shape, dtype=torch.bool)
        if self._dying:
            alive[:, 0], alive[:, 1:] = state["age"] == 0, (state["age"] < 2)[:, None]
            obs = obs * alive[..., None]
        masks = {}
        if self._masks:
            mask = torch.ones(*x.shape, self._choices, dtype=torch.bool)
            mask[..., 0] = (x > 0.5) | ~alive
            masks["agent"] = mask
        return Observation({"agent": obs}, masks, {"global": obs.flatten(1)}, alive if self._dying else None)

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)


@dataclass(frozen=True)
class Table:
    """Transitions of an agent with S states and A choices. Every state is the start of an episode equally often.

    Attributes:
        reward: [S][A].
        successor: [S][A], the state that is shown next; None: the same state.
        ends: [S][A], True where the episode terminates; None: everywhere.
        masked: [S][A], True where a choice is not available; None: nowhere.
        limit: Step after which an episode is truncated; None: never.
    """

    reward: tuple[tuple[float, ...], ...]
    successor: tuple[tuple[int, ...], ...] | None = None
    ends: tuple[tuple[bool, ...], ...] | None = None
    masked: tuple[tuple[bool, ...], ...] | None = None
    limit: int | None = None


@final
class TableWorld(World):
    """Agents that each observe their own state as a one-hot vector and receive a reward of their own.

    With several agents, every transition has to terminate. A continuous action selects choice 1 if it is positive, and
    choice 0 otherwise.
    """

    def __init__(self, table: Table, kind: str = "discrete", agents: int = 1):
        self.reset_noise_size = agents
        self._agents, self._continuous = agents, kind == "continuous"
        self._reward = torch.tensor(table.reward)
        self.num_states, self.num_choices = self._reward.shape
        self._ends = self._tensor(table.ends, torch.ones(self._reward.shape, dtype=torch.bool))
        own = torch.arange(self.num_states)[:, None].expand(self._reward.shape)
        self._successor = self._tensor(table.successor, own)
        self._legal = None if table.masked is None else ~torch.tensor(table.masked)
        space = spaces.Box(-1.0, 1.0, (1,)) if self._continuous else spaces.Discrete(self.num_choices)
        names = tuple(f"agent_{i}" for i in range(agents))
        role = RoleSpec("agent", "agent", names, spaces.Box(0.0, 1.0, (self.num_states,)), space)
        states = {"global": agents * self.num_states}
        self.spec = EnvSpec("table", (role,), states, episode_limit=table.limit)

    @staticmethod
    def _tensor(rows: tuple[tuple[int, ...], ...] | None, default: Tensor) -> Tensor:
        return default if rows is None else torch.tensor(rows)

    def reset(self, noise: Tensor) -> State:
        return {"at": (noise * self.num_states).long().clamp(max=self.num_states - 1)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        at, choice = state["at"], self.choice(action)
        terminated = self._ends[at, choice].all(-1)
        return {"at": self._successor[at, choice]}, Outcome(self._reward[at, choice], terminated=terminated)

    def choice(self, action: dict[str, Action]) -> Tensor:
        """Returns the choices that actions select [B, N]."""
        own = action["agent"]
        if own.continuous is not None:
            return (own.continuous[..., 0] > 0).long()
        assert own.discrete is not None
        return own.discrete[..., 0]

    def observe(self, state: State) -> Observation:
        at = state["at"]
        obs = one_hot(at, self.num_states).float()
        masks = {} if self._legal is None else {"agent": self._legal[at]}
        return Observation({"agent": obs}, masks, {"global": obs.flatten(1)})

    def first_timestep(self) -> Timestep:
        """Returns the first timestep of one environment per state, whose agents are all in that state."""
        at = torch.arange(self.num_states)[:, None].expand(-1, self._agents)
        seen, everyone = self.observe({"at": at}), torch.ones(at.shape, dtype=torch.bool)
        return Timestep(seen.obs, seen.action_mask, seen.state, alive=everyone, first=everyone, acted=everyone[:, 0])

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)


@final
class RecallWorld(World):
    """The world of probe/memory with the cue in the environment's state, for critics that remember nothing."""

    def __init__(self) -> None:
        self._probe = MemoryProbe(MemoryConfig(delay=1, cues=2))
        self.spec = replace(self._probe.spec, state_sizes={"global": 3})
        self.reset_noise_size = self._probe.reset_noise_size

    def reset(self, noise: Tensor) -> State:
        return self._probe.reset(noise)

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        return self._probe.step(state, action, noise)

    def observe(self, state: State) -> Observation:
        features = (state["cue"] == 0, state["cue"] == 1, state["step"] > 0)
        return replace(self._probe.observe(state), state={"global": torch.stack(features, -1).float()})

    def render(self, state: State, size: int) -> np.ndarray:
        return self._probe.render(state, size)
