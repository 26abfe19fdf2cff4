"""Seats: agents played by hand, key bindings, and the actions taken for requests of players."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.playing.seats import Choice, Seat, idle_choices, keys_of, seats_for

OBSERVATION = spaces.Box(-1, 1, (2,))
MOVES = ("stay", "left", "right", "down", "up")


def role(action: spaces.Space, *names: tuple[str, ...], numbers: tuple[str, ...] = (), n: int = 1) -> RoleSpec:
    return RoleSpec("r", "g", tuple(f"a_{i}" for i in range(n)), OBSERVATION, action, names, numbers)


def seat(action: spaces.Space, *names: tuple[str, ...]) -> Seat:
    return Seat(0, "a_0", role(action, *names), 0)


def walker() -> Seat:
    return seat(spaces.Discrete(5), MOVES)


def tag() -> tuple[EnvSpec, dict[str, Any]]:
    hunters = RoleSpec("hunter", "hunters", ("h_0", "h_1"), OBSERVATION, spaces.Discrete(5), (MOVES,))
    prey = RoleSpec("prey", "prey", ("p_0",), OBSERVATION, spaces.Discrete(5), (MOVES,))
    spec = EnvSpec("tag", (hunters, prey), {})
    return spec, {team.name: team for team in spec.default_teams()}


# -------------------------------------------------------------------------------------------------------------- players


def test_players_are_named_by_team_and_agent_by_agent_or_by_a_team_of_one():
    seats = seats_for(["prey", "hunters.h_1", "h_0"], *tag())
    assert [(s.agent, s.name, s.role.name, s.place) for s in seats] == [
        (2, "p_0", "prey", 0),
        (1, "h_1", "hunter", 1),
        (0, "h_0", "hunter", 0),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["hunters"], r"--human hunters: the team has 2 agents\. Name one, for example: --human hunters\.h_0"),
        (["hunters.h_7"], r"--human hunters\.h_7: no such agent. Did you mean 'hunters\.h_1'"),
        (["prey.h_0"], r"--human prey\.h_0: no such agent. Did you mean"),
        (["prey", "p_0"], r"--human p_0: agent 'p_0' is given twice. Remove one."),
    ],
)
def test_unknown_names_raise_one_line_errors_with_suggestions(names: list[str], message: str):
    with pytest.raises(UserError, match=message):
        seats_for(names, *tag())


# ----------------------------------------------------------------------------------------------------------------- keys


def test_a_single_player_has_arrows_letters_and_digits():
    keys = keys_of(role(spaces.Discrete(5), MOVES), 0, 1)
    assert keys["ArrowLeft"] == keys["KeyA"] == {"component": 0, "choice": 1}
    assert keys["ArrowUp"] == keys["KeyW"] == {"component": 0, "choice": 4}
    assert keys["Digit0"] == {"component": 0, "choice": 0}
    assert len(keys) == 4 + 4 + 5


def test_with_two_players_one_has_arrows_and_the_other_letters():
    player = role(spaces.Discrete(5), MOVES)
    assert "KeyA" not in keys_of(player, 0, 2)
    assert set(keys_of(player, 1, 2)) == {"KeyW", "KeyA", "KeyS", "KeyD"}
    assert keys_of(player, 2, 3) == {}


def test_directions_are_recognized_by_synonyms_and_by_their_first_word():
    keys = keys_of(role(spaces.Discrete(4), ("north, say A", "bottom", "WEST", "top_left")), 0, 1)
    assert [keys[f"Arrow{way}"]["choice"] for way in ("Up", "Down", "Left")] == [0, 1, 2]
    assert "ArrowRight" not in keys


def test_actions_after_the_tenth_and_further_components_have_letters():
    keys = keys_of(role(spaces.MultiDiscrete([12, 2])), 0, 1)
    assert keys["Digit9"] == {"component": 0, "choice": 9}
    assert keys["KeyQ"] == {"component": 0, "choice": 10}
    assert keys["KeyR"] == {"component": 1, "choice": 0}
    assert not {"Space", "Period", "KeyN"} & set(keys)


def test_arrows_set_continuous_values():
    plain = keys_of(role(spaces.Box(np.float32([-1, -2]), np.float32([1, 2]))), 0, 1)
    assert plain["ArrowLeft"] == {"number": 0, "value": -1.0}
    assert plain["KeyW"] == {"number": 1, "value": 2.0}
    choice_name = keys_of(role(spaces.Box(0.0, 1.0, (5,)), numbers=MOVES), 0, 1)
    assert choice_name["ArrowLeft"] == {"number": 1, "value": 1.0}
    assert choice_name["ArrowDown"] == {"number": 3, "value": 1.0}


# ------------------------------------------------------------------------------------------------------------- requests


def test_releasing_another_key_changes_nothing():
    s = walker()
    s.press(0, 2, None)
    s.press(0, 1, None)
    s.release(0, 2)
    s.stepped()
    assert s.decide(None)[0] == Choice((1,), ())


def test_a_player_without_a_no_op_action_has_to_choose():
    s = seat(spaces.Discrete(3))
    assert s.decide(None)[0] is None
    assert s.decide([False, True, False])[0] == Choice((1,), ())  # the only legal action
    s.press(0, 2, None)
    assert s.decide(None)[0] == Choice((2,), ())


def test_the_preferred_available_no_op_is_used():
    s = seat(spaces.Discrete(3), ("noop", "stop", "shoot"))
    assert idle_choices(s.role, 0) == [1, 0]
    assert s.decide(None)[0] == Choice((1,), ())
    assert s.decide([True, False, True])[0] == Choice((0,), ())


def test_components_are_requested_independently():
    s = seat(spaces.MultiDiscrete([2, 3]), ("wait", "go"), ("none", "b", "c"))
    s.press(1, 2, [True, True, True, True, True])
    assert s.decide(None)[0] == Choice((0, 2), ())
    assert s.press(1, 1, [True, True, True, False, True]).endswith("'b' now (masked)")


def test_continuous_values_rest_at_zero_and_are_clipped_to_their_bounds():
    s = seat(spaces.Box(np.float32([-1, 0, -4]), np.float32([1, 2, -2])))
    assert s.rest == (0.0, 0.0, -4.0)
    s.set_value(1, 9.0)
    assert s.decide(None)[0] == Choice((), (0.0, 2.0, -4.0))
    s.stepped()
    assert s.numbers[1] == 2.0  # until it is set again
    s.release_value(1)
    assert s.numbers[1] == 0.0


def test_a_tapped_value_is_used_by_one_step():
    s = seat(spaces.Box(-1.0, 1.0, (1,)))
    s.set_value(0, 1.0)
    s.release_value(0)
    assert s.decide(None)[0] == Choice((), (1.0,))
    s.stepped()
    assert s.decide(None)[0] == Choice((), (0.0,))


def test_invalid_choices_raise_index_errors():
    for choice in (-1, 5):
        with pytest.raises(IndexError):
            walker().press(0, choice, None)
