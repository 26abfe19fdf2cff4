"""Fixtures of all tests of environments."""

from itertools import count

import pytest


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the checker's clock by one that advances 0.1 ms per reading: no test depends on the machine's speed."""
    monkeypatch.setattr(
        "coterie.envs.contract.consistency_checks.perf_counter", lambda ticks=count(): next(ticks) * 1e-4
    )
