"""Agents played by hand: named on the command line, controlled by keys, buttons and sliders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import UserError, nearest
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec

IDLE = ("stay", "stop", "idle", "noop", "none", "nothing", "wait")
"""First words of action names that do nothing, in order of preference."""
_DIRECTIONS = {
    "left": ("left", "west"),
    "right": ("right", "east"),
    "up": ("up", "north", "top", "forward"),
    "down": ("down", "south", "bottom", "backward", "back"),
}
_ARROWS = {"left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown"}
_LETTERS = {"left": "KeyA", "right": "KeyD", "up": "KeyW", "down": "KeyS"}
_DIGITS = tuple(f"Digit{i}" for i in range(10))
_OTHER_KEYS = tuple(f"Key{letter}" for letter in "QERTFGZXCVYUIOPHJKLB")
"""Keys for actions without a digit; N, space and period have other functions."""


def first_word(name: str) -> str:
    """First word of an action name: `left` for `left, say A` and `LEFT`; the whole name if it is one word, such as
    `top_left`.
    """
    return name.split(",")[0].strip().lower()


def seats_for(names: Sequence[str], spec: EnvSpec, teams: dict[str, TeamSpec]) -> list[Seat]:
    """Seats for the named agents: `team.agent`, an agent, or a team of one agent.

    Raises:
        UserError: For unknown names, teams of several agents, and agents named twice.
    """
    full_names = {f"{team.name}.{agent}": agent for team in teams.values() for agent in team.agents}
    seats: list[Seat] = []
    for name in names:
        team = teams.get(name)
        if team is not None and team.n > 1:
            raise UserError(
                f"--human {name}: the team has {team.n} agents. Name one, for example: --human {name}.{team.agents[0]}"
            )
        agent = full_names.get(name, team.agents[0] if team is not None else name)
        if agent not in spec.agents:
            known = [*full_names, *(team.name for team in teams.values() if team.n == 1)]
            raise UserError(f"--human {name}: no such agent. {nearest(name, known)}")
        if any(seat.name == agent for seat in seats):
            raise UserError(f"--human {name}: agent '{agent}' is given twice. Remove one.")
        seats.append(_seat(agent, spec))
    for number, seat in enumerate(seats):
        seat.keys = keys_of(seat.role, number, len(seats))
    return seats


def _seat(agent: str, spec: EnvSpec) -> Seat:
    role = next(role for role in spec.roles if agent in role.agents)
    return Seat(spec.agents.index(agent), agent, role, role.agents.index(agent))


@dataclass(frozen=True)
class Choice:
    """Action of a seat: one choice per discrete component, and continuous values within their bounds."""

    discrete: tuple[int, ...]
    numbers: tuple[float, ...]


class Seat:
    """An agent played by hand, and the requested action.

    A pressed choice is used by the next step even if it is released earlier; while it is held, it is used by every
    step.

    Attributes:
        agent: Index in the environment.
        name: Name of the agent.
        role, place: Role and index within the role.
        keys: Meaning of each key, {component, choice} or {number, value}, by `KeyboardEvent.code`.
    """

    def __init__(self, agent: int, name: str, role: RoleSpec, place: int):
        self.agent, self.name, self.role, self.place = agent, name, role, place
        self.keys: dict[str, dict[str, float]] = {}
        action = role.action
        self.chosen: list[int | None] = [None] * len(action.choices)
        self._held = [False] * len(action.choices)
        self._unused_choice = [False] * len(action.choices)  # no step has used this choice yet
        self._idle = [idle_choices(role, k) for k in range(len(action.choices))]
        self.rest = tuple(0.0 if low <= 0 <= high else low for low, high in zip(action.low, action.high, strict=True))
        self.numbers = list(self.rest)
        self._unused_value = [False] * action.continuous  # no step has used this value yet
        self._released = [False] * action.continuous  # returns to rest after the next step

    @property
    def single(self) -> bool:
        """True if the only decision is one discrete choice."""
        return self.role.action.kind == "discrete"

    def press(self, component: int, choice: int, mask: Sequence[bool] | None) -> str:
        """Requests a choice. Returns the reason if it is not possible, else an empty string. IndexError for an invalid
        choice.
        """
        choices = self.role.action.choices
        if not 0 <= choice < choices[component]:
            raise IndexError(choice)
        if not self._is_legal(component, choice, mask):
            return f"{self.name} cannot choose {self.choice_name(component, choice)} now (masked)"
        self.chosen[component], self._held[component], self._unused_choice[component] = choice, True, True
        return ""

    def release(self, component: int, choice: int) -> None:
        """Releases a choice; the next step still uses it if none has yet."""
        if self.chosen[component] == choice:
            self._held[component] = False
            if not self._unused_choice[component]:
                self.chosen[component] = None

    def set_value(self, number: int, value: float) -> None:
        """Requests a value until it is changed, clipped to its bounds and rounded for integers. IndexError for an
        invalid component.
        """
        action = self.role.action
        bounded = min(max(value, action.low[number]), action.high[number])
        self.numbers[number] = round(bounded) if action.integer and action.integer[number] else bounded
        self._unused_value[number], self._released[number] = True, False

    def release_value(self, number: int) -> None:
        """Returns a value to rest, after the next step if none has used it yet."""
        if self._unused_value[number]:
            self._released[number] = True
        else:
            self.numbers[number] = self.rest[number]

    def decide(self, mask: Sequence[bool] | None) -> tuple[Choice | None, str]:
        """The action of the next step, and a note on what it does not use; None if the player must choose first."""
        choices, refused = [], ""
        for k, wanted in enumerate(self.chosen):
            if wanted is not None and not self._is_legal(k, wanted, mask):
                refused = f"{self.name} cannot choose {self.choice_name(k, wanted)} now (masked)"
                wanted = None
            if wanted is None:
                wanted = self._default(k, mask)
            if wanted is None:
                return None, refused
            choices.append(wanted)
        return Choice(tuple(choices), tuple(self.numbers)), refused

    def forced(self, mask: Sequence[bool] | None) -> bool:
        """True if only one action is legal, as for players waiting for their turn."""
        choices = self.role.action.choices
        return self.single and mask is not None and sum(self._is_legal(0, c, mask) for c in range(choices[0])) == 1

    def stepped(self) -> None:
        """Forgets requests that are no longer held after a step."""
        self.chosen = [wanted if held else None for wanted, held in zip(self.chosen, self._held, strict=True)]
        for j, leaving in enumerate(self._released):
            if leaving:
                self.numbers[j] = self.rest[j]
        self._unused_choice = [False] * len(self._unused_choice)
        self._unused_value, self._released = [False] * len(self._unused_value), [False] * len(self._unused_value)

    def choice_name(self, component: int, choice: int) -> str:
        """Name of a choice."""
        names = self.role.choice_names
        return f"'{names[component][choice]}'" if names else f"choice {choice}"

    def state(self) -> dict[str, Any]:
        """State of the seat for the page."""
        return {"agent": self.agent, "chosen": self.chosen, "numbers": self.numbers}

    def _is_legal(self, component: int, choice: int, mask: Sequence[bool] | None) -> bool:
        return mask is None or bool(mask[sum(self.role.action.choices[:component]) + choice])

    def _default(self, component: int, mask: Sequence[bool] | None) -> int | None:
        """Default of a component: a no-op action, or the only legal one."""
        free = [c for c in range(self.role.action.choices[component]) if self._is_legal(component, c, mask)]
        idle = [c for c in self._idle[component] if c in free]
        return idle[0] if idle else free[0] if len(free) == 1 else None


def idle_choices(role: RoleSpec, component: int) -> list[int]:
    """Choices of a component that do nothing according to their names, in order of preference."""
    names = [first_word(name) for name in role.choice_names[component]] if role.choice_names else []
    return [names.index(word) for word in IDLE if word in names]


def keys_of(role: RoleSpec, number: int, seats: int) -> dict[str, dict[str, float]]:
    """Key bindings of seat `number`.

    A single player has arrows, W A S D, digits and letters. With several, the first has arrows, digits and letters, the
    second W A S D, and all have the buttons on the page.
    """
    if number > 1:
        return {}
    sets = [_ARROWS, _LETTERS] if seats == 1 else [(_ARROWS, _LETTERS)[number]]
    action, keys = role.action, {}
    if role.choice_names:
        words = [first_word(name) for name in role.choice_names[0]]
        for way, synonyms in _DIRECTIONS.items():
            choice = next((words.index(word) for word in synonyms if word in words), None)
            if choice is not None:
                keys |= {kind[way]: {"component": 0, "choice": choice} for kind in sets}
    if action.continuous and not keys:
        keys |= _keys_of_numbers(role, sets)
    if number == 0:
        keys |= _spare_keys(action.choices, {code for kind in sets for code in kind.values()} if keys else set())
    return keys


def _keys_of_numbers(role: RoleSpec, sets: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Arrow keys for continuous components with direction names; else for the first component (left, right) and second
    (up, down).
    """
    action, found = role.action, {}
    words = [first_word(name) for name in role.number_names]
    for way, synonyms in _DIRECTIONS.items():
        named = next((words.index(word) for word in synonyms if word in words), None)
        at = named if words else (0 if way in ("left", "right") else 1)
        if at is None or at >= action.continuous:
            continue
        least = not words and way in ("left", "down")
        found |= {kind[way]: {"number": at, "value": (action.low if least else action.high)[at]} for kind in sets}
    return found


def _spare_keys(choices: Sequence[int], used: set[str]) -> dict[str, dict[str, float]]:
    """Digits for the first ten choices of the first component, letters for the following ones."""
    found: dict[str, dict[str, float]] = {}
    more = iter(code for code in (*_OTHER_KEYS, *_LETTERS.values()) if code not in used)
    for component, count in enumerate(choices):
        for choice in range(count):
            code = _DIGITS[choice] if component == 0 and choice < len(_DIGITS) else next(more, None)
            if code is not None:
                found[code] = {"component": component, "choice": choice}
    return found
