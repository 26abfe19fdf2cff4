"""Libraries that step batches, where they are missing; with them: tests/batched."""

from __future__ import annotations

import sys

import pytest

from coterie import registry
from coterie.envs.make import make
from coterie.errors import UserError


@pytest.mark.parametrize("missing", ["vmas", "gym"])
def test_vmas_that_is_missing_is_one_line_that_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch):
    if missing == "gym":
        monkeypatch.setattr("importlib.import_module", _needing_gym)
    else:
        monkeypatch.setitem(sys.modules, "vmas", None)
    with pytest.raises(UserError) as error:
        make("vmas/balance")
    what = "vmas" if missing == "vmas" else "'gym' beside vmas"
    assert str(error.value) == f"environment 'vmas/balance' needs {what}, which is not installed: " + (
        'pip install "coterie[vmas]"'
    )


def test_nothing_of_vmas_is_listed_or_imported_without_being_asked_for():
    assert not [name for name in registry.environments() if name.startswith("vmas/")]
    assert registry.is_adapted("vmas/balance")
    assert "vmas" not in sys.modules


def _needing_gym(name: str) -> object:
    if name == "vmas":
        raise ModuleNotFoundError("No module named 'gym'", name="gym")
    return __import__(name, fromlist=["_"])
