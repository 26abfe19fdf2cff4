"""Unity's frames as rows and steps, from frames written by hand; the real protocol is tried in tests/unity."""

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
from coterie.config import resolve
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.hosting.instance import Layout
from coterie.envs.hosting.varied import Kind
from coterie.envs.samplers import sampler
from coterie.envs.unity.behaviours import behaviours
from coterie.envs.unity.framing import packed, unpacked
from coterie.envs.unity.lives import Life, group_rewards
from coterie.envs.unity.player import Frame, Player
from coterie.envs.unity.scene import Scene
from coterie.errors import UserError
from coterie.types import Action, EnvSpec, Row, Step

WALKER = {"name": "Walker?team=0", "observations": [{"name": "Body", "shape": [1], "picture": False}]}
WALKER |= {"continuous": 0, "discrete": [3]}


class One(NamedTuple):
    """What an agent says in a frame."""

    id: int
    seen: float
    reward: float = 0.0
    group: int = 0
    group_reward: float = 0.0
    barred: tuple[bool, ...] = (False, False, False)


def frame(
    asks: tuple[One, ...] = (), ends: tuple[One, ...] = (), cut: tuple[One, ...] = (), new: bool = False
) -> Frame:
    """A frame of the only behaviour. asks: who asks for a decision; ends: who ended; cut: who was interrupted."""
    arrays: dict[str, np.ndarray] = {"t interrupted 0": np.array([False] * len(ends) + [True] * len(cut), np.bool_)}
    for letter, said in (("d", asks), ("t", ends + cut)):
        arrays[f"{letter} id 0"] = np.array([one.id for one in said], np.int64)
        arrays[f"{letter} group 0"] = np.array([one.group for one in said], np.int64)
        arrays[f"{letter} reward 0"] = np.array([one.reward for one in said], np.float32)
        arrays[f"{letter} group_reward 0"] = np.array([one.group_reward for one in said], np.float32)
        arrays[f"{letter} obs 0 0"] = np.array([[one.seen] for one in said], np.float32).reshape(-1, 1)
    if asks:
        arrays["d mask 0"] = np.array([one.barred for one in asks])
    return Frame([WALKER] if new else [], arrays)


class Script:
    """In a player's place: frames in their order, and what it was told."""

    def __init__(self, *frames: Frame):
        self.frames = list(frames)
        self.told: list[Any] = []

    def reset(self) -> Frame:
        self.told.append("reset")
        return self.frames.pop(0)

    def set_parameters(self, values: dict[str, float]) -> None:
        self.told.append(values)

    def step(self, actions: dict[str, np.ndarray]) -> Frame:
        self.told.append(actions["discrete 0"][:, 0].tolist() if actions else [])
        return self.frames.pop(0)

    def close(self) -> None:
        self.told.append("close")


def scripted(script: Script, slots: int, limit: int | None = None, shared: bool = True) -> HostedEnv:
    kinds = behaviours([WALKER], [slots], None)
    spec = EnvSpec("unity/script", tuple(k.role for k in kinds), {}, mortal=slots > 1, paid_by_group=True,
                   episode_limit=limit, exact_resume=False)  # fmt: skip
    player = cast(Player, script)
    layout = Layout(spec, {k.role.name: k.observer for k in kinds}, ("Walker",))
    made = lambda: Scene("unity/script", kinds, lambda: player, player, False, limit, shared, grouped=True)  # noqa: E731
    return HostedEnv(Alone(made, layout, 1), 0, "cpu")


def do(env: HostedEnv, *choices: int) -> tuple[Step, Row]:
    return env.step({"Walker": Action(discrete=torch.tensor(choices).reshape(1, -1, 1))})


def seen(row: Row) -> list[float]:
    return row.obs["Walker"][0, :, 0].tolist()


# -------------------------------------------------------------------------------------------------------------- frames


