"""Gymnasium environments: equality with Gymnasium's own loop, all spaces, saved states, errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.assembly.resolve import resolve
from coterie.checks.environment.contract import check
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.types import Action
from coterie.envs import registry
from coterie.envs.contract.traces import first_difference
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make, spec_of
from coterie.envs.registry import EXTERNAL_SCENARIOS
from coterie.runs import checkpoints
from gymnasium_worlds import PICTURE, played, registered
from tinyruns import assert_resumes_exactly

ALL = ("gym/CartPole-v1", "gym/Pendulum-v1", "gym/CarRacing-v3", "gym/Hopper-v5")
CLASSIC = tuple(f"gym/{name}" for name in EXTERNAL_SCENARIOS["gym"][:5])


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    with registered():
        yield


# ------------------------------------------------------------------------------------------------- gymnasium's own loop


def gymnasium_loop(name: str, limit: int, seed: int, b: int, actions: list[Any]) -> list[tuple[Any, float, bool, bool]]:
    """Results of Gymnasium's environment with all its wrappers for environment b; a reset takes a separate step."""
    env = gymnasium.make(name.removeprefix("gym/"), max_episode_steps=limit)
    found = [(env.reset(seed=seed_of(seed, "env", name, b) >> 32)[0], 0.0, False, False)]
    for action in actions:
        _, _, terminated, truncated = found[-1]
        if terminated or truncated:
            found.append((env.reset()[0], 0.0, False, False))
        else:
            observation, reward, terminated, truncated, _ = env.step(action)
            found.append((np.array(observation), float(reward), terminated, truncated))
    return found


def native_action(env: VectorEnv, action: Action, b: int) -> Any:
    """Native action of environment b, computed independently of the adapter."""
    if action.discrete is not None:
        return int(action.discrete[b, 0, 0])
    space = env.spec.roles[0].action_space
    assert isinstance(space, spaces.Box)
    assert action.continuous is not None
    return space.low + (action.continuous[b, 0].numpy() + 1) / 2 * (space.high - space.low)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_environment_equals_gymnasium_s_own_loop(name: str):
    num_envs, length = (1, 20) if "CarRacing" in name else (3, 50)
    env = make(name, {"episode_limit": 15}, num_envs=num_envs, seed=4)
    timesteps, steps, actions = [env.reset()], [], []
    for action, step, timestep in played(env, length):
        actions.append(action["agent"])
        steps.append(step)
        timesteps.append(timestep)
    truncations = terminations = 0
    for b in range(num_envs):
        own = gymnasium_loop(name, 15, 4, b, [native_action(env, action, b) for action in actions])
        for t, (observation, reward, terminated, truncated) in enumerate(own):
            shown = timesteps[t].obs["agent"][b, 0].numpy()
            assert shown.dtype == (np.uint8 if name == "gym/CarRacing-v3" else np.float32)
            np.testing.assert_array_equal(
                shown, np.asarray(observation).astype(shown.dtype), f"environment {b}, step {t}"
            )
            assert bool(timesteps[t].acted[b]) == (not (terminated or truncated))
            if t:
                assert steps[t - 1].reward[b, 0] == np.float32(reward)
                assert bool(steps[t - 1].episode_terminated[b]) == terminated
                assert bool(steps[t - 1].episode_truncated[b]) == (truncated and not terminated)
                assert bool(timesteps[t].first[b, 0]) == (not timesteps[t - 1].acted[b])
            terminations, truncations = terminations + terminated, truncations + (truncated and not terminated)
    assert truncations
    assert terminations or name != "gym/CartPole-v1"


def test_seeds_of_environments_do_not_depend_on_their_number():
    few, many = (make("gym/Pendulum-v1", num_envs=num_envs, seed=3).reset().obs["agent"] for num_envs in (2, 5))
    assert torch.equal(few, many[:2])
    assert len(many.unique(dim=0)) == 5
    assert not torch.equal(make("gym/Pendulum-v1", num_envs=2, seed=4).reset().obs["agent"], few)


def test_a_seeded_reset_restarts_the_random_stream_and_an_unseeded_one_continues_it():
    env = make("gym/CartPole-v1", num_envs=2, seed=3)
    first, second = env.reset().obs["agent"], env.reset().obs["agent"]
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(3).obs["agent"], first)
    assert torch.equal(env.reset().obs["agent"], second)


