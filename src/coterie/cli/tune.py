"""The command `tune`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import AlgoName, ConfigFile, EnvName, Json, Trust, with_names
from coterie.core.errors import UserError
from coterie.core.installation import install_extra

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]... [KEY=RANGE]...",
        show_default=False,
        help="Settings, and ranges to search: log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH), choice(A,B,...), or "
        "range() for the setting's own.",
    ),
]
Trials = Annotated[int, typer.Option("--trials", min=1, max=100_000, help="Trials of the study in total.")]
Seeds = Annotated[
    str,
    typer.Option("--seeds", metavar="N|LIST", help="Number of seeds per trial, from 1000 on, or seeds: 7,8 or 7-9."),
]
Space = Annotated[
    Path | None,
    typer.Option("--space", metavar="FILE", show_default=False, help="YAML file with ranges; arguments override it."),
]
Jobs = Annotated[
    int,
    typer.Option("--jobs", min=1, max=1024, help="Parallel trials. The seeds of a trial always run in parallel."),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        show_default=False,
        help="Metric of evaluations, as in eval.best; -NAME: lower is better. Default: the mean return.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", show_default=False, help="Folder. Default: runs/ENV/ALGO/tune-IDENTITY."),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=1, metavar="SECONDS", show_default=False, help="Stop after this time."),
]
Pruning = Annotated[bool, typer.Option("--pruning/--no-pruning", help="Stop trials below the median.")]


def tune(
    words: Words = None,
    algo: AlgoName = None,
    env: EnvName = None,
    config: ConfigFile = None,
    trials: Trials = 20,
    seeds: Seeds = "3",
    space: Space = None,
    jobs: Jobs = 1,
    metric: Metric = None,
    out: Out = None,
    timeout: Timeout = None,
    pruning: Pruning = True,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Search for better settings with Optuna. The same command continues a study.

    Without ranges, the usual settings are searched. best.yaml contains the best ones, for coterie train --config.

    Examples:

    coterie tune algo=mappo env=particle/simple_spread steps=500k --trials 30 --jobs 2

    coterie tune env=coop/escape 'algo.lr=log(1e-5,1e-2)' 'algo.clip_eps=choice(0.1,0.2)' --seeds 5 --out runs/escape

    coterie tune --space space.yaml --timeout 3600
    """
    if missing := [name for name in ("optuna", "sqlalchemy") if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"coterie tune: requires '{missing[0]}', which is not installed. Install it with: {install_extra('tune')}"
        )
    from coterie.cli.job_gate import job_gate
    from coterie.sweeps.tuning import search
    from coterie.sweeps.tuning.study import make_plan

    gate = job_gate()
    gate.preload()
    plan = make_plan(with_names(words, algo=algo, env=env), config, space=space, seeds=seeds, metric=metric, out=out)
    return search.tune(plan, trials=trials, jobs=jobs, timeout=timeout, prunes=pruning, json=json, gate=gate)
