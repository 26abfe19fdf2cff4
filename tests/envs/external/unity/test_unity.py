"""Unity frames, written by hand, become timesteps and steps. tests/unity tests the real protocol."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

import coterie
from coterie.config.samplers import parse_sampler
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec
from coterie.core.types import Action, Step, Timestep
from coterie.envs.external.hosting.instance import Layout
from coterie.envs.external.hosting.randomized import EnvFactory
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, SerialBackend
from coterie.envs.external.unity.behaviors import behaviors
from coterie.envs.external.unity.client import Frame, UnityClient
from coterie.envs.external.unity.environment import UnityAgent, UnityInstance, UnityOptions, group_rewards
from coterie.envs.external.unity.framing import pack_message, unpack_message

WALKER = {"name": "Walker?team=0", "observations": [{"name": "Body", "shape": [1], "image": False}]}
WALKER |= {"continuous": 0, "discrete": [3]}


class AgentInfo(NamedTuple):
    """An agent in a frame."""

    id: int
    value: float
    reward: float = 0.0
    group: int = 0
    group_reward: float = 0.0
    disallowed: tuple[bool, ...] = (False, False, False)


def frame(
    requesting: tuple[AgentInfo, ...] = (),
    ended: tuple[AgentInfo, ...] = (),
    interrupted: tuple[AgentInfo, ...] = (),
    new: bool = False,
) -> Frame:
    """A frame of the only behavior: agents that request a decision, ended, or were interrupted."""
    arrays: dict[str, np.ndarray] = {
        "t interrupted 0": np.array([False] * len(ended) + [True] * len(interrupted), np.bool_)
    }
    for letter, content in (("d", requesting), ("t", ended + interrupted)):
        arrays[f"{letter} id 0"] = np.array([one.id for one in content], np.int64)
        arrays[f"{letter} group 0"] = np.array([one.group for one in content], np.int64)
        arrays[f"{letter} reward 0"] = np.array([one.reward for one in content], np.float32)
        arrays[f"{letter} group_reward 0"] = np.array([one.group_reward for one in content], np.float32)
        arrays[f"{letter} obs 0 0"] = np.array([[one.value] for one in content], np.float32).reshape(-1, 1)
    if requesting:
        arrays["d mask 0"] = np.array([one.disallowed for one in requesting])
    return Frame([WALKER] if new else [], arrays)


class ScriptedClient:
    """Replaces the client: returns given frames, and records the calls."""

    def __init__(self, *frames: Frame):
        self.frames = list(frames)
        self.received: list[Any] = []

    def reset(self) -> Frame:
        self.received.append("reset")
        return self.frames.pop(0)

    def set_parameters(self, values: dict[str, float]) -> None:
        self.received.append(values)

    def step(self, actions: dict[str, np.ndarray]) -> Frame:
        self.received.append(actions["discrete 0"][:, 0].tolist() if actions else [])
        return self.frames.pop(0)

    def close(self) -> None:
        self.received.append("close")


def scripted(
    script: ScriptedClient, *slots: int, limit: int | None = None, shared: bool = True, described: Any = (WALKER,)
) -> BackendVectorEnv:
    """An environment of the described behaviors with the given numbers of slots."""
    found_behaviors = behaviors(list(described), list(slots), None)
    roles = tuple(k.role for k in found_behaviors)
    spec = EnvSpec(
        "unity/script",
        roles,
        {},
        agents_can_die=sum(slots) > 1,
        has_group_reward=True,
        episode_limit=limit,
        exact_resume=False,
    )
    client = cast(UnityClient, script)
    layout = Layout(spec, {k.role.name: k.observer for k in found_behaviors}, tuple(role.name for role in roles))
    options = UnityOptions(reseed=False, episode_limit=limit, shared_groups=shared, has_group_reward=True)
    make_instance = lambda: UnityInstance("unity/script", found_behaviors, lambda: client, options, client=client)  # noqa: E731
    return BackendVectorEnv(SerialBackend(make_instance, layout, 1), 0, "cpu")


def do(env: BackendVectorEnv, *choices: int) -> tuple[Step, Timestep]:
    return env.step({"Walker": Action(discrete=torch.tensor(choices).reshape(1, -1, 1))})


def obs_of(timestep: Timestep) -> list[float]:
    return timestep.obs["Walker"][0, :, 0].tolist()


# --------------------------------------------------------------------------------------------------------------- frames


def test_an_end_shows_the_last_observation_and_the_next_agent_starts_one_step_later():
    script = ScriptedClient(
        frame((AgentInfo(0, 0.5),), new=True),
        frame((AgentInfo(0, 0.6, reward=1),)),
        frame(ended=(AgentInfo(0, 0.7, reward=2),), requesting=(AgentInfo(1, 0.1),)),
        frame((AgentInfo(1, 0.2, reward=3),)),
    )
    env = scripted(script, 1)
    assert obs_of(env.reset()) == pytest.approx([0.5])
    step, timestep = do(env, 2)
    assert (step.reward.item(), obs_of(timestep)) == (1, pytest.approx([0.6]))
    step, timestep = do(env, 1)
    assert step.terminated.all()
    assert step.episode_terminated.all()
    assert (step.reward.item(), obs_of(timestep), timestep.acted.item()) == (2, pytest.approx([0.7]), False)
    step, timestep = do(env, 0)
    assert (step.reward.item(), obs_of(timestep), timestep.first.item()) == (0, pytest.approx([0.1]), True)
    step, timestep = do(env, 2)
    assert (step.reward.item(), obs_of(timestep)) == (3, pytest.approx([0.2]))
    assert script.received == ["reset", [2], [1], [2]]  # the final timestep needs no frame, and its action is not sent


def test_a_step_lasts_until_all_other_agents_request_a_decision():
    script = ScriptedClient(
        frame((AgentInfo(0, 0), AgentInfo(1, 0)), new=True),
        frame(ended=(AgentInfo(0, 0.3, reward=1),)),
        frame((AgentInfo(1, 0.4, reward=2), AgentInfo(2, 0.9))),
        frame((AgentInfo(1, 0.5), AgentInfo(2, 0.8, reward=7))),
        frame((AgentInfo(1, 0.6), AgentInfo(2, 0.7, reward=5))),
    )
    env = scripted(script, 2)
    env.reset()
    step, timestep = do(env, 1, 2)
    assert step.reward.tolist() == [[1, 2]]
    assert step.terminated.tolist() == [[True, False]]
    assert not step.episode_terminated.any()
    assert timestep.alive.tolist() == [[False, True]]
    assert obs_of(timestep) == pytest.approx([0, 0.4])
    step, timestep = do(env, 1, 2)  # the new agent has no slot yet, and its action is the first choice
    assert step.reward.tolist() == [[0, 0]]
    assert timestep.alive.tolist() == [[True, True]]
    assert timestep.first.tolist() == [[True, False]]
    assert obs_of(timestep) == pytest.approx([0.8, 0.5])
    step, _ = do(env, 1, 2)
    assert step.reward.tolist() == [[5, 0]]
    assert script.received == ["reset", [1, 2], [], [2, 0], [2, 1]]


def test_an_interrupted_agent_truncates_the_episode_without_a_reset_of_unity():
    script = ScriptedClient(
        frame((AgentInfo(0, 0), AgentInfo(1, 0)), new=True),
        frame((AgentInfo(1, 0.4), AgentInfo(2, 0.9)), interrupted=(AgentInfo(0, 0.3),)),
        frame((AgentInfo(1, 0.5), AgentInfo(2, 0.8))),
    )
    env = scripted(script, 2)
    env.reset()
    step, timestep = do(env, 1, 2)
    assert step.truncated.tolist() == [[True, True]]
    assert step.episode_truncated.item()
    assert not step.terminated.any()
    assert timestep.alive.all()  # both values are bootstrapped from their last observations
    assert obs_of(timestep) == pytest.approx([0.3, 0.4])
    _, timestep = do(env, 0, 0)
    assert timestep.first.all()
    assert obs_of(timestep) == pytest.approx([0.4, 0.9])
    do(env, 1, 2)
    assert script.received == ["reset", [1, 2], [1, 2]]


def test_at_the_limit_the_episode_is_truncated_and_unity_reset():
    script = ScriptedClient(
        frame((AgentInfo(0, 0),), new=True),
        frame((AgentInfo(0, 0.1),)),
        frame((AgentInfo(0, 0.2),)),
        frame((AgentInfo(5, 0.3),), new=True),
    )
    env = scripted(script, 1, limit=2)
    env.reset()
    do(env, 0)
    step, timestep = do(env, 0)
    assert step.episode_truncated.item()
    assert obs_of(timestep) == pytest.approx([0.2])
    _, timestep = do(env, 0)
    assert obs_of(timestep) == pytest.approx([0.3])
    assert script.received == ["reset", [0], [0], "reset"]


def test_parameters_are_sent_before_a_reset():
    script = ScriptedClient(
        frame((AgentInfo(7, 0.0),), new=True), frame((AgentInfo(7, 1.0),)), frame((AgentInfo(8, 0.0),), new=True)
    )
    env = scripted(script, 1, limit=1)
    backend: Any = env.backend
    backend.factory = EnvFactory("unity/script", {})
    env.set_samplers({"gravity": parse_sampler(9.5), "wind": parse_sampler({"integers": [3, 3]})})
    env.reset()
    do(env, 0)
    assert script.received == [{"gravity": 9.5, "wind": 3.0}, "reset", [0]]
    env.set_samplers({"wind": parse_sampler(4)})
    do(env, 0)
    assert script.received[3:] == [{"gravity": 9.5, "wind": 4.0}, "reset"]


def test_unity_accepts_any_numeric_parameter(build: str):
    factory = EnvFactory(f"unity/{build}", {})
    layout: Any = None
    factory.check(layout, {"anything": parse_sampler({"uniform": [0, 1]})})
    with pytest.raises(UserError, match=r"parameter 'level' of unity/.* is text. Give a number"):
        factory.check(layout, {"level": parse_sampler("hard")})


def test_an_agent_that_requests_more_often_repeats_its_action_and_sums_rewards():
    script = ScriptedClient(
        frame((AgentInfo(0, 0), AgentInfo(1, 0)), new=True),
        frame((AgentInfo(0, 0.1, reward=1),)),
        frame((AgentInfo(0, 0.2, reward=1, disallowed=(False, False, True)),)),
        frame((AgentInfo(0, 0.3, reward=1), AgentInfo(1, 0.9, reward=10))),
    )
    env = scripted(script, 2)
    env.reset()
    step, timestep = do(env, 2, 1)
    assert step.reward.tolist() == [[3, 10]]
    assert obs_of(timestep) == pytest.approx([0.3, 0.9])
    assert script.received == ["reset", [2, 1], [2], [0]]  # a choice that is now disallowed is replaced


def test_disallowed_choices_are_masked():
    script = ScriptedClient(
        frame((AgentInfo(0, 0, disallowed=(True, False, False)),), new=True),
        frame((AgentInfo(0, 0, disallowed=(True,) * 3),)),
    )
    env = scripted(script, 1)
    assert env.reset().action_mask["Walker"].tolist() == [[[False, True, True]]]
    assert do(env, 1)[1].action_mask["Walker"].tolist() == [[[True, False, False]]]  # one choice is always allowed


# --------------------------------------------------------------------------------------------------------------- groups


def test_a_group_reward_is_given_once():
    script = ScriptedClient(
        frame((AgentInfo(0, 0, group=1), AgentInfo(1, 0, group=1)), new=True),
        frame((AgentInfo(1, 0, group=1, group_reward=2),), ended=(AgentInfo(0, 0, group=1, group_reward=2),)),
        frame(ended=(AgentInfo(1, 0, reward=0.5, group=1, group_reward=3),)),
    )
    env = scripted(script, 2)
    env.reset()
    step, _ = do(env, 0, 0)
    assert step.group_reward.tolist() == [[2]]  # not 4
    step, timestep = do(env, 0, 0)
    assert step.group_reward.tolist() == [[3]]
    assert step.reward.tolist() == [[0, 0.5]]
    assert step.episode_terminated.item()
    assert not timestep.alive[0, 0]


def test_the_group_reward_is_that_of_the_member_with_the_latest_frame():
    found_behaviors = behaviors([WALKER], [2], None)
    left, stayed = (
        UnityAgent(found_behaviors[0], k, group=3, group_reward=rewarded, last_frame=k)
        for k, rewarded in enumerate((1.0, 5.0))
    )
    assert group_rewards([left, stayed]) == {("Walker", 3): 5.0}
    assert group_rewards([stayed, left]) == {("Walker", 3): 5.0}


def test_two_groups_of_one_side_raise_an_error_unless_rewards_are_per_agent():
    def frames() -> ScriptedClient:
        two = (AgentInfo(0, 0, group=1), AgentInfo(1, 0, group=2))
        rewarded = (AgentInfo(0, 0, reward=1, group=1, group_reward=2), AgentInfo(1, 0, group=2, group_reward=5))
        return ScriptedClient(frame(two, new=True), frame(rewarded))

    env = scripted(frames(), 2)
    env.reset()
    with pytest.raises(UserError, match=r"two groups of 'Walker' exist at the same time.*env\.groups=own"):
        do(env, 0, 0)
    env = scripted(frames(), 2, shared=False)
    env.reset()
    step, _ = do(env, 0, 0)
    assert step.reward.tolist() == [[3, 5]]
    assert step.group_reward.tolist() == [[0]]


def test_slots_stay_empty_for_one_timestep_after_a_whole_group_ended():
    """Otherwise values would be bootstrapped from the next group's episode."""
    other = {**WALKER, "name": "Walker?team=1"}
    both = [WALKER, other]

    def both_sides(
        requesting: tuple[AgentInfo, ...],
        others: tuple[AgentInfo, ...],
        ended: tuple[AgentInfo, ...] = (),
        new: bool = False,
    ) -> Frame:
        one, two = frame(requesting, ended), frame(others)
        arrays = one.arrays | {name.replace(" 0", " 1", 1): x for name, x in two.arrays.items() if "obs" not in name}
        arrays |= {"d obs 1 0": two.arrays["d obs 0 0"], "t obs 1 0": two.arrays["t obs 0 0"]}
        return Frame(both if new else [], arrays)

    script = ScriptedClient(
        both_sides((AgentInfo(0, 0),), (AgentInfo(1, 0),), new=True),
        both_sides((AgentInfo(2, 0.9),), (AgentInfo(1, 0.1),), ended=(AgentInfo(0, 0.5),)),
        both_sides((AgentInfo(2, 0.8),), (AgentInfo(1, 0.2),)),
    )
    env = scripted(script, 2, 1, described=both)
    env.reset()
    act = {
        "Walker_team0": Action(discrete=torch.zeros(1, 2, 1, dtype=torch.int64)),
        "Walker_team1": Action(discrete=torch.zeros(1, 1, 1, dtype=torch.int64)),
    }
    _, timestep = env.step(act)
    assert timestep.alive.tolist() == [[False, False, True]]  # although the second slot is free
    _, timestep = env.step(act)
    assert timestep.alive.tolist() == [[True, False, True]]


