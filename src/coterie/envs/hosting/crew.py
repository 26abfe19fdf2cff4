"""Copies that one process steps, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.envs.adapters.spaces import Actuator
from coterie.envs.hosting.board import Board
from coterie.envs.hosting.instance import Instance
from coterie.envs.hosting.varied import Kind, Varied
from coterie.envs.samplers import Sampler
from coterie.seeds import seed_of


class Crew:
    """The copies `start`, `start` + 1, .. of a board: begins their episodes, and gives each its agents' actions.

    first: the number of the first of them in the whole environment, where the board is not all of it.
    """

    def __init__(self, make: Callable[[], Instance], board: Board, start: int, count: int, first: int | None = None):
        self._spec, self._first = board.layout.spec, start if first is None else first
        self.instances = [make() for _ in range(count)]
        self._layout, self._places = board.layout, [board.place(start + k) for k in range(count)]
        for instance, place in zip(self.instances, self._places, strict=True):
            instance.attach(place)
        self._roles = [
            (role.n, Actuator(role.action_space), _own(board.discrete, role.name, start, count),
             _own(board.continuous, role.name, start, count))
            for role in self._spec.roles
        ]  # fmt: skip
        own = slice(start, start + count)
        self._closing, self._flags = board.closing[own], board.flags[own]
        self._terminated, self._truncated = board.ended[own, 0], board.ended[own, 1]
        self._paid = [x[own] for x in (board.reward, board.group_reward, board.metrics) if x.size]

    def reset(self, seed: int | None, only: Sequence[int] | None = None) -> None:
        """A new episode in every copy, or in those of these numbers within the crew; seed: of the whole environment,
        from which every copy has its own.
        """
        for k in range(len(self.instances)) if only is None else only:
            own = None if seed is None else seed_of(seed, "env", self._spec.name, self._first + k) >> 32
            self.instances[k].reset(own)  # 31 bits, which every library takes
            self._closing[k] = False

    def vary(self, kind: Kind, samplers: Mapping[str, Sampler]) -> None:
        """Episodes that begin from now on draw these parameters. UserError for what the environment has not."""
        for k, instance in enumerate(self.instances):
            if not isinstance(instance, Varied):
                seed = seed_of(0, "parameters", self._first + k)
                instance = self.instances[k] = Varied(instance, kind, self._layout, self._places[k], seed)
            instance.vary(samplers)

    def step(self) -> None:
        """A step of every copy; where the row shown closes an episode, the next one begins and nothing is earned."""
        for paid in self._paid:
            paid.fill(0)
        self._flags.fill(False)
        actions = self._actions()
        if not np.count_nonzero(self._closing):
            for instance, own in zip(self.instances, actions, strict=True):
                instance.step(own)
        else:
            for instance, own, closed in zip(self.instances, actions, self._closing.tolist(), strict=True):
                if closed:
                    instance.reset(None)
                else:
                    instance.step(own)
        np.logical_or(self._terminated, self._truncated, out=self._closing)

    def _actions(self) -> list[list[Any]]:
        """Native actions of every copy's agents in the spec's order."""
        by_role = [
            (n, actuator(None if picks is None else picks.reshape(-1, picks.shape[-1]),
                         None if numbers is None else numbers.reshape(-1, numbers.shape[-1])))
            for n, actuator, picks, numbers in self._roles
        ]  # fmt: skip
        if len(by_role) == 1 and by_role[0][0] == 1:
            return [[action] for action in by_role[0][1]]
        return [
            [action for n, native in by_role for action in native[k * n : (k + 1) * n]]
            for k in range(len(self.instances))
        ]

    def state_dict(self) -> list[dict[str, Any]]:
        """Of every copy what it needs to go on."""
        return [
            instance.state_dict() | {"closing": bool(closed)}
            for instance, closed in zip(self.instances, self._closing, strict=True)
        ]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        for k, (instance, state) in enumerate(zip(self.instances, states, strict=True)):
            instance.load_state_dict({name: value for name, value in state.items() if name != "closing"})
            self._closing[k] = state["closing"]

    def close(self) -> None:
        for instance in self.instances:
            instance.close()


def _own(arrays: dict[str, np.ndarray], role: str, start: int, count: int) -> np.ndarray | None:
    return arrays[role][start : start + count] if role in arrays else None
