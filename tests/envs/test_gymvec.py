"""Gymnasium's vector environments behind the contract: every way of beginning anew, limits, spaces, saved states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import vecworlds
from gymworlds import registering
from vecworlds import (
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

from coterie import checkpoint, run
from coterie.__main__ import main
from coterie.config import resolve
from coterie.envs.adapters.gymvec import Batch
from coterie.envs.check import check
from coterie.envs.make import make, spec_of
from coterie.envs.paths import difference
from coterie.envs.vector import VectorEnv
from coterie.errors import NonFiniteError, UserError
from coterie.seeds import seed_of
from coterie.types import Action, Row
from tinyruns import TINY, assert_resumes_to_the_bit, state_of, tiny, train

MODES = ("NextStep", "SameStep", "Disabled")


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    with registering() as register:
        for name, entry in {"Diary": Diary, "Counting": Counting, "Drawn": Drawn, "Broken": Broken}.items():
            register(f"{name}-v0", vector_entry_point=entry)
        register("Short-v0", vector_entry_point=Counting, max_episode_steps=6)
        register("Deaf-v0", vector_entry_point=Diary, max_episode_steps=3, kwargs={"heeds": False})
        register("Singles-v0", vector_entry_point=single_ones, kwargs={"env_id": "CartPole-v1"})
        register("Choosing-v0", vector_entry_point=choosing)
        register("Gone-v0", vector_entry_point="no_such_library:Env")
        for name, (sees, does) in ANY_SPACES.items():
            register(f"{name}-v0", vector_entry_point=any_spaces, kwargs={"sees": sees, "does": does})
        yield


# ------------------------------------------------------------------------------------------------- gymnasium's own loop


@pytest.mark.parametrize(("limit", "seed"), [(500, 0), (500, 3), (12, 1)])
def test_cart_pole_agrees_with_gymnasium_s_vector_environment_to_the_bit(limit: int, seed: int):
    name, copies = "gymvec/CartPole-v1", 5
    env = make(name, {"episode_limit": limit}, copies, seed)
    own = gymnasium.make_vec("CartPole-v1", copies, vectorization_mode="vector_entry_point", max_episode_steps=limit)
    shown = own.reset(seed=seed_of(seed, "env", name) >> 32)[0]
    np.testing.assert_array_equal(env.reset().obs["agent"][:, 0].numpy(), shown)
    ends, over = 0, np.zeros(copies, bool)
    for action, step, row in played(env, 150):
        assert action["agent"].discrete is not None
        shown, reward, terminated, truncated, _ = own.step(action["agent"].discrete[:, 0, 0].numpy())
        np.testing.assert_array_equal(row.obs["agent"][:, 0].numpy(), shown)
        np.testing.assert_array_equal(step.reward[:, 0].numpy(), reward)
        np.testing.assert_array_equal(step.episode_terminated.numpy(), terminated)
        np.testing.assert_array_equal(step.episode_truncated.numpy(), truncated & ~terminated)
        np.testing.assert_array_equal(row.first[:, 0].numpy(), over)
        over = terminated | truncated
        np.testing.assert_array_equal(row.acted.numpy(), ~over)
        ends += over.sum()
    assert ends > 20
    assert (env.spec.episode_limit, env.spec.exact_resume) == (limit, True)


def test_another_seed_lives_other_episodes_and_the_same_seed_the_same():
    def rows(seed: int) -> list[Row]:
        env = make("gymvec/CartPole-v1", copies=3, seed=seed)
        return [env.reset(), *(row for _, _, row in played(env, 40))]

    assert all(difference(one, two) is None for one, two in zip(rows(4), rows(4), strict=True))
    assert difference(rows(4)[0], rows(5)[0])


def test_an_end_at_the_limit_is_an_end():
    env = make("gymvec/CartPole-v1", {"episode_limit": 9}, copies=64)
    env.reset()
    flags = [(step.episode_terminated, step.episode_truncated) for _, step, _ in played(env, 9)][-1]
    assert flags[0].any()
    assert flags[1].any()
    assert not (flags[0] & flags[1]).any()


# ------------------------------------------------------------------------------------------------------ beginning anew


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_every_episode_is_shown_from_its_first_row_to_its_last(mode: str):
    env = make("gymvec/Diary-v0", {"mode": mode}, copies=5)
    assert faults(env) == set()
    assert env.spec.episode_limit is None


@pytest.mark.parametrize("final", ["one by one", "together"])
def test_a_step_that_ends_and_begins_shows_the_last_row_and_then_the_second_of_the_next(final: str):
    env = make("gymvec/Diary-v0", {"mode": "SameStep", "final": final}, copies=5)
    row = env.reset()
    assert row.obs["agent"][:, 0, 1].tolist() == [0] * 5
    assert faults(make("gymvec/Diary-v0", {"mode": "SameStep", "final": final}, copies=5), first_age=1) == set()


def test_the_last_row_of_another_episode_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Batch, "_finish", lambda *_: None)
    env = make("gymvec/Diary-v0", {"mode": "SameStep"}, copies=5)
    assert "a transition crosses a reset" in faults(env, first_age=1)


def test_a_first_row_that_was_missed_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    begun = Batch._begun
    monkeypatch.setattr(Batch, "_begun", lambda env, who, seen: seen if seen else begun(env, who, seen))
    env = make("gymvec/Diary-v0", {"mode": "Disabled"}, copies=5)
    assert "an episode does not begin with its first row" in faults(env)


def test_what_is_chosen_on_a_closing_row_reaches_no_environment():
    env = make("gymvec/Diary-v0", {"mode": "SameStep"}, copies=4)
    assert isinstance(env, Batch)
    env.reset()
    closed = torch.zeros(4, dtype=torch.bool)
    two = {"agent": Action(discrete=torch.full((4, 1, 1), 2))}
    for _ in range(12):
        _, row = env.step(two)
        assert env._env.seen[-1].tolist() == torch.where(closed, 0, 2).tolist()
        closed = ~row.acted


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_that_nobody_counts_is_a_cut_here(mode: str):
    params = {"mode": mode, "endless": True, "episode_limit": 4}
    assert spec_of("gymvec/Diary-v0", params).episode_limit == 4
    assert faults(make("gymvec/Diary-v0", params, copies=3), limit=4) == set()


def test_a_limit_counted_here_leaves_the_others_in_their_episodes():
    env = make("gymvec/Diary-v0", {"mode": "NextStep", "episode_limit": 4}, copies=6)
    row, ages, cut = env.reset(), torch.zeros(6), 0
    for _, step, row in played(env, 60):
        age = row.obs["agent"][:, 0, 1]
        assert torch.equal(age, torch.where(row.first[:, 0], 0, ages + 1))
        cut += int(
            (step.episode_truncated & (age == 4) & (length(row.obs["agent"][:, 0, 0], torch.arange(6)) > 4)).sum()
        )
        ages = age
    assert cut > 5


def test_a_mask_that_nobody_heeds_is_one_line_unless_all_begin_together():
    env = make("gymvec/Deaf-v0", copies=5)
    env.reset()
    with pytest.raises(UserError, match=r"Deaf-v0: reset.*'reset_mask'.*changed what copies outside of the mask see"):
        for _ in played(env, 40):
            pass
    env = make("gymvec/Deaf-v0", {"endless": True}, copies=5)
    assert faults(env, limit=3) == set()


def test_the_environment_counts_where_its_constructor_takes_the_limit():
    assert spec_of("gymvec/Counting-v0").episode_limit is None
    assert spec_of("gymvec/Short-v0").episode_limit == 6
    assert spec_of("gymvec/CartPole-v0").episode_limit == 200
    assert spec_of("gymvec/Singles-v0").episode_limit is None
    for name, params, limit in [
        ("Short", {}, 6),
        ("Short", {"episode_limit": 3}, 3),
        ("Counting", {"episode_limit": 5}, 5),
    ]:
        env = make(f"gymvec/{name}-v0", params, copies=4)
        assert isinstance(env, Batch)
        assert env._env.limit == limit
        assert faults(env, limit=limit) == set()


def test_an_environment_that_does_not_say_when_it_begins_anew_is_refused():
    with pytest.raises(UserError, match=r"metadata\['autoreset_mode'\] is None, expected what it does"):
        make("gymvec/Diary-v0", {"mode": "unsaid"})
    env = make("gymvec/Drawn-v0", {"mode": "unsaid", "autoreset": "disabled"}, copies=5)
    assert faults(env) == set()


def test_same_step_without_last_observations_is_refused():
    env = make("gymvec/Diary-v0", {"mode": "SameStep", "final": "not"}, copies=3)
    env.reset()
    with pytest.raises(UserError, match="its infos have no 'final_obs'"):
        for _ in played(env, 9):
            pass


def test_an_end_in_the_step_that_begins_is_one_line():
    env = make("gymvec/Diary-v0", copies=3)
    assert isinstance(env, Batch)
    env._env.mode = "SameStep"  # what it does is not what it says
    env.reset()
    diary = env._env
    diary.age[:] = length(diary.number, diary.copy) - 1
    next(played(env, 1))
    diary.age[:] = length(diary.number, diary.copy) - 1
    with pytest.raises(UserError, match="ended an episode in the step that was to begin it"):
        next(played(env, 1))


def test_the_mode_that_misses_nothing_is_asked_for_where_it_can_be_chosen():
    env = make("gymvec/Choosing-v0", copies=2)
    assert isinstance(env, Batch)
    assert env._env.metadata["autoreset_mode"].value == "NextStep"


# ------------------------------------------------------------------------------------------------- contract and spaces

EXPECTED = {"slow", "render-missing"}


@pytest.mark.parametrize("mode", MODES)
def test_single_environments_in_every_mode_keep_the_contract(mode: str):
    report = check(
        lambda copies, seed: make("gymvec/Singles-v0", {"mode": mode, "episode_limit": 9}, copies, seed), 40, 3
    )
    assert {finding.rule for finding in report.findings} <= EXPECTED, report.render()


@pytest.mark.parametrize("name", ["CartPole-v1", *(f"{name}-v0" for name in ANY_SPACES)])
def test_environments_of_any_space_keep_the_contract(name: str):
    limit = {"episode_limit": 12} if name == "CartPole-v1" else {}
    report = check(lambda copies, seed: make(f"gymvec/{name}", limit, copies, seed), 30, 3)
    assert {finding.rule for finding in report.findings} <= EXPECTED, report.render()


def test_what_is_not_of_the_declared_shape_is_one_line():
    for fault, words in {"seen": r"shape \(2,\)", "reward": "rewards of shape"}.items():
        env = make("gymvec/Broken-v0", {"fault": fault}, copies=4)
        env.reset()
        with pytest.raises(UserError, match=words):
            list(played(env, 3))


# -------------------------------------------------------------------------------------------------------- saved states


@pytest.mark.parametrize("part", ["", "memory", "generator", "age", "closing"])
def test_a_saved_state_goes_on_to_the_bit_and_needs_each_of_its_parts(part: str, tmp_path: Path):
    def begun(seed: int, steps: int) -> VectorEnv:
        env = make("gymvec/CartPole-v1", {"episode_limit": 9}, 4, seed)
        env.reset()
        list(played(env, steps))
        return env

    env, other = begun(2, 9), begun(7, 4)
    checkpoint.save(tmp_path / "state", {"env": env.state_dict()}, {})
    state, expected = checkpoint.load(tmp_path / "state")[0]["env"], list(played(env, 30, 9))
    if part:
        state[part] = other.state_dict()[part] if part != "closing" else ~state[part]
    other.load_state_dict(state)
    try:
        now = list(played(other, 30, 9))
    except UserError:  # the environment counts as well, and is not begun anew where it does not agree
        assert part in ("age", "closing")
    else:
        same = [difference(one[1:], two[1:]) is None for one, two in zip(now, expected, strict=True)]
        assert all(same) is (part == "")


def test_states_before_the_first_reset_and_of_those_that_cannot_save_theirs():
    env, other = make("gymvec/CartPole-v1", copies=2, seed=1), make("gymvec/CartPole-v1", copies=2, seed=8)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.reset().obs["agent"], env.reset().obs["agent"])
    env = make("gymvec/Diary-v0", copies=2)
    assert (env.spec.exact_resume, env.state_dict()) == (False, {})
    with pytest.raises(UserError, match="cannot save its state"):
        env.load_state_dict({})


# ------------------------------------------------------------------------------------------------ names, keys, pictures


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("gymvec/CartPole-v9", {}, "did you mean 'gymvec/CartPole-v1'"),
        ("gymvec/Pendulum-v1", {}, "has no vector environment of its own: gym/Pendulum-v1"),
        ("gym/Diary-v0", {}, "it can only be made as a vector environment: gymvec/Diary-v0"),
        ("gymvec/Gone-v0", {}, "No module named 'no_such_library': pip install no_such_library"),
        ("gymvec/no_such_package:World-v0", {}, "there is no module 'no_such_package'"),
        ("gymvec/CartPole-v1", {"suton_barto_reward": True}, "did you mean 'env.sutton_barto_reward'"),
        ("gymvec/CartPole-v1", {"num_envs": 3}, "has no key 'env.num_envs'"),
        ("gymvec/CartPole-v1", {"episode_limit": 0}, "env.episode_limit=0: expected a whole number at least 1"),
    ],
)
def test_what_cannot_be_made_is_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(name, params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_constructor_parameters_are_keys():
    resolved = resolve(["env=gymvec/CartPole-v1", "env.sutton_barto_reward=true", "algo=random"])
    assert resolved.config.env.params.model_dump(exclude={"autoreset"}) == {
        "episode_limit": None,
        "sutton_barto_reward": True,
    }
    env = make("gymvec/CartPole-v1", {"sutton_barto_reward": True}, copies=8)
    env.reset()
    assert {float(x) for _, step, _ in played(env, 30) for x in step.reward.flatten()} == {0.0, -1.0}


def test_a_package_s_own_id_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "vecthings.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv\n"
        "gymnasium.register('Things/Pole-v0', vector_entry_point=CartPoleVectorEnv, max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = make("gymvec/vecthings:Things/Pole-v0").spec
    assert (spec.name, spec.episode_limit) == ("gymvec/vecthings:Things/Pole-v0", 4)


def test_pictures_are_of_the_copy_that_was_asked_for():
    env = make("gymvec/Drawn-v0", copies=3)
    env.reset()
    picture = env.render(2, 40)
    assert (picture.shape, int(picture.max())) == ((20, 40, 3), 80)
    plain = make("gymvec/Diary-v0")
    with pytest.raises(UserError, match="draws no pictures"):
        plain.render()


# ---------------------------------------------------------------------------------------------------------- whole runs


LEARNERS = {
    "ppo": ("algo.horizon=10", "algo.epochs=2", "algo.minibatches=2"),
    "ddqn": ("algo.horizon=10", "algo.learning_starts=40", "algo.batch=8"),
}


@pytest.mark.usefixtures("without_curves")
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = (
        *("algo=ppo", "env=gymvec/CartPole-v1", "env.episode_limit=25", "algo.horizon=20", "algo.minibatches=2"),
        "steps=300",
    )
    assert_resumes_to_the_bit(tmp_path, monkeypatch, 120, *settings)


@pytest.mark.usefixtures("without_curves")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("algo", "learning"), LEARNERS.items())
def test_learners_of_both_kinds_take_every_mode(algo: str, learning: tuple[str, ...], mode: str, tmp_path: Path):
    own = (f"algo={algo}", "env=gymvec/Diary-v0", f"env.mode={mode}", f"out={tmp_path / 'run'}")
    run.train(resolve([*(setting for setting in TINY if not setting.startswith("algo.")), *own, *learning]))
    assert state_of(tmp_path / "run")["steps"] >= 80


@pytest.mark.usefixtures("without_curves")
def test_a_reward_that_is_no_number_stops_the_run(tmp_path: Path):
    with pytest.raises(NonFiniteError, match="reward"):
        train(tmp_path / "run", "algo=ppo", "env=gymvec/Broken-v0", "algo.minibatches=1")


@pytest.mark.usefixtures("without_curves")
def test_one_that_raises_is_one_line_with_its_own_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = Path(vecworlds.__file__).read_text().splitlines()
    line = next(k for k, text in enumerate(source, 1) if "raise ZeroDivisionError" in text)
    own = ("algo=ppo", "algo.minibatches=1", "env=gymvec/Broken-v0", "env.fault=raises", "eval.every=0")
    assert main(["train", *tiny(*own), f"out={tmp_path / 'run'}"]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "gymvec/Broken-v0 failed in a step: ZeroDivisionError: the pages have no weight" in said
    assert f"(vecworlds.py:{line})" in said
    assert f"the last good checkpoint is in {tmp_path / 'run' / 'checkpoints'}" in said
