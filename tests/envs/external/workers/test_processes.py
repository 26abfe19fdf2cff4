"""Worker processes: results identical to serial stepping, and every kind of failure."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.__main__ import main
from coterie.config.schema import WorkersConfig
from coterie.core.errors import EnvironmentFailedError, UserError
from coterie.core.types import Step, Timestep
from coterie.envs.contract.traces import first_difference
from coterie.envs.external.hosting.factory import instance_factory
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, SerialBackend
from coterie.envs.external.workers.processes import ProcessBackend
from coterie.envs.external.workers.worker_loop import pack, unpack
from coterie.policies.base import RandomPolicy
from coterie.runs import checkpoints
from coterie.training.collector import Collector
from gymnasium_worlds import results
from places import HELPERS
from tinyruns import Process, tiny, train
from workerfaults import (
    REQUESTS,
    alive,
    assert_lost,
    assert_replaced_at,
    forget_worker,
    separate_errors,
    step_hanging_workers,
    wait_for,
)

COUNTING = "gym/faultyworlds:Counting-v0"
FAULTY = HELPERS / "faultyworlds.py"
RAISING_LINE = next(k for k, text in enumerate(FAULTY.read_text().splitlines(), 1) if "raise ZeroDivisionError" in text)
FAULTS = ("killed", "hangs", "nan", "nan_reward")


def make_env(
    name: str, workers: int, num_envs: int = 5, seed: int = 3, timeout: float = 3.0, **params: Any
) -> BackendVectorEnv:
    if not workers:
        layout, make = instance_factory(name, params)
        return BackendVectorEnv(SerialBackend(make, layout, num_envs), seed, "cpu")
    return BackendVectorEnv(
        ProcessBackend(name, params, num_envs, WorkersConfig(count=workers, timeout=timeout, restarts=2)), seed, "cpu"
    )


def test_wrappers_have_the_same_results_in_workers():
    wrappers = {"sticky_actions": 0.5, "action_repeat": 2, "frame_stack": 3}
    envs = [make_env("gym/CartPole-v1", workers, wrappers=wrappers) for workers in (0, 2)]
    first, rest = [env.reset() for env in envs], [results(env, 40) for env in envs]
    assert first_difference(*first) is None
    assert first_difference(*rest) is None
    plain = make_env("gym/CartPole-v1", 0)
    plain.reset()
    assert rest[0][-1].obs["agent"].shape[-1] == 3 * results(plain, 1)[-1].obs["agent"].shape[-1]  # pyright: ignore
    for env in (*envs, plain):
        env.close()


@pytest.mark.slow
def test_a_state_can_be_restored_with_any_number_of_workers(tmp_path: Path):
    envs = [make_env("gym/CartPole-v1", workers) for workers in (2, 0, 3)]
    envs[0].reset()
    results(envs[0], 12)
    checkpoints.save(tmp_path / "state", {"env": envs[0].state_dict()}, {})
    expected = results(envs[0], 30)
    state = checkpoints.load(tmp_path / "state")[0]["env"]
    for env in envs[1:]:
        env.load_state_dict(state)
        assert first_difference(results(env, 30), expected) is None
    for env in envs:
        env.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_interface_does_not_allow_ends_the_run_at_once(workers: int, tmp_path: Path, caplog: Any):
    name = "faultyworlds:Counting"
    env = make_env(name, workers, num_envs=4, timeout=30.0, fault="shape", once=str(tmp_path / "once"))
    env.reset()
    with pytest.raises(UserError, match=rf"^{name} \(faultyworlds\.py:\d+\): .* an observation with shape \(5,\)"):
        results(env, 3)
    assert "replaced a worker" not in caplog.text
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_environments_of_a_failed_worker_restart_and_the_others_continue(fault: str, tmp_path: Path, caplog: Any):
    timeout = 1.0 if fault == "hangs" else 30.0
    env = make_env(COUNTING, 2, num_envs=4, timeout=timeout, fault=fault, once=str(tmp_path / "once"))
    number = env.reset().obs["agent"][:, 0, 0]
    found = results(env, 3)
    step, timestep = found[-2], found[-1]
    assert isinstance(step, Step)
    assert isinstance(timestep, Timestep)
    assert step.lost is not None
    lost = step.lost.tolist()
    own = [True, True, False, False]
    assert lost in (own, own[::-1])  # whichever worker came first
    gone = step.lost
    age, episode = timestep.obs["agent"][:, 0, 2], timestep.obs["agent"][:, 0, 1]
    assert age.tolist() == torch.where(gone, 0.0, 3.0).tolist()
    assert episode[gone].tolist() == [1.0, 1.0]  # in a new process
    assert torch.equal(timestep.first[:, 0], gone)
    assert timestep.acted.all()
    assert not step.reward[gone].any()
    assert (step.reward[~gone] == 3).all()
    assert len(set(timestep.obs["agent"][:, 0, 0].tolist())) == 4  # different random numbers
    assert torch.equal(timestep.obs["agent"][:, 0, 0] != number, gone)  # of new seeds
    assert "replaced a worker" in caplog.text
    after = results(env, 1)[0]
    assert isinstance(after, Step)
    assert after.lost is None
    assert after.reward[:, 0].tolist() == torch.where(gone, 1.0, 4.0).tolist()
    env.close()


@pytest.mark.parametrize(
    ("message", "number"), [*((message, signal.SIGKILL) for message in REQUESTS), ("render", signal.SIGSTOP)]
)
def test_a_worker_that_fails_at_any_message_outside_a_step_is_replaced(message: str, number: int):
    env = make_env("gym/CartPole-v1", 2, num_envs=4, timeout=1.0 if number == signal.SIGSTOP else 30.0)
    pids = env.backend.pids  # pyright: ignore[reportAttributeAccessIssue]
    state = assert_replaced_at(message, env, lambda: os.kill(pids[1], number))
    if message == "state":
        for workers in (0, 1):  # the loaded episodes do not continue those that were dropped
            other = make_env("gym/CartPole-v1", workers, num_envs=4)
            other.reset()
            other.load_state_dict(state)
            assert_lost(other, torch.tensor([False, False, True, True]))
            other.close()
    env.close()


def test_an_environment_that_cannot_be_made_in_a_worker_is_a_one_line_error():
    with pytest.raises(UserError, match="nothing here"):
        ProcessBackend("gym/nothing here", {}, 2, WorkersConfig(count=1))


def test_the_collector_drops_a_lost_episode_and_truncates_the_step_before_it(tmp_path: Path):
    env = make_env(COUNTING, 2, num_envs=4, fault="exits", once=str(tmp_path / "once"), length=6)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: RandomPolicy(team, env.device)}, 0)
    rollouts, acted = collector.advance(10)
    rollout = rollouts[team.name]
    gone = ~rollout.acted[2]
    assert int(gone.sum()) == 2
    assert (
        int(acted) == 10 * 4 - 2 - 2 - 2
    )  # lost timesteps, and final timesteps of the others and of the restarted ones
    assert torch.equal(rollout.episode_truncated[1], gone)
    assert torch.equal(rollout.truncated[1, :, 0], gone)
    assert not rollout.episode_truncated[2:].any()
    assert not rollout.reward[2, gone].any()
    assert rollout.first[3, gone].all()
    assert collector.dropped == 2
    finished = collector.pop_finished()
    assert finished is not None
    assert finished.length.tolist() == [6, 6, 6, 6]
    assert finished.returns[:, 0].tolist() == [21.0] * 4
    env.close()


@pytest.mark.slow
def test_training_continues_after_a_failure_and_counts_it(tmp_path: Path):
    fault = ("env.fault=killed", f"env.once={tmp_path / 'once'}", "env.episode=4", "steps=240", "eval.every=0")
    train(tmp_path / "run", "algo=ppo", f"env={COUNTING}", *fault, "workers.count=2")
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"rollout/dropped": 2' in metrics
    assert '"rollout/return_mean": 21.0' in metrics


def test_the_traceback_of_a_failure_before_the_first_checkpoint_is_printed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COTERIE_DEBUG", "1")
    words = tiny("algo=ippo", f"env={COUNTING}", "env.fault=raises", "num_envs=2", f"out={tmp_path / 'run'}")
    assert main(["train", *words]) == 3
    output = capsys.readouterr().err  # during the warm-up with random actions
    assert f'{FAULTY}", line {RAISING_LINE}, in fail' in output
    assert output.endswith("There is no checkpoint yet.\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reasons", "workers", "restarts"),
    [
        ("raises", (f"{COUNTING} failed in a step: ", f"no weight (faultyworlds.py:{RAISING_LINE})"), 0, 0),
        ("interrupt", ("KeyboardInterrupt",), 1, 0),  # without workers it cannot be distinguished from Ctrl-C
        ("raises", ("the ball has no weight", "workers.restarts=1"), 1, 1),
    ],
)
def test_a_failure_ends_a_run_with_exit_code_three_and_names_the_checkpoint(
    fault: str, reasons: tuple[str, ...], workers: int, restarts: int, tmp_path: Path, capfd: Any
):
    words = tiny("algo=ippo", f"env={COUNTING}", f"env.fault={fault}", "env.episode=10", "num_envs=2", "steps=2000")
    words += [f"workers.count={workers}", f"workers.restarts={restarts}", "eval.every=0", f"out={tmp_path / 'run'}"]
    code = main(["train", *words])
    output, errors = capfd.readouterr()
    assert code == 3, errors
    assert output == ""
    assert all(reason in errors for reason in reasons)
    assert "Traceback" not in errors
    assert f"last good checkpoint is in {tmp_path / 'run' / 'checkpoints'}" in errors.splitlines()[-1]
    assert coterie.load(tmp_path / "run") is not None


PRINTS = ["train", *tiny("algo=ippo", f"env={COUNTING}", "env.fault=prints", "num_envs=2", "eval.every=0"), "--json"]


def assert_only_json_is_on_standard_output(output: str, errors: str) -> None:
    assert json.loads(output)["steps"] >= 80
    assert output.count("\n") == 1
    assert "printed by Python" in errors
    assert "written by a library" in errors


def test_what_environments_print_does_not_reach_json(tmp_path: Path, capfd: Any):
    assert main([*PRINTS, f"out={tmp_path / 'run'}"]) == 0
    assert_only_json_is_on_standard_output(*capfd.readouterr())


@pytest.mark.slow
def test_what_environments_of_workers_print_does_not_reach_json(tmp_path: Path):
    """In a process of its own, because workers write to the standard error of the process that began the first one."""
    words = [*PRINTS, "workers.count=1", f"out={tmp_path / 'run'}"]
    code, output = Process(tmp_path, *words, prepare=separate_errors).end()
    assert code == 0, output
    assert_only_json_is_on_standard_output(output, (tmp_path / "errors").read_text())


def test_standard_output_is_restored_after_a_command_with_json(capfd: Any):
    assert main(["list", "algos", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)
    print("printed")
    os.write(1, b"written\n")
    assert capfd.readouterr().out == "printed\nwritten\n"


def test_the_reported_line_is_in_the_users_own_code(monkeypatch: pytest.MonkeyPatch):
    env = make_env(COUNTING, 0)
    monkeypatch.setattr("faultyworlds.Counting.reset", lambda *_, **__: json.loads("{"))
    message = r"failed in reset: JSONDecodeError: Expecting .* \(test_processes.py:\d+\)"
    with pytest.raises(EnvironmentFailedError, match=message) as caught:
        env.reset()
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)
    env.close()


@pytest.mark.slow
def test_no_worker_survives_a_killed_trainer(tmp_path: Path):
    """A trainer in a process of its own with hanging workers, ended by SIGKILL."""
    trainer = Process(tmp_path, prepare=step_hanging_workers)
    trainer.wait_for((tmp_path / "pids").exists)
    pids = (tmp_path / "pids").read_text().split()
    time.sleep(0.5)  # the workers hang by now
    assert all(alive(int(pid)) for pid in pids)
    trainer.signal(signal.SIGKILL)
    assert trainer.end()[0] == -signal.SIGKILL
    wait_for(lambda: not any(alive(int(pid)) for pid in pids))


@pytest.mark.slow
def test_sigterm_to_the_process_group_is_handled_by_the_trainer(tmp_path: Path):
    """`timeout` sends it to the trainer and to all processes of its group."""
    run = tmp_path / "run"
    words = tiny("algo=ippo", "env=gym/CartPole-v1", "workers.count=2", "steps=10M", "eval.every=0", f"out={run}")
    trainer = Process(tmp_path, "train", *words, prepare=os.setsid)
    try:
        trainer.wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
        members = group(trainer.pid)
        assert len(members) >= 4  # the trainer, the fork server and two workers
        trainer.signal(signal.SIGTERM)
        os.killpg(trainer.pid, signal.SIGTERM)
        code, caught = trainer.end()
        assert code == 128 + signal.SIGTERM
        wait_for(lambda: not any(map(alive, members)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)
    assert "Resume with: coterie resume" in caught
    assert "replaced" not in caught


@pytest.mark.slow
def test_workers_that_are_not_closed_do_not_block_the_exit(tmp_path: Path):
    assert Process(tmp_path, "list", "algos", prepare=forget_worker).end()[0] == 0


def group(leader: int) -> list[int]:
    """Running processes of a process group."""
    members = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, number = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            members += [int(entry.name)] if int(number) == leader and state != "Z" else []
    return members


def test_batched_environments_refuse_workers_before_anything_is_written(tmp_path: Path, capsys: Any):
    code = main(["train", "workers.count=2", "steps=1000", f"out={tmp_path / 'run'}", "progress=off"])
    output = capsys.readouterr().err.strip()
    assert code == 2
    assert output.startswith("coterie: workers.count=2: particle/simple_spread steps all its environments as one batch")
    assert "\n" not in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_loading_a_run_starts_no_workers_and_evaluation_closes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only training and evaluation step environments long enough to need workers."""
    run = train(tmp_path / "run", "algo=ppo", f"env={COUNTING}", "eval.every=0").run
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("  count: 0", "  count: 2"))
    made: list[ProcessBackend] = []
    init = ProcessBackend.__init__

    def counted(self: ProcessBackend, *args: Any, **more: Any) -> None:
        made.append(self)
        init(self, *args, **more)

    monkeypatch.setattr(ProcessBackend, "__init__", counted)
    coterie.load(run)
    assert not made
    coterie.evaluate(run, episodes=4)
    assert len(made) == 1
    assert made[0].pids == []


def test_states_are_encoded_as_plain_values_and_tensors():
    value = {"a": torch.arange(3), "b": [1, None, {"c": 2.5}], "d": np.ones((2, 2), np.uint8)}
    found = unpack(pack(value))
    assert found["b"] == value["b"]
    assert torch.equal(found["a"], value["a"])
    assert found["d"].dtype == np.uint8
    with pytest.raises(TypeError):
        pack({"f": main})
