"""Wrappers of outside environments with literal numbers: what is shown, done, paid and saved, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymworlds import registered
from tape import Tape, placed, step

import coterie
from coterie import checkpoint
from coterie.build import environment
from coterie.config import load_resolved, resolve
from coterie.envs.check import check
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.make import make, spec_of
from coterie.envs.paths import difference, random_actions
from coterie.envs.vector import VectorEnv
from coterie.envs.wrappers.actions import Repeat, Sticky
from coterie.envs.wrappers.config import WrappersConfig
from coterie.envs.wrappers.rewards import Rewards
from coterie.envs.wrappers.views import Stack, redrawn, seen_as, stacked_space
from coterie.envs.wrappers.wrapped import wrapped
from coterie.errors import UserError
from coterie.origins import to_yaml
from coterie.seeds import seed_of
from coterie.types import Action, Row
from tinyruns import train

# -------------------------------------------------------------------------------------------------------------- frames


def stacked(mistake: bool = False, cut: bool = False) -> list[list[list[float]]]:
    """What both agents see of three frames from row to row; mistake: lives are not looked at; cut: as of the tape."""
    layout = seen_as(Tape.layout, lambda space: stacked_space(space, 3))
    stack = Stack(Tape(cut), Tape.layout, 3)
    place = placed(stack, layout)
    if mistake:
        stack._alive = np.ones(2, np.bool_)
    rows = [place.obs["all"][""].tolist()]
    for _ in range(7):
        step(stack, place, [0, 0])
        rows.append(place.obs["all"][""].tolist())
    stack.reset(None)
    return [*rows, place.obs["all"][""].tolist()]


FRAMES = [
    [[0, 0, 0], [100, 100, 100]],
    [[0, 0, 1], [100, 100, 101]],
    [[0, 1, 2], [100, 101, 102]],
    [[1, 2, 3], [0, 0, 0]],  # the second one ended
    [[2, 3, 4], [0, 0, 0]],
    [[3, 4, 5], [105, 105, 105]],  # and begins another life
    [[4, 5, 6], [105, 105, 106]],
    [[5, 6, 7], [105, 106, 107]],  # the closing row
    [[0, 0, 0], [100, 100, 100]],
]


def test_frames_stand_side_by_side_and_begin_anew_with_every_life():
    assert stacked() == FRAMES
    assert stacked(mistake=True) != FRAMES


def test_who_is_cut_alone_sees_its_last_frames_once():
    assert stacked(cut=True) == [*FRAMES[:3], [FRAMES[3][0], [101, 102, 103]], *FRAMES[4:]]


def test_stacked_spaces_are_as_many_times_as_wide():
    layout, _ = wrapped(Tape.layout, Tape, WrappersConfig(frame_stack=3))
    assert layout.spec.roles[0].observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert spec_of("gym/CarRacing-v3", {"wrappers": {"frame_stack": 2}}).roles[0].observation_space == spaces.Box(
        0, 255, (96, 96, 6), np.uint8
    )


def test_every_sensor_of_a_dict_is_stacked_and_only_pictures_are_redrawn():
    with registered():
        params = {"wrappers": {"grey": True, "resize": [3, 2], "frame_stack": 4}}
        env = make("gym/Nested-v0", params, copies=2)
        seen = env.reset().obs["agent"]
        assert {name: (list(x.shape), x.dtype) for name, x in seen.items()} == {
            "eye": ([2, 1, 3, 2, 4], torch.uint8),
            "arm.angle": ([2, 1, 8], torch.float32),
            "arm.grip": ([2, 1, 12], torch.float32),
        }
        space = env.spec.roles[0].observation_space
        assert isinstance(space, spaces.Dict)
        assert space["eye"] == spaces.Box(0, 255, (3, 2, 4), np.uint8)


# ------------------------------------------------------------------------------------------------------------ pictures


def test_grey_is_the_brightness_of_colours():
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 10, 10]]], np.uint8)
    assert redrawn(colours, grey=True, size=None)[..., 0].tolist() == [[76, 150, 29, 255, 10]]
    assert redrawn(colours, grey=False, size=None) is colours


def test_smaller_pictures_are_means_of_what_their_pixels_cover():
    board = np.array([[0, 100, 8, 8], [100, 200, 8, 9]], np.uint8)[..., None]
    assert redrawn(board, grey=True, size=(1, 2))[..., 0].tolist() == [[100, 8]]
    rows = np.array([[0], [30], [90]], np.uint8)[..., None]
    assert redrawn(rows, grey=False, size=(2, 1))[..., 0].tolist() == [[15], [90]]  # the middle of 30 lies in the first
    coloured = np.array([[[0, 2, 4], [10, 4, 4]]], np.uint8)
    assert redrawn(coloured, grey=False, size=(1, 1)).tolist() == [[[5, 3, 4]]]


def test_the_racing_preset_shows_four_grey_pictures_of_half_the_size():
    config = resolve(["env=gym/CarRacing-v3", "algo=ppo"]).config
    env = make("gym/CarRacing-v3", config.env.params, seed=3)
    env.reset()
    own = gymnasium.make("CarRacing-v3")
    frames = [own.reset(seed=seed_of(3, "env", "gym/CarRacing-v3", 0) >> 32)[0]]
    for gas in (0.5, 1.0):
        moved = np.float32([0, gas, 0.25])
        _, row = env.step({"agent": Action(None, torch.tensor([[[0, 2 * gas - 1, -0.5]]]))})
        frames.append(own.step(moved)[0])
    seen = row.obs["agent"][0, 0].numpy()
    assert (seen.shape, seen.dtype) == (((48, 48, 4)), np.uint8)
    weights = np.array([0.299, 0.587, 0.114])
    for k, frame in enumerate([frames[0], frames[0], frames[1], frames[2]]):
        means = (frame @ weights).reshape(48, 2, 48, 2).mean((1, 3))
        assert np.abs(seen[..., k] - means).max() <= 1.01  # grey and mean are rounded each
    assert not np.array_equal(seen[..., 2], seen[..., 3])


# ------------------------------------------------------------------------------------------------------------- actions


def test_repeated_actions_earn_together_and_end_with_a_life():
    tape = Tape()
    repeat = Repeat(tape, 2)
    place = placed(repeat)
    found = []
    for t in range(4):
        step(repeat, place, [t, 50 + t])
        found.append((tape.t, place.reward.tolist(), place.group_reward.tolist(), place.terminated.tolist()))
    assert found == [
        (2, [3, 30], [200], [False, False]),
        (3, [3, 30], [100], [False, True]),  # the second agent ended
        (5, [9, 0], [200], [False, False]),  # and is there again
        (7, [13, 130], [200], [True, True]),
    ]
    assert tape.given == [[0, 50], [0, 50], [1, 51], [2, 52], [2, 52], [3, 53], [3, 53]]


def test_an_agent_that_comes_is_not_given_what_it_did_not_choose():
    tape = Tape()
    repeat = Repeat(tape, 10)
    place = placed(repeat)
    ages = []
    for _ in range(3):
        step(repeat, place, [0, 0])
        ages.append(tape.t)
    assert ages == [3, 5, 7]


def test_repeated_actions_are_gymnasium_s_own_with_every_action_given_often():
    env = make("gym/Pendulum-v1", {"episode_limit": 8, "wrappers": {"action_repeat": 3}}, seed=5)
    assert env.spec.episode_limit == 3
    row = env.reset()
    own = gymnasium.make("Pendulum-v1", max_episode_steps=8)
    observation, _ = own.reset(seed=seed_of(5, "env", "gym/Pendulum-v1", 0) >> 32)
    for t in range(3):
        np.testing.assert_array_equal(row.obs["agent"][0, 0], observation)
        brought, row = env.step({"agent": Action(None, torch.tensor([[[0.5 - t / 4]]]))})
        earned, cut = np.float32(0), False
        for _ in range(2 if t == 2 else 3):
            observation, reward, _, cut, _ = own.step(np.float32([1 - t / 2]))
            earned += np.float32(reward)
        assert (brought.reward[0, 0].item(), bool(brought.episode_truncated)) == (earned, cut)
    assert cut


def test_sticky_actions_are_those_of_the_step_before_with_their_probability():
    tape = Tape()
    tape.step = lambda actions: tape.given.append(list(actions))  # nobody ever ends
    sticky = Sticky(tape, 0.25)
    place = placed(sticky)
    for t in range(4000):
        step(sticky, place, [t, -t])
    first, second = (np.abs(np.array(tape.given)[:, k]) for k in (0, 1))
    again = np.array([first[1:] == first[:-1], second[1:] == second[:-1]])
    late = np.array([first, second]) < np.arange(4000)
    assert abs(late[:, 1:].mean() - 0.25) < 0.02  # three standard errors are 0.015
    assert (late[:, 1:] == again).all()
    assert abs((late[0] & late[1]).mean() - 0.25**2) < 0.012  # each agent by itself


def test_nobody_sticks_to_what_was_done_before_its_life_or_episode():
    tape = Tape()
    sticky = Sticky(tape, 1 - 1e-12)
    place = placed(sticky)
    for t in range(7):
        step(sticky, place, [t, 50 + t])
    sticky.reset(None)
    step(sticky, place, [30, 80])
    assert [given[0] for given in tape.given] == [0] * 7 + [30]
    assert [given[1] for given in tape.given if given[1] >= 55] == [55, 55, 80]  # acts for the first time at step 6
    assert sticky.render() is not None


def test_sticky_actions_draw_from_a_generator_of_their_own():
    def given(seed: int) -> list[list[int]]:
        tape = Tape()
        sticky = Sticky(tape, 0.5)
        place = placed(sticky, seed=seed)
        for t in range(6):
            step(sticky, place, [t, t])
        return tape.given

    assert given(3) == given(3)
    assert given(3) != given(4)
    plain, stuck = (make("gym/CartPole-v1", {"wrappers": {"sticky_actions": p}}, seed=1) for p in (0, 0.5))
    assert torch.equal(plain.reset().obs["agent"], stuck.reset().obs["agent"])
    for env in (plain, stuck):
        for t in range(12):
            env.step({"agent": Action(torch.tensor([[[t % 2]]]))})
    assert torch.equal(plain.reset().obs["agent"], stuck.reset().obs["agent"])  # the environment's draws are its own


# ------------------------------------------------------------------------------------------------------------- rewards


def test_rewards_are_scaled_then_clipped_a_group_s_too():
    rewards = Rewards(Tape(), 0.1, 3)
    place = placed(rewards)
    for _ in range(4):
        step(rewards, place, [0, 0])
    assert place.reward.tolist() == [np.float32(0.4), 0]
    assert place.group_reward.tolist() == [3]
    with registered():
        env = make("gym/Both-v0", {"wrappers": {"reward_clip": 2.5}})
        env.reset()
        paid = [env.step({"agent": Action(torch.zeros(1, 1, 1, dtype=torch.int64))})[0].reward.item() for _ in range(7)]
    assert paid == [1, 2, 2.5, 2.5, 2.5, 2.5, 2.5]


def test_evaluations_count_rewards_as_the_environment_pays_them():
    words = ["env=gym/MountainCar-v0", "algo=random", "env.wrappers.reward_scale=0.5", "env.wrappers.frame_stack=2"]
    config = resolve(words).config
    found = {}
    for purpose in ("train", "eval", "evaluate", "play"):
        env = environment(config, 1, purpose, torch.device("cpu"))
        assert env.reset().obs["agent"].shape == (1, 1, 4)  # all else is the same
        found[purpose] = env.step({"agent": Action(torch.zeros(1, 1, 1, dtype=torch.int64))})[0].reward.item()
    assert found == {"train": -0.5, "eval": -1, "evaluate": -1, "play": -1}


# ------------------------------------------------------------------------------------------------ together, and saved

ALL = {"sticky_actions": 0.3, "action_repeat": 2, "frame_stack": 3, "reward_scale": 0.5, "reward_clip": 2}


def play(env: VectorEnv, steps: int, seed: int) -> list[Any]:
    """What random actions bring, and the rows behind."""
    generator = torch.Generator().manual_seed(seed)
    ones = torch.ones(env.copies, env.spec.n)
    anyone = Row({}, {}, {}, ones, ones, ones[:, 0])
    return [part for _ in range(steps) for part in env.step(random_actions(env.spec, anyone, generator))]


def begun(name: str, params: dict[str, Any], steps: int, seed: int) -> VectorEnv:
    """Three copies in the middle of their episodes."""
    env = make(name, params, copies=3, seed=seed)
    env.reset()
    play(env, steps, seed=0)
    return env


@pytest.mark.parametrize("name", ["gym/CartPole-v1", "gym/Pendulum-v1"])
def test_a_wrapped_environment_goes_on_to_the_bit(name: str, tmp_path: Path):
    params = {"episode_limit": 9, "wrappers": ALL}
    env, other = begun(name, params, 8, seed=2), begun(name, params, 3, seed=7)
    checkpoint.save(tmp_path / "state", {"env": env.state_dict()}, {})
    expected = play(env, 12, seed=9)
    other.load_state_dict(checkpoint.load(tmp_path / "state")[0]["env"])
    assert all(difference(one, two) is None for one, two in zip(play(other, 12, seed=9), expected, strict=True))


@pytest.mark.parametrize(("part", "depth"), [("frames", 1), ("was", 1), ("generator", 3), ("done", 3)])
def test_every_part_of_a_wrapper_s_state_is_needed(part: str, depth: int):
    params = {"episode_limit": 30, "wrappers": ALL | {"sticky_actions": 0.9}}

    def lived(mistake: bool) -> list[Any]:
        env, foreign = begun("gym/Pendulum-v1", params, 5, seed=2), begun("gym/Pendulum-v1", params, 6, seed=7)
        state = env.state_dict()
        for own, wrong in zip(state["copies"], foreign.state_dict()["copies"], strict=True):
            for _ in range(depth):  # rewards, frames, repeated, sticky
                own, wrong = own["inner"], wrong["inner"]
            if mistake:
                own[part] = ~wrong[part] if part == "was" else wrong[part]
        env.load_state_dict(state)
        return play(env, 9, seed=9)

    same, wrong = lived(False), lived(True)
    assert any(difference(one, two) for one, two in zip(same, wrong, strict=True))


@pytest.mark.parametrize(
    ("name", "wrappers", "resume"),
    [
        ("gym/CartPole-v1", ALL, "to the bit"),
        ("gym/Pendulum-v1", ALL, "to the bit"),
        ("gym/Picture-v0", {"grey": True, "resize": [3, 3], "frame_stack": 2}, "begins new episodes"),
        ("gym/Nested-v0", {"frame_stack": 2, "action_repeat": 2}, "begins new episodes"),
        ("gym/Tuple-v0", {"frame_stack": 2, "sticky_actions": 0.5}, "begins new episodes"),
    ],
)
def test_wrapped_environments_keep_the_contract(name: str, wrappers: dict[str, Any], resume: str):
    with registered():
        params = {"episode_limit": 7, "wrappers": wrappers}
        report = check(lambda copies, seed: make(name, params, copies, seed), steps=20, copies=3)
    assert {finding.rule for finding in report.findings} <= {"slow", "render-missing"}, report.render()
    assert report.facts["resume"] == resume


def test_agents_that_die_are_wrapped_as_well():
    layout, create = wrapped(Tape.layout, Tape, WrappersConfig(**ALL))
    report = check(lambda copies, seed: HostedEnv(Alone(create, layout, copies), seed, "cpu"), steps=40, copies=3)
    assert {finding.rule for finding in report.findings} <= {"slow", "seed-ignored"}, report.render()
    assert report.facts["resume"] == "to the bit"


def test_the_order_is_that_of_the_keys():
    _, create = wrapped(Tape.layout, Tape, WrappersConfig(**ALL))
    outer: Any = create()
    names = []
    while not isinstance(outer, Tape):
        names.append(type(outer).__name__)
        outer = outer.inner
    assert names == ["Rewards", "Stack", "Repeat", "Sticky"]
    config = resolve(["env=gym/CarRacing-v3", "algo=random"])
    assert list(config.config.env.params.model_dump()["wrappers"]) == [
        *("sticky_actions", "action_repeat", "grey", "resize", "frame_stack", "reward_scale", "reward_clip")
    ]
    assert config.origins["env.wrappers.grey"] == "preset env/gym/CarRacing-v3"
    assert wrapped(Tape.layout, Tape, WrappersConfig()) == (Tape.layout, Tape)


def test_a_player_sees_wrapped_pictures_as_the_policy_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    with registered():
        train(tmp_path / "run", "algo=ppo", "env=gym/Picture-v0", "env.wrappers.frame_stack=2")
        loaded = coterie.load(tmp_path / "run")
    seen = np.random.default_rng(0).integers(256, size=(40, 6, 5, 6), dtype=np.uint8)
    policy: Any = loaded.policies["agent"]
    generator = torch.Generator().manual_seed(0)
    for parameter in policy.module.parameters():
        parameter.data.normal_(0, 0.3, generator=generator)
    ones = torch.ones(40, 1, dtype=torch.bool)
    row = Row({"agent": torch.from_numpy(seen)[:, None]}, {}, {}, ones, ones, ones[:, 0])
    with torch.inference_mode():
        actions, _, _ = policy.act(row, policy.start(40), policy.noise(1, 40, generator)[0], "greedy")
    expected = actions["agent"].discrete[:, 0, 0].tolist()
    player = loaded.player(mode="greedy")
    assert [player.act(picture) for picture in seen] == expected
    assert set(expected) == {0, 1}


def test_wrappers_are_saved_with_the_configuration(tmp_path: Path):
    words = ["env=gym/CarRacing-v3", "algo=random", "env.wrappers.resize=[20,30]", "env.wrappers.reward_clip=2"]
    resolved = resolve(words)
    (tmp_path / "config.yaml").write_text(to_yaml(resolved))
    assert load_resolved(tmp_path / "config.yaml") == resolved
    assert spec_of("gym/CarRacing-v3", resolved.config.env.params).roles[0].observation_space.shape == (20, 30, 4)


@pytest.mark.parametrize(
    ("name", "wrappers", "words"),
    [
        ("gym/CartPole-v1", {"grey": True}, "env.wrappers.grey=true: 'gym/CartPole-v1' shows no pictures"),
        ("gym/CartPole-v1", {"resize": [4, 4]}, "env.wrappers.resize: 'gym/CartPole-v1' shows no pictures to resize"),
        ("gym/Grey-v0", {"grey": True}, "the pictures of 'gym/Grey-v0' are [6, 5, 1], not of three colours"),
        ("gym/CartPole-v1", {"frame_stack": 0}, "env.wrappers.frame_stack=0: expected a whole number at least 1"),
        ("gym/Grey-v0", {"resize": [0, 4]}, "env.wrappers.resize=0: expected a number at least 1"),
        ("gym/Grey-v0", {"resize": [4]}, "env.wrappers.resize=[4]: expected at least 2"),
        ("gym/CartPole-v1", {"sticky_actions": 1}, "env.wrappers.sticky_actions=1: expected a number at least 0 and"),
        ("gym/CartPole-v1", {"reward_clip": 0}, "env.wrappers.reward_clip=0: expected a number greater than 0"),
        ("gym/Hopper-v5", {"framestack": 2}, "has no key 'env.wrappers.framestack': did you mean 'env.wrappers.frame_"),
        ("zooworlds:isle", {"action_repeat": 2}, "the one before may not be among them"),
        ("zooworlds:isle", {"sticky_actions": 0.1}, "the one before may not be among them"),
    ],
)
def test_wrappers_that_do_not_fit_are_refused_in_one_line(name: str, wrappers: dict[str, Any], words: str):
    with registered(), pytest.raises(UserError) as error:
        make(name, {"wrappers": wrappers})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrapper_s_key_is_checked_where_other_keys_are_free():
    with pytest.raises(UserError, match=r"no key 'env\.wrappers\.framestack'"):
        resolve(["env=gym/Hopper-v5", "algo=random", "env.wrappers.framestack=2"])
