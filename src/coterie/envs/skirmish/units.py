"""Kinds of units, with the figures of StarCraft II 4.10 as Liquipedia's unit pages list them.

Seconds are those of the game speed "faster", 22.4 ticks long, in which the published figures are.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 22.4
"""Ticks of a published second."""
STEP = 8
"""Ticks of a step of the environment, as in SMAC."""
SHIELD_DELAY = 10.0 * SECOND
"""Ticks without a hit after which a shield grows."""
SHIELD_GROWTH = 2.0 / SECOND
"""Points a tick by which it grows then."""
ENERGY = 200.0
"""The most energy that a healer holds."""
ENERGY_START = 50.0
ENERGY_GROWTH = 0.7875 / SECOND
HEALTH_FOR_ENERGY = 3.0
"""Health that a point of energy gives back."""
LEAST_HIT = 0.5
"""What a hit takes at least, whatever the armour."""


@dataclass(frozen=True)
class Unit:
    """A kind of unit.

    health, shield: points at the start; armour: what every hit on its health loses; damage: points a hit; hits: how
    many an attack has; bonus: points a hit more against units with that attribute; cooldown: seconds from attack to
    attack; range: of its weapon (or its healing), from edge to edge; speed: lengths a second; radius: of its disc;
    attributes: light, armoured; air: it flies over others and is out of the reach of many; hits_air: it is not out of
    this one's; heals: health a second that it gives back, in place of a weapon; beam: half the width of what it hits
    across the line of its attack, 0 for its target alone.
    """

    name: str
    health: float
    damage: float
    cooldown: float
    range: float
    speed: float
    radius: float
    shield: float = 0.0
    armour: float = 0.0
    hits: int = 1
    bonus: tuple[str, float] = ("", 0.0)
    attributes: frozenset[str] = frozenset()
    air: bool = False
    hits_air: bool = False
    heals: float = 0.0
    beam: float = 0.0

    @property
    def period(self) -> float:
        """Ticks from attack to attack."""
        return self.cooldown * SECOND

    @property
    def pace(self) -> float:
        """Lengths a tick."""
        return self.speed / SECOND

    def hit(self, other: Unit) -> float:
        """Points that an attack takes from a shield of the other, which armour does not help."""
        attribute, bonus = self.bonus
        return self.hits * (self.damage + (bonus if attribute in other.attributes else 0.0))

    def wound(self, other: Unit) -> float:
        """Points that an attack takes from the health of the other."""
        each = self.hit(other) / self.hits
        return self.hits * max(each - other.armour, min(each, LEAST_HIT))

    def reach(self, other: Unit) -> float:
        """Between the middles, how far away the other can be hit."""
        return self.range + self.radius + other.radius

    def can_aim(self, other: Unit, same_side: bool) -> bool:
        """Whether it has a use for the other as a target: healers for their own that do not fly."""
        if self.heals:
            return same_side and not other.air
        return not same_side and (self.hits_air or not other.air)


_LIGHT, _ARMOURED = frozenset({"light"}), frozenset({"armoured"})
_MELEE = 0.1

_ALL = (
    Unit("marine", 45, 6, 0.61, 5, 3.15, 0.375, attributes=_LIGHT, hits_air=True),
    Unit("marauder", 125, 10, 1.07, 6, 3.15, 0.5625, armour=1, bonus=("armoured", 10), attributes=_ARMOURED),
    Unit("medivac", 150, 0, 1, 4, 3.5, 0.75, armour=1, attributes=_ARMOURED, air=True, heals=12.6),
    Unit(
        "stalker",
        80,
        13,
        1.34,
        6,
        4.13,
        0.625,
        shield=80,
        armour=1,
        bonus=("armoured", 5),
        attributes=_ARMOURED,
        hits_air=True,
    ),
    Unit("zealot", 100, 8, 0.86, _MELEE, 3.15, 0.5, shield=50, armour=1, hits=2, attributes=_LIGHT),
    Unit(
        "colossus",
        200,
        10,
        1.07,
        7,
        3.15,
        1.0,
        shield=150,
        armour=1,
        hits=2,
        bonus=("light", 5),
        attributes=_ARMOURED,
        beam=1.4,
    ),
    Unit("zergling", 35, 5, 0.497, _MELEE, 4.13, 0.375, attributes=_LIGHT),
    Unit("hydralisk", 90, 12, 0.59, 5, 3.15, 0.625, attributes=_LIGHT, hits_air=True),
    Unit("spine_crawler", 300, 25, 1.32, 7, 0, 0.9, armour=2, bonus=("armoured", 5), attributes=_ARMOURED),
)

UNITS: dict[str, Unit] = {unit.name: unit for unit in _ALL}
"""By name."""
