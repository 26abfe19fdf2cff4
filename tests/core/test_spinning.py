"""PyTorch's waiting threads spin briefly, whatever imports Coterie."""

import os
import subprocess
import sys

import pytest

_NOTE = "from coterie.core.spinning import spinning_note; print(spinning_note(2), spinning_note(1))"


def note_after(imports: str, **settings: str) -> str:
    """The note of a new process."""
    env = {k: v for k, v in os.environ.items() if k not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}} | settings
    command = [sys.executable, "-c", f"{imports}; {_NOTE}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other libraries for threads")
def test_a_note_tells_who_imported_pytorch_first_to_import_coterie_first():
    assert note_after("import coterie, torch") == "None None"
    assert "Import coterie before torch" in note_after("import torch, coterie")
    assert note_after("import torch, coterie", GOMP_SPINCOUNT="3000") == "None None"
    assert note_after("import torch, coterie", OMP_WAIT_POLICY="PASSIVE") == "None None"


def test_a_users_own_setting_is_kept():
    command = [sys.executable, "-c", "import coterie, os; print(os.environ['GOMP_SPINCOUNT'])"]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"GOMP_SPINCOUNT": "7"}
    )
    assert result.stdout == "7\n"
