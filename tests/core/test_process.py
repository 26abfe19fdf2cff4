"""Settings of the process."""

import gc
import weakref

import pytest

from coterie.core.process import rare_garbage_collection


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def nothing_is_skipped_yet():
    gc.unfreeze()
    gc.collect()


def test_existing_objects_are_collected_after_the_context_only():
    before = weakref.ref(Cycle())
    with rare_garbage_collection():
        within = weakref.ref(Cycle())
        gc.collect()
        assert before() is not None
        assert within() is None
    gc.collect()
    assert before() is None


def test_existing_objects_are_collected_after_an_error():
    before = weakref.ref(Cycle())
    with pytest.raises(ValueError), rare_garbage_collection():
        raise ValueError
    gc.collect()
    assert before() is None


def test_a_few_frozen_objects_are_pythons_own(monkeypatch):
    """Python 3.12 and later count immortal objects as frozen."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    before = gc.get_threshold()
    with rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]


def test_collections_are_rarer_within_the_context_only():
    before = gc.get_threshold()
    with rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_objects_that_the_caller_has_frozen_stay_so():
    gc.freeze()
    with rare_garbage_collection():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
