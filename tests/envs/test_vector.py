"""What an environment raises, as whoever steps it is told."""

from __future__ import annotations

import pytest
import torch

from coterie.envs.make import make
from coterie.envs.paths import random_actions
from coterie.envs.vector import advance, begin
from coterie.envs.world import WorldEnv
from coterie.errors import EnvironmentFailedError, NonFiniteError, UserError

SPREAD = "particle/simple_spread"


def test_what_an_environment_raises_is_told_with_the_line_that_raised(monkeypatch: pytest.MonkeyPatch):
    env = make(SPREAD, copies=2)
    action = random_actions(env.spec, begin(env, 3), torch.Generator())
    monkeypatch.setattr(WorldEnv, "reset", lambda *_: {}["ball"])
    with pytest.raises(EnvironmentFailedError, match=r"failed in reset: KeyError: 'ball' \(test_vector.py:\d+\)") as it:
        begin(env)
    assert isinstance(it.value.__cause__, KeyError)
    monkeypatch.setattr(WorldEnv, "step", lambda *_: 1 / 0)
    with pytest.raises(EnvironmentFailedError, match=r"failed in a step: ZeroDivisionError: division by zero \(test_v"):
        advance(env, action)


@pytest.mark.parametrize("kind", [UserError, NonFiniteError, KeyboardInterrupt])
def test_what_is_one_line_already_and_an_interruption_stay_as_they_are(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise kind("as it is")

    env = make(SPREAD, copies=2)
    monkeypatch.setattr(WorldEnv, "reset", fail)
    monkeypatch.setattr(WorldEnv, "step", fail)
    with pytest.raises(kind, match=r"^as it is$"):
        begin(env)
    with pytest.raises(kind, match=r"^as it is$"):
        advance(env, {})
