"""Football without its engine: what players see, what pays, what ends an episode, pictures, and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from footballplay import play, raw

from coterie import build, registry
from coterie.config import resolve
from coterie.envs.adapters import SCENARIOS
from coterie.envs.football import engine, sight
from coterie.envs.football.render import draw
from coterie.envs.football.rewards import Checkpoints, ball_value
from coterie.envs.make import make, spec_of
from coterie.envs.particle.scene import PALETTE
from coterie.errors import UserError
from coterie.types import Action

TASK = "football/academy_3_vs_1_with_keeper"
RECORDED = json.loads((Path(__file__).parent / "football.json").read_text(encoding="utf-8"))
"""Raw observations of the real engine, and what the package's own wrappers made of them: tests/football/record.py."""


def act(**choices: list[int]) -> dict[str, Action]:
    return {role: Action(torch.tensor(own)[None, :, None]) for role, own in choices.items()}


# ---------------------------------------------------------------------------------------------------------------- specs


@pytest.mark.parametrize(
    ("name", "left", "right", "limit"),
    [
        ("academy_empty_goal_close", 1, 1, 400),
        ("academy_empty_goal", 1, 1, 400),
        ("academy_run_to_score", 1, 5, 400),
        ("academy_run_to_score_with_keeper", 1, 5, 400),
        ("academy_single_goal_versus_lazy", 11, 11, 3000),
        ("academy_3_vs_1_with_keeper", 3, 1, 400),
        ("1_vs_1_easy", 1, 1, 500),
        ("3_vs_3_custom", 3, 3, 500),
        ("5_vs_5", 4, 4, 3000),
        ("11_vs_11_stochastic", 11, 11, 3000),
        ("test_example_multiagent", 3, 1, 100),
    ],
)
def test_every_task_is_known_without_the_engine(name: str, left: int, right: int, limit: int):
    assert name in SCENARIOS["football"]
    both = spec_of(f"football/{name}", {"sides": "both"})
    assert [(role.name, role.n, role.action.choices) for role in both.roles] == [
        ("left", left, (19,)),
        ("right", right, (19,)),
    ]
    assert [team.name for team in both.default_teams()] == ["left", "right"]
    assert both.episode_limit == limit
    assert spec_of(f"football/{name}").agents == tuple(f"left_{k}" for k in range(left))
    assert spec_of(f"football/{name}", {"sides": "right"}).agents == tuple(f"right_{k}" for k in range(right))


def test_all_eleven_tasks_are_listed_and_sides_and_players_can_be_chosen():
    assert len(SCENARIOS["football"]) == 11
    spec = spec_of("football/5_vs_5", {"sides": "both", "left_players": 2, "episode_limit": 7})
    assert ([role.n for role in spec.roles], spec.episode_limit) == ([2, 4], 7)
    assert spec_of(TASK).roles[0].observation_space.shape == (115,)
    assert spec_of(TASK, {"left_players": 4}).n == 4


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("football/5_vs_5", {"left_players": 5}, "env.left_players=5: expected at most 4"),
        ("football/5_vs_5", {"right_players": 2}, "env.right_players=2: env.sides=left leaves that side to the engine"),
        ("football/5_vs_5", {"sides": "none"}, "env.sides=none"),
        ("football/5_vs_5", {"rewards": ["goals"]}, "env.rewards"),
        ("football/5_vs_5", {"shapng": 1}, "did you mean 'env.shaping'"),
    ],
)
def test_keys_that_do_not_fit_are_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_without_the_package_one_line_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch):
    for module in ("gfootball", "gfootball.env", "gfootball.env.config"):
        monkeypatch.setitem(sys.modules, module, None)
    engine._package.cache_clear()
    for name in ("5_vs_5", "5_vs_6"):
        with pytest.raises(UserError) as error:
            make(f"football/{name}")
        assert "pip install --no-deps --no-build-isolation gfootball" in str(error.value)
        assert "\n" not in str(error.value)
    assert "did you mean 'football/5_vs_5'" in str(error.value)
    engine._package.cache_clear()


# ---------------------------------------------------------------------------------------------------------------- sight


