"""Base class of the probes: one role, a few steps, exactly known answers, and rendering."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec, to_bounds
from coterie.core.types import Action
from coterie.envs.worlds.cell_tables import Cell, Line, Table, draw_table
from coterie.envs.worlds.world import Observation, Outcome, State, World

_ROLE = "agent"


class ProbeConfig(BaseModel):
    """Settings of all probes: none."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class BlindConfig(ProbeConfig):
    """Settings of probes that test the use of observations."""

    blind: bool = False
    """Negative control: all observations are zero."""


@dataclass(frozen=True)
class ProbeAction:
    """The agents' actions: discrete [B, N, K] int64, and continuous [B, N, C] within the bounds of the space."""

    discrete: Tensor
    continuous: Tensor


@dataclass(frozen=True)
class ProbeOutcome:
    """The outcome of a step.

    Attributes:
        reward: [B, N], None for zeros.
        group_reward: [B], None for zeros.
        state_changes: entries of the state with their new values.
        agent_terminated: [B, N] bool, agents that died, None for none.
    """

    reward: Tensor | None = None
    group_reward: Tensor | None = None
    state_changes: dict[str, Tensor] = field(default_factory=dict)
    agent_terminated: Tensor | None = None


@dataclass(frozen=True)
class Reference:
    """The known answers of a probe.

    Attributes:
        requirement: what a learner must be able to do.
        negative_control: the mistake that fails here, and how it shows.
        best_return: exact mean return of the team under optimal play.
        random_return: exact mean return of the team under uniform random play among legal actions.
        control_return: mean return of the negative control, None if it shows in values and not in returns.
    """

    requirement: str
    negative_control: str
    best_return: float
    random_return: float
    control_return: float | None = None


@dataclass(frozen=True)
class ProbeSpec:
    """The static description of a probe.

    Attributes:
        name: name of the world.
        reference: known answers.
        observation_space: observation space of an agent.
        action_space: action space of an agent.
        agents: number of agents N.
        episode_length: steps per episode.
        truncates: episodes are truncated at their end instead of terminated.
        has_group_reward: the group receives rewards.
        agents_can_die: agents can terminate before the episode.
        reset_noise_size, step_noise_size: see `World`.
        metrics: entries of the state that are reported at the end of an episode.
        action_mask: maps a state to the legal choices, [B, 1 or N, sum A] bool.
        alive: maps a state to the agents that are alive, [B, N] bool.
    """

    name: str
    reference: Reference
    observation_space: spaces.Box
    action_space: spaces.Space
    agents: int = 1
    episode_length: int = 1
    truncates: bool = False
    has_group_reward: bool = False
    agents_can_die: bool = False
    reset_noise_size: int = 0
    step_noise_size: int = 0
    metrics: tuple[str, ...] = ()
    action_mask: Callable[[State], Tensor] | None = None
    alive: Callable[[State], Tensor] | None = None


