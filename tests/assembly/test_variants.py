"""Classes derived from algorithms of Coterie: the presets that they start from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.algos import registry
from coterie.assembly.composition import base_lines
from coterie.assembly.resolve import load_resolved, resolve
from coterie.cli.list import key_rows
from coterie.config.trust import trusted_runs
from coterie.core.errors import UserError
from tinyruns import tiny

MODULE = """
from pydantic import Field
from coterie.algos.algorithm import Algorithm
from coterie.algos.base_config import LearnerConfig
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.qlearning import QLearning

class Mine(PPO):
    pass

class Grandchild(Mine):
    pass

class Independent(PPO):
    base = "ippo"

class Faster(PPO):
    class Config(PPOConfig):
        lr: float = Field(0.02, gt=0)
        extra: float = 1.0

class Values(QLearning):
    pass

class Unrelated(PPO):
    base = "none"
    class Config(LearnerConfig):
        gamma: float = 0.5

class Wrong(PPO):
    base = "mapo"

class Reserved(PPO):
    class Config(PPOConfig):
        base: int = 1
"""
ENV = "env=particle/simple_spread"


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "variantlab.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "variantlab", raising=False)


def of(name: str, *words: str) -> dict:
    """Returns the settings of a run with a class of the module, without the names of its algorithm."""
    tree = resolve([f"algo=variantlab:{name}", ENV, *words]).config.tree()
    return tree | {"algo": {key: value for key, value in tree["algo"].items() if key not in ("name", "base")}}


def preset(algo: str) -> dict:
    tree = resolve([f"algo={algo}", ENV]).config.tree()
    return tree | {"algo": {key: value for key, value in tree["algo"].items() if key != "name"}}


def test_every_algorithm_of_coterie_names_presets_of_its_own_class():
    for name in (*registry.ALGOS, *registry.VARIANTS):
        cls = registry.algorithm(name)
        assert (cls.base == "none") is not cls.capabilities.learns, name
        if cls.capabilities.learns:
            assert registry.algorithm(cls.base) is cls, name


@pytest.mark.parametrize(("cls", "algo"), [("Mine", "mappo"), ("Grandchild", "mappo"), ("Values", "qmix")])
def test_a_class_has_all_settings_of_the_algorithm_that_it_is_derived_from(cls: str, algo: str):
    assert of(cls) == preset(algo)
    assert preset(algo) != preset("ippo")


def test_the_class_or_a_setting_names_other_presets():
    assert of("Independent") == preset("ippo")
    assert of("Mine", "algo.base=maa2c") == preset("maa2c")
    assert of("Independent", "algo.base=mappo/original") != preset("ippo")
    resolved = resolve(["algo=variantlab:Mine", ENV, "algo.base=none"])
    assert not any("preset algo" in origin for origin in resolved.origins.values())
    assert resolved.config.algo.params.model_dump() == registry.algorithm("ppo").Config().model_dump()


def test_values_have_their_origins():
    origins = resolve(["algo=variantlab:Grandchild", ENV]).origins
    assert origins["algo.base"] == "class PPO"
    assert origins["algo.critic"] == "preset algo/mappo"
    assert origins["algo.gamma"] == "preset algo_env/mappo/particle/simple_spread"
    assert resolve(["algo=variantlab:Independent", ENV]).origins["algo.base"] == "class Independent"
    rows = {row["key"]: row for row in key_rows(["algo=variantlab:Mine", ENV])}
    assert rows["algo.base"]["value"] == "mappo"
    assert "presets" in rows["algo.base"]["meaning"]


def test_defaults_that_a_class_changes_have_precedence_over_presets():
    found = of("Faster")["algo"]
    assert (found.pop("lr"), found.pop("extra")) == (0.02, 1.0)
    assert found == {key: value for key, value in preset("mappo")["algo"].items() if key != "lr"}
    assert of("Faster", "algo.lr=0.3")["algo"]["lr"] == 0.3


def test_a_class_without_some_settings_takes_the_others():
    found = of("Unrelated", "algo.base=mappo")["algo"]
    assert (found["gamma"], found["lr"]) == (0.9, 1e-3)
    assert "epochs" not in found
    assert of("Unrelated")["algo"]["gamma"] == 0.5


def test_each_team_has_presets_of_its_own():
    words = ["env=particle/simple_tag", "algo=variantlab:Mine", "algo.lr=0.5"]
    config = resolve([*words, "teams.adversary.algo.base=ippo", "teams.agent.algo.clip_eps=0.1"]).config
    adversary, agent = (config.teams[name].algo for name in ("adversary", "agent"))
    assert (adversary.base, vars(adversary.params)["critic"]) == ("ippo", "own")
    assert (agent.base, vars(agent.params)["critic"], vars(agent.params)["lr"]) == ("mappo", "joint", 0.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("algo=mappo algo.base=ippo", "algo.base=ippo: mappo has presets of its own. Omit it, or set algo instead."),
        ("algo=variantlab:Mine algo.base=mapo", "algo.base=mapo: no such algorithm of Coterie. Did you mean 'mappo'"),
        ("algo=variantlab:Mine algo.base=mappo/x", "algo.base=mappo/x: no such preset."),
        ("algo=variantlab:Mine algo.base=3", "algo.base=3: expected a name."),
        ("algo=variantlab:Wrong", "algo.base=mapo (class Wrong): no such algorithm of Coterie."),
        ("algo=variantlab:Reserved", "Config has a setting 'base', which algo.base is already. Rename it."),
    ],
)
def test_mistakes_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", ENV, *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.slow
def test_a_run_states_its_presets_and_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def start(*words: str) -> str:
        assert main(["train", *tiny(ENV, *words, "eval.every=0", "progress=lines")]) == 0
        return capsys.readouterr().err

    shared = "starts from the presets of mappo (class PPO, also that of ppo, ippo, ia2c, maa2c)"
    assert f"algo.base=mappo: variantlab:Mine {shared}\n" in start("algo=variantlab:Mine", "out=a")
    given = start("algo=variantlab:Mine", "algo.base=ippo", "out=b")
    assert "algo.base=ippo: variantlab:Mine starts from the presets of ippo\n" in given
    assert "algo.base=" not in start("algo=mappo", "out=c")
    assert load_resolved(tmp_path / "b" / "config.yaml").config.algo.base == "ippo"
    assert main(["resume", "b", "steps=160"]) == 0
    file = tmp_path / "b" / "config.yaml"
    file.write_text(file.read_text().replace("base: ippo", "base: 3"))
    with trusted_runs(), pytest.raises(UserError, match=r"algo\.base=3: expected a name"):
        load_resolved(file)
    unrelated = resolve(["algo=variantlab:Unrelated", ENV, "algo.base=mappo"])
    (line,) = base_lines(unrelated.config, unrelated.origins)
    assert line.endswith("starts from the presets of mappo, without critic, epochs, num_minibatches, which it lacks")
