"""Football without its engine: observations, rewards, ends of episodes, images, errors."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch

from coterie.assembly.environment import make_environment
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs.external import football
from coterie.envs.external import football_match as match
from coterie.envs.external.football_match import Checkpoints, ball_value, draw
from coterie.envs.make import make, spec_of
from coterie.envs.registry import EXTERNAL_SCENARIOS
from coterie.envs.worlds.drawing import PALETTE
from footballplay import play, raw
from places import HELPERS

TASK = "football/academy_3_vs_1_with_keeper"
RECORDED = json.loads((HELPERS / "football.json").read_text(encoding="utf-8"))
"""Raw observations of the real engine and the outputs of the package's wrappers; see helpers/football_record.py."""


def act(**choices: list[int]) -> dict[str, Action]:
    return {role: Action(torch.tensor(own)[None, :, None]) for role, own in choices.items()}


# ---------------------------------------------------------------------------------------------------------------- specs


@pytest.mark.parametrize(
    ("name", "left", "right", "limit"),
    [
        ("academy_empty_goal_close", 1, 1, 400),
        ("academy_run_to_score_with_keeper", 1, 5, 400),
        ("academy_single_goal_versus_lazy", 11, 11, 3000),
        ("3_vs_3_custom", 3, 3, 500),
        ("5_vs_5", 4, 4, 3000),
        ("test_example_multiagent", 3, 1, 100),
    ],
)
def test_task_specs_are_known_without_the_engine(name: str, left: int, right: int, limit: int):
    assert name in EXTERNAL_SCENARIOS["football"]
    both = spec_of(f"football/{name}", {"sides": "both"})
    found = [(role.name, role.n, role.action.choices) for role in both.roles]
    assert found == [("left", left, (19,)), ("right", right, (19,))]
    assert [team.name for team in both.default_teams()] == ["left", "right"]
    assert both.episode_limit == limit
    assert spec_of(f"football/{name}").agents == tuple(f"left_{k}" for k in range(left))
    assert spec_of(f"football/{name}", {"sides": "right"}).agents == tuple(f"right_{k}" for k in range(right))


def test_all_eleven_tasks_are_listed_and_sides_and_players_can_be_configured():
    assert len(EXTERNAL_SCENARIOS["football"]) == 11
    spec = spec_of("football/5_vs_5", {"sides": "both", "left_players": 2, "episode_limit": 7})
    assert ([role.n for role in spec.roles], spec.episode_limit) == ([2, 4], 7)
    assert spec_of(TASK).roles[0].observation_space.shape == (115,)
    assert spec_of(TASK, {"left_players": 4}).n == 4


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("football/5_vs_5", {"left_players": 5}, "env.left_players=5: expected at most 4"),
        ("football/5_vs_5", {"right_players": 2}, "env.right_players=2: the engine plays that side (env.sides=left)"),
        ("football/5_vs_5", {"sides": "none"}, "env.sides=none"),
        ("football/5_vs_5", {"rewards": ["goals"]}, "env.rewards"),
        ("football/5_vs_5", {"shapng": 1}, "Did you mean 'env.shaping'"),
    ],
)
def test_invalid_settings_raise_one_line_errors(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_package_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch):
    for module in ("gfootball", "gfootball.env", "gfootball.env.config"):
        monkeypatch.setitem(sys.modules, module, None)
    football.load_package.cache_clear()
    for name in ("5_vs_5", "5_vs_6"):
        with pytest.raises(UserError) as error:
            make(f"football/{name}")
        assert "pip install --no-deps --no-build-isolation gfootball" in str(error.value)
        assert "\n" not in str(error.value)
    assert "Did you mean 'football/5_vs_5'" in str(error.value)
    football.load_package.cache_clear()


# --------------------------------------------------------------------------------------------------------- observations


@pytest.mark.parametrize("index", range(len(RECORDED)))
def test_observations_equal_those_of_the_package_s_wrapper(index: int):
    record = RECORDED[index]
    for side, name in ((0, "left"), (1, "right")):
        seen = np.full((len(record[name]), match.OBS_SIZE), np.nan, np.float32)
        match.write_observations(record["raw"], side, seen)
        np.testing.assert_array_equal(seen, np.array(record[name], np.float32))


