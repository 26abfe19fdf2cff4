"""The real engine: `make football` runs these; the plain suite, which has no engine, does not collect them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.__main__ import main
from coterie.envs.adapters import SCENARIOS
from coterie.envs.check import check
from coterie.envs.football import engine
from coterie.envs.football.tasks import TASKS
from coterie.envs.make import make, spec_of
from coterie.envs.paths import difference, random_actions
from coterie.schema import WorkersConfig
from coterie.types import Action

TASK = "football/academy_3_vs_1_with_keeper"
FULL = "football/5_vs_5"


def package() -> Any:
    return engine.package(TASK)


def told(env: Any, row: Any, seed: int) -> dict[str, Action]:
    return random_actions(env.spec, row, torch.Generator().manual_seed(seed))


def bare(scenario: str, players: tuple[int, int], seed: int) -> tuple[Any, Any, Any]:
    """The package's own FootballEnv, its checkpoint wrapper, and what makes simple115v2 of observations."""
    engine.package(TASK)
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gfootball.env.config import Config
        from gfootball.env.football_env import FootballEnv
        from gfootball.env.wrappers import CheckpointRewardWrapper, Simple115StateWrapper
    left, right = players
    definition = f"agent:left_players={left},right_players={right}"
    env = FootballEnv(Config({"level": scenario, "players": [definition], "game_engine_random_seed": seed}))
    return env, CheckpointRewardWrapper(env), Simple115StateWrapper.convert_observation


@pytest.mark.parametrize("name", TASKS)
def test_what_is_known_of_a_task_is_what_the_engine_says(name: str):
    known, said = TASKS[name], engine.read(package(), name)
    for field in ("left", "right", "frames", "on_score", "on_out", "on_loss"):
        assert getattr(said, field) == getattr(known, field), field


@pytest.mark.parametrize("name", SCENARIOS["football"])
def test_every_task_is_made_and_steps_on_both_sides(name: str):
    env = make(f"football/{name}", {"sides": "both"}, copies=1, seed=1, with_state=True)
    row = env.reset()
    assert set(row.obs) == {"left", "right"}
    for k in range(3):
        _, row = env.step(told(env, row, k))
    for seen in row.obs.values():
        assert seen.isfinite().all()
        assert seen[0, :, 97:108].sum(-1).max() == 1
    assert row.state["global"].isfinite().all()
    env.close()


def test_scenarios_without_a_preset_are_read_off_the_package():
    spec = spec_of("football/academy_pass_and_shoot_with_keeper", {"sides": "both"})
    assert ([role.n for role in spec.roles], spec.episode_limit) == ([2, 1], 400)
    assert spec_of("football/academy_corner").n == 11
    with pytest.raises(coterie.UserError, match="did you mean 'football/academy_corner'"):
        spec_of("football/academy_crner")


@pytest.mark.parametrize(("name", "players"), [(TASK, (3, 1)), (FULL, (4, 4)), ("football/1_vs_1_easy", (1, 1))])
def test_a_match_agrees_with_the_package_s_own_environment_bit_by_bit(name: str, players: tuple[int, int]):
    """Observations and rewards beside FootballEnv with Simple115StateWrapper and CheckpointRewardWrapper."""
    env = make(name, {"sides": "both", "rewards": ["scoring", "checkpoints"]}, copies=1, seed=3)
    row = env.reset()
    match = env._host._crew.instances[0]
    own, wrapper, simple115 = bare(name.partition("/")[2], players, match._seed)
    own._config["episode_number"] = match._episode - 1
    seen = own.reset()
    wrapper._collected_checkpoints = {}
    for k in range(120):
        shown = simple115(seen, True)
        np.testing.assert_array_equal(torch.cat([row.obs["left"][0], row.obs["right"][0]]).numpy(), shown)
        action = told(env, row, k)
        picks = torch.cat([action["left"].discrete[0, :, 0], action["right"].discrete[0, :, 0]]).tolist()
        seen, reward, done, _ = own.step(picks)
        step, row = env.step(action)
        paid = wrapper.reward(reward.copy())
        sides = torch.cat([step.group_reward[0, :1].expand(players[0]), step.group_reward[0, 1:].expand(players[1])])
        np.testing.assert_allclose((step.reward[0] + sides).numpy(), paid, atol=1e-6)
        assert bool(step.episode_terminated | step.episode_truncated) == done
        if done:
            break
    assert k > 10
    own.close()
    env.close()


