from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from coterie.core.errors import UserError
from coterie.reports.collection import Collection, collect, read_run, series_of
from coterie.reports.grouping import Selection, group, require_equal_episodes, select_metric


def write(path: Path, seed: int = 0, algo: str = "mappo", env: str = "particle/simple_spread", **more: Any) -> Path:
    """Writes a run with evaluations at 0, 1,000 and 2,000 of 2,000 steps. more: config, teams, values, manifest."""
    path.mkdir(parents=True)
    config = {"algo": {"name": algo, "lr": 1e-3}, "env": {"name": env}, "seed": seed, "steps": 2000, "eval": {"every": 1000}}
    for section, settings in more.get("config", {}).items():
        config[section] = {**config.get(section, {}), **settings} if isinstance(settings, dict) else settings
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    roles = {"agent": {"agents": ["agent_0", "agent_1", "agent_2"]}}
    manifest = {"seed": seed, "levels": {"random": {"agent": -10.0}}, "teams": {"agent": {"roles": roles}}}
    (path / "manifest.json").write_text(json.dumps(manifest | more.get("manifest", {})))
    rows = []
    for i, value in enumerate(more.get("values", (0.0, 5.0, 10.0 + seed))):
        row: dict[str, Any] = {"steps": i * 1000, "time/wall_s": i * 7.0, "eval/episodes": more.get("episodes", 32)}
        for team in more.get("teams", ("",)):
            words = ["eval", *[team] * bool(team)]
            row["/".join([*words, "return_mean"])] = value
            row["/".join([*words, "return_error"])] = 0.5
            row["/".join(["loss", *[team] * bool(team), "policy"])] = 0.1
        rows.append(json.dumps(row))
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return path


def trials_of(*paths: Path, **selected: Any) -> list[Any]:
    return group(collect(paths), Selection(**selected))[0]


def test_a_run_is_read_with_its_evaluations_over_steps_and_seconds(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "a", seed=3))
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
        write(tmp_path / f"mappo-{seed}", seed)
        write(tmp_path / f"ippo-{seed}", seed, "ippo", config={"algo": {"lr": 7e-4}})
    found = trials_of(tmp_path)
    assert [(t.task, t.algo, t.seed) for t in found] == [
        ("particle/simple_spread", algo, seed) for algo in ("ippo", "mappo") for seed in (0, 1)
    ]


def test_labels_of_algorithms_are_equal_in_all_tasks(tmp_path: Path) -> None:
    write(tmp_path / "a", config={"algo": {"lr": 1e-3}})
    write(tmp_path / "b", config={"algo": {"lr": 1e-4}})
    write(tmp_path / "c", env="particle/simple_tag", config={"algo": {"lr": 1e-3, "epochs": 4}})
    assert [(t.task, t.algo) for t in trials_of(tmp_path)] == [
        ("particle/simple_spread", "mappo lr=0.001"),
        ("particle/simple_spread", "mappo lr=0.0001"),
        ("particle/simple_tag", "mappo lr=0.001"),
    ]


def test_settings_of_the_environment_make_separate_tasks(tmp_path: Path) -> None:
    write(tmp_path / "a", config={"env": {"agents": 3}})
    write(tmp_path / "b", config={"env": {"agents": 5}})
    tasks = [trial.task for trial in trials_of(tmp_path)]
    assert tasks == ["particle/simple_spread env.agents=3", "particle/simple_spread env.agents=5"]


def test_teams_that_learn_are_separate_tasks(tmp_path: Path) -> None:
    write(tmp_path / "a", teams=("adversary", "agent"))
    assert [trial.task for trial in trials_of(tmp_path)] == [
        f"particle/simple_spread: {x}" for x in ("adversary", "agent")
    ]
    assert [trial.team for trial in trials_of(tmp_path, team="agent")] == ["agent"]


def test_unfinished_runs_are_left_out_with_one_line_that_says_how_to_continue(tmp_path: Path) -> None:
    write(tmp_path / "done")
    half = write(tmp_path / "half", seed=1, values=(0.0, 5.0))
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
    write(tmp_path / "deep" / "er" / "a")
    assert len(collect([str(tmp_path / "**"), tmp_path, tmp_path / "deep"]).runs) == 1


def test_a_second_run_with_the_same_seed_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    found, notes = group(collect([tmp_path]), Selection())
    assert len(found) == 1
    assert "same seed and settings" in notes[0]


def test_different_numbers_of_evaluation_episodes_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", episodes=32)
    write(tmp_path / "b", seed=1, episodes=128)
    with pytest.raises(UserError, match=r"32 episodes in .*a and 128 in .*b"):
        require_equal_episodes(trials_of(tmp_path))


def test_metrics_have_short_names_and_mistyped_ones_suggestions(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "a"))
    assert select_metric([run], "-return") == Selection("eval/return_mean", lowest=True)
    with pytest.raises(UserError, match="Did you mean"):
        select_metric([run], "eval/return_meen")


# ----------------------------------------------------------------------------------------------------------- marl-eval


def marl_eval(path: Path, metric: str = "return", algo: str = "mappo") -> Path:
    steps = {f"step_{i}": {"step_count": 1000 * i, "elapsed_time": 2.0 * i, metric: [i, i + 1.0]} for i in range(3)}
    runs = {f"seed_{seed}": {**steps, "absolute_metrics": {metric: [5.0, 6.0, 7.0]}} for seed in (4, 2)}
    path.write_text(json.dumps({"particle": {"simple_spread": {algo: runs}}}))
    return path


def test_files_of_marl_eval_are_runs(tmp_path: Path) -> None:
    found = trials_of(marl_eval(tmp_path / "results.json"))
    assert [(t.task, t.algo, t.seed) for t in found] == [("particle/simple_spread", "mappo", seed) for seed in (2, 4)]
    assert found[0].series.mean.tolist() == [0.5, 1.5, 2.5]
    assert found[0].series.seconds.tolist() == [0, 2, 4]
    assert found[0].series.error.tolist() == pytest.approx([0.5] * 3)
    assert found[0].absolute.tolist() == [5, 6, 7]


def test_returns_of_files_need_a_convention_next_to_those_of_teams(tmp_path: Path) -> None:
    write(tmp_path / "a")
    marl_eval(tmp_path / "results.json")
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


def test_an_empty_collection_has_no_notes() -> None:
    assert Collection(()).notes == ()