def test_an_end_shows_the_true_last_observation_and_the_next_life_waits_for_the_next_row():
    script = Script(
        frame((One(0, 0.5),), new=True),
        frame((One(0, 0.6, reward=1),)),
        frame(ends=(One(0, 0.7, reward=2),), asks=(One(1, 0.1),)),
        frame((One(1, 0.2, reward=3),)),
    )
    env = scripted(script, 1)
    assert seen(env.reset()) == pytest.approx([0.5])
    step, row = do(env, 2)
    assert (step.reward.item(), seen(row)) == (1, pytest.approx([0.6]))
    step, row = do(env, 1)
    assert step.terminated.all()
    assert step.episode_terminated.all()
    assert (step.reward.item(), seen(row), row.acted.item()) == (2, pytest.approx([0.7]), False)
    step, row = do(env, 0)
    assert (step.reward.item(), seen(row), row.first.item()) == (0, pytest.approx([0.1]), True)
    step, row = do(env, 2)
    assert (step.reward.item(), seen(row)) == (3, pytest.approx([0.2]))
    assert script.told == ["reset", [2], [1], [2]]  # the closing row costs no frame, and its action goes nowhere


def test_an_end_in_a_frame_of_its_own_waits_until_the_others_ask():
    script = Script(
        frame((One(0, 0), One(1, 0)), new=True),
        frame(ends=(One(0, 0.3, reward=1),)),
        frame((One(1, 0.4, reward=2), One(2, 0.9))),
        frame((One(1, 0.5), One(2, 0.8, reward=7))),
        frame((One(1, 0.6), One(2, 0.7, reward=5))),
    )
    env = scripted(script, 2)
    env.reset()
    step, row = do(env, 1, 2)
    assert step.reward.tolist() == [[1, 2]]
    assert step.terminated.tolist() == [[True, False]]
    assert not step.episode_terminated.any()
    assert row.alive.tolist() == [[False, True]]
    assert seen(row) == pytest.approx([0, 0.4])
    step, row = do(env, 1, 2)  # who came has no seat yet and does nothing, which is its first choice
    assert step.reward.tolist() == [[0, 0]]
    assert row.alive.tolist() == [[True, True]]
    assert row.first.tolist() == [[True, False]]
    assert seen(row) == pytest.approx([0.8, 0.5])
    step, _ = do(env, 1, 2)
    assert step.reward.tolist() == [[5, 0]]
    assert script.told == ["reset", [1, 2], [], [2, 0], [2, 1]]


def test_an_interrupted_agent_cuts_the_episode_for_all_and_unity_is_not_reset():
    script = Script(
        frame((One(0, 0), One(1, 0)), new=True),
        frame((One(1, 0.4), One(2, 0.9)), cut=(One(0, 0.3),)),
        frame((One(1, 0.5), One(2, 0.8))),
    )
    env = scripted(script, 2)
    env.reset()
    step, row = do(env, 1, 2)
    assert step.truncated.tolist() == [[True, True]]
    assert step.episode_truncated.item()
    assert not step.terminated.any()
    assert row.alive.all()  # so that both are bootstrapped from what they saw last
    assert seen(row) == pytest.approx([0.3, 0.4])
    _, row = do(env, 0, 0)
    assert row.first.all()
    assert seen(row) == pytest.approx([0.4, 0.9])
    do(env, 1, 2)
    assert script.told == ["reset", [1, 2], [1, 2]]


def test_at_its_limit_the_episode_is_cut_and_unity_reset():
    script = Script(
        frame((One(0, 0),), new=True),
        frame((One(0, 0.1),)),
        frame((One(0, 0.2),)),
        frame((One(5, 0.3),), new=True),
    )
    env = scripted(script, 1, limit=2)
    env.reset()
    do(env, 0)
    step, row = do(env, 0)
    assert step.episode_truncated.item()
    assert seen(row) == pytest.approx([0.2])
    _, row = do(env, 0)
    assert seen(row) == pytest.approx([0.3])
    assert script.told == ["reset", [0], [0], "reset"]


