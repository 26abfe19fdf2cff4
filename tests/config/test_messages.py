"""Messages for invalid values are Coterie's own, not those of the validation library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from coterie.config import registry
from coterie.config.messages import leaf_fields
from coterie.config.resolve import resolve
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.runs.manifest import read_manifest

VALUES = ("nonsense", "[1]", "[x,y]", "{a: 1}", "{a: {b: [1]}}", "null", "-1", "1.5", "true", "1e18", "''", "[[1],[2]]")
LEAKS = ("Input should", "Extra inputs", "Field required", "alid ", "Value error", "pydantic", "validation", "errors.")
NAMES = [*registry.ALGOS, *registry.VARIANTS]


def _message(settings: list[str]) -> str:
    """Returns the error of settings; "" if they are valid."""
    try:
        resolve(settings)
    except UserError as error:
        return str(error)
    return ""


def _messages(keys: list[str], *settings: str, values: Sequence[str] = VALUES) -> list[str]:
    found = []
    for key in keys:
        for value in values:
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
@pytest.mark.parametrize("name", ["mappo", "qmix", "sac", "poca", "coma", "maddpg", "frozen", "scripted"])
def test_invalid_values_of_an_algorithm(name: str):
    model: type[BaseModel] = registry.algorithm(name).Config
    _assert_own(_messages([f"algo.{key}" for key in leaf_fields(model)], f"algo={name}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["particle/simple_spread", "skirmish/3m", "gym/CartPole-v1", "coop/baton"])
def test_invalid_values_of_an_environment(name: str):
    model: type[BaseModel] = registry.environment(name).Config
    _assert_own(_messages([f"env.{key}" for key in leaf_fields(model)], f"env={name}", "algo=random"))
