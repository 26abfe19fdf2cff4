"""Parameters sampled per episode: set before a reset or passed to the constructor, in this process and in workers."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
import torch

import lessonworlds
from coterie.__main__ import main
from coterie.config.samplers import parse_sampler
from coterie.config.schema import WorkersConfig
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves
from coterie.core.types import Step, Timestep
from coterie.envs.contract.parameters import RandomizableEnv
from coterie.envs.contract.traces import random_actions
from coterie.envs.external.hosting.randomized import EnvFactory, parameter_receiver
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, SerialBackend
from coterie.envs.make import make

SLOPE, RAMP, TIDE, PENDULUM = "lessonworlds:slope", "lessonworlds:ramp", "lessonworlds:tide", "gym/Pendulum-v1"


def make_env(name: str, num_envs: int = 4, workers: int = 0, overlap: bool = False, **params: Any) -> RandomizableEnv:
    env = make(name, params, num_envs, 3, workers=WorkersConfig(count=workers, overlap=overlap))
    assert isinstance(env, RandomizableEnv)
    return env


def set_samplers(env: RandomizableEnv, **given: Any) -> RandomizableEnv:
    samplers = {name: parse_sampler(value) for name, value in given.items()}
    env.check_parameters(samplers)
    env.set_samplers(samplers)
    return env


def play(env: RandomizableEnv, steps: int, timestep: Timestep | None = None) -> list[Timestep | Step]:
    """Steps and timesteps with random actions, from a reset on if no timestep is given."""
    generator = torch.Generator().manual_seed(0)
    found: list[Timestep | Step] = []
    if timestep is None:
        timestep = env.reset()
        found.append(timestep)
    for _ in range(steps):
        step, timestep = env.step(random_actions(env.spec, timestep, generator))
        found += [step, timestep]
    return found


def same(one: list[Timestep | Step], other: list[Timestep | Step]) -> bool:
    return all(
        torch.equal(x, y)
        for a, b in zip(one, other, strict=True)
        for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True)
    )


def observation_of(timestep: Timestep) -> torch.Tensor:
    """[B, D] of the only agent."""
    obs = timestep.obs["agent"]
    assert isinstance(obs, torch.Tensor)
    return obs[:, 0]


def test_parameters_are_set_before_every_episode():
    env = set_samplers(make_env(SLOPE), tilt={"uniform": [2, 3]})
    first = observation_of(env.reset())
    assert bool(((first[:, 0] >= 2) & (first[:, 0] <= 3)).all())
    assert len(first[:, 0].unique()) == 4
    assert first[:, 1].tolist() == [0.5] * 4  # has no sampler
    timestep = env.reset()
    tilt = observation_of(timestep)[:, 0]
    assert not bool((tilt == first[:, 0]).any())
    steps = []
    for _ in range(8):
        step, timestep = env.step(random_actions(env.spec, timestep, torch.Generator()))
        steps.append((step.reward[:, 0], observation_of(timestep)[:, 0]))
    received = torch.stack([received for received, _ in steps])
    assert torch.equal(received[:3], tilt.expand(3, -1))
    assert bool((received[3] == 0).all())  # the step that resets
    assert not bool((received[4] == tilt).any())
    assert torch.equal(received[4:7], steps[3][1].expand(3, -1))


def test_new_samplers_take_effect_with_the_next_episode():
    env = make_env(SLOPE)
    timestep = env.reset()
    set_samplers(env, tilt=7)
    received = [step.reward[0, 0].item() for step in play(env, 7, timestep) if isinstance(step, Step)]
    assert received == [1, 1, 1, 0, 7, 7, 7]


def test_an_instance_is_recreated_only_when_a_constructor_argument_changes():
    env = set_samplers(make_env(RAMP, num_envs=2), tilt=5.0, name={"choices": ["a", "valley"]})
    lessonworlds.CREATED.clear()
    timesteps = [observation_of(timestep) for timestep in play(env, 40) if isinstance(timestep, Timestep)]
    assert {timestep[0, 0].item() for timestep in timesteps} == {5.0}
    lengths = [timestep[0, 1].item() for timestep in timesteps[::4]]
    assert set(lengths) == {1.0, 6.0}
    changes = sum(before != now for before, now in zip([0.0, *lengths], lengths, strict=False))
    assert changes < 10
    assert len(lessonworlds.CREATED) < 60  # fewer than one per episode


def test_recreated_instances_have_different_random_numbers():
    env = set_samplers(make_env(RAMP, num_envs=3), tilt={"uniform": [0, 1]})
    noise = torch.stack(
        [observation_of(timestep)[:, -1] for timestep in play(env, 16) if isinstance(timestep, Timestep)]
    )
    assert len(noise.unique()) == noise.numel()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [
        (SLOPE, {"tilt": {"normal": [2, 1], "low": 0}, "grip": {"choices": [0.1, 0.2]}}),
        (RAMP, {"tilt": {"uniform": [0, 1]}, "name": {"choices": ["a", "bc"]}}),
        (TIDE, {"height": {"integers": [1, 9]}}),
    ],
)
def test_values_do_not_depend_on_the_number_of_workers(name: str, given: dict[str, Any]):
    found = []
    for workers, overlap in ((0, False), (2, False), (1, True)):
        env = set_samplers(make_env(name, 5, workers, overlap), **given)
        timesteps = play(env, 7)
        set_samplers(env, **{name: 1 for name in given if name == "tilt"})
        found.append(timesteps + play(env, 6, timesteps[-1] if isinstance(timesteps[-1], Timestep) else None))
        env.close()
    assert all(same(found[0], other) for other in found[1:])
    plain = make_env(name, 5)
    assert not same(found[0][:5], play(plain, 2))


@pytest.mark.slow
def test_a_replaced_worker_keeps_the_samplers():
    env: Any = set_samplers(make_env(SLOPE, 2, 1), tilt=4)
    env.reset()
    os.kill(env.backend.pids[0], signal.SIGKILL)
    generator = torch.Generator().manual_seed(0)
    _, timestep = env.step(random_actions(env.spec, env.reset(5), generator))
    assert observation_of(timestep)[:, 0].tolist() == [4, 4]
    env.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_restored_state_keeps_the_parameters_of_its_episodes(workers: int):
    given = {"g": {"uniform": [2, 20]}}
    env = set_samplers(make_env(PENDULUM, 2, workers, episode_limit=4), **given)
    timesteps = play(env, 6)
    saved = env.state_dict()
    last = timesteps[-1]
    assert isinstance(last, Timestep)
    expected = play(env, 9, last)
    other = set_samplers(make_env(PENDULUM, 2, 0, episode_limit=4), **given)
    other.load_state_dict(saved)
    assert same(expected, play(other, 9, last))
    control = set_samplers(make_env(PENDULUM, 2, 0, episode_limit=4), **given)
    control.load_state_dict(saved | {"envs": [one | {"values": {"g": 3.0}} for one in saved["envs"]]})
    assert not same(expected, play(control, 9, last))
    env.close()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (SLOPE, {"tlit": 1}, r"slope has no parameter 'tlit' that a curriculum or randomization could set. Did you"),
        (SLOPE, {"grip": -1}, r"slope refuses the parameters grip=-1: ValueError: grip cannot be below 0"),
        (RAMP, {"tlit": 1}, r"ramp has no parameter 'tlit' that .* could set. Did you mean 'tilt'"),
        (RAMP, {"size": {"integers": [3, 5]}}, r"ramp with size=4 has other agents or spaces than without"),
        (RAMP, {"wrappers": 1}, r"ramp has no parameter 'wrappers'"),
        (PENDULUM, {"m": 1}, r"gym/Pendulum-v1 has no parameter 'm' that .* could set. Choose from g"),
        (PENDULUM, {"g": "heavy"}, r"gym/Pendulum-v1 has no such parameter: g=heavy: expected a number"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_one_line_errors(name: str, given: dict[str, Any], message: str):
    env = make_env(name, 1)
    with pytest.raises(UserError, match=message) as caught:
        set_samplers(env, **given)
    assert "\n" not in str(caught.value)
    env.close()


def test_parameters_of_a_batched_environment_cannot_be_sampled():
    from coterie.config.curriculum import CurriculumConfig
    from coterie.training.curriculum import Lessons

    env = make("gymvec/CartPole-v1", None, 2)
    with pytest.raises(
        UserError, match=r"gymvec/CartPole-v1: the batch of environments has no parameters that can be set. Remove g"
    ):
        Lessons(CurriculumConfig(), {"g": parse_sampler(1)}).check(env)
    env.close()


def test_parameters_of_an_environment_not_made_by_name_cannot_be_sampled():
    from coterie.envs.external.hosting.factory import instance_factory

    layout, one = instance_factory(SLOPE, {})
    env = BackendVectorEnv(SerialBackend(one, layout, 1), 0, "cpu")
    with pytest.raises(UserError, match="was not made by name"):
        env.set_samplers({"tilt": parse_sampler(1)})


def test_parameters_are_listed_with_values_and_meaning(capsys: pytest.CaptureFixture[str]):
    found = make_env(SLOPE, 1).parameters()
    assert {name: p.value for name, p in found.items()} == {"tilt": 1.0, "grip": 0.5}
    found = make_env(RAMP, 1, tilt=3.0).parameters()
    assert found["tilt"].value == 3.0
    assert sorted(found) == ["name", "size", "tilt"]
    assert "size" in make_env(RAMP, 3, 1, overlap=True).parameters()
    assert main(["list", "parameters", "env=particle/simple_tag", "--json"]) == 0
    rows = {row.pop("parameter"): row for row in json.loads(capsys.readouterr().out)}
    meaning = "factor on thrust and speed limit of the prey"
    assert rows["prey_speed"] == {"value": 1.0, "low": 0.05, "high": 10, "meaning": meaning}
    assert main(["list", "parameters", f"env={RAMP}", "--json"]) == 0
    rows = {row.pop("parameter"): row for row in json.loads(capsys.readouterr().out)}
    assert rows["tilt"]["meaning"] == "constructor argument: the environment is recreated"


def test_the_receiver_of_parameters_is_found_behind_wrappers():
    _, instance = EnvFactory(SLOPE, {"wrappers": {"reward_scale": 2.0, "frame_stack": 2}, "episode_limit": 2}).make({})
    assert isinstance(parameter_receiver(instance), lessonworlds.Slope)
    _, plain = EnvFactory(RAMP, {}).make({})
    assert parameter_receiver(plain) is None
