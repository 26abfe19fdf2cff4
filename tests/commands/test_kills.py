"""The kill campaign of benchmarks/: a few kills, its comparison, and the phases of kills."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from coterie.algos import registry
from coterie.core.errors import UserError
from coterie.rewards import rewarded
from places import ROOT
from tinyruns import checkpoint_state, train

BENCHMARKS = ROOT / "benchmarks"
CAMPAIGNS = """
import sys
import kills
from coterie.training.trainer import Trainer

def load_and_count(trainer, found):
    load(trainer, found)
    trainer.updates += 1

out, other = sys.argv[1:]
for number in ("1", "2"):
    assert kills.main(["--kills", number, "--only", "vdn, GRU", "--out", out]) == 0
    print("===")
load, Trainer.load = Trainer.load, load_and_count
assert kills.main(["--kills", "1", "--only", "mappo", "--seed", "16", "--out", other]) == 1
"""
"""A campaign, its extension, and one with a trainer that restores one number wrongly."""


@pytest.fixture
def kill_runs(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("kill_runs")


@pytest.fixture
def kills(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("kills")


@pytest.fixture
def kill_cases(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("kill_cases")


@pytest.fixture(scope="module")
def pair_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs with the same seed."""
    folder = tmp_path_factory.mktemp("pair")
    for name in ("one", "other"):
        train(folder / name, "algo=mappo", "env=particle/simple_spread")
    return folder


@pytest.fixture
def pair(pair_once: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the two runs."""
    shutil.copytree(pair_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "one", tmp_path / "other"


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the campaigns, which run without threads and open files of this process: forks would share them."""
    folder = tmp_path_factory.mktemp("campaigns")
    source = os.pathsep.join([str(ROOT / "src"), str(BENCHMARKS)])
    env = os.environ | {"PYTHONPATH": source}
    words = [sys.executable, "-c", CAMPAIGNS, str(folder / "kills.json"), str(folder / "wrong.json")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "printed").write_text(ended.stdout)
    return folder


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits_and_a_campaign_can_be_extended(
    campaigns: Path, kills: ModuleType, capsys: pytest.CaptureFixture[str]
):
    out = campaigns / "kills.json"
    found = json.loads(out.read_text())["found"]
    assert list(found) == ["vdn, GRU"]
    for result in found.values():
        assert (result["kills"], result["failed"], result["differ"]) == (2, [], [])
        assert sum(result["phases"].values()) == sum(result["kinds"].values()) == 2
    assert "| **all** | 2 |" in out.with_suffix(".md").read_text()
    first, second, _ = (campaigns / "printed").read_text().split("===\n")
    assert first.count(" 1 kills, failed 0") == second.count(" 1 kills, failed 0") == 1  # those that were missing
    with pytest.raises(SystemExit, match="2"):
        kills.main(["--seed", "1", "--out", str(out)])
    assert "contains kills with seed 0" in capsys.readouterr().err


@pytest.mark.slow
def test_a_campaign_finds_a_run_that_is_not_restored_exactly(campaigns: Path):
    """With seed 16, the first kill is before the 39th file operation, after the first checkpoint."""
    (result,) = json.loads((campaigns / "wrong.json").read_text())["found"].values()
    assert (result["failed"], result["kills"], result["runs"]) == ([], 1, 1)
    assert "run0: last checkpoint: state.json/state/dict/updates" in result["differ"]


def test_every_algorithm_and_reward_signal_has_a_configuration(kill_cases: ModuleType, tmp_path: Path):
    words = {word for settings in kill_cases.configurations(tmp_path).values() for word in settings}
    missing = {name for name in registry.ALGOS if not {f"algo={name}", f"teams.agent.algo={name}"} & words}
    assert missing == {"frozen"}  # which a setting `run` selects
    assert any(word.startswith("teams.agent.run=") for word in words)
    assert all(any(word.startswith(f"rewards.{name}") for word in words) for name in rewarded.SIGNALS)


# -------------------------------------------------------------------------------------------------------- comparison


@pytest.mark.slow
def test_equal_runs_have_no_differences_although_their_times_differ(kill_runs: ModuleType, pair: tuple[Path, Path]):
    assert checkpoint_state(pair[0])["wall_s"] != checkpoint_state(pair[1])["wall_s"]
    assert kill_runs.differences(*pair) == []


@pytest.mark.slow
def test_one_changed_bit_of_a_tensor_is_a_difference(kill_runs: ModuleType, pair: tuple[Path, Path]):
    folder = pair[1] / "checkpoints" / (pair[1] / "checkpoints" / "last").read_text().strip()
    file = folder / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"state\.safetensors does not match its hash"):
        kill_runs.differences(*pair)
    names = ("state.safetensors", "state.json")
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(sums))
    found = kill_runs.differences(*pair)
    assert len(found) >= 1
    assert all("state.safetensors/" in place for place in found)
    assert any(place.startswith("last checkpoint: ") for place in found)


