"""Tests with the installed Google Research Football engine. Run by `make football`, not by the default suite."""

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
from coterie.checks.environment.contract import check
from coterie.config.schema import WorkersConfig
from coterie.core.types import Action
from coterie.envs.contract.traces import first_difference, random_actions
from coterie.envs.external import football
from coterie.envs.external.football_match import TASKS
from coterie.envs.make import make, spec_of
from coterie.envs.registry import EXTERNAL_SCENARIOS

TASK = "football/academy_3_vs_1_with_keeper"
FULL = "football/5_vs_5"


def package() -> Any:
    return football.package(TASK)


def sample_actions(env: Any, timestep: Any, seed: int) -> dict[str, Action]:
    return random_actions(env.spec, timestep, torch.Generator().manual_seed(seed))


def package_env(scenario: str, players: tuple[int, int], seed: int) -> tuple[Any, Any, Any]:
    """The package's FootballEnv, its checkpoint wrapper, and its conversion to simple115v2."""
    football.package(TASK)
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
def test_task_presets_equal_the_engine_s_definitions(name: str):
    preset, defined = TASKS[name], football.read(package(), name)
    for field in ("left", "right", "frames", "on_score", "on_out", "on_loss"):
        assert getattr(defined, field) == getattr(preset, field), field


@pytest.mark.parametrize("name", EXTERNAL_SCENARIOS["football"])
def test_every_task_can_be_stepped_on_both_sides(name: str):
    env = make(f"football/{name}", {"sides": "both"}, num_envs=1, seed=1, with_state=True)
    timestep = env.reset()
    assert set(timestep.obs) == {"left", "right"}
    for k in range(3):
        _, timestep = env.step(sample_actions(env, timestep, k))
    for obs in timestep.obs.values():
        assert obs.isfinite().all()
        assert obs[0, :, 97:108].sum(-1).max() == 1
    assert timestep.state["global"].isfinite().all()
    env.close()


def test_scenarios_without_a_preset_are_read_from_the_package():
    spec = spec_of("football/academy_pass_and_shoot_with_keeper", {"sides": "both"})
    assert ([role.n for role in spec.roles], spec.episode_limit) == ([2, 1], 400)
    assert spec_of("football/academy_corner").n == 11
    with pytest.raises(coterie.UserError, match="Did you mean 'football/academy_corner'"):
        spec_of("football/academy_crner")


@pytest.mark.parametrize(("name", "players"), [(TASK, (3, 1)), (FULL, (4, 4)), ("football/1_vs_1_easy", (1, 1))])
def test_a_match_equals_the_package_s_own_environment(name: str, players: tuple[int, int]):
    """Compares with FootballEnv, Simple115StateWrapper and CheckpointRewardWrapper."""
    env = make(name, {"sides": "both", "rewards": ["scoring", "checkpoints"]}, num_envs=1, seed=3)
    timestep = env.reset()
    match = env.backend.instances[0]
    episode, seed = match.episode
    own, wrapper, simple115 = package_env(name.partition("/")[2], players, seed)
    own._config["episode_number"] = episode - 1
    own_obs = own.reset()
    wrapper._collected_checkpoints = {}
    for k in range(120):
        expected_obs = simple115(own_obs, True)
        np.testing.assert_array_equal(
            torch.cat([timestep.obs["left"][0], timestep.obs["right"][0]]).numpy(), expected_obs
        )
        action = sample_actions(env, timestep, k)
        choices = torch.cat([action["left"].discrete[0, :, 0], action["right"].discrete[0, :, 0]]).tolist()
        own_obs, reward, done, _ = own.step(choices)
        step, timestep = env.step(action)
        expected = wrapper.reward(reward.copy())
        sides = torch.cat([step.group_reward[0, :1].expand(players[0]), step.group_reward[0, 1:].expand(players[1])])
        np.testing.assert_allclose((step.reward[0] + sides).numpy(), expected, atol=1e-6)
        assert bool(step.episode_terminated | step.episode_truncated) == done
        if done:
            break
    assert k > 10
    own.close()
    env.close()


def test_environments_satisfy_the_contract():
    params = {"episode_limit": 25, "sides": "both"}
    report = check(lambda num_envs, seed: make(TASK, params, num_envs, seed))
    assert not [finding for finding in report.findings if finding.name != "slow"], report