def test_too_few_slots_raise_an_error_with_the_fix():
    env = scripted(ScriptedClient(frame((AgentInfo(0, 0), AgentInfo(1, 0)), new=True)), 1)
    with pytest.raises(UserError, match=r"more agents of role Walker .* its 1 slots. Set env\.max_agents\.Walker=2"):
        env.reset()


def test_a_stuck_agent_is_named():
    script = ScriptedClient(
        frame((AgentInfo(0, 0), AgentInfo(1, 0)), new=True), *(frame((AgentInfo(0, 0),)) for _ in range(1000))
    )
    env = scripted(script, 2)
    env.reset()
    with pytest.raises(UserError, match="'Walker\\?team=0' has neither requested a decision nor ended"):
        do(env, 0, 0)


# ------------------------------------------------------------------------------------------------------------ behaviors


def description(name: str, sensors: list[tuple[str, list[int], bool]], continuous: int = 0, discrete: Any = ()) -> dict:
    obs_of = [{"name": label, "shape": shape, "image": image} for label, shape, image in sensors]
    return {"name": name, "observations": obs_of, "continuous": continuous, "discrete": list(discrete)}


def test_team_ids_are_sides_and_roles_are_ordered_by_side():
    plain = [("Rays", [2], False)]
    found = [description(f"{name}?team={team}", plain, 1) for name in ("Striker", "Goalie") for team in (1, 0)]
    make_instance = behaviors(found, [2, 2, 1, 1], None)
    assert [(b.role.name, b.role.group, b.role.n) for b in make_instance] == [
        ("Striker_team0", "team0", 2), ("Goalie_team0", "team0", 1),
        ("Striker_team1", "team1", 2), ("Goalie_team1", "team1", 1),
    ]  # fmt: skip
    assert [list(b.slots) for b in make_instance] == [[0, 1], [2], [3, 4], [5]]
    assert behaviors(found, [2, 2, 1, 1], {"Goalie_team1": 4})[3].role.n == 4
    with pytest.raises(UserError, match=r"env\.max_agents\.Goalie: there is no such role. Did you mean 'Goalie_team"):
        behaviors(found, [2, 2, 1, 1], {"Goalie": 4})


