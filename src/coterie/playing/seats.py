"""Who plays by hand: named on the command line, moved by keys, buttons and sliders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import UserError, nearest
from coterie.types import EnvSpec, RoleSpec, TeamSpec

IDLE = ("stay", "stop", "idle", "noop", "none", "nothing", "wait")
"""First words of choices that do nothing, the best first."""
_WAYS = {
    "left": ("left", "west"),
    "right": ("right", "east"),
    "up": ("up", "north", "top", "forward"),
    "down": ("down", "south", "bottom", "backward", "back"),
}
_ARROWS = {"left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown"}
_LETTERS = {"left": "KeyA", "right": "KeyD", "up": "KeyW", "down": "KeyS"}
_DIGITS = tuple(f"Digit{i}" for i in range(10))
_MORE = tuple(f"Key{letter}" for letter in "QERTFGZXCVYUIOPHJKLB")
"""Keys of choices that have no digit; N, the space and the full stop have meanings of their own."""


def first_word(name: str) -> str:
    """`left` of `left, say A` and of `LEFT`; all of it where a name is one thing, such as `top_left`."""
    return name.split(",")[0].strip().lower()


def named(asked: Sequence[str], spec: EnvSpec, teams: dict[str, TeamSpec]) -> list[Seat]:
    """The seats of the agents that were named: `team.agent`, an agent, or a team of one agent.

    UserError for a name that there is not, for a team of several, and for an agent that is named twice.
    """
    whole = {f"{team.name}.{agent}": agent for team in teams.values() for agent in team.agents}
    seats: list[Seat] = []
    for name in asked:
        team = teams.get(name)
        if team is not None and team.n > 1:
            raise UserError(
                f"--human {name}: this team has {team.n} agents; name one, e.g. --human {name}.{team.agents[0]}"
            )
        agent = whole.get(name, team.agents[0] if team is not None else name)
        if agent not in spec.agents:
            known = [*whole, *(team.name for team in teams.values() if team.n == 1)]
            raise UserError(f"--human {name}: there is no such agent; {nearest(name, known)}")
        if any(seat.name == agent for seat in seats):
            raise UserError(f"--human {name}: agent '{agent}' is named twice; leave one out")
        seats.append(_seat(agent, spec))
    for number, seat in enumerate(seats):
        seat.keys = keys_of(seat.role, number, len(seats))
    return seats


def _seat(agent: str, spec: EnvSpec) -> Seat:
    role = next(role for role in spec.roles if agent in role.agents)
    return Seat(spec.agents.index(agent), agent, role, role.agents.index(agent))


@dataclass(frozen=True)
class Choice:
    """What a seat does: a choice a component, and numbers within their bounds."""

    discrete: tuple[int, ...]
    numbers: tuple[float, ...]


class Seat:
    """An agent that is moved by hand, and what its player wants of it.

    agent: its place in the environment; name: its own; role, place: its role and its place in that; keys: what each key
    means, {component, choice} or {number, value}, by the key's place on the keyboard (`KeyboardEvent.code`).

    A choice that is pressed is taken by the next step, even if it is let go before; while it is held, by every step.
    """

    def __init__(self, agent: int, name: str, role: RoleSpec, place: int):
        self.agent, self.name, self.role, self.place = agent, name, role, place
        self.keys: dict[str, dict[str, float]] = {}
        action = role.action
        self.chosen: list[int | None] = [None] * len(action.choices)
        self._held = [False] * len(action.choices)
        self._fresh = [False] * len(action.choices)  # no step has taken this choice yet
        self._idle = [idle_choices(role, k) for k in range(len(action.choices))]
        self.rest = tuple(0.0 if low <= 0 <= high else low for low, high in zip(action.low, action.high, strict=True))
        self.numbers = list(self.rest)
        self._new = [False] * action.continuous  # no step has seen this number yet
        self._leaving = [False] * action.continuous  # back to rest behind the next step

    @property
    def single(self) -> bool:
        """One choice is all that there is to decide."""
        return self.role.action.kind == "discrete"

    def press(self, component: int, choice: int, mask: Sequence[bool] | None) -> str:
        """Wants a choice from now on. Returns why that cannot be, or an empty line. IndexError for what is none."""
        choices = self.role.action.choices
        if not 0 <= choice < choices[component]:
            raise IndexError(choice)
        if not self._can(component, choice, mask):
            return f"{self.name} cannot choose {self.called(component, choice)} now: it is masked"
        self.chosen[component], self._held[component], self._fresh[component] = choice, True, True
        return ""

    def release(self, component: int, choice: int) -> None:
        """Lets a choice go; the next step still takes it if none has yet."""
        if self.chosen[component] == choice:
            self._held[component] = False
            if not self._fresh[component]:
                self.chosen[component] = None

    def turn(self, number: int, value: float) -> None:
        """Wants a number, cut to its bounds, until it is turned again. IndexError for what is none."""
        action = self.role.action
        self.numbers[number] = min(max(value, action.low[number]), action.high[number])
        self._new[number], self._leaving[number] = True, False

    def let_go(self, number: int) -> None:
        """Turns a number back to rest, behind the next step if none has seen it yet."""
        if self._new[number]:
            self._leaving[number] = True
        else:
            self.numbers[number] = self.rest[number]

    def decide(self, mask: Sequence[bool] | None) -> tuple[Choice | None, str]:
        """What a step would take, and what it would not; None while the player has to choose first."""
        taken, refused = [], ""
        for k, wanted in enumerate(self.chosen):
            if wanted is not None and not self._can(k, wanted, mask):
                refused = f"{self.name} cannot choose {self.called(k, wanted)} now: it is masked"
                wanted = None
            if wanted is None:
                wanted = self._default(k, mask)
            if wanted is None:
                return None, refused
            taken.append(wanted)
        return Choice(tuple(taken), tuple(self.numbers)), refused

    def forced(self, mask: Sequence[bool] | None) -> bool:
        """There is nothing to decide: one choice is left, as for those who wait for their turn."""
        choices = self.role.action.choices
        return self.single and mask is not None and sum(self._can(0, c, mask) for c in range(choices[0])) == 1

    def stepped(self) -> None:
        """A step was taken: what is not held any longer is forgotten."""
        self.chosen = [wanted if held else None for wanted, held in zip(self.chosen, self._held, strict=True)]
        for j, leaving in enumerate(self._leaving):
            if leaving:
                self.numbers[j] = self.rest[j]
        self._fresh = [False] * len(self._fresh)
        self._new, self._leaving = [False] * len(self._new), [False] * len(self._new)

    def called(self, component: int, choice: int) -> str:
        """A choice in words."""
        names = self.role.choice_names
        return f"'{names[component][choice]}'" if names else f"choice {choice}"

    def words(self) -> dict[str, Any]:
        """What the page has to know of the wishes."""
        return {"agent": self.agent, "chosen": self.chosen, "numbers": self.numbers}

    def _can(self, component: int, choice: int, mask: Sequence[bool] | None) -> bool:
        return mask is None or bool(mask[sum(self.role.action.choices[:component]) + choice])

    def _default(self, component: int, mask: Sequence[bool] | None) -> int | None:
        """What nobody has to choose: to do nothing, or the only thing that can be done."""
        free = [c for c in range(self.role.action.choices[component]) if self._can(component, c, mask)]
        idle = [c for c in self._idle[component] if c in free]
        return idle[0] if idle else free[0] if len(free) == 1 else None


def idle_choices(role: RoleSpec, component: int) -> list[int]:
    """Choices of a component that do nothing by their names, the best first."""
    names = [first_word(name) for name in role.choice_names[component]] if role.choice_names else []
    return [names.index(word) for word in IDLE if word in names]


def keys_of(role: RoleSpec, number: int, seats: int) -> dict[str, dict[str, float]]:
    """What each key means to seat `number` of so many.

    One player has arrows, W A S D, digits and letters; of several the first has arrows, digits and letters, the second
    W A S D, and all have the buttons on the page.
    """
    if number > 1:
        return {}
    sets = [_ARROWS, _LETTERS] if seats == 1 else [(_ARROWS, _LETTERS)[number]]
    action, keys = role.action, {}
    if role.choice_names:
        words = [first_word(name) for name in role.choice_names[0]]
        for way, said in _WAYS.items():
            choice = next((words.index(word) for word in said if word in words), None)
            if choice is not None:
                keys |= {kind[way]: {"component": 0, "choice": choice} for kind in sets}
    if action.continuous and not keys:
        keys |= _keys_of_numbers(role, sets)
    if number == 0:
        keys |= _spare_keys(action.choices, {code for kind in sets for code in kind.values()} if keys else set())
    return keys


def _keys_of_numbers(role: RoleSpec, sets: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Arrows turn numbers that are called like directions; or else the first to both sides, the second up and down."""
    action, found = role.action, {}
    words = [first_word(name) for name in role.number_names]
    for way, said in _WAYS.items():
        named = next((words.index(word) for word in said if word in words), None)
        at = named if words else (0 if way in ("left", "right") else 1)
        if at is None or at >= action.continuous:
            continue
        least = not words and way in ("left", "down")
        found |= {kind[way]: {"number": at, "value": (action.low if least else action.high)[at]} for kind in sets}
    return found


def _spare_keys(choices: Sequence[int], used: set[str]) -> dict[str, dict[str, float]]:
    """Digits for the first ten choices of the first component, letters for the rest, as far as they go."""
    found: dict[str, dict[str, float]] = {}
    more = iter(code for code in (*_MORE, *_LETTERS.values()) if code not in used)
    for component, count in enumerate(choices):
        for choice in range(count):
            code = _DIGITS[choice] if component == 0 and choice < len(_DIGITS) else next(more, None)
            if code is not None:
                found[code] = {"component": component, "choice": choice}
    return found
