"""Collects the runs of `coterie reproduce` as committed results: TABLE.json and TABLE.md.

    coterie reproduce papoudakis2021 climbing penalty-0 --steps 2M
    python benchmarks/reproduction.py papoudakis2021 --steps 2M

Values of finished runs replace those of the same row and algorithm; others are kept. A value with fewer seeds than the
table is shown with its number of seeds, and one without runs as not run. Runs of uncommitted code are refused.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learning import RESULTS
from reporting import in_words, origin, table, whole_number

from coterie.commands.reproduce import Budget, Choice, Value, choose, finished_runs, values
from coterie.core.errors import UserError
from coterie.reports import published
from coterie.reports.published import Level, PublishedTable
from coterie.runs import loggers


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=published.names())
    parser.add_argument("rows", nargs="*", help="rows to collect; all by default")
    parser.add_argument("--algo", default="", help="columns to collect, separated by commas; all by default")
    parser.add_argument("--steps", help="steps that were given to coterie reproduce")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output folder")
    given = parser.parse_args(argv)
    budget = Budget.parse(given.steps)
    columns = [name for name in given.algo.split(",") if name]
    choice = choose(published.load(given.table), given.rows, algorithms=columns, budget=budget, out=given.out)
    made = origin()  # before files of this repository are changed
    written = given.results / f"{given.table}.json"
    cells: dict[str, dict[str, Any]] = json.loads(written.read_text())["cells"] if written.exists() else {}
    cells |= collect(choice, given.steps)
    content = {**made, "table": given.table, "cells": ordered(choice.table, cells)}
    given.results.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(content, indent=2) + "\n")
    written.with_suffix(".md").write_text(page(choice.table, content))
    print(written.with_suffix(".md"))
    return 0


def collect(choice: Choice, steps: str | None) -> dict[str, dict[str, Any]]:
    """Values of the finished runs by `ROW/ALGORITHM`, with revision, machine, date, command and seconds.

    Raises:
        UserError: If a run is of code that was not committed.
    """
    folders = finished_runs(choice)
    found = {}
    for value in values(choice):
        if value.seeds:
            found[f"{value.row.name}/{value.algo}"] = {
                **value.report(),
                **provenance(folders[value.row.name, value.algo]),
                "command": command(choice, value, steps),
            }
    return found


def provenance(folders: Sequence[Path]) -> dict[str, Any]:
    """Revision, machine, date and wall time of runs.

    Raises:
        UserError: If a run is of code that was not committed.
    """
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest["git"]["modified"] or not manifest["git"]["revision"]:
            raise UserError(f"{folder}: was trained with code that was not committed. Train it again.")
    logs = [loggers.read(folder / "metrics.jsonl") for folder in folders]
    seconds = [max(row.get("time/wall_s", 0.0) for row in rows) for rows in logs]
    return {
        "revisions": sorted({manifest["git"]["revision"][:10] for manifest in manifests}),
        "machines": sorted({in_words({**manifest["hardware"], **manifest["versions"]}) for manifest in manifests}),
        "threads": sorted({manifest["threads"] for manifest in manifests}),
        "dates": sorted({manifest["started"][:10] for manifest in manifests}),
        "seconds_per_run": round(statistics.fmean(seconds), 1),
    }


def command(choice: Choice, value: Value, steps: str | None) -> str:
    """Command that trains the runs of a value."""
    words = ["coterie", "reproduce", choice.table.name, value.row.name, "--algo", value.algo]
    words += ["--steps", steps] if steps else []
    return shlex.join([*words, *(["--seeds", str(len(value.seeds))] if len(value.seeds) < len(choice.seeds) else [])])


def ordered(chosen: PublishedTable, cells: Mapping[str, Any]) -> dict[str, Any]:
    """Cells in the order of the table."""
    keys = [f"{row}/{algo}" for row in chosen.rows for algo in chosen.columns]
    return {key: cells[key] for key in keys if key in cells}


# ----------------------------------------------------------------------------------------------------------------- page


def page(chosen: PublishedTable, content: Mapping[str, Any]) -> str:
    """Results as Markdown: all cells, and the conditions of those that were run."""
    cells = content["cells"]
    machines = sorted({name for cell in cells.values() for name in cell["machines"]})
    threads = sorted({str(number) for cell in cells.values() for number in cell["threads"]})
    lines = [
        f"# {chosen.title}",
        "",
        f"Source of the published values: [{chosen.title.partition(',')[0]}]({chosen.source}). First line of a cell: "
        "the highest mean over seeds of an evaluation, with its 95% interval; second line: the published one. "
        "**Bold**: below the published interval. "
        f"Collected by `{content['command']}` on {content['date']}. Trained on {'; '.join(machines)}, "
        f"with {' or '.join(threads)} threads per run.",
        "",
        *table(["row", *chosen.columns], [overview(chosen, row, cells) for row in chosen.rows]),
        "",
        "Conditions of the values. *Best, fresh*: new episodes of each seed's best checkpoint.",
        "",
        *table(
            ["row", "algo", "seeds", "steps", "published steps", "peak", "at step", "best, fresh", "revision", "date"],
            [conditions(chosen, cell) for cell in cells.values()],
        ),
        "",
        "The file of results contains the command of each value, and the mean duration of its runs.",
        "",
    ]
    return "\n".join(lines)


def overview(chosen: PublishedTable, row: str, cells: Mapping[str, Any]) -> list[str]:
    """Line of the table: Coterie's and the published value of every algorithm."""
    parts = []
    for algo in chosen.columns:
        cell, level = cells.get(f"{row}/{algo}"), chosen.rows[row].published.get(algo)
        own = "not run"
        if cell is not None:
            own = shown(cell["peak"])
            own = f"**{own}**" if cell["below"] else own
            own += "" if len(cell["seeds"]) == len(chosen.seeds) else f" ({len(cell['seeds'])} seeds)"
            all_steps = chosen.steps(chosen.row(row), algo)
            few = f" ({whole_number(cell['steps'])} of {whole_number(all_steps)} steps)"
            own += few if cell["steps"] < all_steps else ""
        parts.append(f"{own}<br>{level}")
    return [row, *parts]


def conditions(chosen: PublishedTable, cell: Mapping[str, Any]) -> list[str]:
    """Line of the conditions of a value."""
    algo = cell["algo"]
    return [
        cell["row"],
        algo,
        ", ".join(map(str, cell["seeds"])),
        whole_number(cell["steps"]),
        whole_number(chosen.steps(chosen.row(cell["row"]), algo)),
        shown(cell["peak"]),
        whole_number(cell["peak_steps"]),
        shown(cell["absolute"]),
        ", ".join(cell["revisions"]),
        ", ".join(cell["dates"]),
    ]


def shown(level: Mapping[str, Any] | None) -> str:
    """A value with its interval, as the published ones are shown."""
    return "" if level is None else str(Level(round(level["mean"], 2), _rounded(level["half_width"])))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


if __name__ == "__main__":
    raise SystemExit(main())
