"""From presets, files and overrides to one typed configuration that knows where its values come from."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from coterie import elsewhere, messages, registry, settings
from coterie.config import change, load_resolved, resolve, resolve_kwargs
from coterie.errors import UserError
from coterie.origins import to_yaml
from coterie.schema import RunConfig

TAG = "env=particle/simple_tag"


class _Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    width: int = Field(3, ge=1)


class _OddConfig(BaseModel):
    """A configuration with what the built-in algorithms do not have."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    path: Path
    """Where it lies."""
    net: _Inner = _Inner()
    """A section."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Free keys."""
    word: str = "plain"
    flag: bool = True


class Odd:
    """Stands in the registry for an algorithm of somebody else's."""

    Config: ClassVar = _OddConfig


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ALGOS, "odd", f"{__name__}:Odd")


def _refused(*overrides: str, config: Path | None = None) -> str:
    with pytest.raises(UserError) as error:
        resolve(list(overrides), config)
    assert "\n" not in str(error.value)
    return str(error.value)


# ----------------------------------------------------------------------------------------------------------- precedence


def test_without_settings_it_is_mappo_on_simple_spread():
    config = resolve().config
    assert (config.algo.name, config.env.name) == ("mappo", "particle/simple_spread")
    assert config.algo.params.model_dump()["critic"] == "joint"


def test_later_layers_win_and_every_value_remembers_its_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layers = {
        ("env", "particle/simple_spread"): "copies: 1\nhorizon: 1\neval: {every: 1, episodes: 1, copies: 1}",
        ("algo", "ippo"): "horizon: 2\neval: {every: 2, episodes: 2, copies: 2}",
        ("algo_env", "ippo/particle/simple_spread"): "eval: {every: 3, episodes: 3, copies: 3}",
    }

    def preset(folder: str, name: str) -> list[settings.Setting]:
        return settings.from_text(layers.get((folder, name), ""), name, lambda line: f"preset {folder}/{name}")

    monkeypatch.setattr(settings, "preset", preset)
    file = tmp_path / "own.yaml"
    file.write_text("eval:\n  episodes: 4\n  copies: 4\n")
    resolved = resolve(["algo=ippo", "eval.copies=5"], file)
    config, origins = resolved.config, resolved.origins
    assert (config.seed, origins["seed"]) == (0, "default")
    assert (config.copies, origins["copies"]) == (1, "preset env/particle/simple_spread")
    assert (config.horizon, origins["horizon"]) == (2, "preset algo/ippo")
    assert (config.eval.every, origins["eval.every"]) == (3, "preset algo_env/ippo/particle/simple_spread")
    assert (config.eval.episodes, origins["eval.episodes"]) == (4, f"file {file}:2")
    assert (config.eval.copies, origins["eval.copies"]) == (5, "command line")


def test_a_variant_lies_on_top_of_its_base_and_leaves_tuned_presets_out():
    resolved = resolve(["algo=ippo/yardstick"])
    params = resolved.config.algo.params.model_dump()
    assert params["hidden"] == (64, 64)
    assert (params["lr"], params["epochs"], params["minibatches"], params["horizon"]) == (2.5e-4, 4, 4, 128)
    assert (params["max_grad_norm"], params["clip_eps"], params["entropy_coef"]) == (0.5, 0.2, 0.01)
    assert resolved.config.copies == 128
    assert resolved.origins["algo.critic"] == "preset algo/ippo"
    assert not any("algo_env" in origin for origin in resolved.origins.values())


def test_naming_another_algorithm_leaves_the_keys_of_the_file_s_own_behind(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("algo: {name: mappo, critic: joint_state, lr: 0.5}\nseed: 7\n")
    kept, switched = resolve([], file).config, resolve(["algo=ippo"], file).config
    assert kept.algo.params.model_dump()["lr"] == 0.5
    assert switched.algo.params.model_dump()["critic"] == "own"
    assert switched.algo.params.model_dump()["lr"] != 0.5
    assert switched.seed == 7
    file.write_text("algo.lr: 0.5\n")
    assert resolve(["algo=ippo"], file).config.algo.params.model_dump()["lr"] == 0.5


@pytest.mark.parametrize("name", settings.presets("algo"))
def test_every_algorithm_preset_resolves(name: str):
    resolved = resolve([f"algo={name}"])
    assert resolved.config.algo.name == name


@pytest.mark.parametrize("name", settings.presets("env"))
def test_every_environment_preset_resolves(name: str):
    assert resolve([f"env={name}", "algo=random"]).config.env.name == name


@pytest.mark.parametrize("name", settings.presets("algo_env"))
def test_every_tuned_preset_resolves_and_says_where_its_values_come_from(name: str):
    env = next(env for env in registry.environments() if name.endswith(f"/{env}"))
    resolved = resolve([f"algo={name.removesuffix(f'/{env}')}", f"env={env}"])
    assert f"preset algo_env/{name}" in resolved.origins.values()


def test_every_environment_and_algorithm_has_a_preset():
    assert set(settings.presets("env")) == set(registry.environments())
    assert set(registry.ALGOS) <= set(settings.presets("algo"))


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "steps"), [("1e6", 10**6), ("2_000_000", 2 * 10**6), ("20M", 2 * 10**7), ("1.5k", 1500)]
)
def test_counts_are_written_as_people_write_them(text: str, steps: int):
    assert resolve([f"steps={text}"]).config.steps == steps


