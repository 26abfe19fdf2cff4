"""Configurations: precedence of layers, values, saving, teams, errors and aliases."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from coterie.algos import registry as algo_registry
from coterie.algos.scripted import Random
from coterie.assembly.resolve import (
    change,
    load_resolved,
    require_saved_settings,
    resolve,
    resolve_kwargs,
    saved_settings,
)
from coterie.config import sources
from coterie.config.provenance import to_yaml
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.envs import registry as env_registry

TAG = "env=particle/simple_tag"


class _Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    width: int = Field(3, ge=1)


class _OddConfig(BaseModel):
    """Kinds of fields that built-in algorithms do not have."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    path: Path
    """Path of a file."""
    net: _Inner = _Inner()
    """A section."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Arbitrary keys."""
    word: str = Field("plain", pattern="^[a-z]+$")
    flag: bool = True


class Odd(Random):
    """A registered third-party algorithm."""

    Config: ClassVar = _OddConfig


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algo_registry.ALGOS, "odd", f"{__name__}:Odd")


def _refused(*overrides: str, config: Path | None = None) -> str:
    with pytest.raises(UserError) as error:
        resolve(list(overrides), config)
    assert "\n" not in str(error.value)
    return str(error.value)


# ----------------------------------------------------------------------------------------------------------- precedence


def test_later_layers_win_and_values_keep_their_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layers = {
        ("env", "particle/simple_spread"): "num_envs: 1\nsteps: 1\neval: {every: 1, episodes: 1, num_envs: 1}",
        ("algo", "ippo"): "steps: 2\neval: {every: 2, episodes: 2, num_envs: 2}",
        ("algo_env", "ippo/particle/simple_spread"): "eval: {every: 3, episodes: 3, num_envs: 3}",
    }

    def preset(folder: str, name: str) -> list[sources.Setting]:
        return sources.from_text(layers.get((folder, name), ""), name, lambda line: f"preset {folder}/{name}")

    monkeypatch.setattr(sources, "preset", preset)
    file = tmp_path / "own.yaml"
    file.write_text("eval:\n  episodes: 4\n  num_envs: 4\n")
    resolved = resolve(["algo=ippo", "eval.num_envs=5"], file)
    config, origins = resolved.config, resolved.origins
    assert (config.seed, origins["seed"]) == (0, "default")
    assert (config.num_envs, origins["num_envs"]) == (1, "preset env/particle/simple_spread")
    assert (config.steps, origins["steps"]) == (2, "preset algo/ippo")
    assert (config.eval.every, origins["eval.every"]) == (3, "preset algo_env/ippo/particle/simple_spread")
    assert (config.eval.episodes, origins["eval.episodes"]) == (4, f"file {file}:2")
    assert (config.eval.num_envs, origins["eval.num_envs"]) == (5, "command line")


def test_a_variant_extends_its_base_preset_without_tuned_presets():
    resolved = resolve(["algo=ippo/yardstick"])
    params = resolved.config.algo.params.model_dump()
    assert params["hidden_sizes"] == (64, 64)
    assert (params["lr"], params["epochs"], params["num_minibatches"], params["rollout_length"]) == (2.5e-4, 4, 4, 128)
    assert (params["max_grad_norm"], params["clip_eps"], params["entropy_coef"]) == (0.5, 0.2, 0.01)
    assert resolved.config.num_envs == 128
    assert resolved.origins["algo.critic"] == "preset algo/ippo"
    assert not any("algo_env" in origin for origin in resolved.origins.values())


