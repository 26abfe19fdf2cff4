"""Evaluation: as many episodes in every copy, closing rows counted for nothing, the same result for the same seed."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import run as running
from coterie.actor import ActorPolicy
from coterie.build import build
from coterie.checkpoint import Checkpoints
from coterie.config import resolve
from coterie.errors import UserError
from coterie.evaluation import Evaluation, Evaluator, evaluate
from coterie.nets.team import Shape
from coterie.policy import Policy, RandomPolicy
from coterie.rundir import RunDir
from coterie.seeds import generator
from tinyruns import rows_of, train
from worlds import Counter

CPU = torch.device("cpu")


def world(copies: int = 3, **settings: Any) -> Counter:
    return Counter(copies, 0, "cpu", **settings)


def random_policies(env: Counter) -> dict[str, Policy]:
    return {team.name: RandomPolicy(team, CPU) for team in env.spec.default_teams()}


def played(env: Counter, episodes: int, seed: int = 0, mode: Any = "sample") -> Evaluation:
    policies = random_policies(env)
    return evaluate(env, policies, episodes, dict.fromkeys(policies, mode), seed)


def test_every_copy_plays_the_same_number_of_episodes_however_long_they_are() -> None:
    evaluation = played(world(copies=4, staggered=True), 40)  # copy b's episodes have b + 1 steps
    found = evaluation.episodes
    assert torch.bincount(found.copy).tolist() == [10, 10, 10, 10]
    assert found.length.tolist() == (found.copy + 1).tolist()
    assert found.metrics["age"].tolist() == (found.copy + 1).tolist()
    assert evaluation.measured() == {"age": 2.5}
    assert found.length.double().mean() == 2.5


def test_the_quota_is_rounded_up_to_the_same_number_in_every_copy() -> None:
    assert len(played(world(copies=4), 10).episodes.copy) == 12
    assert len(played(world(copies=4), 4).episodes.copy) == 4


@pytest.mark.parametrize("fill", [0.0, 7.0, float("nan")])
def test_closing_rows_and_dead_agents_count_for_nothing(fill: float) -> None:
    found = played(world(limit=6, mortal=True, fill=fill), 9)
    assert found.episodes.length.tolist() == [6] * 9
    assert found.episodes.returns.tolist() == [[6.0, 8.0]] * 9  # walker_1 is dead for two of six steps
    assert found.episodes.group_returns.tolist() == [[3.0]] * 9
    assert found.return_mean("walkers") == 17.0
    assert found.report() == {
        "walkers": {
            "return_mean": 17.0,
            "return_std": 0.0,
            "return_by_agent": {"walker_0": 6.0, "walker_1": 8.0},
            "length_mean": 6.0,
        }
    }


def test_the_same_steps_give_the_same_result_and_others_another() -> None:
    env = world(bonus=1.0)
    policies = random_policies(env)
    evaluator = Evaluator(env, policies, 12, {"walkers": "sample"}, seed=3)
    first, other, again = (evaluator(steps).episodes.returns.tolist() for steps in (100, 200, 100))
    assert first == again
    assert first != other
    assert Evaluator(env, policies, 12, {"walkers": "sample"}, seed=4)(100).episodes.returns.tolist() != first
    assert len(set(env.seeds)) == 3


def test_greedy_takes_the_likeliest_action_and_sample_draws() -> None:
    env = world(bonus=1.0)
    team = env.spec.default_teams()[0]
    shape = Shape((8,), "tanh", False, "none", 8)
    policy = ActorPolicy(team, shape, "role", False, False, 0.6, False, generator(0, "weights"), CPU)
    found = {}
    for mode in ("greedy", "sample"):
        found[mode] = evaluate(env, {"walkers": policy}, 30, {"walkers": mode}, 0).return_mean("walkers")
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.zero_()  # all actions are equally likely: greedy takes the first, action 0
    assert evaluate(env, {"walkers": policy}, 30, {"walkers": "greedy"}, 0).return_mean("walkers") == 15 + 2.5 + 10
    drawn = evaluate(env, {"walkers": policy}, 300, {"walkers": "sample"}, 0).return_mean("walkers")
    assert drawn == pytest.approx(15 + 2.5 + 10 / 3, abs=0.5)
    assert found["greedy"] != found["sample"]


def test_episodes_that_do_not_end_are_an_error_that_says_the_mend() -> None:
    env = world(limit=10**6)
    policies = random_policies(env)
    with pytest.raises(UserError, match=r"3 of 3 copies did not finish 2 episodes within 64 steps: .*episode limit"):
        evaluate(env, policies, 6, {"walkers": "sample"}, 0, most_steps=64)


def test_the_best_checkpoint_is_the_one_of_the_best_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    results = iter([1.0, 5.0, 9.0, 3.0, 8.0, 2.0, 1.0])
    call = Evaluator.__call__

    def scripted(self: Evaluator, steps: int, told: Any = None) -> Evaluation:
        found = call(self, steps)
        wanted, have = next(results), found.return_mean("agent")
        scale = wanted / have
        return replace(found, episodes=replace(found.episodes, returns=found.episodes.returns * scale))

    monkeypatch.setattr(Evaluator, "__call__", scripted)
    train(tmp_path / "run", "steps=240", "eval.every=40", "checkpoint.every=1000")
    evaluations = [row for row in rows_of(tmp_path / "run") if "eval/return_mean" in row]
    best = max(evaluations, key=lambda row: row["eval/return_mean"])
    found = Checkpoints(tmp_path / "run" / "checkpoints").load_best()
    assert found is not None
    assert found.warning is None
    assert found.steps == best["steps"]
    assert best is evaluations[2]


def test_without_evaluation_no_checkpoint_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    train(tmp_path / "run", "eval.every=0")
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_where_only_the_end_is_kept_it_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    train(tmp_path / "run", "steps=160", "checkpoint.every=0")
    store = Checkpoints(tmp_path / "run" / "checkpoints")
    best, last = store.load_best(), store.latest()
    assert best is not None
    assert last is not None
    assert best.steps == last.steps >= 160


@pytest.mark.parametrize(
    ("env", "episodes", "copies"),
    [
        ("gym/CartPole-v1", 12, 3),
        ("gym/CartPole-v1", 2, 2),
        ("particle/simple", 12, 12),
        ("particle/simple", 1500, 1000),
    ],
)
def test_only_batches_are_evaluated_with_more_copies_than_the_run_has(
    monkeypatch: pytest.MonkeyPatch, env: str, episodes: int, copies: int
) -> None:
    made: list[int] = []
    environment = running.environment

    def noted(config: Any, copies: int, purpose: str, device: torch.device, lesson: int | None = None) -> Any:
        made.append(copies)
        return environment(config, copies, purpose, device, lesson)

    monkeypatch.setattr(running, "environment", noted)
    settings = ["algo=random", f"env={env}", "eval.copies=3", "threads=1", "device=cpu"]
    found = running.evaluate_baseline(resolve(settings), episodes)
    assert made == [copies]
    assert found["episodes"] >= episodes


def test_an_evaluation_tells_how_many_episodes_are_played() -> None:
    env, said = world(copies=4, limit=40), []
    policies = random_policies(env)
    evaluate(
        env, policies, 8, dict.fromkeys(policies, "sample"), 0, told=lambda done, total: said.append((done, total))
    )
    assert said == [(0, 8), (4, 8), (8, 8)]  # every 32 steps


def test_a_run_that_is_not_evaluated_plays_nothing_at_random_and_opens_one_copy(tmp_path: Path) -> None:
    def manifest(every: str) -> dict[str, Any]:
        return RunDir.open(train(tmp_path / every, f"eval.every={every}").run).read_manifest()

    assert "random" in manifest("300")
    assert "random" not in manifest("0")
    config = resolve(["algo=random", "env=gym/CartPole-v1", "eval.every=0", "workers.count=1", "copies=2"]).config
    with closing(build(config)) as parts:
        assert parts.evaluator.env.copies == 1
        assert len(multiprocessing.active_children()) == 1
