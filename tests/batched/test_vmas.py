"""VMAS environments: equality with VMAS's own loop, resets, errors. Run by `make vmas`."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_docs import blocks, small

from coterie.__main__ import main
from coterie.checks.environment.contract import check
from coterie.config.schema import WorkersConfig
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.types import Action
from coterie.envs.external.vmas import VMASBatch, import_vmas
from coterie.envs.make import make, spec_of
from places import ROOT
from tinyruns import tiny

PAGE = ROOT / "docs" / "environments" / "vmas.md"
VMAS = import_vmas("vmas/balance")


def balance(num_envs: int = 3, seed: int = 1, **keys: Any) -> Any:
    return make("vmas/balance", keys, num_envs, seed)


def forces(env: Any, seed: int) -> dict[str, Action]:
    numbers = torch.rand(env.num_envs, env.spec.n, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return {"agent": Action(continuous=numbers)}


def test_observations_and_rewards_equal_vmas_s_own_loop():
    env, own = balance(), VMAS.make_env("balance", num_envs=3, clamp_actions=True)
    timestep = env.reset()
    own_obs = own.reset(seed=seed_of(1, "env", "vmas/balance") >> 32)
    assert torch.equal(timestep.obs["agent"], torch.stack(own_obs, 1))
    for t in range(95):
        action = forces(env, t)
        step, timestep = env.step(action)
        own_obs, rewards, done, infos = own.step([action["agent"].continuous[:, k].clone() for k in range(3)])
        assert torch.equal(timestep.obs["agent"], torch.stack(own_obs, 1))
        assert torch.equal(step.reward, torch.stack(rewards, 1))
        assert torch.equal(step.episode_terminated, done)
        assert torch.equal(step.metrics["pos_rew"], infos[0]["pos_rew"])
        if done.any():
            return
    pytest.fail("no episode ended, so that terminations were not compared")


def test_the_limit_truncates_and_resets_all_environments_at_once():
    env = balance(episode_limit=4)
    env.reset()
    for t in range(4):
        step, timestep = env.step(forces(env, t))
    assert step.episode_truncated.all()
    assert step.truncated.all()
    assert not step.episode_terminated.any()
    assert not timestep.acted.any()
    step, after = env.step(forces(env, 9))
    assert after.acted.all()
    assert after.first.all()
    assert not step.reward.any()
    assert not torch.equal(after.obs["agent"], timestep.obs["agent"])


def test_the_end_of_one_episode_resets_one_environment():
    env = balance(num_envs=4, episode_limit=None)
    timestep = env.reset()
    for t in range(200):
        before = timestep
        step, timestep = env.step(forces(env, t))
        if not before.acted.all():
            break
    reset = ~before.acted
    assert reset.any()
    assert not reset.all()
    assert torch.equal(timestep.first[:, 0], reset)
    assert not step.reward[reset].any()
    assert step.reward[~reset].any()
    # A reset moves the package by a large distance, a step only by a small one.
    moved = (timestep.obs["agent"] - before.obs["agent"]).abs().amax((1, 2))
    assert moved[reset].min() > moved[~reset].max()


def test_batches_have_independent_random_streams_and_keep_the_global_ones():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    env, twin, other = balance(), balance(), balance(seed=2)
    timesteps = [env.reset(), twin.reset()]
    other.reset()
    assert torch.equal(timesteps[0].obs["agent"], timesteps[1].obs["agent"])
    for t in range(130):  # resets sample
        _, timestep = env.step(forces(env, t))
        other.step(forces(other, t + 1))
        _, same = twin.step(forces(twin, t))
        assert torch.equal(timestep.obs["agent"], same.obs["agent"])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert before[2] == random.getstate()


@pytest.mark.parametrize("keys", [{"actions": "discrete"}, {"actions": "multi_discrete"}, {}])
@pytest.mark.parametrize("scenario", ["balance", "simple_tag", "simple_speaker_listener", "navigation"])
def test_scenarios_satisfy_the_contract(scenario: str, keys: dict[str, str]):
    params = {"episode_limit": 6, **keys}
    report = check(lambda num_envs, seed: make(f"vmas/{scenario}", params, num_envs, seed), steps=15, num_envs=3)
    assert {finding.name for finding in report.findings} <= {"slow"}, report.render()


def test_roles_follow_from_names_and_spaces():
    assert [(role.name, role.group, role.n) for role in spec_of("vmas/simple_tag").roles] == [
        ("adversary", "adversary", 3),
        ("agent", "agent", 1),
    ]
    assert len(spec_of("vmas/simple_speaker_listener").roles) == 2
    assert spec_of("vmas/balance", {"n_agents": 5, "actions": "discrete"}).roles[0].action.choices == (9,)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("vmas/balnce", {}, "Did you mean 'vmas/balance'"),
        ("vmas/balance", {"n_agent": 4}, "environment 'vmas/balance': Scenario kwargs: {'n_agent': 4} passed but not"),
        ("vmas/balance", {"actions": "words"}, "env.actions"),
    ],
)
def test_invalid_names_and_settings_raise_one_line_errors(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_workers_are_refused():
    with pytest.raises(UserError, match="steps all its environments as one batch"):
        make("vmas/balance", workers=WorkersConfig(count=2))


def test_an_image_shows_agents_in_their_colors():
    env = balance()
    env.reset()
    assert isinstance(env, VMASBatch)
    image = env.render(1, 200)
    assert image.shape[2] == 3
    assert max(image.shape[:2]) == 200
    for agent in env.native.agents:
        color = np.array([round(255 * part) for part in agent.color[:3]])
        assert (np.abs(image - color).max(-1) < 9).sum() > 5


def test_a_run_resumes_with_new_episodes(tmp_path: Path):
    settings = tiny("algo=ppo", "env=vmas/balance", "env.n_agents=2", f"out={tmp_path / 'run'}")
    assert main(["train", *settings]) == 0
    assert main(["resume", str(tmp_path / "run"), "steps=160"]) == 0


def test_the_commands_in_its_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(PAGE) if block.language == "sh" for line in block.code.splitlines()]
    commands = [line for line in lines if line.startswith("coterie ")]
    assert len(commands) >= 3
    for line in commands:
        words = small(
            line,
            {"steps": "80", "num_envs": "4", "algo.rollout_length": "10", "env.episode_limit": "9", "--episodes": "4"},
        )
        assert main(words) == 0, shlex.join(words)
