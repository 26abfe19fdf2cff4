"""Who lives in a Unity scene, and what the frames of one step bring each of them.

Unity has no steps of all agents: a frame holds those who ask for a decision now and those who ended since the last. One
step of Coterie's is as many frames as it takes until everybody who acts has asked again after its action, or ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from coterie.envs.unity.behaviours import Behaviour
from coterie.envs.unity.player import Frame
from coterie.errors import UserError


@final
@dataclass(eq=False)
class Life:
    """One agent of Unity's from its first decision to its end.

    group: Unity's number of it, 0 for none; seen: what its sensors showed last; barred: choices that it cannot make;
    seat: where Coterie shows it, None while it waits for one; action: what it does whenever it asks, None for nothing;
    given: it has done its action at least once; due: and has asked again; interrupted: None while it lives, else
    whether a limit ended it; at: the frame that it was last in.
    """

    behaviour: Behaviour
    id: int
    group: int = 0
    seen: list[np.ndarray] = field(default_factory=list)
    barred: np.ndarray | None = None
    seat: int | None = None
    action: tuple[np.ndarray, np.ndarray] | None = None
    given: bool = False
    due: bool = False
    reward: float = 0.0
    group_reward: float = 0.0
    interrupted: bool | None = None
    at: int = 0

    def act(self, native: Any) -> None:
        """A new step begins, in which it does this."""
        self.action = self.behaviour.action(native)
        self.given = self.due = False
        self.reward = self.group_reward = 0.0

    def answer(self) -> tuple[np.ndarray, np.ndarray]:
        """What it does now that it asks: its action, or nothing while it has none. What is barred becomes the first
        choice that is not.
        """
        own = self.behaviour
        self.given = self.action is not None
        numbers, choices = self.action or (
            np.zeros(own.continuous, np.float32),
            np.zeros(len(own.branches), np.int32),
        )
        return numbers, own.allowed(choices, self.barred)


@final
class Lives:
    """Everybody who lives, by behaviour and Unity's number of them."""

    def __init__(self, behaviours: Sequence[Behaviour]):
        self._known = {behaviour.native: behaviour for behaviour in behaviours}
        self._order: list[Behaviour] = []  # as they came since Unity was reset, which is how frames count them
        self._living: dict[tuple[str, int], Life] = {}
        self._asking: dict[int, list[Life]] = {}
        self._frames = 0

    def __iter__(self) -> Iterator[Life]:
        return iter(self._living.values())

    def __len__(self) -> int:
        return len(self._living)

    def clear(self) -> None:
        """Unity was reset: nobody who lived does any more."""
        self._living.clear()
        self._asking.clear()
        self._order.clear()

    def answers(self) -> dict[str, np.ndarray]:
        """What those do who asked in the last frame, as `Player.step` takes it."""
        arrays = {}
        for index, asking in self._asking.items():
            done = [life.answer() for life in asking]
            arrays[f"continuous {index}"] = np.stack([numbers for numbers, _ in done])
            arrays[f"discrete {index}"] = np.stack([choices for _, choices in done])
        return arrays

    def take(self, frame: Frame) -> list[Life]:
        """Takes in a frame, and returns who ended in it. UserError for behaviours that were not there before."""
        for kind in frame.new:
            if kind["name"] not in self._known:
                raise UserError(
                    f"behaviour '{kind['name']}' appeared only now: let an agent of it be there at the start"
                )
            self._order.append(self._known[kind["name"]])
        self._frames += 1
        ended = [life for index in range(len(self._order)) for life in self._ended(index, frame.arrays)]
        asking = {index: self._asked(index, frame.arrays) for index in range(len(self._order))}
        self._asking = {index: lives for index, lives in asking.items() if lives}
        return ended

    def _ended(self, index: int, arrays: dict[str, np.ndarray]) -> list[Life]:
        native, ended = self._order[index].native, []
        for row, number in enumerate(arrays[f"t id {index}"].tolist()):
            life = self._living.pop((native, number), None)
            if life is None:  # came and went without a decision, or is of the time before a reset
                continue
            _told(life, arrays, "t", index, row, self._frames)
            life.interrupted = bool(arrays[f"t interrupted {index}"][row])
            ended.append(life)
        return ended

    def _asked(self, index: int, arrays: dict[str, np.ndarray]) -> list[Life]:
        behaviour, asking = self._order[index], []
        barred = arrays.get(f"d mask {index}")
        for row, number in enumerate(arrays[f"d id {index}"].tolist()):
            life = self._living.get((behaviour.native, number))
            if life is None:
                life = self._living[behaviour.native, number] = Life(behaviour, number)
            _told(life, arrays, "d", index, row, self._frames)
            life.barred = None if barred is None else barred[row]
            life.due = life.given
            asking.append(life)
        return asking


def _told(life: Life, arrays: dict[str, np.ndarray], kind: str, index: int, row: int, frame: int) -> None:
    """Writes what an agent was last told in its behaviour's part of a frame."""
    life.seen = [arrays[f"{kind} obs {index} {k}"][row] for k in range(len(life.behaviour.pictures))]
    life.group, life.at = int(arrays[f"{kind} group {index}"][row]), frame
    life.reward += float(arrays[f"{kind} reward {index}"][row])
    life.group_reward += float(arrays[f"{kind} group_reward {index}"][row])


def group_rewards(before: Iterable[Life]) -> dict[tuple[str, int], float]:
    """What each of Unity's groups earned in a step, by Coterie's group and Unity's number.

    Everybody in a group is told the group's rewards from its own last frame to this one; so who was there to the end
    knows all of them. before: who lived when the step began, in the order of seats.
    """
    best: dict[tuple[str, int], Life] = {}
    for life in before:
        key = life.behaviour.role.group, life.group
        if life.group and (key not in best or life.at > best[key].at):
            best[key] = life
    return {key: life.group_reward for key, life in best.items()}