def test_naming_another_algorithm_drops_settings_of_the_file_for_its_own(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("algo: {name: mappo, critic: joint_state, lr: 0.5}\nseed: 7\n")
    kept, switched = resolve([], file).config, resolve(["algo=ippo"], file).config
    assert kept.algo.params.model_dump()["lr"] == 0.5
    assert switched.algo.params.model_dump()["critic"] == "own"
    assert switched.algo.params.model_dump()["lr"] != 0.5
    assert switched.seed == 7
    file.write_text("algo.lr: 0.5\n")
    assert resolve(["algo=ippo"], file).config.algo.params.model_dump()["lr"] == 0.5


@pytest.mark.parametrize("name", sources.presets("algo"))
def test_every_algorithm_preset_resolves(name: str):
    resolved = resolve([f"algo={name}"])
    assert resolved.config.algo.name == name


@pytest.mark.parametrize("name", sources.presets("env"))
def test_every_environment_preset_resolves(name: str):
    assert resolve([f"env={name}", "algo=random"]).config.env.name == name


@pytest.mark.parametrize("name", sources.presets("algo_env"))
def test_every_tuned_preset_resolves_with_origins(name: str):
    """It is for an environment, or for all of a family."""
    candidates = [(part, env) for env in env_registry.environments() for part in (env, env.partition("/")[0])]
    part, env = next((part, env) for part, env in candidates if name.endswith(f"/{part}"))
    resolved = resolve([f"algo={name.removesuffix(f'/{part}')}", f"env={env}"])
    assert f"preset algo_env/{name}" in resolved.origins.values()


def test_presets_of_a_family_are_below_those_of_an_environment():
    easy, hard = (resolve(["algo=mappo", f"env=smac/{name}"]) for name in ("3m", "corridor"))
    assert vars(easy.config.algo.params)["epochs"] == 15
    assert easy.origins["algo.epochs"] == "preset algo_env/mappo/smac"
    assert vars(hard.config.algo.params)["epochs"] == 5
    assert hard.origins["algo.rnn"] == "preset algo_env/mappo/smac"


def test_every_environment_and_algorithm_has_a_preset():
    assert set(sources.presets("env")) == set(env_registry.environments())
    assert set(algo_registry.ALGOS) <= set(sources.presets("algo"))


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "steps"), [("1e6", 10**6), ("2_000_000", 2 * 10**6), ("20M", 2 * 10**7), ("1.5k", 1500)]
)
def test_counts_accept_suffixes_and_underscores(text: str, steps: int):
    assert resolve([f"steps={text}"]).config.steps == steps


def test_every_field_has_a_docstring():
    from coterie.config.messages import leaf_fields

    for model in (RunConfig, *(algo_registry.algorithm(name).Config for name in algo_registry.ALGOS)):
        for key, field in leaf_fields(model).items():
            assert field.description, f"{model.__name__}.{key}"


# ---------------------------------------------------------------------------------------------------------------- teams


def test_a_team_inherits_the_top_algorithm_with_its_overrides():
    resolved = resolve([TAG, "algo=ippo", "algo.gamma=0.9", "teams.adversary.algo.lr=1e-4"])
    team = resolved.config.teams["adversary"].algo
    assert (team.name, team.params.model_dump()["gamma"], team.params.model_dump()["lr"]) == ("ippo", 0.9, 1e-4)
    assert resolved.config.algo.params.model_dump()["lr"] != 1e-4
    assert resolved.origins["teams.adversary.algo.gamma"] == "inherits algo.gamma"
    assert resolved.origins["teams.adversary.algo.lr"] == "command line"
    assert resolved.config.algo_of("agent") == resolved.config.algo


def test_a_team_that_names_another_algorithm_starts_from_its_presets():
    resolved = resolve([TAG, "algo=ippo", "algo.gamma=0.7", "teams.adversary.algo=mappo"])
    params = resolved.config.teams["adversary"].algo.params.model_dump()
    assert (params["critic"], params["gamma"]) == ("joint", 0.99)
    assert resolved.origins["teams.adversary.algo.critic"] == "preset algo/mappo"


def test_a_run_makes_a_frozen_team():
    resolved = resolve([TAG, "teams.agent.run=runs/x"])
    team = resolved.config.teams["agent"].algo
    assert (team.name, team.params.model_dump()["run"]) == ("frozen", Path("runs/x").absolute())
    again = resolve([TAG, "teams.agent.algo=frozen", "teams.agent.run=runs/x"])
    assert again.config.teams == resolved.config.teams


def test_teams_come_from_files_too(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "env: particle/simple_tag\nteams:\n  adversary:\n    algo: {name: mappo, lr: 0.1}\n  agent: {algo: random}\n"
    )
    teams = resolve([], file).config.teams
    assert teams["adversary"].algo.params.model_dump()["lr"] == 0.1
    assert teams["agent"].algo.name == "random"
    switched = resolve(["teams.adversary.algo=ippo"], file).config.teams["adversary"].algo
    assert (switched.name, switched.params.model_dump()["lr"] == 0.1) == ("ippo", False)


# ---------------------------------------------------------------------------------------------------------------- saved


