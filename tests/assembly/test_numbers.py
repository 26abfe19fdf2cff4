"""Numbers in settings: their ranges and their spelling."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coterie.__main__ import main
from coterie.algos import registry as algo_registry
from coterie.assembly.resolve import resolve
from coterie.config.messages import alternatives, leaf_fields
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.envs import registry as env_registry
from mutations import assert_one_line
from tinyruns import tiny

SENSELESS = ["9e18", "9223372036854775807", "-9223372036854775808", "1e300", "-1e300", "1e31", "nan", "inf", "-inf"]
SENSELESS += ["9007199254740993", "-5e-324", "-1e-31", "1e400"]
TINY = ["1e-320", "5e-324", "1e-31"]
"""Numbers that round to 0 in float32."""
MISSPELLED = ["1_", "1__0", "_1", "١٢", "1_.0", "1._0", "１", "²", "0x10", "1e", "1,000.0", "1 000", "--1", "1e1_0"]
BUILT_IN = ["particle/simple_spread", "particle/simple_tag", "particle/simple_ball", "skirmish/3m"]
BUILT_IN += ["warehouse/tiny-2ag", "foraging/8x8-2p-2f", "overcooked/cramped_room", "coop/baton", "coop/pushblock"]
BUILT_IN += ["coop/escape", "sparse/rooms", "board/connect_four", "gym/CartPole-v1"]
BUILT_IN += [name for name in env_registry.environments() if name.startswith(("probe", "matrix/"))]
UNBOUNDED = {"seed", "alternate.until.above", "alternate.until.below"}


def is_numeric(field: FieldInfo) -> bool:
    return bool({int, float} & set(alternatives(field.annotation)))


def refusal(key: str, value: str, *settings: str) -> str:
    """Returns the error of a setting; "" if it is valid."""
    try:
        resolve([*settings, f"{key}={value}"])
    except UserError as error:
        assert_one_line(str(error))
        return str(error)
    return ""


def accepted(keys: list[str], values: list[str], *settings: str) -> list[str]:
    """Returns the settings that are accepted, or refused without their key."""
    return [f"{key}={value}" for key in keys for value in values if key not in refusal(key, value, *settings)]


def numeric_keys(model: type, prefix: str = "") -> list[str]:
    return [key for key, field in leaf_fields(model, prefix).items() if is_numeric(field)]


def with_own(configs: dict[str, type[BaseModel]]) -> dict[str, list[str]]:
    """Returns the numeric settings of each class that no class before it has, by name: inherited ones only once."""
    seen, found = set[tuple[type, str]](), dict[str, list[str]]()
    for name, config in configs.items():
        new = {(next(c for c in config.__mro__ if field in vars(c).get("__annotations__", {})), field) for field in
               config.model_fields} - seen  # fmt: skip
        seen |= new
        fields = {field for _, field in new}
        if keys := [key for key in numeric_keys(config) if key.partition(".")[0] in fields]:
            found[name] = keys
    return found


ALGORITHMS = {algo_registry.algorithm(name).Config: name for name in (*algo_registry.ALGOS, *algo_registry.VARIANTS)}
"""An algorithm for each class of settings."""
OF_ALGORITHMS = with_own({name: config for config, name in ALGORITHMS.items()})
OF_ENVIRONMENTS = with_own({name: env_registry.environment(name).Config for name in BUILT_IN})


def test_senseless_numbers_of_a_run_are_refused():
    keys = [key for key in numeric_keys(RunConfig) if key not in UNBOUNDED and not key.startswith("teams.")]
    metric = "alternate.until.metric=rollout/return_mean"
    assert len(keys) > 50
    assert accepted(keys, [*SENSELESS, *TINY, *MISSPELLED], "algo=random", metric, "alternate.until.above=1") == []
    for key in ("alternate.until.above", "alternate.until.below"):
        assert accepted([key], ["1e300", "1e31", "nan", "inf", *TINY, *MISSPELLED], metric) == []
    assert refusal("seed", "9223372036854775807") == ""
    assert accepted(["seed"], ["-1", "9223372036854775808", "1e300", "nan", *MISSPELLED]) == []


@pytest.mark.parametrize("name", OF_ALGORITHMS)
def test_senseless_numbers_of_an_algorithm_are_refused(name: str):
    keys = [f"algo.{key}" for key in OF_ALGORITHMS[name]]
    assert accepted(keys, [*SENSELESS, *TINY, MISSPELLED[0]], f"algo={name}") == []


@pytest.mark.parametrize("name", OF_ENVIRONMENTS)
def test_senseless_numbers_of_an_environment_are_refused(name: str):
    keys = [f"env.{key}" for key in OF_ENVIRONMENTS[name]]
    assert accepted(keys, [*SENSELESS, *TINY, MISSPELLED[0]], f"env={name}", "algo=random") == []


@pytest.mark.parametrize("setting", ["big=9223372036854775807", "small=1e-40", "more=-9223372036854775808"])
def test_numbers_of_a_user_s_constructor_have_its_rules(setting: str):
    assert refusal("env." + setting.partition("=")[0], setting.partition("=")[2], "env=ownnumbers:make") == ""


@pytest.mark.parametrize("value", ["{uniform: [1e-320, 1]}", "{normal: [0, 1e300]}", "{choices: [1, 1e31]}", "1e300"])
def test_senseless_numbers_of_distributions_are_refused(value: str):
    assert "randomize.size" in refusal("randomize.size", value)


@pytest.mark.parametrize(("text", "steps"), [("1_000", 1000), ("2e3", 2000), ("1_0.5k", 10_500), ("5M", 5_000_000)])
def test_numbers_may_have_underscores_between_digits(text: str, steps: int, tmp_path: Path):
    assert resolve([f"steps={text}"]).config.steps == steps
    (tmp_path / "own.yaml").write_text(f"steps: {text}\n")
    assert resolve([], tmp_path / "own.yaml").config.steps == steps


@pytest.mark.parametrize("text", MISSPELLED)
def test_misspelled_numbers_in_files_are_refused(text: str, tmp_path: Path):
    for key in ("num_envs", "algo.lr", "seed", "eval.every"):
        for written in (text, f'"{text}"'):
            (tmp_path / "own.yaml").write_text(f"{key}: {written}\n")
            with pytest.raises(UserError, match=re.escape(key)):
                resolve([], tmp_path / "own.yaml")


EXTREME = ["algo.adam_eps=1e-30", "algo.max_grad_norm=1e12", "algo.value_coef=1e6", "algo.huber_delta=1e12"]
EXTREME += ["algo.weight_decay=1000", "algo.lr=0.99", "algo.sequence_length=100000"]


@pytest.mark.slow
@pytest.mark.parametrize("setting", EXTREME)
def test_the_limits_of_settings_train_or_end_in_one_line(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = tiny(
        "env=matrix/rock_paper_scissors",
        "algo=ippo",
        "algo.rnn=gru",
        "eval.every=0",
        setting,
        f"out={tmp_path / 'run'}",
    )
    code = main(["train", *words])
    errors = capsys.readouterr().err
    assert code in (0, 2, 3)
    assert "Traceback" not in errors
    if code:
        assert_one_line(errors.strip().splitlines()[-1])
        assert code == 3 or setting.partition("=")[0] in errors
