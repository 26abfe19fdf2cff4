"""Sweeps that were killed or changed: what is skipped, resumed, started and refused."""

from __future__ import annotations

import json
import os
import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import tinyruns
from coterie.assembly.resolve import resolve
from coterie.config.provenance import to_yaml
from coterie.config.sources import from_file
from coterie.core.errors import UserError
from coterie.runs.folder import RunFolder
from coterie.sweeps.job_runs import Found, find, identity, mean_and_error, print_results, settings_of
from coterie.sweeps.sweep import plan
from sweeps import start, sweep

CRASHER = """
import os, signal
import gymnasium

class Crasher(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        if any("seed=1" in word for word in __import__("sys").argv):
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.observation_space.sample() * 0, 1.0, False, True, {}
"""
LONG = ("steps=2000", "checkpoint.every=400", "eval.every=0")


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves take longer than such runs."""
    monkeypatch.setattr("coterie.sweeps.job_runs.draw_curves", tinyruns.draw_nothing)


def _find(*settings: str, out: Path, named: bool = True) -> Found:
    return find(resolve(tinyruns.tiny(*settings, f"out={out}")).config, out, named=named)


@pytest.mark.parametrize("files", [("config.yaml", "manifest.json"), ("config.yaml",)], ids=["run", "start"])
def test_a_job_that_removes_its_run_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
):
    """As after a sweep was killed whose job had no results. What is left of its files is not those of somebody else."""
    out, waits = tmp_path / "seed0", []
    config = resolve(tinyruns.tiny(f"out={out}"))
    other = RunFolder.create(out, config.config.env.name, config.config.algo.name, seed=0, now=datetime.now())
    for name in files:
        (out / name).write_text(to_yaml(config) if name == "config.yaml" else "{}")

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.remove_if_empty()

    monkeypatch.setattr("coterie.sweeps.job_runs.time.sleep", wait)
    assert _find(out=out).state == "missing"
    assert len(waits) == 3
    assert not out.exists()


def test_a_run_belongs_to_a_job_with_the_same_settings(tmp_path: Path):
    out = tmp_path / "seed0"
    assert _find(out=out).state == "missing"
    tinyruns.train(out)
    found = _find(out=out)
    assert (found.state, found.path, found.note) == ("finished", out, "")
    assert found.report["teams"]["team"]["now"] is not None
    assert _find("progress=lines", "threads=2", out=out).state == "finished"  # they do not change results
    renamed = _find(out=tmp_path / "mappo-seed0")  # the sweep has more settings that vary
    assert (renamed.state, renamed.path) == ("finished", out)
    assert _find("seed=1", out=tmp_path / "seed1").state == "missing"
    with pytest.raises(UserError, match=r"contains a run with other settings \(algo\.lr is .* there, 0\.1 here\)"):
        _find("algo.lr=0.1", out=out)


def test_a_run_whose_settings_were_derived_belongs_to_a_job_that_derives_or_has_the_same_values(tmp_path: Path):
    derived, given = tmp_path / "derived", tmp_path / "given"
    tinyruns.train(derived)
    assert re.search(r"bootstrap_at_limit: false +# derived: ", (derived / "config.yaml").read_text())
    assert _find(out=derived).state == _find("algo.bootstrap_at_limit=false", out=derived).state == "finished"
    with pytest.raises(UserError, match=r"\(algo\.bootstrap_at_limit is false there, true here\)"):
        _find("algo.bootstrap_at_limit=true", out=derived)
    tinyruns.train(given, "algo.bootstrap_at_limit=true")
    with pytest.raises(UserError, match=r"\(algo\.bootstrap_at_limit is true there, null here\)"):
        _find(out=given)


def test_a_run_from_before_a_setting_existed_belongs_to_a_job_with_its_default(tmp_path: Path):
    out = tmp_path / "seed0"
    tinyruns.train(out)
    config = out / "config.yaml"
    older = "".join(line for line in config.read_text().splitlines(True) if "adam_eps:" not in line)
    assert older != config.read_text()
    config.write_text(older)
    assert _find(out=out).state == "finished"
    with pytest.raises(UserError, match=r"algo\.adam_eps is null there, 0\.1 here"):
        _find("algo.adam_eps=0.1", out=out)


def test_code_that_has_changed_is_reported(tmp_path: Path):
    out = tmp_path / "run"
    tinyruns.train(out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["versions"]["torch"] = "1.0"
    manifest["git"] = {"revision": "0123456789", "modified": False}
    (out / "manifest.json").write_text(json.dumps(manifest))
    note = _find(out=out).note
    assert note.startswith("torch was 1.0 and is now ")
    assert "the git revision was 0123456 and is now " in note


def test_a_run_without_its_last_checkpoint_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"
    with monkeypatch.context() as stopped:
        tinyruns.stop_at(stopped, 40)
        tinyruns.train(out)
    assert _find(out=out).state == "broken"


def test_the_settings_of_a_run_are_those_of_its_file(tmp_path: Path):
    """The identity is computed from a configuration, and from the YAML file that is written of it."""
    for settings in ([], ["algo=qmix"], ["env=particle/simple_tag", "teams.adversary.algo=random", "algo.lr=1e-3"]):
        resolved = resolve(settings)
        file = tmp_path / "config.yaml"
        file.write_text(to_yaml(resolved))
        saved = {setting.key: setting.value for setting in from_file(file, saved=True)}
        assert identity(saved) == identity(settings_of(resolved.config)) != identity(saved | {"seed": 5})


def test_jobs_without_out_have_folders_that_name_their_settings():
    one, other = plan(["seed=0,1", "algo.lr=1e-3"])
    assert one.out.parent == Path("runs/particle/simple_spread/mappo")
    assert one.out.name.startswith("seed0-")
    assert one.words[-1] == f"out={one.out}"
    assert one.configuration == other.configuration == "mappo on particle/simple_spread"
    changed, _ = plan(["seed=0,1", "algo.lr=2e-3"])
    assert changed.out != one.out


def test_equal_combinations_are_refused():
    with pytest.raises(UserError, match=r"'algo\.lr=1e-3' and 'algo\.lr=0\.001' are the same run"):
        plan(["algo.lr=1e-3,0.001"])


def test_the_table_of_configurations_has_mean_and_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    assert mean_and_error([1.0, 3.0, None]) == (2.0, 1.0)
    assert mean_and_error([4.0]) == (4.0, None)
    assert mean_and_error([]) == (None, None)
    outcomes = [
        {"job": f"a-{seed}", "configuration": "a", "seed": seed, "state": state, "exit_code": code, **report}
        for seed, state, code, report in (
            (0, "skipped", 0, {"teams": {"team": {"now": 1.0, "best": 5.0, "random": -80.0}}}),
            (1, "finished", 0, {"teams": {"team": {"now": 3.0, "best": 5.0, "random": -80.0}}}),
            (2, "failed", 3, {"error": "no luck"}),
        )
    ]
    print_results(outcomes, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert any("2 of 3 runs succeeded" in line for line in lines)
    assert "no luck" in "".join(lines)
    assert " ".join(lines[-2].split()) == "a 0-1 -80 2 ± 1 5 ± 0 1 skipped, 1 finished, 1 failed"
    assert [line.split() for line in lines if "configuration" in line] == [
        ["configuration", "seeds", "random", "now", "highest", "state"]
    ]
    assert "team return: sum over the agents of a team, group rewards counted once" in lines


@pytest.mark.slow
def test_a_killed_sweep_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path):
    """SIGKILL ends the sweep within its second run. Then one of its jobs is killed, too."""
    words = (*LONG, "seed=0,1,2", "out=sweep")
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    killed.mkdir()
    for seed in range(3):
        tinyruns.train(calm / f"seed{seed}", *LONG, f"seed={seed}")

    process = start(killed, *words)
    process.wait_for((killed / "sweep" / "seed1" / "checkpoints" / "last").exists)
    process.signal(signal.SIGKILL)
    process.end()
    process = start(killed, *words)
    process.wait_for((killed / "sweep" / "seed2" / "checkpoints" / "last").exists)
    os.kill(json.loads((killed / "sweep" / "seed2" / "lock").read_text())["pid"], signal.SIGKILL)
    code, output = process.end()
    assert code == 128 + signal.SIGKILL, output
    assert "[seed0] skipped, finished in sweep/seed0" in output
    assert "[seed1] resumes sweep/seed1" in output
    assert "sweep of 3 runs: 1 finished, 1 to resume, 1 to start" in output

    code, outcomes, _ = sweep(killed, *words)
    assert (code, [outcome["state"] for outcome in outcomes]) == (0, ["skipped", "skipped", "resumed"])
    for name in ("seed0", "seed1", "seed2"):
        one, other = calm / name, killed / "sweep" / name
        assert tinyruns.log_entries(one) == tinyruns.log_entries(other)
        tinyruns.assert_same(tinyruns.checkpoint_state(one), tinyruns.checkpoint_state(other))


@pytest.mark.slow
def test_a_crash_of_one_job_does_not_end_the_others(tmp_path: Path):
    (tmp_path / "crasher.py").write_text(CRASHER)
    words = ("env=crasher:Crasher", "seed=0,1,2", "steps=80", "algo=ppo", "out=sweep", "--jobs", "2")
    code, outcomes, messages = sweep(tmp_path, *words)
    assert [outcome["state"] for outcome in outcomes] == ["finished", "failed", "finished"], messages
    assert (code, outcomes[1]["exit_code"]) == (128 + signal.SIGSEGV,) * 2
    files = [f"seed{seed}{suffix}" for seed in range(3) for suffix in ("", ".log")]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == files
    logs = [(tmp_path / "sweep" / f"seed{seed}.log").read_text() for seed in (0, 1)]
    assert logs[0].startswith("$ coterie train seed=0") or " seed=0" in logs[0]
    assert "seed=1" not in logs[0]
    assert "seed=1" in logs[1]


@pytest.mark.slow
def test_ctrl_c_ends_all_jobs_and_another_sweep_resumes_them(tmp_path: Path):
    words = ("steps=1M", "checkpoint.every=40", "eval.every=0", "seed=0,1", "out=sweep", "--jobs", "2")
    process = start(tmp_path, *words, COLUMNS="200")
    for name in ("seed0", "seed1"):
        process.wait_for((tmp_path / "sweep" / name / "checkpoints" / "last").exists)
    process.signal(signal.SIGINT)
    code, output = process.end()
    assert code == 130, output
    assert "2 interrupted" in output
    assert "stopping 2 runs after their checkpoints" in output


def _outcome_of(seed: int, now: float, problem: str) -> dict[str, Any]:
    teams = {"team": {"start": -2.0, "now": now, "best": 1.0, "random": 0.0, "problem": problem}}
    return {"job": f"seed{seed}", "configuration": "all", "seed": seed, "state": "finished", "exit_code": 0} | {
        "teams": teams,
        "run": f"runs/{seed}",
    }


def test_runs_that_ended_badly_are_marked_and_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    failed = {"job": "seed2", "configuration": "all", "seed": 2, "state": "failed", "exit_code": 1, "error": "unlucky"}
    print_results([_outcome_of(0, -9.0, "fell"), _outcome_of(1, 9.0, ""), failed], json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("finished, fell") == 1
    assert "2 finished, 1 failed, 1 fell" in text
    assert "random start now highest" in text
