"""Commands that messages suggest: a shell that runs them gets the right folder."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from coterie.__main__ import main
from tinyruns import tiny

COMMAND = re.compile(r"coterie (?:train|resume|play|watch|view|evaluate|plot|demos|record|diagnose|report)\b[^`\n]*")
NAMES = ["a  b, it's $HOME;c&d", '-run "x"']
"""All that a shell would change, and what a command would take for an option."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_suggested_commands_name_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "-runs d").mkdir()
    monkeypatch.chdir(tmp_path)
    run = Path("-runs d", name)

    def suggested(code: int, *words: str) -> list[Path]:
        capsys.readouterr()
        assert main(list(words)) == code
        output = "".join(capsys.readouterr())
        commands = [shlex.split(line.rstrip(".)")) for line in COMMAND.findall(output)]
        paths = [word.rstrip(".,)") for words in commands for word in words if "-runs d" in word]
        assert not any(path.startswith("-") for path in paths)  # they would be options
        return [Path(path) for path in paths]

    new = [*tiny("env=matrix/rock_paper_scissors", "algo=ippo", "progress=lines"), f"out={json.dumps(str(run))}"]
    assert set(suggested(0, "train", *new)) == {run}
    assert suggested(2, "train", *new) == [run]
    assert set(suggested(0, "resume", f"./{run}")) == {run}
    assert suggested(2, "demos", f"./{run}-none") == [Path(f"{run}-none")]
    shutil.copy(run / "config.yaml", tmp_path / "config.yaml")
    shutil.rmtree(run)
    run.mkdir()
    (run / "lock").touch()
    shutil.copy(tmp_path / "config.yaml", run / "config.yaml")
    assert suggested(2, "evaluate", f"./{run}") == [run / "config.yaml"]
