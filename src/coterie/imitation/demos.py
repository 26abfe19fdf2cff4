"""Demonstrations on disk: episodes of one environment in one safetensors file, nothing in which is ever unpickled.

The file's metadata has one entry, `demonstrations`: JSON that says what was played and by whom. The tensors hold the
rows of all episodes behind one another, R rows that were acted on in E episodes:

    episode/offset, episode/length    [E] int64: where an episode's rows begin, and how many it has
    episode/terminated                [E] bool: ended by the task; else cut by a limit
    episode/return                    [E, G] float64: what every group earned, its agents' rewards and its own
    group_reward                      [R, G] float32: what was paid once to a group; left out where nothing is
    state/NAME                        [R, S] float32: a state that the environment shows; may be left out
    ROLE/obs                          [R, n, ..] what the agents of a role saw, or ROLE/obs/SENSOR for each sensor
    ROLE/discrete                     [R, n, K] int64: their choices; left out for roles without
    ROLE/continuous                   [R, n, C] float32 in [-1, 1]: their numbers; left out for roles without
    ROLE/action_mask                  [R, n, sum A] bool: what they could choose; left out where always all
    ROLE/alive                        [R, n] bool: who was there
    ROLE/reward                       [R, n] float32: an agent's own
    ROLE/terminated, ROLE/truncated   [R, n] bool: an agent's life ended at this step, by the task or by a limit
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from gymnasium import spaces
from safetensors import SafetensorError
from torch import Tensor

from coterie.errors import UserError
from coterie.rundir import disk_error, sync_folder, write_bytes
from coterie.types import Action, ActionSpec, RoleSpec, Tree, tree_map

FORMAT = 1
"""Number of the format written; others are refused."""
KEY = "demonstrations"
"""The entry of a safetensors file's metadata that makes it one of demonstrations."""


@dataclass(frozen=True)
class DemoRole:
    """A role as its demonstrations know it.

    observation: {"shape": [..], "type": "float32"}, or {"sensors": {NAME: one of these}}; choices, continuous, low,
    high: as in `coterie.types.ActionSpec`.
    """

    name: str
    group: str
    agents: tuple[str, ...]
    observation: dict[str, Any]
    choices: tuple[int, ...] = ()
    continuous: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def n(self) -> int:
        return len(self.agents)

    @classmethod
    def of(cls, role: RoleSpec) -> DemoRole:
        """The role of an environment."""
        act = role.action
        seen = _space(role.observation_space)
        return cls(role.name, role.group, role.agents, seen, act.choices, act.continuous, act.low, act.high)

    def differs(self, role: RoleSpec) -> str | None:
        """What of the environment's role is another than here, in words; None if nothing that a policy depends on."""
        other = DemoRole.of(role)
        if other.n != self.n:
            return f"{self.n} agents in the demonstrations, {other.n} in the environment"
        if other.observation != self.observation:
            return f"it observes {_told(self.observation)} in the demonstrations, {_told(other.observation)} now"
        if self.action != other.action:
            return f"it acts in {_acts(self.action)} in the demonstrations, {_acts(other.action)} now"
        return None

    @property
    def action(self) -> ActionSpec:
        return ActionSpec(self.choices, self.continuous, self.low, self.high)


