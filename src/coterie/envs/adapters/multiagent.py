"""Environments with PyMARL's interface `MultiAgentEnv`: SMAC, its successors, and anybody's own.

One team of alike agents, each with one choice of `n_actions` and a mask of those it has; one reward for all, or one an
agent. The environment's own loop is kept to the letter: `reset()`, then `step(actions)` with what `get_obs()`,
`get_state()` and `get_avail_actions()` say in between.

Sources: Samvelyan et al. 2019 (SMAC and PyMARL); Papoudakis et al. 2021 (EPyMARL, whose `step` tells ends from limits).
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

from coterie.envs.adapters.spaces import Observer
from coterie.envs.hosting.instance import Instance, Layout, Place
from coterie.errors import UserError
from coterie.types import EnvSpec, RoleSpec

log = logging.getLogger(__name__)

LIMIT = "episode_limit"
"""In a step's info: the end is a limit's, not the task's. In `get_env_info()`: that limit."""

NAMES = {"battle_won": "won", "dead_enemies": "enemies_dead", "dead_allies": "allies_dead"}
"""SMAC's words in a step's info to the names of metrics, which are those of `skirmish`."""

_COUNTED = {"dead_allies": "death_tracker_ally", "dead_enemies": "death_tracker_enemy"}
"""What SMAC counts the dead with; its older releases leave them out of the info."""

_LIMITS = (LIMIT, "TimeLimit.truncated")
"""The second is gymnasium's, which wrappers around its environments hand on."""

_CALLS = ("reset", "step", "get_obs", "get_avail_actions", "get_env_info")
_MOST_STATE = 10_000
_WORDS = "expected (reward, terminated, info), or EPyMARL's (obs, reward, terminated, truncated, info)"

Make = Callable[[int | None], Any]
"""Makes one environment; takes the seed that it is to begin with, if it cannot be told one later."""

Dying = Literal["never", "noop", "blind"]
"""When an agent counts as dead: never; whenever it has no choice but action 0; or whenever it sees zeros as well."""


def is_multiagent(env: Any) -> bool:
    """Whether something has the methods of a MultiAgentEnv; it need not be derived from it."""
    return all(callable(getattr(env, name, None)) for name in _CALLS)


