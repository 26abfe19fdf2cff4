"""The start of a run checks what its environment returns, without changing it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from contract_worlds import Pond, Wrapped
from coterie.assembly.resolve import resolve
from coterie.checks.environment.first_steps import FirstSteps
from coterie.commands import train as command
from coterie.core.errors import ContractError, UserError
from coterie.core.tree import tree_leaves
from coterie.envs.contract.traces import random_actions
from faults import FAULTS, on_spec

SINGLE, BATCH = "gymnasium_faults:single", "turnfaults:batch"


def train(env: dict[str, Any], out: Path, **settings: Any) -> Path:
    small = {"num_envs": 2, "steps": 200, "threads": 1, "progress": "off", "device": "cpu", "eval": {"every": 0}}
    more = {"log": {"tensorboard": False}, "algo": {"name": "ippo", "hidden_sizes": [4], "rollout_length": 20}}
    return coterie.train(env=env, out=out, **(small | more | settings)).run


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("step_returns_five_things", r"step\(\) returned tuple, expected the pair \(Step, Timestep\)"),
        ("group_rewards_not_declared", r"step 1, .*group_reward is not zero, and the spec has has_group_reward=False"),
        ("observations_in_double_precision", r"step 0: obs\['frog'\] is torch\.float64, expected torch\.float32"),
        ("observations_outside_of_the_space", r"step 0, environment \d, agent frog_\d: obs\['frog'\] has values from"),
        ("a_list_of_rewards", r"step 1: reward is list \(\[\[.*\), expected a tensor torch\.float32 \[2, 3\]\. Return"),
    ],
)
def test_an_error_of_a_batch_refuses_the_run_and_leaves_nothing(fault: str, message: str, tmp_path: Path):
    """Found in training, and one of them in the evaluation before it."""
    every = None if fault == "observations_in_double_precision" else 0
    with pytest.raises(ContractError, match=rf"^(environment '{BATCH}'|pond): {message}"):
        train({"name": BATCH, "fault": fault}, tmp_path / "runs" / "run", eval={"every": every, "num_envs": 2})
    assert not (tmp_path / "runs").exists()


def stepped(env: Wrapped, check: FirstSteps, steps: int) -> None:
    """Checks random steps in which nobody gets a group reward."""
    timestep, generator = env.reset(), torch.Generator().manual_seed(0)
    check.reset(timestep)
    for _ in range(steps):
        step, timestep = env.step(random_actions(env.spec, timestep, generator))
        check.step(replace(step, group_reward=torch.zeros_like(step.group_reward)), timestep)


def test_group_rewards_that_are_not_declared_are_found_after_the_other_checks_ended():
    env = on_spec(has_group_reward=False)(Pond(), 2, 0)
    check = FirstSteps(env, "pond", refuses=True, note=print)
    stepped(env, check, 59)
    step, timestep = env.step(random_actions(env.spec, env.before, torch.Generator()))
    with pytest.raises(ContractError, match=r"step 60, .*group_reward is not zero"):
        check.step(replace(step, group_reward=torch.ones_like(step.group_reward)), timestep)


@pytest.mark.parametrize("every", [0, None])
def test_a_reward_that_is_no_number_refuses_the_run_and_leaves_nothing(every: int | None, tmp_path: Path):
    with pytest.raises(ContractError, match=r"the reward is None, expected one number\. Return 0\.0 for a step"):
        train({"name": SINGLE, "fault": "reward_of_none"}, tmp_path / "runs" / "run", eval={"every": every})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_observations_far_out_of_range_are_refused_with_and_without_workers(workers: int, tmp_path: Path):
    env = {"name": SINGLE, "fault": "out_of_range"}
    with pytest.raises(UserError, match=r"outside of Box\(-10\.0, 10\.0, \(2,\), float32\)\. Widen the bounds"):
        train(env, tmp_path / "run", workers={"count": workers})
    assert train(env, tmp_path / "run", check="off").exists()


def test_the_check_does_not_change_results(tmp_path: Path):
    runs = [train({"name": SINGLE}, tmp_path / check, check=check) for check in ("on", "off")]
    rows = [coterie.load(run).policies["agent"].state_dict() for run in runs]
    leaves = [[x for x in tree_leaves(state) if isinstance(x, torch.Tensor)] for state in rows]
    assert len(leaves[0]) > 4
    assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))


@pytest.mark.parametrize("fault", ["observations outside of the space", "truncated without a declared limit"])
def test_errors_of_a_librarys_environment_and_warnings_are_printed_once(fault: str):
    notes: list[str] = []
    env = FAULTS[fault][1](Pond(), 2, 0)
    stepped(env, FirstSteps(env, "library/env", refuses=False, note=notes.append), 9)
    assert [note.partition(": ")[0] for note in notes] == ["environment 'library/env'"]


def test_worlds_of_coterie_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    monkeypatch.setattr(command, "FirstSteps", lambda env, name, **_: made.append(name))
    train({"name": "matrix/climbing"}, tmp_path / "own", steps=20)
    assert made == []
    train({"name": "gym/CartPole-v1"}, tmp_path / "gym", steps=20)
    assert made == ["gym/CartPole-v1"] * 2  # the environments of evaluation and of training
    assert resolve([]).config.check == "on"
