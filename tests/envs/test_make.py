"""Environments are made by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.core.errors import EnvironmentFailedError, UserError
from coterie.envs import registry
from coterie.envs.contract.traces import random_actions
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make, spec_of

HERE = __name__


def own(num_envs: int, seed: int, device: Any, agents: int = 2) -> VectorEnv:
    """A user's own factory."""
    return make("particle/simple_spread", {"agents": agents}, num_envs, seed, device=device)


def accepts_any(num_envs: int, seed: int, device: Any, **params: Any) -> VectorEnv:
    return make("particle/simple_spread", params, num_envs, seed, device=device)


def wrong_type(num_envs: int, seed: int, device: Any) -> str:
    return "an environment"


def broken(num_envs: int, seed: int, device: Any) -> VectorEnv:
    raise TypeError("something within")


def incomplete() -> None:
    """Takes no arguments."""


number = 3


NOT_EVERYWHERE = ("football/", "smac/", "smacv2/", "smaclite/")
"""Families that need a game installed. They are tested in tests/football and test_smac.py."""


ONE_PER_FAMILY = {name.partition("/")[0]: name for name in registry.environments()}


@pytest.mark.parametrize("name", [name for name in ONE_PER_FAMILY.values() if not name.startswith(NOT_EVERYWHERE)])
def test_an_environment_of_every_family_is_made_and_steps(name: str):
    env = make(name, num_envs=2, seed=1)
    timestep = env.reset()
    assert env.num_envs == 2
    assert timestep.alive.shape == (2, env.spec.n)
    assert set(timestep.obs) == {role.name for role in spec_of(name).roles}
    step, _ = env.step(random_actions(env.spec, timestep, torch.Generator()))
    assert step.reward.shape == (2, env.spec.n)


def test_params_are_a_dict_or_a_configuration_model():
    typed = resolve(["env.agents=4", "algo=random"]).config.env.params
    assert make("particle/simple_spread", {"agents": 4}).spec.n == make("particle/simple_spread", typed).spec.n == 4


def test_a_user_factory_is_called_with_its_settings():
    assert make(f"{HERE}:own", {"agents": 5}).spec.n == 5
    resolved = resolve([f"env={HERE}:own", "env.agents=5", "algo=random"])
    env = make(resolved.config.env.name, resolved.config.env.params, num_envs=7)
    assert (env.spec.n, env.num_envs) == (5, 7)
    assert make(f"{HERE}:accepts_any", {"agents": 4}).spec.n == 4
    assert resolve([f"env={HERE}:accepts_any", "env.agents=4"]).origins["env.agents"] == "command line"


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("particle/simple_spred", {}, "Did you mean 'particle/simple_spread'"),
        ("simple_tag", {}, "Did you mean 'particle/simple_tag'"),
        ("particle/simple_spread", {"agnts": 3}, "Did you mean 'env.agents'"),
        ("particle/simple_spread", {"agents": 0}, "env.agents=0: expected an integer at least 1"),
        (f"{HERE}:own", {"agnts": 3}, "has no setting 'agnts'. Did you mean 'agents'"),
        (f"{HERE}:onw", {}, f"module '{HERE}' has no 'onw'. Did you mean 'own'"),
        (f"{HERE}:number", {}, "expected a function that returns it, not a int"),
        (
            f"{HERE}:wrong_type",
            {},
            ". A factory with a parameter num_envs returns a coterie.envs.contract.vector.VectorEnv",
        ),
        (f"{HERE}:incomplete", {}, "returned None: expected PettingZoo's ParallelEnv or AECEnv"),
        ("no.such.module:make", {}, "there is no module 'no'"),
        (":make", {}, "is not of the form package.module:name"),
    ],
)
def test_an_environment_that_cannot_be_made_is_a_one_line_error(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_within_a_user_factory_is_one_line_with_its_place():
    with pytest.raises(EnvironmentFailedError, match=r"TypeError: something within \(test_make.py:\d+\)"):
        make(f"{HERE}:broken")


def test_zero_environments_raise_an_error():
    with pytest.raises(UserError, match="num_envs=0"):
        make("particle/simple_spread", num_envs=0)