def test_the_limit_truncates_unless_the_episode_terminates_there():
    for name, ended in (("gym/Both-v0", True), ("gym/Gray-v0", False)):
        env = make(name, num_envs=2)
        env.reset()
        steps = [step for _, step, _ in played(env, 8)]
        assert [bool(step.episode_terminated.all()) for step in steps] == [False] * 6 + [ended, False]
        assert [bool(step.episode_truncated.all()) for step in steps] == [False] * 6 + [not ended, False]
        assert torch.equal(steps[6].terminated, steps[6].episode_terminated[:, None])
        assert [step.reward[0, 0].item() for step in steps] == [1, 2, 3, 4, 5, 6, 7, 0]


def test_returned_observations_are_not_overwritten():
    env = make("gym/MountainCarContinuous-v0", num_envs=2)  # returns its internal array
    timestep = env.reset()
    kept = timestep.obs["agent"].clone()
    for _ in played(env, 3):
        pass
    assert torch.equal(timestep.obs["agent"], kept)


@pytest.mark.parametrize("name", ["Picture", "Nested", "Discrete", "Tuple", "Endless"])
def test_environments_of_all_spaces_keep_the_contract(name: str):
    report = check(lambda num_envs, seed: make(f"gym/{name}-v0", {}, num_envs, seed), steps=20, num_envs=3)
    assert {finding.name for finding in report.findings} <= {"slow", "render-missing"}, report.render()
    assert report.summary["resume"] == "starts new episodes"


# --------------------------------------------------------------------------------------------------------------- spaces


def test_numbers_are_flat_float32_and_images_stay_bytes():
    assert spec_of("gym/Wide-v0").roles[0].observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert spec_of("gym/Picture-v0").roles[0].observation_space == PICTURE
    assert spec_of("gym/Gray-v0").roles[0].observation_space.shape == (6, 5, 1)
    timestep = make("gym/Picture-v0", num_envs=2).reset()
    assert (timestep.obs["agent"].dtype, timestep.obs["agent"].shape) == (torch.uint8, (2, 1, 6, 5, 3))


# --------------------------------------------------------------------------------------------------------- saved states


def future(env: VectorEnv, steps: int = 30) -> list[Any]:
    """The next steps and timesteps under random actions."""
    return [(step, timestep) for _, step, timestep in played(env, steps, seed=9)]


@pytest.mark.parametrize(("name", "steps"), [(CLASSIC[1], 9), *((name, 11) for name in CLASSIC)])
def test_a_saved_state_resumes_bit_for_bit(name: str, steps: int, tmp_path: Path):
    env = make(name, {"episode_limit": 9}, num_envs=3, seed=2)
    env.reset()
    for _ in played(env, steps):
        pass
    checkpoints.save(tmp_path / "state", {"env": env.state_dict()}, {})
    picture = env.render(1, 64)
    expected = future(env)
    state = checkpoints.load(tmp_path / "state")[0]["env"]
    for other in (env, make(name, {"episode_limit": 9}, num_envs=3, seed=77)):
        other.load_state_dict(state)
        np.testing.assert_array_equal(other.render(1, 64), picture)
        for one, two in zip(future(other), expected, strict=True):
            assert first_difference(one[0], two[0]) is None
            assert first_difference(one[1], two[1]) is None


def test_a_state_saved_before_the_first_reset_starts_the_same_episodes():
    env, other = make("gym/Pendulum-v1", num_envs=2, seed=1), make("gym/Pendulum-v1", num_envs=2, seed=8)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.reset().obs["agent"], env.reset().obs["agent"])


def test_other_environments_report_that_their_state_cannot_be_restored():
    env = make("gym/Gray-v0")
    env.reset()
    assert (env.spec.exact_resume, env.state_dict()) == (False, {})
    with pytest.raises(UserError, match="cannot save its state"):
        env.load_state_dict({})


# -------------------------------------------------------------------------------------------------- names, keys, errors


