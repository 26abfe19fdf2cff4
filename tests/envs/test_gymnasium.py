"""Gymnasium's environments behind the contract: its own loop to the letter, any space, saved states, errors."""

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
from gymworlds import PICTURE, SEEN, played, registered

import coterie
from coterie import checkpoint, registry
from coterie.__main__ import main
from coterie.config import load_resolved, resolve
from coterie.envs.adapters import SCENARIOS
from coterie.envs.check import check
from coterie.envs.make import make, spec_of
from coterie.envs.paths import difference
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError
from coterie.origins import to_yaml
from coterie.seeds import seed_of
from coterie.types import Action
from tinyruns import assert_resumes_to_the_bit, train

ALL = tuple(f"gym/{name}" for name in SCENARIOS["gym"])
CLASSIC = tuple(f"gym/{name}" for name in SCENARIOS["gym"][:5])


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    SEEN.clear()
    with registered():
        yield


# ------------------------------------------------------------------------------------------------- gymnasium's own loop


def gymnasium_s_own(
    name: str, limit: int, seed: int, b: int, actions: list[Any]
) -> list[tuple[Any, float, bool, bool]]:
    """What gymnasium's environment with all its wrappers brings for the b-th copy; a reset takes a step of its own."""
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


def natives(env: VectorEnv, action: Action, b: int) -> Any:
    """The b-th copy's action in gymnasium's terms, written anew."""
    if action.discrete is not None:
        return int(action.discrete[b, 0, 0])
    space = env.spec.roles[0].action_space
    assert isinstance(space, spaces.Box)
    assert action.continuous is not None
    return space.low + (action.continuous[b, 0].numpy() + 1) / 2 * (space.high - space.low)


@pytest.mark.parametrize("name", ALL)
def test_every_copy_agrees_with_gymnasium_step_by_step(name: str):
    copies, length = (1, 20) if "CarRacing" in name else (3, 50)
    env = make(name, {"episode_limit": 15}, copies=copies, seed=4)
    rows, steps, actions = [env.reset()], [], []
    for action, step, row in played(env, length):
        actions.append(action["agent"])
        steps.append(step)
        rows.append(row)
    cuts = ends = 0
    for b in range(copies):
        own = gymnasium_s_own(name, 15, 4, b, [natives(env, action, b) for action in actions])
        for t, (observation, reward, terminated, truncated) in enumerate(own):
            shown = rows[t].obs["agent"][b, 0].numpy()
            assert shown.dtype == (np.uint8 if name == "gym/CarRacing-v3" else np.float32)
            np.testing.assert_array_equal(shown, np.asarray(observation).astype(shown.dtype), f"copy {b}, step {t}")
            assert bool(rows[t].acted[b]) == (not (terminated or truncated))
            if t:
                assert steps[t - 1].reward[b, 0] == np.float32(reward)
                assert bool(steps[t - 1].episode_terminated[b]) == terminated
                assert bool(steps[t - 1].episode_truncated[b]) == (truncated and not terminated)
                assert bool(rows[t].first[b, 0]) == (not rows[t - 1].acted[b])
            ends, cuts = ends + terminated, cuts + (truncated and not terminated)
    assert cuts
    assert ends or name != "gym/CartPole-v1"


def test_the_agreement_would_show_a_restart_that_swallows_the_last_observation():
    env = make("gym/Pendulum-v1", {"episode_limit": 5}, copies=2)
    env.reset()
    *_, (_, step, closing) = played(env, 5)
    _, _, first = next(played(env, 1))
    assert step.episode_truncated.all()
    assert not closing.acted.any()
    assert first.first.all()
    assert not torch.equal(closing.obs["agent"], first.obs["agent"])


def test_copies_have_seeds_of_their_own_whatever_their_number():
    few, many = (make("gym/Pendulum-v1", copies=copies, seed=3).reset().obs["agent"] for copies in (2, 5))
    assert torch.equal(few, many[:2])
    assert len(many.unique(dim=0)) == 5
    assert not torch.equal(make("gym/Pendulum-v1", copies=2, seed=4).reset().obs["agent"], few)


