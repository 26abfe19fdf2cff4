"""Environments by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie import registry
from coterie.config import resolve
from coterie.envs.make import make, spec_of
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError

HERE = __name__


def own(copies: int, seed: int, device: Any, agents: int = 2) -> VectorEnv:
    """A user's own factory."""
    return make("particle/simple_spread", {"agents": agents}, copies, seed, device)


def open_minded(copies: int, seed: int, device: Any, **params: Any) -> VectorEnv:
    return make("particle/simple_spread", params, copies, seed, device)


def not_one(copies: int, seed: int, device: Any) -> str:
    return "an environment"


def broken(copies: int, seed: int, device: Any) -> VectorEnv:
    raise TypeError("something within")


def incomplete() -> None:
    """Takes none of what a factory is called with."""


number = 3


NOT_EVERYWHERE = ("football/", "smac/", "smacv2/", "smaclite/")
"""Families whose games are not in every place: tests/football, tests/envs/test_smac.py."""


@pytest.mark.parametrize("name", [name for name in registry.environments() if not name.startswith(NOT_EVERYWHERE)])
def test_every_environment_is_made_and_steps(name: str):
    env = make(name, copies=2, seed=1)
    row = env.reset()
    assert env.copies == 2
    assert row.alive.shape == (2, env.spec.n)
    assert set(row.obs) == {role.name for role in spec_of(name).roles}


def test_params_are_dicts_or_typed_configurations():
    typed = resolve(["env.agents=4", "algo=random"]).config.env.params
    assert make("particle/simple_spread", {"agents": 4}).spec.n == make("particle/simple_spread", typed).spec.n == 4


def test_the_seed_decides_the_episodes():
    first, same, other = (
        make("particle/simple_spread", copies=3, seed=seed).reset().obs["agent"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_state_is_shown_where_it_is_asked_for():
    assert not make("particle/simple_spread").spec.state_sizes
    assert make("particle/simple_spread", with_state=True).spec.state_sizes


def test_a_user_s_own_factory_is_called_with_its_keys():
    assert make(f"{HERE}:own", {"agents": 5}).spec.n == 5
    resolved = resolve([f"env={HERE}:own", "env.agents=5", "algo=random"])
    env = make(resolved.config.env.name, resolved.config.env.params, copies=7)
    assert (env.spec.n, env.copies) == (5, 7)
    assert make(f"{HERE}:open_minded", {"agents": 4}).spec.n == 4
    assert resolve([f"env={HERE}:open_minded", "env.agents=4"]).origins["env.agents"] == "command line"


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("particle/simple_spred", {}, "did you mean 'particle/simple_spread'"),
        ("simple_tag", {}, "did you mean 'particle/simple_tag'"),
        ("particle/simple_spread", {"agnts": 3}, "did you mean 'env.agents'"),
        ("particle/simple_spread", {"agents": 0}, "env.agents=0: expected a whole number at least 1"),
        (f"{HERE}:own", {"agnts": 3}, "takes no 'agnts': did you mean 'agents'"),
        (f"{HERE}:onw", {}, f"module '{HERE}' has no 'onw': did you mean 'own'"),
        (f"{HERE}:number", {}, "is not a function"),
        (f"{HERE}:not_one", {}, "returned a str: expected a coterie.envs.vector.VectorEnv"),
        (f"{HERE}:incomplete", {}, "returned a NoneType: expected PettingZoo's ParallelEnv or AECEnv"),
        ("no.such.module:make", {}, "there is no module 'no'"),
        (":make", {}, "is not written package.module:name"),
    ],
)
def test_what_cannot_be_made_is_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_within_a_factory_is_the_user_s_to_debug():
    with pytest.raises(TypeError, match="something within"):
        make(f"{HERE}:broken")


def test_no_copies_are_refused():
    with pytest.raises(UserError, match="copies=0"):
        make("particle/simple_spread", copies=0)
