"""The particle worlds' step with and without its kernel."""

import importlib

import pytest
import torch

from coterie.config.samplers import parse_sampler
from coterie.core.types import Action
from coterie.envs.worlds.particle import SCENARIOS, step_kernel
from coterie.envs.worlds.world import WorldEnv
from coterie.kernels import particle

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


@pytest.mark.parametrize(
    ("scenario", "varying", "actions"),
    [(name, k % 2 == 0, ("discrete", "continuous")[k // 2 % 2]) for k, name in enumerate(SCENARIOS)],
)
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


@pytest.mark.parametrize(
    ("config", "varying"),
    [
        ({"variant": "mpe2", "agents": 4, "landmarks": 2}, True),
        ({"variant": "openai"}, False),
        ({"terminate_on_success": True, "agents": 1, "landmarks": 2}, False),
        ({"curriculum": True, "local_ratio": 0.3}, True),
        ({"num_agent_neighbors": 1, "num_landmark_neighbors": 2}, True),
    ],
)
def test_simple_spread_is_that_of_pytorch_over_episodes_that_end_at_different_times(config, varying, kernels_on):
    env = make_env("simple_spread", 70, episode_limit=7, **config)
    if varying:
        cost = {"collision_cost": {"uniform": [0.0, 2.0]}, "local_ratio": {"uniform": [0.0, 1.0]}}
        env.set_samplers({name: parse_sampler(value) for name, value in (VARYING | cost).items()})
    env.reset(1)
    state = env.state_dict()
    env.load_state_dict(state | {"age": torch.arange(70) % 7})  # ends at different times from now on
    generator = torch.Generator().manual_seed(0)
    resets = 0
    for _ in range(20):
        action, state = random_actions(env, generator), env.state_dict()
        found = {}
        for on in (False, True):
            env.load_state_dict(state)
            with kernels_on(on):
                step, timestep = env.step(action)
            found[on] = (vars(step), vars(timestep), env.state_dict())
        torch.testing.assert_close(found[True], found[False], rtol=1e-4, atol=1e-4)
        resets += int(timestep.first[:, 0].sum())
    assert resets > 70


def test_a_kernel_starts_the_same_episodes(kernels_on):
    """Random numbers are drawn by PyTorch in either case."""
    found = []
    for on in (False, True):
        env = make_env("simple_spread", 6, episode_limit=2)
        env.reset(3)
        actions = random_actions(env, torch.Generator().manual_seed(0))
        with kernels_on(on):
            timesteps = [env.step(actions)[1] for _ in range(9)]
        found.append([t.obs["agent"] for t in timesteps if t.first.all()])
    assert len(found[0]) == 3
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("variant", ["mpe2", "openai"])
def test_both_variants_have_a_kernel(variant, kernels_on, monkeypatch):
    calls = []
    original = particle.particle_step
    monkeypatch.setattr(step_kernel, "particle_step", lambda *x: calls.append(x) or original(*x))
    env = make_env("simple_spread", 3, variant=variant, episode_limit=2)
    env.reset(0)
    env.load_state_dict(env.state_dict() | {"age": torch.tensor([0, 1, 1])})
    actions = random_actions(env, torch.Generator().manual_seed(0))
    with kernels_on(True):
        for _ in range(2):
            env.step(actions)
    assert [x[1].resetting is not None for x in calls] == [False, True]


@pytest.mark.parametrize("invalid", [5, -1])
def test_an_action_that_is_not_a_choice_is_an_error(invalid, kernels_on):
    env = make_env("simple_spread", 3)
    env.reset(0)
    actions = random_actions(env, torch.Generator().manual_seed(0))
    actions["agent"].discrete[1, 2] = invalid
    with kernels_on(True), pytest.raises(IndexError, match="not one of the choices"):
        env.step(actions)


def inputs(num_envs):
    """Returns the arguments of the kernel for two colliding movers and a resting body that no one touches."""
    draw = torch.Generator().manual_seed(0)
    flat = torch.rand(11, num_envs, generator=draw).T
    coasting, thrust = (torch.rand(2, 2, num_envs, generator=draw) for _ in range(2))
    constants = particle.ParticleConstants(
        movers=2,
        resting=1,
        speech=(1, 1),
        rows=11,
        pairs=[(0, 1), (0, 2), (1, 2)],
        contact_distance=torch.tensor([[0.9]]),
        inverse_mass=torch.ones(2),
        max_speed=torch.tensor([[1.0], [float("inf")]]),
        numbers=(0.1, 0.75, 0.01, 1000.0, 1e-9),
        velocity_first=False,
        observations=particle.ObservationMap([0, 1, 3, 3], [0, 2, 1], torch.tensor([1.0, 0.5, 2.0]), None),
    )
    messages, returns = torch.ones(1, num_envs), torch.zeros(num_envs, 2)
    return constants, particle.StepInputs(flat, coasting.permute(2, 0, 1), returns, thrust=thrust, messages=messages)


def run(constants, tensors):
    """Returns the results with the environments in the last axis."""
    out = particle.particle_step(constants, tensors)
    return [out.flat.T, out.distance, out.penetration, out.coasting.permute(1, 2, 0), out.obs.T]


def test_the_number_of_threads_does_not_change_a_bit(threads):
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(run(*inputs(5000)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_environments_are_independent_and_none_is_possible():
    whole = run(*inputs(700))
    constants, tensors = inputs(700)
    for part in (slice(0, 0), slice(0, 1), slice(300, 700)):
        selected = particle.StepInputs(
            flat=particle.envs_last(tensors.flat[part]),
            coasting=particle.envs_last(tensors.coasting[part]),
            returns=particle.envs_last(tensors.returns[part]),
            thrust=tensors.thrust[..., part].contiguous(),
            messages=tensors.messages[..., part].contiguous(),
        )
        found = run(constants, selected)
        assert all(torch.equal(a, b[..., part]) for a, b in zip(found, whole, strict=True))


def test_observations_are_sums_of_rows_of_the_state():
    flat, *_, obs = run(*inputs(70))
    assert torch.equal(obs, torch.stack([flat[0], 0.5 * flat[2] + 2 * flat[1], torch.zeros(70)]))


def test_a_non_finite_environment_stays_alone():
    constants, tensors = inputs(5)
    tensors.flat[2, 0] = float("nan")
    found = run(constants, tensors)
    assert all(x.isfinite().flatten(0, -2).all(0).tolist() == [True, True, False, True, True] for x in found)


def test_bodies_at_the_same_position_do_not_push_each_other():
    constants, tensors = inputs(1)
    tensors.flat[:, :4], tensors.coasting[:], tensors.thrust[:] = 0.5, 0.0, 0.0
    assert not run(constants, tensors)[3].any()