def test_vectors_are_concatenated_and_images_are_separate():
    found = [("Rays", [3], False), ("My Camera", [4, 5, 3], True), ("Others", [2, 2], False)]
    (make_instance,) = behaviors([description("Eyes", found, 2, (3, 2))], [1], None)
    space = make_instance.role.observation_space
    assert isinstance(space, spaces.Dict)
    assert {name: part.shape for name, part in space.spaces.items()} == {"numbers": (7,), "My_Camera": (4, 5, 3)}
    assert make_instance.role.action.choices == (3, 2)
    assert make_instance.role.action.continuous == 2
    image = np.full((4, 5, 3), 9, np.uint8)
    shown = make_instance.observation([np.arange(3), image, np.array([7, 7, 7, 8])])
    assert shown["numbers"].tolist() == [0, 1, 2, 7, 7, 7, 8]
    assert shown["My_Camera"] is image
    numbers, choices = make_instance.action((np.array([2, 1]), np.array([0.5, -1], np.float32)))
    assert (numbers.tolist(), choices.tolist()) == ([0.5, -1], [2, 1])


@pytest.mark.parametrize(
    ("acts", "space"),
    [
        ((2, ()), spaces.Box(-1, 1, (2,), np.float32)),
        ((0, (4,)), spaces.Discrete(4)),
        ((0, (4, 2)), spaces.MultiDiscrete([4, 2])),
        ((1, (4,)), spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (1,), np.float32)))),
    ],
)
def test_action_spaces_follow_the_action_spec(acts: tuple[int, tuple[int, ...]], space: spaces.Space):
    (make_instance,) = behaviors([description("A", [("S", [1], False)], *acts)], [1], None)
    assert make_instance.role.action_space == space


