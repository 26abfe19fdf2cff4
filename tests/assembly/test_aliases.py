"""Names of other libraries: accepted where they mean the same, explained where they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.algos import registry
from coterie.assembly import aliases
from coterie.assembly.resolve import resolve, resolve_kwargs
from coterie.config import messages, sources
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError

TAG = "env=particle/simple_tag"


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the lines that are printed once per process."""
    monkeypatch.setattr(aliases, "_reported", set())


def known_keys() -> set[str]:
    keys = {f"algo.{key}" for name in registry.ALGOS for key in messages.leaf_fields(registry.algorithm(name).Config)}
    return keys | {*messages.leaf_fields(RunConfig), "env.episode_limit"}


def test_every_alias_means_a_setting_that_exists():
    assert set(aliases.EXACT) <= known_keys()


def test_no_alias_is_a_setting_of_its_section():
    for key, names in aliases.EXACT.items():
        section, _, _ = key.rpartition(".")
        own = {known.rpartition(".")[2] for known in known_keys() if known.rpartition(".")[0] == section}
        clashes = set(names.split()) & own
        assert clashes <= {"epsilon"}, key


def test_no_name_is_both_accepted_and_explained():
    exact = {name for names in aliases.EXACT.values() for name in names.split()}
    assert exact & set(aliases.DIFFERENT) == set()
    assert len(exact) + len(aliases.DIFFERENT) > 179


def test_explanations_name_settings_that_exist():
    words = {key.rpartition(".")[2] for key in known_keys()} | {"every", "mode"}
    for name, text in aliases.DIFFERENT.items():
        assert text.endswith("."), name
        assert any(word in text for word in words | {"env.shaping", "coterie ", "Set algo,", "Set env,", "sums"}), name


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (["algo.learning_rate=1e-3"], "lr", 1e-3),
        (["learning_rate=1e-3"], "lr", 1e-3),
        (["algo=qmix", "algo.epsilon_anneal_time=50k"], "epsilon_decay_steps", 50_000),
        (["algo=mappo", "algo.lam=0.9"], "gae_lambda", 0.9),
        (["algo=coma", "algo.lam=0.9"], "td_lambda", 0.9),
        (["algo=ippo", "algo.n_steps=64"], "rollout_length", 64),
        (["algo=ddqn", "algo.n_steps=3"], "n_step", 3),
    ],
)
def test_an_exact_alias_sets_the_setting_and_is_reported(
    given: list[str], key: str, value: float, capsys: pytest.CaptureFixture[str]
):
    assert resolve(given).config.algo.params.model_dump()[key] == value
    assert f"is called algo.{key}: using algo.{key}=" in capsys.readouterr().err


