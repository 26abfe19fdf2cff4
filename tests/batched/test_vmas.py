"""VMAS behind the contract, held to its own loop. Run by `make vmas`."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.__main__ import main
from coterie.envs.adapters import vmas as adapter
from coterie.envs.adapters.vmas import Batch
from coterie.envs.check import check
from coterie.envs.make import make, spec_of
from coterie.errors import UserError
from coterie.schema import WorkersConfig
from coterie.seeds import seed_of
from coterie.types import Action
from test_docs import blocks, small
from tinyruns import tiny

PAGE = Path(__file__).parents[2] / "docs" / "environments" / "vmas.md"
VMAS = adapter._imported("vmas/balance")


def balance(copies: int = 3, seed: int = 1, **keys: Any) -> Any:
    return make("vmas/balance", keys, copies, seed)


def forces(env: Any, seed: int) -> dict[str, Action]:
    numbers = torch.rand(env.copies, env.spec.n, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return {"agent": Action(continuous=numbers)}


def test_rows_and_rewards_are_those_of_vmas_s_own_loop():
    env, own = balance(), VMAS.make_env("balance", num_envs=3, clamp_actions=True)
    row = env.reset()
    seen = own.reset(seed=seed_of(1, "env", "vmas/balance") >> 32)
    assert torch.equal(row.obs["agent"], torch.stack(seen, 1))
    for t in range(95):
        action = forces(env, t)
        step, row = env.step(action)
        seen, rewards, done, infos = own.step([action["agent"].continuous[:, k].clone() for k in range(3)])
        assert torch.equal(row.obs["agent"], torch.stack(seen, 1))
        assert torch.equal(step.reward, torch.stack(rewards, 1))
        assert torch.equal(step.episode_terminated, done)
        assert torch.equal(step.metrics["pos_rew"], infos[0]["pos_rew"])
        if done.any():
            return
    pytest.fail("no episode ended, so that ends were not compared")


def test_a_limit_is_a_cut_and_restarts_all_at_once():
    env = balance(episode_limit=4)
    env.reset()
    for t in range(4):
        step, row = env.step(forces(env, t))
    assert step.episode_truncated.all()
    assert step.truncated.all()
    assert not step.episode_terminated.any()
    assert not row.acted.any()
    step, after = env.step(forces(env, 9))
    assert after.acted.all()
    assert after.first.all()
    assert not step.reward.any()
    assert not torch.equal(after.obs["agent"], row.obs["agent"])


def test_the_end_of_one_copy_restarts_it_alone():
    env = balance(copies=4, episode_limit=None)
    row = env.reset()
    for t in range(200):
        before = row
        step, row = env.step(forces(env, t))
        if not before.acted.all():
            break
    closed = ~before.acted
    assert closed.any()
    assert not closed.all()
    assert torch.equal(row.first[:, 0], closed)
    assert not step.reward[closed].any()
    assert step.reward[~closed].any()
    # A package that fell lies low; in a new episode it is held above the line again, the others go on by little steps.
    moved = (row.obs["agent"] - before.obs["agent"]).abs().amax((1, 2))
    assert moved[closed].min() > moved[~closed].max()


def test_batches_have_random_numbers_of_their_own_and_leave_the_global_ones():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]  # noqa: NPY002
    alone, beside, other = balance(), balance(), balance(seed=2)
    rows = [alone.reset(), beside.reset()]
    other.reset()
    assert torch.equal(rows[0].obs["agent"], rows[1].obs["agent"])
    for t in range(130):  # restarts draw
        _, row = alone.step(forces(alone, t))
        other.step(forces(other, t + 1))
        _, like = beside.step(forces(beside, t))
        assert torch.equal(row.obs["agent"], like.obs["agent"])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert before[2] == random.getstate()


@pytest.mark.parametrize("keys", [{"actions": "discrete"}, {"actions": "multi_discrete"}, {}])
@pytest.mark.parametrize("scenario", ["balance", "simple_tag", "simple_speaker_listener", "navigation"])
def test_scenarios_keep_the_contract(scenario: str, keys: dict[str, str]):
    params = {"episode_limit": 6, **keys}
    report = check(lambda copies, seed: make(f"vmas/{scenario}", params, copies, seed), steps=15, copies=3)
    assert {finding.rule for finding in report.findings} <= {"slow"}, report.render()


def test_roles_come_of_names_and_spaces():
    assert [(role.name, role.group, role.n) for role in spec_of("vmas/simple_tag").roles] == [
        ("adversary", "adversary", 3),
        ("agent", "agent", 1),
    ]
    assert len(spec_of("vmas/simple_speaker_listener").roles) == 2
    assert spec_of("vmas/balance", {"n_agents": 5, "actions": "discrete"}).roles[0].action.choices == (9,)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("vmas/balnce", {}, "did you mean 'vmas/balance'"),
        ("vmas/balance", {"n_agent": 4}, "environment 'vmas/balance': Scenario kwargs: {'n_agent': 4} passed but not"),
        ("vmas/balance", {"actions": "words"}, "env.actions"),
    ],
)
def test_what_cannot_be_made_is_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_workers_are_refused():
    with pytest.raises(UserError, match="steps all its copies as one batch"):
        make("vmas/balance", workers=WorkersConfig(count=2))


def test_a_picture_shows_agents_in_their_colours():
    env = balance()
    env.reset()
    assert isinstance(env, Batch)
    picture = env.render(1, 200)
    assert picture.shape[2] == 3
    assert max(picture.shape[:2]) == 200
    for agent in env._env.agents:
        colour = np.array([round(255 * part) for part in agent.color[:3]])
        assert (np.abs(picture - colour).max(-1) < 9).sum() > 5


def test_it_trains_and_goes_on_with_new_episodes(tmp_path: Path):
    settings = tiny("algo=ppo", "env=vmas/balance", "env.n_agents=2", f"out={tmp_path / 'run'}")
    assert main(["train", *settings]) == 0
    assert main(["resume", str(tmp_path / "run"), "steps=160"]) == 0


def test_the_commands_on_its_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(PAGE) if block.language == "sh" for line in block.code.splitlines()]
    commands = [line for line in lines if line.startswith("coterie ")]
    assert len(commands) >= 3
    for line in commands:
        words = small(
            line, {"steps": "80", "copies": "4", "algo.horizon": "10", "env.episode_limit": "9", "--episodes": "4"}
        )
        assert main(words) == 0, shlex.join(words)
