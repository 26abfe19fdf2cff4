"""Level-based foraging and the robotic warehouse, `lbforaging/ID` and `rware/ID`.

They follow Gymnasium's interface with tuples of one entry per agent. Both report the step limit as `done`; here it
truncates unless the task is completed in the same step.

Sources: Papoudakis et al. 2021, who introduced both as benchmarks; the packages `lbforaging` and `rware`.
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
from PIL import Image, ImageDraw
from pydantic import BaseModel

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError, as_user_error, nearest
from coterie.core.installation import install_extra
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.contract.closing import close_reported
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.constructor_settings import typed_keys
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout
from coterie.envs.external.spaces import Observer
from coterie.envs.worlds.drawing import GRID, INK, PALETTE, WHITE, Color, mix, render_text

_CELL = 40  # pixels per square before scaling
_FLOOR: Color = (250, 250, 248)


def draw_foraging(env: Any) -> np.ndarray:
    """Draws agents (circles) and food (green squares) with their levels as uint8 [H, W, 3]."""
    image, brush = _floor(*env.field.shape)
    for row, column in np.argwhere(env.field > 0):
        _square(brush, row, column, mix(PALETTE["green"], WHITE, 0.3), margin=0.18)
        _write(image, str(int(env.field[row, column])), row, column)
    for player in env.players:
        row, column = player.position
        _circle(brush, row, column, mix(PALETTE["blue"], WHITE, 0.2))
        _write(image, str(int(player.level)), row, column)
    return np.asarray(image)


def draw_warehouse(env: Any) -> np.ndarray:
    """Draws shelves (squares, requested ones orange), goals (dark) and agents (circles with a dot in the direction they
    face, and a rim if they carry a shelf) as uint8 [H, W, 3].
    """
    image, brush = _floor(*env.grid_size)
    for column, row in env.goals:
        _square(brush, row, column, mix(PALETTE["gray"], INK, 0.5), margin=0.04)
    wanted = {shelf.id for shelf in env.request_queue}
    for shelf in env.shelfs:
        shade = PALETTE["orange"] if shelf.id in wanted else mix(PALETTE["gray"], WHITE, 0.5)
        _square(brush, shelf.y, shelf.x, shade, margin=0.14)
    for agent in env.agents:
        _circle(brush, agent.y, agent.x, PALETTE["blue"], rim=PALETTE["red"] if agent.carrying_shelf else None)
        dx, dy = {"UP": (0, -1), "DOWN": (0, 1), "LEFT": (-1, 0), "RIGHT": (1, 0)}[agent.dir.name]
        x, y = (agent.x + 0.5 + 0.22 * dx) * _CELL, (agent.y + 0.5 + 0.22 * dy) * _CELL
        brush.ellipse((x - 3, y - 3, x + 3, y + 3), fill=WHITE)
    return np.asarray(image)


def _floor(rows: int, columns: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (columns * _CELL + 1, rows * _CELL + 1), _FLOOR)
    brush = ImageDraw.Draw(image)
    for k in range(rows + 1):
        brush.line((0, k * _CELL, columns * _CELL, k * _CELL), fill=GRID)
    for k in range(columns + 1):
        brush.line((k * _CELL, 0, k * _CELL, rows * _CELL), fill=GRID)
    return image, brush


def _square(brush: ImageDraw.ImageDraw, row: int, column: int, shade: Color, *, margin: float) -> None:
    """A square with a margin in cells."""
    low, high = margin * _CELL, (1 - margin) * _CELL
    x, y = column * _CELL, row * _CELL
    brush.rounded_rectangle((x + low, y + low, x + high, y + high), 0.1 * _CELL, fill=shade)


def _circle(brush: ImageDraw.ImageDraw, row: int, column: int, shade: Color, *, rim: Color | None = None) -> None:
    x, y, reach = (column + 0.5) * _CELL, (row + 0.5) * _CELL, 0.36 * _CELL
    brush.ellipse((x - reach, y - reach, x + reach, y + reach), fill=shade, outline=rim or shade, width=4)


def _write(image: Image.Image, label: str, row: int, column: int) -> None:
    text = render_text(label, _CELL // 2, INK)
    corner = (round((column + 0.5) * _CELL - text.width / 2), round((row + 0.5) * _CELL - text.height / 2))
    image.paste(text, corner, text)


ROLE = "agent"


@dataclass(frozen=True)
class Library:
    """Differences between the two packages.

    Attributes:
        package: Package to install.
        limit: Constructor parameter of the step limit.
        finished: Returns True if the task is completed.
        clear: Clears what a seeded reset would keep from the previous episode.
        draw: Renders an environment without a screen.
    """

    package: str
    limit: str
    finished: Callable[[Any], bool]
    clear: Callable[[Any], None]
    draw: Callable[[Any], np.ndarray]


def _remove_players(env: Any) -> None:
    """Removes agents from the field; otherwise new ones would not be placed on the old positions."""
    for player in env.players:
        player.position = None


LIBRARIES = {
    "lbforaging": Library(
        package="lbforaging",
        limit="max_episode_steps",
        finished=lambda env: not env.field.any(),
        clear=_remove_players,
        draw=draw_foraging,
    ),
    "rware": Library(
        package="rware",
        limit="max_steps",
        finished=lambda env: False,
        clear=lambda env: None,
        draw=draw_warehouse,
    ),
}


class GridConfig(ExternalEnvConfig):
    """Settings are the parameters of the environment's constructor."""