class ProbeWorld(World):
    """A probe. Subclasses define observations, rewards and optimal play.

    Args:
        probe: description of the probe.
        with_state: whether timesteps include the state, the concatenated observations.
    """

    def __init__(self, probe: ProbeSpec, with_state: bool):
        self.probe = probe
        self.reset_noise_size, self.step_noise_size = probe.reset_noise_size, probe.step_noise_size
        self._with_state = with_state
        names = tuple(f"agent_{i}" for i in range(probe.agents))
        role = RoleSpec(
            name=_ROLE,
            group=_ROLE,
            agents=names,
            observation_space=probe.observation_space,
            action_space=probe.action_space,
        )
        size = probe.agents * int(np.prod(probe.observation_space.shape))
        self.spec = EnvSpec(
            name=f"probe/{probe.name}",
            roles=(role,),
            state_sizes={"global": size} if with_state else {},
            agents_can_die=probe.agents_can_die,
            has_group_reward=probe.has_group_reward,
            metrics=probe.metrics,
            episode_limit=probe.episode_length if probe.truncates else None,
        )
        self._action = role.action

    # ---------------------------------------------------------------------------------------- defined by probes

    @abstractmethod
    def initial_state(self, noise: Tensor) -> State:
        """Returns the probe's own entries of the initial state, in addition to `step`, the number of steps taken.

        Args:
            noise: uniform numbers in [0, 1), [B, reset_noise_size].
        """

    @abstractmethod
    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        """Returns the outcome of an action.

        Args:
            state: the state before the step.
            action: actions of all agents.
            noise: uniform numbers in [0, 1), [B, step_noise_size].
        """

    @abstractmethod
    def observation(self, state: State) -> Tensor:
        """Returns the observations, [B, 1 or N, ...]."""

    @abstractmethod
    def best_action(self, state: State) -> ProbeAction:
        """Returns the best action given the full state."""

    @abstractmethod
    def best_value(self, state: State, gamma: float) -> Tensor:
        """Returns the team's expected discounted return under optimal play, [B].

        The expectation is conditioned on the history of observations. Final timesteps have no value.
        """

    # ---------------------------------------------------------------------------------------- known answers

    @property
    def reference(self) -> Reference:
        """Known answers of this probe with these settings."""
        return self.probe.reference

    def best_return(self) -> float:
        """Returns the exact mean return of the team under optimal play."""
        return self.reference.best_return

    def random_return(self) -> float:
        """Returns the exact mean return of the team under uniform random play."""
        return self.reference.random_return

    # ---------------------------------------------------------------------------------------- World

    def reset(self, noise: Tensor) -> State:
        num_envs, device = len(noise), noise.device
        size = len(self._action.choices) + self._action.continuous
        return {
            "step": torch.zeros(num_envs, dtype=torch.int64, device=device),
            "last_action": torch.zeros(num_envs, self.probe.agents, size, device=device),
            "return": torch.zeros(num_envs, device=device),
            **self.initial_state(noise),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        decoded = self._decode_action(action[_ROLE], state)
        noise = state["return"].new_zeros(len(state["step"]), 0) if noise is None else noise
        outcome = self.outcome(state, decoded, noise)
        reward = outcome.reward
        if reward is None:
            reward = decoded.continuous.new_zeros(decoded.discrete.shape[:2])
        team_reward = reward.sum(1) if outcome.group_reward is None else reward.sum(1) + outcome.group_reward
        step = state["step"] + 1
        next_state = {
            **state,
            "step": step,
            "last_action": torch.cat((decoded.discrete.float(), decoded.continuous), dim=-1),
            "return": state["return"] + team_reward,
            **outcome.state_changes,
        }
        return next_state, Outcome(
            reward=reward,
            group_reward=None if outcome.group_reward is None else outcome.group_reward[:, None],
            terminated=None if self.probe.truncates else step >= self.probe.episode_length,
            agent_terminated=outcome.agent_terminated,
            metrics=lambda: {name: next_state[name] for name in self.probe.metrics},
        )

    def observe(self, state: State) -> Observation:
        obs, mask, alive = self.observation(state), self._action_mask(state), self._alive(state)
        n, num_envs = self.probe.agents, len(state["step"])
        obs = obs.expand(num_envs, n, *obs.shape[2:]).contiguous()
        if alive is not None:
            obs = obs * alive.view(num_envs, n, *[1] * (obs.ndim - 2))
            mask = None if mask is None else mask | ~alive[..., None]
        states = {}
        if self._with_state:
            features = obs.float() / 255 if obs.dtype == torch.uint8 else obs
            states["global"] = features.flatten(1)
        masks = {} if mask is None else {_ROLE: mask.expand(num_envs, n, -1).contiguous()}
        return Observation({_ROLE: obs}, masks, states, alive)

    def _action_mask(self, state: State) -> Tensor | None:
        return None if self.probe.action_mask is None else self.probe.action_mask(state)

    def _alive(self, state: State) -> Tensor | None:
        return None if self.probe.alive is None else self.probe.alive(state)

    def _decode_action(self, action: Action, state: State) -> ProbeAction:
        num_envs, device = len(state["step"]), state["step"].device
        discrete, continuous = action.discrete, action.continuous
        if discrete is None:
            discrete = torch.zeros(num_envs, self.probe.agents, 0, dtype=torch.int64, device=device)
        if continuous is None:
            return ProbeAction(discrete, discrete.new_zeros(*discrete.shape[:2], 0).float())
        return ProbeAction(discrete, to_bounds(continuous, self._action))

    # ---------------------------------------------------------------------------------------- rendering

    def render(self, state: State, size: int) -> np.ndarray:
        return draw_table(self.picture(state), size)

    def picture(self, state: State) -> Table:
        """Returns one line per agent with its choices and numbers; the best and the last ones are highlighted."""
        alive = self._alive(state)
        lines = []
        for i, name in enumerate(self.spec.agents):
            is_alive = alive is None or bool(alive[0, i])
            lines.append(Line(name if is_alive else f"{name} (dead)", tuple(self._agent_cells(state, i))))
        score = {"step": float(state["step"][0]), "return": float(state["return"][0])}
        obs = self.observation(state)[0]
        if obs.ndim == 4:
            return Table(self.probe.name, tuple(lines), score=score, image=obs[0].numpy())
        distinct = dict.fromkeys(tuple(features) for features in obs.tolist())
        caption = "observation " + "; ".join(" ".join(f"{value:.3g}" for value in features) for features in distinct)
        return Table(self.probe.name, tuple(lines), captions=(caption,), score=score)

    def _agent_cells(self, state: State, agent: int) -> list[Cell]:
        acted, best, mask = int(state["step"][0]) > 0, self.best_action(state), self._action_mask(state)
        if mask is not None:
            mask = mask.expand(1, self.probe.agents, -1)
        last_action, cells = state["last_action"][0, agent].tolist(), []
        for k, count in enumerate(self._action.choices):
            best_choice, offset = int(best.discrete[0, agent, k]), len(cells)
            for a in range(count):
                masked = mask is not None and not bool(mask[0, agent, offset + a])
                chosen = acted and last_action[k] == a
                cells.append(Cell(str(a), best=a == best_choice, chosen=chosen, masked=masked, gap=a == 0 and k > 0))
        for c in range(self._action.continuous):
            number, best_number = last_action[len(self._action.choices) + c], float(best.continuous[0, agent, c])
            text = f"{number:.2f} ({best_number:.2f})" if acted else f"({best_number:.2f})"
            close = acted and abs(number - best_number) < 0.05
            cells.append(Cell(text, best=close, chosen=acted, gap=bool(cells)))
        return cells


class StatelessProbe(ProbeWorld):
    """A probe whose state is the number of steps taken: by default one step, with an observation that is always 1."""

    def initial_state(self, noise: Tensor) -> State:
        return {}

    def observation(self, state: State) -> Tensor:
        return filled(state, 1)[:, None, None]

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, self.reference.best_return)