def test_a_reset_with_a_seed_begins_again_and_one_without_draws_on():
    env = make("gym/CartPole-v1", copies=2, seed=3)
    first, second = env.reset().obs["agent"], env.reset().obs["agent"]
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(3).obs["agent"], first)
    assert torch.equal(env.reset().obs["agent"], second)


def test_the_limit_is_a_cut_and_an_end_at_the_limit_is_an_end():
    for name, ended in (("gym/Both-v0", True), ("gym/Grey-v0", False)):
        env = make(name, copies=2)
        env.reset()
        steps = [step for _, step, _ in played(env, 8)]
        assert [bool(step.episode_terminated.all()) for step in steps] == [False] * 6 + [ended, False]
        assert [bool(step.episode_truncated.all()) for step in steps] == [False] * 6 + [not ended, False]
        assert torch.equal(steps[6].terminated, steps[6].episode_terminated[:, None])
        assert [step.reward[0, 0].item() for step in steps] == [1, 2, 3, 4, 5, 6, 7, 0]


def test_what_was_returned_does_not_change_afterwards():
    env = make("gym/MountainCarContinuous-v0", copies=2)  # shows its own array
    row = env.reset()
    kept = row.obs["agent"].clone()
    for _ in played(env, 3):
        pass
    assert torch.equal(row.obs["agent"], kept)


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_control_keeps_the_contract(name: str):
    report = check(lambda copies, seed: make(name, {"episode_limit": 12}, copies, seed), steps=30, copies=3)
    assert {finding.rule for finding in report.findings} <= {"slow"}, report.render()
    assert report.facts["resume"] == "to the bit"


OWN = ("Picture", "Grey", "Nested", "Discrete", "Multi", "Tuple", "Wide", "Both", "Endless")


@pytest.mark.parametrize("name", OWN)
def test_environments_of_any_space_keep_the_contract(name: str):
    report = check(lambda copies, seed: make(f"gym/{name}-v0", {}, copies, seed), steps=20, copies=3)
    assert {finding.rule for finding in report.findings} <= {"slow", "render-missing"}, report.render()
    assert report.facts["resume"] == "begins new episodes"


# ------------------------------------------------------------------------------------------------------------- spaces


def test_numbers_are_float32_of_one_axis_and_pictures_stay_bytes():
    assert spec_of("gym/Wide-v0").roles[0].observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert spec_of("gym/Picture-v0").roles[0].observation_space == PICTURE
    assert spec_of("gym/Grey-v0").roles[0].observation_space.shape == (6, 5, 1)
    row = make("gym/Picture-v0", copies=2).reset()
    assert (row.obs["agent"].dtype, row.obs["agent"].shape) == (torch.uint8, (2, 1, 6, 5, 3))


@pytest.mark.parametrize("name", ["Discrete", "Multi", "Tuple", "Wide"])
def test_an_environment_is_given_actions_that_its_space_contains(name: str):
    env = make(f"gym/{name}-v0", copies=2)
    env.reset()
    for _ in played(env, 20):
        pass
    space = env.spec.roles[0].action_space
    assert len(SEEN) > 30
    assert all(space.contains(action) for action in SEEN)


# -------------------------------------------------------------------------------------------------------- saved states


def future(env: VectorEnv, steps: int = 30) -> list[Any]:
    return [(step, row) for _, step, row in played(env, steps, seed=9)]


def begun(name: str, seed: int = 2) -> VectorEnv:
    """Copies in the middle of their episodes."""
    env = make(name, {"episode_limit": 9}, copies=3, seed=seed)
    env.reset()
    for _ in played(env, 11):
        pass
    return env


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("steps", [9, 11])
def test_a_saved_state_goes_on_to_the_bit(name: str, steps: int, tmp_path: Path):
    env = make(name, {"episode_limit": 9}, copies=3, seed=2)
    env.reset()
    for _ in played(env, steps):
        pass
    checkpoint.save(tmp_path / "state", {"env": env.state_dict()}, {})
    picture = env.render(1, 64)
    expected = future(env)
    state = checkpoint.load(tmp_path / "state")[0]["env"]
    for other in (env, make(name, {"episode_limit": 9}, copies=3, seed=77)):
        other.load_state_dict(state)
        np.testing.assert_array_equal(other.render(1, 64), picture)
        for one, two in zip(future(other), expected, strict=True):
            assert difference(one[0], two[0]) is None
            assert difference(one[1], two[1]) is None