# --------------------------------------------------------------------------------------------------------- the messages


def reader(content: bytes) -> Callable[[int], bytes]:
    return io.BytesIO(content).read


def test_a_message_is_decoded_unchanged():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.zeros((0, 4), np.bool_), "c": np.array(7)}
    content, found = unpack_message(reader(pack_message({"command": "step", "n": 3}, arrays)))
    assert content == {"command": "step", "n": 3}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)


def test_invalid_messages_raise_an_error():
    with pytest.raises(ValueError, match="not a valid message"):
        unpack_message(lambda size: b"\xff" * size)
    objects = pack_message({}, {"a": np.zeros(1)}).replace(b"<f8", b"|O8")
    with pytest.raises(ValueError):
        unpack_message(reader(objects))


@pytest.fixture
def build(tmp_path: Path) -> str:
    path = tmp_path / "game.x86_64"
    path.touch()
    return str(path)


def test_without_an_interpreter_for_unity_the_error_explains_how_to_create_it(
    build: str, tmp_path: Path, monkeypatch: Any
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_UNITY_PYTHON", raising=False)
    with pytest.raises(
        UserError, match=r"no \.venv-unity.*\. Create it with python -m coterie\.envs\.external\.unity\.install"
    ):
        coterie.make("unity/game", file=build)
    with pytest.raises(UserError, match=r"env\.python: there is no nowhere/python\. Create it with python -m coterie"):
        coterie.make("unity/game", file=build, python="nowhere/python")


def test_an_interpreter_without_mlagents_is_an_error_with_the_fix(build: str):
    with pytest.raises(
        UserError, match=r"has no module 'mlagents_envs'.*python -m coterie\.envs\.external\.unity\.install"
    ):
        coterie.make("unity/game", file=build, python=sys.executable)


def test_a_missing_build_is_an_error():
    with pytest.raises(UserError, match=r"there is no Unity build 'nowhere'\. Set its executable with env\.file=PATH"):
        coterie.make("unity/nowhere")
