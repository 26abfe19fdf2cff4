"""Unity environments `unity/NAME`: a build, or the editor.

Behaviors are roles, and team IDs are sides. A Unity agent occupies a slot of its role from its first decision to its
end.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.unity.behaviors import Behavior, behaviors
from coterie.envs.external.unity.client import Frame, UnityClient, find_interpreter
from coterie.envs.external.unity.environment import UnityInstance, UnityOptions

EDITOR = "editor"
_MAX_FRAMES = 1000
"""Frames within which an agent must request a decision."""
_SUFFIXES = (".x86_64", ".app", ".exe")


class UnityConfig(ExternalEnvConfig):
    """Settings of every Unity environment."""

    file: str | None = None
    """Executable of the build; by default the path after `unity/`. `unity/editor` connects to the editor."""
    python: str | None = None
    """Interpreter with mlagents-envs; by default $COTERIE_UNITY_PYTHON, otherwise the one in .venv-unity."""
    time_scale: float = Field(20.0, gt=0, le=100)
    """Speed of Unity's clock relative to real time."""
    no_graphics: bool = False
    """Start Unity without graphics (-batchmode -nographics); cameras are blank then."""
    parameters: dict[str, float] = Field(default_factory=dict)
    """Environment parameters of the scene by name: `env.parameters.gravity=9.81`."""
    areas: int = Field(1, ge=1, le=10_000)
    """Number of areas that a TrainingAreaReplicator in the scene creates."""
    args: tuple[str, ...] = ()
    """Additional arguments of the executable."""
    base_port: int | None = Field(None, ge=1024, le=65000)
    """First port to try; the first free one of 64 is used. By default any free port."""
    timeout: float = Field(60.0, gt=0, le=86_400)
    """Seconds for Unity to connect after its start, and to reply to each step."""
    episode_limit: int | None = Field(5000, ge=1, le=10**9)
    """Steps after which an episode is truncated and Unity reset; null for no limit."""
    max_agents: int | dict[str, int] | None = None
    """Slots for agents per role, for all roles or by role; by default the number of agents at the start."""
    groups: Literal["shared", "own"] = "shared"
    """shared gives group rewards once to the group; own adds them to the reward of each member."""
    grouped: bool | None = None
    """Group rewards are expected; by default if agents belong to a group at the start."""
    flat: tuple[str, ...] = ()
    """Sensors with three axes that are not images; their values are flattened."""
    reseed: bool = True
    """Restart Unity when an environment is reset with a seed, since Unity only accepts a seed at its start."""


class _Inspection(NamedTuple):
    """Properties of a build at its start.

    Attributes:
        behaviors: Descriptions of the behaviors by the helper.
        counts: Agents per behavior.
        groups: Unity's group IDs of the agents, per behavior, without 0.
    """

    behaviors: list[dict[str, Any]]
    counts: list[int]
    groups: list[set[int]]


_inspections: dict[tuple[str, float, str], _Inspection] = {}
"""By environment, modification time of the build, and configuration: starting a build takes seconds."""
_editors: list[UnityClient] = []
"""The connection to the editor, from its inspection to its instance: closing it would end the editor's play mode."""


class Unity(Adapter):
    """A build by its path, or by any name with `env.file`; `unity/editor` for the editor."""

    Config = UnityConfig
    any_parameters = True

    def __init__(self, name: str):
        self.name, self._build = f"unity/{name}", name

    def layout(self, config: BaseModel) -> Layout:
        assert isinstance(config, UnityConfig)
        found, has_group_reward = self._behaviors(config)
        roles = tuple(behavior.role for behavior in found)
        spec = EnvSpec(
            self.name,
            roles,
            {},
            agents_can_die=sum(role.n for role in roles) > 1,
            has_group_reward=has_group_reward,
            episode_limit=config.episode_limit,
            exact_resume=False,
        )
        masked = tuple(behavior.role.name for behavior in found if behavior.branches)
        return Layout(spec, {behavior.role.name: behavior.observer for behavior in found}, masked)

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, UnityConfig)
        found, has_group_reward = self._behaviors(config)
        editor = _editors.pop() if _editors and self._executable(config) is None else None
        options = UnityOptions(
            reseed=config.reseed,
            episode_limit=config.episode_limit,
            shared_groups=config.groups == "shared",
            has_group_reward=has_group_reward,
        )
        return UnityInstance(self.name, found, lambda: self._start(config), options, client=editor)

    # ---------------------------------------------------------------------------------------------------- inspection

    def _behaviors(self, config: UnityConfig) -> tuple[tuple[Behavior, ...], bool]:
        """The behaviors, and True if there are group rewards."""
        file = self._executable(config)
        irrelevant = {"wrappers", "max_agents", "groups", "grouped", "episode_limit", "reseed"}
        key = (self.name, Path(file).stat().st_mtime if file else 0.0, config.model_dump_json(exclude=irrelevant))
        if key not in _inspections:
            _inspections[key] = self._inspect(config)
        inspection = _inspections[key]
        try:
            found = behaviors(inspection.behaviors, inspection.counts, config.max_agents)
        except UserError as error:
            raise UserError(f"environment '{self.name}': {error}") from error
        grouped = any(inspection.groups) if config.grouped is None else config.grouped
        return found, grouped and config.groups == "shared"

    def _inspect(self, config: UnityConfig) -> _Inspection:
        """Starts Unity until an agent requests a decision."""
        client = self._start(config)
        client.ready()
        client.seed(0)
        frame = client.reset()
        found = list(frame.new)
        for _ in range(_MAX_FRAMES):
            if _decision_counts(frame, len(found)):
                break
            frame = client.step({})
            found += frame.new
        if self._executable(config) is None:
            _editors.append(client)
        else:
            client.close()
        counts = _decision_counts(frame, len(found))
        groups = [set(frame.arrays[f"d group {i}"].tolist()) - {0} for i in range(len(found))]
        return _Inspection(found, [counts[i] for i in range(len(found))], groups)

    def _start(self, config: UnityConfig) -> UnityClient:
        settings = config.model_dump(
            include={"time_scale", "no_graphics", "parameters", "areas", "args", "base_port", "timeout", "flat"}
        )
        return UnityClient(self.name, find_interpreter(config.python), settings | {"file": self._executable(config)})

    def _executable(self, config: UnityConfig) -> str | None:
        """Path of the build, None for the editor. UserError if it does not exist."""
        if self._build == EDITOR and config.file is None:
            return None
        path = Path(config.file or self._build)
        with contextlib.suppress(RuntimeError):  # there is no home
            path = path.expanduser()
        found = next((p for p in (path, *(path.with_name(path.name + s) for s in _SUFFIXES)) if p.exists()), None)
        if found is None:
            raise UserError(
                f"there is no Unity build '{path}'. Set its executable with env.file=PATH, or play in the editor with "
                f"unity/{EDITOR}"
            )
        return str(found.resolve())


def _decision_counts(frame: Frame, count: int) -> Counter[int]:
    """Number of agents that request a decision, by behavior."""
    return +Counter({i: len(frame.arrays[f"d id {i}"]) for i in range(count)})
