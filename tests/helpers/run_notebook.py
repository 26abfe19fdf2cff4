"""Executes a notebook in the folder of its result: `python run_notebook.py PAGE RESULT`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main(page: str, result: str) -> None:
    notebook = nbformat.read(page, as_version=4)
    where = {"metadata": {"path": str(Path(result).parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True, resources=where).execute()
    nbformat.write(notebook, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
