"""Environments with PyMARL's `MultiAgentEnv` interface: SMAC, its successors, and user-defined ones.

One team of homogeneous agents, each with one discrete action of `n_actions` and an action mask; one reward for all, or
one per agent. Equivalent to the environment's own loop: `reset()`, then `step(actions)` with the values of `get_obs()`,
`get_state()` and `get_avail_actions()` in between.

Sources: Samvelyan et al. 2019 (SMAC and PyMARL); Papoudakis et al. 2021 (EPyMARL, whose `step` separates termination
from truncation).
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout
from coterie.envs.external.mask_sources import as_mask
from coterie.envs.external.returned import to_flag, to_flags, to_number, to_numbers
from coterie.envs.external.spaces import Observer

log = logging.getLogger(__name__)

LIMIT = "episode_limit"
"""In a step's info: the episode was truncated. In `get_env_info()`: the step limit."""

NAMES = {"battle_won": "won", "dead_enemies": "enemies_dead", "dead_allies": "allies_dead"}
"""Maps SMAC's info keys to metric names, which are equal to those of `skirmish`."""

_COUNTED = {"dead_allies": "death_tracker_ally", "dead_enemies": "death_tracker_enemy"}
"""SMAC's counters of dead units; older releases omit them from the info."""

_LIMITS = (LIMIT, "TimeLimit.truncated")
"""The second key is Gymnasium's, which wrappers around its environments pass on."""

_CALLS = ("reset", "step", "get_obs", "get_avail_actions", "get_env_info")
_MAX_STATE = 10_000
_EXPECTED_STEP = "expected (reward, terminated, info), or EPyMARL's (obs, reward, terminated, truncated, info)"

Make = Callable[[int | None], Any]
"""Creates one environment; takes the initial seed for environments that cannot be seeded later."""

Dying = Literal["never", "noop", "blind"]
"""Condition for a dead agent: never; only action 0 is available; or additionally the observation is all zeros."""


def is_multiagent(env: Any) -> bool:
    """True if the object has the methods of a MultiAgentEnv; it need not be a subclass."""
    return all(callable(getattr(env, name, None)) for name in _CALLS)


@final
@dataclass(frozen=True)
class TeamLayout:
    """Static properties of an environment.

    Attributes:
        n: Number of agents.
        features: Observation size per agent.
        choices: Number of actions per agent.
        state: Number of state features, 0 for none.
        limit: Step limit, None without.
        dying: Condition for a dead agent.
        own_rewards: Each agent receives its own reward.
        metrics: Info keys that are metrics.
        role, group: Names of the agents' role and group.
        env_info: As in EnvSpec.
    """

    name: str
    n: int
    features: int
    choices: int
    state: int
    limit: int | None
    dying: Dying
    own_rewards: bool = False
    metrics: tuple[str, ...] = ()
    role: str = "agent"
    group: str = "agent"
    env_info: Mapping[str, str] = field(default_factory=dict)

    def layout(self) -> Layout:
        """The environment as a Layout."""
        box = spaces.Box(-np.inf, np.inf, (self.features,), np.float32)
        agents = tuple(f"{self.role}_{i}" for i in range(self.n))
        spec = EnvSpec(
            self.name,
            (
                RoleSpec(
                    name=self.role,
                    group=self.group,
                    agents=agents,
                    observation_space=box,
                    action_space=spaces.Discrete(self.choices),
                ),
            ),
            {"global": self.state} if self.state else {},
            agents_can_die=self.dying != "never",
            has_group_reward=not self.own_rewards,
            metrics=tuple(NAMES.get(key, key) for key in self.metrics),
            episode_limit=self.limit,
            exact_resume=False,
            env_info=dict(self.env_info),
        )
        return Layout(spec, {self.role: Observer(box)}, masked=(self.role,))


def team_layout_of(
    env: Any, name: str, dying: Dying, *, state: bool | None, limit: int | None = None, **more: Any
) -> TeamLayout:
    """Reads the static properties from `get_env_info()`.

    Args:
        state: Pass the state to critics; None: if it has at most 10,000 elements.
        limit: Truncate episodes after this many steps, if earlier than the environment's own limit.
        more: Further fields.

    Raises:
        UserError: If `get_env_info()` is incomplete.
    """
    info: dict[str, Any] = dict(env.get_env_info() or {})
    missing = [key for key in ("n_agents", "n_actions", "obs_shape") if not info.get(key)]
    if missing:
        raise UserError(f"environment '{name}': get_env_info() lacks {missing[0]}. Return a number under this key.")
    size = _size(info.get("state_shape"))
    if state is False or (state is None and size > _MAX_STATE):
        size = 0
    elif state and not size:
        raise UserError(f"environment '{name}' has no state: get_env_info()['state_shape'] is 0. Remove env.state.")
    return TeamLayout(
        name=name,
        n=int(info["n_agents"]),
        features=_size(info["obs_shape"]),
        choices=int(info["n_actions"]),
        state=size,
        limit=min((int(n) for n in (info.get(LIMIT), limit) if n), default=None),
        dying=dying,
        **more,
    )


