"""Unit kinds with the statistics of StarCraft II 4.10 as listed in Liquipedia's unit pages.

Seconds refer to the game speed "faster" (22.4 ticks per second), like the published statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

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
