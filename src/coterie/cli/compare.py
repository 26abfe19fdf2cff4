"""`coterie compare`: statistics of runs over seeds and tasks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from coterie.cli.help import HelpCommand
from coterie.cli.options import Trust
from coterie.core.terminal import print_line
from coterie.reports.options import CompareOptions

_FILE = "FILE|-"

_RUNS = typer.Argument(
    metavar="RUN...",
    show_default=False,
    help="Folders of runs, or that contain runs, patterns such as 'runs/**', or JSON files of marl-eval.",
)
Runs = Annotated[list[str], _RUNS]
OptionalRuns = Annotated[list[str] | None, _RUNS]
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
Threshold = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TASK=]VALUE",
        show_default=False,
        help="Value whose first time is reported. Default: the mean of the baseline, or of the "
        "worst algorithm that beats the random policy.",
    ),
]
Markdown = Annotated[Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write Markdown; -: to stdout.")]
Latex = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-|compact[:FILE]",
        show_default=False,
        help="Write LaTeX tables; -: to stdout. compact: one table, tasks x algorithms.",
    ),
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


def with_compare_options(command: Callable[..., int]) -> Callable[..., int]:
    """Returns a command that has the fields of `CompareOptions` as options, in place of its parameter `options`."""
    types = get_type_hints(CompareOptions)
    shared: list[inspect.Parameter] = []
    for field in fields(CompareOptions):
        if "help" in field.metadata:
            names = [f"--{field.name}"] if types[field.name] is bool else []
            hidden = field.default is None or field.default is False
            option = typer.Option(*names, show_default=not hidden, **field.metadata)
            annotation = Annotated[types[field.name], option]
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            shared.append(inspect.Parameter(field.name, kind, default=field.default, annotation=annotation))

    @functools.wraps(command)
    def run(**values: Any) -> int:
        options = CompareOptions(**{parameter.name: values.pop(parameter.name) for parameter in shared})
        return command(options=options, **values)

    own = inspect.signature(command, eval_str=True)
    place = list(own.parameters).index("options")
    parameters = list(own.parameters.values())
    parameters[place : place + 1] = shared
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


class CompareCommand(HelpCommand):
    """The command `compare`, whose option --evaluate may have a number of episodes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            words.append(word)
            if word == "--evaluate" and not following.isdigit():
                words.append("0")
        return super().parse_args(ctx, words)


@with_compare_options
def compare(
    runs: Runs,
    options: CompareOptions = CompareOptions(),
    evaluate: Episodes = None,
    threshold: Threshold = None,
    markdown: Markdown = None,
    latex: Latex = None,
    csv: Csv = None,
    json: JsonFile = None,
    plot: Plot = None,
    marl_eval: MarlEval = None,
    trust: Trust = False,
) -> int:
    """Compare algorithms over seeds and tasks. Means, medians and interquartile means have 95% bootstrap intervals.

    Runs that differ only in the seed are one group. Pairs are compared by the probability of improvement.

    Examples:

    coterie compare runs

    coterie compare runs --baseline ippo --evaluate --latex table.tex --plot figure.png

    coterie compare runs benchmarl.json --file-returns agent --threshold -30
    """
    from coterie.commands import compare as command

    style, _, file = (latex or "").partition(":")
    compact = Path(file or "-") if style == "compact" else None
    outputs = command.Outputs(
        markdown=markdown,
        latex=None if compact or latex is None else Path(latex),
        latex_compact=compact,
        csv=csv,
        json=json,
        plot=plot,
        marl_eval=marl_eval,
    )
    outputs.check()
    options = replace(options, threshold=command.parse_thresholds(threshold or []))
    compared = command.compare_runs(runs, options, evaluate=False if evaluate is None else evaluate or True)
    for line in command.write(compared, outputs):
        print_line(line)
    return 0
