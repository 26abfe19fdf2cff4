"""Log entries contain the metrics of the updates, rollouts and callbacks that they describe, from the first one on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.__main__ import main
from tinyruns import log_entries, train

# An episode of a single step is followed by a reset step, so that a rollout of four environments has 20 steps.
ROLES = ("env=probe/roles", "algo=mappo", "eval.every=0", "steps=160")
SIGNALS = ("rewards.icm={}", "rewards.rnd={}", "rewards.gail.hidden_sizes=[8]")
GAME = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=1", "eval.every=0", "steps=160")
SELF_PLAY = ("selfplay.opponents=uniform", "selfplay.snapshot_interval=20", "selfplay.rating_episodes=8")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of probe/roles by the random policy."""
    path = tmp_path_factory.mktemp("demos") / "roles.safetensors"
    assert main(["record", "--algo", "random", "--env", "probe/roles", "--out", str(path), "--episodes", "9"]) == 0
    return path


def both_intervals(tmp_path: Path, *settings: str) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Returns each entry of a run with `log.every=2`, with the two entries of a run that logs every update."""
    train(tmp_path / "each", *settings)
    train(tmp_path / "two", *settings, "log.every=2")
    each, two = log_entries(tmp_path / "each"), log_entries(tmp_path / "two")
    assert [row["steps"] for row in two] == [row["steps"] for row in each[1::2]]
    return list(zip(two, each[::2], each[1::2], strict=True))


def test_imitation_is_logged_with_the_update_that_it_follows(demos: Path, tmp_path: Path) -> None:
    imitation = (f"imitation.demos={demos}", "imitation.weight=0.5", "imitation.steps=5", "imitation.end_fraction=1")
    rows = both_intervals(tmp_path, *ROLES, *imitation)
    assert len(rows) == 4
    for both, first, second in rows[:-1]:
        for name in ("imitation/loss", "imitation/accuracy"):
            assert both[name] == pytest.approx((first[name] + second[name]) / 2)
        assert both["imitation/weight"] == second["imitation/weight"] == 0.5 * (1 - second["steps"] / 160)
    both, first, second = rows[-1]  # the weight of the last update is zero
    assert second["imitation/weight"] == 0
    assert "imitation/loss" not in second
    assert both["imitation/loss"] == pytest.approx(first["imitation/loss"])


def test_reward_signals_are_logged_with_their_update(demos: Path, tmp_path: Path) -> None:
    rows = both_intervals(tmp_path, *ROLES, *SIGNALS, f"rewards.gail.demos={demos}")
    names = {name for name in rows[0][1] if name.split("/")[0] in ("reward", "loss", "gail")}
    signals = ("extrinsic", "icm", "rnd", "gail")
    assert {f"reward/{name}_{kind}" for name in signals for kind in ("mean", "std", "weight")} <= names
    assert {"gail/demo_prob", "gail/policy_prob", "loss/gail", "loss/icm_forward", "loss/rnd"} <= names
    for both, first, second in rows:
        for name in names:
            assert both[name] == pytest.approx((first[name] + second[name]) / 2), name


def test_self_play_is_logged_with_the_games_and_the_snapshot_of_its_rollout(tmp_path: Path) -> None:
    train(tmp_path / "run", *GAME, *SELF_PLAY)
    rows = log_entries(tmp_path / "run")
    # the untrained policy and one snapshot per rollout
    assert [row["selfplay/pool"] for row in rows] == list(range(2, 10))
    for row in rows:  # wins are 1, losses -1
        assert row["selfplay/win_rate"] == pytest.approx((1 + row["rollout/row/return_mean"]) / 2)
    assert all(row["selfplay/elo_error"] > 0 for row in rows)  # of a snapshot that has played, which the first has not


def test_a_phase_is_logged_with_the_updates_of_its_teams(tmp_path: Path) -> None:
    train(tmp_path / "run", *GAME, "alternate.every=40")
    rows = log_entries(tmp_path / "run")
    assert [row["alternate/index"] for row in rows] == [1, 1, 2, 2, 3, 3, 4, 4]
    for row in rows:
        learning = "row" if row["alternate/index"] % 2 else "column"
        assert {name.split("/")[1] for name in row if name.startswith("loss/")} == {learning}


@pytest.mark.parametrize(
    "metric", ["rollout/return_mean", "loss/policy", "imitation/loss", "lesson/episodes", "steps", "time/wall_s"]
)
def test_a_lesson_is_logged_with_its_episodes_and_what_it_compares(metric: str, demos: Path, tmp_path: Path) -> None:
    waiting = (
        f"[{{name: a, parameters: {{}}, advance: {{metric: {metric}, above: 1e9}}}}, {{name: b, parameters: {{}}}}]"
    )
    imitation = (f"imitation.demos={demos}", "imitation.weight=0.5", "imitation.steps=5", "imitation.end_fraction=1")
    train(tmp_path / "run", *ROLES, f"curriculum.lessons={waiting}", *imitation)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    episodes = list(itertools.accumulate(row["rollout/episodes"] for row in rows))
    assert [row["lesson/episodes"] for row in rows] == episodes
    assert episodes[0] > 0
    late = metric.startswith("rollout/")  # counts once all environments have switched to the lesson
    assert len(rows) == 8
    for row in rows[late:-1]:
        assert row["lesson/measure"] == row[metric]


def test_callbacks_get_the_entry_that_is_logged(demos: Path, tmp_path: Path) -> None:
    found: list[dict[str, float]] = []
    coterie.train(
        env="probe/roles", algo="mappo", steps=80, num_envs=4, seed=0, progress="off", out=str(tmp_path / "run"),
        callbacks=[coterie.Callback(on_update=lambda event: found.append(dict(event.metrics)))],
        **{"imitation.demos": str(demos), "imitation.weight": 0.5, "imitation.steps": 5, "eval.every": 0,
           "algo.rollout_length": 10, "threads": 1},
    )  # fmt: skip
    logged = log_entries(tmp_path / "run")
    assert [{k: v for k, v in entry.items() if not k.startswith("time/")} for entry in found] == logged
    assert "imitation/loss" in found[0]
