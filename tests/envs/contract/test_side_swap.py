"""A team that plays either side observes, acts and is rewarded as that side."""

from __future__ import annotations

from typing import Any

import torch

from coterie.core.types import Action
from coterie.envs.contract.side_swap import SideSwapEnv
from coterie.envs.make import make
from coterie.envs.worlds.matrix.games import RockPaperScissorsConfig

CPU = torch.device("cpu")


def choices(row: int, column: int) -> dict[str, Action]:
    return {name: Action(torch.full((4, 1, 1), choice)) for name, choice in (("row", row), ("column", column))}


def test_rewards_are_those_of_the_side_that_is_played():
    """The row player wins with rock against scissors on either side; sides are swapped in odd environments."""
    env = SideSwapEnv(make("matrix/rock_paper_scissors", RockPaperScissorsConfig(), 4, device=CPU))
    env.reset()
    step, _ = env.step(choices(0, 2))
    assert step.reward.tolist() == [[1, -1]] * 4
    env.step(choices(1, 2))  # resets
    step, _ = env.step(choices(1, 2))
    assert step.reward.tolist() == [[-1, 1]] * 4


def test_sides_are_swapped_in_odd_environments_only():
    inner: Any = make("matrix/rock_paper_scissors", RockPaperScissorsConfig(), 4, device=CPU)
    received, inner_step = [], inner.step
    inner.step = lambda action: received.append(action) or inner_step(action)
    env = SideSwapEnv(inner)
    env.reset()
    env.step(choices(0, 2))
    assert received[0]["row"].discrete.flatten().tolist() == [0, 2, 0, 2]
    assert received[0]["column"].discrete.flatten().tolist() == [2, 0, 2, 0]
