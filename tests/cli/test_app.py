"""The command line: every command, and one-line errors for invalid commands."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.__main__ import main
from coterie.commands import train as training
from coterie.core.errors import NonFiniteError, UserError
from coterie.sweeps.sweep import plan

SMALL = ["algo=random", "threads=1", "steps=64", "num_envs=4", "eval.episodes=4", "eval.num_envs=4"]
SMALL += ["log.tensorboard=false", "progress=off"]
TAG = "env=particle/simple_tag"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------------------------------------------------------ errors

INVALID = [
    # Names: of algorithms, presets, environments, modules, settings, teams and roles
    ("train algo=mapo", "algo: there is no algorithm 'mapo'. Did you mean 'mappo'"),
    ("train env=particle/simple_sprad", "'particle/simple_sprad'. Did you mean 'particle/simple_spread'"),
    ("train env=nowhere:make", "there is no module 'nowhere'"),
    ("train algo=random env=subprocess:run env.args=[touch,created]", "belongs to Python's standard library"),
    ("train algo.lrr=1e-3", "algo.lrr: no such setting. Did you mean 'algo.lr'"),
    ("train lrr=1e-3", "lrr: no such setting. Did you mean 'algo.lr'"),
    ("train seed.x=5", "seed.x: no such setting. Did you mean 'seed'"),
    ("train eval=5", "eval=5: eval is a section. Set eval.every"),
    ("train algo=mappo algo.mixer=vdn", "not a setting of algorithm 'mappo' but of ddqn, iql, pqn and 8 others"),
    (f"train {TAG} teams.advresary.algo=random", "has no team 'advresary'. Did you mean 'adversary'"),
    (f"train {TAG} teams.all.roles=[adversary,agnt]", "has no role 'agnt'. Did you mean 'agent'"),
    (f"train {TAG} teams.adversary=random", "Write teams.NAME.algo=..."),
    # Values, one of each type and bound
    ("train algo.lr=fast", "algo.lr=fast: expected a number"),
    ("train algo.lr=nan", "expected a finite number"),
    ("train algo.gamma=1.5", "algo.gamma=1.5: expected a number at least 0 and at most 1, e.g. 0.99"),
    ("train algo.hidden_sizes=[64,x]", "algo.hidden_sizes: item 1 is 'x', expected an integer"),
    ("train algo.normalize_obs=maybe", "expected true or false"),
    ("train algo.critic=jiont", "expected own, joint, state, joint_state or global"),
    ("train algo=sable algo.rnn=gru", "algo.rnn=gru: expected none. Omit it."),
    ("train steps=1e99", "expected an integer at least 1 and at most"),
    ("train num_envs=true", "num_envs=true: expected a number"),
    ("train device=gpu", "device=gpu: expected auto, cpu, cuda or cuda:N"),
    ("train device=cuda:99", "device=cuda:99: no such GPU"),
    ("train seed", "'seed': expected key=value"),
    ("train seed=0,1", "seed=0,1: several values. To run each, use `coterie train -m seed=0,1`."),
    # Options and commands
    ("train -m algo=mappo,mapo", "there is no algorithm 'mapo'"),
    ("train --jobs 2", "--jobs: requires -m"),
    ("train --print", "--print: requires -m"),
    ("train -m --cfg job", "Remove -m"),
    ("train --config none.yaml", "none.yaml: no such file"),
    ("train --config bad.yaml", "bad.yaml:2: invalid YAML"),
    ("train --lr=3", "No such option: --lr. Settings are words: write lr=3."),
    ("train --num-envs", "No such option: --num-envs. Settings are words: write num_envs=VALUE."),
    ("train --jbos 3", "--jobs"),
    ("train --render", "No such option: --render. Watch a run with `coterie watch RUN`"),
    ("train --config=qmix --env-config=sc2 with env_args.map_name=3m", "Write: coterie train algo=qmix env=smac/3m"),
    ("trian", "trian: no such command. Did you mean 'train'"),
    ("algo=mappo", "Did you mean `coterie train algo=mappo`"),
    ("resume nowhere", "nowhere: no such run"),
    ("evaluate nowhere --algo random", "--algo random: cannot be combined with a run"),
    ("play", "coterie play: no run given"),
    ("play nowhere --video x.mp3", "unsupported file type. Expected .mp4 or .gif"),
    ("league nowhere random --out x.jpg", "--out x.jpg: unsupported file type"),
]


@pytest.mark.parametrize(("words", "expected"), INVALID)
def test_an_invalid_command_is_a_one_line_error_and_writes_no_files(
    words: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "bad.yaml").write_text("seed: 1\nsteps: [1\n")
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("coterie: ")
    assert expected in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_an_error_has_a_traceback_only_if_requested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    message = "coterie: algo: there is no algorithm 'mapo'. Did you mean 'mappo' or 'magpo' or 'happo'? "
    message += "Your own: algo=package.module:Class.\n"
    assert main(["train", "algo=mapo"]) == 2
    assert capsys.readouterr() == ("", message)
    assert main(["train", "algo=mapo", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("COTERIE_DEBUG", "1")
    assert main(["train", "algo=mapo"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (NonFiniteError("environment 3, agent 'a': the reward is nan"), 3, "coterie: environment 3, agent 'a'"),
        (KeyboardInterrupt(), 130, "coterie: interrupted\n"),
        (UserError("two\nlines"), 2, "coterie: two lines"),
    ],
)
def test_each_kind_of_failure_has_its_own_exit_code(
    error: BaseException, code: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(resolved: object) -> None:
        raise error

    monkeypatch.setattr(training, "train", fail)
    assert main(["train"]) == code
    assert capsys.readouterr().err.startswith(expected)


PATHS = [
    *("resume {}", "evaluate {}", "plot {}", "ps {}", "compare {}", "report {}", "diagnose {}", "league {} random"),
    *("exploit {}", "export {} --out x", "serve {}", "play {}", "watch {}", "view {}", "record {}", "demos {}"),
    *("train --config {}", "tune --space {} --trials 1 --out x", "train algo=random out={}"),
    *(
        "train imitation.demos={}",
        "train init.run={}",
        f"train {TAG} teams.agent.run={{}}",
        "report --league {}",
        "train rewards.gail.demos={}",
    ),
    *("tune algo.lr=log(1e-4,1e-3) --out {}", "train -m seed=0,1 out={}", "list keys {}", "check-env {}", "bench {}"),
    *("record --algo random --env matrix/climbing --out {}", "play --algo random --env matrix/climbing --video {}.gif"),
    *("league random scripted --env particle/simple_tag --out {}.png", "train env={}", "train algo={}", "{}", "{}=1"),
    *("train {}=1", "train algo.lr={}", "evaluate --algo {} --env matrix/climbing", "check-algo {}", "reproduce {}"),
]
"""Commands with a path or another text in the place of `{}`."""


TEXTS = {"long": "x" * 5000, "open": "[" * 300, "deep": "x/" * 3000, "digits": "9" * 2000}
TURNS = [(words, [*TEXTS][k % len(TEXTS)]) for k, words in enumerate(PATHS)]
"""Each command with one of the texts, which take turns."""


@pytest.mark.parametrize(("words", "text"), TURNS)
def test_a_path_or_text_of_any_length_is_answered_with_a_short_line(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
):
    assert main([word.replace("{}", TEXTS[text]) for word in words.split()]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("coterie: ")
    assert len(errors) < 1000


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), "coterie: runs/x: Permission denied."),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000), f"coterie: {'x' * 197}...: File name too"),
        (OSError(errno.EROFS, "Read-only file system", b"runs\x07"), "coterie: runs\\x07: Read-only"),
        (OSError(errno.EIO, "Input/output error", 5), "coterie: a file: Input/output error."),
        (OSError("no device"), "coterie: OSError: no device"),
    ],
)
def test_an_error_of_the_operating_system_is_one_line_with_its_path(
    error: OSError, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(resolved: object) -> None:
        raise error

    monkeypatch.setattr(training, "train", fail)
    assert main(["train"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(expected)
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_a_closed_output_pipe_is_not_an_error():
    words = [sys.executable, "-m", "coterie", "--help"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 1


# ---------------------------------------------------------------------------------------------------------- commands


def test_keys_are_filtered_by_text_in_the_key_or_in_the_meaning(capsys: pytest.CaptureFixture[str]):
    def keys(*words: str) -> list[str]:
        assert main(["list", "keys", *words, "--json"]) == 0
        return [row["key"] for row in json.loads(capsys.readouterr().out)]

    assert "eval.every" in keys("eval")
    assert all("eval" in key for key in keys("eval"))
    assert keys("eval", "episodes") == ["eval.episodes", "eval.min_episodes"]
    assert keys("algo.gamma", "algo=ippo") == ["algo.gamma"]
    assert keys("Discount factor per step", "algo=ippo") == ["algo.gamma", "rewards.extrinsic.gamma"]
    assert main(["list", "keys", "gama"]) == 2
    assert "gama: no setting contains this text. Did you mean 'gamma' or 'algo.gamma'" in capsys.readouterr().err


def test_environments_are_filtered_by_name(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "envs", "simple_tag", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["particle/simple_tag"]
    assert main(["list", "envs", "simple_tug"]) == 2
    assert "simple_tug: no environment has a name with this text." in capsys.readouterr().err


def test_cfg_job_prints_the_configuration_with_the_origin_of_every_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert main(["train", "--cfg", "job", "seed=3"]) == 0
    output = capsys.readouterr().out
    assert "command line" in output
    (tmp_path / "again.yaml").write_text(output)
    assert main(["train", "--cfg", "job", "--config", "again.yaml"]) == 0
    assert [line.partition("  #")[0] for line in capsys.readouterr().out.splitlines()] == [
        line.partition("  #")[0] for line in output.splitlines()
    ]


@pytest.mark.slow
def test_lists_contain_algorithms_environments_and_settings(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "algos", "--json"]) == 0
    algos = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    clipped = {"ppo", "ippo", "mappo", "ia2c", "maa2c", "happo", "haa2c"}
    sable, pqn = {"sable", "ff_sable", "magpo"}, {"pqn", "pqn_vdn", "pqn_qmix"}
    on_policy = (clipped, {"hatrpo"}, {"coma"}, {"poca"}, {"mat"}, {"mat_dec"}, sable, pqn, {"vdac"}, {"seac"}, {"pac"})
    values = {"ddqn", "iql", "vdn", "qmix", "qplex", "qfix", "wqmix"}
    soft, fixed = {"sac", "masac", "hasac"}, {"random", "frozen", "scripted"}
    off_policy = (values, {"ddpg", "maddpg", "td3", "matd3"}, soft, fixed)
    assert set(algos) == set().union(*on_policy, *off_policy)
    assert {name for name, row in algos.items() if row["learns"] and not row["off_policy"]} == set().union(*on_policy)
    assert [name for name, row in algos.items() if row["learns"] and not row["paper"]] == []
    assert "continuous" in algos["mappo"]["actions"]
    assert [name for name, row in algos.items() if row["centralized_execution"]] == ["mat", "sable", "ff_sable"]
    assert algos["ippo"]["presets"] == ["ippo/yardstick"]
    assert main(["list", "envs", "--json"]) == 0
    envs = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [role["agents"] for role in envs["particle/simple_tag"]["roles"]] == [3, 1]
    assert envs["particle/simple_tag"]["limit"] == 25
    assert main(["list", "keys", "algo=ippo", "--json"]) == 0
    keys = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert keys["algo.gamma"]["meaning"] == "Discount factor per step."


def test_print_shows_the_commands_of_a_sweep(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "-m", "seed=0,1", "algo=random", "--print"]) == 0
    assert capsys.readouterr().out == "".join(
        f"coterie train seed={job.config.seed} algo=random out={job.out}\n" for job in plan(["seed=0,1", "algo=random"])
    )


@pytest.mark.slow
def test_a_run_is_trained_evaluated_resumed_plotted_and_recorded(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["train", *SMALL, "out=run", "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["run"] == "run"
    assert trained["steps"] >= 64
    assert main(["evaluate", "run", "--episodes", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["env"], report["algo"], report["episodes"]) == ("particle/simple_spread", "random", 8)
    names = {"return_mean", "return_error", "return_interval", "return_std", "length_mean"}
    assert set(report["teams"]["agent"]) == names | {"return_by_agent", "return_by_group"}
    assert main(["resume", "run", "steps=200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] >= 200
    assert main(["resume", "run", "algo.rollout_length=3"]) == 2
    assert "cannot change" in capsys.readouterr().err
    assert main(["train", *SMALL, "out=run"]) == 2
    assert "out=run: already contains a run" in capsys.readouterr().err
    assert main(["plot", "run", "--out", "curve.png"]) == 0
    assert (tmp_path / "curve.png").exists()
    assert (tmp_path / "curve.svg").exists()
    assert main(["play", "run", "--video", "episode.gif", "--size", "64"]) == 0
    assert (tmp_path / "episode.gif").stat().st_size > 0


def test_a_baseline_needs_no_run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    command = ["evaluate", "--algo", "random", "--env", "particle/simple_tag", "env.adversaries=2", "threads=1"]
    command += ["--episodes", "10"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["teams"]["adversary"]["return_by_agent"]) == 2
    assert main([*command, "--seed", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["teams"] != report["teams"]
    assert main(["evaluate", "algo=random", "threads=1", "--episodes", "10"]) == 0
    output = capsys.readouterr().out
    assert "team return" in output
    assert re.search(r"agent_0 +-", output)
    assert list(tmp_path.iterdir()) == []


def test_check_env_reports_findings_and_fails_if_there_are_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from coterie.checks.environment import contract
    from coterie.checks.environment.rules import Report
    from coterie.checks.findings import Finding

    arguments: dict[str, Any] = {}

    def check(make: Any) -> Any:
        arguments["env"] = make(3, 1)
        return Report("pond", (Finding("error", "none is usable", "leave one", "masks"),), {"tested": "a bit"})

    monkeypatch.setattr(contract, "check", check)
    assert main(["check-env", "particle/simple_spread", "env.agents=5"]) == 1
    expected = [
        *("pond: failed (1 error)", "", "  tested  a bit", ""),
        *("error: masks", "  none is usable", "  fix: leave one"),
    ]
    assert capsys.readouterr().out.splitlines() == expected
    assert (arguments["env"].num_envs, arguments["env"].spec.n) == (3, 5)
    assert main(["check-env", "particle/simple_spread", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "env": "particle/simple_spread",
        "ok": False,
        "findings": [{"severity": "error", "rule": "masks", "message": "none is usable", "fix": "leave one"}],
        "summary": {"tested": "a bit"},
    }


def test_a_module_in_the_working_directory_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "found_here.py").write_text(
        "from coterie.envs.make import make\n"
        "def world(num_envs, seed, device, agents=2):\n"
        "    return make('particle/simple_spread', {'agents': agents}, num_envs, seed, device=device)\n"
    )
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])  # as of an installed command
    words = ["evaluate", "--algo", "random", "--env", "found_here:world", "env.agents=4", "threads=1"]
    assert main([*words, "--episodes", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["teams"]["agent"]["return_by_agent"]) == 4


def test_the_version_option_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


def test_coterie_without_arguments_prints_its_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    captured = capsys.readouterr()
    assert "check-env" in captured.out
    assert captured.err == ""
