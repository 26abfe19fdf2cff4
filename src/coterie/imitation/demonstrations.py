"""Demonstrations: episodes of one environment in one safetensors file, read without unpickling.

The file's metadata has one entry, `demonstrations`: JSON with the file's checksum, which describes the environment, the
roles and who played. The checksum is the SHA-256 of the whole file with 64 zeros in its place. The tensors contain the
timesteps of all episodes one after the other, R timesteps that were acted on in E episodes:

    episode/offset, episode/length    [E] int64: first timestep and number of timesteps of each episode
    episode/terminated                [E] bool: terminated by the task; otherwise truncated by a limit
    episode/return                    [E, G] float64: return of each group, its agents' rewards and its own
    group_reward                      [R, G] float32: reward of each group; omitted if there is none
    state/NAME                        [R, S] float32: state of the environment; optional
    ROLE/obs                          [R, n, ..] observations, or ROLE/obs/SENSOR for each sensor
    ROLE/discrete                     [R, n, K] int64: discrete actions; omitted for roles without
    ROLE/continuous                   [R, n, C] float32 in [-1, 1]: continuous actions; omitted for roles without
    ROLE/action_mask                  [R, n, sum A] bool: available choices; omitted if all always are
    ROLE/alive                        [R, n] bool: agents that exist
    ROLE/reward                       [R, n] float32: the agents' own rewards
    ROLE/terminated, ROLE/truncated   [R, n] bool: agents whose life ended at this step, by the task or by a limit
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import disk_error, replace_file
from coterie.core.specs import RoleSpec
from coterie.core.text import coterie_command, shorten
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action
from coterie.imitation.demo_checks import find_errors
from coterie.imitation.demo_roles import DemoRole, unflatten_observation

FORMAT = 2
"""Version of the file format that is written. Other versions are refused."""
METADATA_KEY = "demonstrations"
"""Entry of a safetensors file's metadata that identifies demonstrations."""
_BLANK = b"0" * 64
"""Placeholder of the checksum while it is computed."""
_KEYS = {"sha256", "format", "environment", "roles", "origin", "seed"}
"""Keys of the metadata."""


@dataclass(frozen=True)
class Demos:
    """Demonstrations in memory.

    Attributes:
        env: Name of the environment.
        params: All settings of the environment.
        roles: Roles in the environment's order.
        tensors: Tensors by name, as listed in the module.
        origin: Who played, as plain strings and numbers.
        seed: Seed of the episodes.
        digest: Checksum of the file that they were read from; "" for others.
    """

    env: str
    params: dict[str, Any]
    roles: tuple[DemoRole, ...]
    tensors: dict[str, Tensor]
    origin: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    digest: str = ""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, the columns of `group_reward` and `episode/return`."""
        return tuple(dict.fromkeys(role.group for role in self.roles))

    @property
    def episodes(self) -> int:
        """Number of episodes E."""
        return len(self.tensors["episode/length"])

    @property
    def timesteps(self) -> int:
        """Number of timesteps R."""
        return len(self.tensors[f"{self.roles[0].name}/alive"])

    def obs(self, role: DemoRole) -> Tree:
        """Returns the observations of a role, [R, n, ..]."""
        return unflatten_observation(self.tensors, f"{role.name}/obs", role.observation)

    def action(self, role: DemoRole) -> Action:
        """Returns the actions of a role, [R, n, ..]."""
        return Action(self.tensors.get(f"{role.name}/discrete"), self.tensors.get(f"{role.name}/continuous"))

    def write(self, path: Path) -> None:
        """Writes the file atomically.

        Raises:
            UserError: If it cannot be written.
        """
        path = Path(path)
        content = safetensors.torch.save(
            {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in self.tensors.items()},
            {METADATA_KEY: json.dumps({"sha256": _BLANK.decode()} | self._metadata(), allow_nan=False)},
        )
        content = content.replace(_BLANK, hashlib.sha256(content).hexdigest().encode(), 1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error("the demonstrations", path, error) from error
        replace_file(path, content, "the demonstrations")

    def _metadata(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "environment": {"name": self.env, "parameters": self.params},
            "roles": [vars(role) for role in self.roles],
            "origin": self.origin,
            "seed": self.seed,
        }

    @classmethod
    def read(cls, path: Path) -> Demos:
        """Reads demonstrations and checks them.

        Raises:
            UserError: If they are invalid, with the first error.
        """
        demos = cls.open(path)
        found = find_errors(demos)
        if found:
            more = f" ({len(found) - 1} more: {coterie_command('demos', path)})" if len(found) > 1 else ""
            raise UserError(f"the demonstrations {path} are invalid: {found[0]}{more}")
        return demos

    @classmethod
    def open(cls, path: Path) -> Demos:
        """Reads demonstrations without checking the tensors.

        Raises:
            UserError: If the file cannot be read as demonstrations.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            record = coterie_command("record", "RUN", "--out", path)
            raise UserError(f"there are no demonstrations {path}. Record some with `{record}`.") from error
        except OSError as error:
            raise UserError(f"cannot read the demonstrations {path}: {error.strerror}") from error
        try:
            tensors = safetensors.torch.load(content)
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
            raise UserError(
                f"{path} is incomplete or not a safetensors file ({error}). Copy it again, or record it again."
            ) from error
        return cls(tensors=tensors, **_parse_metadata(path, content))