@pytest.mark.parametrize("key", ["replay", "learning_starts", "epsilon_steps"])
def test_counts_of_steps_are_written_the_same_way_for_algorithms(key: str):
    assert resolve(["algo=qmix", f"algo.{key}=200k"]).config.algo.params.model_dump()[key] == 200_000


def test_lists_null_and_booleans_reach_their_fields():
    params = resolve(["algo.hidden=[32,16]", "algo.max_grad_norm=null", "algo.layer_norm=true"]).config.algo.params
    dumped = params.model_dump()
    assert (dumped["hidden"], dumped["max_grad_norm"], dumped["layer_norm"]) == ((32, 16), None, True)


def test_a_configuration_is_frozen():
    config = resolve().config
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 3


def test_every_field_has_a_docstring():
    from coterie.messages import leaf_fields

    for model in (RunConfig, *(registry.algorithm(name).Config for name in registry.ALGOS)):
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
    assert (params["critic"], params["gamma"]) == ("joint", 0.95)
    assert resolved.origins["teams.adversary.algo.critic"] == "preset algo/mappo"


def test_a_team_that_names_the_top_algorithm_inherits_it():
    resolved = resolve([TAG, "algo=ippo", "algo.gamma=0.9", "teams.adversary.algo=ippo", "teams.agent.algo=random"])
    assert resolved.config.teams["adversary"].algo == resolved.config.algo
    assert resolved.config.teams["agent"].algo.name == "random"


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


def test_roles_can_be_put_into_one_team():
    config = resolve([TAG, "teams.all.roles=[adversary,agent]"]).config
    assert config.teams["all"].roles == ("adversary", "agent")


# ---------------------------------------------------------------------------------------------------------------- saved


