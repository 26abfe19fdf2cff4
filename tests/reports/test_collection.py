from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from coterie.core.errors import UserError
from coterie.reports.collection import collect, read_run, series_of
from coterie.reports.fresh_evaluations import Protocol, read_fresh, store_fresh
from coterie.reports.grouping import Selection, group, require_equal_episodes, select_metric
from coterie.reports.records import FreshEvaluation, Policies
from writtenruns import write_like_benchmarl, write_like_mava, write_marl_eval, write_run


def trials_of(*paths: Path, **selected: Any) -> list[Any]:
    return group(collect(paths), Selection(**selected))[0]


def test_a_run_is_read_with_its_evaluations_over_steps_and_seconds(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", seed=3))
    series = series_of(run)
    assert series is not None
    assert series.steps.tolist() == [0, 1000, 2000]
    assert series.seconds.tolist() == [0, 7, 14]
    assert series.mean.tolist() == [0, 5, 13]
    assert series.error.tolist() == [0.5] * 3
    assert series.episodes.tolist() == [32] * 3
    assert (run.seed, run.state, run.steps, run.total, run.agents) == (3, "finished", 2000, 2000, {"": 3})
    assert run.random("") == -10.0


def test_runs_that_differ_only_in_the_seed_are_one_group(tmp_path: Path) -> None:
    for seed in (1, 0):
        write_run(tmp_path / f"mappo-{seed}", seed)
        write_run(tmp_path / f"ippo-{seed}", seed, "ippo", config={"algo": {"lr": 7e-4}})
    found = trials_of(tmp_path)
    assert [(t.task, t.algo, t.seed) for t in found] == [
        ("particle/simple_spread", algo, seed) for algo in ("ippo", "mappo") for seed in (0, 1)
    ]


def test_labels_of_algorithms_are_equal_in_all_tasks(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config={"algo": {"lr": 1e-3}})
    write_run(tmp_path / "b", config={"algo": {"lr": 1e-4}})
    write_run(tmp_path / "c", env="particle/simple_tag", config={"algo": {"lr": 1e-3, "epochs": 4}})
    assert [(t.task, t.algo) for t in trials_of(tmp_path)] == [
        ("particle/simple_spread", "mappo lr=0.001"),
        ("particle/simple_spread", "mappo lr=0.0001"),
        ("particle/simple_tag", "mappo lr=0.001"),
    ]


def test_labels_have_few_digits_unless_values_are_closer(tmp_path: Path) -> None:
    for name, lr in (("a", 0.0007585468246144272), ("b", 0.0001), ("c", 0.00012345678), ("d", 0.00012345679)):
        write_run(tmp_path / name, config={"algo": {"lr": lr}})
    labels = [trial.algo for trial in trials_of(tmp_path)]
    assert labels == ["mappo lr=0.0007585", "mappo lr=0.0001", "mappo lr=0.00012345678", "mappo lr=0.00012345679"]


def test_settings_of_the_environment_make_separate_tasks(tmp_path: Path) -> None:
    write_run(tmp_path / "a", config={"env": {"agents": 3}})
    write_run(tmp_path / "b", config={"env": {"agents": 5}})
    tasks = [trial.task for trial in trials_of(tmp_path)]
    assert tasks == ["particle/simple_spread env.agents=3", "particle/simple_spread env.agents=5"]


def test_teams_that_learn_are_separate_tasks(tmp_path: Path) -> None:
    write_run(tmp_path / "a", teams=("adversary", "agent"))
    assert [trial.task for trial in trials_of(tmp_path)] == [
        f"particle/simple_spread: {x}" for x in ("adversary", "agent")
    ]
    assert [trial.team for trial in trials_of(tmp_path, team="agent")] == ["agent"]


def test_a_run_that_was_killed_in_its_last_evaluation_is_not_finished(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last").write_text("1000\n")
    assert read_run(folder).state == "stopped"


def test_unfinished_runs_are_left_out_with_one_line_that_says_how_to_continue(tmp_path: Path) -> None:
    write_run(tmp_path / "done")
    half = write_run(tmp_path / "half", seed=1, values=(0.0, 5.0))
    found = collect([tmp_path])
    assert [run.name for run in found.runs] == [str(tmp_path / "done")]
    assert f"{half} at 1,000 of 2,000 steps" in found.notes[0]
    assert f"coterie resume {half}" in found.notes[0]
    assert len(collect([tmp_path], unfinished=True).runs) == 2
    with pytest.raises(UserError, match="Add --unfinished"):
        collect([half])


@pytest.mark.parametrize("given", ["nothing", "*.yaml", "empty"])
def test_paths_without_runs_are_refused(tmp_path: Path, given: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no such folder|contains no runs"):
        collect([tmp_path / given])


def test_patterns_find_each_run_once(tmp_path: Path) -> None:
    write_run(tmp_path / "deep" / "er" / "a")
    assert len(collect([str(tmp_path / "**"), tmp_path, tmp_path / "deep"]).runs) == 1


def test_a_second_run_with_the_same_seed_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    found, notes = group(collect([tmp_path]), Selection())
    assert len(found) == 1
    assert "same seed and settings" in notes[0]


def test_a_run_without_its_log_is_named(tmp_path: Path) -> None:
    (write_run(tmp_path / "a") / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"a: metrics\.jsonl is missing or empty"):
        select_metric(collect([tmp_path], unfinished=True).runs, None)


def test_different_numbers_of_evaluation_episodes_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", episodes=32)
    write_run(tmp_path / "b", seed=1, episodes=128)
    with pytest.raises(UserError, match=r"32 episodes in .*a and 128 in .*b"):
        require_equal_episodes(trials_of(tmp_path))


def test_metrics_have_short_names_and_mistyped_ones_suggestions(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert select_metric([run], "-return") == Selection("eval/return_mean", lowest=True)
    with pytest.raises(UserError, match="Did you mean"):
        select_metric([run], "eval/return_meen")


# ----------------------------------------------------------------------------------------------------------- marl-eval


def test_files_of_marl_eval_are_runs(tmp_path: Path) -> None:
    found = trials_of(write_marl_eval(tmp_path / "results.json"))
    assert [(t.task, t.algo, t.seed) for t in found] == [("particle/simple_spread", "mappo", seed) for seed in (2, 4)]
    assert found[0].series.mean.tolist() == [0.5, 1.5, 2.5]
    assert found[0].series.seconds.tolist() == [0, 2, 4]
    assert found[0].series.error.tolist() == pytest.approx([0.5] * 3)
    assert found[0].absolute.tolist() == [5, 6, 7]


def test_files_of_benchmarl_have_no_fresh_evaluation(tmp_path: Path) -> None:
    (found,) = trials_of(write_like_benchmarl(tmp_path / "results.json"))
    assert (found.task, found.algo, found.seed) == ("vmas/balance", "mappo", 0)
    assert found.series.steps.tolist() == [6000, 120_000]
    assert found.series.mean.tolist() == [-8.0, -3.5]
    assert found.series.episodes.tolist() == [2, 2]
    assert np.isnan(found.series.seconds).all()
    assert found.absolute is None  # the highest of all episodes
    assert "eval/metric/agents_return" in found.run.metrics


def test_files_of_mava_have_the_mean_of_a_fresh_evaluation(tmp_path: Path) -> None:
    found = trials_of(write_like_mava(tmp_path / "results.json"))
    assert [(t.task, t.algo, t.seed) for t in found] == [
        ("LevelBasedForaging/2s-8x8-2p-2f-coop", "ff_mappo", seed) for seed in (6, 42)
    ]
    assert found[1].series.mean.tolist() == [0.125, 0.792]
    assert found[1].series.seconds.tolist() == [0.0, 6.5]
    assert [t.absolute.tolist() for t in found] == [[0.506], [0.542]]
    assert "eval/metric/steps_per_second" in found[0].run.metrics


def test_returns_of_files_need_a_convention_next_to_those_of_teams(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_marl_eval(tmp_path / "results.json")
    with pytest.raises(UserError, match="--file-returns team, or --file-returns agent"):
        trials_of(tmp_path / "a", tmp_path / "results.json")
    agent = trials_of(tmp_path / "a", tmp_path / "results.json", scale="agent")
    assert [t.algo for t in agent] == ["mappo", "mappo (results)", "mappo (results)"]
    np.testing.assert_allclose(agent[1].series.mean, [1.5, 4.5, 7.5])


@pytest.mark.parametrize("content", ["[]", "{}", '{"e": 1}', '{"e": {"t": {"a": {"r": {"s": {"step_count": "x"}}}}}}'])
def test_other_json_is_refused_with_the_expected_format(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError, match=r"results\.json"):
        collect([tmp_path / "results.json"])


def test_fresh_evaluations_of_checkpoints_that_were_replaced_do_not_count(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last").write_text("000000002000\n")
    values = {("", "eval/return_mean"): np.array([1.0, 2.0])}
    for policies, steps in (("final", 1000), ("best", 1000)):
        store_fresh(run, Protocol(policies, steps, 2, 0, "auto"), FreshEvaluation(policies, steps, values))
    assert [fresh.policies for fresh in read_run(run).fresh] == ["best"]
    store_fresh(run, Protocol("final", 2000, 2, 0, "auto"), FreshEvaluation("final", 2000, values))
    found = read_run(run).fresh_values("final", "", "eval/return_mean")
    assert found is not None
    assert found.tolist() == [1.0, 2.0]


def test_fresh_evaluations_that_are_stored_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    values = {("", "eval/return_mean"): np.array([1.0, 2.0])}

    def store(policies: Policies) -> None:
        for steps in range(20):
            store_fresh(tmp_path, Protocol(policies, steps, 2, 0, "auto"), FreshEvaluation(policies, steps, values))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(store, get_args(Policies)))
    assert {fresh.policies: fresh.steps for fresh in read_fresh(tmp_path)} == {"final": 19, "best": 19}
    assert [file.name for file in tmp_path.iterdir()] == ["fresh-evaluations.json"]


def test_metrics_that_are_not_finite_leave_a_fresh_evaluation_readable(tmp_path: Path) -> None:
    values = {("", "eval/return_mean"): np.array([1.0, 2.0]), ("", "eval/metric/time"): np.array([3.0, np.nan])}
    store_fresh(tmp_path, Protocol("final", 2000, 2, 0, "auto"), FreshEvaluation("final", 2000, values))
    (found,) = read_fresh(tmp_path)
    assert list(found.values) == [("", "eval/return_mean")]
