"""Sweeps on Ray: a local one, and the files of runs that are copied."""

from __future__ import annotations

import io
import signal
import tarfile
from pathlib import Path

import pytest

import tinyruns
from coterie.sweeps.ray_job import RayJob, pack, unpack
from sweeps import copy_often, sweep


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


def job_of(tmp_path: Path, *words: str) -> RayJob:
    """Starts a command as a node does."""
    return RayJob(
        [*words, "out='{out}'", "--json"],
        run=None,
        config=None,
        folder=str(tmp_path / "missing"),
        module_path=str(Path(__file__).resolve().parents[2] / "src"),
        copy_seconds=0.0,
    )


@pytest.mark.slow
def test_a_job_returns_messages_and_exit_code_of_its_command(tmp_path: Path):
    job = job_of(tmp_path, "train", "algo=mapo")
    lines: list[str] = []
    code = None
    while code is None:
        new, files, code, _ = job.poll()
        lines += new
        assert files is None
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("coterie: algo: there is no algorithm 'mapo'. Did you mean 'mappo'")


@pytest.mark.parametrize(("name", "kind"), [("../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), ("x", tarfile.SYMTYPE)])
def test_an_archive_with_anything_but_files_of_a_run_is_refused(name: str, kind: bytes, tmp_path: Path):
    content, member = io.BytesIO(), tarfile.TarInfo(name)
    member.type = kind
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(member)
    with pytest.raises(ValueError, match="not a file of it"):
        unpack(content.getvalue(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_sweep_on_ray_continues_a_copied_run_with_the_bits_of_runs_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first job is copied while it trains, then its node is lost."""
    settings = ("steps=4000", "checkpoint.every=400", "eval.every=0")
    monkeypatch.setattr("coterie.sweeps.ray_job._POLL_SECONDS", 0.02)
    job, files, code = job_of(tmp_path, "train", *tinyruns.tiny(*settings), "seed=0"), None, None
    while code is None and (files is None or b"checkpoints/last" not in files):  # with the first checkpoint
        _, files, code, _ = job.poll()
    assert code is None
    assert files is not None
    job._process.kill()
    while code is None:
        _, _, code, _ = job.poll()
    assert code == 128 + signal.SIGKILL
    unpack(files, tmp_path / "sweep" / "seed0")
    code, outcomes, messages = sweep(
        tmp_path, *settings, "seed=0,1", "out=sweep", "--launcher", "ray address=local", prepare=copy_often
    )
    assert code == 0, messages
    assert [outcome["state"] for outcome in outcomes] == ["resumed", "finished"]
    assert "[seed0] resumes sweep/seed0" in messages
    assert [outcome["run"] for outcome in outcomes] == ["sweep/seed0", "sweep/seed1"]
    for seed in ("seed=0", "seed=1"):
        calm, copied = tmp_path / seed, tmp_path / "sweep" / seed.replace("=", "")
        tinyruns.train(calm, *settings, seed)
        assert tinyruns.log_entries(calm) == tinyruns.log_entries(copied)
        tinyruns.assert_same(tinyruns.checkpoint_state(calm), tinyruns.checkpoint_state(copied))