def probe_layout(
    env: Any, name: str, *, state: bool | None, agents_can_die: bool | None, limit: int | None
) -> TeamLayout:
    """Determines the properties of an unknown environment after one step: shared or individual rewards, and numeric
    infos.

    Args:
        agents_can_die: An agent is dead when only action 0 is available; None: only if its observation is also all
            zeros.
    """
    dying: Dying = "blind" if agents_can_die is None else "noop" if agents_can_die else "never"
    layout = team_layout_of(env, name, dying, state=state, limit=limit)
    env.reset()
    mask = _as_mask(name, env.get_avail_actions())
    if mask.shape != (layout.n, layout.choices):
        raise _unlike(name, "get_avail_actions()", mask.shape, (layout.n, layout.choices))
    reward, _, _, info = unpack_step(env.step([int(row.argmax()) for row in mask]), name)
    if np.ndim(reward) and np.size(reward) != layout.n:
        raise UserError(f"environment '{name}': step() returned {np.size(reward)} rewards for {layout.n} agents")
    keys = tuple(key for key, value in info.items() if key not in _LIMITS and _is_number(value))
    known: Mapping[str, Any] = env.get_env_info()
    said = {key: known.get(key, getattr(env, key, None)) for key in ("map_name", "difficulty", "game_version")}
    env_info = {key: str(value) for key, value in said.items() if isinstance(value, str | int | float)}
    return TeamLayout(**{**vars(layout), "own_rewards": np.ndim(reward) > 0, "metrics": keys, "env_info": env_info})


def unpack_step(returned: Any, name: str) -> tuple[Any, bool, bool, Mapping[str, Any]]:
    """Reward, terminated, truncated and info from the return value of `step`."""
    if not isinstance(returned, tuple | list) or len(returned) not in (3, 5):
        count = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"
        raise UserError(f"environment '{name}': step() returned {count}, {_EXPECTED_STEP}")
    reward, terminated, truncated, info = (*returned[:2], False, returned[2]) if len(returned) == 3 else returned[1:]
    info = {} if info is None else info
    if not isinstance(info, Mapping):
        raise UserError(f"environment '{name}': step() returned a {type(info).__name__} for info, expected a dict")
    terminated, truncated = _ended(terminated, "terminated"), _ended(truncated, "truncated")
    if terminated and any(bool(np.all(info.get(key, False))) for key in _LIMITS):  # not a termination for PyMARL
        terminated, truncated = False, True
    return reward, terminated, truncated and not terminated, info


def _ended(flags: Any, name: str) -> bool:
    """True if all flags are set, one for all agents or one for each."""
    return bool(to_flags(flags, name, len(flags)).all()) if np.ndim(flags) == 1 else to_flag(flags, name)


