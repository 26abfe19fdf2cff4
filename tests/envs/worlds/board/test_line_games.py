"""Connect four and tic-tac-toe: turns, lines, rewards, symmetry of the players, rendering, and the script."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.commands.evaluate import evaluate_baseline
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs.make import make
from coterie.envs.worlds.board.line_games import (
    ConnectFour,
    ConnectFourConfig,
    LineGame,
    Rules,
    TicTacToe,
    TicTacToeConfig,
    win_or_block,
)
from coterie.envs.worlds.world import State, WorldEnv


def game(name: str, **settings: Any) -> LineGame:
    env = make(f"board/{name}", settings | {"first": settings.get("first", "always")}, 1, with_state=True)
    assert isinstance(env, WorldEnv)
    assert isinstance(env.world, ConnectFour | TicTacToe)
    return env.world


def begun(world: LineGame, num_envs: int = 1) -> State:
    return world.reset(torch.zeros(num_envs, world.reset_noise_size))


def played(world: LineGame, *moves: int) -> tuple[State, Any]:
    """Plays the moves alternately; returns the state and the last outcome."""
    state, outcome = begun(world), None
    wait = world.rules.moves
    for move in moves:
        turn = int(state["turn"][0])
        chosen = [move if i == turn else wait for i in range(2)]
        names = [role.name for role in world.spec.roles]
        state, outcome = world.step(
            state, {name: Action(torch.tensor([[[x]]])) for name, x in zip(names, chosen, strict=True)}, None
        )
    return state, outcome


def metrics_of(outcome: Any) -> dict[str, float]:
    return {name: float(x) for name, x in outcome.metrics().items()}


def test_a_seven_by_six_board_has_69_lines_of_four():
    assert Rules(ConnectFourConfig.model_validate({}), falls=True).lines.tensor.shape == (42, 69)
    squares = Rules(TicTacToeConfig.model_validate({}), falls=False).lines.tensor.sum(1)
    assert squares.tolist() == [3, 2, 3, 2, 4, 2, 3, 2, 3]


def test_stones_fall_to_the_lowest_free_square():
    state, _ = played(game("connect_four"), 3, 3, 3, 0)
    red, yellow = state["stones"][0].view(2, 6, 7)
    assert red.nonzero().tolist() == [[0, 3], [2, 3]]
    assert yellow.nonzero().tolist() == [[0, 0], [1, 3]]
    assert state["last"].tolist() == [0]


def test_waiting_player_observes_the_board_and_can_only_wait():
    world = game("connect_four")
    view = world.observe(played(world, 2)[0])
    assert view.action_mask["red"][0, 0].tolist() == [False] * 7 + [True]
    assert view.action_mask["yellow"][0, 0].tolist() == [True] * 7 + [False]
    assert (view.obs["red"][0, 0, -1], view.obs["yellow"][0, 0, -1]) == (0, 1)
    own, other = view.obs["yellow"][0, 0, :42], view.obs["yellow"][0, 0, 42:84]
    assert own.sum() == 0
    assert other.nonzero().tolist() == [[2]]
    assert torch.equal(view.obs["red"][0, 0, :42], other)


def test_a_full_column_is_masked():
    world = game("connect_four")
    view = world.observe(played(world, 0, 0, 0, 0, 0, 0)[0])
    assert view.action_mask["red"][0, 0].tolist() == [False] + [True] * 6 + [False]


@pytest.mark.parametrize(
    "moves",
    [
        (0, 0, 1, 1, 2, 2, 3),  # a row
        (0, 1, 0, 1, 0, 1, 0),  # a column
        (0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3),  # a diagonal to the right
        (6, 5, 5, 4, 4, 3, 4, 3, 3, 0, 3),  # a diagonal to the left
    ],
)
def test_four_in_a_line_win_and_three_do_not(moves: tuple[int, ...]):
    world = game("connect_four")
    _, before = played(world, *moves[:-2])
    assert not bool(before.terminated)
    assert before.reward.tolist() == [[0, 0]]
    _, outcome = played(world, *moves)
    assert bool(outcome.terminated)
    assert outcome.reward.tolist() == [[1, -1]]
    assert metrics_of(outcome) == {"red_won": 1, "yellow_won": 0}


def test_lines_do_not_wrap_around_the_edge():
    _, outcome = played(game("connect_four"), 4, 4, 5, 5, 6, 6, 0, 1)  # (0, 4), (0, 5), (0, 6), then (0, 0)
    assert not bool(outcome.terminated)


def test_a_full_board_is_a_draw():
    world = game("tictactoe")
    state, outcome = played(world, 0, 1, 2, 4, 3, 5, 7, 6, 8)
    assert bool(outcome.terminated)
    assert outcome.reward.tolist() == [[0, 0]]
    assert metrics_of(outcome) == {"cross_won": 0, "nought_won": 0}
    assert world.observe(state).action_mask["nought"].any(-1).all()  # the closing row has something open, too


def test_first_player_is_random_or_fixed():
    lot = make("board/connect_four", None, 400, seed=1)
    began = lot.reset(0).obs["red"][:, 0, -1].mean()
    assert 0.4 < began < 0.6
    assert lot.spec.symmetric
    always = make("board/connect_four", {"first": "always"}, 50)
    assert always.reset(0).obs["red"][:, 0, -1].all()
    assert not always.spec.symmetric


def test_swapping_players_swaps_observations_and_rewards():
    world = game("connect_four", first="either")
    draws = torch.Generator().manual_seed(0)
    one = world.reset(torch.rand(32, 1, generator=draws))
    other = {"stones": one["stones"].flip(1), "turn": 1 - one["turn"], "last": one["last"]}
    won = 0.0
    for _ in range(20):
        seen, theirs = world.observe(one), world.observe(other)
        for part, like in ((seen.obs, theirs.obs), (seen.action_mask, theirs.action_mask), (seen.state, theirs.state)):
            assert torch.equal(part["red"], like["yellow"])
            assert torch.equal(part["yellow"], like["red"])
        red, yellow = (
            Action(torch.multinomial(seen.action_mask[side][:, 0].float(), 1, generator=draws).unsqueeze(1))
            for side in ("red", "yellow")
        )
        one, paid = world.step(one, {"red": red, "yellow": yellow}, None)
        other, earned = world.step(other, {"red": yellow, "yellow": red}, None)
        assert torch.equal(paid.reward, earned.reward.flip(1))
        assert torch.equal(paid.reward.sum(1), torch.zeros(32))
        won += float(paid.reward.abs().sum())
    assert won > 0


# -------------------------------------------------------------------------------------------------------- the script


def chosen(world: LineGame, *moves: int) -> int:
    """Move of `win_or_block` after the given moves."""
    state, _ = played(world, *moves)
    turn, view = int(state["turn"][0]), world.observe(state)
    mask = view.action_mask[world.spec.roles[turn].name][:, 0]
    return int(win_or_block(world.rules, state["stones"][:, turn], state["stones"][:, 1 - turn], mask))


def test_script_starts_in_the_middle_and_prefers_winning_to_blocking():
    world = game("connect_four")
    assert chosen(world) == 3
    assert chosen(world, 0, 6, 0, 6, 0, 6) == 0  # both have three in a column
    assert chosen(world, 0, 6, 0, 6, 0) == 0  # the other has three in a column
    assert chosen(world, 0, 0, 1, 1, 2) == 3  # the other has three in a row, one end at the wall


def test_script_does_not_play_below_a_winning_square_of_the_opponent():
    world = game("connect_four")
    own, other = torch.zeros(1, 42), torch.zeros(1, 42)
    other[0, [1, 7, 8, 9]] = 1  # a row of three on the second row; a stone at the foot of column 3 would let it end
    own[0, [0, 2]] = 1
    mask = torch.tensor([[False, False, False, True, False, False, True, False]])
    assert int(win_or_block(world.rules, own, other, mask)) == 6
    other[0, 9] = 0  # without it nothing wins there, and the middle is better
    assert int(win_or_block(world.rules, own, other, mask)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side", "least"), [("connect_four", "red", 0.97), ("tictactoe", "cross", 0.8)])
def test_the_script_beats_random_play(name: str, side: str, least: float):
    words = [f"env=board/{name}", "algo=random", "threads=1", "device=cpu", "progress=off"]
    found = evaluate_baseline(resolve([*words, f"teams.{side}.algo=scripted"]), 200)["metrics"]
    assert found[f"{side}_won"] > least
    assert 0.3 < evaluate_baseline(resolve(words), 200)["metrics"][f"{side}_won"] < 0.65


# ------------------------------------------------------------------------------------------------ settings, pictures


def test_gomoku_is_configurable_and_a_line_that_does_not_fit_is_an_error():
    assert make("board/tictactoe", {"rows": 15, "columns": 15, "connect": 5}).spec.roles[0].action.choices == (226,)
    with pytest.raises(UserError, match="connect=5 on a 3 x 3 board: no such line fits"):
        make("board/tictactoe", {"connect": 5})


@pytest.mark.parametrize("name", ["connect_four", "tictactoe"])
def test_rendering_shows_stones_and_the_winning_line(name: str):
    world = game(name)
    empty = world.render(begun(world), 240)
    moves = (0, 0, 1, 1, 2, 2, 3) if name == "connect_four" else (0, 3, 1, 4, 2)
    won = world.render(played(world, *moves)[0], 240)
    before = world.render(played(world, *moves[:-1])[0], 240)
    assert empty.shape == won.shape == (240, 240, 3)
    assert (empty != won).any()
    changed = (before != won).any(-1)
    assert changed[120:].sum() > changed[120:].size * 0.01
    assert world.render(begun(world), 40).shape == (40, 40, 3)
