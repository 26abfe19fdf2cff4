"""simple_world_comm: pursuit with food and with forests that hide. Rules: mpe2 1.1 `simple_world_comm_v3`."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, others, own, same
from coterie.envs.particle.tag import fence
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

_SYMBOLS = 4
_PURSUER, _PREY, _FOOD, _FOREST = 0.075, 0.045, 0.03, 0.3


class SimpleWorldCommConfig(ParticleConfig):
    """Settings of particle/simple_world_comm."""

    good: int = Field(2, ge=1, le=64)
    """How many prey."""
    adversaries: int = Field(4, ge=1, le=64)
    """How many pursuers, their leader included."""
    obstacles: int = Field(1, ge=0, le=64)
    """How many obstacles."""
    food: int = Field(2, ge=1, le=64)
    """How many places with food."""
    forests: int = Field(2, ge=0, le=64)
    """How many forests."""


@final
class SimpleWorldComm(ParticleWorld):
    """Every pursuer earns 5 for each touch of any of them with prey, and pays 0.1 of its distance to the nearest prey.
    Prey pay 5 for each of theirs and twice the fence, earn 2 for each food touched, and pay 0.05 of the distance to
    the nearest food.

    Who stands in a forest is seen only from within the same forest, and sees nobody outside; the leader sees all. What
    is not seen has zeros. Observation: own velocity and position, offsets to obstacles, food and forests, offsets to
    the other agents, velocities of the other prey, a sign for each forest (1: inside); pursuers hear the leader.
    Metric: `touches` of the step that ends the episode, pursuers on prey.
    """

    Config = SimpleWorldCommConfig

    def __init__(self, config: SimpleWorldCommConfig, with_state: bool = False):
        self.config = config
        chase, agents = config.adversaries, config.adversaries + config.good
        self._pursuers, self._prey, self._agents = range(chase), range(chase, agents), range(agents)
        food_from = agents + config.obstacles
        forest_from = food_from + config.food
        self._places = range(agents, forest_from + config.forests)
        self._food = range(food_from, forest_from)
        self._forests = range(forest_from, forest_from + config.forests)
        pursuer = {"size": _PURSUER, "thrust": 3.0, "max_speed": 1.0, "moves": True, "collides": True, "kind": "agent"}
        prey = {**pursuer, "size": _PREY, "thrust": 4.0, "max_speed": 1.3}
        plan = Plan(
            name="simple_world_comm",
            bodies=[
                Body("leadadversary_0", color="orange", **pursuer),
                *(Body(f"adversary_{i}", color="red", **pursuer) for i in range(chase - 1)),
                *(Body(f"agent_{i}", color="green", **prey) for i in range(config.good)),
                *(
                    Body(f"landmark_{i}", 0.2, collides=True, kind="obstacle", color="dark")
                    for i in range(config.obstacles)
                ),
                *(Body(f"food_{i}", _FOOD, kind="food", color="blue") for i in range(config.food)),
                *(Body(f"forest_{i}", _FOREST, kind="forest", color="green") for i in range(config.forests)),
            ],
            roles=[
                Role("leadadversary", "adversary", (0,), _SYMBOLS),
                *([Role("adversary", "adversary", tuple(self._pursuers[1:]))] if chase > 1 else []),
                Role("agent", "agent", tuple(self._prey)),
            ],
            measured={"hunt": (self._pursuers, self._prey), "food": (self._prey, self._food)},
            metrics=("touches",),
            linear=False,
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {
            "moving": draws.uniform(-1, 1, 2, len(self._agents)),
            "rest": draws.uniform(-0.9, 0.9, 2, len(self._places)),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        vel, n, chase = parts["vel"], len(self._agents), len(self._pursuers)
        places = Around(pos, self._agents, [self._places] * n).offset
        forests = places[:, len(self._places) - len(self._forests) :]
        size = pos.new_tensor([body.size for body in self.plan.bodies[:n]]).view(-1, 1, 1)
        inside = torch.hypot(forests[:, :, 0], forests[:, :, 1]) < _FOREST + size
        visible = self._visible(inside).to(pos.dtype).unsqueeze(1)
        # Offsets and velocities of all agents to all, with zeros for what is not seen: [2, seen, B] of every seer.
        offset = (pos[:, :n].unsqueeze(1) - pos[:, :n].unsqueeze(2)).transpose(0, 1) * visible
        moving = vel.unsqueeze(0) * visible
        sign = 2 * inside.to(pos.dtype) - 1
        common = joined(own(vel, self._agents), own(pos, self._agents), places, _of(offset, self._agents, self._agents))
        pursuers = joined(
            common[:chase],
            _of(moving, self._pursuers, self._prey),
            sign[:chase],
            same(parts["comm"][:, 0], chase),
        )
        seen = {
            "leadadversary": pursuers[:1],
            "agent": joined(common[chase:], sign[chase:], _of(moving, self._prey, self._prey)),
        }
        return seen | ({"adversary": pursuers[1:]} if chase > 1 else {})

    def _visible(self, inside: Tensor) -> Tensor:
        """Who sees whom, [seer, seen, B], from who stands in which forest, [n, forests, B]."""
        together = (inside.unsqueeze(1) & inside.unsqueeze(0)).any(2)
        hidden = inside.any(1)
        visible = together | ~(hidden.unsqueeze(1) | hidden.unsqueeze(0))
        leader = torch.zeros(len(inside), 1, 1, dtype=torch.bool, device=inside.device)
        leader[0] = True
        return visible | leader

    def pay(self, now: Now) -> Pay:
        distance, food = now.between("hunt"), now.between("food")
        touch = (distance < _PURSUER + _PREY).to(distance.dtype)
        caught = touch.sum(0)
        touches = caught.sum(0)
        meals = (food < _PREY + _FOOD).to(food.dtype).sum(1)
        out = fence(now.part("moving")[:, self._prey.start :])
        prey = 2 * meals - 5 * caught - 2 * out - 0.05 * food.amin(1)
        pursuers = 5 * touches - 0.1 * distance.amin(1)
        return Pay(torch.cat((pursuers, prey)), lambda _: {"touches": touches})

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return {}


def _of(value: Tensor, seers: range, seen: range) -> Tensor:
    """What each of the seers has of the others among the seen: [n, 2, n, B] to [seers, m, 2, B]."""
    targets = torch.tensor(others(seers, seen)).reshape(len(seers), -1)
    return value[torch.tensor(list(seers)).unsqueeze(1), :, targets]