def test_what_is_saved_loads_back_as_it_was(tmp_path: Path):
    given = [TAG, "teams.adversary.algo.lr=1e-5", "teams.agent.run='runs/a b'", "progress=off", "algo.target_kl=1e-7"]
    resolved = resolve([*given, "out='1e6'", "algo.hidden=[8]"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(resolved))
    assert load_resolved(file) == resolved
    assert resolve([], file).config == resolved.config


def test_what_is_saved_does_not_follow_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    resolved = resolve(["algo=ippo/yardstick"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(resolved))
    monkeypatch.setattr(settings, "preset", lambda folder, name: pytest.fail("a preset was read"))
    assert load_resolved(file).config == resolved.config


def test_the_yaml_shows_the_origin_behind_each_value():
    lines = to_yaml(resolve(["seed=3"])).splitlines()
    (seed,) = [line for line in lines if line.startswith("seed:")]
    assert seed.split() == ["seed:", "3", "#", "command", "line"]
    assert len({line.index("  # ") for line in lines if "  # " in line}) <= 2


def test_what_is_no_saved_configuration_is_refused(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("steps: 3\n")
    with pytest.raises(UserError, match="no saved configuration"):
        load_resolved(file)
    file.write_text("algo: mappo\nenv: particle/simple_spread\ncopies: -1  # default\n")
    with pytest.raises(UserError, match=r"config\.yaml: copies=-1: expected a whole number"):
        load_resolved(file)


def test_a_run_that_goes_on_can_change_what_makes_no_other_run_of_it():
    resolved = resolve(["steps=1e6"])
    changed = change(resolved, ["steps=2e6", "eval.every=7", "log.tensorboard=false", "progress=off", "threads=1"])
    assert (changed.config.steps, changed.config.eval.every, changed.config.threads) == (2_000_000, 7, 1)
    assert changed.origins["steps"] == "command line"
    assert changed.config.algo == resolved.config.algo
    for bad, words in (
        ("algo.lr=1", "cannot change"),
        ("seed=4", "cannot change"),
        ("steps=5", "expected at least as many"),
        ("evl.every=3", "did you mean 'eval.every'"),
        ("steps=x", "expected a whole number"),
    ):
        with pytest.raises(UserError) as error:
            change(resolved, [bad])
        assert words in str(error.value)


def test_python_says_the_same_as_the_command_line():
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
    assert "algo.path is needed (Where it lies.)" in _refused("algo=odd")
    assert "did you mean 'algo.net.width'" in _refused("algo=odd", "algo.path=x", "algo.width=5")
    assert "algo.net is a section" in _refused("algo=odd", "algo.path=x", "algo.net=5")
    assert "algo.word=3: expected text" in _refused("algo=odd", "algo.path=x", "algo.word=3")
    assert "algo.flag=maybe: expected true or false" in _refused("algo=odd", "algo.path=x", "algo.flag=maybe")


def test_what_a_key_expects_is_told_in_coteries_words():
    assert "algo.embedding=17: expected a multiple of 4, e.g. 128" in _refused("algo=poca", "algo.embedding=17")
    line = _refused("algo=frozen", "algo.run=x", "algo.checkpoint=first")
    assert r"algo.checkpoint=first: expected text of the form ^(best|last|\d+)$, e.g. best" in line


def test_a_file_s_mistakes_are_named_with_their_line(tmp_path: Path):
    file = tmp_path / "own.yaml"
    for text, words in (
        ("seed: 1\nalgo:\n  lrr: 3\n", f"there is no key 'algo.lrr' (file {file}:3): did you mean 'algo.lr'"),
        (
            "\n\ncopies: -1\n",
            f"copies=-1: expected a whole number at least 1 and at most 10000000, e.g. 128 (file {file}:3)",
        ),
        ("seed: [1\nx: }", f"{file}:2: this is not YAML"),
        ("seed: 1\nseed: 2\n", f"{file}:2: seed is given twice"),
        ("- 1\n", f"{file}:1: expected settings"),
        ("just words", f"{file}:1: expected settings"),
        ("algo: 3\n", "algo=3: expected a name"),
        ("x: !!python/object:os.system 1\n", f"{file}:1: this is not YAML"),
    ):
        file.write_text(text)
        assert words in _refused(config=file)
    assert "there is no such file" in _refused(config=tmp_path / "none.yaml")
    assert "cannot be read" in _refused(config=tmp_path)
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in _refused(config=file)
    file.write_text("")
    assert resolve([], file).config == resolve().config


def test_words_of_yaml_1_1_are_words_and_numbers_are_numbers(tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text("progress: off\nalgo.lr: 1e-4\nsteps: 20M\nseed: 010\n")
    config = resolve([], file).config
    assert (config.progress, config.steps, config.seed) == ("off", 20_000_000, 10)
    assert config.algo.params.model_dump()["lr"] == 1e-4


def test_one_line_names_all_keys_that_are_wrong():
    line = _refused("algo.lr=-1", "algo.gamma=3")
    assert line.startswith("algo.lr=-1: expected a number greater than 0")
    assert line.endswith("(wrong too: algo.gamma)")


# -------------------------------------------------------------------------------------------------------------- rewards


def test_a_reward_signal_is_on_where_one_of_its_keys_is_given():
    assert resolve().config.rewards.plain
    assert list(resolve(["rewards.icm.lr=1e-4"]).config.rewards.signals) == ["icm"]
    assert list(resolve(["rewards.rnd={}"]).config.rewards.signals) == ["rnd"]
    with pytest.raises(UserError, match=r"rewards.icm=5: expected null, {}, or keys of its own behind a dot"):
        resolve(["rewards.icm=5"])


def test_a_team_takes_the_top_rewards_key_by_key_and_null_closes_a_signal():
    resolved = resolve([TAG, "rewards.icm.eta=2", "rewards.rnd={}", "teams.agent.rewards.icm.lr=0.01"])
    own = resolved.config.rewards_of("agent")
    assert own.icm is not None
    assert (own.icm.eta, own.icm.lr, list(own.signals)) == (2.0, 0.01, ["icm", "rnd"])
    assert resolved.origins["teams.agent.rewards.icm.eta"] == "inherits rewards.icm.eta"
    assert resolved.config.rewards_of("adversary").icm == resolve(["rewards.icm.eta=2"]).config.rewards.icm
    closed = resolve([TAG, "rewards.icm.eta=2", "teams.agent.rewards.icm=null"]).config
    assert closed.rewards_of("agent").plain
    assert not closed.rewards_of("adversary").plain


def test_a_team_that_learns_nothing_takes_no_rewards():
    config = resolve([TAG, "rewards.icm={}", "teams.agent.algo=random"]).config
    assert config.rewards_of("agent").plain
    assert not config.rewards_of("adversary").plain


def test_rewards_are_read_back_from_what_a_run_saved(tmp_path: Path):
    from coterie.config import load_resolved
    from coterie.origins import to_yaml

    resolved = resolve([TAG, "rewards.icm={}", "teams.agent.rewards.icm=null", "teams.agent.rewards.rnd.lr=0.1"])
    (tmp_path / "config.yaml").write_text(to_yaml(resolved))
    assert load_resolved(tmp_path / "config.yaml").config == resolved.config


def test_names_from_elsewhere_mean_keys_that_there_are():
    known = {f"algo.{key}" for name in registry.ALGOS for key in messages.leaf_fields(registry.algorithm(name).Config)}
    known |= {*messages.leaf_fields(RunConfig), "env.episode_limit"}
    assert known >= set(elsewhere.NAMES)
    assert elsewhere.meant("total_timesteps", known) == ["steps"]
    assert elsewhere.meant("horizon", known) == []
