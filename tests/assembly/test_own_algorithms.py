"""Runs whose algorithm comes from outside Coterie: by module, by entry point, or as a class of Python code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.__main__ import main
from coterie.algos import registry
from coterie.algos.algorithm import Algorithm
from coterie.assembly.resolve import resolve
from coterie.cli.list import algorithm_rows
from coterie.config import callables, plugins
from coterie.config.overrides import parse
from coterie.core.errors import UserError
from coterie.runs.folder import RunFolder
from places import ROOT
from tinyruns import REPLAY, TINY, assert_resumes_exactly, tiny

CRITIC = (ROOT / "examples" / "own_algorithm.py").read_text()
REPLAYING = (ROOT / "examples" / "own_replay.py").read_text()
SETTINGS = tuple(setting for setting in TINY if not setting.startswith(("algo.epochs", "algo.num_minibatches")))
Write = Callable[..., None]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Returns a function that writes a module of the package `algolab`; with entry points, as an installed one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(callables, "_functions", {})
    monkeypatch.setattr("tinyruns.TINY", SETTINGS)

    def write(module: str, text: str, distribution: str = "", **named: str) -> None:
        package = tmp_path / "algolab"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / f"{module}.py").write_text(text)
        for name in [name for name in sys.modules if name.partition(".")[0] == "algolab"]:
            monkeypatch.delitem(sys.modules, name)
        if distribution:
            info = tmp_path / f"{distribution}-2.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
            lines = [f"{name} = {target}" for name, target in named.items()]
            (info / "entry_points.txt").write_text("\n".join([f"[{plugins.ALGORITHMS}]", *lines, ""]))
        plugins.clear_cache()

    write("a2c", CRITIC)
    write("replay", REPLAYING)
    return write


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("settings", [("algo=algolab.a2c:ActorCritic",), ("algo=algolab.replay:QLearner", *REPLAY)])
def test_an_algorithm_of_a_package_resumes_bit_for_bit(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_exactly(tmp_path, monkeypatch, 40, "env=particle/simple_spread", *settings)


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_every_command_loads_an_algorithm_of_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("algo: algolab.a2c:ActorCritic\nenv: particle/simple_tag\n")
    assert main(["train", "--config", "run.yaml", *tiny("algo.lr=0.003", "out=a")]) == 0
    team = "teams.agent.algo=algolab.a2c:ActorCritic"
    assert (
        main(["train", *tiny("env=particle/simple_tag", "algo=ippo", team, "teams.agent.algo.lr=0.01", "out=b")]) == 0
    )
    config = RunFolder.open(Path("b")).config_path.read_text()
    assert "algolab.a2c:ActorCritic" in config
    assert main(["resume", "a", "steps=160"]) == 0
    assert main(["evaluate", "b", "--episodes", "4", "--json"]) == 0
    assert main(["play", "a", "--record", "a.zip"]) == 0
    assert main(["play", "a", "--video", "a.gif", "--size", "64"]) == 0
    assert main(["record", "b", "--episodes", "2", "--out", "demos.safetensors"]) == 0
    assert main(["league", "one=a", "two=b", "--episodes", "4", "--json"]) == 0
    assert main(["exploit", "a", "--steps", "40", "--episodes", "4", "--json"]) == 0
    capsys.readouterr()
    assert set(coterie.load("b").policies) == {"adversary", "agent"}


@pytest.mark.slow
def test_an_entry_point_names_an_algorithm(lab: Write, capsys: pytest.CaptureFixture[str]) -> None:
    lab("swarm", CRITIC, "Swarm-Lab", swarm="algolab.swarm:ActorCritic", ippo="algolab.swarm:ActorCritic")
    for name in ("swarm_lab/swarm", "Swarm-Lab/swarm", "swarm"):
        config = resolve([f"algo={name}", "env=probe/action", "algo.gae_lambda=0.5"]).config
        assert config.algo.params.model_dump()["gae_lambda"] == 0.5
    assert registry.algorithm("ippo").__name__ == "PPO"  # names of Coterie are not replaced
    assert main(["train", *tiny("algo=swarm", "env=probe/action", "out=run")]) == 0
    assert main(["evaluate", "run", "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["algo"] == "swarm"
    for name, meant in (("swam", "swarm"), ("swarm_lab/swam", "swarm_lab/swarm")):
        assert main(["train", *tiny(f"algo={name}", "env=probe/action")]) == 2
        assert f"Did you mean '{meant}'" in capsys.readouterr().err


def test_two_packages_with_one_name_are_told_apart(lab: Write) -> None:
    lab("one", CRITIC, "one", swarm="algolab.one:ActorCritic")
    lab("two", CRITIC, "two", swarm="algolab.two:ActorCritic")
    message = "algorithm 'swarm' is provided by several packages. Use algo=one/swarm or algo=two/swarm"
    with pytest.raises(UserError, match=message):
        resolve(["algo=swarm", "env=probe/action"])
    assert resolve(["algo=two/swarm", "env=probe/action"]).config.algo.name == "two/swarm"


def test_the_list_of_algorithms_has_those_of_packages(lab: Write) -> None:
    lab("swarm", CRITIC, "lab", swarm="algolab.swarm:ActorCritic", gone="nolab:Gone")
    rows = {row["name"]: row for row in algorithm_rows()}
    assert rows["lab/swarm"]["actions"] == ["continuous", "discrete", "hybrid", "multi_discrete"]
    assert rows["lab/swarm"]["summary"] == "Advantage actor-critic with a critic on each agent's own observation."
    assert "there is no module 'nolab'" in rows["lab/gone"]["missing"]
    assert set(rows["mappo"]) == set(rows["lab/swarm"])


@pytest.mark.usefixtures("lab")
def test_settings_of_an_algorithm_are_listed_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "keys", "algo=algolab.a2c:ActorCritic", "env=probe/action", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["algo.gae_lambda"]["meaning"] == "Lambda of generalized advantage estimation."
    for setting, message in (
        ("algo.gae_lamda=0.9", "algo.gae_lamda: no such setting. Did you mean 'algo.gae_lambda'"),
        ("algo.gae_lambda=1.5", "algo.gae_lambda=1.5: expected a number at least 0 and at most 1, e.g. 0.95"),
    ):
        assert main(["train", "algo=algolab.a2c:ActorCritic", "env=probe/action", setting]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_runs_of_others_are_not_imported_without_trust(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *tiny("env=probe/action", "algo=algolab.a2c:ActorCritic", "out=run")]) == 0
    folder = RunFolder.open(Path("run"))
    folder.write_manifest({**folder.read_manifest(), "signature": "of another machine"})
    for name in [name for name in sys.modules if name.startswith("algolab")]:
        del sys.modules[name]
    for words in (["evaluate", "run", "--episodes", "4"], ["league", "a=run", "b=random", "--episodes", "4"]):
        capsys.readouterr()
        assert main(words) == 2
        assert "names code outside Coterie (algo.name=algolab.a2c:ActorCritic)" in capsys.readouterr().err
    assert "algolab.a2c" not in sys.modules
    assert main(["evaluate", "run", "--episodes", "4", "--trust"]) == 0


def notebook_class() -> type[Algorithm]:
    """Returns a class that no module has, as a notebook's."""
    sys.modules.pop("algolab.a2c", None)
    import algolab.a2c as module  # pyright: ignore[reportMissingImports]

    class Local(module.ActorCritic):
        pass

    return Local


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_a_class_of_a_notebook_is_recorded_and_passed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cls = notebook_class()
    settings: dict[str, Any] = {parse(setting).key: parse(setting).values[0] for setting in SETTINGS}
    run = coterie.train(algo={"name": cls, "lr": 1e-3}, env="particle/simple_tag", out=tmp_path / "run", **settings)
    manifest = RunFolder.open(run.run).read_manifest()
    assert manifest["algo"] == "python:notebook_class.Local"
    source = manifest["code_sources"]["algo.name"]
    assert (source["name"], source["file"]) == ("notebook_class.<locals>.Local", __file__)
    assert Path(__file__).read_text().splitlines()[source["line"] - 1].strip() == "class Local(module.ActorCritic):"
    callables._functions.clear()
    assert main(["evaluate", str(run.run)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "does not have (notebook_class.Local). Pass it again: coterie.resume(run, algo=MyAlgorithm)" in error
    assert coterie.evaluate(run, episodes=4, checkpoint="last", algo=cls)["steps"] == 80
    callables._functions.clear()
    assert coterie.resume(run, steps=160, algo=cls).summary.steps >= 160
    callables._functions.clear()
    assert coterie.load(run, "last", algo=cls).steps >= 160
    assert coterie.league({"a": run, "b": "random"}, episodes=4, algo=cls) is not None


@pytest.mark.usefixtures("lab")
def test_a_class_of_a_module_is_named_by_it() -> None:
    import algolab.a2c as module  # pyright: ignore[reportMissingImports]

    assert callables.named({"algo": module.ActorCritic, "teams": {"a": {"algo": {"name": module.ActorCritic}}}}) == {
        "algo": "algolab.a2c:ActorCritic",
        "teams": {"a": {"algo": {"name": "algolab.a2c:ActorCritic"}}},
    }


UPDATE = "        config, team = self.config, self.team\n"
MISTAKES = {
    "syntax": (UPDATE, "        config team\n", 2, "'algolab.bad' could not be imported: SyntaxError"),
    "import": ("import torch\n", "import torchh\n", 2, "'algolab.bad' requires 'torchh', which is not installed"),
    "constructor": (
        "        self.config, self.team, self.ranks = config, team, context.ranks\n",
        "        self.config, self.team, self.ranks = config, team.naem, context.ranks\n",
        3,
        "algorithm 'algolab.bad:ActorCritic' failed in __init__: AttributeError",
    ),
    "shapes": (
        "        loss = actor_critic_loss(\n            log_prob,\n",
        "        loss = actor_critic_loss(\n            log_prob[..., :1, :] @ valid,\n",
        3,
        "algorithm 'algolab.bad:ActorCritic' failed in update: ",
    ),
    "no policy": ("self.policy: StochasticPolicy = ", "policy = ", 3, "failed in __init__: AttributeError"),
    "metrics": (
        "        return mean_metrics(report.unsqueeze(0), METRICS, team.name, ranks=self.ranks)\n",
        "        return {'loss/value': loss}\n",
        3,
        "algolab.bad:ActorCritic: update returned loss/value of type Tensor. Return a number",
    ),
    "state": (
        '        parts = {"policy": self.policy, "critic"',
        '        parts = {"critic"',
        2,
        "algorithm 'algolab.bad:ActorCritic': state_dict() has no entry 'policy'",
    ),
    "unfinished": (
        "    def load_state_dict(self, state):",
        "    def load(self, state):",
        2,
        "algorithm 'algolab.bad:ActorCritic': it does not define load_state_dict. Add it to class ActorCritic",
    ),
    "config": (
        "    Config = ActorCriticConfig\n",
        "    Config = dict\n",
        2,
        "algorithm 'algolab.bad:ActorCritic': Config is <class 'dict'>, not a settings class",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_an_algorithm_are_one_line_with_file_and_line(
    mistake: str, lab: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, code, message = MISTAKES[mistake]
    assert CRITIC.count(before) == 1
    lab("bad", CRITIC.replace(before, after))
    assert main(["train", *tiny("env=probe/action", "algo=algolab.bad:ActorCritic", "out=run")]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    if mistake in {"syntax", "constructor", "shapes"}:
        line = CRITIC.replace(before, after).splitlines().index(after.splitlines()[-1]) + 1
        assert f"(bad.py, line {line})" in error or f"(bad.py:{line})" in error


@pytest.mark.usefixtures("lab")
def test_errors_of_a_policy_are_one_line_too(lab: Write, capsys: pytest.CaptureFixture[str]) -> None:
    own = CRITIC.replace(
        "class ActorCritic(Algorithm):",
        "class Policy(StochasticPolicy):\n    def act(self, *arguments):\n        raise KeyError('who')\n\n\n"
        "class ActorCritic(Algorithm):",
    ).replace("self.policy: StochasticPolicy = StochasticPolicy(", "self.policy = Policy(")
    lab("acting", own)
    assert main(["train", *tiny("env=probe/action", "algo=algolab.acting:ActorCritic", "out=run")]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "algorithm 'algolab.acting:ActorCritic' failed in act: KeyError: 'who' (acting.py:" in error
    assert "The last good checkpoint is in" in error or "There is no checkpoint yet" in error


def test_errors_of_coterie_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.cli.app.run", lambda argv: [][0])
    with pytest.raises(IndexError):
        main(["train"])
