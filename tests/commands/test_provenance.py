"""Provenance of the rows of the benchmarks, and verification that the present code repeats them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.__main__ import main
from places import ROOT

BENCHMARKS = ROOT / "benchmarks"


RESULTS = sorted((BENCHMARKS / "results").rglob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(BENCHMARKS / "results")))
def test_results_record_how_they_were_made(path: Path):
    content = json.loads(path.read_text())
    assert content["machine"]["revision"]
    assert content["machine"]["cpu"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", content["date"])
    assert content["command"].startswith("python benchmarks/")
    assert not re.search(r"[ =]/", content["command"]), "a path of the machine"


def test_the_page_marks_rows_that_were_measured_with_other_code(script: Any):
    """If this fails: measure the row again, or mark it with `python benchmarks/provenance.py --write`."""
    content = json.loads((BENCHMARKS / "results" / "learning.json").read_text())
    for name, entry in content["jobs"].items():
        assert entry["seeds"], name
        for seed in entry["seeds"].values():
            assert {"date", "machine", "git", "command"} <= set(seed), name
    assert script("gathering").page(content) == (BENCHMARKS / "results" / "learning.md").read_text()


def test_a_fingerprint_changes_with_the_code_and_not_with_its_text(script: Any):
    fingerprint = script("provenance").fingerprint
    code = 'def f(x):\n    """Returns x."""\n    return x + 1  # one more\n'
    assert fingerprint(code) == fingerprint("def f(x):\n\n    return (x + 1)\n")
    assert fingerprint(code) != fingerprint(code.replace("+", "-"))


def test_the_code_of_a_row_is_its_algorithm_its_environment_and_what_they_import(script: Any):
    provenance = script("provenance")
    code = provenance.present(["algo=qmix", "env=skirmish/3m"])["code"]
    used = {"algos/qlearning.py", "nets/mixers.py", "envs/worlds/skirmish/battle.py", "training/collector.py"}
    assert used <= set(code)
    assert not {name.partition("/")[0] for name in code} & set(provenance.IRRELEVANT)
    assert not {"algos/coma.py", "envs/worlds/particle/spread.py"} & set(code)


def test_a_digest_does_not_depend_on_the_working_directory(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Demonstrations are named relative to the repository; a folder above them is no setting of the job."""
    digest = script("provenance").present_digest
    words = ["algo=ippo", "env=matrix/climbing", "imitation.demos=benchmarks/runs/x.safetensors"]
    (tmp_path / "elsewhere").mkdir()
    found = set()
    for folder in (ROOT, tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        found.add(digest(words))
    assert len(found) == 1
    assert digest([*words[:2], "imitation.demos=benchmarks/runs/y.safetensors"]) not in found


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the source and one commit."""
    folder = tmp_path_factory.mktemp("committed")
    shutil.copytree(ROOT / "src" / "coterie", folder / "src" / "coterie")
    for words in (["init"], ["add", "."], ["commit", "-m", "source"]):
        run_git(folder, *words)
    return folder


def run_git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=name", "-c", "user.email=name@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def git(committed: Path, script: Any, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., str], None, None]:
    """Calls git in the repository of the source, which is that of the benchmarks, and is restored afterwards."""
    monkeypatch.setattr(script("provenance"), "REPOSITORY", committed)
    monkeypatch.setattr(script("provenance"), "PACKAGE", committed / "src" / "coterie")
    first = run_git(committed, "rev-parse", "HEAD").strip()
    yield functools.partial(run_git, committed)
    run_git(committed, "reset", "--hard", first)


def test_a_row_is_current_until_its_code_or_a_setting_changes(script: Any, git: Callable[..., str]):
    """A repository of its own holds the source; its revision is the row's."""
    provenance = script("provenance")
    source = {"revision": git("rev-parse", "HEAD").strip(), "modified": False}
    words = ["algo=iql", "env=matrix/climbing"]
    row = {"common": [], "overrides": words, "provenance": provenance.measured(words, [source, source])}
    assert provenance.is_present(row)
    assert not provenance.is_present(row | {"overrides": [*words, "algo.lr=0.123"]})
    assert not provenance.is_present(row | {"provenance": None})
    assert provenance.measured(words, [source, source | {"modified": True}]) is None
    assert provenance.measured(words, [source, source | {"revision": None}]) is None
    file = provenance.PACKAGE / "algos" / "qlearning.py"
    file.write_text(file.read_text() + "\n# a comment\n")
    assert provenance.is_present(row)
    file.write_text(file.read_text() + "\nOTHER = 1\n")
    assert not provenance.is_present(row)
    git("commit", "-am", "other code")
    other = {"revision": git("rev-parse", "HEAD").strip(), "modified": False}
    assert provenance.measured(words, [source, other]) is None


@pytest.mark.slow
def test_a_row_stands_if_the_present_code_repeats_its_bits(
    script: Any, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    provenance, verification, jobs = script("provenance"), script("verification"), script("jobs")
    monkeypatch.setattr(verification, "LEAST_STEPS", 64)
    monkeypatch.setattr(verification, "COMMON", ("device=cpu", "threads=1", "log.tensorboard=false"))
    words = ("algo=ippo", "env=matrix/climbing", "num_envs=4", "algo.rollout_length=8")
    job = jobs.Job("climbing", words, "agent", "agent", "climbing")
    source = {"git": {"revision": git("rev-parse", "HEAD").strip(), "modified": False}}
    row = {"common": list(verification.COMMON), "overrides": list(words), "seeds": {"0": source}}
    row["provenance"] = provenance.measured([*row["common"], *words], [source["git"]])

    def run(command: list[str], *, env: dict[str, str], **how: Any) -> subprocess.CompletedProcess[str]:
        """Trains with the present source in this process, and with that of a revision in another one."""
        if env["PYTHONPATH"] != str(provenance.PACKAGE.parent):
            return subprocess.run(command, env=env, **how)
        return subprocess.CompletedProcess(command, main(command[3:]), "", "")

    monkeypatch.setattr(verification, "subprocess", SimpleNamespace(run=run))
    file = provenance.PACKAGE / "algos" / "ppo.py"
    file.write_text(file.read_text() + "\nOTHER = 1\n")
    assert not provenance.is_present(row)
    row["verified"] = verification.verify(job, row)
    present = [*row["common"], *words]
    assert row["verified"]["steps"] == 128
    assert provenance.is_verified(row, present)
    assert not provenance.is_verified(row, [*present, "algo.lr=0.1"])

    monkeypatch.setattr(verification, "source_at", lambda revision: contextlib.nullcontext(provenance.PACKAGE))
    other = dataclasses.replace(job, overrides=(*words, "algo.lr=0.1"))
    assert "tensors differ" in verification.verify(other, row)
    unknown = row | {"seeds": {"0": {"git": {"revision": None, "modified": False}}}}
    assert verification.verify(job, unknown) == "its revision is unknown or was not committed"