def test_observations_have_the_documented_layout():
    seen = np.full((3, 115), np.nan, np.float32)
    match.write_observations(raw(), 0, seen)
    assert seen[0, :8].tolist() == pytest.approx([-1, 0, 0.6, 0, 0.7, 0.2, 0.7, -0.2])
    assert (seen[0, 8:22] == -1).all()
    assert seen[0, 22:30].tolist() == pytest.approx([0, 0, 0.01, 0, 0, 0.02, 0, 0])
    assert seen[0, 44:49].tolist() == pytest.approx([1, 0, 0.75, 0, -1])
    assert seen[0, 66:71].tolist() == pytest.approx([0, 0, -0.01, 0.03, -1])
    assert seen[0, 88:94].tolist() == pytest.approx([0.62, -0.1, 0.11, 0.02, 0.01, -0.03])
    assert seen[0, 94:97].tolist() == [0, 1, 0]
    assert [row.nonzero()[0].tolist() for row in seen[:, 97:108]] == [[1], [2], [3]]
    assert seen[0, 108:].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_the_state_contains_controlled_players_and_remaining_frames():
    state = np.full(match.STATE_SIZE, np.nan, np.float32)
    match.write_state(raw(steps_left=100), 400, state)
    assert state[97:108].nonzero()[0].tolist() == [1, 2, 3]
    assert state[115:126].nonzero()[0].tolist() == [1]
    assert state[126] == 0.25


# -------------------------------------------------------------------------------------------------------------- rewards


def test_checkpoints_equal_those_of_the_package():
    """Recorded ball positions with the rewards of the package's wrapper."""
    for record in RECORDED:
        for side, name in ((0, "left"), (1, "right")):
            for walk in record["walks"][name]:
                own = Checkpoints(len(walk["active"]))
                own.collected = list(walk["before"])
                named = {name: walk[name] for name in ("scored", "owns", "owner", "active")}
                counts = own.step(**named, ball=tuple(walk["ball"]))
                assert [0.1 * n for n in counts] == pytest.approx(walk["reward"], abs=1e-6), (side, walk)


def test_checkpoints_require_the_ball_and_a_goal_collects_the_remaining_ones():
    own = Checkpoints(2)
    assert own.step(scored=False, owns=False, owner=3, active=[3, 2], ball=(0.9, 0.0)) == [0, 0]
    assert own.step(scored=False, owns=True, owner=3, active=[3, 2], ball=(0.5, 0.0)) == [6, 0]
    assert own.step(scored=True, owns=False, owner=-1, active=[3, 2], ball=(0.0, 0.0)) == [4, 10]
    own.reset()
    assert own.step(scored=True, owns=False, owner=-1, active=[3, 2], ball=(0.0, 0.0)) == [10, 10]


@pytest.mark.parametrize(
    ("x", "y", "value"),
    [(1, 0, 1), (0.8, 0.3, 0.5), (0.4, 0.4, 0.2), (0, 0.4, 0), (-0.4, -0.4, -0.2), (-0.8, 0.3, -0.5), (-1, 0, -1)],
)
def test_the_ball_value_is_highest_at_the_opponent_s_goal(x: float, y: float, value: float):
    assert ball_value(x, y) == pytest.approx(value)


# ------------------------------------------------------------------------------------------------------------- episodes


def test_a_goal_rewards_each_side_once_and_terminates_the_task(monkeypatch: pytest.MonkeyPatch):
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


def test_the_right_side_alone_receives_its_own_rewards_and_metrics(monkeypatch: pytest.MonkeyPatch):
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
def test_the_last_frame_truncates_unless_an_event_terminates_the_episode(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], ended: str
):
    play(monkeypatch, raw(), raw(), raw(**last))
    env = make(TASK)
    env.reset()
    env.step(act(left=[0, 0, 0]))
    step, _ = env.step(act(left=[0, 0, 0]))
    assert bool(step.episode_terminated) == (ended == "terminated")
    assert bool(step.episode_truncated) == (ended == "truncated")