@pytest.mark.parametrize("part", ["memory", "generator", "elapsed", "closing"])
def test_every_part_of_a_saved_state_is_needed(part: str):
    state, other = begun("gym/CartPole-v1").state_dict(), begun("gym/CartPole-v1", seed=5)
    for _ in played(other, 3):  # so that nothing is equal by chance
        pass
    foreign = other.state_dict()
    own, mixed = begun("gym/CartPole-v1"), begun("gym/CartPole-v1")
    for one, another in zip(state["copies"], foreign["copies"], strict=True):
        one[part] = another[part] if part != "closing" else not one[part]
    mixed.load_state_dict(state)
    assert any(difference(one, two) for one, two in zip(future(mixed), future(own), strict=True))


def test_a_state_from_before_the_first_reset_begins_the_same_episodes():
    env, other = make("gym/Pendulum-v1", copies=2, seed=1), make("gym/Pendulum-v1", copies=2, seed=8)
    other.load_state_dict(env.state_dict())
    assert torch.equal(other.reset().obs["agent"], env.reset().obs["agent"])


def test_other_environments_say_that_they_cannot_save_theirs():
    env = make("gym/Grey-v0")
    env.reset()
    assert (env.spec.exact_resume, env.state_dict()) == (False, {})
    with pytest.raises(UserError, match="cannot save its state"):
        env.load_state_dict({})


# ------------------------------------------------------------------------------------------------ names, keys, errors


def test_constructor_parameters_are_keys(tmp_path: Path):
    resolved = resolve(["env=gym/Pendulum-v1", "env.g=9", "env.episode_limit=30", "algo=random"])
    assert resolved.config.env.params.model_dump(exclude={"wrappers"}) == {"episode_limit": 30, "g": 9.0}
    assert resolved.origins["env.g"] == "command line"
    (tmp_path / "config.yaml").write_text(to_yaml(resolved))
    assert load_resolved(tmp_path / "config.yaml") == resolved
    env = make("gym/Pendulum-v1", resolved.config.env.params)
    assert env.spec.episode_limit == 30
    light, usual = (make("gym/Pendulum-v1", {"g": g}, copies=2) for g in (0.0, 10.0))
    assert torch.equal(light.reset().obs["agent"], usual.reset().obs["agent"])
    assert difference(next(played(light, 1))[2], next(played(usual, 1))[2]) == "obs['agent']"
    assert spec_of("gym/CartPole-v1").episode_limit == 500


