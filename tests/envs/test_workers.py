"""Worker processes: the same bits as without them, and every way in which one can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie import checkpoint
from coterie.__main__ import main
from coterie.collect import Collector
from coterie.envs.hosting.board import Board
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.hosting.opening import opened
from coterie.envs.paths import difference, random_actions
from coterie.envs.workers.processes import Processes
from coterie.envs.workers.wire import pack, unpack
from coterie.errors import EnvironmentFailedError, UserError, WorkersFailedError
from coterie.policy import RandomPolicy
from coterie.types import Row, Step
from tinyruns import stop_at

COUNTING = "gym/faultyworlds:Counting-v0"
FAULTY = Path(__file__).with_name("faultyworlds.py")
FAULTS = ("exits", "killed", "hangs", "raises", "nan", "unpaid", "shape")


def hosted(name: str, workers: int, copies: int = 5, seed: int = 3, **params: Any) -> HostedEnv:
    if not workers:
        layout, make = opened(name, params)
        return HostedEnv(Alone(make, layout, copies), seed, "cpu")
    return HostedEnv(Processes(name, params, copies, workers, timeout=3.0, restarts=2), seed, "cpu")


def played(env: HostedEnv, steps: int) -> list[Row | Step]:
    """Everything that random actions bring; the environment has been reset."""
    generator = torch.Generator().manual_seed(0)
    row = Row({}, {}, {}, *(torch.ones(env.copies, 1),) * 2, torch.ones(env.copies))
    found: list[Row | Step] = []
    for _ in range(steps):
        step, row = env.step(random_actions(env.spec, row, generator))
        found += [step, row]
    return found


@pytest.mark.parametrize("name", ["gym/CartPole-v1", "gym/Pendulum-v1"])
def test_any_number_of_workers_gives_the_same_bits(name: str):
    envs = [hosted(name, workers) for workers in (0, 1, 4)]
    first = [env.reset() for env in envs]
    rest = [played(env, 40) for env in envs]
    for env in envs:
        env.close()
    for other in (1, 2):
        assert difference(first[0], first[other]) is None
        assert all(difference(a, b) is None for a, b in zip(rest[0], rest[other], strict=True))


def test_wrappers_give_the_same_bits_in_workers():
    around = {"sticky_actions": 0.5, "action_repeat": 2, "frame_stack": 3}
    envs = [hosted("gym/CartPole-v1", workers, wrappers=around) for workers in (0, 2)]
    first, rest = [env.reset() for env in envs], [played(env, 40) for env in envs]
    assert difference(*first) is None
    assert all(difference(a, b) is None for a, b in zip(*rest, strict=True))
    plain = hosted("gym/CartPole-v1", 0)
    plain.reset()
    assert rest[0][-1].obs["agent"].shape[-1] == 3 * played(plain, 1)[-1].obs["agent"].shape[-1]  # pyright: ignore
    for env in (*envs, plain):
        env.close()


def test_a_state_goes_on_whoever_stepped_before(tmp_path: Path):
    envs = [hosted("gym/CartPole-v1", workers) for workers in (2, 0, 3)]
    envs[0].reset()
    played(envs[0], 12)
    checkpoint.save(tmp_path / "state", {"env": envs[0].state_dict()}, {})
    expected = played(envs[0], 30)
    state = checkpoint.load(tmp_path / "state")[0]["env"]
    for env in envs[1:]:
        env.load_state_dict(state)
        assert all(difference(a, b) is None for a, b in zip(played(env, 30), expected, strict=True))
    for env in envs:
        env.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_copies_of_a_worker_that_fails_begin_anew_and_the_others_go_on(fault: str, tmp_path: Path, caplog: Any):
    env = hosted(COUNTING, 2, copies=4, fault=fault, once=str(tmp_path / "once"))
    env.reset()
    found = played(env, 3)
    step, row = found[-2], found[-1]
    assert isinstance(step, Step)
    assert isinstance(row, Row)
    assert step.lost is not None
    lost = step.lost.tolist()
    own = [True, True, False, False]
    assert lost in (own, own[::-1])  # whichever worker came first
    gone = step.lost
    age, episode = row.obs["agent"][:, 0, 2], row.obs["agent"][:, 0, 1]
    assert age.tolist() == torch.where(gone, 0.0, 3.0).tolist()
    assert episode[gone].tolist() == [1.0, 1.0]  # of another process
    assert torch.equal(row.first[:, 0], gone)
    assert row.acted.all()
    assert not step.reward[gone].any()
    assert (step.reward[~gone] == 3).all()
    assert len(set(row.obs["agent"][:, 0, 0].tolist())) == 4  # numbers of their own
    assert "is replaced" in caplog.text
    after = played(env, 1)[0]
    assert isinstance(after, Step)
    assert after.lost is None
    assert after.reward[:, 0].tolist() == torch.where(gone, 1.0, 4.0).tolist()
    env.close()


def test_without_the_fault_nothing_is_lost(tmp_path: Path):
    env = hosted(COUNTING, 2, copies=4)
    env.reset()
    steps = [x for x in played(env, 8) if isinstance(x, Step)]
    assert all(step.lost is None for step in steps)
    assert steps[5].episode_terminated.all()
    env.close()


def test_too_many_failures_end_it_with_the_reason():
    env = hosted(COUNTING, 1, copies=2, fault="raises")
    env.reset()
    words = r"failed 3 times.*copies 0 to 1 of .*ZeroDivisionError: the ball has no weight \(faultyworlds.py"
    with pytest.raises(WorkersFailedError, match=words):
        played(env, 12)
    env.close()


def test_what_cannot_be_made_in_a_worker_is_one_line():
    with pytest.raises(UserError, match="nothing here"):
        Processes("gym/nothing here", {}, 2, 1)


def test_the_collector_drops_a_lost_episode_and_cuts_the_step_before_it(tmp_path: Path):
    env = hosted(COUNTING, 2, copies=4, fault="exits", once=str(tmp_path / "once"), length=6)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: RandomPolicy(team, env.device)}, 0)
    windows, acted = collector.advance(10)
    window = windows[team.name]
    gone = ~window.acted[2]
    assert int(gone.sum()) == 2
    assert int(acted) == 10 * 4 - 2 - 2 - 2  # the lost rows, a closing row of each of the others, and of the begun anew
    assert torch.equal(window.episode_truncated[1], gone)
    assert torch.equal(window.truncated[1, :, 0], gone)
    assert not window.episode_truncated[2:].any()
    assert not window.reward[2, gone].any()
    assert window.first[3, gone].all()
    assert collector.dropped == 2
    finished = collector.statistics()
    assert finished is not None
    assert finished.length.tolist() == [6, 6, 6, 6]
    assert finished.returns[:, 0].tolist() == [21.0] * 4
    env.close()


def test_training_goes_on_after_a_failure_and_counts_it(tmp_path: Path):
    result = coterie.train(
        algo="ppo", env={"name": COUNTING, "fault": "killed", "once": str(tmp_path / "once"), "episode": 40}, copies=4,
        steps=1600, workers={"count": 2}, horizon=20, device="cpu", threads=1, out=tmp_path / "run", progress="off",
        eval={"every": 0}, log={"tensorboard": False},
    )  # fmt: skip
    rows = (result.run / "metrics.jsonl").read_text()
    assert '"rollout/dropped": 2' in rows
    assert '"rollout/return_mean": 21.0' in rows


def test_a_run_that_fails_too_often_says_why_and_leaves_a_checkpoint(tmp_path: Path, capfd: Any):
    code = main(
        ["train", "algo=ppo", f"env={COUNTING}", "env.fault=raises", "env.episode=40", "copies=2", "steps=2000",
         "workers.count=1", "workers.restarts=1", "horizon=10", "device=cpu", "eval.every=0", "log.tensorboard=false",
         f"out={tmp_path / 'run'}", "progress=off"]
    )  # fmt: skip
    assert code == 3
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "the ball has no weight" in said
    assert "workers.restarts=1" in said
    assert coterie.load(tmp_path / "run") is not None


def test_an_environment_that_raises_without_workers_is_one_line_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    words = [
        *("train", "algo=ppo", f"env={COUNTING}", "env.fault=raises", "copies=2", "steps=2000"),
        *("horizon=10", "device=cpu", "log.tensorboard=false", "progress=off", "eval.episodes=4", "eval.copies=2"),
    ]
    line = next(k for k, text in enumerate(FAULTY.read_text().splitlines(), 1) if "raise ZeroDivisionError" in text)
    assert main([*words, "env.episode=40", "eval.every=0", f"out={tmp_path / 'run'}"]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"coterie: {COUNTING} failed in a step: ZeroDivisionError: the ball has no weight")
    assert f"(faultyworlds.py:{line})" in said
    assert f"the last good checkpoint is in {tmp_path / 'run' / 'checkpoints'}" in said
    assert coterie.load(tmp_path / "run") is not None
    monkeypatch.setenv("COTERIE_DEBUG", "1")
    assert main([*words, "env.episode=1", f"out={tmp_path / 'other'}"]) == 3
    said = capsys.readouterr().err  # while policies played at random
    assert f'{FAULTY}", line {line}, in fail' in said
    assert said.endswith("there is no checkpoint yet\n")


def test_the_line_that_is_told_is_the_user_s_own_whatever_raised_below(monkeypatch: pytest.MonkeyPatch):
    env = hosted(COUNTING, 0)
    monkeypatch.setattr("faultyworlds.Counting.reset", lambda *_, **__: json.loads("{"))
    words = r"failed in reset: JSONDecodeError: Expecting .* \(test_workers.py:\d+\); mend"
    with pytest.raises(EnvironmentFailedError, match=words) as told:
        env.reset()
    assert isinstance(told.value.__cause__, json.JSONDecodeError)
    env.close()


def test_nothing_is_left_when_the_trainer_is_killed(tmp_path: Path):
    """A trainer of its own with hanging workers, ended by a signal that it cannot answer."""
    script = tmp_path / "trainer.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from coterie.envs.workers.processes import Processes\n"
        "if __name__ == '__main__':\n"
        f"    host = Processes({COUNTING!r}, {{'fault': 'hangs'}}, 4, 2, timeout=500)\n"
        "    host.reset(0)\n"
        "    print(*host.pids, flush=True)\n"
        "    while True:\n        host.send()\n        host.receive()\n"
    )
    trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = trainer.stdout.readline().split()
    time.sleep(0.5)  # the workers hang by now
    assert all(alive(int(pid)) for pid in pids)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    until = time.monotonic() + 20
    while time.monotonic() < until and any(alive(int(pid)) for pid in pids):
        time.sleep(0.05)
    assert not any(alive(int(pid)) for pid in pids)


def test_sigterm_to_the_whole_group_is_one_to_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As `timeout` sends it: to the trainer, and at once to everybody in its process group."""
    run = tmp_path / "run"
    words = [
        *("algo=ppo", "env=gym/CartPole-v1", "workers.count=2", "copies=4", "steps=10M", "horizon=20", "device=cpu"),
        *("threads=1", "eval.every=0", "log.tensorboard=false", f"out={run}"),
    ]
    said = tmp_path / "said"
    with said.open("w") as out:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "coterie", "train", *words], stdout=out, stderr=out, start_new_session=True
        )
    try:
        until = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
            assert trainer.poll() is None, said.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        assert len(group(trainer.pid)) >= 4  # itself, two workers, and who forks them
        trainer.terminate()
        os.killpg(trainer.pid, signal.SIGTERM)
        assert trainer.wait(60) == 128 + signal.SIGTERM
        until = time.monotonic() + 10
        while group(trainer.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert not group(trainer.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()
    told = said.read_text()
    assert "the checkpoint is written; go on with: coterie resume" in told
    assert "replaced" not in told
    found = checkpoint.Checkpoints(run / "checkpoints").latest()
    assert found is not None
    stop_at(monkeypatch, found.steps + 80)
    assert main(["resume", str(run), "workers.count=0", "progress=off"]) == 0
    went_on = checkpoint.Checkpoints(run / "checkpoints").latest()
    assert went_on is not None
    assert found.steps < went_on.steps < 10_000_000


def test_workers_that_nobody_closes_do_not_keep_a_process_from_ending(tmp_path: Path):
    script = tmp_path / "forgets.py"
    script.write_text(
        "from coterie.envs.workers.processes import Processes\n"
        "if __name__ == '__main__':\n"
        "    host = Processes('gym/CartPole-v1', {}, 2, 1)\n"
        "    host.reset(0)\n"
    )
    assert subprocess.run([sys.executable, str(script)], timeout=60, check=False).returncode == 0


def group(leader: int) -> list[int]:
    """Processes of its process group that live."""
    members = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, number = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            members += [int(entry.name)] if int(number) == leader and state != "Z" else []
    return members


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_batches_refuse_workers_before_anything_is_written(tmp_path: Path, capsys: Any):
    code = main(["train", "workers.count=2", "steps=1000", f"out={tmp_path / 'run'}", "progress=off"])
    said = capsys.readouterr().err.strip()
    assert code == 2
    assert said.startswith("coterie: workers.count=2: particle/simple_spread steps all its copies as one batch")
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


def test_only_what_is_stepped_for_long_starts_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run of workers is loaded and shown by this process; its evaluation has workers, which are gone afterwards."""
    given = {"copies": 2, "eval": {"every": 0}, "log": {"tensorboard": False}, "progress": "off", "device": "cpu"}
    run = coterie.train(algo="ppo", env=COUNTING, steps=60, horizon=10, out=tmp_path / "run", **given).run
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("  count: 0", "  count: 2"))
    made: list[Processes] = []
    begin = Processes.__init__

    def counted(self: Processes, *args: Any, **more: Any) -> None:
        made.append(self)
        begin(self, *args, **more)

    monkeypatch.setattr(Processes, "__init__", counted)
    coterie.load(run)
    assert not made
    coterie.evaluate(run, episodes=4)
    assert len(made) == 1
    assert made[0].pids == []


def test_a_board_in_given_memory_is_laid_out_as_one_of_its_own():
    layout, _ = opened("gym/CartPole-v1", {})
    memory = bytearray(Board.size(layout, 3))
    one, other = Board(layout, 3, memoryview(memory)), Board(layout, 3, memoryview(memory))
    one.obs["agent"][""][...] = np.arange(12).reshape(3, 1, 4)
    one.discrete["agent"][...] = 7
    one.flags[1] = True
    assert other.obs["agent"][""].tolist() == np.arange(12).reshape(3, 1, 4).tolist()
    assert other.discrete["agent"].tolist() == [[[7]]] * 3
    assert other.ended.tolist() == [[False, False], [True, True], [False, False]]
    assert not other.reward.any()


def test_states_cross_as_plain_numbers_and_tensors():
    value = {"a": torch.arange(3), "b": [1, None, {"c": 2.5}], "d": np.ones((2, 2), np.uint8)}
    found = unpack(pack(value))
    assert found["b"] == value["b"]
    assert torch.equal(found["a"], value["a"])
    assert found["d"].dtype == np.uint8
    with pytest.raises(TypeError):
        pack({"f": main})