def test_full_games_continue_after_a_goal_and_a_configured_limit_truncates(monkeypatch: pytest.MonkeyPatch):
    goal = raw(score=[1, 0], game_mode=1, ball_owned_team=1)
    play(monkeypatch, *([raw()] + [goal] * 9))
    env = make("football/5_vs_5", {"episode_limit": 3, "left_players": 3})
    env.reset()
    ends = [env.step(act(left=[0, 0, 0]))[0] for _ in range(3)]
    assert [bool(step.episode_truncated) for step in ends] == [False, False, True]
    assert not any(bool(step.episode_terminated) for step in ends)
    assert [float(step.group_reward.sum()) for step in ends] == [1, 0, 0]


def test_only_directions_of_the_right_side_are_rotated(monkeypatch: pytest.MonkeyPatch):
    made = play(monkeypatch, *([raw()] * 25))
    env = make(TASK, {"sides": "both"})
    env.reset()
    for choice in range(19):
        env.step(act(left=[choice, 0, 18], right=[choice]))
    names = [match.CHOICES[actions[3]] for actions in made[-1].received]
    assert names[1:9] == ["right", "bottom_right", "bottom", "bottom_left", "left", "top_left", "top", "top_right"]
    assert [actions[0] for actions in made[-1].received] == list(range(19))
    assert names[:1] + names[9:] == [match.CHOICES[0], *match.CHOICES[9:]]


def test_checkpoints_reward_players_and_goals_reward_their_side(monkeypatch: pytest.MonkeyPatch):
    play(monkeypatch, raw(), raw(), raw(score=[1, 0]))
    env = make(TASK, {"rewards": ["scoring", "checkpoints"]})
    env.reset()
    step, _ = env.step(act(left=[0, 0, 0]))
    assert step.reward.tolist()[0] == pytest.approx([0.7, 0, 0])  # 0.393 from the goal, within 7 of the thresholds
    step, _ = env.step(act(left=[0, 0, 0]))
    assert step.reward.tolist()[0] == pytest.approx([0.3, 1, 1])
    assert step.group_reward.tolist() == [[1]]


def test_every_episode_has_its_own_seed_and_sides_alternate(monkeypatch: pytest.MonkeyPatch):
    made = play(monkeypatch, raw(), raw())
    env = make(TASK, num_envs=2)
    for _ in range(2):
        env.reset(5)
        for _ in range(6):
            env.step({"left": Action(torch.zeros(2, 3, 1, dtype=torch.long))})
    first, second = ([core.episodes[:4], core.episodes[4:]] for core in made[-2:])
    assert first[0] == first[1]
    assert first != second
    assert len({seed for seed, _ in first[0]}) == 4
    assert np.diff([number for _, number in first[0]]).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("purpose", "reward"), [("train", 0.052), ("eval", 0.0), ("evaluate", 0.0), ("play", 0.0)])
def test_shaping_is_applied_during_training_only(monkeypatch: pytest.MonkeyPatch, purpose: str, reward: float):
    play(monkeypatch, raw(), raw(), raw())
    given = [f"env={TASK}", "algo=ippo", "env.shaping=0.1", "workers.count=0"]
    config = resolve(given).config
    env = make_environment(config, purpose, num_envs=1, device=torch.device("cpu"))
    env.reset()
    step, _ = env.step(act(left=[0, 0, 0]))
    assert step.reward.tolist()[0] == pytest.approx([reward] * 3)


# --------------------------------------------------------------------------------------------------------------- images


def test_an_image_shows_player_positions_and_controlled_players():
    image = draw(raw(), "3 vs 1", 640)
    assert image.shape[1:] == (640, 3)
    assert image.dtype == np.uint8
    top = image.shape[0] - round(640 * 0.52 / 1.1)

    def region(x: float, y: float, reach: int) -> np.ndarray:
        column, row = 320 + x * 640 / 2.2, top + (image.shape[0] - top) / 2 + y * 640 / 2.2
        return image[round(row) - reach : round(row) + reach, round(column) - reach : round(column) + reach]

    def near(part: np.ndarray, color: str) -> bool:
        return bool((np.abs(part.astype(int) - PALETTE[color]).sum(-1) < 60).any())

    assert near(region(0.7, 0.2, 10), "blue")
    assert near(region(1.0, 0.0, 10), "red")
    assert near(region(0.7, 0.2, 10), "yellow")
    assert not near(region(-1.0, 0.0, 10), "yellow")
    assert not near(region(-0.5, 0.2, 10), "blue")
    assert not np.array_equal(image, draw(raw(ball=[0.1, 0.1, 0.0]), "3 vs 1", 640))