@final
class MultiAgentInstance(Instance):
    """One environment, created when its first episode begins.

    Args:
        limit: Truncates episodes after this many steps if the environment does not.
        remake: Recreate the environment for every seed that it cannot be given.
    """

    def __init__(self, make: Make, layout: TeamLayout, limit: int | None = None, remake: bool = True):
        self._make, self.layout, self._remake = make, layout, remake
        self._limit: float = math.inf if limit is None else limit
        self.env: Any = None
        self._seeding = ""
        self._elapsed = 0

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers, role = buffers, self.layout.role
        self._obs, self._mask = buffers.obs[role][""], buffers.action_mask[role]
        self._state = buffers.state.get("global")
        self._read = [(key, _COUNTED.get(key)) for key in self.layout.metrics]

    # --------------------------------------------------------------------------------------------------------- episodes

    def reset(self, seed: int | None) -> None:
        self._elapsed = 0
        if self.env is None or (seed is not None and self._seeding == "make" and self._remake):
            self.close()
            self.env = self._make(seed)
            self._seeding = _seeding(self.env)
        if seed is not None and self._seeding == "seed":
            try:
                self.env.seed(seed)
            except NotImplementedError:  # the interface's base class has a stub
                self._seeding = "make"
        if seed is not None and self._seeding == "reset":
            self.env.reset(seed=seed)
        else:
            self.env.reset()
        self._show()

    def step(self, actions: list[Any]) -> None:
        buffers, env, alive_before = self._buffers, self.env, self._buffers.alive.copy()
        crashed = getattr(env, "force_restarts", 0)
        # Only action 0 is available to dead agents, and SMAC requires it.
        picks = [int(action) if lives else 0 for action, lives in zip(actions, alive_before, strict=True)]
        reward, terminated, truncated, info = unpack_step(env.step(picks), self.layout.name)
        self._elapsed += 1
        if terminated and getattr(env, "force_restarts", 0) != crashed:
            # The game crashed and was restarted; SMAC reports the end of the battle, whose outcome is unknown.
            log.warning("%s: the game was restarted during an episode, which is truncated", self.layout.name)
            terminated, truncated = False, True
        if not terminated and self._elapsed >= self._limit:
            truncated = True
        self._write_rewards(reward)
        for i, (key, counter) in enumerate(self._read):
            value = info.get(key)
            if value is None and counter is not None:
                value = np.sum(getattr(env, counter, 0))
            buffers.metrics[i] = 0 if value is None else value
        self._show()
        died = alive_before & ~buffers.alive
        buffers.terminated[...] = alive_before if terminated else died
        if truncated:
            buffers.truncated[...] = alive_before & ~died
        buffers.episode_end[0], buffers.episode_end[1] = terminated, truncated

    def _write_rewards(self, reward: Any) -> None:
        if np.ndim(reward) != int(self.layout.own_rewards) or (
            self.layout.own_rewards and len(reward) != self.layout.n
        ):
            wanted = f"{self.layout.n} values, one per agent" if self.layout.own_rewards else "one value for all"
            raise UserError(f"environment '{self.layout.name}': step() returned {reward!r}, previously {wanted}")
        if self.layout.own_rewards:
            self._buffers.reward[...] = to_numbers(reward, "rewards", self.layout.n)
        else:
            self._buffers.group_reward[0] = to_number(reward, "the reward")

    def _show(self) -> None:
        """Writes a timestep: observations, masks and alive flags."""
        layout, alive = self.layout, self._buffers.alive
        mask, seen = np.asarray(self.env.get_avail_actions()), self.env.get_obs()
        if mask.shape != self._mask.shape:
            raise _unlike(layout.name, "get_avail_actions()", mask.shape, self._mask.shape)
        self._mask[...] = _as_mask(layout.name, mask)
        if len(seen) != layout.n:
            raise UserError(f"environment '{layout.name}': get_obs() returned {len(seen)} observations of {layout.n}")
        for i in range(layout.n):
            own = np.ravel(seen[i])
            if len(own) != layout.features:
                raise _unlike(layout.name, f"get_obs()[{i}]", np.shape(seen[i]), (layout.features,))
            self._obs[i] = own
        if self._state is not None:
            state = np.ravel(self.env.get_state())
            if state.shape != self._state.shape:
                raise _unlike(layout.name, "get_state()", state.shape, self._state.shape)
            self._state[...] = state
        if layout.dying == "never":
            alive[...] = True
        else:
            np.any(self._mask[:, 1:], axis=1, out=alive)
            if layout.dying == "blind":
                np.logical_or(alive, self._obs.any(1), out=alive)
            if not alive.all():
                self._obs[~alive] = 0
                self._mask[~alive] = True
        if not self._mask.any(1).all():
            agent = int((~self._mask.any(1)).argmax())
            raise UserError(
                f"environment '{layout.name}': get_avail_actions() leaves agent {agent}, which is alive, "
                "without a legal action"
            )

    # --------------------------------------------------------------------------------------------------------- the rest

    def save_replay(self, folder: Path) -> list[Path]:
        """Saves the environment's own replay to the folder and returns the new files. UserError if it cannot save
        replays.

        A StarCraft II replay contains all battles since the game was started.
        """
        holders: list[Any] = [self.env]
        while holders[-1] is not None and hasattr(holders[-1], "env"):
            holders.append(holders[-1].env)
        for holder in holders:
            if "replay_dir" in getattr(holder, "__dict__", {}):
                holder.replay_dir = str(folder.resolve())
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.rglob("*"))
        try:
            self.env.save_replay()
        except (AttributeError, NotImplementedError) as error:
            raise UserError(
                f"{self.layout.name}: replays cannot be saved. Record a video instead: --video FILE"
            ) from error
        return sorted(path for path in set(folder.rglob("*")) - before if path.is_file())

    def render(self) -> np.ndarray | None:
        if self.env is None or "mode" not in _parameters(getattr(self.env, "render", None)):
            return None
        try:
            drawn: Any = self.env.render(mode="rgb_array")
        except NotImplementedError:
            return None
        return drawn if isinstance(drawn, np.ndarray) else None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state

    def close(self) -> None:
        if self.env is not None:
            env, self.env = self.env, None
            env.close()


# ------------------------------------------------------------------------------------------------------------- workings


def _seeding(env: Any) -> str:
    """Seeding method of an environment: `reset(seed=)`, `seed(seed)`, or at construction."""
    if "seed" in _parameters(env.reset):
        return "reset"
    found = list(_parameters(getattr(env, "seed", None)).values())
    takes = any(parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in found)
    return "seed" if takes else "make"


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _size(shape: Any) -> int:
    return 0 if shape is None else int(np.prod(shape))


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _as_mask(name: str, mask: Any) -> np.ndarray:
    try:
        return as_mask(mask)
    except UserError as error:
        raise UserError(f"environment '{name}': get_avail_actions() returned {error}") from None


def _unlike(name: str, call: str, shown: tuple[int, ...], expected: tuple[int, ...]) -> UserError:
    said = f"{call} is of shape {shown}, but get_env_info() declares {expected}"
    return UserError(f"environment '{name}': {said}. Fix one of them.")
