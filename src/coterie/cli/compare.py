"""`coterie compare`: statistics of runs over seeds and tasks."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from typer.core import TyperCommand

from coterie.cli.compare_options import (
    Baseline,
    Csv,
    Episodes,
    FileReturns,
    JsonFile,
    Latex,
    Markdown,
    MarlEval,
    Metric,
    Mixed,
    Normalize,
    Paired,
    Plot,
    Resample,
    Runs,
    Team,
    Threshold,
    Unfinished,
    WantedScore,
)
from coterie.cli.options import Trust
from coterie.core.terminal import print_line


class CompareCommand(TyperCommand):
    """The command `compare`, whose option --evaluate may have a number of episodes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            words.append(word)
            if word == "--evaluate" and not following.isdigit():
                words.append("0")
        return super().parse_args(ctx, words)


def compare(
    runs: Runs,
    metric: Metric = None,
    team: Team = None,
    score: WantedScore = None,
    evaluate: Episodes = None,
    normalize: Normalize = "auto",
    threshold: Threshold = None,
    baseline: Baseline = None,
    paired: Paired = False,
    resample: Resample = "seeds",
    unfinished: Unfinished = False,
    mixed: Mixed = False,
    file_returns: FileReturns = None,
    markdown: Markdown = None,
    latex: Latex = None,
    csv: Csv = None,
    json: JsonFile = None,
    plot: Plot = None,
    marl_eval: MarlEval = None,
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
