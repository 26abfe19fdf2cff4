"""Unit kinds with the statistics of StarCraft II 4.10 as listed in Liquipedia's unit pages.

Seconds refer to the game speed "faster" (22.4 ticks per second), like the published statistics.

The units of a map are lookup tables: the effect of every order of every unit, in numbers that a step indexes. Units are
numbered allies first, then enemies, and within a side by kind in roster order. The order of an ally is its action, the
order of an enemy the index of its target (the number of units: no target).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.envs.worlds.skirmish import Roster

SECOND = 22.4
"""Ticks per published second."""
STEP = 8
"""Ticks per environment step, as in SMAC."""
SHIELD_DELAY = 10.0 * SECOND
"""Ticks without a hit before a shield regenerates."""
SHIELD_GROWTH = 2.0 / SECOND
"""Shield regeneration in points per tick."""
ENERGY = 200.0
"""Maximum energy of a healer."""
ENERGY_START = 50.0
ENERGY_GROWTH = 0.7875 / SECOND
HEALTH_FOR_ENERGY = 3.0
"""Health restored per point of energy."""
LEAST_HIT = 0.5
"""Minimum damage of a hit regardless of armor."""


@dataclass(frozen=True)
class Unit:
    """A unit kind.

    Attributes:
        health: Points at the start.
        shield: Points at the start.
        armor: Damage reduction of every hit on health.
        damage: Points per hit.
        hits: Hits per attack.
        bonus: Additional points per hit against units with the given attribute.
        cooldown: Seconds between attacks.
        range: Range of the weapon (or healing), edge to edge.
        speed: Distance per second.
        radius: Radius of the unit.
        attributes: light, armored.
        air: True for flying units, which pass over others and are out of reach of many weapons.
        hits_air: True if its weapon can hit flying units.
        heals: Health restored per second, instead of a weapon.
        beam: Half-width of a beam attack across its direction, 0 for single-target attacks.
    """

    name: str
    health: float
    damage: float
    cooldown: float
    range: float
    speed: float
    radius: float
    shield: float = 0.0
    armor: float = 0.0
    hits: int = 1
    bonus: tuple[str, float] = ("", 0.0)
    attributes: frozenset[str] = frozenset()
    air: bool = False
    hits_air: bool = False
    heals: float = 0.0
    beam: float = 0.0

    @property
    def period(self) -> float:
        """Ticks between attacks."""
        return self.cooldown * SECOND

    @property
    def pace(self) -> float:
        """Distance per tick."""
        return self.speed / SECOND

    def hit(self, other: Unit) -> float:
        """Damage of an attack to a shield of the other unit, which armor does not reduce."""
        attribute, bonus = self.bonus
        return self.hits * (self.damage + (bonus if attribute in other.attributes else 0.0))

    def wound(self, other: Unit) -> float:
        """Damage of an attack to the health of the other unit."""
        each = self.hit(other) / self.hits
        return self.hits * max(each - other.armor, min(each, LEAST_HIT))

    def reach(self, other: Unit) -> float:
        """Distance between centers within which the other unit can be hit."""
        return self.range + self.radius + other.radius

    def can_aim(self, other: Unit, same_side: bool) -> bool:
        """True if the other unit is a valid target; healers target teammates that do not fly."""
        if self.heals:
            return same_side and not other.air
        return not same_side and (self.hits_air or not other.air)


_LIGHT, _ARMORED = frozenset({"light"}), frozenset({"armored"})
_MELEE = 0.1

_ALL = (
    Unit("marine", 45, 6, 0.61, range=5, speed=3.15, radius=0.375, attributes=_LIGHT, hits_air=True),
    Unit(
        "marauder",
        125,
        10,
        1.07,
        range=6,
        speed=3.15,
        radius=0.5625,
        armor=1,
        bonus=("armored", 10),
        attributes=_ARMORED,
    ),
    Unit("medivac", 150, 0, 1, range=4, speed=3.5, radius=0.75, armor=1, attributes=_ARMORED, air=True, heals=12.6),
    Unit(
        "stalker",
        80,
        13,
        1.34,
        range=6,
        speed=4.13,
        radius=0.625,
        shield=80,
        armor=1,
        bonus=("armored", 5),
        attributes=_ARMORED,
        hits_air=True,
    ),
    Unit("zealot", 100, 8, 0.86, range=_MELEE, speed=3.15, radius=0.5, shield=50, armor=1, hits=2, attributes=_LIGHT),
    Unit(
        "colossus",
        200,
        10,
        1.07,
        range=7,
        speed=3.15,
        radius=1.0,
        shield=150,
        armor=1,
        hits=2,
        bonus=("light", 5),
        attributes=_ARMORED,
        beam=1.4,
    ),
    Unit("zergling", 35, 5, 0.497, range=_MELEE, speed=4.13, radius=0.375, attributes=_LIGHT),
    Unit("hydralisk", 90, 12, 0.59, range=5, speed=3.15, radius=0.625, attributes=_LIGHT, hits_air=True),
    Unit(
        "spine_crawler", 300, 25, 1.32, range=7, speed=0, radius=0.9, armor=2, bonus=("armored", 5), attributes=_ARMORED
    ),
)

UNITS: dict[str, Unit] = {unit.name: unit for unit in _ALL}
"""Unit kinds by name."""


NOOP, STOP = 0, 1
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))
"""Directions of actions 2 to 5: north, south, east, west."""
FIRST_TARGET = 2 + len(MOVES)
"""Action that attacks target 0."""
STRIDE = 2.0
"""Distance to the destination of a move; no unit gets there within a step."""

PACE, REACH, HEAL, WOUND, HIT = range(5)
"""Rows of an order sheet: speed per tick; distance at which the unit stops, -inf for a point; health restored per tick;
damage to health and to shield per attack.
"""


class Force:
    """Units of a map and the tables of their orders: `size` units, of which the first `n` are allies."""

    def __init__(self, roster: Roster):
        sides = [[UNITS[kind] for kind, count in side.items() for _ in range(count)] for side in roster[:2]]
        self.n, self.m = (len(side) for side in sides)
        self.units: tuple[Unit, ...] = (*sides[0], *sides[1])
        self.size = self.n + self.m
        self.names = tuple(dict.fromkeys(unit.name for unit in self.units))
        """Unit kinds on the map."""
        by_side = [dict.fromkeys(unit.name for unit in side) for side in sides]
        self.typed = max(len(kinds) for kinds in by_side) > 1
        """True if a side has several kinds, so that kinds are part of the observation."""
        self.shielded = (any(unit.shield for unit in sides[0]), any(unit.shield for unit in sides[1]))
        self.slots = max(self.m, self.n if any(unit.heals for unit in sides[0]) else 0)
        """Number of target actions per ally."""
        self.choices = FIRST_TARGET + self.slots
        self.action_names = (
            "noop",
            "stop",
            "north",
            "south",
            "east",
            "west",
            *(f"target {k}" for k in range(self.slots)),
        )
        """Names of the actions."""
        self.healers = tuple(i for i, unit in enumerate(self.units) if unit.heals)
        self.beams = tuple(i for i, unit in enumerate(self.units) if unit.beam)
        self.total = sum(unit.health + unit.shield for unit in sides[1])
        """Total points of the enemy."""

    def side(self, i: int) -> int:
        """0 for an ally, 1 for an enemy."""
        return int(i >= self.n)

    def can_aim(self, i: int, j: int) -> bool:
        """True if unit j is a valid target of unit i."""
        return i != j and self.units[i].can_aim(self.units[j], self.side(i) == self.side(j))

    def target_of(self, i: int, slot: int) -> int | None:
        """Unit that ally i targets with its action `slot`; None if there is none."""
        j = slot if self.units[i].heals else self.n + slot
        inside = j < (self.n if self.units[i].heals else self.size)
        return j if inside and self.can_aim(i, j) else None

    def order(self, i: int, j: int | None) -> list[float]:
        """Order sheet of unit i for target j, or for a point."""
        unit = self.units[i]
        if j is None or not self.can_aim(i, j):
            return [unit.pace, -np.inf, 0.0, 0.0, 0.0]
        other = self.units[j]
        hit, wound = (0.0, 0.0) if unit.heals else (unit.hit(other), unit.wound(other))
        return [unit.pace, unit.reach(other), unit.heals / SECOND, wound, hit]


@dataclass(frozen=True)
class Tables:
    """Tables on one device. The rows of a sheet are the first axis; [.., n A] is indexed by ally and action, [.., m (U
    + 1)] by enemy and target.
    """

    ally_sheet: Tensor
    """[R, n A]."""
    ally_shift: Tensor
    """[2, n A]: displacement to the destination of a move."""
    ally_aim: Tensor
    """[n A] int64: target, the unit itself for none."""
    ally_base: Tensor
    """[n, 1] int64: offset of each ally in the tables above."""
    enemy_sheet: Tensor
    """[R, m (U + 1)]."""
    enemy_aim: Tensor
    """[m (U + 1)] int64."""
    enemy_base: Tensor
    """[m, 1] int64."""
    period: Tensor
    """[U, 1]: ticks between attacks, 0 for healers."""
    full: Tensor
    """[2, U, 1]: health and shield at the start."""
    inverse_full: Tensor
    """[2, U, 1]: reciprocals of `full`, 0 for zero."""
    contact: Tensor
    """[U, U, 1]: reciprocal of the squared contact distance; huge for units that never collide."""
    radius: Tensor
    """[U, 1]."""
    beam: Tensor
    """[2, U, U]: damage to health and shield, by attacker and target."""
    park: Tensor
    """[2, U, 1]: positions of dead units."""
    unfit: Tensor | None
    """[m, n, 1]: infinite where the enemy cannot hit the ally; None if all can."""
    reach2: Tensor
    """[m, n, 1]: squared distance at which the enemy can hit the ally, -1 where it cannot."""
    armed: Tensor
    """[U, 1] bool: True for units that can win a battle."""
    types: Tensor
    """[K, U, 1]: one-hot kinds."""
    slot: Tensor
    """[n, slots, 1] int64: unit of each target action, 0 for none."""
    fit: Tensor | None
    """[n, slots, 1] bool: True where the target action is valid; None if all are valid and target enemies."""
    per_period: Tensor
    """[n, 1]: reciprocal of the period, 0 for healers."""
    heals: Tensor
    """[n, 1]: 1 for healers."""
    choices: Tensor
    """[1, A, 1]: action numbers."""


PARK = -1000.0
"""Coordinate of dead units, 50 apart from each other and out of reach and sight of all others."""
SPREAD = 50.0
_NEVER = 1e6


def build_tables(force: Force, like: Tensor) -> Tables:
    """Builds the tables on the device and with the dtype of `like`."""
    n, m, size = force.n, force.m, force.size
    units = force.units

    def tensor(values: object, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(values, dtype=dtype or like.dtype, device=like.device)

    ally_sheet, ally_shift, ally_aim = [], [], []
    for i in range(n):
        for choice in range(force.choices):
            j = force.target_of(i, choice - FIRST_TARGET) if choice >= FIRST_TARGET else None
            moves = STOP < choice < FIRST_TARGET
            sheet = force.order(i, j)
            if j is None and not moves:
                sheet[PACE] = 0.0
            ally_sheet.append(sheet)
            ally_shift.append([STRIDE * x for x in MOVES[choice - 2]] if moves else [0.0, 0.0])
            ally_aim.append(i if j is None else j)
    goes = [(i, j) for i in range(n, size) for j in [*range(size), None]]
    aims = [(i, j) if j is not None and force.can_aim(i, j) else (i, None) for i, j in goes]
    touch = _touch(units)
    pairs = [[force.can_aim(i, j) for j in range(n)] for i in range(n, size)]
    every = all(all(row) for row in pairs)
    reaches = [[units[i].reach(units[j]) ** 2 if pairs[i - n][j] else -1.0 for j in range(n)] for i in range(n, size)]
    full = [[unit.health for unit in units], [unit.shield for unit in units]]
    slots = [[force.target_of(i, slot) for slot in range(force.slots)] for i in range(n)]
    plain = all(row == list(range(n, size)) for row in slots)
    return Tables(
        ally_sheet=tensor(ally_sheet).T.contiguous(),
        ally_shift=tensor(ally_shift).T.contiguous(),
        ally_aim=tensor(ally_aim, torch.int64),
        ally_base=tensor([[i * force.choices] for i in range(n)], torch.int64),
        enemy_sheet=tensor([force.order(i, j) for i, j in aims]).T.contiguous(),
        enemy_aim=tensor([i if j is None else j for i, j in aims], torch.int64),
        enemy_base=tensor([[i * (size + 1)] for i in range(m)], torch.int64),
        period=tensor([[0.0 if unit.heals else unit.period] for unit in units]),
        full=tensor(full).unsqueeze(-1),
        inverse_full=tensor([[1 / x if x else 0.0 for x in row] for row in full]).unsqueeze(-1),
        contact=tensor(touch).unsqueeze(-1),
        radius=tensor([[unit.radius] for unit in units]),
        beam=tensor([[[a.wound(b) for b in units] for a in units], [[a.hit(b) for b in units] for a in units]]),
        park=tensor([[PARK] * size, [PARK - SPREAD * i for i in range(size)]]).unsqueeze(-1),
        unfit=None if every else tensor([[0.0 if fit else np.inf for fit in row] for row in pairs]).unsqueeze(-1),
        reach2=tensor(reaches).unsqueeze(-1),
        armed=tensor([[not unit.heals] for unit in units], torch.bool),
        types=tensor([[float(unit.name == kind) for unit in units] for kind in force.names]).unsqueeze(-1),
        slot=tensor([[j or 0 for j in row] for row in slots], torch.int64).unsqueeze(-1),
        fit=None if plain else tensor([[j is not None for j in row] for row in slots], torch.bool).unsqueeze(-1),
        per_period=tensor([[0.0 if unit.heals else 1 / unit.period] for unit in units[:n]]),
        heals=tensor([[float(unit.heals > 0)] for unit in units[:n]]),
        choices=tensor(list(range(force.choices))).view(1, -1, 1),
    )


def _touch(units: tuple[Unit, ...]) -> list[list[float]]:
    """[U, U]: 1 / (sum of the radii)^2 for each pair; flying units collide only with each other."""
    return [[1 / (a.radius + b.radius) ** 2 if a.air == b.air else _NEVER for b in units] for a in units]


class TableCache:
    """Caches the tables of a map by device and dtype."""

    def __init__(self, make: Callable[[Tensor], Tables]):
        self._make = make
        self._tables: dict[tuple[torch.device, torch.dtype], Tables] = {}

    def get(self, like: Tensor) -> Tables:
        """Returns the tables on the device and with the dtype of `like`."""
        key = (like.device, like.dtype)
        if key not in self._tables:
            self._tables[key] = self._make(like)
        return self._tables[key]
