from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from coterie.core.errors import UserError
from coterie.reports import estimates
from coterie.reports.analysis import compare
from coterie.reports.comparison import Comparison, Estimate
from coterie.reports.grouping import Selection
from coterie.reports.options import CompareOptions
from coterie.reports.page import ReportContent, page
from coterie.reports.records import CollectedRun, EvaluationSeries, Trial
from coterie.reports.sentences import with_interval
from coterie.reports.tables import tables_of
from coterie.runs.curves import Run

MAPPO, IPPO = [10.0, 12.0, 11.0, 13.0, 9.0], [8.0, 9.5, 7.0, 8.5, 10.0]


def trial(task: str, algo: str, seed: int, value: float, **more: Any) -> Trial:
    """Returns a run with evaluations of 0, half of the value and the value at 0, 100 and 200 steps."""
    levels = (
        {"random": {"": more.get("random", 0.0)}, "published": {"": more["published"]}} if "published" in more else {}
    )
    levels = levels or {"random": {"": more.get("random", 0.0)}}
    log = Run(Path(f"{task}/{algo}/{seed}"), task, algo, seed, {}, {"algo.name": algo}, [], levels)
    run = CollectedRun(str(log.path), "coterie", log, "finished", 200, 200, ("",), "team")
    steps, unknown = np.array([0.0, 100, 200]), np.full(3, math.nan)
    series = EvaluationSeries(steps, steps / 50, np.array([0, value / 2, value]), unknown, unknown)
    return Trial(task, algo, run, "", series, more.get("fresh"), more.get("absolute"))


def trials(scores: dict[tuple[str, str], list[float]], **more: Any) -> list[Trial]:
    return [trial(*key, seed, value, **more) for key, values in scores.items() for seed, value in enumerate(values)]


def run(scores: dict[tuple[str, str], list[float]], more: dict[str, Any] | None = None, **options: Any) -> Comparison:
    return compare(trials(scores, **(more or {})), Selection(), CompareOptions(**options))


TWO = {("a", "mappo"): MAPPO, ("a", "ippo"): IPPO}


def test_statistics_of_a_task_are_in_the_unit_of_the_metric() -> None:
    result = run(TWO).results["a", "mappo"]
    assert result.scores.tolist() == MAPPO
    assert result.statistics.mean.value == 11
    assert result.statistics.median.value == 11
    assert result.statistics.iqm.value == stats.trim_mean(MAPPO, 0.25)
    assert result.statistics.mean.low < 11 < result.statistics.mean.high
    assert result.std == pytest.approx(np.std(MAPPO, ddof=1))


def test_a_note_names_algorithms_below_the_random_policy() -> None:
    """Those whose interval is below, or whose only score is."""

    def notes(scores: dict[tuple[str, str], list[float]], **options: Any) -> list[str]:
        return [note for note in run(scores, {"random": 10.5}, **options).notes if "random policy" in note]

    (note,) = notes({("a", "mappo"): MAPPO, ("a", "vdn"): [1.0], ("a", "iql"): [2.0, 3.0, 4.0, 5.0, 6.0]})
    assert note.startswith("below the random policy: vdn on a (1, random 10.5), iql on a (4, random 10.5). To find")
    assert notes({("a", "mappo"): MAPPO}) == []
    assert notes({("a", "vdn"): [1.0]}, normalize="0,1") != []


def test_pairs_have_the_probability_of_improvement_and_welchs_test_with_holms_correction() -> None:
    comparison = run({**TWO, ("a", "qmix"): [1.0, 2.0, 3.0, 4.0, 5.0]})
    pairs = {(pair.algo, pair.other): pair for pair in comparison.pairs}
    assert list(pairs) == [("mappo", "ippo"), ("mappo", "qmix"), ("ippo", "qmix")]
    pair = pairs["mappo", "ippo"]
    assert pair.probability.value == estimates.probability_of_improvement([np.array(MAPPO)], [np.array(IPPO)])
    assert pair.difference.value == pytest.approx(np.mean(MAPPO) - np.mean(IPPO))
    assert pair.p == pytest.approx(stats.ttest_ind(MAPPO, IPPO, equal_var=False).pvalue)
    assert pair.p_holm == pytest.approx(pair.p)  # the largest of the three
    assert pairs["mappo", "qmix"].p_holm == pytest.approx(3 * pairs["mappo", "qmix"].p)


def test_pairs_with_equal_seeds_use_the_paired_test() -> None:
    comparison = run(
        {("a", "mappo"): MAPPO, ("a", "ippo"): [x - 1 + 0.1 * i for i, x in enumerate(MAPPO[:4])]}, paired=True
    )
    pair = comparison.pairs[0]
    assert pair.runs == (4, 4)
    assert pair.probability.value == 1.0
    assert (pair.probability.low, pair.probability.high) == (1.0, 1.0)
    assert pair.p < 0.001
    assert run({("a", "mappo"): MAPPO, ("a", "ippo"): [x - 1 for x in MAPPO]}).pairs[0].p > 0.3


