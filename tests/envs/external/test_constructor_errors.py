"""Exceptions of other libraries' constructors."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import UserError
from coterie.envs.external import gymnasium as gym_adapter
from coterie.envs.external import pettingzoo, smac

ERRORS = [TypeError, AssertionError, KeyError, NotImplementedError, MemoryError, OSError, StopIteration, UnicodeError]


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


def test_an_error_with_a_fix_of_its_own_passes():
    for context in (gym_adapter.user_errors("x/y", None), pettingzoo.user_errors("x/y", "z"), smac.user_errors("x/y")):
        with pytest.raises(UserError) as raised, context:
            raise UserError("buy a ball")
        assert str(raised.value) == "buy a ball"
