"""Sweeps on Ray: a local one, and the files of runs that are copied."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import tinyruns
from coterie.sweeps.ray_job import RayJob, pack, unpack
from sweeps import copy_often, start, sweep


def test_a_copied_run_replaces_the_one_before(tmp_path: Path):
    run = tmp_path / "node" / "run"
    (run / "checkpoints" / "000000000040").mkdir(parents=True)
    for name in ("manifest.json", "metrics.jsonl", "lock", ".writing-config.yaml", "checkpoints/000000000040/state"):
        (run / name).write_text(name)
    copy = tmp_path / "sweep" / "seed0"
    unpack(pack(run), copy)
    (copy / "of the copy before").touch()
    unpack(pack(run), copy)
    assert sorted(path.name for path in copy.iterdir()) == ["checkpoints", "manifest.json", "metrics.jsonl"]
    assert (copy / "checkpoints" / "000000000040" / "state").read_text() == "checkpoints/000000000040/state"
    assert [path.name for path in copy.parent.iterdir()] == ["seed0"]


@pytest.mark.slow
def test_a_job_returns_messages_and_exit_code_of_its_command(tmp_path: Path):
    job = RayJob(
        ["train", "algo=mapo", "out='{out}'", "--json"],
        run=None,
        config=None,
        folder=str(tmp_path / "missing"),
        module_path=str(Path(__file__).resolve().parents[2] / "src"),
        copy_seconds=1.0,
    )
    lines: list[str] = []
    code = None
    while code is None:
        new, files, code, _ = job.poll()
        lines += new
        assert files is None
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("coterie: algo: there is no algorithm 'mapo'. Did you mean 'mappo'")


@pytest.mark.slow
def test_a_killed_sweep_on_ray_ends_with_the_bits_of_runs_on_this_machine(tmp_path: Path):
    settings = ("steps=4000", "checkpoint.every=400", "eval.every=0")
    words = (*settings, "seed=0,1", "out=sweep", "--launcher", "ray address=local")
    process = start(tmp_path, *words, prepare=copy_often)
    process.wait_for((tmp_path / "sweep" / "seed0" / "checkpoints" / "last").exists)  # copied from the node
    process.signal(signal.SIGKILL)
    process.end()
    code, outcomes, messages = sweep(tmp_path, *words, prepare=copy_often)
    assert code == 0, messages
    assert [outcome["state"] in {"resumed", "finished"} for outcome in outcomes] == [True, True]
    assert "[seed0] resumes sweep/seed0" in messages
    assert [outcome["run"] for outcome in outcomes] == ["sweep/seed0", "sweep/seed1"]
    calm = tmp_path / "calm"
    tinyruns.train(calm, *settings, "seed=0")
    assert tinyruns.log_entries(calm) == tinyruns.log_entries(tmp_path / "sweep" / "seed0")
    tinyruns.assert_same(tinyruns.checkpoint_state(calm), tinyruns.checkpoint_state(tmp_path / "sweep" / "seed0"))