@pytest.mark.parametrize("row", range(len(RECORDED)))
def test_players_see_what_the_package_s_own_wrapper_shows_them(row: int):
    record = RECORDED[row]
    for side, name in ((0, "left"), (1, "right")):
        seen = np.full((len(record[name]), sight.SIZE), np.nan, np.float32)
        sight.see(record["raw"], side, seen)
        np.testing.assert_array_equal(seen, np.array(record[name], np.float32))


def test_a_row_has_every_number_in_its_place():
    seen = np.full((3, 115), np.nan, np.float32)
    sight.see(raw(), 0, seen)
    assert seen[0, :8].tolist() == pytest.approx([-1, 0, 0.6, 0, 0.7, 0.2, 0.7, -0.2])
    assert (seen[0, 8:22] == -1).all()
    assert seen[0, 22:30].tolist() == pytest.approx([0, 0, 0.01, 0, 0, 0.02, 0, 0])
    assert seen[0, 44:49].tolist() == pytest.approx([1, 0, 0.75, 0, -1])
    assert seen[0, 66:71].tolist() == pytest.approx([0, 0, -0.01, 0.03, -1])
    assert seen[0, 88:94].tolist() == pytest.approx([0.62, -0.1, 0.11, 0.02, 0.01, -0.03])
    assert seen[0, 94:97].tolist() == [0, 1, 0]
    assert [row.nonzero()[0].tolist() for row in seen[:, 97:108]] == [[1], [2], [3]]
    assert seen[0, 108:].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_the_other_side_sees_the_field_turned_half_round():
    seen = np.full((1, 115), np.nan, np.float32)
    sight.see(raw(), 1, seen)
    assert seen[0, :5].tolist() == pytest.approx([-1, 0, -0.75, 0, -1])
    assert seen[0, 22:26].tolist() == pytest.approx([0, 0, 0.01, -0.03])
    assert seen[0, 44:50].tolist() == pytest.approx([1, 0, -0.6, 0, -0.7, -0.2])
    assert seen[0, 88:94].tolist() == pytest.approx([-0.62, 0.1, 0.11, -0.02, -0.01, -0.03])
    assert seen[0, 94:97].tolist() == [0, 0, 1]


def test_one_who_controls_nobody_is_nobody_and_a_ball_of_nobody_has_no_owner():
    seen = np.full((3, 115), np.nan, np.float32)
    dead = raw(left_agent_controlled_player=[-1, 2, -1], ball_owned_team=-1, ball_owned_player=-1, game_mode=4)
    sight.see(dead, 0, seen)
    assert seen[:, 97:108].sum(1).tolist() == [0, 1, 0]
    assert seen[0, 94:97].tolist() == [1, 0, 0]
    assert seen[0, 108:].tolist() == [0, 0, 0, 0, 1, 0, 0]


def test_the_state_marks_all_who_are_controlled_and_the_frames_left():
    state = np.full(sight.STATE, np.nan, np.float32)
    sight.overview(raw(steps_left=100), 400, state)
    assert state[97:108].nonzero()[0].tolist() == [1, 2, 3]
    assert state[115:126].nonzero()[0].tolist() == [1]
    assert state[126] == 0.25


# -------------------------------------------------------------------------------------------------------------- rewards


def test_checkpoints_are_the_package_s_own():
    """A recorded walk of the ball with the rewards that its wrapper gave."""
    for record in RECORDED:
        for side, name in ((0, "left"), (1, "right")):
            for walk in record["walks"][name]:
                own = Checkpoints(len(walk["active"]))
                own.collected = list(walk["before"])
                paid = own.step(walk["scored"], walk["owns"], walk["owner"], walk["active"], tuple(walk["ball"]))
                assert [0.1 * n for n in paid] == pytest.approx(walk["paid"], abs=1e-6), (side, walk)


