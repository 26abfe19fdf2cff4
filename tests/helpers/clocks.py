"""Clocks that do not depend on the machine."""

from __future__ import annotations

from itertools import count

import pytest


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the checker's clock by one that advances 0.1 ms per reading: no test depends on the machine's speed."""
    monkeypatch.setattr("coterie.checks.environment.contract.perf_counter", lambda ticks=count(): next(ticks) * 1e-4)
