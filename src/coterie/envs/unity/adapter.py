"""Unity's environments, `unity/NAME`: a build, or the editor.

Behaviours are roles, team numbers are sides, and an agent of Unity's has a seat from its first decision to its end.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from coterie.envs.adapters.adapter import Adapter
from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.unity.behaviours import Behaviour, behaviours
from coterie.envs.unity.player import Frame, Player, interpreter
from coterie.envs.unity.scene import Scene
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError
from coterie.types import EnvSpec

EDITOR = "editor"
_FRAMES = 1000
"""Frames within which somebody has to ask for a decision."""


class UnityConfig(HostedConfig):
    """Keys of every Unity environment."""

    file: str | None = None
    """The build's executable; by default the name behind `unity/` is its path. `unity/editor` waits for the editor."""
    python: str | None = None
    """The interpreter that has mlagents-envs; by default $COTERIE_UNITY_PYTHON, else the one in .venv-unity."""
    time_scale: float = Field(20.0, gt=0, le=100)
    """How much faster than the clock Unity's time goes."""
    no_graphics: bool = False
    """Whether Unity is started without graphics (-batchmode -nographics); cameras then see nothing."""
    parameters: dict[str, float] = Field(default_factory=dict)
    """Numbers handed to the scene as environment parameters, by name: `env.parameters.gravity=9.81`."""
    areas: int = Field(1, ge=1)
    """Areas that a TrainingAreaReplicator in the scene makes."""
    args: tuple[str, ...] = ()
    """Further arguments of the executable."""
    base_port: int | None = Field(None, ge=1024, le=65000)
    """The first port that is tried; the first of 64 that is free is taken. By default any that is free."""
    timeout: float = Field(60.0, gt=0)
    """Seconds within which Unity has to call after its start, and to answer each step."""
    episode_limit: int | None = Field(5000, ge=1)
    """Steps after which an episode is cut and Unity reset; null: never."""
    max_agents: int | dict[str, int] | None = None
    """Slots of a role for agents that come and go, of every role or by its name; by default as many as are there when
    Unity begins."""
    groups: Literal["shared", "own"] = "shared"
    """What becomes of group rewards: the group is paid once, or each of its members by itself."""
    grouped: bool | None = None
    """Whether Unity pays groups; by default where agents are in one when Unity begins."""
    flat: tuple[str, ...] = ()
    """Unity's sensors of three axes whose numbers are no pictures."""
    reseed: bool = True
    """Whether Unity is started anew where an environment is reset with a seed, for it takes one at its start only."""


class _Look(NamedTuple):
    """What was seen of a build when it began."""

    found: list[dict[str, Any]]
    counts: list[int]
    groups: list[set[int]]
    """Unity's numbers of the groups of each behaviour's agents, 0 left out."""


_LOOKS: dict[tuple[str, float, str], _Look] = {}
"""What was seen, by environment, age of the build and configuration: starting one takes seconds."""
_EDITORS: list[Player] = []
"""The editor's line, from who looked at it to who plays: hanging up would end its play mode."""


class Unity(Adapter):
    """A build by its path, or by any name with `env.file`; `unity/editor`."""

    Config = UnityConfig
    any_parameters = True

    def __init__(self, name: str):
        self.name, self._own = f"unity/{name}", name

    def layout(self, config: BaseModel) -> Layout:
        assert isinstance(config, UnityConfig)
        cast, grouped = self._cast(config)
        roles = tuple(behaviour.role for behaviour in cast)
        spec = EnvSpec(
            self.name,
            roles,
            {},
            mortal=sum(role.n for role in roles) > 1,
            paid_by_group=grouped,
            episode_limit=config.episode_limit,
            exact_resume=False,
        )
        masked = tuple(behaviour.role.name for behaviour in cast if behaviour.branches)
        return Layout(spec, {behaviour.role.name: behaviour.observer for behaviour in cast}, masked)

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, UnityConfig)
        cast, grouped = self._cast(config)
        begun = _EDITORS.pop() if _EDITORS and self._file(config) is None else None
        shared = config.groups == "shared"
        start = lambda: self._player(config)  # noqa: E731
        return Scene(self.name, cast, start, begun, config.reseed, config.episode_limit, shared, grouped)

    # ------------------------------------------------------------------------------------------------------ the look

    def _cast(self, config: UnityConfig) -> tuple[tuple[Behaviour, ...], bool]:
        """The behaviours, and whether groups are paid."""
        file = self._file(config)
        unlooked = {"wrappers", "max_agents", "groups", "grouped", "episode_limit", "reseed"}
        key = (self.name, Path(file).stat().st_mtime if file else 0.0, config.model_dump_json(exclude=unlooked))
        if key not in _LOOKS:
            _LOOKS[key] = self._looked(config)
        look = _LOOKS[key]
        try:
            cast = behaviours(look.found, look.counts, config.max_agents)
        except UserError as error:
            raise UserError(f"environment '{self.name}': {error}") from error
        grouped = any(look.groups) if config.grouped is None else config.grouped
        return cast, grouped and config.groups == "shared"

    def _looked(self, config: UnityConfig) -> _Look:
        player = self._player(config)
        player.ready()
        player.begin(0)
        frame = player.reset()
        found = list(frame.new)
        for _ in range(_FRAMES):
            if _askers(frame, len(found)):
                break
            frame = player.step({})
            found += frame.new
        if self._file(config) is None:
            _EDITORS.append(player)
        else:
            player.close()
        counts = _askers(frame, len(found))
        groups = [set(frame.arrays[f"d group {i}"].tolist()) - {0} for i in range(len(found))]
        return _Look(found, [counts[i] for i in range(len(found))], groups)

    def _player(self, config: UnityConfig) -> Player:
        settings = config.model_dump(
            include={"time_scale", "no_graphics", "parameters", "areas", "args", "base_port", "timeout", "flat"}
        )
        return Player(self.name, interpreter(config.python), settings | {"file": self._file(config)})

    def _file(self, config: UnityConfig) -> str | None:
        """The executable; None for the editor. UserError if it is not there."""
        if self._own == EDITOR and config.file is None:
            return None
        path = Path(config.file or self._own).expanduser()
        found = next((p for p in (path, *(path.with_name(path.name + s) for s in _SUFFIXES)) if p.exists()), None)
        if found is None:
            said = f"there is no Unity build '{path}'"
            raise UserError(
                f"{said}: give its executable with env.file=PATH, or play in the editor with unity/{EDITOR}"
            )
        return str(found.resolve())


_SUFFIXES = (".x86_64", ".app", ".exe")


def _askers(frame: Frame, count: int) -> Counter[int]:
    """How many of each behaviour ask for a decision."""
    return +Counter({i: len(frame.arrays[f"d id {i}"]) for i in range(count)})
