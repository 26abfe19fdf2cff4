"""PyTorch's waiting threads spin briefly, whatever imports Coterie."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.spinning import limit_spinning, spinning_note

_NOTE = "from coterie.core.spinning import spinning_note; print(spinning_note(2), spinning_note(1))"


def note_after(imports: str, folder: Path) -> str:
    """The note of a new process, with an empty module in place of PyTorch."""
    (folder / "torch.py").touch()
    env = {k: v for k, v in os.environ.items() if k not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {imports}; {_NOTE}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other libraries for threads")
def test_a_note_tells_who_imported_pytorch_first_to_import_coterie_first(tmp_path: Path):
    assert note_after("import coterie, torch", tmp_path) == "None None"
    assert "Import coterie before torch" in note_after("import torch, coterie", tmp_path)


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_a_users_own_setting_needs_no_note_and_is_kept(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch")
    for known in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(known, raising=False)
    monkeypatch.setenv(name, "7")
    assert spinning_note(2) is None
    limit_spinning()
    assert os.environ[name] == "7"