def test_they_keep_the_contract():
    params = {"episode_limit": 25, "sides": "both"}
    report = check(lambda copies, seed: make(TASK, params, copies, seed))
    assert not [finding for finding in report.findings if finding.rule != "slow"], report


def test_the_same_seed_gives_the_same_bits_whatever_was_played_before():
    def lived(env: Any, seed: int) -> list[torch.Tensor]:
        row, found = env.reset(seed), []
        for k in range(60):
            step, row = env.step(told(env, row, k))
            found += [row.obs["left"], step.group_reward]
        return found

    first = make(TASK, copies=2, seed=0)
    one, other, again = lived(first, 4), lived(first, 5), lived(first, 4)
    first.close()
    second = make(TASK, copies=2, seed=9)  # may be given the engines of the first
    late = lived(second, 4)
    second.close()
    for same in (again, late):
        assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_deterministic_task_has_one_course_for_the_same_actions():
    def lived(seed: int) -> torch.Tensor:
        env = make("football/3_vs_3_custom", copies=1, seed=seed)
        row = env.reset()
        for k in range(40):
            _, row = env.step(told(env, row, k))
        env.close()
        return row.obs["left"]

    assert torch.equal(lived(1), lived(2))


def test_frames_are_a_cut_and_a_goal_an_end():
    env = make("football/test_example_multiagent", copies=1, seed=0)
    env.reset()
    idle = {"left": Action(torch.zeros(1, 3, 1, dtype=torch.long))}
    ends = []
    for _ in range(400):
        step, _ = env.step(idle)
        if bool(step.episode_terminated | step.episode_truncated):
            ends.append((bool(step.episode_truncated), bool(step.episode_terminated)))
    env.close()
    assert all(cut != over for cut, over in ends)
    close = make("football/academy_empty_goal_close", copies=1, seed=0)
    close.reset()
    for k in range(60):
        choice = 5 if k < 8 else 12
        step, _ = close.step({"left": Action(torch.full((1, 1, 1), choice))})
        if bool(step.episode_terminated):
            break
    close.close()
    assert float(step.group_reward.sum()) == float(step.metrics["goal_difference"]) == float(step.metrics["won"]) == 1


def test_a_match_goes_on_from_its_saved_state_to_the_bit():
    params = {"sides": "both", "rewards": ["scoring", "checkpoints"]}
    for name in (TASK, FULL):
        env, other = (make(name, params, copies=2, seed=seed, with_state=True) for seed in (0, 1))
        row = env.reset()
        for k in range(45):
            _, row = env.step(told(env, row, k))
        saved = env.state_dict()
        other.reset()
        for k in range(7):
            other.step(told(other, row, k))
        other.load_state_dict(saved)
        for k in range(45, 145):
            action = told(env, row, k)
            step, row = env.step(action)
            twin, twin_row = other.step(action)
            assert difference(row, twin_row) is None, k
            assert difference(step, twin) is None, k
        env.close()
        other.close()


def test_workers_give_the_same_bits_as_this_process():
    alone, worked = make(TASK, copies=4, seed=2), make(TASK, copies=4, seed=2, workers=WorkersConfig(count=2))
    rows = [env.reset() for env in (alone, worked)]
    for k in range(40):
        assert difference(*rows) is None
        action = told(alone, rows[0], k)
        found = [env.step(action) for env in (alone, worked)]
        assert difference(found[0][0], found[1][0]) is None
        rows = [row for _, row in found]
    alone.close()
    worked.close()


def test_nothing_is_printed_and_no_file_is_left(tmp_path: Path):
    program = (
        "import coterie, torch\n"
        "from coterie.types import Action\n"
        "env = coterie.make('football/academy_empty_goal_close', copies=2, seed=0)\n"
        "env.reset()\n"
        "[env.step({'left': Action(torch.full((2, 1, 1), 12 if k % 3 else 5))}) for k in range(60)]\n"
        "env.close()\n"
    )
    there = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=there, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_run_trains_and_its_evaluation_counts_goals(tmp_path: Path):
    settings = ["algo=mappo", "env=football/academy_empty_goal_close", "steps=256", "copies=2", "algo.horizon=64"]
    settings += ["algo.epochs=1", "eval.every=256", "eval.episodes=2", "eval.copies=2", "threads=1", "progress=off"]
    assert main(["train", *settings, "workers.count=0", f"out={tmp_path / 'run'}"]) == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["eval/metric/won"] <= 1
