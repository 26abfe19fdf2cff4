"""The main results of a comparison as sentences, and what a reader of its numbers must know."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from coterie.algos.registry import base_name, is_own_algorithm
from coterie.config.messages import format_value
from coterie.config.sources import preset
from coterie.reports.comparison import Comparison, Estimate, PairResult, TaskResult
from coterie.reports.options import Score
from coterie.runs.curves import Run, differing_settings, settings_key

SCORE_NAMES: dict[Score, str] = {
    "final": "last evaluation",
    "peak": "best evaluation",
    "fresh": "fresh evaluation of the final policies",
    "absolute": "fresh evaluation of the best policies",
}

FEW = 5
"""Seeds below which intervals are too narrow to be trusted."""

FEW_SEEDS = f"With fewer than {FEW} seeds, such intervals cover clearly less than 95%"

_MOST_SETTINGS = 5
"""Settings that the note on differing settings names."""

_UNEQUAL_STEPS = 1.1
"""Ratio of steps above which trainings have different lengths. Smaller ones are the rounding to whole rollouts."""


def number(value: float) -> str:
    """Formats a number with up to four significant digits, or `not reached` for infinity."""
    if math.isinf(value):
        return "not reached"
    if math.isnan(value):
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def with_interval(estimate: Estimate) -> str:
    """Formats an estimate as `-23.4 (95% CI -24.1 to -22.9)`."""
    value, low, high = digits(estimate)
    return f"{value} (95% CI {low} to {high})" if estimate.has_interval else value


def digits(estimate: Estimate) -> tuple[str, str, str]:
    """Formats an estimate and its bounds with two significant digits of half the width of the interval.

    Narrow intervals, which need more than six decimals, have four significant digits instead.
    """
    numbers = (estimate.value, estimate.low, estimate.high)
    width = estimate.high - estimate.low
    if not all(map(math.isfinite, numbers)) or width <= 0:
        return number(numbers[0]), number(numbers[1]), number(numbers[2])
    decimals = max(0, 1 - math.floor(math.log10(width / 2)))
    if decimals > 6:
        return number(numbers[0]), number(numbers[1]), number(numbers[2])
    value, low, high = (f"{round(x, decimals) + 0.0:,.{decimals}f}" for x in numbers)
    return value, low, high


def count(amount: int, noun: str) -> str:
    """Returns e.g. `1 seed` or `5 seeds`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Returns e.g. `a, b, c and 2 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def metric_name(metric: str) -> str:
    """Returns a readable name of a metric: `team return` for returns of evaluations, `won` for `eval/metric/won`."""
    names = {"eval/return_mean": "team return", "rollout/return_mean": "team return in training"}
    return names.get(metric, metric.removeprefix("eval/metric/"))


def last_step(result: TaskResult) -> float:
    """Returns the environment steps of the last evaluation, the highest number of its runs."""
    return float(max(trial.series.steps[-1] for trial in result.trials))


# --------------------------------------------------------------------------------------------------------------- notes


def notes_on(comparison: Comparison) -> list[str]:
    """Returns what a reader of the numbers must know: low scores, seeds, missing tasks, machines, opponents."""
    return [
        *_random_notes(comparison),
        *_seed_notes(comparison),
        *_coverage_notes(comparison),
        *_step_notes(comparison),
        *_setting_notes(comparison),
        *_run_notes(comparison),
    ]


def _random_notes(comparison: Comparison) -> Iterator[str]:
    below = []
    for result in comparison.results.values():
        random, mean = comparison.tasks[result.task].random, result.statistics.mean
        highest = mean.high if mean.has_interval else mean.value
        if random is not None and not comparison.lowest and highest < random:
            below.append(f"{result.algo} on {result.task} ({number(mean.value)}, random {number(random)})")
    if below:
        yield f"below the random policy: {listed(below)}. To find out why: coterie diagnose RUN"


def _seed_notes(comparison: Comparison) -> Iterator[str]:
    results = comparison.results.values()
    single = [f"{r.algo} on {r.task}" for r in results if len(r.trials) == 1]
    few = sorted({len(r.trials) for r in results if 1 < len(r.trials) < FEW})
    if single:
        yield f"one seed, no intervals: {listed(single)}. Train more seeds, e.g. coterie train -m seed=0,1,2,3,4"
    if few:
        yield f"{min(few)} seeds are few. Train {FEW} or more, e.g. coterie train -m seed=0,1,2,3,4"
    counts = {len(r.trials) for r in results}
    if len(counts) > 1:
        yield f"unequal numbers of seeds ({min(counts)} to {max(counts)}). Tasks count equally"


def _coverage_notes(comparison: Comparison) -> Iterator[str]:
    for algo, result in comparison.overall.items():
        missing = [task for task in comparison.tasks if task not in result.tasks]
        if missing:
            yield f"{algo} has no runs on {listed(missing)}. Its values over tasks are not comparable with others"
    teams = {t.team for r in comparison.results.values() for t in r.trials}
    if len(teams - {""}) > 1 and comparison.metric.endswith("return_mean"):
        yield (
            "several teams learn against each other, so each return depends on the opponents of its own run. To play "
            "runs against each other: coterie league RUN RUN"
        )


def _step_notes(comparison: Comparison) -> Iterator[str]:
    unequal = []
    for task in comparison.tasks:
        ends = [t.series.steps[-1] for (name, _), r in comparison.results.items() if name == task for t in r.trials]
        if max(ends) > _UNEQUAL_STEPS * min(ends):
            unequal.append(f"{task} ({min(ends):,.0f} to {max(ends):,.0f})")
    if unequal:
        yield (
            f"runs were trained for different numbers of steps: {listed(unequal)}. More steps can explain a better "
            "score. Learning curves show scores at equal steps"
        )


def _setting_notes(comparison: Comparison) -> Iterator[str]:
    """Yields a note on settings that differ between algorithms without being part of what tells them apart."""
    found: dict[str, list[str]] = {}
    for task in comparison.tasks:
        groups = [r.trials[0].run.log for (name, _), r in comparison.results.items() if name == task]
        for key in differing_settings([run for run in groups if run.all_settings]):
            having = [run for run in groups if key in run.settings]
            if not key.endswith(("algo.name", "algo.base")) and any(
                _confounds(key, one, other) for one, other in itertools.combinations(having, 2)
            ):
                found.setdefault(key, []).extend(format_value(run.settings[key]) for run in having)
    if found:
        words = [f"{key} ({listed(list(dict.fromkeys(values)))})" for key, values in found.items()]
        yield f"groups differ in more than the algorithm: {listed(words, _MOST_SETTINGS)}"


def _confounds(key: str, one: Run, other: Run) -> bool:
    """True if two algorithms differ in a setting that is not one of those that define algorithms of Coterie."""
    if one.algo == other.algo or settings_key(one.settings[key]) == settings_key(other.settings[key]):
        return False
    if is_own_algorithm(one.algo) or is_own_algorithm(other.algo):
        return True
    names = {name for algo in (one.algo, other.algo) for name in (algo, base_name(algo))}
    defining = {setting.key.removeprefix("algo.") for name in names for setting in preset("algo", name)}
    return key.rpartition("algo.")[2] not in defining


def _run_notes(comparison: Comparison) -> Iterator[str]:
    trials = [trial for result in comparison.results.values() for trial in result.trials]
    machines = {(str(t.run.hardware.get("cpu")), str(t.run.hardware.get("gpus"))) for t in trials if t.run.hardware}
    if len(machines) > 1 or any(t.run.origin == "marl-eval" for t in trials):
        yield "the runs were made on different or unknown machines, so seconds are not comparable"
    states = {t.run.name for t in trials if t.run.state != "finished"}
    if states:
        yield f"{count(len(states), 'run')} not finished, compared at the last evaluation: {listed(sorted(states))}"
    fresh = [t.fresh if comparison.score == "fresh" else t.absolute for t in trials]
    episodes = [len(x) for x in fresh if x is not None]
    if comparison.score in ("fresh", "absolute") and max(episodes) >= 2 * min(episodes):
        yield (
            f"fresh evaluations have {min(episodes):,} to {max(episodes):,} episodes, so their noise differs. Evaluate "
            "all runs again with --evaluate"
        )
    if comparison.score == "peak":
        yield "peaks are biased upward, as the best of several noisy evaluations. Add --evaluate for a fresh evaluation"


# ----------------------------------------------------------------------------------------------------------- sentences


def sentences_of(comparison: Comparison) -> tuple[str, ...]:
    """Returns the main results as sentences that a paper can contain."""
    sentences = [_task_sentence(comparison, task) for task in comparison.tasks]
    if len(comparison.tasks) > 1:
        sentences.append(_overall_sentence(comparison))
    return tuple(sentences)


def _task_sentence(comparison: Comparison, task: str) -> str:
    results = [result for (name, _), result in comparison.results.items() if name == task]
    ranked = sorted(results, key=lambda r: r.statistics.iqm.value, reverse=not comparison.lowest)
    best = ranked[0]
    text = f"On {task}, {best.algo} {_reaches(best, comparison)}"
    if len(ranked) == 1:
        return f"{text}{_seed_caveat(ranked)}."
    pair = _main_pair(comparison, task, [result.algo for result in ranked])
    rival = (
        ranked[1] if pair is None else next(r for r in ranked if r.algo in (pair.algo, pair.other) and r is not best)
    )
    steps = "" if last_step(rival) == last_step(best) else f"after {last_step(rival):,.0f} steps, "
    second = f"{rival.algo} {with_interval(rival.statistics.iqm)}, {steps}{count(len(rival.trials), 'seed')}"
    difference = "" if pair is None else _difference(pair, best.algo, comparison)
    return f"{text}, {second}{difference}{_seed_caveat([best, rival])}."


def _seed_caveat(results: Sequence[TaskResult]) -> str:
    """Returns the end of a sentence on results of few seeds; "" if all of them have enough."""
    fewest = min(len(result.trials) for result in results)
    if fewest >= FEW:
        return ""
    if fewest > 1:
        return f"; with only {fewest} seeds, such intervals cover clearly less than 95%"
    return "; one seed does not show how much results differ between seeds"


def _main_pair(comparison: Comparison, task: str | None, ranked: list[str]) -> PairResult | None:
    """Returns the comparison of the best algorithm with the next one that it was compared with; None without any."""
    for other in ranked[1:]:
        for pair in comparison.pairs:
            if pair.task == task and {pair.algo, pair.other} == {ranked[0], other}:
                return pair
    return None


def _reaches(result: TaskResult, comparison: Comparison) -> str:
    seeds = count(len(result.trials), "seed")
    what = (
        f"interquartile mean of the {SCORE_NAMES[comparison.score]}"
        if len(result.trials) > 1
        else (SCORE_NAMES[comparison.score])
    )
    value = with_interval(result.statistics.iqm)
    name = metric_name(comparison.metric)
    name = f"a {name} of" if name.startswith("team return") else f"{name} ="
    return f"has {name} {value} after {last_step(result):,.0f} steps ({what}, {seeds})"


def _difference(pair: PairResult, best: str, comparison: Comparison, names: str = "") -> str:
    """Returns the rest of a sentence on the difference of the two best algorithms."""
    probability = pair.probability
    if pair.algo != best:
        probability = Estimate(1 - probability.value, 1 - probability.high, 1 - probability.low)
    text = f"; the probability of improvement{names} is {with_interval(probability)}"
    if math.isnan(pair.p):
        return text
    tests = sum(p.task is not None and not math.isnan(p.p) for p in comparison.pairs)
    holm = f" after Holm's correction for {tests} comparisons" if tests > 1 else ""
    test = "the paired t-test" if pair.paired else "Welch's t-test"
    verdict = "" if pair.is_significant else ", not significant"
    p = p_value(pair.p_holm)
    return f"{text}, p {p if p.startswith('<') else f'= {p}'} in {test}{holm}{verdict}"


def p_value(p: float) -> str:
    """Formats a p-value with two significant digits; `-` if it is unknown."""
    if math.isnan(p):
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _overall_sentence(comparison: Comparison) -> str:
    complete = [r for r in comparison.overall.values() if len(r.tasks) == len(comparison.tasks)]
    if not complete:
        return f"No algorithm has runs on all {len(comparison.tasks)} tasks."
    ranked = sorted(complete, key=lambda r: -r.statistics.iqm.value)
    parts = [f"{r.algo} {with_interval(r.statistics.iqm)}" for r in ranked]
    text = (
        f"Over {len(comparison.tasks)} tasks, the interquartile mean of {comparison.score_name}s is {', '.join(parts)}"
    )
    if len(ranked) > 1:
        pair = _main_pair(comparison, None, [result.algo for result in ranked])
        if pair is not None:
            other = pair.other if pair.algo == ranked[0].algo else pair.algo
            text += _difference(pair, ranked[0].algo, comparison, f" of {ranked[0].algo} over {other}")
    names = {result.algo for result in ranked}
    return f"{text}{_seed_caveat([r for r in comparison.results.values() if r.algo in names])}."
