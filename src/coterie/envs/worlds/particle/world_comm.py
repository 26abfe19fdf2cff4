"""simple_world_comm: pursuit with food and forests to hide in. Rules: mpe2 1.1 `simple_world_comm_v3`."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.envs.worlds.particle.observations import (
    Neighbors,
    body_indices,
    concat_features,
    others,
    own_features,
    repeat_for,
)
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.tag import boundary_penalty
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld

_SYMBOLS = 4
_PURSUER, _PREY, _FOOD, _FOREST = 0.075, 0.045, 0.03, 0.3


class SimpleWorldCommConfig(ParticleConfig):
    """Settings of particle/simple_world_comm."""

    good: int = Field(2, ge=1, le=64)
    """Number of prey."""
    adversaries: int = Field(4, ge=1, le=64)
    """Number of pursuers, including their leader."""
    obstacles: int = Field(1, ge=0, le=64)
    """Number of obstacles."""
    food: int = Field(2, ge=1, le=64)
    """Number of food sources."""
    forests: int = Field(2, ge=0, le=64)
    """Number of forests."""


@final
class SimpleWorldComm(ParticleWorld):
    """Pursuers with a leader chase prey among food and forests.

    Every pursuer receives 5 for each contact between any pursuer and prey, minus 0.1 times its distance to the nearest
    prey. Prey lose 5 for each of their contacts, twice the penalty outside of the arena, and 0.05 times the distance to
    the nearest food; they receive 2 for each food source they touch.

    Agents in a forest are visible only from within the same forest and cannot see out. The leader sees all agents.
    Features of invisible agents are zero. Observation: own velocity and position, offsets to obstacles, food and
    forests, offsets to other agents, velocities of other prey, and one feature per forest, 1 inside and -1 outside.
    Pursuers also observe the leader's message. Metric: `touches`, the number of contacts at the last step.
    """

    Config = SimpleWorldCommConfig

    def __init__(self, config: SimpleWorldCommConfig, with_state: bool = False):
        self.config = config
        pursuers, agents = config.adversaries, config.adversaries + config.good
        self._pursuers, self._prey, self._agents = range(pursuers), range(pursuers, agents), range(agents)
        first_food = agents + config.obstacles
        first_forest = first_food + config.food
        self._landmarks = range(agents, first_forest + config.forests)
        self._food = range(first_food, first_forest)
        self._forests = range(first_forest, first_forest + config.forests)
        pursuer = {"size": _PURSUER, "thrust": 3.0, "max_speed": 1.0, "moves": True, "collides": True, "kind": "agent"}
        prey = {**pursuer, "size": _PREY, "thrust": 4.0, "max_speed": 1.3}
        scenario = ScenarioSpec(
            name="simple_world_comm",
            bodies=[
                Body("leadadversary_0", color="orange", **pursuer),
                *(Body(f"adversary_{i}", color="red", **pursuer) for i in range(pursuers - 1)),
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
                *([Role("adversary", "adversary", tuple(self._pursuers[1:]))] if pursuers > 1 else []),
                Role("agent", "agent", tuple(self._prey)),
            ],
            measured_pairs={"catch": (self._pursuers, self._prey), "food": (self._prey, self._food)},
            metrics=("touches",),
            linear_observations=False,
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {
            "moving": noise.uniform(-1, 1, 2, len(self._agents)),
            "rest": noise.uniform(-0.9, 0.9, 2, len(self._landmarks)),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        vel, n, pursuers = parts["vel"], len(self._agents), len(self._pursuers)
        landmarks = Neighbors(pos, self._agents, [self._landmarks] * n).offset
        forests = landmarks[:, len(self._landmarks) - len(self._forests) :]
        size = constant(tuple(body.size for body in self.scenario.bodies[:n]), pos.device, pos.dtype).view(-1, 1, 1)
        inside = torch.hypot(forests[:, :, 0], forests[:, :, 1]) < _FOREST + size
        visible = self._visible(inside).to(pos.dtype).unsqueeze(1)
        # Offsets and velocities of all agents for every observer, [n, 2, n, B], zero for invisible agents.
        offset = (pos[:, :n].unsqueeze(1) - pos[:, :n].unsqueeze(2)).transpose(0, 1) * visible
        moving = vel.unsqueeze(0) * visible
        sign = 2 * inside.to(pos.dtype) - 1
        common = concat_features(
            own_features(vel, self._agents),
            own_features(pos, self._agents),
            landmarks,
            _of_others(offset, self._agents, self._agents),
        )
        pursuer_obs = concat_features(
            common[:pursuers],
            _of_others(moving, self._pursuers, self._prey),
            sign[:pursuers],
            repeat_for(parts["comm"][:, 0], pursuers),
        )
        prey_velocities = _of_others(moving, self._prey, self._prey)
        obs = {
            "leadadversary": pursuer_obs[:1],
            "agent": concat_features(common[pursuers:], sign[pursuers:], prey_velocities),
        }
        return obs | ({"adversary": pursuer_obs[1:]} if pursuers > 1 else {})

    def _visible(self, inside: Tensor) -> Tensor:
        """Returns which agents see which, [observer, observed, B], given the forests they are in, [n, forests, B]."""
        together = (inside.unsqueeze(1) & inside.unsqueeze(0)).any(2)
        hidden = inside.any(1)
        visible = together | ~(hidden.unsqueeze(1) | hidden.unsqueeze(0))
        leader = torch.zeros(len(inside), 1, 1, dtype=torch.bool, device=inside.device)
        leader[0] = True
        return visible | leader

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        distance, food = transition.distance("catch"), transition.distance("food")
        touches = (distance < _PURSUER + _PREY).to(distance.dtype).sum(0)
        total = touches.sum(0)
        meals = (food < _PREY + _FOOD).to(food.dtype).sum(1)
        penalty = boundary_penalty(transition.part("moving")[:, self._prey.start :])
        prey = 2 * meals - 5 * touches - 2 * penalty - 0.05 * food.amin(1)
        pursuers = 5 * total - 0.1 * distance.amin(1)
        return ScenarioOutcome(torch.cat((pursuers, prey)), lambda _: {"touches": total})

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}


def _of_others(value: Tensor, observers: range, observed: range) -> Tensor:
    """Gathers features of the others for every observer: [n, 2, n, B] to [observers, m, 2, B]."""
    targets = body_indices(tuple(map(tuple, others(observers, observed))), value.device).reshape(len(observers), -1)
    return value[body_indices(tuple(observers), value.device).unsqueeze(1), :, targets]
