"""The campaign of mutated settings and files in benchmarks/: cases, damage to files, and what counts as a failure."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from coterie.algos import registry as algo_registry
from coterie.cli.app import app
from coterie.envs import registry as env_registry
from places import ROOT

BENCHMARKS = ROOT / "benchmarks"
FAULTS = """
import json, os, pathlib, signal, sys, time
import fuzz_runs
fuzz_runs.CPU_SECONDS, fuzz_runs.LONG_CPU_SECONDS, fuzz_runs.ENDING_SECONDS = 1, 0.2, 0.5

def left():
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        os._exit(0)
    return 0

def spin():
    while True:
        pass

def interruptible():
    try:
        spin()
    except KeyboardInterrupt:
        return write("coterie: interrupted", 130)

def write(text, code=2):
    print(text, file=sys.stderr)
    return code

COMMANDS = {
    "fine": lambda: 0, "refused": lambda: write("coterie: no"), "check-env": lambda: write("1 error", 1),
    "long": interruptible, "raises": lambda: 1 / 0, "killed": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "unknown": lambda: write("coterie: no", 7), "unchecked": lambda: write("1 error", 1), "silent": lambda: 2,
    "wide": lambda: write("x" * 1001), "left": left, "spins": spin,
}
fuzz_runs.entry.main = lambda words: COMMANDS[words[0]]()
found = {}
for command in COMMANDS:
    folder = pathlib.Path(sys.argv[1]) / command
    (folder / "work").mkdir(parents=True)
    ended = fuzz_runs.execute([command], folder, may_be_long=command == "long")
    found[command] = fuzz_runs.failure_of(command, ended)
print(json.dumps(found))
"""
"""Commands that end in every way; prints what each counts as."""

SMALL = """
import sys
import fuzz
every, words = fuzz.preparations, fuzz.run_words
fuzz.PRELOADED, fuzz.preparations, fuzz.run_words = (), lambda: every()[:1], lambda: words()[:1]
sys.exit(fuzz.main(sys.argv[1:]))
"""
"""A campaign whose first cases read no prepared file but demonstrations."""


def python(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, since threads of this one would not survive a fork."""
    source = os.pathsep.join([str(ROOT / "src"), str(BENCHMARKS)])
    env = os.environ | {"PYTHONPATH": source}
    return subprocess.run(
        [sys.executable, *map(str, words)], env=env, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_every_undocumented_end_of_a_command_is_a_failure(tmp_path: Path):
    ended = python("-c", FAULTS, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        **dict.fromkeys(("fine", "refused", "check-env", "long")),
        "raises": "traceback",
        "killed": "signal",
        "unknown": "undocumented exit code",
        "unchecked": "undocumented exit code",
        "silent": "no message",
        "wide": "line over 1,000 characters",
        "left": "processes left",
        "spins": "hang",
    }


@pytest.mark.slow
def test_a_tiny_campaign_writes_its_results(tmp_path: Path):
    out, log = tmp_path / "found.json", tmp_path / "found.jsonl"
    ended = python("-c", SMALL, "--cases", "4", "--jobs", "2", "--out", out, "--log", log)
    content = json.loads(out.read_text())
    assert ended.returncode == int(bool(content["failures"])), ended.stdout + ended.stderr
    assert content["cases"] == sum(counts["cases"] for counts in content["command_ends"].values()) == 4
    assert "4 cases" in out.with_suffix(".md").read_text()
    assert len(log.read_text().splitlines()) == 4


def test_the_same_seed_draws_the_same_cases(script: Callable[[str], ModuleType], tmp_path: Path):
    cases = script("fuzz_cases")
    for name in cases.READERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
    one, same, other = ([deck.draw(k) for k in range(8)] for deck in (cases.Deck(seed, tmp_path) for seed in (5, 5, 6)))
    assert one == same
    assert one != other


def test_every_command_algorithm_and_family_of_environments_is_mutated(script: Callable[[str], ModuleType]):
    cases = script("fuzz_cases")
    assert set(typer.main.get_command(app).commands) == set(cases.COMMANDS)  # pyright: ignore[reportAttributeAccessIssue]
    words = {word for run in cases.run_words() for word in run}
    missing = {name for name in algo_registry.ALGOS if not {f"algo={name}", f"teams.agent.algo={name}"} & words}
    assert missing <= {"frozen"}  # which a setting `run` selects
    families = {word[4:].partition("/")[0] for word in words if word.startswith("env=")}
    assert {name.partition("/")[0] for name in env_registry.environments()} <= families


def test_settings_of_a_run_of_an_algorithm_and_of_an_environment_are_listed_once(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
):
    cases = script("fuzz_cases")
    runs = [("algo=ippo", "env=matrix/climbing"), ("algo=ippo", "env=matrix/penalty"), ("algo=qmix", "env=coop/baton")]
    monkeypatch.setattr(cases, "run_words", lambda: runs)
    found = [(setting.key, setting.words) for setting in cases.all_settings()]
    assert [run for key, run in found if key == "steps"] == runs[:1]
    assert [run for key, run in found if key == "algo.lr"] == [runs[0], runs[2]]
    assert [run for key, run in found if key == "env.episode_limit"] == [runs[0], runs[2]]


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_damage_changes_a_file(script: Callable[[str], ModuleType], tmp_path: Path, seed: int):
    files = script("fuzz_files")
    other = tmp_path / "other"
    other.write_text("other")
    contents = (b"a: 1\nb: 2\nc: 3\n", b'{"a": [1, {"b": 2}]}', b'{"a": 1}\n{"b": 2}\n', bytes(range(256)), b"")
    for kind in sorted({*files.KINDS}):
        is_changed = []
        for content in contents:
            file = tmp_path / "file"
            file.write_bytes(content)
            files.damage(file, kind, random.Random(seed), [other])
            is_changed.append(not file.is_file() or file.read_bytes() != content)
            file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
        assert any(is_changed), kind


def test_damage_leaves_check_sums_wrong_or_computes_them_again(script: Callable[[str], ModuleType], tmp_path: Path):
    files = script("fuzz_files")
    file, sums = tmp_path / "state.json", tmp_path / files.SUMS
    is_right = set()
    for seed in range(20):
        file.write_text('{"a": 1}')
        sums.write_text(f"{files.digest(file)}  state.json\n")
        files.damage(file, "truncated", random.Random(seed), [])
        is_right.add(sums.read_text() == f"{files.digest(file)}  state.json\n")
    assert is_right == {True, False}


def test_mutated_words_keep_a_command_line_of_texts(script: Callable[[str], ModuleType]):
    values = script("fuzz_values")
    generator = random.Random(0)
    names = set()
    for _ in range(300):
        name, words = values.mutated_words(["train", "steps=80", "--json", "out=run"], generator)
        names.add(name)
        assert all(isinstance(word, str) for word in words)
    assert names == set(values.WORD_MUTATIONS)
