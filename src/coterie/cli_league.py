"""`coterie league` and `coterie exploit`: how strong runs are against each other, and against a best response."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli_options import Checkpoint, EnvName, Json, Mode, Overrides, RunPath, print_report
from coterie.errors import UserError


def league(
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]RUN...",
            show_default=False,
            help="Runs' folders, `random`, `scripted` or `scripted:NAME`, each with a name of your own if you like; "
            "settings of the environment where no run brings one.",
        ),
    ] = None,
    env: EnvName = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Picture of the matrix, .png or .svg; by default league.png."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="Episodes a pair.")] = 200,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "best",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes, the same for every pair.")] = 0,
    json: Json = False,
) -> int:
    """Plays everyone against everyone: the cross-play matrix as a table and a picture, and Elo where sides are equal.

    Rows play the first team of the environment, columns the second; of games with equal sides both directions count.

    Examples:

    coterie league runs/a runs/b random

    coterie league old=runs/a new=runs/b scripted --episodes 1000 --out matrix.png
    """
    from coterie import standings as playing
    from coterie.progress import Waiting

    named = [word for word in members or [] if not word.startswith("env.")]
    settings = [*([f"env={env}"] if env else []), *(word for word in members or [] if word.startswith("env."))]

    def told(pair: str) -> Waiting:
        return Waiting(lambda line: print(f"coterie: {line}", file=sys.stderr), pair)

    found = playing.league(named, settings, episodes, mode, checkpoint, seed, told)
    target = out or Path("league.png")
    if target.suffix not in (".png", ".svg"):
        raise UserError(f"--out {target}: expected a file that ends in .png or .svg")
    target.parent.mkdir(parents=True, exist_ok=True)
    playing.draw(found).savefig(target, dpi=150)
    print(f"wrote {target}", file=sys.stderr)
    if json:
        print(jsonlib.dumps(found.report() | {"picture": str(target)}))
        return 0
    from coterie.tables import print_table

    for title, columns, rows in playing.words(found):
        print(f"\n{title}")
        print_table(columns, rows)
    return 0


def exploit(
    run: RunPath,
    overrides: Overrides = None,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="The team to exploit; the second by default.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS", show_default=False, help="The response's budget; by default a fifth of the run's."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="Episodes that the gap is measured over.")] = 400,
    checkpoint: Checkpoint = "best",
    json: Json = False,
) -> int:
    """Trains a best response to one team of a run, and tells how much more it earns than the run's own other team.

    The response is trained by the run's algorithm and settings, or by those given here, against the team as it is. No
    response found in a budget proves that there is none; a large gap proves that there is one.

    Examples:

    coterie exploit runs/selfplay --steps 500k

    coterie exploit runs/tag --team agent algo=mappo algo.lr=5e-4
    """
    from coterie.response import exploit as respond
    from coterie.schema import count

    budget = None if steps is None else count(steps)
    if budget is not None and (not isinstance(budget, int) or budget < 1):
        raise UserError(f"--steps {steps}: expected a number of environment steps, e.g. 500k")
    found = respond(run, list(overrides or []), team, budget, episodes, checkpoint)
    if json:
        print(jsonlib.dumps(found.report()))
        return 0
    print_report(
        {
            "exploited": f"{found.team}, by {found.response} in {found.steps:,} steps",
            "response": f"{found.response_return:.4g} ± {found.response_error:.2g}, wins {found.response_won:.2f}",
            "own": f"{found.own_return:.4g} ± {found.own_error:.2g}, wins {found.own_won:.2f}",
            "gap": f"{found.gap:.4g} ± {found.error:.2g}",
            "run": found.run,
        },
        json=False,
    )
    return 0
