"""The foraging worlds' steps and initial states with and without their kernels."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.config.samplers import parse_sampler
from coterie.core.types import Action
from coterie.envs.make import make
from coterie.envs.worlds.foraging import foraging, spawn
from coterie.envs.worlds.foraging.scripts import greedy
from coterie.kernels.foraging import Rules, foraging_spawn

VARIANTS = [
    ("8x8-2p-2f", {}),
    ("2s-8x8-2p-2f-coop", {"action_mask": True, "episode_limit": 9}),
    ("15x15-4p-5f", {"min_player_level": 2, "max_player_level": 5, "min_food_level": 2, "max_food_level": 4}),
    ("7x7-5p-9f", {"normalize_reward": False, "observe_agent_levels": False, "version": 2, "penalty": 0.3}),
    ("1s-3x3-4p-4f-ind-pen", {"terminate_at_limit": True, "episode_limit": 5}),
    ("6x6-1p-5f", {"episode_limit": None, "action_mask": True}),
    ("grid-2s-6x6-3p-2f-pen", {"episode_limit": 13, "action_mask": True}),
    ("grid-8x8-3p-4f", {"observe_agent_levels": False}),
    ("64x64-3p-64f", {"episode_limit": 10}),
    ("70x70-20p-64f", {"episode_limit": 30}),  # initial states by PyTorch
]
VARYING = {
    "size": {"integers": [4, 6]},
    "foods": {"integers": [1, 3]},
    "coop": {"integers": [0, 1]},
    "max_player_level": {"integers": [1, 2]},
    "penalty": {"uniform": [0.0, 1.0]},
    "sight": {"integers": [1, 6]},
}


def random_actions(env, draw):
    """Returns actions of which about half are `load`, so that much food is collected."""
    shape = (env.num_envs, env.spec.n, 1)
    actions = torch.randint(len(foraging.ACTIONS), shape, generator=draw)
    return {"agent": Action(actions.where(torch.rand(shape, generator=draw) < 0.6, foraging.LOAD))}


def trajectory(env, steps, act=None):
    """Returns all results and states of a number of steps."""
    draw, timestep, results = torch.Generator().manual_seed(0), env.reset(1), []
    for _ in range(steps):
        step, timestep = env.step(random_actions(env, draw) if act is None else act(timestep))
        results.append((vars(step), vars(timestep), env.state_dict()))
    return results


def assert_equal_trajectories(kernels_on, steps, make_env, make_act=lambda env: None):
    found = []
    for on in (False, True):
        with kernels_on(on):
            env = make_env()
            found.append(trajectory(env, steps, make_act(env)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    return found[1]


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_every_bit_of_every_variant_is_that_of_pytorch(name, params, kernels_on):
    found = assert_equal_trajectories(kernels_on, 300, lambda: make(f"foraging/{name}", params, 20, 0, with_state=True))
    assert sum(int(timestep["first"].sum()) for _, timestep, _ in found) > 0
    assert any(bool(step["reward"].any()) for step, _, _ in found)


@pytest.mark.parametrize("name", ["6x6-3p-3f", "grid-2s-6x6-3p-3f"])
@pytest.mark.parametrize("varying", [VARYING, *({key: value} for key, value in VARYING.items())])
def test_every_bit_is_that_of_pytorch_where_parameters_vary(name, varying, kernels_on):
    def make_env():
        env = make(f"foraging/{name}", {"episode_limit": 11, "action_mask": True}, 20, 0, with_state=True)
        known = {key: parse_sampler(value) for key, value in varying.items() if key in env.parameters()}
        env.set_samplers(known)
        return env

    assert_equal_trajectories(kernels_on, 100, make_env)


def test_samplers_that_are_set_during_episodes_vary_from_the_next_ones_on(kernels_on):
    found = []
    for on in (False, True):
        with kernels_on(on):
            env = make("foraging/8x8-3p-3f", {"episode_limit": 4}, 7, 0, with_state=True)
            first = trajectory(env, 6)
            env.set_samplers({key: parse_sampler(value) for key, value in VARYING.items()})
            draw = torch.Generator().manual_seed(1)
            rest = [(*env.step(random_actions(env, draw)), env.state_dict()) for _ in range(30)]
            found.append([first, [(vars(step), vars(timestep), state) for step, timestep, state in rest]])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["8x8-2p-2f", "10x10-3p-3f", "6x6-3p-2f-coop"])
def test_every_bit_is_that_of_pytorch_when_agents_play_well(name, kernels_on):
    def make_act(env):
        return greedy(env.spec.team("team", ("agent",)), SimpleNamespace(params=env.world.config))

    found = assert_equal_trajectories(kernels_on, 150, lambda: make(f"foraging/{name}", {}, 30, 0), make_act)
    assert sum(int(step["metrics"]["done"].sum()) for step, _, _ in found) > 100


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_initial_states_are_those_of_pytorch(name, params, kernels_on):
    world = make(f"foraging/{name}", params, 1, 0).world
    noise = torch.rand(3000, world.reset_noise_size, generator=torch.Generator().manual_seed(0))
    noise[:2], noise[2:4] = 0, 1 - 2**-24  # the lowest and the highest number that is drawn
    found = []
    for on in (False, True):
        with kernels_on(on):
            found.append(world.reset(noise))
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        assert torch.equal(found[1][name], expected)


def test_the_number_of_threads_does_not_change_a_bit(kernels_on, threads):
    found = []
    for count in (1, 2, 3):
        with threads(count), kernels_on(True):
            found.append(trajectory(make("foraging/2s-8x8-2p-2f", {"episode_limit": 3}, 3000, 0), 8))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def calls_of_kernels(monkeypatch):
    """Returns the list of the names of all kernels that are called from now on."""
    calls = []
    for module, name in ((foraging, "foraging_step"), (spawn, "foraging_spawn")):

        def counted(*arguments, name=name, original=getattr(module, name), **options):
            calls.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, counted)
    return calls


def test_one_call_steps_and_one_draws_initial_states(kernels_on, monkeypatch):
    calls = calls_of_kernels(monkeypatch)
    with kernels_on(True):
        env = make("foraging/8x8-2p-2f", {"episode_limit": 2}, 3, 0)
        env.reset(0)
        env.load_state_dict(env.state_dict() | {"age": torch.tensor([0, 1, 1])})
        for _ in range(2):
            env.step({"agent": Action(torch.zeros(3, 2, 1, dtype=torch.int64))})
    assert calls == ["foraging_spawn", "foraging_step", "foraging_spawn", "foraging_step"]


class Recorder(TorchDispatchMode):
    """Sees all operations."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_where_operations_are_recorded_and_for_other_types_there_is_no_kernel(kernels_on, monkeypatch):
    calls = calls_of_kernels(monkeypatch)
    env = make("foraging/8x8-2p-2f", {}, 3, 0)
    action = {"agent": Action(torch.zeros(3, 2, 1, dtype=torch.int64))}
    with kernels_on(True):
        with Recorder():
            env.reset(0)
            env.step(action)
        env.world.reset(torch.rand(3, 8, dtype=torch.float64))
        env.step({"agent": Action(action["agent"].discrete.int())})
        assert not calls
        env.step(action)
    assert calls == ["foraging_step"]


