"""Replay: one ring of rows that sequences of any length are drawn from; a transition is a sequence of length one.

Windows are stored as the stream of rows that they are, and nothing is padded: what follows on an episode's end is the
copy's next episode. A sequence starts at one row of one copy and reads `length` steps and the row after them.

Source of the priorities: Schaul et al. 2016, Prioritized Experience Replay (the proportional variant).
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.errors import UserError
from coterie.priorities import SumTree
from coterie.ring import Ring, Store, join, plain, record_of, split
from coterie.room import free_bytes, in_words
from coterie.seeds import generator
from coterie.segments import Segment, Written
from coterie.types import Action, TeamSpec, Tree, Window, tree_leaves, tree_map

Starts = Literal["row", "window", "episode"]

_SEGMENT_BYTES = 4 << 20
"""A checkpoint rewrites up to two segments' worth of rows, and names the others; see `Replay.state_dict`."""

_LEAST_PRIORITY = 1e-6
"""Added to an error, so that a sequence without one is drawn again some day."""

_unchecked: ContextVar[bool] = ContextVar("unchecked", default=False)


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """Replays made inside are not refused for their size: nothing is going to be added, as in an evaluation."""
    token = _unchecked.set(True)
    try:
        yield
    finally:
        _unchecked.reset(token)


@dataclass(frozen=True)
class Sample:
    """Sequences drawn from a replay, side by side on the copy axis.

    window: [L + 1, S, ..] rows and [L, S, ..] steps, `record` empty, `carry` what was stored where `starts="window"`,
    else empty; index: [S] int64, what `reprioritise` takes back; weight: [S] float32 importance weights in (0, 1], all
    ones where sampling is uniform.
    """

    window: Window
    index: Tensor
    weight: Tensor


