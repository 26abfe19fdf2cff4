"""Exceptions of environments are wrapped with the line that raised them."""

from __future__ import annotations

import pytest
import torch

from coterie.core.errors import EnvironmentFailedError, NonFiniteError, UserError
from coterie.envs.contract.traces import random_actions
from coterie.envs.contract.vector import reset_env, step_env
from coterie.envs.make import make
from coterie.envs.worlds.world import WorldEnv

SPREAD = "particle/simple_spread"


def test_an_exception_of_the_environment_is_reported_with_its_line(monkeypatch: pytest.MonkeyPatch):
    env = make(SPREAD, num_envs=2)
    action = random_actions(env.spec, reset_env(env, 3), torch.Generator())
    monkeypatch.setattr(WorldEnv, "reset", lambda *_: {}["ball"])
    with pytest.raises(EnvironmentFailedError, match=r"failed in reset: KeyError: 'ball' \(test_vector.py:\d+\)") as it:
        reset_env(env)
    assert isinstance(it.value.__cause__, KeyError)
    monkeypatch.setattr(WorldEnv, "step", lambda *_: 1 / 0)
    with pytest.raises(EnvironmentFailedError, match=r"failed in a step: ZeroDivisionError: division by zero \(test_v"):
        step_env(env, action)


@pytest.mark.parametrize("kind", [UserError, NonFiniteError, KeyboardInterrupt])
def test_one_line_errors_and_interruptions_are_not_wrapped(kind: type[BaseException], monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise kind("as it is")

    env = make(SPREAD, num_envs=2)
    monkeypatch.setattr(WorldEnv, "reset", fail)
    monkeypatch.setattr(WorldEnv, "step", fail)
    with pytest.raises(kind, match=r"^as it is$"):
        reset_env(env)
    during_step = EnvironmentFailedError if kind is UserError else kind  # the run has begun, so it is no user error
    with pytest.raises(during_step, match=r"^as it is$"):
        step_env(env, {})
