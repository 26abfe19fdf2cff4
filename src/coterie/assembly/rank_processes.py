"""The ranks of a run as processes: settings, joining, and what each of them reads and writes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from coterie.assembly.resolve import Resolved
from coterie.assembly.temporary_folders import temporary_folder
from coterie.config import sources
from coterie.config.provenance import to_yaml
from coterie.config.schema import RunConfig
from coterie.core.errors import ReportedError, UserError
from coterie.core.files import write_text
from coterie.kernels.build import KernelsUnavailableError
from coterie.ranks import process_ranks
from coterie.ranks.process_ranks import ProcessRanks, RankLostError
from coterie.ranks.rank_failure import FOLDER, RANK
from coterie.ranks.rank_stores import FolderStore, file_store, launcher_store
from coterie.ranks.ranks import ONE, Ranks
from coterie.ranks.shared_memory import SharedMemory, create_shared_file
from coterie.runs.checkpoints import Checkpoints, LoadedCheckpoint
from coterie.runs.folder import RunFolder
from coterie.training.rank_states import pack, state_for, unpack

PARENT = "COTERIE_RANKS_PARENT"
"""Environment variable of a rank that a command of Coterie started: the process number of the command."""
SIZE = "COTERIE_RANKS"
"""Environment variable of a rank that a command of Coterie started: the number of ranks."""
RESULT = "result.json"
"""File with the folder of the run and its exit code, for the process that started the ranks."""
SETTINGS = "config.yaml"
"""File with all settings of a new run, from the process that starts the ranks."""
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_PR_SET_PDEATHSIG = 1  # prctl(2)


# ------------------------------------------------------------------------------------------------------------ settings


def size_of_launcher() -> int | None:
    """Returns the number of ranks that `torchrun` or a command of Coterie started, with this process; None if none."""
    if FOLDER in os.environ:
        return int(os.environ[SIZE])
    return int(os.environ["WORLD_SIZE"]) if _TORCHRUN in os.environ else None


def starts_local_ranks(config: RunConfig) -> bool:
    """True if this process is to start local ranks instead of training itself."""
    return config.ranks > 1 and size_of_launcher() is None


def with_launched_ranks(resolved: Resolved, *, is_new: bool = True) -> Resolved:
    """Returns the settings with the number of ranks that the launcher started.

    Args:
        resolved: Settings of a run.
        is_new: False for a run that is resumed, which may continue with another number of ranks.

    Raises:
        UserError: If `ranks` of a new run is another number, or if the ranks cannot train as configured.
    """
    size, config = size_of_launcher() or resolved.config.ranks, resolved.config
    if is_new and config.ranks not in (1, size):
        raise UserError(f"ranks={config.ranks}: torchrun started {size}. Leave ranks out, it is taken from torchrun.")
    if size != config.ranks:
        config = config.model_copy(update={"ranks": size})
    require_supported(config)
    if is_new and FOLDER in os.environ:  # the file with all settings, in whose comments the origins stand
        found = sources.from_file(Path(os.environ[FOLDER]) / SETTINGS, saved=True)
        return Resolved(config, resolved.origins | {setting.key: setting.origin for setting in found})
    return replace(resolved, config=config)


def require_supported(config: RunConfig) -> None:
    """Raises UserError if several ranks cannot train as configured."""
    size = config.ranks
    if size == 1:
        return
    if config.num_envs % size:
        near = max(size, config.num_envs // size * size)
        raise UserError(f"num_envs={config.num_envs}: cannot be divided among {size} ranks. Set num_envs={near}.")


def device_of(config: RunConfig, ranks: Ranks) -> str:
    """Returns the device of this rank. Raises UserError as `_exchange_device`."""
    device = process_ranks.rank_device(config.device, process_ranks.local_rank())
    if ranks.size == 1 or device.type == "cpu":
        return config.device
    return str(_exchange_device(config, ranks.rank))


def _exchange_device(config: RunConfig, rank: int) -> torch.device:
    """Returns the device whose tensors this rank of several exchanges.

    Raises:
        UserError: If there are fewer GPUs than ranks on this machine.
    """
    device = process_ranks.rank_device(config.device, process_ranks.local_rank())
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise UserError(
            f"ranks={config.ranks}: rank {rank} has no GPU, there are {torch.cuda.device_count()} on this machine. "
            "Start as many ranks as there are GPUs, or set device=cpu."
        )
    return device


# ------------------------------------------------------------------------------------------------------------- joining


@contextlib.contextmanager
def joined(config: RunConfig) -> Iterator[Ranks]:
    """Context manager: joins the other ranks, and leaves them at the end. `ONE` in a run of one process."""
    if config.ranks == 1:
        yield ONE
        return
    rank = int(os.environ[RANK if FOLDER in os.environ else "RANK"])
    device = _exchange_device(config, rank)  # before NCCL finds out, whose error names no setting
    if FOLDER in os.environ:
        _end_with_parent()
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, "lo" if sys.platform == "linux" else "lo0")
        folder = Path(os.environ[FOLDER])
        store, group = _local_store(folder), file_store(folder / "store", config.ranks)
    else:
        store = group = launcher_store(config.rank_timeout)
    ranks = ProcessRanks(store, rank, config.ranks, group=group, timeout=config.rank_timeout, device=device)
    try:
        if device.type == "cpu" and config.kernels != "off" and process_ranks.local_size() == config.ranks:
            share_memory(ranks, config.rank_timeout)
        yield ranks
    except ReportedError as error:
        if FOLDER not in os.environ:  # only the rank that failed first shows its message
            error.is_reported = isinstance(error, RankLostError) or not _fails_first(group)
        raise
    ranks.close()


def _fails_first(store: Store) -> bool:
    """True for the first rank that calls it, and if the store has ended."""
    try:
        return store.add("failed", 1) == 1
    except (RuntimeError, dist.DistError):
        return True


def share_memory(ranks: ProcessRanks, timeout: float) -> None:
    """Makes ranks exchange tensors through memory that they share, unless one of them cannot."""
    file = b""
    if ranks.is_first:
        with contextlib.suppress(KernelsUnavailableError, OSError):
            file = str(create_shared_file(ranks.size)).encode()
    shared = None
    try:
        path = ranks.broadcast(file if ranks.is_first else None).decode()
        if path:
            with contextlib.suppress(KernelsUnavailableError, OSError, ImportError):
                shared = SharedMemory(Path(path), ranks.rank, ranks.size, timeout=timeout)
        is_shared = ranks.total(shared is not None)[0] == ranks.size
    finally:  # also if another rank fails: nothing else frees this memory
        if file:
            os.unlink(file)
    if is_shared and shared is not None:
        ranks.use(shared)


def exchange_of(ranks: Ranks) -> str | None:
    """Returns how ranks exchange tensors: `shared memory`, `gloo` or `nccl`; None in a run of one process."""
    return ranks.exchange if isinstance(ranks, ProcessRanks) else None


def _end_with_parent() -> None:
    """Makes this process end when the process that started it does."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):  # it ended before
        raise RankLostError("the process that started this rank has ended.")