@pytest.mark.slow
def test_all_runs_of_a_sweep_and_the_best_settings_are_compared(
    kill_runs: ModuleType, pair: tuple[Path, Path], tmp_path: Path
):
    sweeps = tmp_path / "first", tmp_path / "second"
    for sweep, run in zip(sweeps, pair, strict=True):
        shutil.copytree(run, sweep / "trial000" / "seed0")
        (sweep / "best.yaml").write_text("# now\nalgo:\n  lr: 0.1\n")
    assert kill_runs.differences(*sweeps) == []
    edit_log(sweeps[1] / "trial000" / "seed0")
    shutil.copytree(pair[0], sweeps[0] / "trial001" / "seed0")
    (sweeps[1] / "best.yaml").write_text("# later\nalgo:\n  lr: 0.2\n")
    found = kill_runs.differences(*sweeps)
    assert found[0] == "trial001/seed0: only in one of both"
    assert found[1].startswith("trial000/seed0/metrics.jsonl: ")
    assert found[-1] == "best.yaml: other settings"
    assert kill_runs.differences(tmp_path / "none", tmp_path / "none") == ["no runs"]


def edit_log(run: Path) -> None:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"eval/length_mean": 25.000001})
    file.write_text("\n".join(lines) + "\n")


def drop_entry(run: Path) -> None:
    file = run / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def edit_best(run: Path) -> None:
    (run / "checkpoints" / "best").write_text("000000000001\n")


def edit_levels(run: Path) -> None:
    file = run / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"levels": {"random": {"agent": 0.0}}}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (edit_log, "metrics.jsonl: /"),
        (drop_entry, "metrics.jsonl: "),
        (edit_best, "best checkpoint: 0"),
        (edit_levels, "manifest.json: levels/random/agent"),
    ],
)
def test_each_other_change_is_a_difference(
    edit: Callable[[Path], None], place: str, kill_runs: ModuleType, pair: tuple[Path, Path]
):
    edit(pair[1])
    found = kill_runs.differences(*pair)
    assert found
    assert all(other.startswith(place) for other in found)


# ------------------------------------------------------------------------------------------------------------ phases


def test_the_phase_of_a_kill_follows_from_the_files_that_it_leaves(kill_runs: ModuleType, tmp_path: Path):
    def phase() -> str:
        return kill_runs.phase_of(tmp_path, before, 80)

    before = kill_runs.unfinished(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    assert phase() == "before the manifest"
    (tmp_path / "manifest.json").touch()
    assert phase() == "before the first checkpoint"
    (checkpoints / ".writing-000000000040").mkdir()
    assert phase() == "while writing a checkpoint"
    before = kill_runs.unfinished(tmp_path)  # the next process is killed without writing
    assert phase() == "before the first checkpoint"
    (checkpoints / ".writing-000000000040").rename(checkpoints / "000000000040")
    assert phase() == "while writing a checkpoint"  # not marked as the last one yet
    (checkpoints / "last").write_text("000000000040\n")
    assert phase() == "between checkpoints"
    (checkpoints / "000000000080").mkdir()
    (checkpoints / "last").write_text("000000000080\n")
    assert phase() == "after the last checkpoint"
