"""Names of agents, sensors and metrics with control characters and tags: no terminal and no page gets them raw."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from coterie.__main__ import main
from hostileworld import TAG
from places import HELPERS
from sweeps import update_environment
from tinyruns import Process, tiny, train

pytestmark = pytest.mark.slow

WORLD = "hostileworld:Hostile"
RAW = ("\x1b]0;title", "\x07", "\u202e", "\x9b")


def assert_harmless(text: str) -> None:
    """Asserts that none of the control sequences of the world is in what a terminal gets, which has other ones."""
    assert [code for code in RAW if code in text] == []


def assert_printable(text: str) -> None:
    """Asserts that a text has no character but printable ones and line breaks."""
    assert [line for line in text.split("\n") if not line.isprintable()] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return train(folder / "run", f"env={WORLD}", "algo=ippo", "eval.every=40").run


@pytest.mark.parametrize(
    "words",
    [
        ["ps", "RUNS"],
        ["diagnose", "RUN"],
        ["plot", "RUN", "--out", "OUT/curves.svg"],
        ["record", "RUN", "--episodes", "2", "--out", "OUT/demos"],
        ["compare", "RUN", "RUN"],
        ["report", "RUN", "--out", "OUT/report.html"],
        ["export", "RUN", "--format", "numpy", "--out", "OUT/export"],
        ["check-env", WORLD],
        ["train", f"env={WORLD}", "--cfg", "job"],
        ["train", *tiny(f"env={WORLD}", "algo=ippo", "progress=lines"), "out=OUT/run"],
        ["train", "-m", *tiny(f"env={WORLD}", "algo=ippo", "seed=0", "steps=40", "eval.every=0"), "out=OUT/sweep"],
    ],
    ids=lambda words: " ".join(word for word in words[:5] if word.isalpha() or word.startswith("-")),
)
def test_commands_print_and_write_no_raw_name(
    words: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HELPERS), *sys.path]))  # of the processes of a sweep
    places = {"RUNS": str(run.parent), "RUN": str(run), "OUT": str(tmp_path)}
    for name, path in places.items():
        words = [path if word == name else word.replace(f"{name}/", f"{path}/") for word in words]
    assert main(words) == 0
    assert_printable("".join(capsys.readouterr()))
    for page in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.svg")]:
        text = page.read_text(encoding="utf-8")
        assert_printable(text)
        assert TAG not in text


@pytest.mark.skipif(sys.platform == "win32", reason="its folders have no such names")
@pytest.mark.parametrize("words", [["resume", "steps=120"], ["evaluate"], ["report", "--out", "report.html"]])
def test_names_of_folders_are_harmless_too(
    words: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(run, f"r\x1b[31m\x07\u202e\r{TAG.replace('/', ':')}")
    assert main([words[0], folder, *words[1:]]) == 0
    assert_printable("".join(capsys.readouterr()))
    for page in tmp_path.glob("*.html"):
        assert_printable(page.read_text(encoding="utf-8"))
        assert "<script>alert" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("more", [(), ("--traceback",), ("workers.count=1", "workers.restarts=1")], ids=str)
def test_an_error_of_the_environment_is_shown_with_escapes(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    assert main(["train", *tiny(f"env={WORLD}", "env.fail=true", "algo=ippo", f"out={tmp_path / 'run'}"), *more]) == 3
    error = capsys.readouterr().err
    assert r"boom\x1b]0;title\x07\u202e\x9b31m" in error
    assert ("Traceback" in error) == ("--traceback" in more)
    assert ("replaced a worker" in caplog.text) == ("workers.count=1" in more)
    assert_printable(error + "".join(record.getMessage() for record in caplog.records))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    "words", [["train", *tiny(f"env={WORLD}", "algo=ippo", "out=new", "progress=auto")], ["evaluate", "RUN", "--trust"]]
)
def test_a_terminal_gets_no_raw_name(words: list[str], run: Path, tmp_path: Path):
    """Tables and progress of a terminal have colors of their own."""
    ours, theirs = os.openpty()
    printed: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the end of a pseudo-terminal
            while part := os.read(ours, 65536):
                printed.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    words = [str(run) if word == "RUN" else word for word in words]
    terminal = partial(update_environment, {"TERM": "xterm-256color"})
    code, _ = Process(tmp_path, *words, terminal=Path(os.ttyname(theirs)), prepare=terminal).end()
    os.close(theirs)
    reader.join()
    os.close(ours)
    text = b"".join(printed).decode()
    assert code == 0, text[-500:]
    assert "title" in text, "names are shown"
    assert "\x1b[" in text, "with colors"
    assert_harmless(text)