@pytest.mark.parametrize(
    ("x", "y", "reached"),
    [(0.0, 0.0, 0), (0.011, 0.0, 1), (0.0099, 0.0, 0), (0.1, 0.0, 2), (0.55, 0.2, 6), (0.82, 0.0, 10), (1.0, 0.0, 10)],
)
def test_a_player_with_the_ball_collects_by_distance(x: float, y: float, reached: int):
    own = Checkpoints(2)
    assert own.step(False, True, 3, [3, 2], (x, y)) == [reached, 0]
    assert own.step(False, True, 3, [3, 2], (x, y)) == [0, 0]


def test_nobody_collects_without_the_ball_and_all_collect_the_rest_by_a_goal():
    own = Checkpoints(2)
    assert own.step(False, False, 3, [3, 2], (0.9, 0.0)) == [0, 0]
    assert own.step(False, True, 3, [3, 2], (0.5, 0.0)) == [6, 0]
    assert own.step(True, False, -1, [3, 2], (0.0, 0.0)) == [4, 10]
    own.reset()
    assert own.step(True, False, -1, [3, 2], (0.0, 0.0)) == [10, 10]


@pytest.mark.parametrize(
    ("x", "y", "value"),
    [(1, 0, 1), (0.8, 0.3, 0.5), (0.4, 0.4, 0.2), (0, 0.4, 0), (-0.4, -0.4, -0.2), (-0.8, 0.3, -0.5), (-1, 0, -1)],
)
def test_the_ball_lies_well_before_the_other_goal(x: float, y: float, value: float):
    assert ball_value(x, y) == pytest.approx(value)


# ------------------------------------------------------------------------------------------------------------- episodes


def test_a_goal_pays_each_side_once_and_ends_the_task(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, raw(), raw(), raw(score=[1, 0]))
    env = make(TASK, {"sides": "both"})
    env.reset()
    step, _ = env.step(act(left=[0, 0, 0], right=[0]))
    assert not step.group_reward.any()
    assert not step.metrics["won"].any()
    step, row = env.step(act(left=[0, 0, 0], right=[0]))
    assert step.group_reward.tolist() == [[1, -1]]
    assert not step.reward.any()
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (True, False)
    assert step.terminated.all()
    assert (float(step.metrics["goal_difference"]), float(step.metrics["won"])) == (1, 1)
    assert not row.acted.any()


def test_of_the_right_side_alone_everything_is_seen_from_there(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, raw(), raw(score=[1, 0]))
    env = make(TASK, {"sides": "right", "rewards": ["scoring", "checkpoints"]})
    env.reset()
    step, _ = env.step(act(right=[0]))
    assert step.group_reward.tolist() == [[-1]]
    assert float(step.metrics["goal_difference"]) == -1
    assert not step.reward.any()


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ({}, "truncated"),
        ({"score": [0, 1]}, "terminated"),
        ({"game_mode": 3}, "terminated"),
        ({"ball_owned_team": 1}, "terminated"),
        ({"ball_owned_team": -1}, "truncated"),
    ],
)
def test_the_last_frame_alone_is_a_cut_and_what_happens_in_it_an_end(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], ended: str
):
    play(monkeypatch, raw(), raw(), raw(**last))
    env = make(TASK)
    env.reset()
    env.step(act(left=[0, 0, 0]))
    step, _ = env.step(act(left=[0, 0, 0]))
    assert bool(step.episode_terminated) == (ended == "terminated")
    assert bool(step.episode_truncated) == (ended == "truncated")


def test_a_game_goes_on_after_a_goal_and_a_limit_of_one_s_own_cuts(monkeypatch: pytest.MonkeyPatch):
    goal = raw(score=[1, 0], game_mode=1, ball_owned_team=1)
    play(monkeypatch, *([raw()] + [goal] * 9))
    env = make("football/5_vs_5", {"episode_limit": 3, "left_players": 3})
    env.reset()
    ends = [env.step(act(left=[0, 0, 0]))[0] for _ in range(3)]
    assert [bool(step.episode_truncated) for step in ends] == [False, False, True]
    assert not any(bool(step.episode_terminated) for step in ends)
    assert [float(step.group_reward.sum()) for step in ends] == [1, 0, 0]


