from __future__ import annotations

import multiprocessing
import tempfile
import threading
from pathlib import Path
from threading import Barrier

import pytest
import torch
import torch.distributed as dist
from helpers.rank_threads import ThreadRanks

from coterie.assembly import rank_processes
from coterie.assembly.rank_processes import (
    exchange_of,
    joined,
    own_out,
    require_supported,
    share_memory,
    with_launched_ranks,
)
from coterie.assembly.resolve import resolve
from coterie.commands import resume_notes
from coterie.commands import train as training
from coterie.config.provenance import to_yaml
from coterie.core.errors import UserError
from coterie.kernels import native
from coterie.kernels.build import KernelsUnavailableError
from coterie.ranks import process_ranks
from coterie.ranks.process_ranks import RankFailedError
from coterie.ranks.rank_failure import FOLDER
from coterie.ranks.ranks import ONE
from coterie.runs.checkpoints import LoadedCheckpoint
from coterie.runs.folder import RunFolder
from coterie.training.callback import Callback
from rank_exchanges import join_and_stop, joined_ranks
from tinyruns import PRELOADED_MODULES

fcntl = pytest.importorskip("fcntl")

_SPREAD = ("env=particle/simple_spread", "algo=ippo", "num_envs=6")


def test_environments_that_cannot_be_divided_among_ranks_are_refused() -> None:
    config = resolve([*_SPREAD, "ranks=4"]).config
    with pytest.raises(UserError, match=r"num_envs=6: cannot be divided among 4 ranks. Set num_envs=4"):
        require_supported(config)
    require_supported(config.model_copy(update={"ranks": 1}))


def test_torchrun_decides_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert with_launched_ranks(resolve(_SPREAD)).config.ranks == 3
    with pytest.raises(UserError, match="ranks=2: torchrun started 3"):
        with_launched_ranks(resolve([*_SPREAD, "ranks=2"]))


def test_a_rank_has_the_origins_that_the_process_which_started_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not those of the file with all settings, none of which its user has given."""
    resolved = resolve([*_SPREAD, "ranks=2"])
    path = tmp_path / rank_processes.SETTINGS
    path.write_text(to_yaml(resolved))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(rank_processes.SIZE, "2")
    launched = with_launched_ranks(resolve([], config_file=path))
    assert launched == resolved
    assert launched.given == {"env.name", "algo.name", "num_envs", "ranks"}


def test_a_rank_without_a_gpu_says_so_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    config = resolve([*_SPREAD, "ranks=2", "device=cuda"]).config
    with pytest.raises(UserError, match="ranks=2: rank 1 has no GPU, there are 1 on this machine"), joined(config):
        pass


def test_a_rank_that_cannot_connect_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Connection refused\nException raised from listen")

    monkeypatch.setattr(dist, "init_process_group", refuse)
    with pytest.raises(RankFailedError) as found:
        joined_ranks(tmp_path, 0, 1)
    assert "rank 0 could not connect to all other ranks, so all ranks end: Connection refused. If" in str(found.value)
    assert "\n" not in str(found.value)


def test_callbacks_cannot_be_passed_to_other_processes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="callbacks: cannot be passed to the 2 processes"):
        training.train(resolve([*_SPREAD, "ranks=2", f"out={tmp_path / 'run'}"]), [Callback(on_end=print)])
    assert not (tmp_path / "run").exists()


def test_what_a_local_rank_writes_is_in_the_folder_that_its_command_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, second = resolve(_SPREAD).config, ThreadRanks(1, Barrier(1), [None, None])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with own_out(config, second) as out:
        assert out is not None
        assert out.parent.parent == tmp_path
    (tmp_path / "command").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "command"))
    with own_out(config, second) as out:
        assert out == tmp_path / "command" / "rank-1" / "run"


def _has_kernels() -> bool:
    try:
        native.load()
    except KernelsUnavailableError:
        return False
    return True


def test_the_way_of_exchange_is_that_which_the_ranks_agreed_on(tmp_path: Path) -> None:
    ranks = joined_ranks(tmp_path, 0, 1)
    assert exchange_of(ranks) == "gloo"
    share_memory(ranks, 30.0)
    found = exchange_of(ranks)
    ranks.close()
    assert found == ("shared memory" if _has_kernels() else "gloo")
    assert exchange_of(ONE) is None


def test_shared_memory_is_freed_if_another_rank_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, file = joined_ranks(tmp_path, 0, 1), tmp_path / "exchange"

    def fails(value: float) -> None:
        assert file.exists()
        raise RankFailedError("rank 1 hangs.")

    def create(size: int) -> Path:
        file.touch()
        return file

    def cannot_map(path: Path, rank: int, size: int, *, timeout: float) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(rank_processes, "create_shared_file", create)
    monkeypatch.setattr(rank_processes, "SharedMemory", cannot_map)
    monkeypatch.setattr(ranks, "total", fails)
    with pytest.raises(RankFailedError):
        share_memory(ranks, 30.0)
    ranks.close()
    assert not file.exists()


@pytest.mark.parametrize(
    ("size", "before", "noted"), [(3, "gloo", True), (3, "shared memory", False), (2, "gloo", False), (3, None, False)]
)
def test_another_way_of_exchange_is_noted_if_sums_may_differ(
    size: int, before: str | None, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_notes, "exchange_of", lambda ranks: "shared memory")
    monkeypatch.setattr(resume_notes, "num_ranks", lambda state: size)
    metadata = {} if before is None else {"exchange": before}
    notes = resume_notes.rank_notes(
        LoadedCheckpoint(Path(), 0, {}, metadata, None), ThreadRanks(0, Barrier(1), [None] * size)
    )
    expected = (
        "ranks: tensors were summed through gloo, and are now through shared memory. Results may differ in the last "
        "bits"
    )
    assert notes == ([expected] if noted else [])


def test_another_device_than_that_of_the_checkpoint_is_noted(tmp_path: Path) -> None:
    """The manifest has the device with which the run started; only old checkpoints have no device of their own."""
    folder = RunFolder(tmp_path)
    folder.write_manifest({"device": "cuda:0"})

    def notes(metadata: dict[str, str]) -> list[str]:
        return resume_notes.device_notes(folder, "cpu", LoadedCheckpoint(Path(), 0, {}, metadata, None))

    expected = (
        "device: cuda before, cpu now. Networks, optimizers and statistics continue exactly; random numbers differ"
    )
    assert notes({}) == notes({"device": "cuda:1"}) == [expected]
    assert notes({"device": "cpu"}) == []


def test_a_rank_that_is_stopped_with_the_lock_of_the_file_of_the_group_keeps_no_other_waiting(tmp_path: Path) -> None:
    ranks = joined_ranks(tmp_path, 0, 1)
    sent: list[bytes] = []
    with (tmp_path / "store").open("r+b") as file:  # as `torch.distributed` holds it for a moment
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: sent.append(ranks.broadcast(b"content")), daemon=True)
        thread.start()
        thread.join(20.0)
        found = list(sent)
    thread.join()
    ranks.close()
    assert found == [b"content"]


def test_a_rank_0_that_hangs_at_the_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_ranks, "_RANK_0_SECONDS", 0.5)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    process = context.Process(target=join_and_stop, args=(str(tmp_path),))
    process.start()
    ranks = joined_ranks(tmp_path, 1, 2)
    ranks.total(1.0)
    monkeypatch.setattr(ranks, "_timeout", 0.5)
    try:
        with pytest.raises(RankFailedError, match="rank 0 does not respond, so all ranks end"):
            ranks.close()
    finally:
        process.kill()
        process.join()
        ranks._ended.set()
        dist.destroy_process_group()
