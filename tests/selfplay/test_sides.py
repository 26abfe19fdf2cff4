"""A team that plays either side: what it sees, does and earns is that side's."""

from __future__ import annotations

import torch

from coterie.envs.make import make
from coterie.envs.matrix.opponents import RockPaperScissorsConfig
from coterie.envs.sides import Sides
from coterie.types import Action

CPU = torch.device("cpu")


def choices(row: int, column: int) -> dict[str, Action]:
    return {name: Action(torch.full((4, 1, 1), choice)) for name, choice in (("row", row), ("column", column))}


def test_rewards_come_from_the_side_that_is_played():
    """`row` plays rock against scissors and wins on either side; the game itself is exchanged in odd copies."""
    env = Sides(make("matrix/rock_paper_scissors", RockPaperScissorsConfig(), 4, 0, CPU, False, None))
    env.reset()
    step, _ = env.step(choices(0, 2))
    assert step.reward.tolist() == [[1, -1]] * 4
    env.step(choices(1, 2))  # from the closing rows
    step, _ = env.step(choices(1, 2))
    assert step.reward.tolist() == [[-1, 1]] * 4


def test_only_odd_copies_are_exchanged():
    env = Sides(make("matrix/rock_paper_scissors", RockPaperScissorsConfig(), 4, 0, CPU, False, None))
    told = []
    inner_step = env._env.step
    env._env.step = lambda action: told.append(action) or inner_step(action)  # type: ignore[method-assign]
    env.reset()
    env.step(choices(0, 2))
    assert told[0]["row"].discrete.flatten().tolist() == [0, 2, 0, 2]
    assert told[0]["column"].discrete.flatten().tolist() == [2, 0, 2, 0]
