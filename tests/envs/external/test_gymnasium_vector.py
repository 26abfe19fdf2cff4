"""Gymnasium vector environments: autoreset modes, limits, spaces, saved states, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import vector_worlds
from coterie.assembly.resolve import resolve
from coterie.checks.environment.contract import check
from coterie.commands import train as training
from coterie.core.errors import EnvironmentFailedError, UserError
from coterie.core.seeds import seed_of
from coterie.core.types import Action
from coterie.envs.contract.traces import first_difference, random_actions
from coterie.envs.contract.vector import VectorEnv, step_env
from coterie.envs.external.gymnasium_vector import GymnasiumBatch
from coterie.envs.make import make, spec_of
from coterie.runs import checkpoints
from gymnasium_worlds import registering
from tinyruns import TINY, assert_resumes_exactly, checkpoint_state
from vector_worlds import (
    ANY_SPACES,
    Broken,
    Counting,
    Diary,
    Drawn,
    any_spaces,
    choosing,
    faults,
    length,
    played,
    single_ones,
)

MODES = ("NextStep", "SameStep", "Disabled")


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    with registering() as register:
        for name, entry in {"Diary": Diary, "Counting": Counting, "Drawn": Drawn, "Broken": Broken}.items():
            register(f"{name}-v0", vector_entry_point=entry)
        register("Short-v0", vector_entry_point=Counting, max_episode_steps=6)
        register("IgnoresMask-v0", vector_entry_point=Diary, max_episode_steps=3, kwargs={"heeds": False})
        register("Singles-v0", vector_entry_point=single_ones, kwargs={"env_id": "CartPole-v1"})
        register("Choosing-v0", vector_entry_point=choosing)
        register("Gone-v0", vector_entry_point="no_such_library:Env")
        for name, (observation, action) in ANY_SPACES.items():
            register(f"{name}-v0", vector_entry_point=any_spaces, kwargs={"observation": observation, "action": action})
        yield


# ------------------------------------------------------------------------------------------------- gymnasium's own loop


@pytest.mark.parametrize(("limit", "seed"), [(500, 0), (500, 3), (12, 1)])
def test_cart_pole_equals_gymnasium_s_vector_environment(limit: int, seed: int):
    name, num_envs = "gymvec/CartPole-v1", 5
    env = make(name, {"episode_limit": limit}, num_envs, seed)
    own = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", max_episode_steps=limit)
    shown = own.reset(seed=seed_of(seed, "env", name) >> 32)[0]
    np.testing.assert_array_equal(env.reset().obs["agent"][:, 0].numpy(), shown)
    ends, over = 0, np.zeros(num_envs, bool)
    for action, step, timestep in played(env, 150):
        assert action["agent"].discrete is not None
        shown, reward, terminated, truncated, _ = own.step(action["agent"].discrete[:, 0, 0].numpy())
        np.testing.assert_array_equal(timestep.obs["agent"][:, 0].numpy(), shown)
        np.testing.assert_array_equal(step.reward[:, 0].numpy(), reward)
        np.testing.assert_array_equal(step.episode_terminated.numpy(), terminated)
        np.testing.assert_array_equal(step.episode_truncated.numpy(), truncated & ~terminated)
        np.testing.assert_array_equal(timestep.first[:, 0].numpy(), over)
        over = terminated | truncated
        np.testing.assert_array_equal(timestep.acted.numpy(), ~over)
        ends += over.sum()
    assert ends > 20
    assert (env.spec.episode_limit, env.spec.exact_resume) == (limit, True)


def test_termination_at_the_limit_is_not_truncation():
    env = make("gymvec/CartPole-v1", {"episode_limit": 9}, num_envs=64)
    env.reset()
    flags = [(step.episode_terminated, step.episode_truncated) for _, step, _ in played(env, 9)][-1]
    assert flags[0].any()
    assert flags[1].any()
    assert not (flags[0] & flags[1]).any()


# ------------------------------------------------------------------------------------------------------ autoreset modes


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_episodes_are_shown_from_the_first_to_the_final_timestep(mode: str):
    env = make("gymvec/Diary-v0", {"mode": mode}, num_envs=5)
    assert faults(env) == set()
    assert env.spec.episode_limit is None


@pytest.mark.parametrize("final", ["list", "batch"])
def test_same_step_autoreset_shows_the_final_timestep_and_skips_the_next_first_one(final: str):
    env = make("gymvec/Diary-v0", {"mode": "SameStep", "final": final}, num_envs=5)
    timestep = env.reset()
    assert timestep.obs["agent"][:, 0, 1].tolist() == [0] * 5
    assert faults(make("gymvec/Diary-v0", {"mode": "SameStep", "final": final}, num_envs=5), first_age=1) == set()


def test_actions_at_final_timesteps_are_ignored():
    env = make("gymvec/Diary-v0", {"mode": "SameStep"}, num_envs=4)
    assert isinstance(env, GymnasiumBatch)
    env.reset()
    closed = torch.zeros(4, dtype=torch.bool)
    two = {"agent": Action(discrete=torch.full((4, 1, 1), 2))}
    for _ in range(12):
        _, timestep = env.step(two)
        assert env.native.seen[-1].tolist() == torch.where(closed, 0, 2).tolist()
        closed = ~timestep.acted


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_that_the_environment_does_not_enforce_truncates(mode: str):
    params = {"mode": mode, "endless": True, "episode_limit": 4}
    assert spec_of("gymvec/Diary-v0", params).episode_limit == 4
    assert faults(make("gymvec/Diary-v0", params, num_envs=3), limit=4) == set()


def test_truncation_of_one_environment_does_not_affect_the_others():
    env = make("gymvec/Diary-v0", {"mode": "NextStep", "episode_limit": 4}, num_envs=6)
    timestep, ages, cut = env.reset(), torch.zeros(6), 0
    for _, step, timestep in played(env, 60):
        age = timestep.obs["agent"][:, 0, 1]
        assert torch.equal(age, torch.where(timestep.first[:, 0], 0, ages + 1))
        cut += int(
            (step.episode_truncated & (age == 4) & (length(timestep.obs["agent"][:, 0, 0], torch.arange(6)) > 4)).sum()
        )
        ages = age
    assert cut > 5


def test_an_ignored_reset_mask_raises_unless_all_environments_reset_together():
    env = make("gymvec/IgnoresMask-v0", num_envs=5)
    env.reset()
    with pytest.raises(
        UserError, match=r"IgnoresMask-v0: reset.*'reset_mask'.*changed observations of environments outside"
    ):
        for _ in played(env, 40):
            pass
    env = make("gymvec/IgnoresMask-v0", {"endless": True}, num_envs=5)
    assert faults(env, limit=3) == set()


def test_the_environment_enforces_the_limit_if_its_constructor_accepts_it():
    assert spec_of("gymvec/Counting-v0").episode_limit is None
    assert spec_of("gymvec/Short-v0").episode_limit == 6
    assert spec_of("gymvec/CartPole-v0").episode_limit == 200
    assert spec_of("gymvec/Singles-v0").episode_limit is None
    for name, params, limit in [
        ("Short", {}, 6),
        ("Short", {"episode_limit": 3}, 3),
        ("Counting", {"episode_limit": 5}, 5),
    ]:
        env = make(f"gymvec/{name}-v0", params, num_envs=4)
        assert isinstance(env, GymnasiumBatch)
        assert env.native.limit == limit
        assert faults(env, limit=limit) == set()


def test_an_undeclared_autoreset_mode_is_refused():
    with pytest.raises(
        UserError, match=r"metadata\['autoreset_mode'\] is None, expected the handling of finished environments"
    ):
        make("gymvec/Diary-v0", {"mode": "undeclared"})
    env = make("gymvec/Drawn-v0", {"mode": "undeclared", "autoreset": "disabled"}, num_envs=5)
    assert faults(env) == set()


def test_same_step_autoreset_without_last_observations_is_refused():
    env = make("gymvec/Diary-v0", {"mode": "SameStep", "final": "missing"}, num_envs=3)
    env.reset()
    with pytest.raises(UserError, match="its infos lack 'final_obs'"):
        for _ in played(env, 9):
            pass


def test_an_episode_that_ends_in_its_reset_step_raises():
    env = make("gymvec/Diary-v0", num_envs=3)
    assert isinstance(env, GymnasiumBatch)
    env.native.mode = "SameStep"  # differs from its metadata
    env.reset()
    diary = env.native
    diary.age[:] = length(diary.number, diary.index) - 1
    next(played(env, 1))
    diary.age[:] = length(diary.number, diary.index) - 1
    with pytest.raises(UserError, match="ended an episode in the step that resets it"):
        next(played(env, 1))


def test_next_step_autoreset_is_requested_if_the_mode_can_be_chosen():
    env = make("gymvec/Choosing-v0", num_envs=2)
    assert isinstance(env, GymnasiumBatch)
    assert env.native.metadata["autoreset_mode"].value == "NextStep"


# -------------------------------------------------------------------------------------------------- contract and spaces

EXPECTED = {"slow", "render-missing"}


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_all_autoreset_modes_keep_the_contract(mode: str):
    report = check(
        lambda num_envs, seed: make("gymvec/Singles-v0", {"mode": mode, "episode_limit": 9}, num_envs, seed), 40, 3
    )
    assert {finding.name for finding in report.findings} <= EXPECTED, report.render()


@pytest.mark.parametrize("name", ["Nested-v0", "Discrete-v0", "Bits-v0", "Album-v0"])
def test_environments_of_all_spaces_keep_the_contract(name: str):
    report = check(lambda num_envs, seed: make(f"gymvec/{name}", {}, num_envs, seed), 30, 3)
    assert {finding.name for finding in report.findings} <= EXPECTED, report.render()


def test_undeclared_shapes_raise_one_line_errors():
    for fault, words in {"seen": r"shape \(2,\)", "reward": "the rewards are"}.items():
        env = make("gymvec/Broken-v0", {"fault": fault}, num_envs=4)
        env.reset()
        with pytest.raises(UserError, match=words):
            list(played(env, 3))


# --------------------------------------------------------------------------------------------------------- saved states


def test_a_saved_state_resumes_bit_for_bit(tmp_path: Path):
    def started(seed: int, steps: int) -> VectorEnv:
        env = make("gymvec/CartPole-v1", {"episode_limit": 9}, 4, seed)
        env.reset()
        list(played(env, steps))
        return env

    env, other = started(2, 9), started(7, 4)
    checkpoints.save(tmp_path / "state", {"env": env.state_dict()}, {})
    expected = list(played(env, 30, 9))
    other.load_state_dict(checkpoints.load(tmp_path / "state")[0]["env"])
    for one, two in zip(played(other, 30, 9), expected, strict=True):
        assert first_difference(one[1:], two[1:]) is None


def test_states_before_the_first_reset_and_of_environments_that_cannot_be_saved():
    env, other = make("gymvec/CartPole-v1", num_envs=2, seed=1), make("gymvec/CartPole-v1", num_envs=2, seed=8)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.reset().obs["agent"], env.reset().obs["agent"])
    env = make("gymvec/Diary-v0", num_envs=2)
    assert (env.spec.exact_resume, env.state_dict()) == (False, {})
    with pytest.raises(UserError, match="state cannot be restored"):
        env.load_state_dict({})


# ------------------------------------------------------------------------------------------------ names, keys, pictures


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("gymvec/CartPole-v9", {}, "Did you mean 'gymvec/CartPole-v1'"),
        ("gymvec/Pendulum-v1", {}, "has no vector implementation. Use gym/Pendulum-v1"),
        ("gym/Diary-v0", {}, "it is only available as a vector environment: gymvec/Diary-v0"),
        ("gymvec/Gone-v0", {}, "No module named 'no_such_library'. Install it with: pip install no_such_library"),
        ("gymvec/CartPole-v1", {"num_envs": 3}, "has no setting 'env.num_envs'"),
        ("gymvec/CartPole-v1", {"episode_limit": 0}, "env.episode_limit=0: expected an integer at least 1"),
    ],
)
def test_invalid_names_and_settings_raise_one_line_errors(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_constructor_parameters_are_settings():
    resolved = resolve(["env=gymvec/CartPole-v1", "env.sutton_barto_reward=true", "algo=random"])
    assert resolved.config.env.params.model_dump(exclude={"autoreset"}) == {
        "episode_limit": None,
        "sutton_barto_reward": True,
    }
    env = make("gymvec/CartPole-v1", {"sutton_barto_reward": True}, num_envs=8)
    env.reset()
    assert {float(x) for _, step, _ in played(env, 30) for x in step.reward.flatten()} == {0.0, -1.0}


def test_the_requested_environment_is_rendered():
    env = make("gymvec/Drawn-v0", num_envs=3)
    env.reset()
    picture = env.render(2, 40)
    assert (picture.shape, int(picture.max())) == ((20, 40, 3), 80)
    plain = make("gymvec/Diary-v0")
    with pytest.raises(UserError, match="does not support rendering"):
        plain.render()


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = ("env.episode_limit=25", "algo.rollout_length=20", "algo.num_minibatches=2", "steps=300")
    assert_resumes_exactly(tmp_path, monkeypatch, 120, "algo=ppo", "env=gymvec/CartPole-v1", *settings)


def test_off_policy_learners_train_after_autoresets(tmp_path: Path):
    learning = ("algo=ddqn", "algo.learning_starts=40", "algo.batch_size=8", "algo.rollout_length=10")
    own = ("env=gymvec/Diary-v0", "env.mode=SameStep", f"out={tmp_path / 'run'}")
    training.train(resolve([*(setting for setting in TINY if not setting.startswith("algo.")), *learning, *own]))
    assert checkpoint_state(tmp_path / "run")["steps"] >= 80


def test_an_error_inside_the_environment_is_reported_with_its_file_and_line():
    source = Path(vector_worlds.__file__).read_text().splitlines()
    line = next(k for k, text in enumerate(source, 1) if "raise ZeroDivisionError" in text)
    message = rf"gymvec/Broken-v0 failed in a step: ZeroDivisionError: the pages .* \(vector_worlds.py:{line}\)"
    env, generator = make("gymvec/Broken-v0", {"fault": "raises"}, num_envs=2), torch.Generator()
    timestep = env.reset()
    for _ in range(2):
        timestep = step_env(env, random_actions(env.spec, timestep, generator))[1]
    with pytest.raises(EnvironmentFailedError, match=message):
        step_env(env, random_actions(env.spec, timestep, generator))


@pytest.mark.parametrize(
    ("call", "change", "message"),
    [
        ("reset", lambda seen, infos: seen, "reset() returned an ndarray, expected the pair"),
        ("reset", lambda seen, infos: (seen, [infos]), "reset() returned a tuple of 2 whose second is a list of 1"),
        ("step", lambda seen, reward, over, *_: (seen, reward, over, {}), "step() returned 4 values, expected five"),
        ("step", lambda *parts: (*parts[:4], [{}]), "step() returned info of type list, expected a dict"),
        ("step", lambda seen, *parts: ({"a": seen}, *parts), "the environment returned an observation with"),
    ],
)
def test_results_of_another_structure_are_one_line(
    call: str, change: Any, message: str, monkeypatch: pytest.MonkeyPatch
):
    original = getattr(Diary, call)
    monkeypatch.setattr(Diary, call, lambda self, *args, **named: change(*original(self, *args, **named)))

    def play() -> None:
        env = make("gymvec/Diary-v0", num_envs=2)
        env.reset()
        list(played(env, 3))

    with pytest.raises(UserError) as error:
        play()
    assert "gymvec/Diary-v0" in str(error.value)
    assert message in str(error.value)


def test_infos_of_none_are_empty(monkeypatch: pytest.MonkeyPatch):
    for call in ("reset", "step"):
        original = getattr(Diary, call)
        monkeypatch.setattr(
            Diary, call, lambda self, *args, original=original, **named: (*original(self, *args, **named)[:-1], None)
        )
    assert faults(make("gymvec/Diary-v0", num_envs=3)) == set()
