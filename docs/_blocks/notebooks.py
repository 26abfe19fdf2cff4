"""Executes the notebooks of the documentation in a temporary folder, and stores them with their outputs."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]


def pages() -> list[Path]:
    """Returns all notebooks."""
    return sorted(path for path in DOCS.rglob("*.ipynb") if "_build" not in path.parts)


def executed(page: Path) -> Any:
    """Returns a notebook with new outputs. A cell that fails is an error, unless it has the tag `raises-exception`."""
    import nbformat
    from nbclient import NotebookClient

    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # else Jupyter warns about old folders
    notebook = nbformat.read(page, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        for output in cell.get("outputs", ()):
            if "data" in output and "text/html" in output["data"]:
                # Pages show the HTML. The text has addresses in memory and the whole content of results.
                output["data"]["text/plain"] = re.sub(r"\\s+", " ", output["data"]["text/plain"])[:80]
    return notebook


def write(page: Path) -> None:
    """Executes a notebook and stores it with its outputs."""
    import nbformat

    nbformat.write(executed(page), page)