@dataclass(frozen=True)
class Demos:
    """Demonstrations in memory: what they are of, and the tensors of the module's table by name.

    env, params: the environment's name and all its parameters; roles: in the environment's order; made: who played, by
    team, in plain words and numbers; seed: of the episodes.
    """

    env: str
    params: dict[str, Any]
    roles: tuple[DemoRole, ...]
    tensors: dict[str, Tensor]
    made: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    digest: str = ""
    """SHA-256 of the file that this was read from."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns of `group_reward` and of `episode/return`."""
        return tuple(dict.fromkeys(role.group for role in self.roles))

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.tensors["episode/length"])

    @property
    def rows(self) -> int:
        """R."""
        return len(self.tensors[f"{self.roles[0].name}/alive"])

    def obs(self, role: DemoRole) -> Tree:
        """What the agents of a role saw [R, n, ..]."""
        return _nested(self.tensors, f"{role.name}/obs", role.observation)

    def action(self, role: DemoRole) -> Action:
        """What they did."""
        return Action(self.tensors.get(f"{role.name}/discrete"), self.tensors.get(f"{role.name}/continuous"))

    def write(self, path: Path) -> None:
        """Puts the file at `path`, whole or not at all. UserError if it cannot be written."""
        path = Path(path)
        content = safetensors.torch.save(
            {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in self.tensors.items()},
            {KEY: json.dumps(self._described(), allow_nan=False, sort_keys=True)},
        )
        beside = path.with_name(f".writing-{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(beside, content)
            os.replace(beside, path)
            sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise disk_error("the demonstrations", path, error) from error

    def _described(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "environment": {"name": self.env, "parameters": self.params},
            "roles": [vars(role) for role in self.roles],
            "made": self.made,
            "seed": self.seed,
        }

    @classmethod
    def read(cls, path: Path) -> Demos:
        """The demonstrations of a file, checked. UserError with the first thing that is wrong with them."""
        from coterie.imitation.faults import faults

        demos = cls.open(path)
        found = faults(demos)
        if found:
            more = f" ({len(found) - 1} more: coterie demos {path})" if len(found) > 1 else ""
            raise UserError(f"the demonstrations {path} are not sound: {found[0]}{more}")
        return demos

    @classmethod
    def open(cls, path: Path) -> Demos:
        """The demonstrations of a file, unchecked but for what makes them readable. UserError if they are not."""
        path = Path(path)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise UserError(
                f"there are no demonstrations {path}: record some with `coterie record RUN --out {path}`"
            ) from error
        except OSError as error:
            raise UserError(f"cannot read the demonstrations {path}: {error.strerror}") from error
        try:
            tensors = safetensors.torch.load(content)
        except (SafetensorError, ValueError, KeyError, OverflowError) as error:
            raise UserError(
                f"{path} is cut off or no safetensors file ({error}): copy it anew, or record it again"
            ) from error
        return cls(tensors=tensors, digest=hashlib.sha256(content).hexdigest(), **_parsed(path, content))


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    """What the JSON of a file says. UserError for a file that is none of demonstrations, or of another format."""
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
    if KEY not in metadata:
        raise UserError(f"{path} holds no demonstrations: its metadata has no entry '{KEY}' (see docs/imitation.md)")
    try:
        said = json.loads(metadata[KEY])
        number = said["format"]
        if number != FORMAT:
            mend = "update coterie" if isinstance(number, int) and number > FORMAT else "record it again"
            raise UserError(f"{path} has format {number!r}, this version of coterie reads {FORMAT}: {mend}")
        roles = tuple(_role(role) for role in said["roles"])
        env, params = said["environment"]["name"], said["environment"]["parameters"]
        if not roles or not isinstance(env, str) or not isinstance(params, dict):
            raise ValueError("it names no roles, or no environment with parameters")
        return {"env": env, "params": params, "roles": roles, "made": said.get("made", {}), "seed": said.get("seed")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"the metadata of {path} cannot be understood ({type(error).__name__}: {error}): see docs/imitation.md"
        ) from error


def _role(said: dict[str, Any]) -> DemoRole:
    """A role from its JSON, lists made tuples again. ValueError for what describes none."""
    fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in said.items()}
    role = DemoRole(**fields)
    what = f"role {role.name!r}"
    if not all(isinstance(word, str) and word for word in (role.name, role.group)):
        raise ValueError(f"{what}: its name and group are to be words")
    if not (isinstance(role.agents, tuple) and role.agents and all(isinstance(agent, str) for agent in role.agents)):
        raise ValueError(f"{what}: its agents are to be a list of names")
    if not (isinstance(role.choices, tuple) and all(type(n) is int and n > 0 for n in role.choices)):
        raise ValueError(f"{what}: its choices are to be a list of counts")
    bounds = [role.low, role.high]
    if type(role.continuous) is not int or any(not isinstance(x, tuple) or len(x) != role.continuous for x in bounds):
        raise ValueError(f"{what}: continuous is to be a count, low and high as many numbers")
    if not role.choices and not role.continuous:
        raise ValueError(f"{what} has neither choices nor numbers to act by")
    if not _describes(role.observation):
        raise ValueError(f'{what}: its observation is to be {{"shape": [..], "type": "float32" or "uint8"}}')
    return role


