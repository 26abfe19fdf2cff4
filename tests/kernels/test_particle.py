"""The particle worlds' step with and without its kernel."""

import importlib

import pytest
import torch
from torch.library import opcheck

from coterie.config.samplers import parse_sampler
from coterie.core.types import Action
from coterie.envs.worlds.particle import SCENARIOS
from coterie.envs.worlds.world import WorldEnv
from coterie.kernels import native, particle

VARYING = {"speed": {"choices": [0.5, 2.0]}, "damping": {"choices": [0.1, 0.4]}}


def make_env(scenario, num_envs, **config):
    module, name = SCENARIOS[scenario].split(":")
    world = getattr(importlib.import_module(module), name)
    return WorldEnv(world(world.Config(**config), False), num_envs, seed=0)


def random_actions(env, generator):
    actions = {}
    for role in env.spec.roles:
        shape = (env.num_envs, role.n)
        if role.action.choices:
            actions[role.name] = Action(torch.randint(role.action.choices[0], (*shape, 1), generator=generator))
        else:
            numbers = torch.rand(*shape, role.action.continuous, generator=generator) * 2 - 1
            actions[role.name] = Action(continuous=numbers)
    return actions


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_step_of_each_world_is_that_of_pytorch(scenario, varying, actions, kernels_on):
    env = make_env(scenario, 40, actions=actions)
    if varying:
        env.set_samplers({name: parse_sampler(value) for name, value in VARYING.items()})
    env.reset(1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        action, state = random_actions(env, generator), env.state_dict()
        found = {}
        for on in (False, True):  # the second one is continued
            env.load_state_dict(state)
            with kernels_on(on):
                step, timestep = env.step(action)
            found[on] = (step.reward, timestep.obs, env.state_dict()["state"])
        torch.testing.assert_close(found[True], found[False], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["mpe2", "openai"])
def test_both_variants_have_a_kernel(variant, kernels_on, monkeypatch):
    calls = []
    original = native.call
    monkeypatch.setattr(native, "call", lambda name, *x: calls.append(name) or original(name, *x))
    env = make_env("simple_spread", 3, variant=variant)
    env.reset(0)
    with kernels_on(True):
        env.step(random_actions(env, torch.Generator().manual_seed(0)))
    assert calls == ["particle_step"]


def inputs(num_envs):
    """Returns the arguments of the kernel for two colliding movers and a resting body that no one touches."""
    draw = torch.Generator().manual_seed(0)
    flat = torch.rand(11, num_envs, generator=draw)
    coasting, thrust = (torch.rand(2, 2, num_envs, generator=draw) for _ in range(2))
    constants = particle.ParticleConstants(
        movers=2,
        resting=1,
        messages=1,
        pairs=[(0, 1), (0, 2), (1, 2)],
        contact_distance=torch.tensor([[0.9]]),
        inverse_mass=torch.ones(2),
        max_speed=torch.tensor([[1.0], [float("inf")]]),
        numbers=(0.1, 0.75, 0.01, 1000.0, 1e-9),
        velocity_first=False,
    )
    return constants, flat, coasting, thrust


def run(constants, flat, coasting, thrust):
    return particle.particle_step(
        constants, flat, coasting, thrust, messages=torch.ones(1, flat.shape[1]), scale=None, damping=None
    )


def test_the_number_of_threads_does_not_change_a_bit(threads):
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(run(*inputs(5000)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_environments_are_independent_and_none_is_possible():
    whole = run(*inputs(700))
    constants, *tensors = inputs(700)
    for part in (slice(0, 0), slice(0, 1), slice(300, 700)):
        found = run(constants, *(x[..., part] for x in tensors))
        assert all(torch.equal(a, b[..., part]) for a, b in zip(found, whole, strict=True))


def test_a_non_finite_environment_stays_alone():
    constants, flat, *rest = inputs(5)
    flat[0, 2] = float("nan")
    found = run(constants, flat, *rest)
    assert all(x.isfinite().flatten(0, -2).all(0).tolist() == [True, True, False, True, True] for x in found)


def test_bodies_at_the_same_position_do_not_push_each_other():
    constants, flat, *rest = inputs(1)
    flat[:4], rest[0][:], rest[1][:] = 0.5, 0.0, 0.0
    assert not run(constants, flat, *rest)[3].any()


def test_the_operator_is_registered_completely():
    constants, *tensors = inputs(6)
    sizes = [2, 1, 1, 3, 0, 0, 0, 1, 1, 2, 2]
    optional = (torch.ones(1, 6), None, constants.max_speed, None)
    arguments = (*tensors, *optional, constants.contact_distance, constants.inverse_mass, sizes, constants.numbers)
    opcheck(torch.ops.coterie.particle_step.default, arguments)