class Grids(Adapter):
    """The environments of one ID. UserError if the package is not installed or has no such ID."""

    family: ClassVar[str]
    _configs: ClassVar[dict[str, type[ExternalEnvConfig]]] = {}

    def __init__(self, env_id: str):
        self.name = f"{self.family}/{env_id}"
        self._library = LIBRARIES[self.family]
        self._registered = _registered(self.name, self._library.package, env_id)
        entry: Any = self._registered.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        # `gymnasium.make` would interpret the step limit as its own.
        self._maker = functools.partial(creator, **self._registered.kwargs)
        if self.name not in self._configs:  # equal configurations must have the same class
            self._configs[self.name] = typed_keys(
                GridConfig, [self._maker], ("render_mode",), f"the environment {env_id}"
            )
        self.Config = self._configs[self.name]

    @final
    def layout(self, config: BaseModel) -> Layout:
        env = self._one(config)
        observation, action = env.observation_space, env.action_space
        assert isinstance(observation, spaces.Tuple)
        assert isinstance(action, spaces.Tuple)
        same = all(own == observation[0] for own in observation) and all(own == action[0] for own in action)
        names = [f"{ROLE}_{i}" for i in range(len(observation.spaces))]
        groups = {ROLE: names} if same else {name: [name] for name in names}
        observers, roles, at = {}, [], 0
        for role, agents in groups.items():
            observers[role] = Observer(observation[at])
            # One group: all agents work on one task, each with its own reward.
            roles.append(
                RoleSpec(
                    name=role,
                    group=ROLE,
                    agents=tuple(agents),
                    observation_space=observers[role].space,
                    native=observers[role].native,
                    action_space=action[at],
                )
            )
            at += len(agents)
        limit = config.model_dump().get(self._library.limit)
        close_reported(self.name, env.close)
        return Layout(EnvSpec(self.name, tuple(roles), {}, episode_limit=limit, exact_resume=False), observers)

    @final
    def instance(self, config: BaseModel) -> Instance:
        return GridInstance(self._one(config), self._library, self.layout(config))

    def _one(self, config: BaseModel) -> Any:
        params = config.model_dump(exclude_unset=True, exclude={"wrappers"})
        with as_user_error(f"environment '{self.name}'", TypeError, ValueError, AssertionError):
            return self._maker(**params)


@final
class Foraging(Grids):
    """`lbforaging/ID`, for example `lbforaging/Foraging-8x8-2p-2f-coop-v3`."""

    family = "lbforaging"


@final
class Warehouse(Grids):
    """`rware/ID`, for example `rware/rware-tiny-2ag-v2`."""

    family = "rware"


@final
class GridInstance(Instance):
    """One environment of either package, without Gymnasium's wrappers."""

    def __init__(self, env: Any, library: Library, layout: Layout):
        self._env, self._library, self._layout = env, library, layout
        self._limit, self._steps = layout.spec.episode_limit, 0

    @property
    def native(self) -> Any:
        """The environment of the package."""
        return self._env

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        self._writes = [
            (sensor.write, buffers.obs[role.name][sensor.name][k])
            for role in self._layout.spec.roles
            for k in range(role.n)
            for sensor in self._layout.observers[role.name].sensors[:1]
        ]
        buffers.alive[...] = True

    def reset(self, seed: int | None) -> None:
        self._steps = 0
        if seed is not None:
            self._library.clear(self._env)
        self._show(self._env.reset(seed=seed)[0])

    def step(self, actions: list[Any]) -> None:
        buffers = self._buffers
        seen, buffers.reward[...], done, truncated, _ = self._env.step(actions)
        self._show(seen)
        self._steps += 1
        if not (done or truncated):
            return
        at_limit = truncated or (self._limit is not None and self._steps >= self._limit)
        if at_limit and not self._library.finished(self._env):
            buffers.truncated[...] = buffers.episode_end[1] = True
        else:
            buffers.terminated[...] = buffers.episode_end[0] = True

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
        """Does nothing: the packages' windows are never opened."""


def _registered(name: str, package: str, env_id: str) -> GymSpec:
    """Entry of Gymnasium's registry. UserError with the package to install, or with similar IDs."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"environment '{name}': {error}. Install it with: {install_extra(package)}") from error
    known = {key: spec for key, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(package)}
    if env_id not in known:
        family = name.partition("/")[0]
        raise UserError(f"no such environment: '{name}'. {_similar(family, env_id, known)}")
    return known[env_id]


def _similar(family: str, env_id: str, known: dict[str, GymSpec]) -> str:
    """Suggestion for an unknown ID; there are hundreds, so not all are listed."""
    hint = nearest(f"{family}/{env_id}", (f"{family}/{key}" for key in known))
    return f"An example is '{family}/{next(iter(known))}'." if hint.startswith("Choose") else hint
