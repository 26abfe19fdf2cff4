"""Wrappers with literal numbers: observations, actions, rewards, saved states, and their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.__main__ import main
from coterie.assembly.environment import make_environment
from coterie.assembly.resolve import resolve
from coterie.checks.environment.contract import check
from coterie.config.wrappers import WrappersConfig
from coterie.core.errors import UserError
from coterie.core.observations import gray, resized
from coterie.core.seeds import seed_of
from coterie.core.specs import is_channels_first
from coterie.core.teams import image_notes
from coterie.core.types import Action
from coterie.envs.contract.traces import first_difference
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, SerialBackend
from coterie.envs.external.hosting.wrappers import (
    ActionRepeat,
    FrameStack,
    RewardTransform,
    StickyActions,
    apply_wrappers,
    stacked_space,
    transform_image,
    with_sensor_spaces,
)
from coterie.envs.make import make
from coterie.runs import checkpoints
from gymnasium_worlds import SampledEnv, played, registered, registering, results
from tape import Tape, attached, step
from tinyruns import shorten_checks, train

# --------------------------------------------------------------------------------------------------------------- frames


def stacked(mistake: bool = False, truncate: bool = False) -> list[list[list[float]]]:
    """Stacks of three frames by timestep. mistake: ends of agents are ignored; truncate: as in Tape."""
    layout = with_sensor_spaces(Tape.layout, lambda space: stacked_space(space, 3))
    stack = FrameStack(Tape(truncate), Tape.layout, 3)
    buffers = attached(stack, layout)
    if mistake:
        stack._alive = np.ones(2, np.bool_)
    stacks = [buffers.obs["all"][""].tolist()]
    for _ in range(7):
        step(stack, buffers, [0, 0])
        stacks.append(buffers.obs["all"][""].tolist())
    stack.reset(None)
    return [*stacks, buffers.obs["all"][""].tolist()]


FRAMES = [
    [[0, 0, 0], [100, 100, 100]],
    [[0, 0, 1], [100, 100, 101]],
    [[0, 1, 2], [100, 101, 102]],
    [[1, 2, 3], [0, 0, 0]],  # the second one ended
    [[2, 3, 4], [0, 0, 0]],
    [[3, 4, 5], [105, 105, 105]],  # and returns
    [[4, 5, 6], [105, 105, 106]],
    [[5, 6, 7], [105, 106, 107]],  # the final timestep
    [[0, 0, 0], [100, 100, 100]],
]


def test_frame_stacks_restart_when_an_agent_starts():
    assert stacked() == FRAMES
    assert stacked(mistake=True) != FRAMES


def test_the_stack_of_a_truncated_agent_ends_with_its_last_observation():
    assert stacked(truncate=True) == [*FRAMES[:3], [FRAMES[3][0], [101, 102, 103]], *FRAMES[4:]]


def test_every_sensor_is_stacked_and_only_images_are_transformed():
    with registered():
        params = {"wrappers": {"grayscale": True, "resize": [3, 2], "frame_stack": 4}}
        env = make("gym/Nested-v0", params, num_envs=2)
        observed = env.reset().obs["agent"]
        assert {name: (list(x.shape), x.dtype) for name, x in observed.items()} == {
            "eye": ([2, 1, 3, 2, 4], torch.uint8),
            "arm.angle": ([2, 1, 8], torch.float32),
            "arm.grip": ([2, 1, 12], torch.float32),
        }
        space = env.spec.roles[0].observation_space
        assert isinstance(space, spaces.Dict)
        assert space["eye"] == spaces.Box(0, 255, (3, 2, 4), np.uint8)


# --------------------------------------------------------------------------------------------------------------- images


def test_grayscale_is_the_luma_of_bt601():
    colors = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 10, 10]]], np.uint8)
    assert transform_image(colors, grayscale=True, size=None)[..., 0].tolist() == [[76, 150, 29, 255, 10]]
    assert transform_image(colors, grayscale=False, size=None) is colors


def test_smaller_images_are_means_of_the_covered_pixels():
    board = np.array([[0, 100, 8, 8], [100, 200, 8, 9]], np.uint8)[..., None]
    assert transform_image(board, grayscale=True, size=(1, 2))[..., 0].tolist() == [[100, 8]]
    column = np.array([[0], [30], [90]], np.uint8)[..., None]
    means = transform_image(column, grayscale=False, size=(2, 1))
    assert means[..., 0].tolist() == [[15], [90]]  # the center of 30 is in the first
    colored = np.array([[[0, 2, 4], [10, 4, 4]]], np.uint8)
    assert transform_image(colored, grayscale=False, size=(1, 1)).tolist() == [[[5, 3, 4]]]


def test_players_transform_images_as_wrappers_do():
    rng = np.random.default_rng(0)
    for _ in range(200):
        *shape, height, width = rng.integers(1, 40, 4).tolist()
        image = rng.integers(0, 256, (*shape, rng.choice([1, 2, 3, 4])), np.uint8)
        grayscale, size = bool(rng.integers(2)), (height, width) if rng.integers(2) else (height * 2, width)
        expected = transform_image(image, grayscale, size)
        found = resized(gray(image) if grayscale and image.shape[-1] == 3 else image, size)
        np.testing.assert_array_equal(found, expected)
    image = rng.integers(0, 256, (36, 60, 3), np.uint8)
    for size in ((12, 20), (9, 30), (36, 20), (4, 4)):  # divided by integers
        np.testing.assert_array_equal(resized(image, size), transform_image(image, grayscale=False, size=size))


# -------------------------------------------------------------------------------------------------------------- actions


def test_action_repeat_sums_rewards_and_stops_when_an_agent_ends():
    tape = Tape()
    repeat = ActionRepeat(tape, 2)
    buffers = attached(repeat)
    found = []
    for t in range(4):
        step(repeat, buffers, [t, 50 + t])
        found.append((tape.t, buffers.reward.tolist(), buffers.group_reward.tolist(), buffers.terminated.tolist()))
    assert found == [
        (2, [3, 30], [200], [False, False]),
        (3, [3, 30], [100], [False, True]),  # the second agent terminated
        (5, [9, 0], [200], [False, False]),  # and returned
        (7, [13, 130], [200], [True, True]),
    ]
    assert tape.actions == [[0, 50], [0, 50], [1, 51], [2, 52], [2, 52], [3, 53], [3, 53]]


def test_action_repeat_stops_when_an_agent_appears():
    tape = Tape()
    repeat = ActionRepeat(tape, 10)
    buffers = attached(repeat)
    ages = []
    for _ in range(3):
        step(repeat, buffers, [0, 0])
        ages.append(tape.t)
    assert ages == [3, 5, 7]


def test_action_repeat_equals_repeated_steps_of_gymnasium():
    env = make("gym/Pendulum-v1", {"episode_limit": 8, "wrappers": {"action_repeat": 3}}, seed=5)
    assert env.spec.episode_limit == 3
    timestep = env.reset()
    own = gymnasium.make("Pendulum-v1", max_episode_steps=8)
    observation, _ = own.reset(seed=seed_of(5, "env", "gym/Pendulum-v1", 0) >> 32)
    for t in range(3):
        np.testing.assert_array_equal(timestep.obs["agent"][0, 0], observation)
        result, timestep = env.step({"agent": Action(None, torch.tensor([[[0.5 - t / 4]]]))})
        earned, truncate = np.float32(0), False
        for _ in range(2 if t == 2 else 3):
            observation, reward, _, truncate, _ = own.step(np.float32([1 - t / 2]))
            earned += np.float32(reward)
        assert (result.reward[0, 0].item(), bool(result.episode_truncated)) == (earned, truncate)
    assert truncate


def test_sticky_actions_repeat_the_previous_action_with_the_given_probability():
    tape = Tape()
    tape.step = lambda actions: tape.actions.append(list(actions))  # agents never end
    sticky = StickyActions(tape, 0.25)
    buffers = attached(sticky)
    for t in range(4000):
        step(sticky, buffers, [t, -t])
    first, second = (np.abs(np.array(tape.actions)[:, k]) for k in (0, 1))
    again = np.array([first[1:] == first[:-1], second[1:] == second[:-1]])
    late = np.array([first, second]) < np.arange(4000)
    assert abs(late[:, 1:].mean() - 0.25) < 0.02  # three standard errors are 0.015
    assert (late[:, 1:] == again).all()
    assert abs((late[0] & late[1]).mean() - 0.25**2) < 0.012  # independently per agent


def test_the_first_action_of_an_agent_is_never_replaced():
    tape = Tape()
    sticky = StickyActions(tape, 1 - 1e-12)
    buffers = attached(sticky)
    for t in range(7):
        step(sticky, buffers, [t, 50 + t])
    sticky.reset(None)
    step(sticky, buffers, [30, 80])
    assert [given[0] for given in tape.actions] == [0] * 7 + [30]
    assert [given[1] for given in tape.actions if given[1] >= 55] == [55, 55, 80]  # acts for the first time at step 6
    assert sticky.render() is not None


def test_sticky_actions_have_a_generator_of_their_own():
    def given(seed: int) -> list[list[int]]:
        tape = Tape()
        sticky = StickyActions(tape, 0.5)
        buffers = attached(sticky, seed=seed)
        for t in range(6):
            step(sticky, buffers, [t, t])
        return tape.actions

    assert given(3) == given(3)
    assert given(3) != given(4)
    plain, stuck = (make("gym/CartPole-v1", {"wrappers": {"sticky_actions": p}}, seed=1) for p in (0, 0.5))
    assert torch.equal(plain.reset().obs["agent"], stuck.reset().obs["agent"])
    for env in (plain, stuck):
        for t in range(12):
            env.step({"agent": Action(torch.tensor([[[t % 2]]]))})
    assert torch.equal(
        plain.reset().obs["agent"], stuck.reset().obs["agent"]
    )  # the environment's random numbers are unchanged


# -------------------------------------------------------------------------------------------------------------- rewards


def test_individual_and_group_rewards_are_scaled_then_clipped():
    rewards = RewardTransform(Tape(), 0.1, 3)
    buffers = attached(rewards)
    for _ in range(4):
        step(rewards, buffers, [0, 0])
    assert buffers.reward.tolist() == [np.float32(0.4), 0]
    assert buffers.group_reward.tolist() == [3]
    with registered():
        env = make("gym/Both-v0", {"wrappers": {"reward_clip": 2.5}})
        env.reset()
        received = [
            env.step({"agent": Action(torch.zeros(1, 1, 1, dtype=torch.int64))})[0].reward.item() for _ in range(7)
        ]
    assert received == [1, 2, 2.5, 2.5, 2.5, 2.5, 2.5]


def test_evaluation_uses_the_original_rewards():
    words = ["env=gym/MountainCar-v0", "algo=random", "env.wrappers.reward_scale=0.5", "env.wrappers.frame_stack=2"]
    config = resolve(words).config
    found = {}
    for purpose in ("train", "eval", "evaluate", "play"):
        env = make_environment(config, purpose, num_envs=1, device=torch.device("cpu"))
        assert env.reset().obs["agent"].shape == (1, 1, 4)  # other wrappers apply
        found[purpose] = env.step({"agent": Action(torch.zeros(1, 1, 1, dtype=torch.int64))})[0].reward.item()
    assert found == {"train": -0.5, "eval": -1, "evaluate": -1, "play": -1}


# -------------------------------------------------------------------------------------------------- together, and saved

ALL = {"sticky_actions": 0.3, "action_repeat": 2, "frame_stack": 3, "reward_scale": 0.5, "reward_clip": 2}


def env_in_mid_episode(name: str, params: dict[str, Any], steps: int, seed: int) -> VectorEnv:
    """Three environments in mid-episode."""
    env = make(name, params, num_envs=3, seed=seed)
    env.reset()
    results(env, steps, seed=0)
    return env


@pytest.mark.parametrize("name", ["gym/CartPole-v1", "gym/Pendulum-v1"])
def test_a_wrapped_environment_resumes_bit_for_bit(name: str, tmp_path: Path):
    params = {"episode_limit": 9, "wrappers": ALL}
    env, other = env_in_mid_episode(name, params, 8, seed=2), env_in_mid_episode(name, params, 3, seed=7)
    checkpoints.save(tmp_path / "state", {"env": env.state_dict()}, {})
    expected = results(env, 12, seed=9)
    other.load_state_dict(checkpoints.load(tmp_path / "state")[0]["env"])
    assert first_difference(results(other, 12, seed=9), expected) is None


def test_wrappers_support_agents_that_die():
    layout, create = apply_wrappers(Tape.layout, Tape, WrappersConfig(**ALL))
    report = check(
        lambda num_envs, seed: BackendVectorEnv(SerialBackend(create, layout, num_envs), seed, "cpu"),
        steps=40,
        num_envs=3,
    )
    assert {finding.name for finding in report.findings} <= {"slow", "seed-ignored"}, report.render()
    assert report.summary["resume"] == "bit-for-bit"


def test_wrappers_are_applied_in_the_order_of_the_settings():
    _, create = apply_wrappers(Tape.layout, Tape, WrappersConfig(**ALL))
    outer: Any = create()
    names = []
    while not isinstance(outer, Tape):
        names.append(type(outer).__name__)
        outer = outer.inner
    assert names == ["RewardTransform", "FrameStack", "ActionRepeat", "StickyActions"]
    config = resolve(["env=gym/CarRacing-v3", "algo=random"])
    assert config.origins["env.wrappers.grayscale"] == "preset env/gym/CarRacing-v3"
    assert apply_wrappers(Tape.layout, Tape, WrappersConfig()) == (Tape.layout, Tape)


@pytest.mark.parametrize(
    ("name", "wrappers", "words"),
    [
        ("gym/CartPole-v1", {"resize": [4, 4]}, "env.wrappers.resize: 'gym/CartPole-v1' has no image observations"),
        ("gym/Gray-v0", {"grayscale": True}, "images of 'gym/Gray-v0' are [6, 5, 1] and do not have three channels"),
        ("gym/CartPole-v1", {"frame_stack": 0}, "env.wrappers.frame_stack=0: expected an integer at least 1"),
        ("gym/Gray-v0", {"resize": [0, 4]}, "env.wrappers.resize: item 0 is 0, expected a number at least 1"),
        ("gym/CartPole-v1", {"reward_clip": 0}, "env.wrappers.reward_clip=0: expected a number greater than 0"),
        (
            "gym/Hopper-v5",
            {"framestack": 2},
            "has no setting 'env.wrappers.framestack'. Did you mean 'env.wrappers.frame_",
        ),
        ("pettingzoo_worlds:isle", {"action_repeat": 2}, "which may not allow the previous action"),
    ],
)
def test_wrappers_that_do_not_fit_are_one_line_errors(name: str, wrappers: dict[str, Any], words: str):
    with registered(), pytest.raises(UserError) as error:
        make(name, {"wrappers": wrappers})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrapper_setting_is_checked_where_other_settings_are_free():
    with pytest.raises(UserError, match=r"env\.wrappers\.framestack: no such setting"):
        resolve(["env=gym/Hopper-v5", "algo=random", "env.wrappers.framestack=2"])


FIRST = [(1, 12, 10), (3, 5, 5), (4, 84, 84), (12, 84, 84), (9, 16, 16)]
LAST = [(12, 10, 3), (84, 84, 12), (5, 5, 3), (3, 4, 4), (4, 4, 4), (9, 9, 9), (12, 10), (8,)]


def image(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    with registering() as register:
        for name, space in {
            "First-v0": image((3, 12, 10)),
            "Last-v0": image((12, 10, 3)),
            "Many-v0": image((6, 12, 10)),
            "Eyes-v0": spaces.Dict(left=image((3, 12, 10)), right=image((12, 10, 3)), arm=spaces.Box(-1, 1, (2,))),
        }.items():
            kwargs: dict[str, Any] = {"observation": space, "action": spaces.Discrete(2)}
            register(name, SampledEnv, max_episode_steps=7, kwargs=kwargs)
        yield


def test_channels_that_come_first_are_recognized():
    assert all(is_channels_first(image(shape)) for shape in FIRST)
    assert not any(is_channels_first(image(shape)) for shape in LAST)
    assert not is_channels_first(spaces.Box(0, 1, (3, 12, 10)))


def test_the_start_of_a_run_and_the_check_note_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    shorten_checks(monkeypatch)
    notes = image_notes(make("gym/Eyes-v0").spec)
    assert len(notes) == 1
    assert "images of sensor left of role agent are [3, 12, 10], read as 3 rows with 10 channels" in notes[0]
    train(tmp_path / "run", "env=gym/First-v0", "algo=ippo", "progress=lines")
    assert "images of role agent are [3, 12, 10], read as 3 rows" in "".join(capfd.readouterr())
    assert main(["check-env", "gym/First-v0", "--json"]) == 0
    found = [finding["rule"] for finding in json.loads(capfd.readouterr().out)["findings"]]
    assert "channels-first" in found
    wrapped = {"wrappers": {"channels_last": True}}
    assert not image_notes(make("gym/Last-v0").spec) + image_notes(make("gym/First-v0", wrapped).spec)


@pytest.mark.parametrize("name", ["gym/Eyes-v0", "gym/Many-v0"])
def test_the_wrapper_moves_the_channels(name: str):
    plain, wrapped = make(name), make(name, {"wrappers": {"channels_last": True}})
    pairs = [(plain.reset(), wrapped.reset())]
    pairs += [(one, two) for (_, _, one), (_, _, two) in zip(played(plain, 9), played(wrapped, 9), strict=True)]
    for before, after in pairs:
        old, new = before.obs["agent"], after.obs["agent"]
        old, new = (seen if isinstance(seen, dict) else {"left": seen} for seen in (old, new))
        assert torch.equal(old.pop("left").movedim(-3, -1), new.pop("left"))
        assert all(torch.equal(old[sensor], new[sensor]) for sensor in new)
    space = wrapped.spec.roles[0].observation_space
    assert (space["left"] if isinstance(space, spaces.Dict) else space).shape[:2] == (12, 10)


def test_other_wrappers_read_the_converted_images():
    wrappers = {"channels_last": True, "grayscale": True, "resize": (6, 5), "frame_stack": 2}
    assert make("gym/First-v0", {"wrappers": wrappers}).spec.roles[0].observation_space.shape == (6, 5, 2)


@pytest.mark.parametrize("name", ["gym/Last-v0", "gym/CartPole-v1"])
def test_the_wrapper_is_refused_without_such_images(name: str):
    with pytest.raises(UserError, match=r"env.wrappers.channels_last=true: '.*' has no images \[channels"):
        make(name, {"wrappers": {"channels_last": True}})
