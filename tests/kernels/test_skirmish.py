"""The skirmish worlds' step with and without its kernel.

Results are equal bit for bit on x86-64 with AVX2. On other processors PyTorch adds in another order and fuses other
products, so that they may differ by roundings.
"""

import pytest
import torch
from torch.utils._pytree import tree_flatten_with_path, tree_map_only

from coterie.config.samplers import parse_sampler
from coterie.core.types import Action
from coterie.envs.worlds.skirmish import DUELS, ROSTERS, maps, step_kernel
from coterie.envs.worlds.world import WorldEnv
from coterie.kernels import skirmish

VARYING = {
    "enemy_damage": {"uniform": [0.0, 2.0]},
    "enemy_health": {"uniform": [0.05, 1.0]},
    "distance": {"uniform": [4.0, 20.0]},
}
EXACT = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
TOLERANCE = 0 if EXACT else 1e-5


def make_env(name, num_envs, *, varying=False, **config):
    """An environment whose episodes have begun at different times, so that they end at different times."""
    maker = getattr(maps, name)
    env = WorldEnv(maker(maker.Config(**config), True), num_envs, seed=0)
    if varying:
        env.set_samplers({name: parse_sampler(value) for name, value in VARYING.items()})
    timestep = env.reset(0)
    age = torch.arange(num_envs) % env.spec.episode_limit
    env.load_state_dict(env.state_dict() | {"age": age})
    return env, timestep


def actions(timestep, generator):
    """Legal actions that mostly attack; else go east, toward the enemy, more often than elsewhere."""
    found = {}
    for role, mask in timestep.action_mask.items():
        weight = mask.float()
        weight[..., 6:] *= 30
        weight[..., 4] *= 5
        chosen = torch.multinomial(weight.flatten(0, 1), 1, generator=generator)
        found[role] = Action(chosen.view(*mask.shape[:2], 1))
    return found


def step_both_ways(env, action, kernels_on):
    """Returns the results without and with the kernel; the environment continues from the latter."""
    state, found = env.state_dict(), []
    for on in (False, True):
        env.load_state_dict(state)
        with kernels_on(on):
            step, timestep = env.step(action)
        found.append({"step": vars(step), "timestep": vars(timestep), "state": env.state_dict()})
    return *found, timestep


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    if EXACT:  # also the signs of zeros
        pairs = zip(*(tree_flatten_with_path(x)[0] for x in (found, expected)), strict=True)
        for (path, x), (_, y) in pairs:
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                assert torch.equal(x.signbit(), y.signbit()), path


def assert_equal_in_each_step(env, timestep, steps, kernels_on):
    """Checks each step of a trajectory. Returns the numbers of ended episodes and of attacks."""
    generator, ended, attacks = torch.Generator().manual_seed(0), 0, 0
    for _ in range(steps):
        action = actions(timestep, generator)
        expected, found, timestep = step_both_ways(env, action, kernels_on)
        assert_equal(found, expected)
        ended += int(expected["step"]["episode_terminated"].sum() + expected["step"]["episode_truncated"].sum())
        attacks += sum(int((x.discrete >= 6).sum()) for x in action.values())
    return ended, attacks


@pytest.mark.parametrize("name", [*ROSTERS, *DUELS])
def test_each_step_of_each_map_is_that_of_pytorch(name, kernels_on):
    env, timestep = make_env(name, 64, episode_limit=35)
    ended, attacks = assert_equal_in_each_step(env, timestep, 30, kernels_on)
    assert ended > 0
    assert attacks > 0


@pytest.mark.parametrize("name", ["3m", "MMM2", "2s3z", "corridor", "2c_vs_64zg"])
@pytest.mark.parametrize("config", [{"enemy_focus": "weakest"}, {"reward": "sparse", "enemy_damage": 3.0}])
def test_settings_and_varying_parameters_have_the_same_effect(name, config, kernels_on):
    env, timestep = make_env(name, 32, varying="reward" not in config, episode_limit=60, **config)
    assert assert_equal_in_each_step(env, timestep, 30, kernels_on)[0] > 0


@pytest.mark.parametrize("reward", ["shaped", "sparse"])
def test_duels_have_the_same_rewards(reward, kernels_on):
    env, timestep = make_env("MMM_duel", 32, reward=reward, episode_limit=60)
    assert_equal_in_each_step(env, timestep, 50, kernels_on)


