from __future__ import annotations

import os

import pytest

from coterie.assembly.core_sets import core_sets, pin


def test_processes_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6, 7}, raising=False)
    assert core_sets(2, 2) == [{0, 2}, {4, 6}]
    assert core_sets(1, 6) == [frozenset()] * 6  # more processes than cores: the system divides them
    assert core_sets(None, 2) == [frozenset()] * 2


def test_a_process_is_restricted_to_cores_unless_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *arguments: calls.append(arguments), raising=False)
    pin(7, frozenset())
    pin(7, frozenset({1, 3}))
    assert calls == [(7, {1, 3})]
