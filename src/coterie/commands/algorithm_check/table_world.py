"""A world defined by tables of rewards and successors, so that every value is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.world import Observation, Outcome, State, World

ActionKind = Literal["discrete", "continuous"]


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

    def __init__(self, table: Table, kind: ActionKind = "discrete", agents: int = 1):
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