def test_lessons_hand_the_scene_its_parameters_before_it_is_reset():
    script = Script(frame((One(7, 0.0),), new=True), frame((One(7, 1.0),)), frame((One(8, 0.0),), new=True))
    env = scripted(script, 1, limit=1)
    host: Any = env._host
    host.kind = Kind("unity/script", {})
    env.vary({"gravity": sampler(9.5), "wind": sampler({"integers": [3, 3]})})
    env.reset()
    do(env, 0)
    assert script.told == [{"gravity": 9.5, "wind": 3.0}, "reset", [0]]
    env.vary({"wind": sampler(4)})
    do(env, 0)
    assert script.told[3:] == [{"gravity": 9.5, "wind": 4.0}, "reset"]


def test_unity_takes_any_number_and_no_word(build: str):
    kind = Kind(f"unity/{build}", {})
    layout: Any = None
    kind.check(layout, {"anything": sampler({"uniform": [0, 1]})})
    with pytest.raises(UserError, match=r"the parameter 'level' of unity/.* is a word: it takes numbers"):
        kind.check(layout, {"level": sampler("hard")})


def test_who_asks_more_often_repeats_its_action_and_rewards_add_up():
    script = Script(
        frame((One(0, 0), One(1, 0)), new=True),
        frame((One(0, 0.1, reward=1),)),
        frame((One(0, 0.2, reward=1, barred=(False, False, True)),)),
        frame((One(0, 0.3, reward=1), One(1, 0.9, reward=10))),
    )
    env = scripted(script, 2)
    env.reset()
    step, row = do(env, 2, 1)
    assert step.reward.tolist() == [[3, 10]]
    assert seen(row) == pytest.approx([0.3, 0.9])
    assert script.told == ["reset", [2, 1], [2], [0]]  # what has become barred gives way to the first that is not


def test_barred_choices_are_masked():
    script = Script(frame((One(0, 0, barred=(True, False, False)),), new=True), frame((One(0, 0, barred=(True,) * 3),)))
    env = scripted(script, 1)
    assert env.reset().action_mask["Walker"].tolist() == [[[False, True, True]]]
    assert do(env, 1)[1].action_mask["Walker"].tolist() == [[[True, False, False]]]  # one is left in any case


# -------------------------------------------------------------------------------------------------------------- groups


def test_a_group_is_paid_once_what_its_last_member_was_told():
    script = Script(
        frame((One(0, 0, group=1), One(1, 0, group=1)), new=True),
        frame((One(1, 0, group=1, group_reward=2),), ends=(One(0, 0, group=1, group_reward=2),)),
        frame(ends=(One(1, 0, reward=0.5, group=1, group_reward=3),)),
    )
    env = scripted(script, 2)
    env.reset()
    step, _ = do(env, 0, 0)
    assert step.group_reward.tolist() == [[2]]  # not 4
    step, row = do(env, 0, 0)
    assert step.group_reward.tolist() == [[3]]
    assert step.reward.tolist() == [[0, 0.5]]
    assert step.episode_terminated.item()
    assert not row.alive[0, 0]


def test_who_left_in_the_middle_of_a_step_knows_less_of_its_group_than_who_stayed():
    kinds = behaviours([WALKER], [2], None)
    left, stayed = (Life(kinds[0], k, group=3, group_reward=paid, at=k) for k, paid in enumerate((1.0, 5.0)))
    assert group_rewards([left, stayed]) == {("Walker", 3): 5.0}
    assert group_rewards([stayed, left]) == {("Walker", 3): 5.0}


def test_two_groups_of_one_side_at_once_are_refused_or_each_agent_is_paid():
    def frames() -> Script:
        two = (One(0, 0, group=1), One(1, 0, group=2))
        paid = (One(0, 0, reward=1, group=1, group_reward=2), One(1, 0, group=2, group_reward=5))
        return Script(frame(two, new=True), frame(paid))

    env = scripted(frames(), 2)
    env.reset()
    with pytest.raises(UserError, match=r"two groups of 'Walker' live at once.*env\.groups=own"):
        do(env, 0, 0)
    env = scripted(frames(), 2, shared=False)
    env.reset()
    step, _ = do(env, 0, 0)
    assert step.reward.tolist() == [[3, 5]]
    assert step.group_reward.tolist() == [[0]]


