"""collect_treasure: collectors pick up treasures and deliver each to the deposit of its kind.

Rules: mpe2 1.1 `collect_treasure_v1`.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.specs import Entities, ObservationParts
from coterie.envs.worlds.drawing import PALETTE
from coterie.envs.worlds.particle.particle_world import DiscOverrides, ParticleConfig, ParticleWorld
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import (
    Neighbors,
    NoiseReader,
    Role,
    ScenarioOutcome,
    ScenarioSpec,
    Transition,
    concat_features,
    others,
    own_features,
)

_COLLECTOR, _DEPOSIT, _TREASURE = 0.05, 0.075, 0.025
_BOUND = 0.95
_FAR_AWAY = 1e3  # position of absent treasures, so that they are sorted last
_COLORS = ("blue", "orange", "green", "red", "pink", "sky")


class CollectTreasureConfig(ParticleConfig):
    """Settings of particle/collect_treasure."""

    collectors: int = Field(6, ge=1, le=64)
    """Number of collectors."""
    deposits: int = Field(2, ge=1, le=6)
    """Number of deposits, one for each kind of treasure."""
    treasures: int = Field(6, ge=1, le=64)
    """Number of treasures."""


@final
class CollectTreasure(ParticleWorld):
    """Collectors pick up treasures and deliver each to the deposit of its kind.

    All agents receive 5 for every treasure picked up and 5 for every treasure delivered. A collector that holds nothing
    picks up a treasure by touching it. The treasure reappears elsewhere on the next step, with a new kind. Collectors
    lose 5 for every other collector that they overlap, and 0.1 times the distance to their target: the nearest
    treasure, or the deposit of the treasure they hold. Deposits lose 0.1 times the distance to the nearest collector
    that holds their kind, or to the center of all collectors if there is none. Bodies do not collide.

    Observation: own position and velocity, and the treasure held (collectors). Then all other agents by distance, each
    with offset, velocity, the kind it accepts and the kind it holds. Then all treasures by distance, each with offset
    and kind, zero for absent ones. Metrics of the episode: `pickups`, `deliveries`.
    """

    Config = CollectTreasureConfig

    def __init__(self, config: CollectTreasureConfig, with_state: bool = False):
        self.config = config
        agents = config.collectors + config.deposits
        self._collectors, self._deposits = range(config.collectors), range(config.collectors, agents)
        self._agents, self._treasures = range(agents), range(agents, agents + config.treasures)
        kinds, count = config.deposits, config.treasures
        agent = {"moves": True, "thrust": 1.5, "max_speed": 1.0}
        scenario = ScenarioSpec(
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
                Role("collector", "team", tuple(self._collectors), parts=self._parts(own_size=4 + kinds)),
                Role("deposit", "team", tuple(self._deposits), parts=self._parts(own_size=4)),
            ],
            measured_pairs={
                "collectors": (self._collectors, self._collectors),
                "treasures": (self._collectors, self._treasures),
                "deposits": (self._collectors, self._deposits),
            },
            extra_parts={
                "holding": (kinds, config.collectors),
                "kind": (kinds, count),
                "present": (count,),
                "reward": (1,),
                "totals": (2,),
            },
            events=self._pick_up_and_deliver,
            step_noise_size=3 * count,
            metrics=("pickups", "deliveries"),
            linear_observations=False,
        )
        super().__init__(scenario, config, with_state)

    def _parts(self, own_size: int) -> ObservationParts:
        kinds, others = len(self._deposits), len(self._agents) - 1
        ally, treasure = 4 + 2 * kinds, 2 + kinds
        entities = (
            Entities.rows("own", (0, own_size)),
            Entities.rows("ally", (own_size, ally), count=others),
            Entities.rows(
                "object",
                (own_size + others * ally, treasure),
                count=len(self._treasures),
                absent=(0.0,) * treasure,
            ),
        )
        return ObservationParts(entities, position=(0, 1))

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        count, kinds = len(self._treasures), len(self._deposits)
        moving = noise.uniform(-1, 1, 2, len(self._agents))
        rest, kind = _treasures(noise, count, kinds)
        return {"moving": moving, "rest": rest, "kind": kind, "present": torch.ones_like(kind[0])}

    def _pick_up_and_deliver(self, parts: dict[str, Tensor], noise: Tensor) -> dict[str, Tensor]:
        """Picks up each treasure by the first collector that can, then delivers."""
        collectors, deposits = parts["moving"].split([len(self._collectors), len(self._deposits)], dim=1)
        holding, present = parts["holding"].clone(), parts["present"] > 0
        touching = _distance(parts["rest"], collectors) < _COLLECTOR + _TREASURE
        empty_handed, remaining = holding.sum(0) == 0, []
        for treasure in range(len(self._treasures)):
            can_pick_up = empty_handed & touching[treasure] & present[treasure]
            picks_up = can_pick_up & (can_pick_up.cumsum(0) == 1)
            holding += picks_up * parts["kind"][:, treasure].unsqueeze(1)
            empty_handed = empty_handed & ~picks_up
            remaining.append(present[treasure] & ~picks_up.any(0))
        pickups = (present.sum(0) - torch.stack(remaining).sum(0)).to(holding.dtype)
        delivered = (_distance(deposits, collectors) < _COLLECTOR + _DEPOSIT) * holding
        deliveries = delivered.sum((0, 1))
        position, kind = _treasures(NoiseReader(noise), len(self._treasures), len(self._deposits))
        absent = ~present  # picked up in the previous step: they reappear now
        return {
            "holding": holding - delivered,
            "rest": torch.where(absent, position, parts["rest"]),
            "kind": torch.where(absent, kind, parts["kind"]),
            "present": (torch.stack(remaining) | absent).to(holding.dtype),
            "reward": 5 * (pickups + deliveries).unsqueeze(0),
            "totals": parts["totals"] + torch.stack((pickups, deliveries)),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        holding, present, kinds = parts["holding"], parts["present"], len(self._deposits)
        accepts = torch.eye(kinds, dtype=pos.dtype, device=pos.device).unsqueeze(2).expand(-1, -1, pos.shape[2])
        # For every agent, the kind it accepts and the kind it holds.
        encoding = torch.cat(
            (
                torch.cat((torch.zeros_like(holding), accepts), dim=1),
                torch.cat((holding, torch.zeros_like(accepts)), dim=1),
            )
        )
        treasure_pos = torch.where(present > 0, pos[:, self._treasures.start :], _FAR_AWAY)
        pos = torch.cat((pos[:, : len(self._agents)], treasure_pos), dim=1)
        treasure_features = torch.cat((parts["kind"], present.unsqueeze(0)))
        no_features = treasure_features.new_zeros(kinds + 1, len(self._agents), pos.shape[2])
        features = torch.cat((no_features, treasure_features), dim=1)
        obs = {}
        for name, agents in (("collector", self._collectors), ("deposit", self._deposits)):
            n = len(agents)
            neighbors = Neighbors(pos, agents, others(agents, self._agents), nearest=len(self._agents) - 1)
            treasures = Neighbors(pos, agents, [self._treasures] * n, nearest=len(self._treasures))
            kind = treasures.features(features)
            is_present = kind[:, :, -1:]
            obs[name] = concat_features(
                own_features(pos, agents),
                own_features(parts["vel"], agents),
                *([own_features(holding, agents)] if name == "collector" else []),
                torch.cat((neighbors.offset, neighbors.features(parts["vel"]), neighbors.features(encoding)), dim=2),
                torch.cat((treasures.offset * is_present, kind[:, :, :-1] * is_present), dim=2),
            )
        return obs

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        holding, present, moving = transition.part("holding"), transition.part("present"), transition.part("moving")
        overlaps = (transition.distance("collectors") < 2 * _COLLECTOR).sum(1) - 1
        to_treasure = torch.where(present > 0, transition.distance("treasures"), torch.inf).amin(1)
        to_treasure = to_treasure.where(present.any(0), 0)
        to_deposit = transition.distance("deposits")
        held = holding.transpose(0, 1)
        collector_target = torch.where(holding.sum(0) > 0, (to_deposit * held).sum(1), to_treasure)
        to_carrier = torch.where(held > 0, to_deposit, torch.inf).amin(0)
        collectors, deposits = moving.split([len(self._collectors), len(self._deposits)], dim=1)
        to_center = _distance(deposits, collectors.mean(1, keepdim=True)).squeeze(1)
        deposit_target = torch.where(held.any(0), to_carrier, to_center)
        distance_penalty = torch.cat((-5 * overlaps - 0.1 * collector_target, -0.1 * deposit_target))
        reward = transition.part("reward") + distance_penalty
        totals = transition.part("totals")
        return ScenarioOutcome(reward, lambda _: {"pickups": totals[0], "deliveries": totals[1]})

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        """Colors treasures, and collectors that hold one, by kind, and hides absent treasures."""
        disc_overrides: dict[str, dict[str, object]] = {}
        for i in range(len(self._treasures)):
            disc_overrides[f"treasure_{i}"] = {"color": PALETTE[_COLORS[int(parts["kind"][:, i, 0].argmax())]]}
            if not parts["present"][i, 0]:
                disc_overrides[f"treasure_{i}"]["x"] = float("nan")
        for i in self._collectors:
            if parts["holding"][:, i, 0].any():
                disc_overrides[f"collector_{i}"] = {"color": PALETTE[_COLORS[int(parts["holding"][:, i, 0].argmax())]]}
        return disc_overrides


def _treasures(noise: NoiseReader, count: int, kinds: int) -> tuple[Tensor, Tensor]:
    """Draws positions [2, count, B] and kinds [kinds, count, B] of new treasures."""
    position = noise.uniform(-_BOUND, _BOUND, 2, count)
    return position, torch.stack([noise.one_hot(kinds) for _ in range(count)], dim=1)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Returns the distances from all points [2, n, B] to all points [2, m, B]: [n, m, B]."""
    offset = a.unsqueeze(2) - b.unsqueeze(1)
    return torch.hypot(offset[0], offset[1])
