"""Messages for invalid values are Coterie's own, not those of the validation library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from coterie.algos import registry as algo_registry
from coterie.assembly.resolve import resolve
from coterie.config.messages import leaf_fields
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.envs import registry as env_registry
from coterie.runs.folder import read_manifest

VALUES = ("nonsense", "[1]", "[x,y]", "{a: 1}", "{a: {b: [1]}}", "null", "-1", "1.5", "true", "1e18", "''", "[[1],[2]]")
LEAKS = ("Input should", "Extra inputs", "Field required", "alid ", "Value error", "pydantic", "validation", "errors.")


def _message(settings: list[str]) -> str:
    """Returns the error of settings; "" if they are valid."""
    try:
        resolve(settings)
    except UserError as error:
        return str(error)
    return ""


def _messages(keys: list[str], *settings: str, values: Sequence[str] = VALUES) -> list[str]:
    """Returns the errors of settings with one of three of the values each, which take turns."""
    found = []
    for k, key in enumerate(keys):
        for value in values[k % 3 :: 3] if len(values) > 5 else values:
            message = _message([*settings, f"{key}={value}"])
            found += [message] if message else []
    return found


def _assert_own(messages: list[str]) -> None:
    assert messages
    leaking = [message for message in messages if any(leak in message for leak in LEAKS)]
    assert leaking == []


def test_mistakes_in_distributions_and_files(tmp_path: Path):
    given = ("{uniform: [a,2]}", "{integers: [1.5,2]}", "{normal: [x,1]}", "{choices: [[1]]}", "{choices: 3}")
    _assert_own(_messages(["randomize.size"], "algo=random", values=given))
    manifest = tmp_path / "manifest.json"
    for content, expected in (('{"seed": "x"}', "seed=x: expected an integer"), ('{"env": 3}', "env=3: expected text")):
        manifest.write_text(content)
        with pytest.raises(UserError, match=expected):
            read_manifest(manifest)


@pytest.mark.slow
def test_invalid_values_of_a_run():
    keys = [key for key in leaf_fields(RunConfig) if key.partition(".")[0] not in {"algo", "env", "teams"}]
    _assert_own(_messages(keys, "algo=random"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mappo", "qmix", "sac", "scripted"])
def test_invalid_values_of_an_algorithm(name: str):
    model: type[BaseModel] = algo_registry.algorithm(name).Config
    _assert_own(_messages([f"algo.{key}" for key in leaf_fields(model)], f"algo={name}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["particle/simple_spread", "skirmish/3m", "gym/CartPole-v1", "coop/baton"])
def test_invalid_values_of_an_environment(name: str):
    model: type[BaseModel] = env_registry.environment(name).Config
    _assert_own(_messages([f"env.{key}" for key in leaf_fields(model)], f"env={name}", "algo=random"))


LONG = 2_000
LONG_VALUES = {
    "word": "x" * LONG,
    "list": ["x"] * LONG,
    "text": "x " * LONG,
    "item": ["x" * LONG],
    "digits": "1" * LONG,
    "path": "x/" * LONG,
    "class": "a.b:" + "x" * LONG,
    "lines": "x\n" * LONG,
    "mapping": {"x" * 190: "x" * LONG},
}
NAMED_KEYS = ["algo", "env", "teams", "teams.a.algo", "algo.lr", "algo.network", "algo.hidden_sizes", "randomize.size"]
NAMED_KEYS += ["curriculum.lessons", "init.teams.a", "nothing", "env.x"]


def _assert_short(message: str) -> None:
    assert "\n" not in message
    assert message.count("x") < 450, message[:1000]  # a setting and the command that contains it
    assert "1" * 201 not in message


def test_long_values_of_all_settings_are_shortened():
    kinds = ["word", "list", "class", "lines", "mapping"]
    for k, key in enumerate(leaf_fields(RunConfig)):
        _assert_short(_message([f"{key}={json.dumps(LONG_VALUES[kinds[k % 5]])}"]))  # they take turns


@pytest.mark.parametrize("kind", LONG_VALUES)
def test_long_names_and_values_in_sections_are_shortened(kind: str, tmp_path: Path):
    for key in NAMED_KEYS:
        (tmp_path / "own.yaml").write_text(f"{key}: {json.dumps(LONG_VALUES[kind])}\n")
        _assert_short(_message([f"{key}={json.dumps(LONG_VALUES[kind])}"]))
        try:
            resolve([], tmp_path / "own.yaml")
        except UserError as error:
            _assert_short(str(error))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'[128, 128]'", "='[128, 128]': text, expected a list. Write {key}=[128,128] without quotation marks"),
        ("128", "=128: expected a list. Write {key}=[128]"),
        ("128 128", "='128 128': text, expected a list. Write {key}=[128,128]"),
        ("[128 128]", ": item 0 is '128 128', expected an integer. Write {key}=[128,128]"),
        ("[8,wide]", ": item 1 is 'wide', expected an integer, e.g. {key}=[64,64]"),
        ("(128, 128)", "=(128,128): several values. To run each, use `coterie train -m"),
    ],
)
def test_the_sizes_of_layers_that_are_no_list_are_shown_as_one(value: str, message: str):
    said = _message(["env=particle/simple_spread", f"algo.hidden_sizes={value}"])
    assert said.startswith("algo.hidden_sizes" + message.format(key="algo.hidden_sizes"))
    if "several values" in said:
        assert said.endswith("For a list, write algo.hidden_sizes=[128,128].")


@pytest.mark.parametrize("word", ["algo.hidden_sizes=[128,", "algo.hidden_sizes=[128, "])
def test_a_list_that_the_shell_has_split_is_written_without_spaces(word: str):
    assert "A shell splits at spaces: write the list without them, as in algo.hidden_sizes=[128,...]" in _message(
        [word]
    )
