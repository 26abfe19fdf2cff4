"""The start of a run checks what its environment returns, without changing it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.assembly.resolve import resolve
from coterie.checks.environment.first_steps import FirstSteps
from coterie.commands import train as command
from coterie.core.errors import ContractError, UserError
from coterie.core.tree import tree_leaves
from coterie.envs.make import make

SINGLE = """
import gymnasium, numpy as np
from gymnasium import spaces

class Env(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)

    def __init__(self, scale=0.5, text=False):
        self.scale, self.text, self.count = scale, text, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def _observe(self):
        return (self.np_random.uniform(-1, 1, 3) * self.scale).astype(np.float32)

    def step(self, action):
        self.count += 1
        return self._observe(), "high" if self.text else float(action), self.count >= 5, False, {}
"""

BATCH = """
import numpy as np, torch
from gymnasium import spaces
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Step, Timestep
from coterie.envs.contract.vector import VectorEnv

class Batch(VectorEnv):
    limits_close = True

    def __init__(self, num_envs, device, fault):
        image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        space = image if fault == "image" else spaces.Box(-1, 1, (3,), np.float32)
        actions = spaces.Discrete(2)
        role = RoleSpec(name="a", group="a", agents=("x", "y"), observation_space=space, action_space=actions)
        self.spec = EnvSpec("batch", (role,), {}, episode_limit=None, exact_resume=False)
        self.num_envs, self.device, self.fault, self.count = num_envs, torch.device(device), fault, 0

    def _timestep(self, first):
        b = self.num_envs
        obs = torch.zeros(b, 2, *self.spec.roles[0].observation_space.shape)
        obs += 1000 * (self.fault == "range")
        true = torch.ones(b, 2, dtype=torch.bool)
        return Timestep(obs={"a": obs}, action_mask={}, state={}, alive=true, first=true & first, acted=true[:, 0])

    def reset(self, seed=None):
        return self._timestep(True)

    def step(self, action):
        self.count += 1
        flags = torch.zeros(self.num_envs, 2, dtype=torch.bool)
        group = torch.zeros(self.num_envs, 1)
        group += self.fault == "group" and self.count == 60
        reward = [["1.0"] * 2] * self.num_envs if self.fault == "text" else torch.zeros(self.num_envs, 2)
        end = flags[:, 0]
        end |= self.fault == "truncates" and self.count == 3
        step = Step(reward=reward, group_reward=group, terminated=flags, truncated=flags | end[:, None],
                    episode_terminated=flags[:, 0] & False, episode_truncated=end, metrics={})
        return step if self.fault == "pair" else (step, self._timestep(False))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def render(self, env_index=0, size=480):
        raise NotImplementedError

    def close(self):
        pass

def make(num_envs, seed, device, fault="none"):
    return Batch(num_envs, device, fault)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first_steps_single.py").write_text(SINGLE)
    (tmp_path / "first_steps_batch.py").write_text(BATCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("first_steps_single", "first_steps_batch"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def train(env: dict[str, Any], out: Path, **settings: Any) -> Path:
    small = {"num_envs": 2, "steps": 200, "threads": 1, "progress": "off", "device": "cpu", "eval": {"every": 0}}
    more = {"log": {"tensorboard": False}, "algo": {"name": "ppo", "hidden_sizes": [4], "rollout_length": 20}}
    return coterie.train(env=env, out=out, **(small | more | settings)).run


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("pair", r"step\(\) returned Step, expected the pair \(Step, Timestep\)"),
        ("group", r"step 60, .*group_reward is not zero, and the spec has has_group_reward=False\. Set `has_group"),
        ("image", r"step 0: obs\['a'\] is torch\.float32, expected torch\.uint8"),
        ("range", r"step 0, environment 0, agent x: obs\['a'\] has values from 1000 to 1000, outside of Box\(-1\.0"),
        (
            "text",
            r"step 1: reward is list \(\[\['1\.0', '1\.0'\], .*\), expected a tensor torch\.float32 \[2, 2\]\. Return",
        ),
    ],
)
def test_an_error_of_a_batch_refuses_the_run_and_leaves_nothing(fault: str, message: str, tmp_path: Path):
    """Found in training, and one of them in the evaluation before it."""
    env, algo = {"name": "first_steps_batch:make", "fault": fault}, {"name": "ippo", "rollout_length": 100}
    every = None if fault == "image" else 0
    with pytest.raises(ContractError, match=rf"^(environment 'first_steps_batch:make'|batch): {message}"):
        train(env, tmp_path / "runs" / "run", algo=algo, eval={"every": every, "num_envs": 2})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("every", [0, None])
def test_a_reward_that_is_no_number_refuses_the_run_and_leaves_nothing(every: int | None, tmp_path: Path):
    env = {"name": "first_steps_single:Env", "text": True}
    message = r"the reward is 'high' of type str, expected one number$"
    with pytest.raises(ContractError, match=message):
        train(env, tmp_path / "runs" / "run", eval={"every": every})
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_observations_far_out_of_range_are_refused_with_and_without_workers(workers: int, tmp_path: Path):
    env = {"name": "first_steps_single:Env", "scale": 1000.0}
    with pytest.raises(UserError, match=r"outside of Box\(-1\.0, 1\.0, \(3,\), float32\)\. Widen the bounds"):
        train(env, tmp_path / "run", workers={"count": workers})
    assert train(env, tmp_path / "run", check="off").exists()


def test_the_check_does_not_change_results(tmp_path: Path):
    env = {"name": "first_steps_single:Env"}
    runs = [train(env, tmp_path / check, check=check) for check in ("on", "off")]
    rows = [coterie.load(run).policies["agent"].state_dict() for run in runs]
    leaves = [[x for x in tree_leaves(state) if isinstance(x, torch.Tensor)] for state in rows]
    assert len(leaves[0]) > 4
    assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))


def test_errors_of_a_librarys_environment_and_warnings_are_printed_once():
    env = make("first_steps_batch:make", {"fault": "range"}, 2)
    notes: list[str] = []
    check = FirstSteps(env, "library/env", refuses=False, note=notes.append)
    check.reset(env.reset())
    for _ in range(3):
        check.step(*env.step({}))
    assert [note.partition(": ")[0] for note in notes] == ["environment 'library/env'"]
    env = make("first_steps_batch:make", {"fault": "truncates"}, 2)
    notes.clear()
    check = FirstSteps(env, "own", refuses=False, note=notes.append)
    check.reset(env.reset())
    for _ in range(3):
        check.step(*env.step({}))
    assert sum("episode_limit" in note for note in notes) == 1


def test_worlds_of_coterie_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    monkeypatch.setattr(command, "FirstSteps", lambda env, name, **_: made.append(name))
    train({"name": "matrix/climbing"}, tmp_path / "own", algo={"name": "ippo", "hidden_sizes": [4]}, steps=20)
    assert made == []
    train({"name": "gym/CartPole-v1"}, tmp_path / "gym", steps=20)
    assert made == ["gym/CartPole-v1"] * 2  # the environments of evaluation and of training
    assert resolve([]).config.check == "on"