class SignProbe(ProbeWorld):
    """A probe whose state and observation is a random number `x`, -1 or 1; the observation is 0 if `blind`."""

    config: BlindConfig

    def initial_state(self, noise: Tensor) -> State:
        return {"x": torch.where(noise[:, 0] < 0.5, -1.0, 1.0)}

    def observation(self, state: State) -> Tensor:
        return (state["x"] * (not self.config.blind))[:, None, None]


def feature_space(size: int, low: float = 0.0, high: float = 1.0) -> spaces.Box:
    """Returns the space of `size` features."""
    return spaces.Box(low, high, (size,))


def random_label(noise: Tensor, count: int | Tensor) -> Tensor:
    """Returns 0 .. count - 1 with equal probability for noise [..], int64."""
    return (noise * count).long().clamp(max=count - 1)


def first_choice(state: State) -> ProbeAction:
    """Returns choice 0 of a single agent, the best action if all are equal."""
    return discrete_action(torch.zeros_like(state["step"])[:, None])


def discrete_action(choice: Tensor) -> ProbeAction:
    """Returns the action with these choices, [B, N] or [B, N, K]."""
    choice = choice if choice.ndim == 3 else choice[..., None]
    return ProbeAction(choice, choice.new_zeros(*choice.shape[:2], 0).float())


def continuous_action(number: Tensor) -> ProbeAction:
    """Returns the action with these numbers, [B, N, C]."""
    return ProbeAction(number.new_zeros(*number.shape[:2], 0).long(), number)


def filled(state: State, value: Any) -> Tensor:
    """Returns [B] filled with a value."""
    return torch.full_like(state["return"], float(value))