def test_the_right_side_s_directions_are_turned_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    made = play(monkeypatch, *([raw()] * 25))
    env = make(TASK, {"sides": "both"})
    env.reset()
    for choice in range(19):
        env.step(act(left=[choice, 0, 18], right=[choice]))
    names = [sight.CHOICES[told[3]] for told in made[-1].told]
    assert names[1:9] == ["right", "bottom_right", "bottom", "bottom_left", "left", "top_left", "top", "top_right"]
    assert [told[0] for told in made[-1].told] == list(range(19))
    assert names[:1] + names[9:] == [sight.CHOICES[0], *sight.CHOICES[9:]]


def test_checkpoints_pay_players_and_goals_their_side(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, raw(), raw(), raw(score=[1, 0]))
    env = make(TASK, {"rewards": ["scoring", "checkpoints"]})
    env.reset()
    step, _ = env.step(act(left=[0, 0, 0]))
    assert step.reward.tolist()[0] == pytest.approx([0.7, 0, 0])  # 0.393 from the goal, within 7 of the thresholds
    step, _ = env.step(act(left=[0, 0, 0]))
    assert step.reward.tolist()[0] == pytest.approx([0.3, 1, 1])
    assert step.group_reward.tolist() == [[1]]


def test_every_episode_has_a_seed_of_its_own_and_the_sides_take_turns(monkeypatch: pytest.MonkeyPatch):
    made = play(monkeypatch, raw(), raw())
    env = make(TASK, copies=2)
    for _ in range(2):
        env.reset(5)
        for _ in range(6):
            env.step({"left": Action(torch.zeros(2, 3, 1, dtype=torch.long))})
    first, second = ([core.begun[:4], core.begun[4:]] for core in made[-2:])
    assert first[0] == first[1]
    assert first != second
    assert len({seed for seed, _ in first[0]}) == 4
    assert np.diff([number for _, number in first[0]]).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("purpose", "paid"), [("train", 0.052), ("eval", 0.0), ("evaluate", 0.0), ("play", 0.0)])
def test_shaping_pays_while_training_and_never_else(monkeypatch: pytest.MonkeyPatch, purpose: str, paid: float):
    play(monkeypatch, raw(), raw(), raw())
    given = [f"env={TASK}", "algo=ippo", "env.shaping=0.1", "workers.count=0"]
    config = resolve(given).config
    env = build.environment(config, 1, purpose, torch.device("cpu"))
    env.reset()
    step, _ = env.step(act(left=[0, 0, 0]))
    assert step.reward.tolist()[0] == pytest.approx([paid] * 3)


def test_the_state_is_shown_where_an_algorithm_reads_it(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, raw(), raw(), raw())
    assert make(TASK).reset().state == {}
    assert make(TASK, with_state=True).reset().state["global"].shape == (1, 127)


# ------------------------------------------------------------------------------------------------------------- pictures


def test_a_picture_shows_players_where_they_stand_and_who_is_controlled():
    picture = draw(raw(), "3 vs 1", 640)
    assert picture.shape[1:] == (640, 3)
    assert picture.dtype == np.uint8
    top = picture.shape[0] - round(640 * 0.52 / 1.1)

    def colours(x: float, y: float, reach: int) -> np.ndarray:
        column, row = 320 + x * 640 / 2.2, top + (picture.shape[0] - top) / 2 + y * 640 / 2.2
        return picture[round(row) - reach : round(row) + reach, round(column) - reach : round(column) + reach]

    def near(part: np.ndarray, color: str) -> bool:
        return bool((np.abs(part.astype(int) - PALETTE[color]).sum(-1) < 60).any())

    assert near(colours(0.7, 0.2, 10), "blue")
    assert near(colours(1.0, 0.0, 10), "red")
    assert near(colours(0.7, 0.2, 10), "yellow")
    assert not near(colours(-1.0, 0.0, 10), "yellow")
    assert not near(colours(-0.5, 0.2, 10), "blue")
    assert not np.array_equal(picture, draw(raw(ball=[0.1, 0.1, 0.0]), "3 vs 1", 640))


def test_an_environment_draws_its_match(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, raw(), raw())
    env = make(TASK)
    env.reset()
    assert env.render(0, 320).shape[1] == 320
    assert registry.environment(TASK).name == TASK
