"""Batches for behavior cloning, sampled from demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.text import coterie_command
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action
from coterie.imitation.demonstrations import Demos, mismatches, to_device
from coterie.policies.network_policy import DemonstrationBatch


def load_demos(path: Path, key: str, env: str | None, team: TeamSpec) -> Demos:
    """Loads demonstrations and checks that they are valid and fit a team.

    Args:
        path: The file.
        key: Setting that names the file.
        env: Name of the environment; None for any.
        team: The team.

    Raises:
        UserError: If they are invalid or do not fit.
    """
    demos = Demos.read(path)
    found = mismatches(demos, env, team.roles)
    if found:
        more = f" ({len(found) - 1} more: {coterie_command('demos', path, '--env', 'NAME')})" if len(found) > 1 else ""
        raise UserError(f"{key}={path} does not fit team '{team.name}': {found[0]}{more}")
    if not bool(torch.cat([demos.tensors[f"{role.name}/alive"] for role in team.roles], -1).any()):
        raise UserError(f"{key}={path}: no agent of team '{team.name}' is ever alive. Record other demonstrations.")
    return demos


def require_same_demos(path: Path | None, saved: str, digest: str) -> None:
    """Raises UserError if the digest of a file of demonstrations is not the one of a checkpoint."""
    if saved != digest:
        raise UserError(f"the demonstrations {path} have changed since the run was started. Restore the original file.")


class DemoBatches:
    """The demonstrations of a team's roles, on its device, to sample from.

    For recurrent policies batches are whole episodes, each started with an empty hidden state and continued into the
    following episodes until all are as long as the longest. For other policies they are single timesteps. The first
    episode follows the last.

    Args:
        demos: Demonstrations of all roles.
        team: The team.
        recurrent: True if the policy is recurrent.
        timesteps: Timesteps per batch; at least one episode if recurrent.
        seed: Seed of the sampling.
        device: Device of the batches.
    """

    def __init__(
        self, demos: Demos, team: TeamSpec, *, recurrent: bool, timesteps: int, seed: int, device: torch.device
    ) -> None:
        roles = {role.name: role for role in demos.roles}
        own = [roles[role.name] for role in team.roles]
        self.timesteps, self.episodes = demos.timesteps, demos.episodes
        self.obs: dict[str, Tree] = to_device(device, {role.name: demos.obs(role) for role in own})
        self.action: dict[str, Action] = to_device(device, {role.name: demos.action(role) for role in own})
        masks = {role.name: demos.tensors.get(f"{role.name}/action_mask") for role in own}
        self.action_mask = {name: mask.to(device) for name, mask in masks.items() if mask is not None}
        self.valid = torch.cat([demos.tensors[f"{role.name}/alive"] for role in own], -1).to(device)  # [R, N]
        offset = demos.tensors["episode/offset"].to(device)
        terminated = torch.cat([demos.tensors[f"{role.name}/terminated"] for role in own], -1).to(device)
        self.first = self.valid & (terminated | ~self.valid).roll(1, 0)
        self.first[offset] = self.valid[offset]
        self._length = int(demos.tensors["episode/length"].max()) if recurrent else 1
        self._starts = offset if recurrent else self.valid.any(-1).nonzero().squeeze(-1)
        self._count = max(1, timesteps // self._length)
        self._sampling = generator(seed, "demonstrations")
        self._ahead = torch.arange(self._length, device=device)[:, None]

    def draw(self, count: int | None = None) -> DemonstrationBatch:
        """Samples `count` sequences with replacement; by default as many as fill a batch."""
        return self.sequences(self.places(count or self._count))

    def places(self, count: int) -> Tensor:
        """Draws the places of `count` sequences [count] int64, for `sequences`."""
        return torch.randint(len(self._starts), (count,), generator=self._sampling).to(self._starts.device)

    def sequences(self, places: Tensor) -> DemonstrationBatch:
        """Returns the sequences at some places [M]."""
        start = self._starts[places]
        return self._read((start + self._ahead) % self.timesteps, (start - 1) % self.timesteps)

    def all(self) -> DemonstrationBatch:
        """Returns every timestep once and in order, as one sequence."""
        timesteps = torch.arange(self.timesteps, device=self.valid.device)
        return self._read(timesteps[:, None], timesteps[-1:])

    def _read(self, timesteps: Tensor, previous: Tensor) -> DemonstrationBatch:
        """Returns the timesteps [L, M] as sequences; `previous` [M] are the timesteps before the first ones."""
        return DemonstrationBatch(
            obs=tree_map(lambda x: x[timesteps], self.obs),
            action_mask={name: x[timesteps] for name, x in self.action_mask.items()},
            action=tree_map(lambda x: x[timesteps], self.action),
            last_action=tree_map(lambda x: x[previous], self.action),
            valid=self.valid[timesteps],
            first=self.first[timesteps],
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the sampling."""
        return {"sampling": self._sampling.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        restore(self._sampling, state["sampling"])
