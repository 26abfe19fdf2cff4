"""Libraries that step batches, if they are not installed; tests/batched needs them."""

from __future__ import annotations

import sys

import pytest

from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.envs import registry
from coterie.envs.make import make


@pytest.mark.parametrize("missing", ["vmas", "gym"])
def test_missing_vmas_is_reported_with_the_install_command(missing: str, monkeypatch: pytest.MonkeyPatch):
    if missing == "gym":
        monkeypatch.setattr("importlib.import_module", _needing_gym)
    else:
        monkeypatch.setitem(sys.modules, "vmas", None)
    with pytest.raises(UserError) as error:
        make("vmas/balance")
    missing_package = "vmas" if missing == "vmas" else "'gym' in addition to vmas"
    assert str(
        error.value
    ) == f"environment 'vmas/balance' needs {missing_package}, which is not installed. Install it with: " + (
        install_extra("vmas")
    )


def test_vmas_is_imported_only_when_requested():
    assert not [name for name in registry.environments() if name.startswith("vmas/")]
    assert registry.is_external("vmas/balance")
    assert "vmas" not in sys.modules


def _needing_gym(name: str) -> object:
    if name == "vmas":
        raise ModuleNotFoundError("No module named 'gym'", name="gym")
    return __import__(name, fromlist=["_"])
