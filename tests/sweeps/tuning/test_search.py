"""Searches with a program in place of Coterie, whose returns follow from the learning rate."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.sweeps.tuning import report
from coterie.sweeps.tuning.report import best_settings
from coterie.sweeps.tuning.search import TrialRuns, tune
from coterie.sweeps.tuning.study import STATES, TunePlan, ask, make_plan, open_study, settings_of_trial, unfinished

STAND_IN = """
import json, math, os, pathlib, signal, sys, time
words = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
out = pathlib.Path(words["out"])
out.mkdir(parents=True, exist_ok=True)
lr, seed = float(words["algo.lr"]), int(words["seed"])
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
started = pathlib.Path(os.environ["STAND_IN_LOG"])
with started.open("a") as file:
    file.write(json.dumps({"out": str(out), "argv": sys.argv[1:]}) + "\\n")
if lr > float(os.environ.get("STAND_IN_WORST", "1")):
    print("coterie: the loss is not finite", file=sys.stderr)
    sys.exit(3)
if "STAND_IN_MISTAKE" in os.environ:
    print("coterie: algo.lr: is wrong", file=sys.stderr)
    sys.exit(2)
together, until = int(os.environ.get("STAND_IN_TOGETHER", "1")), time.monotonic() + 60
while len(started.read_text().splitlines()) < together and time.monotonic() < until:
    time.sleep(0.01)
value = -abs(math.log10(lr) + 3) + 0.01 * (seed % 3)
for steps in range(0, 1001, 250):
    with (out / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"steps": steps, "eval/episodes": 20, "eval/return_mean": value * steps / 1000}) + "\\n")
    if value < -1.5 and steps == 500:
        time.sleep(float(os.environ.get("STAND_IN_SLEEP", "0")))