def test_constructor_parameters_are_settings():
    resolved = resolve(["env=gym/Pendulum-v1", "env.g=9", "env.episode_limit=30", "algo=random"])
    assert resolved.config.env.params.model_dump(exclude={"wrappers"}) == {"episode_limit": 30, "g": 9.0}
    env = make("gym/Pendulum-v1", resolved.config.env.params)
    assert env.spec.episode_limit == 30
    light, usual = (make("gym/Pendulum-v1", {"g": g}, num_envs=2) for g in (0.0, 10.0))
    assert torch.equal(light.reset().obs["agent"], usual.reset().obs["agent"])
    assert first_difference(next(played(light, 1))[2], next(played(usual, 1))[2]) == "obs['agent']"
    assert spec_of("gym/CartPole-v1").episode_limit == 500


def test_registered_parameters_are_the_defaults_of_settings():
    assert resolve(["env=gym/Endless-v0", "algo=random"]).config.env.params.model_dump()["ends"] == 5
    short = make("gym/Endless-v0", {"ends": 3})
    short.reset()
    assert [bool(step.episode_terminated) for _, step, _ in played(short, 4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("gym/CartPole-v9", {}, "Did you mean 'gym/CartPole-v1'"),
        ("gym/qqqqqqqqqq", {}, "gymnasium.pprint_registry() lists all"),
        ("gym/no_such_package:World-v0", {}, "no module named 'no_such_package'. Install the package"),
        ("gym/ALE/Pong-v5", {}, "ale-py is not installed. Install it with: pip install ale-py"),
        ("gym/Nowhere/Pong-v5", {}, "No imported module registers the namespace 'Nowhere' (ALE,"),
        ("gym/phys2d/CartPole-v9", {}, "Did you mean 'gym/phys2d/CartPole-v"),
        ("gym/Gone-v0", {}, "No module named 'no_such_library'. Install it with: pip install no_such_library"),
        ("gym/Pendulum-v1", {"gg": 3}, "gym/Pendulum-v1 has no setting 'env.gg'. Did you mean 'env.g'"),
        ("gym/Pendulum-v1", {"episode_limit": 0}, "env.episode_limit=0: expected an integer at least 1"),
        ("gym/Text-v0", {}, "has no fixed shape"),
        ("gym/Unbounded-v0", {}, "infinite bounds"),
        ("gymm/Pendulum-v1", {}, "Did you mean 'gym/Pendulum-v1'"),
    ],
)
def test_invalid_names_and_settings_raise_one_line_errors(
    name: str, params: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    with pytest.raises(UserError) as error:
        make(name, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_known_namespace_is_imported_automatically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ale_py.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('ALE/Swing-v5', PendulumEnv, max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert make("gym/ALE/Swing-v5").spec.episode_limit == 4
        with pytest.raises(UserError, match="Did you mean 'gym/ALE/Swing-v5'"):
            make("gym/ALE/Swung-v5")
    finally:
        gymnasium.registry.pop("ALE/Swing-v5", None)
        sys.modules.pop("ale_py", None)


def test_an_id_can_name_the_package_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gymthings.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Things/Swing-v0', PendulumEnv, max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not registry.is_factory("gym/gymthings:Things/Swing-v0")
    spec = make("gym/gymthings:Things/Swing-v0", {"g": 5.0}).spec
    assert (spec.name, spec.episode_limit, spec.exact_resume) == ("gym/gymthings:Things/Swing-v0", 4, True)


# ------------------------------------------------------------------------------------------------------------- pictures


def test_images_have_the_requested_size():
    env = make("gym/CartPole-v1", num_envs=2)
    env.reset()
    picture = env.render(1, 120)
    assert (picture.shape, picture.dtype) == ((80, 120, 3), np.uint8)
    assert not np.array_equal(picture, env.render(0, 120))


def test_an_environment_without_rendering_reports_it():
    env = make("gym/Gray-v0")
    env.reset()
    with pytest.raises(UserError, match="gym/Gray-v0 cannot be drawn"):
        env.render()


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = ("env.episode_limit=25", "algo.rollout_length=20", "algo.num_minibatches=2", "steps=200")
    assert_resumes_exactly(tmp_path, monkeypatch, 80, "algo=ppo", "env=gym/CartPole-v1", *settings)
