"""`coterie compare`: statistics of runs over seeds and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from coterie.cli.options import Trust
from coterie.core.terminal import print_line

_FILE = "FILE|-"


class CompareCommand(TyperCommand):
    """The command `compare`, whose option --evaluate may have a number of episodes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        for word, following in zip(args, [*args[1:], ""], strict=True):
            words.append(word)
            if word == "--evaluate" and not following.isdigit():
                words.append("0")
        return super().parse_args(ctx, words)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            show_default=False,
            help="Folders of runs, or that contain runs, patterns such as 'runs/**', or JSON files of marl-eval.",
        ),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Metric, such as won or rollout/return_mean; with a minus sign, lower is better. Default: evaluation "
            "returns.",
        ),
    ] = None,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="Only this team. Default: teams that learn.")
    ] = None,
    score: Annotated[
        Literal["final", "peak", "fresh", "absolute"] | None,
        typer.Option(
            show_default=False,
            help="Score of a run: last or best evaluation of training, or fresh evaluation of the final or the best "
            "policies. Default: fresh if all runs have one, else final.",
        ),
    ] = None,
    evaluate: Annotated[
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
    ] = None,
    normalize: Annotated[
        str,
        typer.Option(
            metavar="random|reference|range|none|MIN,MAX",
            help="Values of the normalized scores 0 and 1. auto: reference (random policy, published score) if known "
            "for all tasks, else random (random policy, best mean).",
        ),
    ] = "auto",
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TASK=]VALUE",
            show_default=False,
            help="Value whose first time is reported. Default: the mean of the baseline, or of the worst algorithm.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="ALGO", show_default=False, help="Compare all others with it. Default: all pairs."),
    ] = None,
    paired: Annotated[bool, typer.Option("--paired", help="Compare runs with equal seeds.")] = False,
    resample: Annotated[
        Literal["seeds", "episodes"],
        typer.Option(help="Levels of the bootstrap; episodes: seeds, then episodes of the fresh evaluation."),
    ] = "seeds",
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Include runs that are not finished.")] = False,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Accept evaluations with different numbers of episodes.")
    ] = False,
    file_returns: Annotated[
        Literal["team", "agent"] | None,
        typer.Option(show_default=False, help="Convention of returns in JSON files: per team or per agent."),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write Markdown; -: to stdout.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write LaTeX tables; -: to stdout.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write values as CSV; -: to stdout.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar=_FILE, show_default=False, help="Write all values as JSON; -: to stdout.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Draw curves, intervals and profiles: .png, .svg, .pdf."),
    ] = None,
    marl_eval: Annotated[
        Path | None,
        typer.Option("--marl-eval", metavar="FILE", show_default=False, help="Write the runs in marl-eval's format."),
    ] = None,
    trust: Trust = False,
) -> int:
    """Compare algorithms: means, medians and interquartile means with 95% bootstrap intervals over seeds and tasks.

    Runs that differ only in the seed are one group. Pairs are compared by the probability of improvement.

    Examples:

    coterie compare runs

    coterie compare runs --baseline ippo --evaluate --latex table.tex --plot figure.png

    coterie compare runs benchmarl.json --file-returns agent --threshold -30
    """
    from coterie.commands import compare as command
    from coterie.commands import compare_output as output
    from coterie.reports.options import CompareOptions

    wanted = output.Outputs(markdown, latex, csv, json, plot, marl_eval)
    wanted.check()
    common, single = command.parse_thresholds(threshold or [])
    options = CompareOptions(
        score=score,
        normalize=normalize,
        threshold=common,
        thresholds=single,
        baseline=baseline,
        paired=paired,
        resample=resample,
        mixed=mixed,
    )
    selected = command.RunSelection(tuple(runs), metric, team, file_returns, unfinished)
    again = None
    if evaluate is not None:
        from coterie.commands.fresh_evaluation import evaluator

        again = evaluator(evaluate or None)
    for line in output.write(command.compare_runs(selected, options, again), wanted):
        print_line(line)
    return 0
