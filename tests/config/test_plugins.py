"""Environments that installed packages provide with entry points."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.config import plugins
from coterie.core.errors import UserError
from coterie.envs import registry
from coterie.envs.make import make
from tinyruns import tiny

MODULE = """
import gymnasium, numpy

class Coin(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), float(action), self.steps == self.length, False, {}

    def observe(self):
        return self.np_random.random(1, dtype=numpy.float32)

def batch(num_envs, seed, device):
    from coterie.envs.make import make
    return make("particle/simple", {}, num_envs=num_envs, seed=seed, device=device)

def sinking():
    raise OSError("the pond is\\ndry")
"""


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns a function that installs a package in a new folder on the search path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(package: str, module: str, text: str = MODULE, **named: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name} = {target}" for name, target in named.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *lines, ""]))
        monkeypatch.delitem(sys.modules, module, raising=False)
        plugins.clear_cache()

    plugins.clear_cache()
    return write


def test_environments_of_a_package_are_found_by_full_and_short_name(install: Install):
    install("My-Lab", "labcoins", coin="labcoins:Coin", pond="labcoins:batch")
    for name in ("my_lab/coin", "My-Lab/coin", "coin"):
        assert make(name, {"length": 2}, num_envs=3).spec.n == 1
        assert resolve([f"env={name}", "env.length=7", "algo=random"]).config.env.params.model_dump()["length"] == 7
    assert make("pond", num_envs=5).num_envs == 5
    assert registry.is_batch_factory("my_lab/pond")
    assert not registry.is_batch_factory("my_lab/coin")


@pytest.mark.slow
def test_an_environment_of_a_package_trains_and_is_evaluated_by_name(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    install("lab", "labcoins", coin="labcoins:Coin")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *tiny("env=coin", "algo=ppo", f"out={tmp_path / 'run'}")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["env"] == "coin"


def test_the_list_of_environments_reports_why_one_of_a_package_fails(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    known = {"particle/simple": registry.environments()["particle/simple"]}
    monkeypatch.setattr(registry, "environments", known.copy)  # Listing the others takes time.
    install("lab", "labcoins", coin="labcoins:Coin", pond="labcoins:batch", sinks="labcoins:sinking", gone="nolab:Coin")
    install("typo", "labtypo", "def make(:\n", wrong="labtypo:make")
    install("thief", "labthief", **{"gym/stolen": "labthief:make"})
    assert main(["list", "envs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["lab/coin"]["roles"][0]["actions"] == "2 choices"
    assert rows["lab/pond"]["roles"][0]["agents"] == 1
    errors = {name: row["missing"] for name, row in rows.items() if "missing" in row}
    sinks = r"environment 'lab/sinks' of lab 1\.2: failed with OSError: the pond is dry \(labcoins\.py:\d+\)"
    assert re.fullmatch(sinks, errors["lab/sinks"])
    assert "environment 'lab/gone' of lab 1.2: there is no module 'nolab'" in errors["lab/gone"]
    assert "environment 'typo/wrong' of typo 1.2: 'labtypo' could not be imported: SyntaxE" in errors["typo/wrong"]
    assert "'gym/' is reserved for Coterie's environments" in errors["gym/stolen"]
    assert set(errors) == {"lab/sinks", "lab/gone", "typo/wrong", "gym/stolen"}
    assert not any("\n" in line for line in errors.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lab/cion", "Did you mean 'lab/coin'"),
        ("gone", "environment 'gone' of lab 1.2: there is no module 'nolab'"),
        ("coin2", "is provided by several packages. Use env=lab/coin2 or env=other/coin2."),
    ],
)
def test_an_unavailable_environment_raises_an_error_of_one_line(install: Install, name: str, message: str):
    install("lab", "labcoins", coin="labcoins:Coin", coin2="labcoins:Coin", gone="nolab:Coin")
    install("other", "labother", coin2="labother:Coin")
    with pytest.raises(UserError) as error:
        make(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_packages_cannot_replace_environments_of_coterie(install: Install):
    install("thief", "labthief", **{"gym/CartPole-v1": "labthief:Coin", "particle/simple": "labthief:Coin"})
    assert set(plugins.installed_plugins()) >= {"gym/CartPole-v1", "particle/simple"}
    assert not registry.is_factory("particle/simple")
    assert type(make("particle/simple")).__name__ == "WorldEnv"
    assert make("gym/CartPole-v1").spec.episode_limit == 500