def test_a_run_is_in_one_pair_even_if_others_have_its_seed() -> None:
    values = {"mappo": (1.0, 2.0, 4.0), "ippo": (0.0, 1.0, 2.0)}
    runs = [trial("a", algo, seed, x) for algo, own in values.items() for seed, x in zip((0, 0, 1), own, strict=True)]
    (pair,) = compare(runs, Selection(), CompareOptions(paired=True)).pairs
    assert pair.runs == (2, 2)
    assert pair.difference.value == pytest.approx((2.0 - 1.0 + 4.0 - 2.0) / 2)


def test_a_pair_names_the_number_of_tasks_that_both_have() -> None:
    two = {("b", "mappo"): MAPPO, ("b", "ippo"): IPPO}
    comparison = run({**TWO, **two, ("c", "mappo"): MAPPO})
    assert [(pair.task, pair.num_tasks) for pair in comparison.pairs] == [("a", 1), ("b", 1), (None, 2)]
    pairs = next(table for table in tables_of(comparison) if table.title.startswith("pairs"))
    assert pairs.rows[-1][1] == "2 tasks, normalized"
    assert "2 of 3 tasks" in page(ReportContent(comparison))


def test_lower_is_better_turns_every_comparison_around() -> None:
    higher = run(TWO)
    lower = compare(trials(TWO), Selection(lowest=True), CompareOptions(normalize="none"))
    assert lower.pairs[0].algo == "ippo"
    assert lower.pairs[0].probability.value == higher.pairs[0].probability.value
    assert lower.pairs[0].difference.value == pytest.approx(np.mean(MAPPO) - np.mean(IPPO))
    assert lower.sentences[0].startswith("On a, ippo")


def test_tasks_count_equally_after_normalization() -> None:
    scores = {("a", "mappo"): MAPPO, ("a", "ippo"): IPPO, ("b", "mappo"): [100.0, 300.0], ("b", "ippo"): [100.0, 100.0]}
    comparison = run(scores, normalize="random")
    assert (comparison.tasks["a"].zero, comparison.tasks["a"].one) == (0, 11)
    assert comparison.overall["mappo"].statistics.mean.value == pytest.approx(1.0)
    assert comparison.overall["ippo"].statistics.mean.value == pytest.approx((np.mean(IPPO) / 11 + 0.5) / 2)
    assert comparison.overall["mappo"].runs == 7
    assert comparison.pairs[-1].task is None
    assert "unequal numbers of seeds" in " ".join(comparison.notes)


@pytest.mark.parametrize(
    ("method", "anchors"),
    [
        ("random", (2, 11)),
        ("reference", (2, 20)),
        ("auto", (2, 20)),
        ("range", (7, 13)),
        ("none", (0, 1)),
        ("5, 15", (5, 15)),
    ],
)
def test_normalized_scores_have_the_anchors_of_the_method(method: str, anchors: tuple[float, float]) -> None:
    task = run(TWO, {"random": 2.0, "published": 20.0}, normalize=method).tasks["a"]
    assert (task.zero, task.one) == anchors


def test_the_normalized_score_1_is_better_than_0() -> None:
    with pytest.raises(UserError, match="--normalize 15,5: the score 1 would be worse than 0, as higher is better"):
        run(TWO, normalize="15,5")
    lowest = Selection("-eval/metric/steps", lowest=True)
    with pytest.raises(UserError, match=r"as lower is better\. Swap the numbers"):
        compare(trials(TWO), lowest, CompareOptions(normalize="5,15"))
    best = compare(trials(TWO), lowest, CompareOptions(normalize="15,5"))
    assert best.pairs[0].algo == "ippo"
    assert best.pairs[0].probability.value == pytest.approx(0.9)


@pytest.mark.parametrize("method", ["reference", "nothing", "3,3", "1,x"])
def test_normalizations_that_are_not_possible_are_refused(method: str) -> None:
    with pytest.raises(UserError, match="--normalize"):
        run(TWO, normalize=method)


def test_one_seed_has_values_without_intervals_and_a_note() -> None:
    comparison = run({("a", "mappo"): [10.0], ("a", "ippo"): IPPO})
    result = comparison.results["a", "mappo"]
    assert result.statistics.iqm.value == 10
    assert not result.statistics.iqm.has_interval
    assert math.isnan(comparison.pairs[0].p)
    assert any(note.startswith("one seed, no intervals: mappo on a") for note in comparison.notes)


