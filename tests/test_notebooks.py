"""Coterie in notebooks, whose kernels are processes of their own, and the notebooks of the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.core import terminal
from coterie.core.errors import UserError
from coterie.runs.progress import NotebookProgress, progress
from places import ROOT

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.ipynb") if "_build" not in path.parts)


FEWER = {
    "steps=300_000": "steps=600",
    '"every": 30_000': '"every": 300',
    "steps=8_000": "steps=600",
    '"episodes": 64': '"episodes": 8',
    '"episodes": 32': '"episodes": 8',
    "200)": "8)",
    "size=240": "size=64",
}
"""Changes of the pages for tests, which train less."""


WITHOUT_CURVES = "import coterie.commands.train as _train; _train.draw_curves = lambda folder: None"
"""They take longer than such runs; the pages plot one."""


def code_cells(page: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Code cells with their outputs, of the pages and of `SHOWN`, executed by one kernel in a folder for each."""
    folder = tmp_path_factory.mktemp("notebooks")
    sources = {page.stem: [text(cell["source"]) for cell in code_cells(page)] for page in PAGES}
    for old, new in FEWER.items():
        sources = {name: [source.replace(old, new) for source in cells] for name, cells in sources.items()}
    sources["shown"] = [*SHOWN]
    cells = []
    for name, found in sources.items():
        (folder / name).mkdir()
        cells += [f"import os; os.chdir({str(folder / name)!r}); {WITHOUT_CURVES}", *found]
    page, result = notebook(folder, *cells), folder / "executed.ipynb"
    words = [sys.executable, str(ROOT / "tests" / "helpers" / "run_notebook.py"), str(page), str(result)]
    env = os.environ | {"JUPYTER_PLATFORM_DIRS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    new = iter(code_cells(result))
    return {name: [next(new) for _ in ["of the folder", *found]][1:] for name, found in sources.items()}


def notebook(folder: Path, *cells: str) -> Path:
    """Writes a notebook of code cells."""
    made = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
        for i, text in enumerate(cells)
    ]
    content = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = folder / "notebook.ipynb"
    path.write_text(json.dumps(content))
    return path


def text(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


def html(cell: dict[str, Any]) -> str:
    (output,) = [output for output in cell["outputs"] if output["output_type"] != "stream"]
    return text(output["data"]["text/html"])


def errors_and_red(cells: list[dict[str, Any]]) -> list[Any]:
    """Returns what a notebook shows in red."""
    outputs = [output for cell in cells for output in cell["outputs"]]
    return [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]


TRAIN = """
import coterie
quick = dict(steps=200, num_envs=4, rollout_length=26, threads=1, device="cpu", out="runs/a", overwrite=True)
run = coterie.train("mappo", "particle/simple_spread", eval={"episodes": 4}, **quick)
"""


SHOWN = (
    *(TRAIN, TRAIN, "run", "coterie.make('particle/simple_tag')", "coterie.as_parallel_env('particle/simple_tag')"),
    *("coterie.as_vector_env('particle/simple_spread')", "coterie.as_multiagent_env('particle/simple_spread')"),
    *("coterie.diagnose(run)", "coterie.load(run)", "run.evaluate(episodes=4)", "coterie.compare(run)"),
    *("coterie.runs()", "run.plot()", "run.video(size=64)", "coterie.train('mappo', **{'algo.lrr': 1})"),
)


@pytest.mark.slow
def test_a_notebook_shows_one_bar_and_nothing_red(executed: dict[str, list[dict[str, Any]]]):
    *cells, wrong = executed["shown"]
    assert errors_and_red(cells) == []
    train, again, *shown = cells
    for cell in (train, again):
        (bar,) = [output for output in cell["outputs"] if output["output_type"] != "stream"]
        assert bar["output_type"] == "display_data"
        assert '<progress value="1.0000"' in text(bar["data"]["text/html"])
        assert "200 / 200 steps" in text(bar["data"]["text/plain"])
    expected = (
        "team return",
        *["adversary_0"] * 2,
        *["agent_0"] * 2,
        "checks found nothing",
        "agent_0",
        "return per agent",
        "algorithm",
        "runs/a",
    )
    for cell, words in zip(shown, (*expected, "data:image/png;base64,", "data:image/gif;base64,"), strict=True):
        assert words in html(cell)
    (error,) = wrong["outputs"]
    assert error["ename"] == "UserError"
    (line,) = error["traceback"]
    assert line.startswith("UserError: algo.lrr (argument): no such setting. Did you mean 'algo.lr'")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebooks_of_the_documentation_run_and_have_outputs_of_their_code(
    page: Path, executed: dict[str, list[dict[str, Any]]]
):
    for old, new in zip(code_cells(page), executed[page.stem], strict=True):
        fails = "raises-exception" in old["metadata"].get("tags", [])
        assert fails or errors_and_red([new]) == []
        kinds = [[(o["output_type"], *sorted(o.get("data", ()))) for o in cell["outputs"]] for cell in (old, new)]
        streams = [[k for k in kind if k[0] != "stream"] for kind in kinds]
        assert streams[0] == streams[1], "execute the notebooks again: python docs/generate.py --notebooks"
    assert str(ROOT) not in page.read_text()


# ------------------------------------------------------------------------------------------------ without a kernel


class Display:
    """A replacement for IPython's display handle, which counts updates."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, shown: NotebookProgress) -> None:
        self.shown.append(shown._repr_html_())


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    """Makes this process look like the kernel of a notebook."""
    found = Display()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(
        sys.modules,
        "IPython.display",
        SimpleNamespace(display=lambda shown, display_id: found),  # type: ignore[arg-type]
    )
    return found


def test_the_bar_is_updated_in_place_and_escapes_what_it_shows(display: Display):
    now = [0.0]
    bar = NotebookProgress("mappo on <b>", interval_s=0.5, clock=lambda: now[0])
    bar.print_line("run: <i>")
    bar.print_note("a setting without effect")
    for steps in range(0, 100, 10):
        now[0] += 0.25
        bar.update(steps, 100, {"eval/<u>/return_mean": 1.0})
    bar.print_line("a warning & more")
    bar.close()
    bar.close()
    assert len(display.shown) == 9  # three lines, five of ten updates, and the end
    last = display.shown[-1]
    assert "<details><summary>about this run</summary>" in last
    assert last.index("run: &lt;i&gt;") < last.index("</details>") < last.index("a setting without effect")
    assert last.index("a setting without effect") < last.index("a warning &amp; more")
    assert "&lt;u&gt;" in last
    assert not {"<b>mappo on <b>", "<u>", "<i>"} & set(last.split("\n"))
    assert "mappo on &lt;b&gt;" in last


@pytest.mark.parametrize("mode", ["auto", "rich"])
def test_a_notebook_gets_its_own_display_and_messages_that_are_not_red(
    display: Display, capsys: pytest.CaptureFixture[str], mode: Any
):
    assert isinstance(progress(mode), NotebookProgress)
    terminal.print_message("hello")
    lines = progress("lines", title="title")
    lines.close()
    assert capsys.readouterr() == ("coterie: hello\ntitle\n", "")


def test_elsewhere_messages_are_on_stderr(capsys: pytest.CaptureFixture[str]):
    terminal.print_message("hello")
    assert capsys.readouterr() == ("", "coterie: hello\n")


def test_ipython_shows_mistakes_without_a_traceback():
    assert UserError("steps=x: expected an integer")._render_traceback_() == ["UserError: steps=x: expected an integer"]