def mismatches(demos: Demos, env: str | None, roles: Iterable[RoleSpec]) -> list[str]:
    """Returns a line for each reason why demonstrations do not fit; [] if they do.

    Args:
        demos: The demonstrations.
        env: Name of the environment; None for any.
        roles: Roles of the environment.
    """
    if env is not None and demos.env != env:
        return [f"they were recorded in {demos.env}, but the environment is {env}. Record some there."]
    own = {role.name: role for role in demos.roles}
    found = []
    for role in roles:
        if role.name not in own:
            found.append(f"they have no role '{role.name}', only {', '.join(own)}")
            continue
        difference = own[role.name].difference(role)
        if difference is not None:
            found.append(f"role '{role.name}': {difference}")
    return found


def to_device(device: torch.device, tree: Tree) -> Tree:
    """Returns the tensors of a tree on a device."""
    return tree_map(lambda x: x.to(device), tree)


def _parse_metadata(path: Path, content: bytes) -> dict[str, Any]:
    """Returns the fields of `Demos` that are in the metadata. UserError for other and damaged files, other formats."""
    header_end = 8 + int.from_bytes(content[:8], "little")
    try:
        metadata = strict_json.parse(content[8:header_end]).get("__metadata__") or {}
        if METADATA_KEY not in metadata:
            raise UserError(
                f"{path} contains no demonstrations: its metadata has no entry '{METADATA_KEY}'. Record some."
            )
        entry = strict_json.parse(metadata[METADATA_KEY])
        version = entry["format"]
        if version != FORMAT:
            fix = "Update coterie." if isinstance(version, int) and version > FORMAT else "Record it again."
            raise UserError(
                f"{path} has format {shorten(repr(version))}, but this version of coterie reads format {FORMAT}. {fix}"
            )
        if entry["sha256"] != _checksum(content, header_end, entry["sha256"].encode()):
            raise UserError(f"{path} is corrupt, it does not match its checksum. Copy it again, or record it again.")
        return _parse_entry(entry) | {"digest": entry["sha256"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"the metadata of {path} is invalid ({reason}). Record it again.") from error


def _checksum(content: bytes, header_end: int, stated: bytes) -> str:
    """Returns the SHA-256 of a file with 64 zeros in place of the checksum that it states."""
    digest = hashlib.sha256(content[:header_end].replace(stated, _BLANK, 1))
    digest.update(memoryview(content)[header_end:])
    return digest.hexdigest()


def _parse_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns fields of `Demos`. ValueError, KeyError, TypeError or AttributeError if the metadata is invalid."""
    roles = tuple(DemoRole.from_json(role) for role in entry["roles"])
    env, params = entry["environment"]["name"], entry["environment"]["parameters"]
    if not roles or not isinstance(env, str) or not isinstance(params, dict):
        raise ValueError("expected roles, and an environment with a name and parameters")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ValueError(f"unknown key '{unknown[0]}'")
    origin, seed = entry.get("origin", {}), entry.get("seed")
    if not _is_origin(origin) or not (seed is None or type(seed) is int):
        raise ValueError("expected `origin` as `coterie record` writes it, and an integer or null as seed")
    return {"env": env, "params": params, "roles": roles, "origin": origin, "seed": seed}


def _is_origin(origin: Any) -> bool:
    """Returns True if the description of who played has the form that `coterie record` writes, as far as it goes."""
    if not isinstance(origin, dict) or not isinstance(origin.get("teams", {}), dict):
        return False
    teams = origin.get("teams", {}).values()
    has_steps = "run" not in origin or type(origin.get("steps")) is int
    return has_steps and all(isinstance(team, dict) and {"algorithm", "mode"} <= team.keys() for team in teams)
