"""Facts about the machine and Markdown tables for the benchmark pages."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.runs.description import describe

_FOLDERS = ("--runs", "--results", "--out", "--log", "--kept", "--jaxmarl", "--jax-python")
"""Options of the scripts that name folders or files."""


def machine() -> dict[str, Any]:
    """Processor, cores, memory, accelerators and versions."""
    here = Path.cwd()
    os.chdir(Path(__file__).parent)  # report the revision of this repository, regardless of the working directory
    found = describe(0, [], None, datetime.now().astimezone())
    os.chdir(here)
    revision = found["git"]["revision"] or "?"
    return {
        **found["hardware"],
        "platform": found["platform"],
        **found["versions"],
        "revision": revision[:10] + (" and changes" if found["git"]["modified"] else ""),
    }


def origin() -> dict[str, Any]:
    """Returns the provenance that every file of results records: machine, versions, revision, date and command."""
    return {
        "machine": machine(),
        "date": datetime.now().astimezone().date().isoformat(),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_without_folders(sys.argv[1:])]),
    }


def _without_folders(words: Sequence[str]) -> list[str]:
    """Leaves out where a command reads and writes, which does not change its results."""
    kept: list[str] = []
    follows = False
    for word in words:
        if not (follows or word.partition("=")[0] in _FOLDERS):
            kept.append(word)
        follows = word in _FOLDERS
    return kept


def in_words(facts: dict[str, Any]) -> str:
    """Processor, cores and versions in one line."""
    return f"{facts['cpu']}, {facts['cores']} cores, PyTorch {facts['torch']}, Coterie {facts['coterie']}"


def priority() -> str:
    """Note for the page if the benchmark ran at real-time priority."""
    first = hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER
    return " at real-time priority because the machine was not idle" if first else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    cells = [list(columns), ["---"] * len(columns), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


def whole_number(value: float) -> str:
    """Count in few digits: 10 M, 250 k, 999."""
    for size, unit in ((1_000_000, " M"), (1000, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"
