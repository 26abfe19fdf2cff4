"""collect_treasure: collectors pick up treasures and bring each to the deposit of its kind.

Rules: mpe2 1.1 `collect_treasure_v1`.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.render import PALETTE
from coterie.envs.particle.sight import Around, joined, others, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

_COLLECTOR, _DEPOSIT, _TREASURE = 0.05, 0.075, 0.025
_BOUND = 0.95
_FAR = 1e3  # where what is not there is sorted to
_COLORS = ("blue", "orange", "green", "red", "pink", "sky")


class CollectTreasureConfig(ParticleConfig):
    """Settings of particle/collect_treasure."""

    collectors: int = Field(6, ge=1, le=64)
    """How many collectors."""
    deposits: int = Field(2, ge=1, le=6)
    """How many deposits; each takes a kind of its own."""
    treasures: int = Field(6, ge=1, le=64)
    """How many treasures."""


@final
class CollectTreasure(ParticleWorld):
    """All earn 5 for every treasure picked up and 5 for every one delivered.

    A collector with empty hands that touches a treasure takes it; the treasure comes back elsewhere, of a new kind, on
    the next step. Collectors pay 5 for each other collector that they overlap, and 0.1 of the distance to where they
    should go: the nearest treasure, or the deposit of what they hold. Deposits pay 0.1 of the distance to the nearest
    collector that holds their kind, else to the centre of all collectors. Nobody pushes anybody.

    Observation: own position and velocity, what is held (collectors); then all others by distance, each with offset,
    velocity, the kind it takes and the kind it holds; then all treasures by distance, each with offset and kind, zeros
    for those that are taken. Metrics of the episode: `pickups`, `deliveries`.
    """

    Config = CollectTreasureConfig

    def __init__(self, config: CollectTreasureConfig, with_state: bool = False):
        self.config = config
        agents = config.collectors + config.deposits
        self._collectors, self._deposits = range(config.collectors), range(config.collectors, agents)
        self._agents, self._treasures = range(agents), range(agents, agents + config.treasures)
        kinds, count = config.deposits, config.treasures
        agent = {"moves": True, "thrust": 1.5, "max_speed": 1.0}
        plan = Plan(
            name="collect_treasure",
            bodies=[
                *(Body(f"collector_{i}", _COLLECTOR, kind="agent", **agent) for i in range(config.collectors)),
                *(
                    Body(f"deposit_{i}", _DEPOSIT, kind="deposit", color=_COLORS[i], mass=2.25, **agent)
                    for i in range(kinds)
                ),
                *(Body(f"treasure_{i}", _TREASURE, kind="food") for i in range(count)),
            ],
            roles=[
                Role("collector", "team", tuple(self._collectors)),
                Role("deposit", "team", tuple(self._deposits)),
            ],
            measured={
                "collectors": (self._collectors, self._collectors),
                "treasures": (self._collectors, self._treasures),
                "deposits": (self._collectors, self._deposits),
            },
            memory={
                "holding": (kinds, config.collectors),
                "kind": (kinds, count),
                "there": (count,),
                "earned": (1,),
                "totals": (2,),
            },
            events=self._trade,
            step_noise=3 * count,
            metrics=("pickups", "deliveries"),
            linear=False,
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        count, kinds = len(self._treasures), len(self._deposits)
        moving = draws.uniform(-1, 1, 2, len(self._agents))
        rest, kind = _treasures(draws, count, kinds)
        return {"moving": moving, "rest": rest, "kind": kind, "there": torch.ones_like(kind[0])}

    def _trade(self, parts: dict[str, Tensor], noise: Tensor) -> dict[str, Tensor]:
        """Pickups, treasure by treasure, each by the first collector that can; then deliveries."""
        collectors, deposits = parts["moving"].split([len(self._collectors), len(self._deposits)], dim=1)
        holding, there = parts["holding"].clone(), parts["there"] > 0
        touch = _distance(parts["rest"], collectors) < _COLLECTOR + _TREASURE
        free, left = holding.sum(0) == 0, []
        for treasure in range(len(self._treasures)):
            can = free & touch[treasure] & there[treasure]
            takes = can & (can.cumsum(0) == 1)
            holding += takes * parts["kind"][:, treasure].unsqueeze(1)
            free = free & ~takes
            left.append(there[treasure] & ~takes.any(0))
        picked = (there.sum(0) - torch.stack(left).sum(0)).to(holding.dtype)
        brought = (_distance(deposits, collectors) < _COLLECTOR + _DEPOSIT) * holding
        delivered = brought.sum((0, 1))
        place, kind = _treasures(Draws(noise), len(self._treasures), len(self._deposits))
        gone = ~there  # taken at the step before: they come back now
        return {
            "holding": holding - brought,
            "rest": torch.where(gone, place, parts["rest"]),
            "kind": torch.where(gone, kind, parts["kind"]),
            "there": (torch.stack(left) | gone).to(holding.dtype),
            "earned": 5 * (picked + delivered).unsqueeze(0),
            "totals": parts["totals"] + torch.stack((picked, delivered)),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        holding, there, kinds = parts["holding"], parts["there"], len(self._deposits)
        takes = torch.eye(kinds, dtype=pos.dtype, device=pos.device).unsqueeze(2).expand(-1, -1, pos.shape[2])
        # Of every agent: the kind it takes, the kind it holds.
        encoding = torch.cat(
            (
                torch.cat((torch.zeros_like(holding), takes), dim=1),
                torch.cat((holding, torch.zeros_like(takes)), dim=1),
            )
        )
        shown = torch.where(there > 0, pos[:, self._treasures.start :], _FAR)
        pos = torch.cat((pos[:, self._agents], shown), dim=1)
        of_treasures = torch.cat((parts["kind"], there.unsqueeze(0)))
        about = torch.cat((of_treasures.new_zeros(kinds + 1, len(self._agents), pos.shape[2]), of_treasures), dim=1)
        seen = {}
        for name, agents in (("collector", self._collectors), ("deposit", self._deposits)):
            n = len(agents)
            rest = Around(pos, agents, others(agents, self._agents), nearest=len(self._agents) - 1)
            treasures = Around(pos, agents, [self._treasures] * n, nearest=len(self._treasures))
            kind = treasures.of(about)
            is_there = kind[:, :, -1:]
            seen[name] = joined(
                own(pos, agents),
                own(parts["vel"], agents),
                *([own(holding, agents)] if name == "collector" else []),
                torch.cat((rest.offset, rest.of(parts["vel"]), rest.of(encoding)), dim=2),
                torch.cat((treasures.offset * is_there, kind[:, :, :-1] * is_there), dim=2),
            )
        return seen

    def pay(self, now: Now) -> Pay:
        holding, there, moving = now.part("holding"), now.part("there"), now.part("moving")
        busy = holding.sum(0)
        overlaps = (now.between("collectors") < 2 * _COLLECTOR).sum(1) - 1
        treasure = torch.where(there > 0, now.between("treasures"), torch.inf).amin(1)
        treasure = treasure.where(there.any(0), 0)
        to_deposit = now.between("deposits")
        held = holding.transpose(0, 1)
        ahead = torch.where(busy > 0, (to_deposit * held).sum(1), treasure)
        carrier = torch.where(held > 0, to_deposit, torch.inf).amin(0)
        collectors, deposits = moving.split([len(self._collectors), len(self._deposits)], dim=1)
        centre = collectors.mean(1, keepdim=True)
        idle = _distance(deposits, centre).squeeze(1)
        walk = torch.where(held.any(0), carrier, idle)
        reward = now.part("earned") + torch.cat((-5 * overlaps - 0.1 * ahead, -0.1 * walk))
        totals = now.part("totals")
        return Pay(reward, lambda _: {"pickups": totals[0], "deliveries": totals[1]})

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        """Treasures, and collectors that hold one, wear the colour of the kind; a treasure that is taken is nowhere."""
        looks: dict[str, dict[str, object]] = {}
        for i in range(len(self._treasures)):
            looks[f"treasure_{i}"] = {"color": PALETTE[_COLORS[int(parts["kind"][:, i, 0].argmax())]]}
            if not parts["there"][i, 0]:
                looks[f"treasure_{i}"]["x"] = float("nan")
        for i in self._collectors:
            if parts["holding"][:, i, 0].any():
                looks[f"collector_{i}"] = {"color": PALETTE[_COLORS[int(parts["holding"][:, i, 0].argmax())]]}
        return looks


def _treasures(draws: Draws, count: int, kinds: int) -> tuple[Tensor, Tensor]:
    """Places [2, count, B] and kinds [kinds, count, B] of new treasures."""
    place = draws.uniform(-_BOUND, _BOUND, 2, count)
    return place, torch.stack([draws.one_hot(kinds) for _ in range(count)], dim=1)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """From every one of [2, n, B] to every one of [2, m, B]: [n, m, B]."""
    offset = a.unsqueeze(2) - b.unsqueeze(1)
    return torch.hypot(offset[0], offset[1])
