"""A small world with known values, and games in it, for the tests of playing by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.world import Observation, Outcome, State, World, WorldEnv
from coterie.playing.game import Game, Players
from coterie.playing.seats import seats_for
from coterie.policies.base import Policy, RandomPolicy

NAMES = ("stay", "left", "right")


class Corridor(World):
    """Two agents of different teams walk on squares 0 to 4. Rewards: the agent's square, and 0.5 for the first group.

    Steps into walls are masked. Agent b dead on square 4. Images show the squares: red for a, green for b. If
    `turn_based`, agent a can only stay at timesteps that are not multiples of 3.
    """

    reset_noise_size = 0

    def __init__(
        self,
        limit: int = 6,
        agents_can_die: bool = False,
        numbers: bool = False,
        pause: bool = True,
        turn_based: bool = False,
    ):
        observation = spaces.Box(0, 4, (2,))
        names = NAMES if pause else ("back", "left", "right")
        roles = (
            RoleSpec("a", "a", ("a_0",), observation, spaces.Discrete(3), (names,)),
            RoleSpec("b", "b", ("b_0",), observation, spaces.Box(-2.0, 4.0, (1,)))
            if numbers
            else RoleSpec("b", "b", ("b_0",), observation, spaces.Discrete(3), (names,)),
        )
        self._agents_can_die, self._numbers, self._turn_based = agents_can_die, numbers, turn_based
        self.last_continuous = torch.zeros(1)
        """Continuous actions of agent b in the last step [B], in [-1, 1]."""
        self.spec = EnvSpec(
            "corridor",
            roles,
            {},
            agents_can_die=agents_can_die,
            has_group_reward=True,
            metrics=("position",),
            episode_limit=limit,
        )

    def reset(self, noise: Tensor) -> State:
        place = torch.tensor([[1.0, 3.0]]).expand(len(noise), 2).clone()
        return {"place": place, "last": torch.zeros(len(noise), 1), "timestep": torch.zeros(len(noise))}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        moves_of = torch.tensor([0.0, -1.0, 1.0])
        moves = [moves_of[_discrete(action["a"])[:, 0, 0]]]
        last = state["last"]
        if self._numbers:
            continuous = action["b"].continuous
            assert continuous is not None
            last = self.last_continuous = continuous[:, 0]
            moves.append(torch.zeros(len(last)))
        else:
            moves.append(moves_of[_discrete(action["b"])[:, 0, 0]])
        place = (state["place"] + torch.stack(moves, 1)).clamp(0, 4)
        group_reward = torch.tensor([[0.5, 0.0]]).expand(len(place), 2)
        dead = (
            torch.stack([torch.zeros(len(place), dtype=torch.bool), place[:, 1] == 4], 1)
            if self._agents_can_die
            else None
        )
        outcome = Outcome(
            place.clone(),
            group_reward,
            agent_terminated=dead,
            metrics={"position": place[:, 0]},
        )
        return {"place": place, "last": last, "timestep": state["timestep"] + 1}, outcome

    def observe(self, state: State) -> Observation:
        place = state["place"]
        mask = torch.stack([torch.ones_like(place, dtype=torch.bool), place > 0, place < 4], -1)
        if self._turn_based:
            mask[:, 0, 1:] &= (state["timestep"] % 3 == 0)[:, None]
        masks = {"a": mask[:, :1]} | ({} if self._numbers else {"b": mask[:, 1:]})
        alive = (
            torch.stack([torch.ones(len(place), dtype=torch.bool), place[:, 1] < 4], 1)
            if self._agents_can_die
            else None
        )
        return Observation(
            {"a": place.unsqueeze(1), "b": place.unsqueeze(1)}, masks, alive=alive if self._agents_can_die else None
        )

    def render(self, state: State, size: int) -> np.ndarray:
        image = np.zeros((size // 5, size, 3), np.uint8)
        for k, x in enumerate(state["place"][0].int().tolist()):
            image[:, x * (size // 5) : (x + 1) * (size // 5), k] = 255
        return image


def _discrete(action: Action) -> Tensor:
    assert action.discrete is not None
    return action.discrete


def table(human: list[str], policies: dict[str, Policy] | None = None, **world: Any) -> Game:
    """A game in the corridor; by default agents without a player act at random."""
    env = WorldEnv(Corridor(**world), 1, 0)
    teams = {team.name: team for team in env.spec.default_teams()}
    players = Players(
        policies or {name: RandomPolicy(team, env.device) for name, team in teams.items()},
        modes=dict.fromkeys(teams, "sample"),
        algos=dict.fromkeys(teams, "random"),
    )
    return Game(env, players, seats_for(human, env.spec, teams), seed=0, size=50)
