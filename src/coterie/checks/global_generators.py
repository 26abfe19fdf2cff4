"""Global random generators of PyTorch, NumPy and Python, which neither environments nor algorithms may use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def watched() -> Iterator[list[str]]:
    """Context manager whose list has, at its end, the names of the generators that were drawn from or seeded."""
    drawn: list[str] = []
    before = _states()
    yield drawn
    after = _states()
    drawn += [name for name, state in before.items() if not np.array_equal(state, after[name])]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context manager that seeds the generators, and restores their states at its end."""
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        random.setstate(saved[2])


def _states() -> dict[str, Any]:
    """Returns the states of the generators as arrays."""
    _, words, at, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    python = np.array(random.getstate()[1], dtype=object)
    return {"torch": torch.get_rng_state().numpy(), "numpy": np.append(words, at), "python": python}