def test_nobody_takes_a_seat_in_the_row_after_its_group_ended_whole():
    """Else a team's value would be bootstrapped from the next group's episode."""
    other = {**WALKER, "name": "Walker?team=1"}
    both = [WALKER, other]

    def both_of(asks: tuple[One, ...], theirs: tuple[One, ...], ends: tuple[One, ...] = (), new: bool = False) -> Frame:
        one, two = frame(asks, ends), frame(theirs)
        arrays = one.arrays | {name.replace(" 0", " 1", 1): x for name, x in two.arrays.items() if "obs" not in name}
        arrays |= {"d obs 1 0": two.arrays["d obs 0 0"], "t obs 1 0": two.arrays["t obs 0 0"]}
        return Frame(both if new else [], arrays)

    script = Script(
        both_of((One(0, 0),), (One(1, 0),), new=True),
        both_of((One(2, 0.9),), (One(1, 0.1),), ends=(One(0, 0.5),)),
        both_of((One(2, 0.8),), (One(1, 0.2),)),
    )
    kinds = behaviours(both, [2, 1], None)
    spec = EnvSpec("unity/two", tuple(k.role for k in kinds), {}, mortal=True, exact_resume=False)
    layout = Layout(spec, {k.role.name: k.observer for k in kinds}, tuple(k.role.name for k in kinds))
    player = cast(Player, script)
    made = lambda: Scene("unity/two", kinds, lambda: player, player, False, None, True, grouped=False)  # noqa: E731
    env = HostedEnv(Alone(made, layout, 1), 0, "cpu")
    env.reset()
    act = {
        "Walker_team0": Action(discrete=torch.zeros(1, 2, 1, dtype=torch.int64)),
        "Walker_team1": Action(discrete=torch.zeros(1, 1, 1, dtype=torch.int64)),
    }
    _, row = env.step(act)
    assert row.alive.tolist() == [[False, False, True]]  # though the second slot was free
    _, row = env.step(act)
    assert row.alive.tolist() == [[True, False, True]]


def test_more_agents_than_slots_are_refused_with_the_mend():
    env = scripted(Script(frame((One(0, 0), One(1, 0)), new=True)), 1)
    with pytest.raises(UserError, match=r"more agents of role Walker .* its 1 slots: set env\.max_agents\.Walker=2"):
        env.reset()


def test_who_never_asks_again_is_named():
    script = Script(frame((One(0, 0), One(1, 0)), new=True), *(frame((One(0, 0),)) for _ in range(1000)))
    env = scripted(script, 2)
    env.reset()
    with pytest.raises(UserError, match="'Walker\\?team=0' has neither asked for a decision nor ended"):
        do(env, 0, 0)


# ---------------------------------------------------------------------------------------------------------- behaviours


def kind(name: str, sensors: list[tuple[str, list[int], bool]], continuous: int = 0, discrete: Any = ()) -> dict:
    seen = [{"name": label, "shape": shape, "picture": picture} for label, shape, picture in sensors]
    return {"name": name, "observations": seen, "continuous": continuous, "discrete": list(discrete)}


def test_team_numbers_are_sides_and_roles_stand_side_by_side():
    plain = [("Rays", [2], False)]
    found = [kind(f"{name}?team={team}", plain, 1) for name in ("Striker", "Goalie") for team in (1, 0)]
    made = behaviours(found, [2, 2, 1, 1], None)
    assert [(b.role.name, b.role.group, b.role.n) for b in made] == [
        ("Striker_team0", "team0", 2), ("Goalie_team0", "team0", 1),
        ("Striker_team1", "team1", 2), ("Goalie_team1", "team1", 1),
    ]  # fmt: skip
    assert [list(b.seats) for b in made] == [[0, 1], [2], [3, 4], [5]]
    assert behaviours(found, [2, 2, 1, 1], {"Goalie_team1": 4})[3].role.n == 4
    with pytest.raises(UserError, match=r"env\.max_agents\.Goalie is none of the roles: did you mean 'Goalie_team"):
        behaviours(found, [2, 2, 1, 1], {"Goalie": 4})