class Replay:
    """The newest `capacity` environment steps of a team, and the sequences that can be drawn from them.

    copies, horizon: B and T of the windows that are added; capacity: in environment steps, rounded up to whole windows;
    length: steps of a sequence; starts: where one may begin: `row`, every row that was acted on; `window`, the first
    row of every window, with the memory stored for it; `episode`, the first row of every episode; states: names of the
    states that are stored; store: where the rows lie, `device` (that of the learner), `cpu`, or `disk` (files in the
    temporary folder, mapped into memory); priority_exponent: alpha, 0 draws uniformly; importance_exponent: beta, which
    may be set anew between samples.

    Memory is taken when the first window comes. UserError if there is not enough of it, or if `capacity` holds no
    sequence. Starts are numbered by their place in the stream, row x B + copy; the device is read once an `add`.
    """

    def __init__(
        self, team: TeamSpec, copies: int, horizon: int, *, capacity: int, length: int, starts: Starts,
        states: tuple[str, ...], seed: int, device: torch.device, store: Store = "device",
        priority_exponent: float = 0.0, importance_exponent: float = 0.0,
    ):  # fmt: skip
        self._copies, self._horizon, self._length, self._starts = copies, horizon, length, starts
        self._team, self._states = team, states
        self._store: Store = store
        self._alpha, self.importance_exponent = priority_exponent, importance_exponent
        self._rows = -(-capacity // (copies * horizon)) * horizon
        self._size = self._rows + 1  # the row to look ahead has a place of its own
        self._device = torch.device(device)
        self._home = self._device if store == "device" else torch.device("cpu")
        _require_sequence(capacity, copies, self._rows, length, horizon, starts)
        choices = max((n for role in team.roles for n in role.action.choices), default=1)
        self._small = torch.uint8 if choices <= 1 << 8 else torch.int16 if choices <= 1 << 15 else torch.int32
        self._generator = generator(seed, "replay", device=self._home)
        self._ring: Ring | None = None
        self._carry: Tree = {}  # of every window in the ring, by name [windows, B, N, H]
        self._head = 0  # rows added; the stream's row `head` is the one to look ahead
        self._entered = 0  # rows whose starts can be drawn, or could until they were overwritten
        self._counts: deque[int] = deque()  # starts in each of the rows [low, entered)
        self._first_start = 0  # place of the oldest start in the queue
        self._held = 0
        self._resumed = False  # no window was added since the state was loaded
        self._begins: deque[tuple[int, int]] = deque()  # row and number of every window in the ring
        self._windows = 0
        self._slot_count = self._rows // horizon + 1
        self._written: dict[int, Written] = {}  # segments by their first row
        self.nbytes = self._expected_bytes()
        """Bytes that the rows and the index take; from the first window on exactly, with the memories' sizes."""
        self._require_room(capacity)
        _living.add(self)

    # ------------------------------------------------------------------------------------------------------- the size

    @property
    def description(self) -> str:
        """One line for the user."""
        where = "on disk" if self._store == "disk" else "in memory"
        if self._home.type != "cpu":
            where = f"on {self._home}"
        return f"replay of {self._rows * self._copies:,} steps: {in_words(self.nbytes)} {where}"

    def _expected_bytes(self) -> int:
        rows, steps = _likeness(self._team, self._copies, self._states, self._small)
        return self._size * sum(x.nbytes for x in tree_leaves((rows, steps))) + self._index_bytes()

    def _index_bytes(self) -> int:
        """Of the marks of starts, and of the queue or the tree."""
        marks = self._size * self._copies
        return marks + (8 * marks * 65 // 64 if self._alpha > 0 else 8 * self._places())

    def _places(self) -> int:
        """At most so many starts are in the ring at once."""
        rows = {"row": self._rows, "window": self._slot_count, "episode": self._rows // 2 + 1}
        return rows[self._starts] * self._copies

    def _require_room(self, capacity: int) -> None:
        """UserError if the replay cannot fit beside those that were made before and are not filled yet."""
        free = free_bytes(self._store, self._device)
        if free is None or _unchecked.get():
            return
        free -= sum(r.nbytes for r in _living if r._ring is None and (r._store, r._home) == (self._store, self._home))
        if self.nbytes <= free:
            return
        where = "the temporary folder's disk" if self._store == "disk" else "memory"
        where = str(self._home) if self._home.type != "cpu" else where
        fits = max(0, free) / self.nbytes * capacity
        fits = int(fits // (unit := 10 ** max(0, int(math.log10(max(fits, 1))) - 1)) * unit)
        mend = f"give algo.replay={fits}" if fits else "free some"
        other = ", set TMPDIR to a folder on a larger disk" if self._store == "disk" else " or algo.replay_store=disk"
        raise UserError(
            f"algo.replay={capacity} does not fit: a replay of {capacity:,} steps takes {in_words(self.nbytes)} of "
            f"{where}, and {in_words(max(0, free))} are free; {mend}{other}"
        )

    # --------------------------------------------------------------------------------------------------------- adding

    def add(self, window: Window) -> None:
        """Stores a window of `horizon` rows and the one after; it follows on the window that was added before."""
        if (window.horizon, window.copies) != (self._horizon, self._copies):
            raise ValueError(
                f"a window of {window.horizon} rows and {window.copies} copies in a replay of windows of "
                f"{self._horizon} rows and {self._copies} copies"
            )
        rows, steps = split(window, self._states, self._small)
        carry = window.carry if self._starts == "window" else {}
        if self._ring is None:
            self._allocate(rows, steps, carry)
        assert self._ring is not None
        rows, steps, carry = tree_map(lambda x: x.to(self._home, non_blocking=True), (rows, steps, carry))
        if self._resumed and not self._follows(rows):
            self._cut()
        self._resumed = False
        self._ring.write(self._head, rows, steps)
        self._mark(rows["acted"], self._head)
        if self._starts == "window":
            slot = self._windows % self._slot_count
            tree_map(lambda store, x: store[slot].copy_(x), self._carry, carry)
            self._slots[self._head % self._size] = slot
        self._begins.append((self._head, self._windows))
        self._windows += 1
        self._head += self._horizon
        self._enter()

    def _allocate(self, rows: Tree, steps: Tree, carry: Tree) -> None:
        """Takes the memory, for leaves like these."""
        ring = self._ring = Ring(self._size, self._copies, self._store, self._device, rows, steps)
        self._carry = tree_map(lambda x: ring.zeros(self._slot_count, x.unsqueeze(0)), carry)
        wanted = max(_SEGMENT_BYTES, ring.nbytes // 256) / (ring.nbytes / self._size)
        self._segment_rows = math.ceil(wanted / self._horizon) * self._horizon
        marks = (self._size, self._copies)
        self._marks = torch.zeros(marks, dtype=torch.bool, device=self._home)  # rows that a sequence may start at
        self._slots = torch.zeros(self._size, dtype=torch.int64, device=self._home)  # of the memory stored for a row
        if self._alpha > 0:
            self._tree = SumTree(self._size * self._copies, self._home)
            self._highest = torch.ones((), dtype=torch.float64, device=self._home)
        else:  # one place more takes what is not to be kept
            self._queue = torch.zeros(self._places() + 1, dtype=torch.int64, device=self._home)
        self._acted = torch.zeros(self._copies, dtype=torch.bool, device=self._home)  # in the newest row
        self.nbytes = self._ring.nbytes + sum(x.nbytes for x in tree_leaves(self._carry)) + self._index_bytes()

    def _mark(self, acted: Tensor, head: int) -> None:
        """Notes which of the rows `head`, ... with `acted` [T + 1, B] a sequence may start at."""
        acted = acted[:-1]
        before = torch.cat([self._acted.unsqueeze(0), acted[:-1]])
        if self._starts == "row":
            marks = acted
        elif self._starts == "episode":
            marks = acted & ~before
        else:
            marks = torch.zeros_like(acted)
            marks[0] = True
        self._acted = acted[-1].clone()
        places = torch.arange(head, head + len(acted), device=self._home) % self._size
        self._marks[places] = marks

    @property
    def _low(self) -> int:
        """The oldest row of the stream that is held."""
        return max(0, self._head - self._rows)

    def _enter(self) -> None:
        """Forgets the starts that were overwritten and takes in those whose sequences became complete."""
        low, stop = self._low, self._head - self._length + 1
        start = max(self._entered, low)
        gone = min(len(self._counts), max(0, low - (self._entered - len(self._counts))))
        expired = sum(self._counts.popleft() for _ in range(gone))
        self._held -= expired
        if self._alpha > 0:
            self._clear(self._entered - len(self._counts) - gone, gone)
        else:
            self._first_start = (self._first_start + expired) % self._places()
        while self._begins and self._begins[0][0] < low:
            self._begins.popleft()
        if stop > start:
            self._append(start, stop, None)

    def _append(self, start: int, stop: int, priority: Tensor | None) -> None:
        """Takes in the starts among the rows [start, stop), with `priority` [n, B] or the highest so far."""
        rows = torch.arange(start, stop, device=self._home)
        marks = self._marks[rows % self._size]
        if self._alpha > 0:
            self._fill(start, torch.where(marks, self._highest**self._alpha, 0.0) if priority is None else priority)
        else:
            codes = rows.unsqueeze(1) * self._copies + torch.arange(self._copies, device=self._home)
            order = marks.flatten().cumsum(0) - 1 + self._first_start + self._held
            places = torch.where(marks.flatten(), order % self._places(), self._places())
            self._queue[places] = codes.flatten()
        counts = marks.sum(1).tolist()
        self._counts.extend(counts)
        self._held += sum(counts)
        self._entered = stop

    def _clear(self, start: int, count: int) -> None:
        if count > 0:
            self._fill(start, torch.zeros(count, self._copies, dtype=torch.float64, device=self._home))

    def _fill(self, start: int, values: Tensor) -> None:
        """Sets the priorities of the stream's rows `start`, ... to `values` [n, B]."""
        begin = start % self._size
        fits = min(len(values), self._size - begin)
        self._tree.fill(begin * self._copies, values[:fits].flatten())
        if fits < len(values):
            self._tree.fill(0, values[fits:].flatten())

    # -------------------------------------------------------------------------------------------------------- drawing

    @property
    def starts_held(self) -> int:
        """How many sequences there are to draw from."""
        return self._held

    def ready(self, count: int) -> bool:
        """Whether there are `count` different sequences."""
        return self._held >= count

    def sample(self, count: int) -> Sample:
        """`count` sequences, drawn with replacement. ValueError if there are none."""
        if self._ring is None or self._held == 0:
            raise ValueError("nothing can be drawn from this replay yet; ask `ready` before")
        code, weight = self._draw_by_priority(count) if self._alpha > 0 else self._draw(count)
        steps = torch.arange(self._length + 1, device=self._home).unsqueeze(1)
        places = (code + steps * self._copies) % (self._size * self._copies)
        rows, paid = self._ring.take(places, self._length)
        carry = {}
        if self._starts == "window":
            begins = places[0]
            slots = self._slots[begins // self._copies] * self._copies + begins % self._copies
            carry = tree_map(lambda x: x.flatten(0, 1).index_select(0, slots), self._carry)
        window = join(rows, paid, carry, self._device)
        return Sample(window, code.to(self._device), weight.to(self._device))

    def _draw(self, count: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(self._held, (count,), generator=self._generator, device=self._home)
        code = self._queue[(drawn + self._first_start) % self._places()]
        return code, torch.ones(count, device=self._home)

    def _draw_by_priority(self, count: int) -> tuple[Tensor, Tensor]:
        """Starts, and their weights (N P)^-beta over the largest of them: eq. 1 and section 3.4 of the paper."""
        leaf = self._tree.draw(count, self._generator)
        chance = self._tree.leaves[leaf] / self._tree.total
        weight = (self._held * chance) ** -self.importance_exponent
        lowest = self._low * self._copies
        code = lowest + (leaf - lowest) % (self._size * self._copies)
        return code, (weight / weight.max()).float()

    def reprioritise(self, index: Tensor, error: Tensor) -> None:
        """Sets the priorities of drawn sequences to `error` [S] >= 0; nothing where sampling is uniform.

        index: of the sample, [S]; sequences that were overwritten meanwhile are passed over.
        """
        if self._alpha == 0:
            return
        index, error = index.to(self._home), error.detach().to(self._home, torch.float64) + _LEAST_PRIORITY
        here = index >= self._low * self._copies
        self._highest = torch.maximum(self._highest, torch.where(here, error, 0.0).amax())
        self._tree.put(index % (self._size * self._copies), error**self._alpha, here)

    # --------------------------------------------------------------------------------------------------------- resuming

    def _follows(self, rows: Tree) -> bool:
        """Whether `rows` [T + 1, B, ..] begin with the row that was shown last: the environment went on."""
        assert self._ring is not None
        shown, _ = self._ring.read(self._head, self._head + 1)
        return all(bool(a[0].equal(b[0])) for a, b in zip(tree_leaves(shown), tree_leaves(rows), strict=True))

    def _cut(self) -> None:
        """Closes every copy's episode at the newest row: an environment that could not be restored begins new ones.

        The row to look ahead stays as a closing row, so that what was done last has its true successor.
        """
        assert self._ring is not None
        last, place = (self._head - 1) % self._size, self._head % self._size
        rows, steps = self._ring.rows, self._ring.steps
        ended = steps["episode_terminated"][last]
        steps["episode_truncated"][last] |= self._acted & ~ended
        living = rows["alive"][last] & ~steps["terminated"][last]
        steps["truncated"][last] |= living & (self._acted & ~ended).unsqueeze(-1)
        for leaf in tree_leaves((steps, rows["acted"], self._marks)):
            leaf[place] = 0
        self._acted = torch.zeros_like(self._acted)
        self._head += 1

    def state_dict(self) -> dict[str, Any]:
        """All that drawing on needs.

        Rows are cut into segments of a fixed number of them, counted from the stream's begin. Those complete are
        `Segment`s, which are read when they are saved and name what is saved already; the oldest rows and the newest
        are tensors. To be saved, or copied by `copy.deepcopy`, before the next `add`.
        """
        state: dict[str, Any] = {
            "generator": self._generator.get_state(),
            "head": self._head,
            "importance_exponent": self.importance_exponent,
            "shape": [self._rows, self._copies, self._horizon, self._length, self._starts],
        }
        if self._ring is None:
            return state
        low, size = self._low, self._segment_rows
        first = -(-low // size) * size
        last = max(first, (self._head - 1) // size * size)  # the row before the newest may change still, see `_cut`
        starts = range(first, last, size)
        self._written = {start: self._written.get(start, Written()) for start in starts}
        segments = [Segment(partial(self._flat_piece, start), self._written[start]) for start in starts]
        ends = [(low, min(first, self._head))] if first > low else []
        state |= {
            "entered": self._entered,
            "windows": self._windows,
            "begins": [list(begin) for begin in self._begins],
            "acted": self._acted.clone(),
            "segment_rows": size,
            "segments": dict(zip(starts, segments, strict=True)),
        }
        tail = last if first <= self._head else self._head
        state["pieces"] = [[start, self._piece(start, stop)] for start, stop in [*ends, (tail, self._head + 1)]]
        if self._alpha > 0:
            rows = torch.arange(low, max(low, self._entered), device=self._home) % self._size
            state["priority"] = self._tree.leaves.view(self._size, self._copies)[rows]
            state["highest"] = self._highest.clone()
        return state

    def _piece(self, start: int, stop: int) -> dict[str, Any]:
        """Copies of the rows [start, stop) and of all that belongs to them."""
        assert self._ring is not None
        rows, steps = self._ring.read(start, stop)
        places = torch.arange(start, stop, device=self._home) % self._size
        slots = torch.tensor(self._slots_of(start, stop), dtype=torch.int64, device=self._home)
        carry = tree_map(lambda x: x.index_select(0, slots), self._carry)
        return {"rows": rows, "steps": plain(steps), "marks": self._marks[places], "carry": carry}

    def _slots_of(self, start: int, stop: int) -> list[int]:
        """Places of the memories of the windows that begin in the rows [start, stop)."""
        return [number % self._slot_count for row, number in self._begins if start <= row < stop]

    def _flat_piece(self, start: int) -> dict[str, Tensor]:
        """The leaves of a segment's piece, by number."""
        if start < self._low:
            raise RuntimeError("the state of a replay is saved, or copied, before windows are added to it")
        leaves = tree_leaves(self._piece(start, start + self._segment_rows))
        return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called. UserError if the state is one of another replay.

        If the next window does not begin with the row that was to come, every copy's episode is cut there.
        """
        shape = [self._rows, self._copies, self._horizon, self._length, self._starts]
        if list(state["shape"]) != shape:
            raise UserError(
                f"the checkpoint's replay has rows, copies, horizon, length and starts {state['shape']}, this run's "
                f"{shape}: restore the config.yaml that the run was started with"
            )
        self._generator.set_state(state["generator"].cpu())
        self.importance_exponent = state["importance_exponent"]
        if state["head"] == 0:
            return
        self._head, self._windows = state["head"], state["windows"]
        self._begins = deque((row, number) for row, number in state["begins"])
        model = state["pieces"][-1][1]
        carry = tree_map(lambda x: torch.empty(x.shape[1:], dtype=x.dtype), model["carry"])
        self._allocate(model["rows"], record_of(model["steps"]), carry)
        self._segment_rows = state["segment_rows"]
        for start, piece in state["pieces"]:
            self._restore(start, piece)
        for start, segment in state["segments"].items():
            leaves = iter(sorted(segment.read().items()))
            self._restore(start, tree_map(lambda _, leaves=leaves: next(leaves)[1], model))
            self._written[start] = Written(segment.written.digest)
        self._acted = state["acted"].to(self._home, copy=True)
        self._first_start = self._held = self._entered = 0
        self._counts.clear()
        priority = None
        if self._alpha > 0:
            self._highest = state["highest"].to(self._home, copy=True)
            priority = state["priority"].to(self._home)
        if state["entered"] > self._low:
            self._append(self._low, state["entered"], priority)
        self._entered = state["entered"]
        self._resumed = True

    def _restore(self, start: int, piece: dict[str, Any]) -> None:
        """Puts back what `_piece` read."""
        assert self._ring is not None
        self._ring.write(start, piece["rows"], record_of(piece["steps"]))
        stop = start + len(piece["marks"])
        self._marks[torch.arange(start, stop, device=self._home) % self._size] = piece["marks"].to(self._home)
        for i, slot in enumerate(self._slots_of(start, stop)):
            tree_map(lambda store, x, i=i, slot=slot: store[slot].copy_(x[i]), self._carry, piece["carry"])
        for row, number in self._begins:
            self._slots[row % self._size] = number % self._slot_count


_living: weakref.WeakSet[Replay] = weakref.WeakSet()


def _require_sequence(capacity: int, copies: int, rows: int, length: int, horizon: int, starts: Starts) -> None:
    """UserError if no sequence fits, or if sequences from stored memories would not meet the windows they begin at."""
    if length < 1 or capacity < 1:
        raise UserError(f"algo.replay={capacity} and sequences of {length} steps: expected at least 1 of both")
    if rows < length:
        raise UserError(
            f"algo.replay={capacity} holds {rows} rows of {copies} copies, less than one sequence of {length} steps: "
            f"give at least algo.replay={length * copies}"
        )
    if starts == "window" and length > horizon and length % horizon:
        raise UserError(
            f"sequences of {length} steps begin at windows of {horizon} rows: give at most {horizon} steps, or a "
            f"multiple of {horizon}"
        )


def _likeness(team: TeamSpec, copies: int, states: tuple[str, ...], small: torch.dtype) -> tuple[Tree, Tree]:
    """Rows and steps [1, B, ..] as windows of the team will have them, without memory; every choice has a mask."""

    def like(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((1, copies, *shape), dtype=dtype, device="meta")

    def seen(space: spaces.Space, n: int) -> Tree:
        if isinstance(space, spaces.Dict):
            return {name: seen(part, n) for name, part in space.spaces.items()}
        kind = np.dtype(space.dtype or np.float32)
        dtype = torch.float32 if kind.kind == "f" else getattr(torch, kind.name, torch.int64)
        return like(n, *(space.shape or ()), dtype=dtype)

    def flag(*shape: int) -> Tensor:
        return like(*shape, dtype=torch.bool)

    n = team.n
    rows = {
        "obs": {role.name: seen(role.observation_space, role.n) for role in team.roles},
        "action_mask": {r.name: flag(r.n, r.action.mask_size) for r in team.roles if r.action.mask_size},
        "state": {name: like(team.state_sizes[name]) for name in states},
        "alive": flag(n), "first": flag(n), "acted": flag(),
    }  # fmt: skip
    steps = {
        "action": {
            role.name: Action(
                like(role.n, len(role.action.choices), dtype=small) if role.action.choices else None,
                like(role.n, role.action.continuous) if role.action.continuous else None,
            )
            for role in team.roles
        },
        "reward": like(n), "group_reward": like(len(team.groups)), "terminated": flag(n), "truncated": flag(n),
        "episode_terminated": flag(), "episode_truncated": flag(),
    }  # fmt: skip
    return rows, steps
