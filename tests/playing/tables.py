"""A tiny world to sit at, whose every number is known, and games in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.envs.world import Outcome, State, View, World, WorldEnv
from coterie.playing.game import Cast, Game
from coterie.playing.seats import named
from coterie.policy import Policy, RandomPolicy
from coterie.types import Action, EnvSpec, RoleSpec

NAMES = ("stay", "left", "right")


class Corridor(World):
    """Two walkers on squares 0 to 4, an agent of two teams each; walker i is paid its square, and the first's team 0.5.

    Steps into walls are masked. Walker b dies on square 4. Pictures are the squares: red for a, green for b. With
    `turns`, a can only stay in every row whose number 3 does not divide.
    """

    restart_noise = 0

    def __init__(
        self, limit: int = 6, mortal: bool = False, numbers: bool = False, pause: bool = True, turns: bool = False
    ):
        see = spaces.Box(0, 4, (2,))
        names = NAMES if pause else ("back", "left", "right")
        roles = (
            RoleSpec("a", "a", ("a_0",), see, spaces.Discrete(3), (names,)),
            RoleSpec("b", "b", ("b_0",), see, spaces.Box(-2.0, 4.0, (1,)))
            if numbers
            else RoleSpec("b", "b", ("b_0",), see, spaces.Discrete(3), (names,)),
        )
        self._mortal, self._numbers, self._turns = mortal, numbers, turns
        self.spec = EnvSpec(
            "corridor", roles, {}, mortal=mortal, paid_by_group=True, metrics=("far",), episode_limit=limit
        )

    def restart(self, noise: Tensor) -> State:
        place = torch.tensor([[1.0, 3.0]]).expand(len(noise), 2).clone()
        return {"place": place, "last": torch.zeros(len(noise), 1), "row": torch.zeros(len(noise))}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        ways = torch.tensor([0.0, -1.0, 1.0])
        moves = [ways[_discrete(action["a"])[:, 0, 0]]]
        last = state["last"]
        if self._numbers:
            continuous = action["b"].continuous
            assert continuous is not None
            last = continuous[:, 0]
            moves.append(torch.zeros(len(last)))
        else:
            moves.append(ways[_discrete(action["b"])[:, 0, 0]])
        place = (state["place"] + torch.stack(moves, 1)).clamp(0, 4)
        paid = torch.tensor([[0.5, 0.0]]).expand(len(place), 2)
        dies = torch.stack([torch.zeros(len(place), dtype=torch.bool), place[:, 1] == 4], 1) if self._mortal else None
        outcome = Outcome(place.clone(), paid, agent_ended=dies, metrics={"far": place[:, 0]})
        return {"place": place, "last": last, "row": state["row"] + 1}, outcome

    def view(self, state: State) -> View:
        place = state["place"]
        mask = torch.stack([torch.ones_like(place, dtype=torch.bool), place > 0, place < 4], -1)
        if self._turns:
            mask[:, 0, 1:] &= (state["row"] % 3 == 0)[:, None]
        masks = {"a": mask[:, :1]} | ({} if self._numbers else {"b": mask[:, 1:]})
        alive = torch.stack([torch.ones(len(place), dtype=torch.bool), place[:, 1] < 4], 1) if self._mortal else None
        return View({"a": place.unsqueeze(1), "b": place.unsqueeze(1)}, masks, alive=alive)

    def render(self, state: State, size: int) -> np.ndarray:
        picture = np.zeros((size // 5, size, 3), np.uint8)
        for k, x in enumerate(state["place"][0].int().tolist()):
            picture[:, x * (size // 5) : (x + 1) * (size // 5), k] = 255
        return picture


def _discrete(action: Action) -> Tensor:
    assert action.discrete is not None
    return action.discrete


def table(human: list[str], policies: dict[str, Policy] | None = None, **world: Any) -> Game:
    """A game in the corridor; without policies the others act at random."""
    env = WorldEnv(Corridor(**world), 1, 0)
    teams = {team.name: team for team in env.spec.default_teams()}
    cast = Cast(policies or {name: RandomPolicy(team, env.device) for name, team in teams.items()},
                dict.fromkeys(teams, "sample"), {}, dict.fromkeys(teams, "random"))  # fmt: skip
    return Game(env, cast, named(human, env.spec, teams), 0, 50)
