"""Options of `coterie compare`, which commands that compare runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

_FILE = "FILE|-"

_RUNS = typer.Argument(
    metavar="RUN...",
    show_default=False,
    help="Folders of runs, or that contain runs, patterns such as 'runs/**', or JSON files of marl-eval.",
)
Runs = Annotated[list[str], _RUNS]
OptionalRuns = Annotated[list[str] | None, _RUNS]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Metric, such as won or rollout/return_mean; with a minus sign, lower is better. Default: evaluation "
        "returns.",
    ),
]
Team = Annotated[
    str | None, typer.Option(metavar="NAME", show_default=False, help="Only this team. Default: teams that learn.")
]
WantedScore = Annotated[
    Literal["final", "peak", "fresh", "absolute"] | None,
    typer.Option(
        show_default=False,
        help="Score of a run: last or best evaluation of training, or fresh evaluation of the final or the best "
        "policies. Default: fresh if all runs have one, else final.",
    ),
]
Episodes = Annotated[
    int | None,
    typer.Option(
        "--evaluate",
        min=0,
        max=10**7,
        metavar="[EPISODES]",
        show_default=False,
        help="Evaluate the final and the best policies on fresh episodes first, by default ten times "
        "eval.episodes. Results are kept in the run folder.",
    ),
]
Normalize = Annotated[
    str,
    typer.Option(
        metavar="random|reference|range|none|MIN,MAX",
        help="Values of the normalized scores 0 and 1. auto: reference (random policy, published score) if known "
        "for all tasks, else random (random policy, best mean).",
    ),
]
Threshold = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TASK=]VALUE",
        show_default=False,
        help="Value whose first time is reported. Default: the mean of the baseline, or of the "
        "worst algorithm that beats the random policy.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(metavar="ALGO", show_default=False, help="Compare all others with it. Default: all pairs."),
]
Paired = Annotated[bool, typer.Option("--paired", help="Compare runs with equal seeds.")]
Resample = Annotated[
    Literal["seeds", "episodes"],
    typer.Option(help="Levels of the bootstrap; episodes: seeds, then episodes of the fresh evaluation."),
]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Include runs that are not finished.")]
Mixed = Annotated[bool, typer.Option("--mixed", help="Accept evaluations with different numbers of episodes.")]
FileReturns = Annotated[
    Literal["team", "agent"] | None,
    typer.Option(show_default=False, help="Convention of returns in JSON files: per team or per agent."),
]
Markdown = Annotated[Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write Markdown; -: to stdout.")]
Latex = Annotated[
    Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write LaTeX tables; -: to stdout.")
]
Csv = Annotated[Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write values as CSV; -: to stdout.")]
JsonFile = Annotated[
    Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write all values as JSON; -: to stdout.")
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", show_default=False, help="Draw curves, intervals and profiles: .png, .svg, .pdf."),
]
MarlEval = Annotated[
    Path | None,
    typer.Option("--marl-eval", metavar="FILE", show_default=False, help="Write the runs in marl-eval's format."),
]
