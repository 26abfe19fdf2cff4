"""Level-based foraging and robotic warehouse, `lbforaging/ID` and `rware/ID`: environments of several agents.

They are of gymnasium's kind, but show, take and pay tuples with an entry an agent. Both say "done" at their limit of
steps; here that is a cut, unless the task is finished in the same step.

Sources: Papoudakis et al. 2021, which brought both as benchmarks; the packages `lbforaging` and `rware`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from pydantic import BaseModel

from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.griddrawing import draw_foraging, draw_warehouse
from coterie.envs.adapters.keys import typed_keys
from coterie.envs.adapters.spaces import Observer
from coterie.envs.hosting.instance import Instance, Layout, Place
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError, nearest
from coterie.types import EnvSpec, RoleSpec

ROLE = "agent"


@dataclass(frozen=True)
class Library:
    """What differs between the two.

    package: what has to be installed; limit: the constructor's name for the limit of steps; finished: whether the task
    itself is over; forget: clears what a reset with a seed would keep of the episode before; draw: the picture of an
    environment, which needs no screen as the packages' own do.
    """

    package: str
    limit: str
    finished: Callable[[Any], bool]
    forget: Callable[[Any], None]
    draw: Callable[[Any], np.ndarray]


def _lift(env: Any) -> None:
    """Takes foragers off the field: new ones would not be put where the old ones stand."""
    for player in env.players:
        player.position = None


LIBRARIES = {
    "lbforaging": Library("lbforaging", "max_episode_steps", lambda env: not env.field.any(), _lift, draw_foraging),
    "rware": Library("rware", "max_steps", lambda env: False, lambda env: None, draw_warehouse),
}


class GridConfig(HostedConfig):
    """Keys are the parameters of the environment's constructor."""


class Grids(Adapter):
    """The environments of one id. UserError where the package is not installed or has no such id."""

    family: ClassVar[str]
    _configs: ClassVar[dict[str, type[HostedConfig]]] = {}

    def __init__(self, env_id: str):
        self.name = f"{self.family}/{env_id}"
        self._library = LIBRARIES[self.family]
        self._registered = _registered(self.name, self._library.package, env_id)
        entry: Any = self._registered.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        # Not by `gymnasium.make`, which takes a limit of steps for one of its own.
        self._maker = functools.partial(creator, **self._registered.kwargs)
        if self.name not in self._configs:  # equal configurations have to be of one class
            self._configs[self.name] = typed_keys(
                GridConfig, [self._maker], ("render_mode",), f"the environment {env_id}"
            )
        self.Config = self._configs[self.name]

    @final
    def layout(self, config: BaseModel) -> Layout:
        env = self._one(config)
        sees, does = env.observation_space, env.action_space
        assert isinstance(sees, spaces.Tuple)
        assert isinstance(does, spaces.Tuple)
        alike = all(own == sees[0] for own in sees) and all(own == does[0] for own in does)
        names = [f"{ROLE}_{i}" for i in range(len(sees.spaces))]
        groups = {ROLE: names} if alike else {name: [name] for name in names}
        observers, roles, at = {}, [], 0
        for role, agents in groups.items():
            observers[role] = Observer(sees[at])
            # One group: all are rewarded for one task, each with its own reward.
            roles.append(RoleSpec(role, ROLE, tuple(agents), observers[role].space, does[at]))
            at += len(agents)
        limit = config.model_dump().get(self._library.limit)
        env.close()
        return Layout(EnvSpec(self.name, tuple(roles), {}, episode_limit=limit, exact_resume=False), observers)

    @final
    def instance(self, config: BaseModel) -> Instance:
        return GridInstance(self._one(config), self._library, self.layout(config))

    def _one(self, config: BaseModel) -> Any:
        params = config.model_dump(exclude_unset=True, exclude={"wrappers"})
        try:
            return self._maker(**params)
        except (TypeError, ValueError, AssertionError) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"environment '{self.name}': {said}") from error


@final
class Foraging(Grids):
    """`lbforaging/ID`, such as `lbforaging/Foraging-8x8-2p-2f-coop-v3`."""

    family = "lbforaging"


@final
class Warehouse(Grids):
    """`rware/ID`, such as `rware/rware-tiny-2ag-v2`."""

    family = "rware"


@final
class GridInstance(Instance):
    """One environment of either package, without gymnasium's wrappers."""

    def __init__(self, env: Any, library: Library, layout: Layout):
        self._env, self._library, self._layout = env, library, layout
        self._limit, self._steps = layout.spec.episode_limit, 0

    def attach(self, place: Place) -> None:
        self._place = place
        self._writes = [
            (sensor.write, place.obs[role.name][sensor.name][k])
            for role in self._layout.spec.roles
            for k in range(role.n)
            for sensor in self._layout.observers[role.name].sensors[:1]
        ]
        place.alive[...] = True

    def reset(self, seed: int | None) -> None:
        self._steps = 0
        if seed is not None:
            self._library.forget(self._env)
        self._show(self._env.reset(seed=seed)[0])

    def step(self, actions: list[Any]) -> None:
        place = self._place
        seen, place.reward[...], done, truncated, _ = self._env.step(actions)
        self._show(seen)
        self._steps += 1
        if not (done or truncated):
            return
        cut = truncated or (self._limit is not None and self._steps >= self._limit)
        if cut and not self._library.finished(self._env):
            place.truncated[...] = place.ended[1] = True
        else:
            place.terminated[...] = place.ended[0] = True

    def _show(self, seen: Any) -> None:
        for (write, array), own in zip(self._writes, seen, strict=True):
            write(array, own)

    def render(self) -> np.ndarray | None:
        return self._library.draw(self._env)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state

    def close(self) -> None:
        """Nothing is open: the packages' own windows are never made."""


def _registered(name: str, package: str, env_id: str) -> GymSpec:
    """The registry's entry. UserError with what to install, or with the nearest ids that there are."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"environment '{name}': {error}: pip install \"coterie[{package}]\"") from error
    known = {key: spec for key, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(package)}
    if env_id not in known:
        family = name.partition("/")[0]
        raise UserError(f"there is no environment '{name}': {_near(family, env_id, known)}")
    return known[env_id]


def _near(family: str, env_id: str, known: dict[str, GymSpec]) -> str:
    """The mend: ids are hundreds, so that never all are listed."""
    said = nearest(f"{family}/{env_id}", (f"{family}/{key}" for key in known))
    return f"such as '{family}/{next(iter(known))}'" if said.startswith("choose") else said
