"""Settings of the process."""

import gc
import os
import subprocess
import sys
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
    with pytest.raises(ValueError), rare_garbage_collection():
        raise ValueError
    assert gc.get_freeze_count() == 0


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


_NOTE = "torch.set_num_threads(2); from coterie.core.process import spinning_note; print(spinning_note())"


def note_after(imports: str, **settings: str) -> str:
    """The note of a new process."""
    env = {k: v for k, v in os.environ.items() if k not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}} | settings
    command = [sys.executable, "-c", f"{imports}; {_NOTE}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other libraries for threads")
def test_a_note_tells_who_imported_pytorch_first_to_import_coterie_first():
    assert note_after("import coterie, torch") == "None"
    assert "Import coterie first" in note_after("import torch, coterie")
    assert note_after("import torch, coterie", GOMP_SPINCOUNT="3000") == "None"
    assert note_after("import torch, coterie", OMP_WAIT_POLICY="PASSIVE") == "None"


def test_a_users_own_setting_is_kept():
    command = [sys.executable, "-c", "import coterie, os; print(os.environ['GOMP_SPINCOUNT'])"]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"GOMP_SPINCOUNT": "7"}
    )
    assert result.stdout == "7\n"