def test_aliases_work_in_files_python_and_teams(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("total_timesteps: 5000\nalgo:\n  clip_range: 0.1\n")
    config = resolve([], file).config
    assert (config.steps, config.algo.params.model_dump()["clip_eps"]) == (5000, 0.1)
    assert resolve_kwargs(n_envs=4, **{"algo.ent_coef": 0.5}).config.num_envs == 4
    team = resolve([TAG, "teams.agent.algo.ent_coef=0.3"]).config.teams["agent"]
    assert team.algo.params.model_dump()["entropy_coef"] == 0.3


def test_an_alias_is_reported_once(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        resolve(["algo.learning_rate=1e-3"])
    assert capsys.readouterr().err.count("algo.learning_rate") == 1


def test_a_setting_given_by_two_names_is_refused():
    with pytest.raises(UserError, match=r"algo\.learning_rate: algo\.lr is given, too"):
        resolve(["algo.lr=1e-3", "algo.learning_rate=2e-3"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["algo=poca", "algo.buffer_size=10240"], "In ML-Agents it is the number of agent steps"),
        (["algo.clip_grad=1"], "Set algo.max_grad_norm"),
        (["test_greedy=true"], "Set eval.mode=greedy"),
        (["model=mappo"], "Set algo, e.g. algo=mappo."),
        (["mac=basic_mac"], "parts of an algorithm. Set algo, e.g. algo=qmix"),
        (["summary_freq=1000"], "Set log.every, the number of updates"),
        (["algo=qmix", "algo.clip_range=0.1"], "it is algo.clip_eps, which algorithm 'qmix' does not have"),
    ],
)
def test_a_name_with_another_meaning_is_explained(given: list[str], words: str):
    with pytest.raises(UserError) as error:
        resolve(given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("algo", "section", "on", "off"),
    [
        ("mappo", "algo", "algo.critic=state", "algo.critic=joint"),
        ("coma", "teams.agent.algo", "algo.critic=state", "algo.critic=own"),
        ("qmix", "algo", "algo.mixer_input=state", "algo.mixer_input=joint"),
    ],
)
def test_xuances_global_state_is_answered_with_the_setting_of_the_algorithm(algo: str, section: str, on: str, off: str):
    with pytest.raises(UserError, match=rf"Set {on} where it is true, {off} where it is false\."):
        resolve([TAG, f"algo={algo}", f"{section}.use_global_state=false"])


@pytest.mark.parametrize("algo", ["mappo", "coma", "qmix", "maddpg", "masac", "poca"])
def test_an_explanation_says_if_the_algorithm_lacks_the_settings_that_it_names(algo: str):
    fields, lacking = registry.algorithm(algo).Config.model_fields, 0
    for word in sorted(aliases.DIFFERENT.keys() - fields.keys()):
        with pytest.raises(UserError) as error:
            resolve([f"algo={algo}", f"algo.{word}=1"])
        text, _, names = str(error.value).partition(f" Algorithm '{algo}' does not have ")
        meant = {*re.findall(r"\balgo\.(\w+)", text)} - {word}
        assert bool(names) == (bool(meant) and meant.isdisjoint(fields)), str(error.value)
        lacking += bool(names)
    assert lacking > 0


@pytest.mark.parametrize("key", ["batch_size", "algo.batch_size"])
def test_a_name_with_another_meaning_is_explained_though_another_section_has_it(key: str):
    """`imitation.batch_size` exists. The control has the setting itself."""
    with pytest.raises(UserError, match=rf"^{key}: no such setting\. .* Set algo\.num_minibatches\."):
        resolve(["algo=mappo", f"{key}=64"])
    assert resolve(["algo=qmix", "algo.batch_size=64"]).config.algo.params.batch_size == 64


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (["lr=1e-3"], "algo.lr", 1e-3),
        (["gamma=0.9"], "algo.gamma", 0.9),
        (["epochs=3"], "algo.epochs", 3),
        (["hidden_sizes=[8]"], "algo.hidden_sizes", [8]),
        (["rollout_length=20"], "algo.rollout_length", 20),
        (["latest_ratio=0.25"], "selfplay.latest_ratio", 0.25),
        (["env=particle/simple_tag", "episode_limit=7"], "env.episode_limit", 7),
    ],
)
def test_a_name_without_its_section_is_accepted(given: list[str], key: str, value: object):
    assert dict(sources.flatten(resolve(given).config.tree()))[key] == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["every=5"], r"^every: the name of several settings\. Write alternate\.every or .* or log\.every\.$"),
        (["lr=1e-3", "algo.lr=1e-4"], r"^lr: algo\.lr is given, too"),
        (["algo=mappo", "td_lambda=0.8"], r"^td_lambda: not a setting of algorithm 'mappo' but of coma"),
        (["algo=qmix", "clip_range=0.1"], r"it is algo\.clip_eps, which algorithm 'qmix' does not have"),
    ],
)
def test_a_name_without_its_section_that_is_ambiguous_or_lacking_is_refused(given: list[str], message: str):
    with pytest.raises(UserError, match=message):
        resolve(given)
