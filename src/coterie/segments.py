"""Segments: large pieces of a state that never change once they are made, so that a checkpoint need only name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Pieces = dict[str, Tensor]


@dataclass
class Written:
    """Under which hash a segment lies on disk; None until it was written. Its owner and those who save it share it."""

    digest: str | None = None


class Segment:
    """A piece of a state that stays as it is for good: tensors by name, read when they are wanted.

    `read` may fail once the owner of the state has gone on and thrown the piece away; a deep copy holds its own.
    """

    def __init__(self, read: Callable[[], Pieces], written: Written):
        self.read, self.written = read, written

    def __deepcopy__(self, memo: dict[int, Any]) -> Segment:
        held = {name: tensor.clone() for name, tensor in self.read().items()}
        return Segment(lambda: held, Written(self.written.digest))
