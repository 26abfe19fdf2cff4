"""Hostile text on the command line and in files: one line, no traceback, no control characters."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.imitation.demonstrations import METADATA_KEY, Demos
from mutations import assert_one_line
from tinyruns import tiny_run

ESCAPE = "\x1b]0;title\x07\u202e"
"""Sets the title of a terminal, and reverses the order of the text after it."""

TEXTS = {
    "alias": "&e {name: *e}",
    "brackets": "[" * 5000,
    "digits": '{"steps": ' + "9" * 5000 + "}",
    "control": '{"a": "\x1b[31m"}',
    "nan": '{"steps": NaN, "a": -Infinity}',
    "null": "\x00",
}


def assert_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Asserts that a command ends with exit code 2 and one printable line on stderr, and returns it.

    Commands also print which checkpoint they use.
    """
    capsys.readouterr()
    assert main(words) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.endswith("\n")
    chosen, *rest = errors.splitlines(keepends=True)
    message = "".join(rest) if rest and chosen.startswith("coterie: checkpoint: ") else errors
    assert_one_line(message[:-1])
    return message


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run without curves."""
    return tiny_run(tmp_path / "run", "env=matrix/rock_paper_scissors", "algo=ippo")


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "metrics.jsonl"])
def test_hostile_files_of_a_run_are_refused(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS.values():
        (run / name).write_text(text + "\n")
        words = ["evaluate" if name == "config.yaml" else "plot", str(run)]
        assert name in assert_refused(words, capsys)


@pytest.mark.slow
def test_hostile_checkpoints_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = [*TEXTS.values(), "[]", "{}", '{"format": 1, "state": {"dict": {}}, "metadata": {"dict": {}}}']
    for folder in (run / "checkpoints").glob("0*"):
        (folder / "SHA256SUMS").unlink()
    last = run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()
    for text in trees:
        (last / "state.json").write_text(text)
        sums = [f"{hashlib.sha256((last / name).read_bytes()).hexdigest()}  {name}\n" for name in _FILES]
        (last / "SHA256SUMS").write_text("".join(sums))
        for words in (["evaluate", str(run)], ["resume", str(run), "steps=160"]):
            assert "checkpoint" in assert_refused(words, capsys)


_FILES = ("state.safetensors", "state.json")


@pytest.fixture
def demos(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Demonstrations by the run."""
    path = tmp_path / "demos"
    assert main(["record", str(run), "--episodes=4", "--out", str(path)]) == 0
    return path


def test_hostile_demonstrations_are_refused(demos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = demos.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    for text in TEXTS.values():
        changed = json.dumps(header | {"__metadata__": {METADATA_KEY: text}}).encode()
        demos.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
        assert "demos" in assert_refused(["demos", str(demos)], capsys)


def assert_printable(capsys: pytest.CaptureFixture[str]) -> str:
    """Asserts that the output has no control characters besides line breaks, and returns it."""
    output = "".join(capsys.readouterr())
    assert all(line.isprintable() for line in output.split("\n")), output
    return output


def test_names_in_demonstrations_are_shown_with_escapes(demos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Demos.read(demos)
    teams = {f"row{ESCAPE}": {"algorithm": f"ippo{ESCAPE}", "mode": "sample"}}
    origin = {"teams": teams, "run": f"run{ESCAPE}", "steps": 3}
    Demos(f"env{ESCAPE}", {}, found.roles, found.tensors, origin, 0).write(demos)
    capsys.readouterr()
    assert main(["demos", str(demos)]) == 0
    assert r"\x1b]0;title\x07\u202e" in assert_printable(capsys)
    with pytest.raises(UserError, match="unknown") as refusal:
        raise UserError(f"unknown {ESCAPE}")
    assert_one_line(str(refusal.value))
