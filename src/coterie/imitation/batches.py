"""Batches for fitting a policy, drawn from demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.fittable import Demonstrated
from coterie.imitation.demos import Demos, misfits, on
from coterie.seeds import generator
from coterie.types import Action, TeamSpec, Tree, tree_map


def demos_for(path: Path, key: str, env: str | None, team: TeamSpec) -> Demos:
    """The demonstrations of a file, sound and of the team in the environment `env` (None: in any). UserError, with the
    key that names the file, where they are not.
    """
    demos = Demos.read(path)
    found = misfits(demos, env, team.roles)
    if found:
        more = f" (and {len(found) - 1} more: coterie demos {path} --env NAME)" if len(found) > 1 else ""
        raise UserError(f"{key}={path} does not fit team '{team.name}': {found[0]}{more}")
    if not bool(torch.cat([demos.tensors[f"{role.name}/alive"] for role in team.roles], -1).any()):
        raise UserError(f"{key}={path}: nobody of team '{team.name}' is ever alive in it: record others")
    return demos


class DemoBatches:
    """What a team's roles did in all demonstrations, on its device, to be drawn from.

    remembers: batches are whole episodes, each begun with an empty memory and run on into those that follow it until
    all are as long as the longest; else single rows. rows: of a batch, at least one episode. The order has no end:
    the first episode follows on the last.
    """

    def __init__(
        self, demos: Demos, team: TeamSpec, remembers: bool, rows: int, seed: int, device: torch.device
    ) -> None:
        roles = {role.name: role for role in demos.roles}
        own = [roles[role.name] for role in team.roles]
        self.rows, self.episodes = demos.rows, demos.episodes
        self.obs: dict[str, Tree] = on(device, {role.name: demos.obs(role) for role in own})
        self.action: dict[str, Action] = on(device, {role.name: demos.action(role) for role in own})
        masks = {role.name: demos.tensors.get(f"{role.name}/action_mask") for role in own}
        self.action_mask = {name: mask.to(device) for name, mask in masks.items() if mask is not None}
        self.live = torch.cat([demos.tensors[f"{role.name}/alive"] for role in own], -1).to(device)  # [R, N]
        self._offset = demos.tensors["episode/offset"].to(device)
        self.first = self.live & ~self.live.roll(1, 0)
        self.first[self._offset] = self.live[self._offset]
        self._length = int(demos.tensors["episode/length"].max()) if remembers else 1
        self._starts = self._offset if remembers else self.live.any(-1).nonzero().squeeze(-1)
        self._count = max(1, rows // self._length)
        self._draws = generator(seed, "demonstrations")
        self._ahead = torch.arange(self._length, device=device)[:, None]

    def draw(self, count: int | None = None) -> Demonstrated:
        """`count` sequences drawn with replacement, or as many as come to the rows of a batch."""
        drawn = torch.randint(len(self._starts), (count or self._count,), generator=self._draws)
        start = self._starts[drawn.to(self._starts.device)]
        return self._read((start + self._ahead) % self.rows, (start - 1) % self.rows)

    def all(self) -> Demonstrated:
        """Every row, once and in order, as one sequence."""
        rows = torch.arange(self.rows, device=self.live.device)
        return self._read(rows[:, None], rows[-1:])

    def _read(self, rows: Tensor, before: Tensor) -> Demonstrated:
        """Rows [L, M] as sequences; before: [M], the rows that come before the first ones."""
        return Demonstrated(
            obs=tree_map(lambda x: x[rows], self.obs),
            action_mask={name: x[rows] for name, x in self.action_mask.items()},
            action=tree_map(lambda x: x[rows], self.action),
            before=tree_map(lambda x: x[before], self.action),
            live=self.live[rows],
            first=self.first[rows],
        )

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws.set_state(state["draws"].cpu())
