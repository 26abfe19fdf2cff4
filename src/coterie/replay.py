"""Replay: one ring of rows that sequences of any length are drawn from; a transition is a sequence of length one.

Windows are stored as the stream of rows that they are, and nothing is padded: what follows on an episode's end is the
copy's next episode. A sequence starts at one row of one copy and reads `length` steps and the row after them.

Source of the priorities: Schaul et al. 2016, Prioritized Experience Replay (the proportional variant).
"""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.ring import Ring, Store, join, likeness, plain, record_of, split
from coterie.room import free_bytes, in_words
from coterie.seeds import generator
from coterie.segments import Segment, Written
from coterie.starts import Kind, Starts, index_bytes, most_starts
from coterie.types import TeamSpec, Tree, Window, tree_leaves, tree_map

_SEGMENT_BYTES = 4 << 20
"""A checkpoint rewrites less than two segments' worth of rows, and names the others; see `Replay.state_dict`."""

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
    temporary folder, mapped into memory); carry: like the memories that are stored with windows, by name [B, N, H];
    least: sequences that there must be room for; priority_exponent: alpha, 0 draws uniformly; importance_exponent:
    beta, which may be set anew between samples.

    Memory is taken when the first window comes, and UserError raised here already if there is not enough of it, or if
    `capacity` holds no sequence. The device is read once an `add`, and never to sample.
    """

    def __init__(
        self, team: TeamSpec, copies: int, horizon: int, *, capacity: int, length: int, starts: Kind,
        states: tuple[str, ...], seed: int, device: torch.device, store: Store = "device", carry: Tree = None,
        least: int = 1, priority_exponent: float = 0.0, importance_exponent: float = 0.0,
    ):  # fmt: skip
        self._copies, self._horizon, self._length, self._states = copies, horizon, length, states
        self._kind: Kind = starts
        self._store: Store = store
        self._alpha, self.importance_exponent = priority_exponent, importance_exponent
        self._rows = -(-capacity // (copies * horizon)) * horizon
        self._device = torch.device(device)
        self._home = self._device if store == "device" else torch.device("cpu")
        _require_sequences(capacity, copies, self._rows, length, horizon, starts, least)
        choices = max((n for role in team.roles for n in role.action.choices), default=1)
        self._small = torch.uint8 if choices <= 1 << 8 else torch.int16 if choices <= 1 << 15 else torch.int32
        self._generator = generator(seed, "replay", device=self._home)
        self._held: _Held | None = None
        self._head = 0  # rows added; the stream's row `head` is the one to look ahead
        self._windows: deque[tuple[int, int]] = deque()  # first row and number of every window in the ring
        self._resumed = False  # no window was added since the state was loaded
        self._written: dict[int, Written] = {}  # segments by their first row
        expected = likeness(team, copies, states, self._small)
        stored = (self._rows // horizon + 1) * sum(x.nbytes for x in tree_leaves(carry or {}))
        self.nbytes = (self._rows + 1) * sum(x.nbytes for x in tree_leaves(expected)) + stored + self._index_bytes()
        """Bytes of the rows, the memories stored beside them and the index; from the first window on exactly."""
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

    def _index_bytes(self) -> int:
        return index_bytes(self._rows, self._copies, self._horizon, self._kind, self._alpha)

    def _free(self) -> int | None:
        """Bytes free where the rows will lie, less what other replays have not filled yet."""
        free = free_bytes(self._store, self._device)
        waiting = sum(r.nbytes for r in _living if r._held is None and r._place == self._place)
        return None if free is None else max(0, free - waiting)

    @property
    def _place(self) -> str:
        return "disk" if self._store == "disk" else str(self._home)

    def _require_room(self, capacity: int) -> None:
        """UserError if the replay cannot fit beside those that were made before and are not filled yet."""
        if _unchecked.get() or (free := self._free()) is None or self.nbytes <= free:
            return
        gc.collect()  # others may be garbage
        if self.nbytes <= (free := self._free() or 0):
            return
        where = "the temporary folder's disk" if self._store == "disk" else "memory"
        where = str(self._home) if self._home.type != "cpu" else where
        fits = free / self.nbytes * capacity
        fits = int(fits // (unit := 10 ** max(0, int(math.log10(max(fits, 1))) - 1)) * unit)
        smaller = f"algo.replay={fits} or " if fits else ""
        other = "TMPDIR=a folder on a larger disk"
        if self._store != "disk" and ((room := free_bytes("disk", self._device)) is None or self.nbytes <= room):
            other = "algo.replay_store=disk"
        elif self._store != "disk":
            other = f"algo.replay_store=disk with {other}"
        raise UserError(
            f"algo.replay={capacity} does not fit: a replay of {capacity:,} steps takes {in_words(self.nbytes)} of "
            f"{where}, and {in_words(free)} are free; give {smaller}{other}"
        )

    # ------------------------------------------------------------------------------------------------ adding, drawing

    def add(self, window: Window) -> None:
        """Stores a window of `horizon` rows and the one after.

        It follows on the window that was added before, unless all copies begin new episodes with it: then it need not,
        and where it does not the episodes before are cut.
        """
        if (window.horizon, window.copies) != (self._horizon, self._copies):
            raise ValueError(
                f"a window of {window.horizon} rows and {window.copies} copies in a replay of windows of "
                f"{self._horizon} rows and {self._copies} copies"
            )
        rows, steps = split(window, self._states, self._small)
        carry = window.carry if self._kind == "window" else {}
        rows, steps, carry = tree_map(lambda x: x.to(self._home), (rows, steps, carry))
        held = self._held or self._allocate(rows, steps, carry)
        anew = self._head > 0 and bool((window.first[0] | ~window.alive[0]).all())
        if (self._resumed or anew) and not held.shows(self._head, rows):
            held.cut(self._head)
            self._head += 1
        self._resumed = False
        number = self._windows[-1][1] + 1 if self._windows else 0
        self._windows.append((self._head, number))
        held.ring.write(self._head, rows, steps)
        held.store_carry(self._head, number, carry)
        held.starts.mark(self._head, rows["acted"][:-1])
        self._head += self._horizon
        held.starts.enter(self._head)
        while self._windows[0][0] < self._low:
            self._windows.popleft()

    def _allocate(self, rows: Tree, steps: Tree, carry: Tree) -> _Held:
        """Takes the memory, for leaves like these: [any, B, ..], the carry's [B, ..]."""
        ring = Ring(self._rows + 1, self._copies, self._store, self._device, rows, steps)
        starts = Starts(
            self._rows, self._copies, self._length, self._horizon, self._kind, self._alpha, self._home
        )  # fmt: skip
        slots = self._rows // self._horizon + 1
        self._held = _Held(ring, starts, tree_map(lambda x: ring.zeros(slots, x.unsqueeze(0)), carry))
        self.nbytes = ring.nbytes + sum(x.nbytes for x in tree_leaves(self._held.carry)) + self._index_bytes()
        wanted = max(_SEGMENT_BYTES, ring.nbytes // 256) * ring.size / ring.nbytes
        self._segment_rows = math.ceil(wanted / self._horizon) * self._horizon
        return self._held

    @property
    def _low(self) -> int:
        """The oldest row of the stream that is held."""
        return max(0, self._head - self._rows)

    @property
    def starts_held(self) -> int:
        """How many sequences there are to draw from."""
        return 0 if self._held is None else self._held.starts.held

    def ready(self, count: int) -> bool:
        """Whether there are `count` different sequences."""
        return self.starts_held >= count

    def sample(self, count: int) -> Sample:
        """`count` sequences, drawn with replacement. ValueError if there are none."""
        held = self._held
        if held is None or held.starts.held == 0:
            raise ValueError("nothing can be drawn from this replay yet; ask `ready` before")
        code, weight = held.starts.draw(count, self.importance_exponent, self._generator)
        steps = torch.arange(self._length + 1, device=self._home).unsqueeze(1)
        places = (code + steps * self._copies) % (held.ring.size * self._copies)
        rows, paid = held.ring.take(places, self._length)
        window = join(rows, paid, held.take_carry(places[0]), self._device)
        return Sample(window, code.to(self._device), weight.to(self._device))

    def reprioritise(self, index: Tensor, error: Tensor) -> None:
        """Sets the priorities of drawn sequences to `error` [S] >= 0; nothing where sampling is uniform.

        index: of the sample, [S]; sequences that were overwritten meanwhile are passed over.
        """
        if self._held is not None and self._alpha > 0:
            self._held.starts.reprioritise(index.to(self._home), error.detach().to(self._home))

    # --------------------------------------------------------------------------------------------------------- resuming

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
            "shape": self._shape(),
        }
        if self._held is None:
            return state
        size = self._segment_rows
        first = -(-self._low // size) * size
        last = max(first, (self._head - 1) // size * size)  # the newest row may change still, see `_Held.cut`
        self._written = {start: self._written.get(start, Written()) for start in range(first, last, size)}
        whole = {start: Segment(partial(self._leaves, start), written) for start, written in self._written.items()}
        ends = [(self._low, first), (last, self._head + 1)] if first <= self._head else [(self._low, self._head + 1)]
        return state | {
            "starts": self._held.starts.state_dict(),
            "windows": [list(window) for window in self._windows],
            "segment_rows": size,
            "segments": whole,
            "pieces": [[start, self._piece(start, stop)] for start, stop in ends if start < stop],
        }

    def _shape(self) -> list[Any]:
        return [self._rows, self._copies, self._horizon, self._length, self._kind]

    def _piece(self, start: int, stop: int) -> dict[str, Any]:
        """Copies of the rows [start, stop) and of all that belongs to them."""
        assert self._held is not None
        numbers = [number for row, number in self._windows if start <= row < stop]
        return self._held.read(start, stop, numbers)

    def _leaves(self, start: int) -> dict[str, Tensor]:
        """The leaves of a segment's piece, by number."""
        if start < self._low:
            raise RuntimeError("the state of a replay is saved, or copied, before windows are added to it")
        leaves = tree_leaves(self._piece(start, start + self._segment_rows))
        return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called. UserError if the state is one of another replay.

        If the next window does not begin with the row that was to come, every copy's episode is cut there.
        """
        if list(state["shape"]) != self._shape():
            raise UserError(
                f"the checkpoint's replay has rows, copies, horizon, length and starts {state['shape']}, this run's "
                f"{self._shape()}: restore the config.yaml that the run was started with"
            )
        self._generator.set_state(state["generator"].cpu())
        self.importance_exponent = state["importance_exponent"]
        self._head, self._held, self._written = state["head"], None, {}
        self._windows.clear()
        if self._head == 0:
            return
        self._windows.extend((row, number) for row, number in state["windows"])
        model = state["pieces"][-1][1]
        carry = tree_map(lambda x: torch.empty(x.shape[1:], dtype=x.dtype), model["carry"])
        held = self._allocate(model["rows"], record_of(model["steps"]), carry)
        self._segment_rows = state["segment_rows"]
        for start, segment in state["segments"].items():
            leaves = iter(sorted(segment.read().items()))
            held.restore(start, tree_map(lambda _, leaves=leaves: next(leaves)[1], model), self._windows)
            self._written[start] = Written(segment.written.digest)
        for start, piece in state["pieces"]:
            held.restore(start, piece, self._windows)
        held.starts.load_state_dict(state["starts"])
        self._resumed = True


class _Held:
    """What a replay holds: rows, starts, and the memories that windows began with.

    carry: by name [windows, B, N, H]; the memory of window `number` lies at place `number % windows`.
    """

    def __init__(self, ring: Ring, starts: Starts, carry: Tree):
        self.ring, self.starts, self.carry = ring, starts, carry
        leaves = tree_leaves(carry)
        self._slots = len(leaves[0]) if leaves else 1
        self._slot = torch.zeros(ring.size, dtype=torch.int64, device=ring.device)  # of the window that a row begins

    def store_carry(self, row: int, number: int, carry: Tree) -> None:
        """Puts the memory by name [B, N, H] before the window `number`, whose first row is `row`."""
        slot = number % self._slots
        tree_map(lambda store, x: store[slot].copy_(x), self.carry, carry)
        self._slot[row % self.ring.size] = slot

    def take_carry(self, places: Tensor) -> Tree:
        """The memories before the rows at `places` [S] = row place x B + copy, by name [S, N, H]."""
        copies = self.ring.copies

        def gather(store: Tensor) -> Tensor:
            index = self._slot[places // copies] * copies + places % copies
            return store.flatten(0, 1).index_select(0, index)

        return tree_map(gather, self.carry)

    def shows(self, head: int, rows: Tree) -> bool:
        """Whether `rows` [T + 1, B, ..] begin with the row that was shown last: the environment went on."""
        shown, _ = self.ring.read(head, head + 1)
        return all(bool(a[0].equal(b[0])) for a, b in zip(tree_leaves(shown), tree_leaves(rows), strict=True))

    def cut(self, head: int) -> None:
        """Closes every copy's episode at the newest row: an environment that could not be restored begins new ones.

        The row to look ahead stays as a closing row, so that what was done last has its true successor.
        """
        last, place = (head - 1) % self.ring.size, head % self.ring.size
        rows, steps = self.ring.rows, self.ring.steps
        cut = self.starts.cut(head) & ~steps["episode_terminated"][last]
        steps["episode_truncated"][last] |= cut
        steps["truncated"][last] |= rows["alive"][last] & ~steps["terminated"][last] & cut.unsqueeze(-1)
        for leaf in tree_leaves((steps, rows["acted"])):
            leaf[place] = 0

    def read(self, start: int, stop: int, numbers: list[int]) -> dict[str, Any]:
        """Copies of the rows [start, stop) of the stream, and of the memories of the windows `numbers`."""
        rows, steps = self.ring.read(start, stop)
        places = torch.arange(start, stop, device=self.ring.device) % self.ring.size
        slots = torch.tensor(numbers, dtype=torch.int64, device=self.ring.device) % self._slots
        carry = tree_map(lambda x: x.index_select(0, slots), self.carry)
        return {"rows": rows, "steps": plain(steps), "marks": self.starts.marks[places], "carry": carry}

    def restore(self, start: int, piece: dict[str, Any], windows: Iterable[tuple[int, int]]) -> None:
        """Puts back what `read` copied; windows: first row and number of all windows in the ring."""
        self.ring.write(start, piece["rows"], record_of(piece["steps"]))
        stop = start + len(piece["marks"])
        places = torch.arange(start, stop, device=self.ring.device) % self.ring.size
        self.starts.marks[places] = piece["marks"].to(self.ring.device)
        for i, (row, number) in enumerate(window for window in windows if start <= window[0] < stop):
            self.store_carry(row, number, tree_map(lambda x, i=i: x[i], piece["carry"]))


_living: weakref.WeakSet[Replay] = weakref.WeakSet()


def _require_sequences(
    capacity: int, copies: int, rows: int, length: int, horizon: int, starts: Kind, least: int
) -> None:
    """UserError if there is never room for `least` sequences."""
    if length < 1 or capacity < 1:
        raise UserError(f"algo.replay={capacity} and sequences of {length} steps: expected at least 1 of both")
    if rows < length:
        raise UserError(
            f"algo.replay={capacity} holds {rows} rows of {copies} copies, less than one sequence of {length} steps: "
            f"give at least algo.replay={length * copies}"
        )
    most = most_starts(rows - length + 1, copies, horizon, starts)
    if most < least:
        raise UserError(
            f"algo.replay={capacity} holds at most {most} sequences of {length} steps, less than algo.batch={least}: "
            "give a larger algo.replay or a smaller algo.batch"
        )