@pytest.mark.parametrize("invalid", [6, -1, 2**40])
def test_an_action_that_is_not_a_choice_is_an_error(invalid, kernels_on):
    env = make("foraging/8x8-2p-2f", {}, 3, 0)
    env.reset(0)
    actions = torch.zeros(3, 2, 1, dtype=torch.int64)
    actions[1, 1] = invalid
    with kernels_on(True), pytest.raises(IndexError, match="not one of the choices"):
        env.step({"agent": Action(actions)})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"food": torch.zeros(3, 3, 2, dtype=torch.int64)}, ValueError),
        ({"levels": torch.ones(3, 2, dtype=torch.int32)}, TypeError),
        ({"players": torch.full((3, 2, 2), 8)}, IndexError),
        ({"players": torch.full((3, 2, 2), -(2**62))}, IndexError),
        ({"food": torch.full((3, 2, 2), 2**62), "food_level": torch.ones(3, 2, dtype=torch.int64)}, IndexError),
        ({"size": torch.full((3,), 9.0)}, IndexError),
        ({"size": torch.full((3,), 0.0)}, IndexError),
    ],
)
def test_a_state_of_another_world_is_an_error(changed, error, kernels_on):
    env = make("foraging/grid-8x8-2p-2f", {}, 3, 0)
    env.reset(0)
    env.load_state_dict(env.state_dict() | {"state": env.state_dict()["state"] | changed})
    with kernels_on(True), pytest.raises(error):
        env.step({"agent": Action(torch.zeros(3, 2, 1, dtype=torch.int64))})


@pytest.mark.parametrize(("size", "side", "error"), [(9, 8, IndexError), (2, 8, IndexError), (65, 65, ValueError)])
def test_a_field_without_room_is_an_error(size, side, error):
    rules = Rules(torch.full((3,), size), 2, 1, 2, 1, None, False, False)
    with pytest.raises(error):
        foraging_spawn(torch.zeros(3, 8), rules, side, 2, 2, reach=spawn.REACH)
