"""Where the sequences of a replay may begin, and which of these places are drawn.

A start is numbered by its place in the stream, row x B + copy. It can be drawn once all rows of its sequence are there,
and until the first of them is overwritten.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.priorities import SumTree

Kind = Literal["row", "window", "episode"]

_LEAST_PRIORITY = 1e-6
"""Added to an error, so that a sequence without one is drawn again some day."""


class Starts:
    """The starts that are held, drawn uniformly or in proportion to their priorities.

    rows: how many rows of the stream are held; copies, horizon: B and T of its windows; length: steps of a sequence;
    kind: which rows begin one, see `Replay`; alpha: exponent of the priorities, 0 draws uniformly. Uniform starts stand
    in a queue in the order of the stream, so that a draw is one number; priorities stand in a tree, at the rows' places
    in the ring. The device is read once an `enter`.
    """

    def __init__(
        self, rows: int, copies: int, length: int, horizon: int, kind: Kind, alpha: float, device: torch.device
    ):
        self._rows, self._copies, self._length, self._horizon = rows, copies, length, horizon
        self._kind, self._alpha, self._device = kind, alpha, device
        self._size = rows + 1
        self.marks = torch.zeros(self._size, copies, dtype=torch.bool, device=device)
        """Rows of the ring that a sequence may begin at, [size, B]."""
        self._acted = torch.zeros(copies, dtype=torch.bool, device=device)  # in the newest row
        self._most = most_starts(rows, copies, horizon, kind)
        self._low = 0  # the oldest row that is held
        self._entered = 0  # rows whose starts were taken in
        self._counts: deque[int] = deque()  # starts in each of the rows [low, entered)
        self._first = 0  # place of the oldest start in the queue
        self.held = 0
        """How many starts there are to draw from."""
        if alpha > 0:
            self._tree = SumTree(self._size * copies, device)
            self._highest = torch.ones((), dtype=torch.float64, device=device)
        else:  # one place more takes what is not to be kept
            self._queue = torch.zeros(self._most + 1, dtype=torch.int64, device=device)

    def mark(self, head: int, acted: Tensor) -> None:
        """Notes which of the rows `head`, ... with `acted` [T, B] begin a sequence."""
        before = torch.cat([self._acted.unsqueeze(0), acted[:-1]])
        if self._kind == "row":
            marks = acted
        elif self._kind == "episode":
            marks = acted & ~before
        else:
            marks = torch.zeros_like(acted)
            marks[0] = True
        self._acted = acted[-1].clone()
        self.marks[self._places(head, head + len(acted))] = marks

    def cut(self, head: int) -> Tensor:
        """Makes `head` a closing row; returns which copies acted in the row before, [B]."""
        acted, self._acted = self._acted, torch.zeros_like(self._acted)
        self.marks[head % self._size] = False
        return acted

    def _places(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self._device) % self._size

    def enter(self, head: int) -> None:
        """Forgets the starts that were overwritten and takes in those whose sequences became complete.

        head: rows of the stream; the row of this number is there as well, to look ahead.
        """
        low, stop = max(0, head - self._rows), head - self._length + 1
        oldest = self._entered - len(self._counts)
        gone = min(len(self._counts), max(0, low - oldest))
        expired = sum(self._counts.popleft() for _ in range(gone))
        self.held -= expired
        if self._alpha > 0:
            self._fill(oldest, torch.zeros(gone, self._copies, dtype=torch.float64, device=self._device))
        else:
            self._first = (self._first + expired) % self._most
        self._low = low
        self._append(max(self._entered, low), stop, None)

    def _append(self, start: int, stop: int, priority: Tensor | None) -> None:
        """Takes in the starts among the rows [start, stop), with `priority` [n, B] or the highest so far."""
        if stop <= start:
            return
        marks = self.marks[self._places(start, stop)]
        counts = marks.sum(1).tolist()
        if self._alpha > 0:
            self._fill(start, torch.where(marks, self._highest**self._alpha, 0.0) if priority is None else priority)
        else:
            codes = torch.arange(start * self._copies, stop * self._copies, device=self._device)
            order = marks.flatten().cumsum(0) - 1 + self._first + self.held
            self._queue[torch.where(marks.flatten(), order % self._most, self._most)] = codes
        self._counts.extend(counts)
        self.held += sum(counts)
        self._entered = stop

    def _fill(self, start: int, values: Tensor) -> None:
        """Sets the priorities of the stream's rows `start`, ... to `values` [n, B]."""
        begin = start % self._size
        fits = min(len(values), self._size - begin)
        self._tree.fill(begin * self._copies, values[:fits].flatten())
        self._tree.fill(0, values[fits:].flatten())

    def draw(self, count: int, beta: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` starts [count] int64 and their weights [count] float32: ones, or (N P)^-beta over the largest.

        Source: Schaul et al. 2016, eq. 1 and section 3.4.
        """
        if self._alpha == 0:
            drawn = torch.randint(self.held, (count,), generator=generator, device=self._device)
            return self._queue[(drawn + self._first) % self._most], torch.ones(count, device=self._device)
        leaf = self._tree.draw(count, generator)
        chance = self._tree.leaves[leaf] / self._tree.total
        weight = (self.held * chance) ** -beta
        lowest = self._low * self._copies
        code = lowest + (leaf - lowest) % (self._size * self._copies)
        return code, (weight / weight.max()).float()

    def reprioritise(self, code: Tensor, error: Tensor) -> None:
        """Sets the priorities of drawn starts to `error` [S] >= 0; those that were overwritten are passed over."""
        if self._alpha == 0:
            return
        here = code >= self._low * self._copies
        error = error.double() + _LEAST_PRIORITY
        self._highest = torch.maximum(self._highest, torch.where(here, error, 0.0).amax())
        self._tree.put(code % (self._size * self._copies), error**self._alpha, here)

    def state_dict(self) -> dict[str, Any]:
        """All but the marks, which are saved with their rows."""
        state: dict[str, Any] = {"acted": self._acted.clone(), "low": self._low, "entered": self._entered}
        if self._alpha > 0:
            rows = self._places(self._low, max(self._low, self._entered))
            state["priority"] = self._tree.leaves.view(self._size, self._copies)[rows]
            state["highest"] = self._highest.clone()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called; `marks` are restored already."""
        self._acted = state["acted"].to(self._device, copy=True)
        self._low = state["low"]
        priority = None
        if self._alpha > 0:
            self._highest = state["highest"].to(self._device, copy=True)
            priority = state["priority"].to(self._device)
        self._append(self._low, state["entered"], priority)
        self._entered = state["entered"]


def most_starts(rows: int, copies: int, horizon: int, kind: Kind) -> int:
    """At most so many starts are in `rows` rows of `copies` copies at once."""
    return {"row": rows, "window": rows // horizon + 1, "episode": rows // 2 + 1}[kind] * copies


def index_bytes(rows: int, copies: int, horizon: int, kind: Kind, alpha: float) -> int:
    """Bytes that `Starts` take, less than a hundredth off."""
    marks = (rows + 1) * copies
    return marks + (8 * marks * 33 // 32 if alpha > 0 else 8 * most_starts(rows, copies, horizon, kind))
