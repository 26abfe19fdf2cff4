"""Each check on a run that has the fault, and on a healthy run of the same kind; the command and the summary."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import coterie
import diagnosis_worlds
from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.checks.diagnosis.diagnosis import CHECKS, Diagnosis
from coterie.checks.findings import Finding
from coterie.commands import diagnose as command
from coterie.commands.diagnose import diagnose
from coterie.commands.train import train
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from tinyruns import log_entries

pytestmark = pytest.mark.slow

ALL = (
    *("env=diagnosis_worlds:make", "num_envs=8", "threads=1", "device=cpu", "log.tensorboard=false", "progress=off"),
    *("eval.episodes=16", "eval.num_envs=8", "eval.every=2000", "algo.hidden_sizes=[32,32]", "algo.lr=1e-3"),
)
PPO = (
    *("algo=ppo", "steps=6000", "algo.rollout_length=32", "algo.epochs=6", "algo.num_minibatches=4"),
    "algo.normalize_obs=false",
)
DDQN = (
    *("algo=ddqn", "steps=6000", "algo.rollout_length=16", "algo.gradient_steps=12", "algo.learning_starts=200"),
    *("algo.epsilon_decay_steps=2000", "algo.batch_size=64", "algo.reward_scale=none", "algo.n_step=1"),
    "algo.layer_norm=false",
)
DRIFTING = (
    *("env=diagnosis_worlds:reference", "algo=mappo", "steps=40000", "num_envs=32", "algo.hidden_sizes=[64,64]"),
    *("eval.every=10000", "eval.episodes=64", "eval.num_envs=32"),
)
HAPPO = ("env=diagnosis_worlds:reference", "algo=happo", "steps=1600", "algo.rollout_length=32")
LESSONS = (
    "curriculum.lessons=[{name: one, parameters: {reward: 1}, advance: {metric: progress, above: 0.75}},"
    "{name: two, parameters: {reward: 2}}]"
)
RUNS = {
    "ppo": PPO,
    "large steps": (*PPO, "steps=2000", "algo.lr=0.02", "algo.epochs=30", "env.noise=1"),
    "collapsed": (*PPO, "steps=3000", "algo.lr=0.5", "algo.activation=relu", "algo.entropy_coef=0"),
    "tiny steps": (*PPO, "steps=3000", "algo.lr=1e-8"),
    "large observations": (*PPO, "steps=3000", "env.scale=1000"),
    "unpredictable": (*PPO, "env.reward=0", "env.noise=1", "algo.critic_lr=0.01"),
    "saturated": (*PPO, "algo.normalize_obs=true", "algo.lr=0.03"),
    "few steps": (*PPO, "steps=600"),
    "few updates": (*PPO, "num_envs=64", "eval.num_envs=16"),
    "few gradient steps": (*DDQN, "algo.gradient_steps=1"),
    "too short": (*PPO, "steps=5400", "env.actions=300", "eval.every=900", "algo.lr=5e-4"),
    "greedy evaluation": (*PPO, "env.alternate=true", "eval.mode=greedy"),
    "slow": (*PPO, "steps=1024", "eval.every=0", "algo.epochs=1", "env.sleep=0.003"),
    "endless": (*PPO, "steps=8200", "eval.every=0", "env.length=0", "algo.epochs=1"),
    "no reward": (*PPO, "steps=600", "env.reward=0"),
    "ddqn": DDQN,
    "large rewards": (*DDQN, "steps=3000", "env.reward=1e6"),
    "tiny rewards": (*DDQN, "steps=3000", "env.reward=1e-6"),
    "dying": (*DDQN, "steps=2000", "algo.lr=0.5"),
    "diverged": (*DDQN, "steps=700", "algo.lr=0.9", "algo.gamma=0.5", "algo.learning_starts=690"),
    "small buffer": (*DDQN, "steps=2000", "algo.buffer_size=160"),
    "old buffer": (*DDQN, "steps=2000", "algo.batch_size=4", LESSONS),
    "always random": (*DDQN, "steps=1000", "algo.epsilon_decay_steps=1e6"),
    "drifting": DRIFTING,
    "drifting at a known limit": (*DRIFTING, "env=particle/simple_reference", "algo.bootstrap_at_limit=true"),
    "happo": HAPPO,
    "large steps in sequence": (*HAPPO, "algo.lr=0.05", "algo.epochs=20"),
    "worse than random": (*PPO, "steps=3000", "eval.every=500", "env.alternate=true", "algo.lr=0.5"),
    "forgotten": (*PPO, "steps=3000", "eval.every=500", "init.run=ppo", "algo.lr=0.5"),
    "tiny steps for long": (*PPO, "steps=8000", "algo.lr=1e-5"),
}
"""Settings of runs. The runs `ppo`, `ddqn` and `happo` are healthy, each of the others has a fault."""
FIXED: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "collapsed": ("algo.lr=0.003", 3, ("entropy", "gradients")),
    "large steps": ("algo.lr=0.003", 0, ("kl", "clip fraction")),
    "tiny steps": ("algo.lr=0.0005", 3, ("kl",)),
    "large steps in sequence": ("algo.lr=0.003", 5, ("effective samples",)),
    "saturated": ("algo.layer_norm=hidden", -1, ("saturated tanh",)),
    "large observations": ("algo.normalize_obs=true", 0, ("saturated tanh", "observation scale")),
    "few steps": ("steps=4928", 2, ("gradient steps",)),
    "few updates": ("num_envs=10", 0.5, ("gradient steps",)),
    "few gradient steps": ("algo.gradient_steps=10", 3, ("gradient steps",)),
    "too short": ("steps=16200", 2, ("nothing learned",)),
    "large rewards": ("algo.reward_scale=rms", 3, ("reward scale", "gradients")),
    "tiny rewards": ("algo.reward_scale=rms", 3, ("reward scale", "value range")),
    "dying": ("algo.lr=0.003", 3, ("dead units",)),
    "diverged": ("algo.lr=0.003", 1, ("value range",)),
    "small buffer": ("algo.buffer_size=10000", -1, ("replay",)),
    "old buffer": ("algo.buffer_size=232", -1, ("replay",)),
    "greedy evaluation": ("eval.mode=sample", 3, ("evaluation mode", "below random")),
    "drifting": ("algo.gamma=0.96", 1, ("values at limits",)),
    "drifting at a known limit": ("algo.bootstrap_at_limit=false", 1, ("values at limits",)),
    "worse than random": ("algo.lr=0.003", 1, ("below random",)),
    "forgotten": ("algo.lr=0.003", 1, ("fell",)),
    "tiny steps for long": ("algo.lr=0.0005", 1, ("nothing learned",)),
}
"""The setting that findings name, by how much the last evaluation rises with it, in right actions, and these findings.

