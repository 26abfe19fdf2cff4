"""Records for how many samples a learner draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.core.tree import tree_leaves
from coterie.ranks.ranks import ONE


def record_draws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the numbers of samples of later draws. Each has to be the size of all tensors along the axis named."""
    found: list[int] = []

    def draw(function: Callable[[int], Any], own: int, axis: int) -> Any:
        found.append(own)
        drawn, more = function(own), function(own + 1)
        for one, other in zip(tree_leaves(drawn), tree_leaves(more), strict=True):
            assert (one.shape[axis], other.shape[axis]) == (own, own + 1)
        return drawn

    monkeypatch.setattr(ONE, "draw", draw)
    return found
