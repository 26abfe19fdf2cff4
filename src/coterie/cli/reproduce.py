"""`coterie reproduce`: published tables of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Json
from coterie.core.terminal import print_line

if TYPE_CHECKING:
    from coterie.commands.reproduce import Choice

Table = Annotated[
    str | None, typer.Argument(metavar="[TABLE]", show_default=False, help="Table. Default: list all tables.")
]
Rows = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ROW]...", show_default=False, help="Rows to train. Default: only show the results."),
]
All = Annotated[bool, typer.Option("--all", help="Train all rows.")]
Columns = Annotated[
    str, typer.Option(metavar="NAMES", show_default=False, help="Columns, separated by commas. Default: all.")
]
Seeds = Annotated[
    int | None, typer.Option(metavar="N", show_default=False, help="Number of seeds. Default: all of the table.")
]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N|P%",
        show_default=False,
        help="Environment steps of each run, fewer than published: a number, or a percentage such as 5%.",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, max=1024, help="Parallel runs.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the runs.")]
Markdown = Annotated[
    Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the table as Markdown, too.")
]
Print = Annotated[bool, typer.Option("--print", help="Only print the commands of the runs.")]


def reproduce(
    table: Table = None,
    rows: Rows = None,
    all_: All = False,
    algo: Columns = "",
    seeds: Seeds = None,
    steps: Steps = None,
    jobs: Jobs = 1,
    out: Out = Path("runs/reproduce"),
    markdown: Markdown = None,
    print_: Print = False,
    json: Json = False,
) -> int:
    """Train the rows of a published table, and compare. Each row has five seeds by default.

    Running it again continues interrupted runs and skips finished ones. Without rows it shows the results so far.

    Examples:

    coterie reproduce papoudakis2021 spread --algo mappo,ippo --jobs 2

    coterie reproduce papoudakis2021 climbing penalty-100 --seeds 2 --steps 100k

    coterie reproduce papoudakis2021
    """
    from coterie.cli.job_gate import job_gate
    from coterie.commands import reproduce as command
    from coterie.reports import published

    if table is None:
        for name in published.names():
            print_line(f"{name}: {published.load(name).title}")
        return 0
    choice = command.choose(
        published.load(table),
        rows or (),
        algorithms=[name.strip() for name in algo.split(",") if name.strip()],
        num_seeds=seeds,
        budget=command.Budget.parse(steps),
        out=out,
    )
    if print_:
        for line in command.shell_commands(choice):
            print_line(line)
        return 0
    code = 0
    if rows or all_:
        gate = job_gate()
        gate.preload()
        code = command.train(choice, jobs, gate)
    _show(choice, markdown, json)
    return code


def _show(choice: Choice, markdown: Path | None, json: bool) -> None:
    """Prints the values, and writes them as Markdown if a file is given."""
    from coterie.commands import reproduce as command
    from coterie.core.files import write_text
    from coterie.core.terminal import print_json
    from coterie.runs.tables import print_table

    found = command.values(choice)
    if markdown is not None:
        write_text(markdown, command.as_markdown(choice, found))
    if json:
        print_json({"table": choice.table.name, "values": [value.report() for value in found]})
        return
    columns, cells = command.as_rows(found)
    print_table(columns, cells)
    for line in command.notes(choice):
        print_line(line)