def test_registered_parameters_are_the_defaults_of_keys():
    assert resolve(["env=gym/Endless-v0", "algo=random"]).config.env.params.model_dump()["ends"] == 5
    short = make("gym/Endless-v0", {"ends": 3})
    short.reset()
    assert [bool(step.episode_terminated) for _, step, _ in played(short, 4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("gym/CartPole-v9", {}, "did you mean 'gym/CartPole-v1'"),
        ("gym/Pendulm-v1", {}, "did you mean 'gym/Pendulum-v1'"),
        ("gym/qqqqqqqqqq", {}, "gymnasium.pprint_registry() prints all"),
        ("gym/no_such_package:World-v0", {}, "there is no module 'no_such_package': install the package"),
        ("gym/ALE/Pong-v5", {}, "is of ale-py, which is not installed: pip install ale-py"),
        ("gymvec/ALE/Pong-v5", {}, "is of ale-py, which is not installed: pip install ale-py"),
        ("gym/Nowhere/Pong-v5", {}, "nothing that is imported registers the namespace 'Nowhere' (ALE,"),
        ("gym/phys2d/CartPole-v9", {}, "did you mean 'gym/phys2d/CartPole-v"),
        ("gym/Gone-v0", {}, "No module named 'no_such_library': pip install no_such_library"),
        ("gym/Pendulum-v1", {"gg": 3}, "gym/Pendulum-v1 has no key 'env.gg': did you mean 'env.g'"),
        ("gym/Pendulum-v1", {"g": "much"}, "env.g=much: expected a number"),
        ("gym/Pendulum-v1", {"episode_limit": 0}, "env.episode_limit=0: expected a whole number at least 1"),
        ("gym/Text-v0", {}, "has no fixed shape"),
        ("gym/Unbounded-v0", {}, "infinite bounds"),
        ("gymm/Pendulum-v1", {}, "did you mean 'gym/Pendulum-v1'"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    name: str, params: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as where it is not installed
    with pytest.raises(UserError) as error:
        make(name, params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_libraries_register_survives_these_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise tests that come later in the same process would miss environments, as those of presets did."""
    (tmp_path / "gymlibrary.py").write_text(
        "import gymnasium\ngymnasium.register('Library/Swing-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    earlier = gymnasium.registry["Picture-v0"]
    with registered():
        assert gymnasium.registry["Picture-v0"] is not earlier
        make("gym/gymlibrary:Library/Swing-v0").close()
    assert gymnasium.registry["Picture-v0"] is earlier
    assert make("gym/gymlibrary:Library/Swing-v0").spec.n == 1
    del gymnasium.registry["Library/Swing-v0"]


def test_a_known_namespace_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ale_py.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('ALE/Swing-v5', PendulumEnv, max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert make("gym/ALE/Swing-v5").spec.episode_limit == 4
        with pytest.raises(UserError, match="did you mean 'gym/ALE/Swing-v5'"):
            make("gym/ALE/Swung-v5")
    finally:
        gymnasium.registry.pop("ALE/Swing-v5", None)
        sys.modules.pop("ale_py", None)


def test_a_package_s_own_id_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gymthings.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Things/Swing-v0', PendulumEnv, max_episode_steps=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not registry.is_factory("gym/gymthings:Things/Swing-v0")
    spec = make("gym/gymthings:Things/Swing-v0", {"g": 5.0}).spec
    assert (spec.name, spec.episode_limit, spec.exact_resume) == ("gym/gymthings:Things/Swing-v0", 4, True)


# ------------------------------------------------------------------------------------------------------------ pictures


def test_pictures_have_the_size_that_was_asked_for():
    env = make("gym/CartPole-v1", copies=2)
    env.reset()
    picture = env.render(1, 120)
    assert (picture.shape, picture.dtype) == ((80, 120, 3), np.uint8)
    assert not np.array_equal(picture, env.render(0, 120))


def test_an_environment_without_pictures_says_so():
    env = make("gym/Grey-v0")
    env.reset()
    with pytest.raises(UserError, match="gym/Grey-v0 draws no pictures"):
        env.render()


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.usefixtures("without_curves")
@pytest.mark.parametrize("name", ["gym/CartPole-v1", "gym/Pendulum-v1"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = ("algo=ppo", f"env={name}", "env.episode_limit=25", "algo.horizon=20", "algo.minibatches=2", "steps=300")
    assert_resumes_to_the_bit(tmp_path, monkeypatch, 120, *settings)


@pytest.mark.usefixtures("without_curves")
def test_commands_and_python_take_it_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    train(run, "algo=ppo", "env=gym/Pendulum-v1", "env.episode_limit=20", "algo.minibatches=1")
    assert main(["evaluate", str(run), "--episodes", "4", "--json"]) == 0
    assert '"env": "gym/Pendulum-v1"' in capsys.readouterr().out
    assert main(["play", str(run), "--video", str(tmp_path / "swing.gif"), "--size", "64"]) == 0
    assert (tmp_path / "swing.gif").stat().st_size > 0
    assert main(["list", "envs"]) == 0
    assert "gym/CartPole-v1" in capsys.readouterr().out
    env = gymnasium.make("Pendulum-v1")
    action = coterie.load(run).player(seed=1).act(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