@pytest.mark.slow
def test_a_saved_configuration_loads_unchanged(tmp_path: Path):
    given = [TAG, "teams.adversary.algo.lr=1e-5", "teams.agent.run='runs/a b'", "progress=off", "algo.target_kl=1e-7"]
    given += ["rewards.icm={}", "teams.adversary.rewards.icm=null", "teams.adversary.rewards.rnd.lr=0.1"]
    resolved = resolve([*given, "out='1e6'", "algo.hidden_sizes=[8]"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(resolved))
    assert load_resolved(file) == resolved
    assert resolve([], file).config == resolved.config


def test_a_saved_configuration_does_not_depend_on_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    resolved = resolve(["algo=ippo/yardstick"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(resolved))
    monkeypatch.setattr(sources, "preset", lambda folder, name: pytest.fail("a preset was read"))
    assert load_resolved(file).config == resolved.config


def test_invalid_saved_configurations_are_refused(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("steps: 3\n")
    with pytest.raises(UserError, match="not a saved configuration"):
        load_resolved(file)
    file.write_text("algo: mappo\nenv: particle/simple_spread\nnum_envs: -1  # default\n")
    with pytest.raises(UserError, match=r"config\.yaml: num_envs=-1: expected an integer"):
        load_resolved(file)


def test_a_resumed_run_can_change_run_level_settings_only():
    resolved = resolve(["steps=1e6"])
    changed = change(resolved, ["steps=2e6", "eval.every=7", "log.tensorboard=false", "progress=off", "threads=1"])
    assert (changed.config.steps, changed.config.eval.every, changed.config.threads) == (2_000_000, 7, 1)
    assert changed.origins["steps"] == "command line"
    assert changed.config.algo == resolved.config.algo
    for bad, words in (
        ("algo.lr=1", "cannot change"),
        ("seed=4", "cannot change"),
        ("steps=5", "less than the 1000000 of the run"),
        ("evl.every=3", "Did you mean 'eval.every'"),
        ("steps=x", "expected an integer"),
    ):
        with pytest.raises(UserError) as error:
            change(resolved, [bad])
        assert words in str(error.value)


def test_python_arguments_and_the_command_line_are_equivalent():
    by_words = resolve([TAG, "algo=mappo", "algo.lr=0.001", "teams.agent.algo=random", "steps=1e6", "out=x"])
    by_dicts = resolve_kwargs(
        env="particle/simple_tag",
        algo={"name": "mappo", "lr": 1e-3},
        teams={"agent": {"algo": "random"}},
        steps=1e6,
        out=Path("x"),
    )
    dotted = resolve_kwargs(
        env="particle/simple_tag", algo="mappo", steps=10**6, out="x", **{"algo.lr": 1e-3, "teams.agent.algo": "random"}
    )
    assert by_words.config == by_dicts.config == dotted.config
    with pytest.raises(UserError, match="given twice"):
        resolve_kwargs(algo={"name": "mappo", "lr": 1e-3}, **{"algo.lr": 1e-3})


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_nested_sections_free_mappings_and_required_keys_of_any_algorithm(odd: None):
    config = resolve(["algo=odd", "algo.path=x", "algo.net.width=5", "algo.weights.a=0.5", "algo.weights.b=2"]).config
    assert config.algo.params.model_dump()["net"] == {"width": 5}
    assert config.algo.params.model_dump()["weights"] == {"a": 0.5, "b": 2.0}
    assert "algo.path: a value is required (Path of a file)" in _refused("algo=odd")
    assert "Did you mean 'algo.net.width'" in _refused("algo=odd", "algo.path=x", "algo.width=5")
    assert "algo.net is a section" in _refused("algo=odd", "algo.path=x", "algo.net=5")
    assert "algo.word=3: expected text" in _refused("algo=odd", "algo.path=x", "algo.word=3")
    assert "algo.word=A: expected text of the form ^[a-z]+$, e.g. plain" in _refused(
        "algo=odd", "algo.path=x", "algo.word=A"
    )
    assert "algo.flag=maybe: expected true or false" in _refused("algo=odd", "algo.path=x", "algo.flag=maybe")


def test_mistakes_in_a_file_are_reported_with_their_line(tmp_path: Path):
    file = tmp_path / "own.yaml"
    for text, words in (
        ("seed: 1\nalgo:\n  lrr: 3\n", f"algo.lrr (file {file}:3): no such setting. Did you mean 'algo.lr'"),
        (
            "\n\nnum_envs: -1\n",
            f"num_envs=-1: expected an integer at least 1 and at most 10000000, e.g. 128 (file {file}:3)",
        ),
        ("seed: [1\nx: }", f"{file}:2: invalid YAML"),
        ("seed: 1\nseed: 2\n", f"{file}:2: seed: given twice"),
        ("- 1\n", f"{file}:1: expected settings"),
        ("just words", f"{file}:1: expected settings"),
        ("algo: 3\n", "algo=3: expected a name"),
        ("x: !!python/object:os.system 1\n", f"{file}:1: the tag !!python/object:os.system is not supported"),
    ):
        file.write_text(text)
        assert words in _refused(config=file)
    assert "no such file" in _refused(config=tmp_path / "none.yaml")
    assert "cannot be read" in _refused(config=tmp_path)
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in _refused(config=file)
    file.write_text("")
    assert resolve([], file).config == resolve().config


def test_yaml_1_1_keywords_are_strings(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("progress: off\nalgo.lr: 1e-4\nsteps: 20M\nseed: 010\n")
    config = resolve([], file).config
    assert (config.progress, config.steps, config.seed) == ("off", 20_000_000, 10)
    assert config.algo.params.model_dump()["lr"] == 1e-4


def test_an_error_names_all_invalid_keys():
    line = _refused("algo.lr=-1", "algo.gamma=3")
    assert line.startswith("algo.lr=-1: expected a number greater than 0")
    assert line.endswith("(also invalid: algo.gamma)")


# -------------------------------------------------------------------------------------------------------------- rewards


def test_setting_a_key_of_a_reward_signal_enables_it():
    assert resolve().config.rewards.is_extrinsic_only
    assert list(resolve(["rewards.icm.lr=1e-4"]).config.rewards.signals) == ["icm"]
    assert list(resolve(["rewards.rnd={}"]).config.rewards.signals) == ["rnd"]
    with pytest.raises(UserError, match=r"rewards.icm=5: expected null, {}, or a value for one of its keys"):
        resolve(["rewards.icm=5"])


def test_a_team_inherits_rewards_key_by_key_and_null_disables_a_signal():
    resolved = resolve([TAG, "rewards.icm.eta=2", "rewards.rnd={}", "teams.agent.rewards.icm.lr=0.01"])
    own = resolved.config.team("agent").rewards
    assert own.icm is not None
    assert (own.icm.eta, own.icm.lr, list(own.signals)) == (2.0, 0.01, ["icm", "rnd"])
    assert resolved.origins["teams.agent.rewards.icm.eta"] == "inherits rewards.icm.eta"
    assert resolved.config.team("adversary").rewards.icm == resolve(["rewards.icm.eta=2"]).config.rewards.icm
    closed = resolve([TAG, "rewards.icm.eta=2", "teams.agent.rewards.icm=null"]).config
    assert closed.team("agent").rewards.is_extrinsic_only
    assert not closed.team("adversary").rewards.is_extrinsic_only


def test_a_team_that_does_not_learn_inherits_no_rewards():
    config = resolve([TAG, "rewards.icm={}", "teams.agent.algo=random"]).config
    assert config.team("agent").rewards.is_extrinsic_only
    assert not config.team("adversary").rewards.is_extrinsic_only


@pytest.mark.parametrize(
    "override", ["teams.adversary.algo=random", "teams.adversary.algo.lr=1e-4", "rewards.icm.lr=1"]
)
def test_a_resumed_run_refuses_new_sections(override: str):
    with pytest.raises(UserError, match="cannot change when a run is resumed"):
        change(resolve([TAG, "algo=mappo"]), [override])


@pytest.mark.parametrize(
    "words",
    [
        ["algo=iql", "algo.rnn_size=9e18"],
        ["algo=mappo", "algo.rnn_size=1000000"],
        ["algo=qmix", "algo.mixing_embed_dim=1000000"],
    ],
)
def test_layers_that_no_memory_holds_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="100000"):
        resolve(words)


OWN_LENGTHS = ("algo=mappo", "env=particle/simple_tag", "algo.rollout_length=20", "teams.agent.algo.rollout_length=30")


def test_there_is_one_rollout_length():
    config = resolve(OWN_LENGTHS).config
    assert [config.rollout_length_of(team) for team in ("adversary", "agent")] == [20, 30]
    assert "rollout_length" not in config.tree()
    with pytest.raises(UserError, match=r"^rollout_length: algo\.rollout_length is given, too, and means the same\."):
        resolve([*OWN_LENGTHS, "rollout_length=7"])


@pytest.mark.parametrize(("of_run", "expected"), [("null", [20, 30]), ("7", [7, 7])])
def test_a_run_of_an_earlier_version_keeps_its_rollout_length(of_run: str, expected: list[int], tmp_path: Path):
    """There, a rollout length of the run replaced those of all algorithms. Checkpoints have the same settings."""
    resolved = resolve(OWN_LENGTHS)
    old = tmp_path / "config.yaml"
    old.write_text(to_yaml(resolved) + f"rollout_length: {of_run}\n")
    config = load_resolved(old).config
    assert [config.rollout_length_of(team) for team in ("adversary", "agent")] == expected
    saved = saved_settings(resolved.config) | {"rollout_length": None if of_run == "null" else int(of_run)}
    assert require_saved_settings(old, config, saved) == []


def test_derived_values_replace_those_of_the_team_that_they_belong_to():
    config = resolve(["env=particle/simple_tag", "teams.agent.algo=ippo"]).config
    assert [config.algo_key(team) for team in ("adversary", "agent")] == ["algo", "teams.agent.algo"]
    for team, other in (("adversary", "agent"), ("agent", "adversary")):
        changed = config.with_algo_params(team, {"lr": 0.5})
        assert vars(changed.algo_of(team).params)["lr"] == 0.5
        assert changed.algo_of(other) == config.algo_of(other)