print("{}")
"""
DRAW = report._draw
WORDS = ("algo=ippo", "steps=1000", "eval.every=250", "algo.lr=1e-5", "algo.lr=log(1e-5,1e-1)")


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than the search itself."""
    monkeypatch.setattr(report, "_draw", lambda plan, study: [])


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that replaces `coterie`."""
    script, log = tmp_path / "stand_in.py", tmp_path / "log.jsonl"
    script.write_text(STAND_IN)
    log.touch()
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    return [sys.executable, "-S", str(script)]


def _plan(out: Path, *words: str, seeds: str = "2") -> TunePlan:
    return make_plan([*WORDS, *words], seeds=seeds, out=out)


def _states(plan: TunePlan) -> list[str]:
    return [STATES[trial.state.name] for trial in open_study(plan).trials]


def _results(plan: TunePlan) -> list[tuple]:
    trials = open_study(plan).trials
    return [(trial.state, settings_of_trial(plan, trial), trial.user_attrs.get("values")) for trial in trials]


def _trials(plan: TunePlan, state: TrialState) -> list[FrozenTrial]:
    return open_study(plan).get_trials(states=(state,))


@pytest.mark.slow
def test_a_search_finds_better_settings_than_the_default_ones(
    tmp_path: Path, stand_in: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    plan = _plan(tmp_path / "study")
    monkeypatch.setattr(report, "_draw", DRAW)
    assert tune(plan, trials=8, command=stand_in, json=True) == 0
    monkeypatch.setattr(report, "_draw", lambda plan, study: [])
    out, messages = capsys.readouterr()
    found = json.loads(out)
    assert found["default"]["trial"] == 0
    assert found["default"]["value"] == pytest.approx(-2 + 0.015)  # seeds 1000 and 1001
    assert found["best"]["value"] > found["default"]["value"] + 0.5
    assert found["best"]["half_width_95"] == pytest.approx(12.706205 * 0.005)
    assert found["importances"] == {"algo.lr": 1.0}
    assert found["seeds"] == [1000, 1001]
    assert "mean over seeds 1000, 1001. Report results on other seeds" in messages
    assert all((plan.folder / f"{name}.png").stat().st_size > 1000 for name in ("tune", "importances"))
    best = resolve([], plan.folder / "best.yaml").config
    assert (best.steps, best.algo.name, best.seed) == (1000, "ippo", 0)
    assert vars(best.algo.params)["lr"] == found["best"]["settings"]["algo.lr"]
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["argv"][0] == "train"
    # the same command reports the same again, without another run
    before = (tmp_path / "log.jsonl").read_text()
    assert tune(plan, trials=8, command=stand_in) == 0
    text = capsys.readouterr().out
    assert "0 (default)" in text
    assert "coterie train -m --config" in text
    assert (tmp_path / "log.jsonl").read_text() == before


@pytest.mark.slow
def test_bad_trials_are_pruned_on_the_mean_over_seeds(
    tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STAND_IN_SLEEP", "3")
    plan = _plan(tmp_path / "study", "algo.lr=1e-3", "algo.lr=choice(1e-3,2e-3,3e-3,1e-1)")
    assert tune(plan, trials=8, command=stand_in) == 0
    assert set(_states(plan)) == {"finished", "pruned"}
    pruned = {trial.params["algo.lr"]: trial for trial in _trials(plan, TrialState.PRUNED)}
    assert set(pruned) <= {"2e-3", "3e-3", "1e-1"}
    worst = pruned["1e-1"]
    assert worst.intermediate_values == {250: pytest.approx((-2 + 0.015) / 4)}  # after a quarter of the run
    assert worst.number > 3
    log = (plan.folder / f"trial{worst.number:03}" / "seed1000" / "metrics.jsonl").read_text()
    assert '"steps": 1000' not in log  # its runs were stopped


def test_values_that_trials_are_compared_by_do_not_change_later(tmp_path: Path):
    words = ["algo=ippo", "env=matrix/climbing", "steps=1000", "eval.every=300"]
    plan = make_plan(words, seeds="1000,1001", out=tmp_path)
    trial = ask(plan, open_study(plan))
    runs = TrialRuns(plan, trial, {})

    def log(seed: int, steps: int, value: float) -> None:
        with (tmp_path / "trial000" / f"seed{seed}" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"steps": steps, "eval/episodes": 20, "eval/return_mean": value}) + "\n")
        runs.compare()

    for seed in (1000, 1001):
        (tmp_path / "trial000" / f"seed{seed}").mkdir(parents=True)
        log(seed, 910, 4.0)
    log(1000, 1000, 8.0)  # the last one, after 910 and before another multiple of 300
    assert runs.reached == [(900, 4.0)]
    assert open_study(plan).trials[0].intermediate_values == {900: 4.0}


@pytest.mark.parametrize(("others", "reported", "is_pruned"), [((1, 1, 1, 9), 4, False), ((1, 1, 9, 9), 3, True)])
def test_a_search_that_was_killed_after_a_comparison_decides_as_before(
    tmp_path: Path, others: tuple[int, ...], reported: int, is_pruned: bool
):
    """A trial that is worse than others at its last evaluation only has finished."""
    plan = _plan(tmp_path, seeds="1")
    study = open_study(plan)
    for _ in range(5):
        trial = ask(plan, study)
        for k, value in enumerate(others, 1):
            trial.report(value, 250 * k)
        trial.set_user_attr("values", [9.0])
        study.tell(trial, 9.0)
    trial = ask(plan, study)
    log = plan.trial_folder(trial.number) / "seed1000" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    for k in range(1, reported + 1):
        trial.report(5, 250 * k)
        with log.open("a") as file:
            file.write(json.dumps({"steps": 250 * k, "eval/episodes": 20, "eval/return_mean": 5}) + "\n")
    (trial,) = unfinished(plan, open_study(plan))
    runs = TrialRuns(plan, trial, {})
    runs.compare()
    assert runs.reached[-1] == (250 * reported, 5.0)
    assert runs.is_pruned == is_pruned


@pytest.mark.slow
def test_failed_trials_keep_their_reason_and_the_study_continues(
    tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("STAND_IN_WORST", "0.0005")
    plan = _plan(tmp_path / "study", seeds="1")
    assert tune(plan, trials=5, command=stand_in) == 0
    failed = _trials(plan, TrialState.FAIL)
    assert 0 < len(failed) < 5
    assert failed[0].user_attrs["reason"] == "seed 1000: the loss is not finite"
    assert f"trial {failed[0].number} failed: seed 1000: the loss is not finite" in capsys.readouterr().out
    monkeypatch.setenv("STAND_IN_WORST", "0")  # the default settings may fail, too
    plan = _plan(tmp_path / "other", seeds="1")
    assert tune(plan, trials=1, command=stand_in) == 1


@pytest.mark.slow
def test_a_mistake_in_the_default_settings_ends_the_study(
    tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STAND_IN_MISTAKE", "1")
    plan = _plan(tmp_path / "study")
    with pytest.raises(UserError, match=r"trial 0, which has the default settings: seed 100\d: algo\.lr: is wrong"):
        tune(plan, trials=3, command=stand_in)
    monkeypatch.delenv("STAND_IN_MISTAKE")
    assert tune(_plan(tmp_path / "study", "num_envs=8"), trials=1, command=stand_in) == 0


@pytest.mark.slow
def test_trials_and_their_seeds_run_in_parallel(tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN_TOGETHER", "4")  # each waits until four have started
    plan = _plan(tmp_path / "study")
    assert tune(plan, trials=2, jobs=2, command=stand_in) == 0
    assert _states(plan) == ["finished", "finished"]
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sorted(Path(event["out"]).relative_to(plan.folder).as_posix() for event in events) == [
        f"trial00{trial}/seed100{seed}" for trial in (0, 1) for seed in (0, 1)
    ]


@pytest.mark.slow
def test_an_interrupted_search_continues_with_the_same_trials(
    tmp_path: Path, stand_in: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    calm, log = _plan(tmp_path / "calm"), tmp_path / "log.jsonl"
    assert tune(calm, trials=3, command=stand_in) == 0
    before = len(log.read_text().splitlines())
    plan = _plan(tmp_path / "study")
    assert tune(plan, trials=1, command=stand_in) == 0
    monkeypatch.setenv("STAND_IN_TOGETHER", "1000000")

    def interrupt() -> None:
        while len(log.read_text().splitlines()) < before + 4:  # both runs of the second trial
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert tune(plan, trials=3, command=stand_in) == 130
    thread.join()
    assert "interrupted. Continue with: coterie tune" in capsys.readouterr().err
    assert _states(plan) == ["finished", "running"]
    monkeypatch.delenv("STAND_IN_TOGETHER")
    assert tune(plan, trials=3, command=stand_in) == 0
    assert "trial 1 continues" in capsys.readouterr().err
    assert _results(plan) == _results(calm)


def test_a_trial_that_was_killed_before_its_settings_were_stored_gets_the_same_ones(tmp_path: Path):
    settings = []
    for name in ("calm", "killed"):
        plan = _plan(tmp_path / name)
        plan.folder.mkdir()
        study = open_study(plan)
        study.tell(ask(plan, study), state=TrialState.FAIL)
        if name == "killed":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(optuna.Trial, "suggest_float", _kill)
                with pytest.raises(KeyboardInterrupt):
                    ask(plan, study)
        study = open_study(plan)
        (trial,) = unfinished(plan, study) if name == "killed" else (ask(plan, study),)
        assert _states(plan) == ["failed", "running"]
        settings.append((trial.number, settings_of_trial(plan, trial)))
    assert settings[0] == settings[1]
    assert settings[0][0] == 1


def _kill(*words: object, **more: object) -> None:
    raise KeyboardInterrupt


def test_a_trial_whose_runs_are_in_use_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = _plan(tmp_path / "study")
    plan.folder.mkdir()
    ask(plan, open_study(plan))  # by a search that was killed

    def in_use(*words: object, **more: object) -> None:
        raise UserError("run trial000/seed1000: in use by process 1. Wait for it to finish, or stop it, and try again.")

    monkeypatch.setattr("coterie.sweeps.tuning.search.TrialRuns", in_use)
    with pytest.raises(UserError, match="trial 0 cannot continue: run trial000/seed1000: in use"):
        tune(plan, trials=3)
    assert _states(plan) == ["running"]


@pytest.mark.slow
def test_a_search_stops_after_its_time(tmp_path: Path, stand_in: list[str], capsys: pytest.CaptureFixture[str]):
    plan = _plan(tmp_path / "study")
    assert tune(plan, trials=100, timeout=0.0, command=stand_in) == 0
    assert "the time is over. Continue with: coterie tune" in capsys.readouterr().err
    assert tune(plan, trials=1, command=stand_in) == 0
    assert tune(plan, trials=1, timeout=0.0, command=stand_in) == 0
    assert "the time is over" not in capsys.readouterr().err  # there is nothing left to do


@pytest.mark.slow
def test_a_folder_with_another_study_is_refused(tmp_path: Path, stand_in: list[str]):
    plan = _plan(tmp_path / "study")
    assert tune(plan, trials=1, command=stand_in) == 0
    for words, seeds, difference in (
        (("algo.gamma=range()",), "2", r"algo\.gamma is null there, uniform\(0\.9,0\.999\) here"),
        ((), "3", r"seeds is \[1000,1001\] there, \[1000,1001,1002\] here"),
    ):
        with pytest.raises(UserError, match=f"contains a study of other settings .{difference}"):
            tune(_plan(tmp_path / "study", *words, seeds=seeds), trials=2, command=stand_in)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.db").write_text("no database" * 100)
    with pytest.raises(UserError, match=r"study\.db: cannot be used"):
        tune(_plan(tmp_path / "broken"), trials=2, command=stand_in)


@pytest.mark.slow
def test_a_default_value_outside_of_the_range_is_tried_nevertheless(tmp_path: Path, stand_in: list[str]):
    plan = make_plan(["algo.lr=0.05", "steps=1000", "algo.lr=log(1e-4,1e-2)"], seeds="1", out=tmp_path / "study")
    assert tune(plan, trials=2, command=stand_in) == 0
    first, second = open_study(plan).trials
    assert first.value == pytest.approx(-abs(-1.30103 + 3) + 0.01, abs=1e-4)
    assert 1e-4 <= second.params["algo.lr"] <= 1e-2
    assert "lr: 0.05" in best_settings(plan, first)


def test_optuna_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune"]) == 2
    assert re.search(r"requires 'optuna', which is not installed.*pip install .*\[tune\]", capsys.readouterr().err)
