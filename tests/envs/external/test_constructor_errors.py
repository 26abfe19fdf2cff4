"""Exceptions of other libraries' constructors."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import rware.warehouse as rware

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.envs.external import gymnasium as gym_adapter
from coterie.envs.external import pettingzoo, smac

ERRORS = [TypeError, AssertionError, KeyError, NotImplementedError, MemoryError, OSError, StopIteration, UnicodeError]


class Broken(gymnasium.Env[Any, Any]):
    """Raises an exception in its constructor."""

    error: type[Exception] = Exception

    def __init__(self) -> None:
        raise self.error("there is no ball")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "context",
    [
        lambda: gym_adapter.user_errors("x/y", None),
        lambda: pettingzoo.user_errors("x/y", "z"),
        lambda: smac.user_errors("x/y"),
    ],
    ids=["gymnasium", "pettingzoo", "smac"],
)
def test_every_exception_of_a_constructor_is_one_line_with_the_environment(
    error: type[Exception], context: Any, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UserError, match=r"environment 'x/y': .*there is no ball"), context():
        raise error("there is no ball")


@pytest.mark.parametrize(("error", "name"), [(KeyError, "gym/Broken-v0"), (StopIteration, "rware/rware-tiny-2ag-v2")])
def test_a_command_ends_with_one_line_if_a_constructor_raises(
    error: type[Exception], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(Broken, "error", error)
    monkeypatch.setattr(rware.Warehouse, "__init__", Broken.__init__)
    monkeypatch.setattr(rware.Warehouse, "error", error, raising=False)
    gymnasium.register("Broken-v0", Broken)
    try:
        assert main(["train", f"env={name}", "algo=random", "steps=10", "out=/dev/null/x"]) == 2
    finally:
        gymnasium.registry.pop("Broken-v0")
    errors = capsys.readouterr().err
    assert f"environment '{name}': " in errors
    assert errors.count("\n") == 1


def test_an_error_with_a_fix_of_its_own_passes():
    for context in (gym_adapter.user_errors("x/y", None), pettingzoo.user_errors("x/y", "z"), smac.user_errors("x/y")):
        with pytest.raises(UserError) as raised, context:
            raise UserError("buy a ball")
        assert str(raised.value) == "buy a ball"