def test_the_default_threshold_is_the_mean_of_the_worst_algorithm_or_of_the_baseline() -> None:
    time = run(TWO).results["a", "mappo"].time
    assert time is not None
    assert time.threshold == pytest.approx(np.mean(IPPO))
    assert time.reached == 5
    assert time.steps.value == pytest.approx(np.mean(IPPO) / 11 * 200)  # the run with the median score, linearly
    baseline = run(TWO, baseline="mappo").results["a", "ippo"].time
    assert baseline is not None
    assert (baseline.threshold, baseline.reached) == (11, 0)
    assert baseline.steps.value == math.inf
    own = run(TWO, threshold={"a": 9.75}).results["a", "ippo"].time
    assert own is not None
    assert (own.threshold, own.reached) == (9.75, 1)


def test_the_default_threshold_is_above_the_random_policy_if_an_algorithm_is() -> None:
    scores = {**TWO, ("a", "vdn"): [-5.0, -4.0, -6.0]}
    time = run(scores).results["a", "mappo"].time
    assert time is not None
    assert time.threshold == pytest.approx(np.mean(IPPO))
    no_better = run(scores, {"random": 100.0}, normalize="range").results["a", "mappo"].time
    assert no_better is not None
    assert no_better.threshold == -5


def test_fresh_evaluations_are_the_default_score_if_all_runs_have_one() -> None:
    fresh = {"fresh": np.array([1.0, 3.0]), "absolute": np.array([4.0, 6.0])}
    comparison = run(TWO, fresh)
    assert comparison.score == "fresh"
    assert comparison.results["a", "mappo"].scores.tolist() == [2.0] * 5
    assert comparison.results["a", "mappo"].other_scores["peak"].value == 11
    assert run(TWO, fresh, score="absolute").results["a", "ippo"].statistics.mean.value == 5
    with pytest.raises(UserError, match="Add --evaluate"):
        run(TWO, score="fresh")


def test_a_note_says_that_fresh_evaluations_have_different_numbers_of_episodes() -> None:
    runs = [trial("a", "mappo", seed, 1.0, fresh=np.ones(10 + 90 * seed)) for seed in range(2)]
    assert any("10 to 100 episodes" in note for note in compare(runs, Selection()).notes)
    assert not any("episodes" in note for note in compare(runs, Selection(), CompareOptions(score="final")).notes)


def test_episodes_are_resampled_within_seeds() -> None:
    fresh = {"fresh": np.array([-10.0, 10.0] * 8)}
    seeds = run(TWO, fresh).results["a", "mappo"].statistics.mean
    episodes = run(TWO, fresh, resample="episodes").results["a", "mappo"].statistics.mean
    assert (seeds.low, seeds.high) == (0, 0)
    assert episodes.high - episodes.low == pytest.approx(2 * 1.96 * 10 / math.sqrt(16 * 5), rel=0.1)
    with pytest.raises(UserError, match="no single episodes"):
        run(TWO, resample="episodes")


def test_curves_are_interquartile_means_over_steps_and_seconds() -> None:
    result = run(TWO).results["a", "mappo"]
    assert result.steps is not None
    assert result.seconds is not None
    np.testing.assert_allclose(result.steps.value, [0, 5.5, 11])
    np.testing.assert_allclose(result.seconds.x, [0, 2, 4])


def test_equal_comparisons_have_equal_intervals_whatever_else_is_compared() -> None:
    alone = run({("a", "mappo"): MAPPO}, normalize="none").results["a", "mappo"].statistics
    assert alone == run(TWO, normalize="none").results["a", "mappo"].statistics


@pytest.mark.parametrize("option", [{"baseline": "mapo"}, {"threshold": {"b": 1.0}}])
def test_mistyped_names_are_answered_with_a_suggestion(option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"Did you mean|Choose from"):
        run(TWO, **option)


def test_the_sentence_of_a_task_has_intervals_seeds_and_the_test() -> None:
    sentence = run(TWO, normalize="none").sentences[0]
    assert sentence.startswith(
        "On a, mappo has a team return of 11.0 (95% CI 9.3 to 12.7) after 200 steps (interquartile mean"
    )
    assert "5 seeds), ippo 8.7 (95% CI" in sentence
    assert "the probability of improvement is 0.90 (95% CI" in sentence
    assert "in Welch's t-test." in sentence


def test_small_values_keep_their_digits() -> None:
    assert with_interval(Estimate(1e-9, 9e-10, 1.1e-9)) == "1e-09 (95% CI 9e-10 to 1.1e-09)"
    assert with_interval(Estimate(0.3, 0.1, 0.7)) == "0.30 (95% CI 0.10 to 0.70)"


def test_no_variation_at_all_is_compared_without_warnings() -> None:
    comparison = run({("a", "mappo"): [1.0] * 3, ("a", "ippo"): [1.0] * 3}, {"random": 1.0})
    assert comparison.pairs[0].probability.value == 0.5
    assert comparison.pairs[0].p == 1.0
