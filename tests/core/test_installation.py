"""Install advice: commands that work where the user is."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest

from coterie.core import installation
from coterie.core.installation import install_extra, pip, source_checkout
from places import ROOT

TEXTS = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def test_the_command_names_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation, "pip", lambda: "pip")
    monkeypatch.chdir(ROOT)
    assert source_checkout() == ROOT
    assert install_extra("wandb") == "pip install -e '.[wandb]'"
    monkeypatch.chdir(tmp_path)
    assert install_extra("wandb") == f"pip install -e '{ROOT}[wandb]'"


def test_an_installed_copy_names_the_folder_it_was_installed_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(installation, "pip", lambda: "pip")
    monkeypatch.setattr(installation, "source_checkout", lambda: None)

    class Installed:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return f'{{"dir_info": {{}}, "url": "file://{tmp_path}/my%20clone"}}'

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert install_extra("ray") == "pip install 'coterie[ray]'"  # the folder is gone
    (tmp_path / "my clone").mkdir()
    (tmp_path / "my clone" / "pyproject.toml").touch()
    assert install_extra("ray") == f"pip install '{tmp_path}/my clone[ray]'"


def test_pip_is_the_one_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, other = (tmp_path / name for name in ("own", "other"))
    for folder in (own, other):
        folder.mkdir()
        (folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert pip() == "pip"
    monkeypatch.setenv("PATH", str(other))
    assert pip() == f"{own}/python -m pip"


def test_every_extra_in_an_error_exists() -> None:
    extras = set(metadata.metadata("coterie").get_all("Provides-Extra") or ())
    source = "\n".join(path.read_text() for path in TEXTS if path.suffix == ".py")
    named = set(re.findall(r"""install_extra\(["'](\w+)["']\)""", source))
    assert {"wandb", "mlflow", "ray", "export", "vmas", "football"} <= named <= extras


PROGRAM = """
import sys
from coterie.__main__ import main
run, out = sys.argv[1:]
small = ["steps=600", "num_envs=8", "eval.episodes=4", "progress=lines", f"out={run}"]
for words in (["train", *small], ["compare", run], ["plot", run], ["export", run, "--format", "numpy", "--out", out]):
    assert main(words) == 0, words
assert main(["check-env", "rware/rware-tiny-2ag-v2"]) == 2
main(["watch", run])
"""


@pytest.mark.slow
def test_training_and_the_hints_of_its_summary_need_nothing_but_the_core(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["", tmp_path / "program.py", tmp_path / "run", tmp_path / "out"]
    command = [sys.executable, ROOT / "tests" / "helpers" / "only_extras.py", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as ours:
        assert ours.stderr is not None
        said, address = "", None
        while address is None:
            line = ours.stderr.readline()
            assert line, said  # it has ended
            said += line
            address = re.search(r"http://\S+", line)
        try:
            assert "<canvas" in urllib.request.urlopen(address[0], timeout=30).read().decode()
        finally:
            ours.terminate()
    assert "[rware]'" in said  # the program does hide other packages
    assert (tmp_path / "run" / "curves.png").is_file()