# --------------------------------------------------------------------------------------------------------- run folder


def write_result(run: Path, exit_code: int) -> None:
    """Writes the folder of the run for the process that started this rank. Does nothing if there is none."""
    if FOLDER in os.environ:
        path = Path(os.environ[FOLDER]) / RESULT
        write_text(path, json.dumps({"run": str(run), "exit_code": exit_code}))


def has_finished(folder: Path) -> bool:
    """True if rank 0 of local ranks, whose folder is given, has written the result and has nothing left to do."""
    return (folder / RESULT).exists() and _local_store(folder).check([process_ranks.FINISHED])


def _local_store(folder: Path) -> FolderStore:
    """Returns the store of local ranks, whose folder is given."""
    return FolderStore(folder / "values")


def reports_results() -> bool:
    """True if this process prints the result of a run: not if another one started it as a rank, and only rank 0."""
    return FOLDER not in os.environ and (_TORCHRUN not in os.environ or os.environ.get("RANK", "0") == "0")


@contextlib.contextmanager
def own_out(config: RunConfig, ranks: Ranks) -> Iterator[Path | None]:
    """Context manager: the setting `out` on rank 0; a temporary folder on the others, which write nothing to keep."""
    if ranks.is_first:
        yield config.out
        return
    with _private_folder(ranks) as folder:
        yield folder / "run"


@contextlib.contextmanager
def own_folder(run: Path, resolved: Resolved, ranks: Ranks) -> Iterator[RunFolder]:
    """Context manager: the folder of a run on rank 0; a temporary one with its manifest on the others."""
    folder = RunFolder.open(run) if ranks.is_first else None
    if folder is not None and ranks.size == 1:
        yield folder
        return
    manifest = ranks.broadcast(None if folder is None else json.dumps(folder.read_manifest()).encode())
    if folder is not None:
        yield folder
        return
    with _private_folder(ranks) as parent:
        folder = RunFolder(parent / "run")
        folder.make(exist_ok=True)
        write_text(folder.config_path, to_yaml(resolved))
        folder.write_manifest(json.loads(manifest))
        yield folder


@contextlib.contextmanager
def _private_folder(ranks: Ranks) -> Iterator[Path]:
    """Context manager: a folder for output of this rank that is not kept.

    It is in the folder of the process that started the rank, which also removes it if the rank is killed.
    """
    if FOLDER in os.environ:
        folder = Path(os.environ[FOLDER]) / f"rank-{ranks.rank}"
        folder.mkdir()
        yield folder
    else:
        with temporary_folder("coterie-rank-") as folder:
            yield folder


def latest_checkpoint(folder: RunFolder, ranks: Ranks) -> LoadedCheckpoint | None:
    """Returns the last checkpoint of a run. Rank 0 reads it and sends each of the others the state of that rank."""
    found = Checkpoints(folder.checkpoints_path).latest() if ranks.is_first else None
    if ranks.size == 1:
        return found

    def content(rank: int) -> bytes:
        if found is None:
            return pack(None)
        return pack([state_for(found.state, rank, ranks.size), found.metadata, found.steps], whole=True)

    sent = ranks.distribute(content if ranks.is_first else None)
    if ranks.is_first:
        return found
    received = unpack(sent)
    if received is None:
        return None
    state, metadata, steps = received
    return LoadedCheckpoint(folder.checkpoints_path / "last", steps, state, metadata | {"metrics_bytes": 0}, None)


def announce_run(run: Path, ranks: Ranks) -> None:
    """Remembers the folder of a run for the case that `torchrun` restarts its ranks."""
    store = _agent_store()
    if ranks.is_first and store is not None:
        store.set("coterie/run", str(run.resolve()))


def run_to_continue(config: RunConfig, ranks: Ranks) -> Path | None:
    """Returns the folder of the run that failed before `torchrun` restarted the ranks; None if there is none."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or FOLDER in os.environ:
        return None
    content = None
    if ranks.is_first:
        store = _agent_store()
        known = store is not None and store.check(["coterie/run"])
        run = Path(store.get("coterie/run").decode()) if known and store is not None else config.out
        content = str(run).encode() if run is not None and (run / "config.yaml").is_file() else b""
    found = ranks.broadcast(content).decode()
    return Path(found) if found else None


def _agent_store() -> Store | None:
    """Returns the store of the agent of `torchrun`, which outlives the ranks; None if there is none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False)  # pyright: ignore[reportPrivateImportUsage]