def _describes(observation: Any) -> bool:
    """Whether an observation space is written as `DemoRole` has it."""
    if not isinstance(observation, dict):
        return False
    if "sensors" in observation:
        parts = observation["sensors"]
        return isinstance(parts, dict) and bool(parts) and all(_describes(part) for part in parts.values())
    shape = observation.get("shape")
    whole = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    return whole and observation.get("type") in ("float32", "uint8")


# ------------------------------------------------------------------------------------------------------------- spaces


def _space(space: spaces.Space) -> dict[str, Any]:
    """An observation space as metadata has it."""
    if isinstance(space, spaces.Dict):
        return {"sensors": {name: _space(part) for name, part in space.spaces.items()}}
    kind = "uint8" if str(space.dtype) == "uint8" else "float32"
    return {"shape": list(space.shape or ()), "type": kind}


def leaves(name: str, observation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every tensor of a role's observation by name, with its shape and type."""
    if "sensors" not in observation:
        return {name: observation}
    found: dict[str, dict[str, Any]] = {}
    for sensor, part in observation["sensors"].items():
        found |= leaves(f"{name}/{sensor}", part)
    return found


def flattened(name: str, obs: Tree) -> dict[str, Tensor]:
    """An observation, a tensor or a dict of them, as tensors of the file by name."""
    if isinstance(obs, Tensor):
        return {name: obs if obs.dtype == torch.uint8 else obs.float()}
    return {key: leaf for sensor, part in obs.items() for key, leaf in flattened(f"{name}/{sensor}", part).items()}


def _nested(tensors: dict[str, Tensor], name: str, observation: dict[str, Any]) -> Tree:
    if "sensors" not in observation:
        return tensors[name]
    return {key: _nested(tensors, f"{name}/{key}", part) for key, part in observation["sensors"].items()}


def _told(observation: dict[str, Any]) -> str:
    if "sensors" in observation:
        return ", ".join(f"{name}: {_told(part)}" for name, part in observation["sensors"].items())
    shape = " x ".join(map(str, observation["shape"]))
    return f"{shape} numbers" if observation["type"] == "float32" else f"pictures {shape}"


def _acts(action: ActionSpec) -> str:
    parts = [f"{' x '.join(map(str, action.choices))} choices"] if action.choices else []
    if action.continuous:
        bounds = ", ".join(f"{low:g} to {high:g}" for low, high in zip(action.low, action.high, strict=True))
        parts.append(f"{action.continuous} numbers ({bounds})")
    return " and ".join(parts)


def misfits(demos: Demos, name: str | None, roles: Iterable[RoleSpec]) -> list[str]:
    """Why demonstrations are none of these roles of the environment `name` (None: of any), a line each; [] if they
    fit.
    """
    if name is not None and demos.env != name:
        return [f"they are of {demos.env}, and this is {name}: record some there"]
    own = {role.name: role for role in demos.roles}
    found = []
    for role in roles:
        if role.name not in own:
            found.append(f"they have no role '{role.name}', only {', '.join(own)}")
            continue
        said = own[role.name].differs(role)
        if said is not None:
            found.append(f"role '{role.name}': {said}")
    return found


def on(device: torch.device, tree: Tree) -> Tree:
    """The tensors of a tree on a device."""
    return tree_map(lambda x: x.to(device), tree)
