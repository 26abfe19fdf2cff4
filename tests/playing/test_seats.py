"""Who plays by hand, what keys mean to them, and what a step takes of what they want."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from coterie.errors import UserError
from coterie.playing.seats import Choice, Seat, idle_choices, keys_of, named
from coterie.types import EnvSpec, RoleSpec

SEES = spaces.Box(-1, 1, (2,))
MOVES = ("stay", "left", "right", "down", "up")


def role(does: spaces.Space, *names: tuple[str, ...], numbers: tuple[str, ...] = (), n: int = 1) -> RoleSpec:
    return RoleSpec("r", "g", tuple(f"a_{i}" for i in range(n)), SEES, does, names, numbers)


def seat(does: spaces.Space, *names: tuple[str, ...]) -> Seat:
    return Seat(0, "a_0", role(does, *names), 0)


def walker() -> Seat:
    return seat(spaces.Discrete(5), MOVES)


def tag() -> tuple[EnvSpec, dict[str, Any]]:
    hunters = RoleSpec("hunter", "hunters", ("h_0", "h_1"), SEES, spaces.Discrete(5), (MOVES,))
    prey = RoleSpec("prey", "prey", ("p_0",), SEES, spaces.Discrete(5), (MOVES,))
    spec = EnvSpec("tag", (hunters, prey), {})
    return spec, {team.name: team for team in spec.default_teams()}


# ----------------------------------------------------------------------------------------------------------- who plays


def test_agents_are_named_by_team_and_name_by_name_or_by_a_team_of_one():
    seats = named(["prey", "hunters.h_1", "h_0"], *tag())
    assert [(s.agent, s.name, s.role.name, s.place) for s in seats] == [
        (2, "p_0", "prey", 0),
        (1, "h_1", "hunter", 1),
        (0, "h_0", "hunter", 0),
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["hunters"], r"--human hunters: this team has 2 agents; name one, e\.g\. --human hunters\.h_0"),
        (["hunters.h_7"], r"--human hunters\.h_7: there is no such agent; did you mean 'hunters\.h_1'"),
        (["prey.h_0"], r"there is no such agent"),
        (["prey", "p_0"], r"--human p_0: agent 'p_0' is named twice; leave one out"),
    ],
)
def test_other_names_are_one_line_that_tells_which_there_are(asked: list[str], said: str):
    with pytest.raises(UserError, match=said):
        named(asked, *tag())


# ---------------------------------------------------------------------------------------------------------------- keys


def test_one_player_has_arrows_letters_and_digits():
    keys = keys_of(role(spaces.Discrete(5), MOVES), 0, 1)
    assert keys["ArrowLeft"] == keys["KeyA"] == {"component": 0, "choice": 1}
    assert keys["ArrowUp"] == keys["KeyW"] == {"component": 0, "choice": 4}
    assert keys["Digit0"] == {"component": 0, "choice": 0}
    assert len(keys) == 4 + 4 + 5


def test_of_two_players_one_has_arrows_and_the_other_letters():
    does = role(spaces.Discrete(5), MOVES)
    assert "KeyA" not in keys_of(does, 0, 2)
    assert set(keys_of(does, 1, 2)) == {"KeyW", "KeyA", "KeyS", "KeyD"}
    assert keys_of(does, 2, 3) == {}


def test_directions_are_known_by_many_names_and_by_their_first_word():
    keys = keys_of(role(spaces.Discrete(4), ("north, say A", "bottom", "WEST", "top_left")), 0, 1)
    assert [keys[f"Arrow{way}"]["choice"] for way in ("Up", "Down", "Left")] == [0, 1, 2]
    assert "ArrowRight" not in keys


def test_choices_beyond_the_digits_and_further_components_have_letters():
    keys = keys_of(role(spaces.MultiDiscrete([12, 2])), 0, 1)
    assert keys["Digit9"] == {"component": 0, "choice": 9}
    assert keys["KeyQ"] == {"component": 0, "choice": 10}
    assert keys["KeyR"] == {"component": 1, "choice": 0}
    assert not {"Space", "Period", "KeyN"} & set(keys)


def test_numbers_are_turned_by_arrows():
    plain = keys_of(role(spaces.Box(np.float32([-1, -2]), np.float32([1, 2]))), 0, 1)
    assert plain["ArrowLeft"] == {"number": 0, "value": -1.0}
    assert plain["KeyW"] == {"number": 1, "value": 2.0}
    called = keys_of(role(spaces.Box(0.0, 1.0, (5,)), numbers=MOVES), 0, 1)
    assert called["ArrowLeft"] == {"number": 1, "value": 1.0}
    assert called["ArrowDown"] == {"number": 3, "value": 1.0}


# --------------------------------------------------------------------------------------------------------------- wishes


def test_a_pressed_choice_is_taken_once_even_if_it_is_let_go_before_the_step():
    s = walker()
    assert s.press(0, 2, None) == ""
    s.release(0, 2)
    assert s.decide(None) == (Choice((2,), ()), "")
    s.stepped()
    assert s.decide(None)[0] == Choice((0,), ())


def test_a_held_choice_is_taken_until_it_is_let_go():
    s = walker()
    s.press(0, 2, None)
    for _ in range(3):
        assert s.decide(None)[0] == Choice((2,), ())
        s.stepped()
    s.release(0, 2)
    assert s.decide(None)[0] == Choice((0,), ())


def test_letting_go_of_another_key_changes_nothing():
    s = walker()
    s.press(0, 2, None)
    s.press(0, 1, None)
    s.release(0, 2)
    s.stepped()
    assert s.decide(None)[0] == Choice((1,), ())


def test_a_masked_choice_is_refused_in_words_and_not_wanted():
    s = walker()
    mask = [True, True, False, True, True]
    assert s.press(0, 2, mask) == "a_0 cannot choose 'right' now: it is masked"
    assert s.chosen == [None]
    assert s.press(0, 2, [True] * 5) == ""  # the same press with nothing in its way


def test_what_becomes_masked_while_it_is_held_is_refused_by_the_step():
    s = walker()
    s.press(0, 2, None)
    choice, said = s.decide([True, True, False, True, True])
    assert choice == Choice((0,), ())
    assert said == "a_0 cannot choose 'right' now: it is masked"


def test_who_has_nothing_idle_to_do_is_waited_for():
    s = seat(spaces.Discrete(3))
    assert s.decide(None)[0] is None
    assert s.decide([False, True, False])[0] == Choice((1,), ())  # the only thing that can be done
    s.press(0, 2, None)
    assert s.decide(None)[0] == Choice((2,), ())


def test_the_best_idle_choice_that_is_available_is_taken():
    s = seat(spaces.Discrete(3), ("noop", "stop", "shoot"))
    assert idle_choices(s.role, 0) == [1, 0]
    assert s.decide(None)[0] == Choice((1,), ())
    assert s.decide([True, False, True])[0] == Choice((0,), ())


def test_every_component_has_a_wish_of_its_own():
    s = seat(spaces.MultiDiscrete([2, 3]), ("wait", "go"), ("none", "b", "c"))
    s.press(1, 2, [True, True, True, True, True])
    assert s.decide(None)[0] == Choice((0, 2), ())
    assert s.press(1, 1, [True, True, True, False, True]).endswith("'b' now: it is masked")


def test_numbers_rest_where_they_do_nothing_and_are_cut_to_their_bounds():
    s = seat(spaces.Box(np.float32([-1, 0, -4]), np.float32([1, 2, -2])))
    assert s.rest == (0.0, 0.0, -4.0)
    s.turn(1, 9.0)
    assert s.decide(None)[0] == Choice((), (0.0, 2.0, -4.0))
    s.stepped()
    assert s.numbers[1] == 2.0  # until it is turned again
    s.let_go(1)
    assert s.numbers[1] == 0.0


def test_a_number_that_is_tapped_is_seen_by_one_step():
    s = seat(spaces.Box(-1.0, 1.0, (1,)))
    s.turn(0, 1.0)
    s.let_go(0)
    assert s.decide(None)[0] == Choice((), (1.0,))
    s.stepped()
    assert s.decide(None)[0] == Choice((), (0.0,))


def test_choices_that_there_are_not_are_errors():
    for choice in (-1, 5):
        with pytest.raises(IndexError):
            walker().press(0, choice, None)