That of runs without any reward is shown by a table in docs/how-to/reward-signals.md. Limits of episodes, workers and
epsilon are what their findings are about.
"""
RUNS |= {f"{name} fixed": (*RUNS[name], fix) for name, (fix, *_) in FIXED.items()}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder of a run of `RUNS`, which is trained when it is first needed."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        path = folder / name.replace(" ", "-")
        if not path.exists():
            given = {setting.partition("=")[0]: setting for setting in (*ALL, *RUNS[name])}
            if "init.run" in given:
                given["init.run"] = f"init.run={run(given['init.run'].partition('=')[2])}"
            train(resolve([*given.values(), f"out={path}"]))
        return path

    return run


@pytest.fixture(scope="module")
def diagnosis_of(run_of: Callable[[str], Path]) -> Callable[[str], Diagnosis]:
    """Returns the diagnosis of a run of `RUNS`."""
    known: dict[str, Diagnosis] = {}

    def diagnosed(name: str) -> Diagnosis:
        if name not in known:
            known[name] = diagnose(run_of(name))
        return known[name]

    return diagnosed


def finding(diagnosis: Diagnosis, check: str) -> Finding:
    found = [finding for finding in diagnosis.findings if finding.name == check]
    assert len(found) == 1, diagnosis.findings
    return found[0]


FAULTS = [
    ("collapsed", "entropy", "high", "entropy fell from ", "algo.lr=0.003 (now 0.5)", "ppo"),
    ("large steps", "kl", "medium", "the KL divergence per update is 0.", "algo.lr=0.003 (now 0.02)", "ppo"),
    ("tiny steps", "kl", "medium", "updates leave the policy as it was", "algo.lr=0.0005 (now 1e-08)", "ppo"),
    ("large steps", "clip fraction", "medium", "% of the samples are outside", "algo.lr=0.003 (now 0.02)", "ppo"),
    ("large steps in sequence", "effective samples", "", "an effective sample size of ", "algo.lr=0.003", "happo"),
    ("saturated", "saturated tanh", "medium", "% of the activations of ", "algo.layer_norm=hidden (now false)", "ppo"),
    ("unpredictable", "explained variance", "medium", "the critic explains -", "algo.critic", "ppo"),
    ("collapsed", "gradients", "high", "the gradient of the policy vanishes: its norm is 0", "algo.lr=0.003", "ppo"),
    ("large rewards", "gradients", "", "the gradient norm of the critic is ", "algo.reward_scale=rms", "ddqn"),
    ("dying", "dead units", "high", "% of the 32 units of agent layer ", "algo.lr=0.003 (now 0.5)", "ddqn"),
    ("large observations", "saturated tanh", "", "of agent layer 1 are beyond 0.97", "normalize_obs", "ppo"),
    ("large observations", "observation scale", "high", " of agent reaches 1,000", "algo.normalize_obs=true", "ppo"),
    ("large rewards", "reward scale", "high", "at most 1,000,000 per step", "algo.reward_scale=rms", "ddqn"),
    ("tiny rewards", "reward scale", "high", "at most 1e-06 per step", "algo.reward_scale=rms", "ddqn"),
    ("no reward", "reward scale", "high", "no step of the run had a reward other than 0", "rewards.rnd={}", "ppo"),
    ("diverged", "value range", "high", "reward of a step, 1, allows returns up to 2", "algo.lr=0.003", "ddqn"),
    ("few steps", "gradient steps", "high", "the run took 72 gradient steps in 704", "steps=4928", "ppo"),
    ("few updates", "gradient steps", "high", "the run took 96 gradient steps", "num_envs=10 (now 64)", "ppo"),
    ("few gradient steps", "gradient steps", "high", "took 51 gradient", "algo.gradient_steps=10 (now 1)", "ddqn"),
    ("too short", "nothing learned", "high", "within the errors of the random policy", "steps=16200", "ppo"),
    ("small buffer", "replay", "high", "3.8 batches of 64", "algo.buffer_size=10000 (now 160)", "ddqn"),
    ("old buffer", "replay", "medium", "% of the replay buffer is from earlier lessons", "algo.buffer_size=", "ddqn"),
    ("always random", "exploration", "high", "decays over 1,000,000 steps", "algo.epsilon_decay_steps=500", "ddqn"),
    ("greedy evaluation", "below random", "high", "below the random policy (6)", "eval.mode=sample", "ppo"),
    ("greedy evaluation", "evaluation mode", "high", "standard deviations worse", "eval.mode=sample", "ppo"),
    ("slow", "environment speed", "", "% of the time is spent in the environment", "workers.count=8 (now 0)", "ppo"),
    (
        "drifting at a known limit",
        "values at limits",
        "high",
        "values are bootstrapped",
        "bootstrap_at_limit=false (now true)",
        "ppo",
    ),
    ("drifting", "values at limits", "high", "values are bootstrapped over a", "algo.gamma=0.96 (now 0.99)", "ppo"),
    ("worse than random", "below random", "high", "below the random policy (6)", "algo.lr=0.003 (now 0.5)", "ppo"),
    ("forgotten", "fell", "high", ", fell by ", "algo.lr=0.003 (now 0.5)", "ppo"),
    ("tiny steps for long", "nothing learned", "high", "the errors of the random policy", "algo.lr=0.0005", "ppo"),
    ("endless", "episode end", "high", "no episode ended in 8,448 steps, 1,056 of", "env.episode_limit=200", "ppo"),
]
"""Run with a fault, check, severity ("" if either is right), evidence, fix, and a healthy run."""


@pytest.mark.parametrize(
    ("run", "check", "severity", "evidence", "fix", "healthy"),
    FAULTS,
    ids=[f"{fault[0]}: {fault[1]}" for fault in FAULTS],
)
def test_a_check_finds_its_fault_and_nothing_in_a_healthy_run(
    run: str, check: str, severity: str, evidence: str, fix: str, healthy: str, diagnosis_of: Callable[[str], Diagnosis]
) -> None:
    found = finding(diagnosis_of(run), check)
    assert severity in (found.severity, "")
    assert evidence in found.evidence
    assert fix in found.fix
    assert check in diagnosis_of(healthy).passed


def test_every_check_has_a_run_with_its_fault() -> None:
    assert {check for _, check, *_ in FAULTS} == set(CHECKS)


@pytest.mark.parametrize("name", FIXED)
def test_the_setting_that_a_finding_names_helps(
    name: str, diagnosis_of: Callable[[str], Diagnosis], run_of: Callable[[str], Path]
) -> None:
    fix, rise, checks = FIXED[name]
    assert all(fix in finding(diagnosis_of(name), check).fix for check in checks)
    assert not {found.name for found in diagnosis_of(f"{name} fixed").findings} & set(checks)
    before, after = (
        [entry["eval/return_mean"] for entry in log_entries(run_of(run)) if "eval/return_mean" in entry][-1]
        for run in (name, f"{name} fixed")
    )
    reward = next((float(s.partition("=")[2]) for s in RUNS[name] if s.startswith("env.reward=")), 1.0)
    assert after > before + rise * reward


def test_a_finding_names_one_setting(diagnosis_of: Callable[[str], Diagnosis]) -> None:
    for run in {run for run, *_ in FAULTS}:
        for found in diagnosis_of(run).findings:
            assert len(re.findall(r"[a-z]=", found.fix)) <= 1, found


@pytest.mark.parametrize("healthy", ["ppo", "ddqn"])
def test_a_healthy_run_has_no_findings(healthy: str, diagnosis_of: Callable[[str], Diagnosis]) -> None:
    assert diagnosis_of(healthy).findings == ()
    assert all(not skipped.applies for skipped in diagnosis_of(healthy).skipped)


def test_runs_log_what_checks_need(run_of: Callable[[str], Path]) -> None:
    def values(run: str, metric: str) -> list[float]:
        return [row[metric] for row in log_entries(run_of(run)) if metric in row]

    assert set(values("ppo", "rollout/reward_abs_max")) == {1.0}
    assert 5 < values("ppo", "value/estimate")[-1] < 10  # of 10 for the start of an episode, and 1 for its last step
    ages = values("ddqn", "replay/age")  # 16 timesteps of 8 environments per rollout, of which nothing is discarded
    assert ages == [64.0 * (k + 1) for k in range(len(ages))]
    assert max(values("small buffer", "replay/age")) < 200
    assert undeclared({name for run in ("ppo", "ddqn") for row in log_entries(run_of(run)) for name in row}) == []


def test_findings_are_printed_worst_first_in_at_most_80_columns(
    run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_of("large observations")
    monkeypatch.chdir(folder.parent)
    assert main(["diagnose", folder.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "large-observations: 3,032 of 3,000 steps"
    severities = [line.partition(":")[0] for line in lines if line.startswith(("high:", "medium:", "low:"))]
    assert severities == sorted(severities)
    assert severities[0] == "high"
    assert any(
        line.startswith("networks and observations were examined on a rollout of 64 steps in 8") for line in lines
    )
    assert any(" checks found nothing: " in line for line in lines)
    assert "nothing to check: replay: ppo has no replay buffer" in lines


def test_strict_exits_with_1_if_there_is_a_finding(run_of: Callable[[str], Path]) -> None:
    assert main(["diagnose", str(run_of("few steps")), "--strict"]) == 1
    assert main(["diagnose", str(run_of("ddqn")), "--strict"]) == 0


def test_json_and_python_return_the_same(run_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(run_of("few steps")), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(coterie.diagnose(run_of("few steps")).to_dict()))
    assert printed["findings"][0]["check"] == "gradient steps"
    assert printed["steps"] == 704
    assert {"check": "replay", "team": "", "reason": "ppo has no replay buffer", "applies": False} in printed["skipped"]


def test_the_checkpoint_is_named_once_and_only_if_it_was_asked_for(
    run_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("few steps")
    capsys.readouterr()
    errors = []
    for options in ((), ("--checkpoint", "last"), ("--checkpoint", "472")):
        assert main(["diagnose", str(run), *options]) == 0
        errors.append(capsys.readouterr().err)
    assert errors == [
        "",
        "coterie: checkpoint: last, step 704, by --checkpoint last\n",
        "coterie: checkpoint: step, step 472, by its number of steps\n",
    ]


def test_a_checkpoint_that_the_path_names_is_examined(
    run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    monkeypatch.setattr(command, "_rollout_samples", lambda trained: steps.append(trained.choice.found.steps) or {})
    first = min((p for p in (run_of("few steps") / "checkpoints").iterdir() if p.name.isdigit()), key=lambda p: p.name)
    diagnose(first)
    diagnose(run_of("few steps"))
    assert steps[0] == int(first.name) < steps[1]


def test_a_run_of_someone_else_is_diagnosed_without_its_code(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run_of("dying"), tmp_path / "other")
    manifest = json.loads((tmp_path / "other" / "manifest.json").read_text())
    (tmp_path / "other" / "manifest.json").write_text(json.dumps(manifest | {"signature": "0" * 64}))
    monkeypatch.setattr(diagnosis_worlds, "SickWorld", None)  # the environment cannot be made
    found = diagnose(tmp_path / "other")
    assert finding(found, "dead units").severity == "high"
    assert "names code outside Coterie" in found.notes[0]
    assert found.notes[-1] == "networks and observations were examined on observations in the checkpoint"


def test_without_checkpoint_the_log_is_diagnosed(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(run_of("always random"), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    found = diagnose(tmp_path / "run")
    assert finding(found, "exploration").severity == "high"
    skipped = {skipped.check: skipped for skipped in found.skipped}
    assert "no checkpoint that could be read" in skipped["dead units"].reason
    assert skipped["dead units"].applies
    with pytest.raises(UserError, match="no checkpoint"):
        diagnose(tmp_path / "run", "best")


def test_a_folder_that_is_no_run_is_refused_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run"):
        diagnose(tmp_path)


# ------------------------------------------------------------------------------------------------- summary of `train`


def test_the_summary_of_train_shows_the_worst_findings_and_the_command(tmp_path: Path) -> None:
    given = {setting.partition("=")[0]: setting for setting in (*ALL, *RUNS["few steps"], "env.reward=0")}
    summary = train(resolve([*given.values(), f"out={tmp_path / 'run'}"])).summary
    assert [line.partition(":")[0] for line in summary.findings] == ["reward scale", "gradient steps"]
    text = summary.text()
    assert "no step of the run had a reward other than 0 in 704 steps. Reward what is new: rewards.rnd={}" in text
    assert f"coterie diagnose {tmp_path / 'run'}" in text


def test_a_run_without_findings_does_not_mention_them(run_of: Callable[[str], Path]) -> None:
    result = coterie.resume(run_of("ddqn"))
    assert result.summary.findings == ()
    assert "coterie diagnose" not in result.summary.text()


def test_a_failing_diagnosis_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no steps")

    monkeypatch.setattr(command, "diagnose_view", fail)
    given = {setting.partition("=")[0]: setting for setting in (*ALL, *RUNS["few steps"])}
    assert train(resolve([*given.values(), f"out={tmp_path / 'run'}"])).summary.findings == ()
    assert "the run could not be diagnosed: ZeroDivisionError: no steps" in capsys.readouterr().err
