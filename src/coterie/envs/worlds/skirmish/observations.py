"""Action masks, observations and critic states: the features of SMAC in SMAC's order."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import Entities, ObservationParts
from coterie.envs.worlds.skirmish.combat import SIZE, Layout
from coterie.envs.worlds.skirmish.units import ENERGY, FIRST_TARGET, MOVES, Force, Tables

SIGHT = 9.0
"""ObservationBuilder range between unit centers, also the range at which enemies notice units."""
AIM = 6.0
"""Maximum distance of a target; units with a shorter weapon range approach it first."""
MARGIN = 1.0
"""A move is legal if at least this much of the field remains in its direction."""


class ObservationBuilder:
    """Builds masks, observations and states of one map from the features [F, U, B]."""

    def __init__(self, force: Force, layout: Layout):
        self._force, self._layout = force, layout
        ally, enemy = force.shielded
        kinds = len(force.names) if force.typed else 0
        self._kinds = kinds
        self.ally_size = 5 + ally + kinds
        self.enemy_size = 5 + enemy + kinds
        self.own_size = 1 + ally + kinds
        self.size = len(MOVES) + force.m * self.enemy_size + (force.n - 1) * self.ally_size + self.own_size
        self.state_size = force.n * (4 + ally + kinds + force.choices) + force.m * (3 + enemy + kinds)
        pairs, points = force.n * force.size, layout.points.stop - layout.points.start
        self._parts = [pairs, pairs * (3 + points + kinds), force.n * (len(MOVES) + force.slots)]
        self._parts += [force.n * points, force.n * kinds]
        self._rows = sum(self._parts)
        self._feature_indices: dict[torch.device, Tensor] = {}

    @property
    def parts(self) -> ObservationParts:
        """Entities in an observation. Actions aim at enemies, but in maps with healers, who aim at teammates."""
        force, enemies = self._force, len(MOVES)
        allies = enemies + force.m * self.enemy_size
        own = allies + (force.n - 1) * self.ally_size
        moves = tuple(range(len(MOVES)))
        aims = () if force.healers else range(FIRST_TARGET, FIRST_TARGET + force.m)
        unseen = [(0.0,) * size for size in (self.enemy_size, self.ally_size)]
        return ObservationParts(
            (
                Entities("own", ((*moves, *range(own, self.size)),)),
                Entities.rows("enemy", (enemies, self.enemy_size), count=force.m, choices=aims, absent=unseen[0]),
                Entities.rows("ally", (allies, self.ally_size), count=force.n - 1, absent=unseen[1]),
            )
        )

    # ------------------------------------------------------------------------------------------------ the view

    def build(self, units: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Observations [B, n, D] and masks [B, n, A]; dead agents observe zeros, and all their actions are legal."""
        n, num_envs = self._force.n, units.shape[2]
        pos, points = units[:2], units[self._layout.points]
        apart = pos.unsqueeze(1) - pos[:, :n].unsqueeze(2)
        distance = torch.hypot(apart[0], apart[1])
        alive = units[2, :n] > 0
        available = self._available(pos[:, :n], distance, alive, tables)
        share = points * tables.inverse_full[: len(points)]
        # All visible features, row by row, written to their places at once.
        source = units.new_empty(self._rows, num_envs)
        seen, around, can, own, kind = self._split(source)
        torch.lt(distance, SIGHT, out=seen)
        scaled = seen * (1 / SIGHT)
        torch.mul(distance, scaled, out=around[0])
        torch.mul(apart, scaled, out=around[1:3])
        torch.mul(share.unsqueeze(1), seen, out=around[3 : 3 + len(points)])
        can.copy_(available)
        own.copy_(share[:, :n])
        if self._kinds:
            torch.mul(tables.types.unsqueeze(1), seen, out=around[3 + len(points) :])
            torch.mul(tables.types[:, :n], alive, out=kind)
        obs = source.index_select(0, self._feature_index(units.device)).t().contiguous().view(num_envs, n, self.size)
        return obs, self._mask(available, alive)

    def _split(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Views into the source: visibility [n, U, B], pair features [F, n, U, B], available actions, own points, own
        kind.
        """
        n, num_envs = self._force.n, source.shape[1]
        parts = source.split(self._parts)
        pair = (n, self._force.size, num_envs)
        each = [part.view(-1, n, num_envs) for part in parts[2:]]
        return parts[0].view(*pair), parts[1].view(-1, *pair), each[0], each[1], each[2]

    def _available(self, pos: Tensor, distance: Tensor, alive: Tensor, tables: Tables) -> Tensor:
        """[4 + slots, n, B] bool: available moves and targets."""
        n, slots = self._force.n, self._force.slots
        y_up, x_up = pos[1] < SIZE - MARGIN, pos[0] < SIZE - MARGIN
        y_down, x_down = pos[1] > MARGIN, pos[0] > MARGIN
        near = distance <= AIM
        targets = near[:, n:]
        if tables.fit is not None:
            # The targets of a healer are on its own side.
            targets = near.gather(1, tables.slot.expand(-1, -1, near.shape[2])) & tables.fit
        available = torch.cat((torch.stack((y_up, y_down, x_up, x_down)) & alive, targets.transpose(0, 1)))
        assert available.shape[0] == len(MOVES) + slots
        return available

    def _mask(self, available: Tensor, alive: Tensor) -> Tensor:
        fallen = ~alive
        mask = torch.cat((fallen.unsqueeze(0), torch.ones_like(alive).unsqueeze(0), available | fallen))
        choices, n, num_envs = mask.shape
        return mask.transpose(0, 1).reshape(-1, num_envs).t().contiguous().view(num_envs, n, choices)

    def _feature_index(self, device: torch.device) -> Tensor:
        """[n D] int64: rows of the source in the order of an observation, agent by agent."""
        if device not in self._feature_indices:
            self._feature_indices[device] = torch.tensor(self._order(), device=device)
        return self._feature_indices[device]

    def _order(self) -> list[int]:
        force, layout, kinds = self._force, self._layout, self._kinds
        n, size = force.n, force.size
        points = layout.points.stop - layout.points.start
        around = 3 + points + kinds  # pair features without visibility
        available, own, kind = (sum(self._parts[:i]) for i in (2, 3, 4))

        def pair(i: int, j: int, first: int, shielded: bool) -> list[int]:
            features = [0, 1, 2, 3, *([4] if shielded else []), *range(3 + points, around)]
            return [first, *(n * size + (f * n + i) * size + j for f in features)]

        order: list[int] = []
        for i in range(n):
            order += [available + move * n + i for move in range(len(MOVES))]
            for k in range(force.m):
                order += pair(i, n + k, available + (len(MOVES) + k) * n + i, force.shielded[1])
            for j in range(n):
                order += pair(i, j, i * size + j, force.shielded[0]) if j != i else []
            order += [own + f * n + i for f in range(1 + force.shielded[0])]
            order += [kind + f * n + i for f in range(kinds)]
        return order

    # ------------------------------------------------------------------------------------------------ the state

    def state(self, units: Tensor, tables: Tables) -> Tensor:
        """[B, S]: per ally health, cooldown, position, shield and kind; per enemy the same without cooldown; last
        actions.

        Dead units are zero. Positions are relative to the center, in units of the field's side.
        """
        force, layout, num_envs = self._force, self._layout, units.shape[2]
        n, (ally, enemy) = force.n, force.shielded
        alive = units[2] > 0
        share = units[layout.points] * tables.inverse_full[: layout.points.stop - layout.points.start]
        place = (units[:2] / SIZE - 0.5) * alive
        ready = units[layout.place["cooldown"], :n] * tables.per_period
        if layout.heals:
            ready = ready + units[layout.place["energy"], :n] * (tables.heals / ENERGY)
        kinds = [tables.types * alive] if self._kinds else []
        allies = [share[:1, :n], (ready * alive[:n]).unsqueeze(0), place[:, :n], *([share[1:, :n]] if ally else [])]
        allies += [kind[:, :n] for kind in kinds]
        enemies = [share[:1, n:], place[:, n:], *([share[1:, n:]] if enemy else []), *(kind[:, n:] for kind in kinds)]
        acted = units[layout.place["order"], :n].unsqueeze(1) == tables.choices
        parts = [torch.cat(part).transpose(0, 1).reshape(-1, num_envs) for part in (allies, enemies)]
        return torch.cat((*parts, acted.to(units.dtype).view(-1, num_envs))).t().contiguous()
