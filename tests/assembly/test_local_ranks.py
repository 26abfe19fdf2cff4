from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from coterie.assembly import local_ranks
from coterie.assembly.resolve import resolve
from coterie.config.schema import RunConfig
from coterie.core.process import MAX_DEFAULT_THREADS, available_cores

_INTERRUPTED = """
import os, sys, time
if os.environ["COTERIE_RANK"] == "0":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    sys.exit(130)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(100)
"""

_FINISHED = """
import os, sys, time
folder = os.environ["COTERIE_RANKS_FOLDER"]
with open(f"{folder}/started-{os.environ['COTERIE_RANK']}", "w") as file:
    file.write(str(os.getpid()))
if os.environ["COTERIE_RANK"] == "1":
    time.sleep(10)
    open(f"{folder}/ended-1", "w").close()
while not os.path.exists(f"{folder}/started-1"):
    time.sleep(0.01)
with open(f"{folder}/result.json", "w") as file:
    file.write("{}")
sys.exit(int(sys.argv[1]))
"""
_NEVER_ENDS = """
import os, time
folder = os.environ["COTERIE_RANKS_FOLDER"]
while os.environ["COTERIE_RANK"] == "1" and not os.path.exists(f"{folder}/values/finished"):
    time.sleep(0.01)
if os.environ["COTERIE_RANK"] == "0":
    os.makedirs(f"{folder}/values", exist_ok=True)
    for name in ("result.json", "values/finished"):
        with open(f"{folder}/{name}", "w") as file:
            file.write("{}")
    time.sleep(10)
    open(f"{folder}/ended-0", "w").close()
os.kill(os.getpid(), 9)
"""
_CORES = """
import os
with open(f"{os.environ['COTERIE_RANKS_FOLDER']}/cores-{os.environ['COTERIE_RANK']}", "w") as file:
    file.write(f"{sorted(os.sched_getaffinity(0))} {os.environ['OMP_NUM_THREADS']}")
"""


def _config(size: int = 2) -> RunConfig:
    return resolve(["env=particle/simple_spread", "algo=ippo", "num_envs=4", f"ranks={size}"]).config


@pytest.mark.parametrize("code", [0, 130])
def test_a_rank_that_hangs_after_rank_0_has_ended_the_run_is_killed(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has finished the run, or an interruption has stopped it."""
    monkeypatch.setattr(local_ranks, "_END_SECONDS", 0.1)
    local_ranks._run([sys.executable, "-c", _FINISHED, str(code)], _config(), tmp_path)
    assert not (tmp_path / "ended-1").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started-1").read_text()), 0)


def test_ranks_that_hang_or_are_killed_after_the_run_has_finished_do_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ranks, "_END_SECONDS", 0.1)
    local_ranks._run([sys.executable, "-c", _NEVER_ENDS], _config(), tmp_path)
    assert not (tmp_path / "ended-0").exists()


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or not 2 <= len(os.sched_getaffinity(0)) == available_cores(),
    reason="there is one core, or a quota",
)
def test_ranks_have_cores_and_as_many_threads_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    local_ranks._run([sys.executable, "-c", _CORES], _config(), tmp_path)
    each = available_cores() // 2
    cores = sorted(os.sched_getaffinity(0))
    for rank in range(2):
        expected = f"{cores[rank * each : (rank + 1) * each]} {min(each, MAX_DEFAULT_THREADS)}"
        assert (tmp_path / f"cores-{rank}").read_text() == expected


def test_more_ranks_than_cores_share_all_of_them() -> None:
    assert local_ranks.rank_cores(4 * available_cores()) == [frozenset()] * (4 * available_cores())


def test_a_quota_leaves_the_choice_of_cores_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(local_ranks, "available_cores", lambda: 4)
    assert local_ranks.rank_cores(2) == [frozenset()] * 2
    monkeypatch.setattr(local_ranks, "available_cores", lambda: 64)
    assert local_ranks.rank_cores(2) == [set(range(32)), set(range(32, 64))]


def test_a_rank_0_that_is_interrupted_before_it_trains_interrupts_the_command(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        local_ranks._run([sys.executable, "-c", _INTERRUPTED, str(tmp_path / "other")], _config(), tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "other").read_text()), 0)