@final
@dataclass(frozen=True)
class Squad:
    """What copies of one environment have in common.

    n: agents; features, choices: of each; state: features of the state that is shown, 0 for none; limit: steps of an
    episode, None without; dying: when an agent is dead; own_rewards: each agent is paid its own; metrics: keys of a
    step's info that are metrics; role, group: what agents are called; facts: as in EnvSpec.
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
    facts: Mapping[str, str] = field(default_factory=dict)

    def layout(self) -> Layout:
        """The environment as the contract describes it."""
        box = spaces.Box(-np.inf, np.inf, (self.features,), np.float32)
        agents = tuple(f"{self.role}_{i}" for i in range(self.n))
        spec = EnvSpec(
            self.name,
            (RoleSpec(self.role, self.group, agents, box, spaces.Discrete(self.choices)),),
            {"global": self.state} if self.state else {},
            mortal=self.dying != "never",
            paid_by_group=not self.own_rewards,
            metrics=tuple(NAMES.get(key, key) for key in self.metrics),
            episode_limit=self.limit,
            exact_resume=False,
            facts=dict(self.facts),
        )
        return Layout(spec, {self.role: Observer(box)}, masked=(self.role,))


def squad_of(env: Any, name: str, dying: Dying, state: bool | None, limit: int | None = None, **more: Any) -> Squad:
    """The squad of an environment, off its `get_env_info()`.

    state: whether its state is shown, None where it has at most 10,000 numbers; limit: steps after which episodes are
    cut, if before its own limit; more: further fields. UserError for an environment that does not say what it is made
    of.
    """
    told: dict[str, Any] = dict(env.get_env_info() or {})
    missing = [key for key in ("n_agents", "n_actions", "obs_shape") if not told.get(key)]
    if missing:
        raise UserError(f"environment '{name}': get_env_info() has no {missing[0]}, expected a number")
    size = _size(told.get("state_shape"))
    if state is False or (state is None and size > _MOST_STATE):
        size = 0
    elif state and not size:
        raise UserError(f"environment '{name}' has no state, get_env_info()['state_shape'] is 0: leave env.state out")
    return Squad(
        name, int(told["n_agents"]), _size(told["obs_shape"]), int(told["n_actions"]), size,
        min((int(n) for n in (told.get(LIMIT), limit) if n), default=None), dying, **more,
    )  # fmt: skip


def probed(env: Any, name: str, state: bool | None, mortal: bool | None, limit: int | None) -> Squad:
    """The squad of an environment that nothing is known of, after one step of it: whether it pays one reward or one an
    agent, and which numbers its infos hold.

    mortal: agents die whenever they have no choice but action 0; None: only if they see zeros then.
    """
    dying: Dying = "blind" if mortal is None else "noop" if mortal else "never"
    squad = squad_of(env, name, dying, state, limit)
    env.reset()
    mask = np.asarray(env.get_avail_actions())
    if mask.shape != (squad.n, squad.choices):
        raise _unlike(name, "get_avail_actions()", mask.shape, (squad.n, squad.choices))
    reward, _, _, info = parted(env.step([int(row.argmax()) for row in mask]), name)
    if np.ndim(reward) and np.size(reward) != squad.n:
        raise UserError(f"environment '{name}': step() pays {np.size(reward)} rewards to {squad.n} agents")
    keys = tuple(key for key, value in info.items() if key not in _LIMITS and _is_number(value))
    known: Mapping[str, Any] = env.get_env_info()
    said = {key: known.get(key, getattr(env, key, None)) for key in ("map_name", "difficulty", "game_version")}
    facts = {key: str(value) for key, value in said.items() if isinstance(value, str | int | float)}
    return Squad(**{**vars(squad), "own_rewards": np.ndim(reward) > 0, "metrics": keys, "facts": facts})


def parted(brought: Any, name: str) -> tuple[Any, bool, bool, Mapping[str, Any]]:
    """Reward, whether the task is over, whether a limit cut it, and info of what `step` returned."""
    if not isinstance(brought, tuple | list) or len(brought) not in (3, 5):
        count = f"{len(brought)} values" if isinstance(brought, tuple | list) else f"a {type(brought).__name__}"
        raise UserError(f"environment '{name}': step() returned {count}, {_WORDS}")
    reward, terminated, truncated, info = (*brought[:2], False, brought[2]) if len(brought) == 3 else brought[1:]
    info = {} if info is None else info
    if not isinstance(info, Mapping):
        raise UserError(f"environment '{name}': step() returned a {type(info).__name__} for info, expected a dict")
    ended, cut = bool(np.all(terminated)), bool(np.all(truncated))
    if ended and any(bool(np.all(info.get(key, False))) for key in _LIMITS):  # PyMARL does not store that as an end
        ended, cut = False, True
    return reward, ended, cut and not ended, info


@final
class SquadInstance(Instance):
    """One environment, which is made when its first episode begins.

    limit: steps after which this copy cuts an episode, where the environment itself does not; remake: it is made anew
    for every seed that it cannot be told.
    """

    def __init__(self, make: Make, squad: Squad, limit: int | None = None, remake: bool = True):
        self._make, self.squad, self._remake = make, squad, remake
        self._limit: float = math.inf if limit is None else limit
        self.env: Any = None
        self._seeding = ""
        self._elapsed = 0

    def attach(self, place: Place) -> None:
        self._place, role = place, self.squad.role
        self._obs, self._mask = place.obs[role][""], place.action_mask[role]
        self._state = place.state.get("global")
        self._read = [(key, _COUNTED.get(key)) for key in self.squad.metrics]

    # ------------------------------------------------------------------------------------------------------ episodes

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
        place, env, lived = self._place, self.env, self._place.alive.copy()
        crashed = getattr(env, "force_restarts", 0)
        # Nothing but the first choice is open to the dead, and SMAC insists.
        picks = [int(action) if lives else 0 for action, lives in zip(actions, lived, strict=True)]
        reward, ended, cut, info = parted(env.step(picks), self.squad.name)
        self._elapsed += 1
        if ended and getattr(env, "force_restarts", 0) != crashed:
            # The game died and was started anew; SMAC says that the battle is over, which nobody knows.
            log.warning("%s: the game was started anew in the middle of an episode, which is cut", self.squad.name)
            ended, cut = False, True
        if not ended and self._elapsed >= self._limit:
            cut = True
        self._pay(reward)
        for i, (key, counter) in enumerate(self._read):
            value = info.get(key)
            if value is None and counter is not None:
                value = np.sum(getattr(env, counter, 0))
            place.metrics[i] = 0 if value is None else value
        self._show()
        died = lived & ~place.alive
        place.terminated[...] = lived if ended else died
        if cut:
            place.truncated[...] = lived & ~died
        place.ended[0], place.ended[1] = ended, cut

    def _pay(self, reward: Any) -> None:
        if np.ndim(reward) != int(self.squad.own_rewards) or (self.squad.own_rewards and len(reward) != self.squad.n):
            wanted = f"{self.squad.n} numbers, one an agent" if self.squad.own_rewards else "one number for all"
            raise UserError(f"environment '{self.squad.name}': step() paid {reward!r}, before it paid {wanted}")
        if self.squad.own_rewards:
            self._place.reward[...] = reward
        else:
            self._place.group_reward[0] = reward

    def _show(self) -> None:
        """Writes a row: what everybody sees, may do, and who lives."""
        squad, alive = self.squad, self._place.alive
        mask, seen = np.asarray(self.env.get_avail_actions()), self.env.get_obs()
        if mask.shape != self._mask.shape:
            raise _unlike(squad.name, "get_avail_actions()", mask.shape, self._mask.shape)
        self._mask[...] = mask != 0
        if len(seen) != squad.n:
            raise UserError(f"environment '{squad.name}': get_obs() returned {len(seen)} observations of {squad.n}")
        for i in range(squad.n):
            own = np.ravel(seen[i])
            if len(own) != squad.features:
                raise _unlike(squad.name, f"get_obs()[{i}]", np.shape(seen[i]), (squad.features,))
            self._obs[i] = own
        if self._state is not None:
            state = np.ravel(self.env.get_state())
            if state.shape != self._state.shape:
                raise _unlike(squad.name, "get_state()", state.shape, self._state.shape)
            self._state[...] = state
        if squad.dying == "never":
            alive[...] = True
        else:
            np.any(self._mask[:, 1:], axis=1, out=alive)
            if squad.dying == "blind":
                np.logical_or(alive, self._obs.any(1), out=alive)
            if not alive.all():
                self._obs[~alive] = 0
                self._mask[~alive] = True
        if not self._mask.any(1).all():
            agent = int((~self._mask.any(1)).argmax())
            raise UserError(
                f"environment '{squad.name}': get_avail_actions() leaves agent {agent}, who lives, no choice"
            )

    # ------------------------------------------------------------------------------------------------------- the rest

    def save_replay(self, folder: Path) -> list[Path]:
        """Has the environment save its replay into the folder; returns the files that came. UserError if it saves none.

        A StarCraft II replay holds all battles since the game was started.
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
            raise UserError(f"{self.squad.name} saves no replays: record its pictures, --video FILE") from error
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


# ------------------------------------------------------------------------------------------------------------ workings


def _seeding(env: Any) -> str:
    """How an environment is told a seed: `reset(seed=)`, `seed(seed)`, or when it is made."""
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


def _unlike(name: str, call: str, shown: tuple[int, ...], expected: tuple[int, ...]) -> UserError:
    said = f"{call} is of shape {shown}, and get_env_info() says {expected}"
    return UserError(f"environment '{name}': {said}: mend either")