def test_numbers_stand_together_and_each_picture_by_itself():
    found = [("Rays", [3], False), ("My Camera", [4, 5, 3], True), ("Others", [2, 2], False)]
    (made,) = behaviours([kind("Eyes", found, 2, (3, 2))], [1], None)
    space = made.role.observation_space
    assert isinstance(space, spaces.Dict)
    assert {name: part.shape for name, part in space.spaces.items()} == {"numbers": (7,), "My_Camera": (4, 5, 3)}
    assert made.role.action.choices == (3, 2)
    assert made.role.action.continuous == 2
    picture = np.full((4, 5, 3), 9, np.uint8)
    shown = made.observation([np.arange(3), picture, np.array([7, 7, 7, 8])])
    assert shown["numbers"].tolist() == [0, 1, 2, 7, 7, 7, 8]
    assert shown["My_Camera"] is picture
    numbers, choices = made.action((np.array([2, 1]), np.array([0.5, -1], np.float32)))
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
def test_actions_have_the_space_that_is_theirs(acts: tuple[int, tuple[int, ...]], space: spaces.Space):
    (made,) = behaviours([kind("A", [("S", [1], False)], *acts)], [1], None)
    assert made.role.action_space == space


def test_a_behaviour_without_actions_or_sensors_is_refused():
    with pytest.raises(UserError, match="'A' has no actions"):
        behaviours([kind("A", [("S", [1], False)])], [1], None)
    with pytest.raises(UserError, match="'A' observes nothing"):
        behaviours([kind("A", [], 1)], [1], None)


# ------------------------------------------------------------------------------------------------------------ the line


def reader(content: bytes) -> Callable[[int], bytes]:
    return io.BytesIO(content).read


def test_a_message_comes_back_as_it_was():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.zeros((0, 4), np.bool_), "c": np.array(7)}
    said, found = unpacked(reader(packed({"order": "step", "n": 3}, arrays)))
    assert said == {"order": "step", "n": 3}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)


def test_what_is_no_message_is_refused():
    with pytest.raises(ValueError, match="no message"):
        unpacked(lambda size: b"\xff" * size)
    objects = packed({}, {"a": np.zeros(1)}).replace(b"<f8", b"|O8")
    with pytest.raises(ValueError):
        unpacked(reader(objects))


@pytest.fixture
def build(tmp_path: Path) -> str:
    path = tmp_path / "game.x86_64"
    path.touch()
    return str(path)


def test_without_an_interpreter_for_unity_the_error_says_how_to_make_one(build: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_UNITY_PYTHON", raising=False)
    with pytest.raises(UserError, match=r"no \.venv-unity.*: python -m coterie\.envs\.unity\.install makes one"):
        coterie.make("unity/game", file=build)
    with pytest.raises(UserError, match=r"env\.python: there is no nowhere/python: python -m coterie"):
        coterie.make("unity/game", file=build, python="nowhere/python")


def test_an_interpreter_without_mlagents_is_told_with_the_mend(build: str):
    with pytest.raises(UserError, match=r"has no module 'mlagents_envs'.*: python -m coterie\.envs\.unity\.install"):
        coterie.make("unity/game", file=build, python=sys.executable)


def test_a_build_that_is_not_there_is_told():
    with pytest.raises(UserError, match=r"there is no Unity build 'nowhere': give its executable with env\.file=PATH"):
        coterie.make("unity/nowhere")


def test_any_unity_environment_starts_with_few_copies():
    found = resolve(["env=unity/any/path.x86_64", "algo=poca"])
    assert (found.config.copies, found.config.eval.copies) == (4, 1)
    assert found.origins["copies"] == "preset family/unity"
    assert resolve(["env=unity/any", "copies=9"]).config.copies == 9
