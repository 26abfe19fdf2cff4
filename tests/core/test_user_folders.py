"""Folders of the user, with variables that name none."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.config.trust import signature
from coterie.core.user_folders import home_folder, user_folder, without_invalid_folders
from coterie.kernels import build
from coterie.kernels.build import KernelsUnavailableError
from tinyruns import tiny

INVALID = ["", "relative", "~", "$HOME"]
"""Values of variables that name no absolute path."""
NAMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "MPLCONFIGDIR")


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home in the user database, without any variables."""
    home = tmp_path / "account"
    home.mkdir()
    entry = pwd.struct_passwd(("user", "x", 1, 1, "", str(home), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: entry)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return home


def nobody(number: int) -> pwd.struct_passwd:
    """Replaces `pwd.getpwuid` for a user that is in no database."""
    raise KeyError


def test_absolute_variables_name_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_folder() == tmp_path
    assert user_folder("XDG_STATE_HOME", ".local/state") == tmp_path / ".local" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "missing"))
    assert user_folder("XDG_STATE_HOME", ".local/state") == tmp_path / "missing"


@pytest.mark.parametrize("value", INVALID)
def test_other_values_are_ignored(value: str, account: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", value)
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert home_folder() == account
    assert user_folder("XDG_CACHE_HOME", ".cache") == account / ".cache"
    with without_invalid_folders():
        assert "HOME" not in os.environ
        assert "XDG_CACHE_HOME" not in os.environ
        assert Path.home() == account
    assert os.environ["HOME"] == os.environ["XDG_CACHE_HOME"] == value


@pytest.mark.parametrize("home", ["/", "/none/such", None])
def test_without_a_home_runs_are_not_signed_and_kernels_not_compiled(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if home is None:
        monkeypatch.setattr(pwd, "getpwuid", nobody)
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert home_folder() is None
    assert signature({"seed": 1}) is None
    with pytest.raises(KernelsUnavailableError, match="Set XDG_CACHE_HOME to a folder of yours"):
        build.cached_library()
    with without_invalid_folders():
        folder = Path(os.environ["MPLCONFIGDIR"])
        assert folder.is_dir()
    assert not folder.exists()
    assert "MPLCONFIGDIR" not in os.environ
    assert [path.name for path in tmp_path.iterdir()] == ["account"]


@pytest.mark.slow
def test_a_run_writes_to_its_folder_only(tmp_path: Path):
    """The home does not exist, and the other variables are relative."""
    env = {name: text for name, text in os.environ.items() if name not in NAMES}
    env |= {"HOME": str(tmp_path / "none")} | dict.fromkeys(NAMES[1:-1], "relative")
    before = set(os.listdir("/"))
    words = [*tiny("env=matrix/rock_paper_scissors", "algo=ippo", "kernels=off"), "out=run"]
    command = [sys.executable, "-m", "coterie", "train", *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["account", "run"]
    assert not (set(os.listdir("/")) - before) & {".local", ".cache", ".config", "coterie", "matplotlib"}