def test_equal_seeds_give_equal_episodes_regardless_of_earlier_ones():
    def play(env: Any, seed: int) -> list[torch.Tensor]:
        timestep, found = env.reset(seed), []
        for k in range(60):
            step, timestep = env.step(sample_actions(env, timestep, k))
            found += [timestep.obs["left"], step.group_reward]
        return found

    first = make(TASK, num_envs=2, seed=0)
    one, other, again = play(first, 4), play(first, 5), play(first, 4)
    first.close()
    second = make(TASK, num_envs=2, seed=9)  # may reuse the engines of the first
    late = play(second, 4)
    second.close()
    for same in (again, late):
        assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_deterministic_task_depends_on_actions_only():
    def play(seed: int) -> torch.Tensor:
        env = make("football/3_vs_3_custom", num_envs=1, seed=seed)
        timestep = env.reset()
        for k in range(40):
            _, timestep = env.step(sample_actions(env, timestep, k))
        env.close()
        return timestep.obs["left"]

    assert torch.equal(play(1), play(2))


def test_the_frame_limit_truncates_and_a_goal_terminates():
    env = make("football/test_example_multiagent", num_envs=1, seed=0)
    env.reset()
    idle = {"left": Action(torch.zeros(1, 3, 1, dtype=torch.long))}
    ends = []
    for _ in range(400):
        step, _ = env.step(idle)
        if bool(step.episode_terminated | step.episode_truncated):
            ends.append((bool(step.episode_truncated), bool(step.episode_terminated)))
    env.close()
    assert all(truncated != terminated for truncated, terminated in ends)
    close = make("football/academy_empty_goal_close", num_envs=1, seed=0)
    close.reset()
    for k in range(60):
        choice = 5 if k < 8 else 12
        step, _ = close.step({"left": Action(torch.full((1, 1, 1), choice))})
        if bool(step.episode_terminated):
            break
    close.close()
    assert float(step.group_reward.sum()) == float(step.metrics["goal_difference"]) == float(step.metrics["won"]) == 1


def test_a_match_resumes_bit_for_bit_from_its_saved_state():
    params = {"sides": "both", "rewards": ["scoring", "checkpoints"]}
    for name in (TASK, FULL):
        env, other = (make(name, params, num_envs=2, seed=seed, with_state=True) for seed in (0, 1))
        timestep = env.reset()
        for k in range(45):
            _, timestep = env.step(sample_actions(env, timestep, k))
        saved = env.state_dict()
        other.reset()
        for k in range(7):
            other.step(sample_actions(other, timestep, k))
        other.load_state_dict(saved)
        for k in range(45, 145):
            action = sample_actions(env, timestep, k)
            step, timestep = env.step(action)
            twin, twin_timestep = other.step(action)
            assert first_difference(timestep, twin_timestep) is None, k
            assert first_difference(step, twin) is None, k
        env.close()
        other.close()


def test_workers_do_not_change_results():
    without, with_workers = (
        make(TASK, num_envs=4, seed=2),
        make(TASK, num_envs=4, seed=2, workers=WorkersConfig(count=2)),
    )
    timesteps = [env.reset() for env in (without, with_workers)]
    for k in range(40):
        assert first_difference(*timesteps) is None
        action = sample_actions(without, timesteps[0], k)
        found = [env.step(action) for env in (without, with_workers)]
        assert first_difference(found[0][0], found[1][0]) is None
        timesteps = [timestep for _, timestep in found]
    without.close()
    with_workers.close()


def test_nothing_is_printed_and_no_files_are_left(tmp_path: Path):
    program = (
        "import coterie, torch\n"
        "from coterie.core.types import Action\n"
        "env = coterie.make('football/academy_empty_goal_close', num_envs=2, seed=0)\n"
        "env.reset()\n"
        "[env.step({'left': Action(torch.full((2, 1, 1), 12 if k % 3 else 5))}) for k in range(60)]\n"
        "env.close()\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_run_trains_and_its_evaluation_reports_goals(tmp_path: Path):
    settings = [
        "algo=mappo",
        "env=football/academy_empty_goal_close",
        "steps=256",
        "num_envs=2",
        "algo.rollout_length=64",
    ]
    settings += ["algo.epochs=1", "eval.every=256", "eval.episodes=2", "eval.num_envs=2", "threads=1", "progress=off"]
    assert main(["train", *settings, "workers.count=0", f"out={tmp_path / 'run'}"]) == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["eval/metric/won"] <= 1