@pytest.mark.parametrize("num_envs", [2, 7, 8, 31, 33, 70, 100])
@pytest.mark.parametrize("name", ["2s3z", "25m"])
def test_sums_have_pytorchs_order_for_any_number_of_environments(name, num_envs, kernels_on):
    env, timestep = make_env(name, num_envs)
    assert_equal_in_each_step(env, timestep, 12, kernels_on)


def test_the_number_of_threads_does_not_change_a_bit(threads, kernels_on):
    found = []
    for count in (1, 2, 3):
        env, timestep = make_env("2s3z", 1000)
        generator = torch.Generator().manual_seed(0)
        with threads(count), kernels_on(True):
            for _ in range(4):
                step, timestep = env.step(actions(timestep, generator))
        found.append((vars(step), vars(timestep), env.state_dict()))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def count_calls(monkeypatch):
    calls = []
    original = skirmish.skirmish_step
    monkeypatch.setattr(step_kernel, "skirmish_step", lambda *x: calls.append(x) or original(*x))
    return calls


@pytest.mark.parametrize("name", ["3m", "3m_duel"])
def test_episodes_end_and_begin_in_the_kernel(name, kernels_on, monkeypatch):
    calls = count_calls(monkeypatch)
    env, timestep = make_env(name, 3, episode_limit=2)
    with kernels_on(True):
        for _ in range(2):
            timestep = env.step(actions(timestep, torch.Generator().manual_seed(0)))[1]
    assert [x[1].resetting is not None for x in calls] == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_single_environments_and_double_precision_have_no_kernel(dtype, num_envs, kernels_on, monkeypatch):
    calls = count_calls(monkeypatch)
    env, timestep = make_env("3m", num_envs)
    state = env.state_dict()
    env.load_state_dict(tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, state))
    with kernels_on(True):
        env.step(actions(timestep, torch.Generator().manual_seed(0)))
    assert len(calls) == int(dtype is torch.float32 and num_envs == 2)


@pytest.mark.parametrize("invalid", [9, -1])
@pytest.mark.parametrize(("name", "role"), [("3m", "ally"), ("3m_duel", "left"), ("3m_duel", "right")])
def test_an_action_that_is_not_a_choice_is_an_error(name, role, invalid, kernels_on):
    env, timestep = make_env(name, 40)
    action = actions(timestep, torch.Generator().manual_seed(0))
    action[role].discrete[39, 2] = invalid
    with kernels_on(True), pytest.raises(IndexError, match="not one of the choices"):
        env.step(action)


def test_arguments_of_another_shape_or_type_are_refused(kernels_on, monkeypatch):
    calls = count_calls(monkeypatch)
    env, timestep = make_env("3m", 4)
    with kernels_on(True):
        env.step(actions(timestep, torch.Generator().manual_seed(0)))
    constants, inputs = calls[0]
    wrong = {
        "units": inputs.units[:-1],
        "choices": inputs.choices.int(),
        "enemy_damage": inputs.enemy_damage[:-1],
        "resetting": torch.zeros(5, dtype=torch.bool),
        "initial": inputs.units.double(),
    }
    for name, value in wrong.items():
        with pytest.raises((TypeError, ValueError), match=f"skirmish_step: {name}"):
            skirmish.skirmish_step(constants, inputs._replace(**{name: value}))


def test_arguments_need_not_be_contiguous(kernels_on):
    env, timestep = make_env("2s3z", 32)
    state = env.state_dict()
    state["state"] = state["state"] | {"enemy_damage": torch.tensor(2.0).expand(32)}
    env.load_state_dict(state)
    chosen = actions(timestep, torch.Generator().manual_seed(0))["ally"].discrete
    action = {"ally": Action(torch.cat((chosen, -chosen), 2)[..., :1])}
    expected, found, _ = step_both_ways(env, action, kernels_on)
    assert_equal(found, expected)


def test_a_non_finite_environment_stays_alone(kernels_on):
    env, timestep = make_env("2s3z", 5)
    action = actions(timestep, torch.Generator().manual_seed(0))
    state = env.state_dict()
    state["state"]["units"] = state["state"]["units"].clone()
    state["state"]["units"][2, 0, 0] = float("nan")
    env.load_state_dict(state)
    with kernels_on(True):
        env.step(action)
    finite = env.state_dict()["state"]["units"].isfinite().flatten(1).all(1)
    assert finite.tolist() == [True, True, False, True, True]
