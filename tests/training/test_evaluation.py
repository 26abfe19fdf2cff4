"""Evaluation: equal numbers of episodes per environment, masked timesteps, and reproducible results."""

from __future__ import annotations

import multiprocessing
import re
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.commands import evaluate as evaluation
from coterie.commands import run_manifest
from coterie.core.errors import UserError
from coterie.core.seeds import generator
from coterie.nets.config import NetworkConfig
from coterie.policies.base import Policy, RandomPolicy
from coterie.policies.stochastic import StochasticPolicy
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder
from coterie.runs.progress import PeriodicProgress
from coterie.training import evaluation as evaluating
from coterie.training import trainer
from coterie.training.evaluation import EndlessEpisodesError, Evaluation, Evaluator, evaluate
from tinyruns import log_entries, train
from worlds import Counter

CPU = torch.device("cpu")


def world(num_envs: int = 3, **settings: Any) -> Counter:
    return Counter(num_envs, 0, "cpu", **settings)


def endless(num_envs: int = 3, limit: int = 10**6, **settings: Any) -> Counter:
    """Returns a world that declares no limit."""
    env = world(num_envs, limit=limit, **settings)
    env.spec = replace(env.spec, episode_limit=None)
    return env


def random_policies(env: Counter) -> dict[str, Policy]:
    return {team.name: RandomPolicy(team, CPU) for team in env.spec.default_teams()}


def played(env: Counter, episodes: int, seed: int = 0, mode: Any = "sample") -> Evaluation:
    policies = random_policies(env)
    return evaluate(env, policies, episodes=episodes, modes=dict.fromkeys(policies, mode), seed=seed)


def mean_return(env: Counter, policy: Policy, episodes: int, mode: Any) -> float:
    """Returns the mean return of the team of walkers."""
    found = evaluate(env, {"walkers": policy}, episodes=episodes, modes={"walkers": mode}, seed=0)
    return found.report()["walkers"]["return_mean"]


@pytest.mark.slow
def test_every_environment_plays_the_same_number_of_episodes_of_any_length() -> None:
    result = played(world(num_envs=4, staggered=True), 40)  # episodes of environment b have b + 1 steps
    found = result.episodes
    assert torch.bincount(found.env_index).tolist() == [10, 10, 10, 10]
    assert found.length.tolist() == (found.env_index + 1).tolist()
    assert found.metrics["age"].tolist() == (found.env_index + 1).tolist()
    assert result.env_metrics()["metrics"] == {"age": 2.5}
    assert found.length.double().mean() == 2.5


def test_the_number_of_episodes_is_rounded_up_to_the_same_in_every_environment() -> None:
    assert len(played(world(num_envs=4), 10).episodes) == 12
    assert len(played(world(num_envs=4), 4).episodes) == 4


@pytest.mark.parametrize("fill", [0.0, 7.0, float("nan")])
def test_final_timesteps_and_dead_agents_do_not_count(fill: float) -> None:
    found = played(world(limit=6, agents_can_die=True, fill=fill), 9)
    assert found.episodes.length.tolist() == [6] * 9
    assert found.episodes.returns.tolist() == [[6.0, 8.0]] * 9  # walker_1 is dead for two of six steps
    assert found.episodes.group_returns.tolist() == [[3.0]] * 9
    assert found.report() == {
        "walkers": {
            "return_mean": 17.0,
            "return_error": 0.0,
            "return_interval": [17.0, 17.0],
            "return_std": 0.0,
            "return_by_group": {"walkers": 3.0},
            "return_by_agent": {"walker_0": 6.0, "walker_1": 8.0},
            "length_mean": 6.0,
        }
    }


def test_results_depend_on_the_steps_and_the_seed_only() -> None:
    env = world(bonus=1.0)
    policies = random_policies(env)
    evaluator = Evaluator(env, policies, episodes=12, modes={"walkers": "sample"}, seed=3)
    first, other, again = (evaluator(steps).episodes.returns.tolist() for steps in (100, 200, 100))
    assert first == again
    assert first != other
    reseeded = Evaluator(env, policies, episodes=12, modes={"walkers": "sample"}, seed=4)
    assert reseeded(100).episodes.returns.tolist() != first
    assert len(set(env.seeds)) == 3


@pytest.mark.slow
def test_greedy_takes_the_most_likely_action_and_sample_draws() -> None:
    env = world(bonus=1.0)
    team = env.spec.default_teams()[0]
    network = NetworkConfig((8,), "tanh")
    policy = StochasticPolicy(team, network, generator(0, "weights"), CPU, init_std=0.6)
    found = {mode: mean_return(env, policy, 30, mode) for mode in ("greedy", "sample")}
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.zero_()  # all actions are equally likely: greedy takes the first, action 0
    assert mean_return(env, policy, 30, "greedy") == 15 + 2.5 + 10
    assert mean_return(env, policy, 300, "sample") == pytest.approx(15 + 2.5 + 10 / 3, abs=0.5)
    assert found["greedy"] != found["sample"]


def test_episodes_that_do_not_end_raise_an_error_that_suggests_a_fix() -> None:
    env = endless()
    policies = random_policies(env)
    expected = "3 of 3 environments did not finish 2 episodes, and no further one ended within 64 steps. Set an episode"
    with pytest.raises(EndlessEpisodesError, match=re.escape(expected)):
        evaluate(env, policies, episodes=6, modes={"walkers": "sample"}, seed=0, patience=64)


@pytest.mark.slow
def test_an_evaluation_waits_longer_where_the_limit_or_the_longest_episode_is_longer_than_its_patience() -> None:
    for env in (world(limit=100), endless(limit=100), endless(staggered=True, num_envs=20)):
        policies = random_policies(env)
        patience = 32 if env.spec.episode_limit else 100
        assert evaluate(env, policies, episodes=40, modes={"walkers": "sample"}, seed=0, patience=patience).episodes


@pytest.mark.slow
def test_a_run_whose_episodes_do_not_end_says_so_once_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "PATIENCE", 64)
    monkeypatch.setattr(run_manifest, "PATIENCE", 64)
    evaluations = []
    monkeypatch.setattr(evaluating, "evaluate", lambda *_, **__: evaluations.append(None))
    result = train(tmp_path / "run", "env=diagnosis_worlds:make", "env.length=0", "steps=240", "eval.every=40")
    note = "random policy: no episode ended within 64 steps of each environment"
    lines = [line for line in capsys.readouterr().err.splitlines() if "ended" in line]
    assert len(lines) == 2  # at the start and in the summary
    assert note in lines[0]
    assert "no episode ended in 240 steps, 60 of each of the 4 environments, so that the return is unknown" in lines[1]
    assert "Increase steps, or end episodes by a limit that fits the task, such as env.episode_limit=200." in lines[1]
    assert "Evaluations are left out until an episode ends in training" in lines[0]
    assert "env.episode_limit=200" in lines[0]
    assert evaluations == []
    assert result.summary.steps == 240
    assert RunFolder.open(result.run).read_manifest()["random"] == {}
    assert not [entry for entry in log_entries(result.run) if "eval/return_mean" in entry]


def test_evaluations_that_were_given_up_are_tried_again_when_an_episode_has_ended_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def waits_twice(*given: Any, **settings: Any) -> Evaluation:
        calls.append(settings["seed"])
        if len(calls) <= 2:
            raise EndlessEpisodesError("", 64, 1)
        return evaluate(*given, **settings)

    monkeypatch.setattr(evaluating, "evaluate", waits_twice)
    # An episode and its reset take 30 timesteps, three rollouts.
    train(tmp_path / "run", "env=worlds:counter", "env.limit=29", "steps=480", "eval.every=40")
    evaluated = [row["steps"] for row in log_entries(tmp_path / "run") if "eval/return_mean" in row]
    assert evaluated[0] == 232  # the sixth
    assert len(evaluated) == 8  # one per rollout
    assert len(calls) == 2 + len(evaluated)
    lines = capsys.readouterr().err.splitlines()
    tried = [line.partition(":")[2].partition(":")[0] for line in lines]
    assert tried == [" evaluation after 0 steps", " evaluation after 156 steps"]


@pytest.mark.parametrize(("limit", "ends"), [(0, True), (5, False)])
def test_evaluations_that_take_longer_than_training_are_said_once(
    limit: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An episode takes five steps; its limit is unknown, or known."""

    def slow(*given: Any, **settings: Any) -> Evaluation:
        time.sleep(0.5)
        return evaluate(*given, **settings)

    monkeypatch.setattr(evaluating, "evaluate", slow)
    monkeypatch.setattr(trainer, "SLOW_S", 0.4)
    env = ["env=worlds:counter", f"env.limit={limit}"] if limit else ["env=diagnosis_worlds:make", "env.length=5"]
    train(tmp_path / "run", *env, "steps=120", "eval.every=40", "eval.episodes=4")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "of the time" in line]
    assert re.search(r"evaluations have taken [5-9]\d% of the time: ", line)
    assert "evaluate less often than after 40 steps (eval.every) or in fewer than 4 episodes (eval.episodes)" in line
    assert ("env.episode_limit=200" in line) is ends


@pytest.mark.slow
def test_the_best_checkpoint_is_the_one_of_the_best_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([1.0, 5.0, 9.0, 3.0, 8.0, 2.0, 1.0])
    call = Evaluator.__call__

    def scripted(self: Evaluator, steps: int, on_progress: Any = None) -> Evaluation:
        found = call(self, steps)
        wanted, have = next(results), found.report()["agent"]["return_mean"]
        scale = wanted / have
        return replace(found, episodes=replace(found.episodes, returns=found.episodes.returns * scale))

    monkeypatch.setattr(Evaluator, "__call__", scripted)
    train(tmp_path / "run", "steps=240", "eval.every=40", "checkpoint.every=1000")
    evaluations = [entry for entry in log_entries(tmp_path / "run") if "eval/return_mean" in entry]
    best = max(evaluations, key=lambda entry: entry["eval/return_mean"])
    found = Checkpoints(tmp_path / "run" / "checkpoints").load_best()
    assert found is not None
    assert found.warning is None
    assert found.steps == best["steps"]
    assert best is evaluations[2]


def test_without_evaluations_no_checkpoint_is_the_best(tmp_path: Path) -> None:
    train(tmp_path / "run", "eval.every=0")
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_if_only_the_final_checkpoint_is_kept_it_is_the_best(tmp_path: Path) -> None:
    train(tmp_path / "run", "steps=160", "checkpoint.every=0")
    store = Checkpoints(tmp_path / "run" / "checkpoints")
    best, last = store.load_best(), store.latest()
    assert best is not None
    assert last is not None
    assert best.steps == last.steps >= 160


@pytest.mark.parametrize(
    ("env", "episodes", "num_envs"),
    [
        ("gym/CartPole-v1", 12, 3),
        ("gym/CartPole-v1", 2, 2),
        ("particle/simple", 12, 12),
        ("particle/simple", 1500, 1000),
    ],
)
def test_only_batched_environments_are_evaluated_in_more_instances_than_the_run_has(
    monkeypatch: pytest.MonkeyPatch, env: str, episodes: int, num_envs: int
) -> None:
    created: list[int] = []
    environment = evaluation.make_environment

    def recorded(*args: Any, num_envs: int, **kwargs: Any) -> Any:
        created.append(num_envs)
        return environment(*args, num_envs=num_envs, **kwargs)

    monkeypatch.setattr(evaluation, "make_environment", recorded)
    settings = ["algo=random", f"env={env}", "eval.num_envs=3", "threads=1", "device=cpu"]
    found = evaluation.evaluate_baseline(resolve(settings), episodes)
    assert created == [num_envs]
    assert found["episodes"] >= episodes


@pytest.mark.parametrize("algo", ["ippo", "random"])
def test_an_untrained_learner_is_evaluated_with_a_warning(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The control needs no training."""
    settings = [f"algo={algo}", "env=matrix/climbing", "threads=1", "device=cpu", "progress=off"]
    warnings = evaluation.evaluate_baseline(resolve(settings), 2)["warnings"]
    assert len(warnings) == (algo == "ippo")
    assert ("algo=ippo learns, and its networks are not trained" in capsys.readouterr().err) == (algo == "ippo")


def test_an_evaluation_reports_its_progress() -> None:
    env, reports = world(num_envs=4, limit=40), []
    policies = random_policies(env)
    evaluate(
        env,
        policies,
        episodes=8,
        modes=dict.fromkeys(policies, "sample"),
        seed=0,
        on_progress=lambda done, total, _: reports.append((done, total)),
    )
    assert reports == [(0, 8), (4, 8), (8, 8)]  # every 32 steps


def test_an_evaluation_whose_episodes_do_not_end_names_steps_and_the_setting() -> None:
    env, lines = endless(num_envs=2), []
    policies = random_policies(env)
    report = PeriodicProgress(lines.append, "evaluation", first_s=0.0, interval_s=0.0, clock=lambda: 0.0)
    with pytest.raises(UserError, match=r"env\.episode_limit"):
        evaluate(
            env,
            policies,
            episodes=2,
            modes=dict.fromkeys(policies, "sample"),
            seed=0,
            patience=32,
            on_progress=report,
        )
    assert lines[-1] == (
        "evaluation: 0 of 2 episodes. No further episode has ended, after 32 of at most 32 steps per environment. "
        "env.episode_limit ends them earlier"
    )


@pytest.mark.slow
def test_a_run_without_evaluations_has_no_random_returns_and_one_idle_environment(tmp_path: Path) -> None:
    def manifest(every: str) -> dict[str, Any]:
        return RunFolder.open(train(tmp_path / every, f"eval.every={every}").run).read_manifest()

    assert "random" in manifest("300")
    assert "random" not in manifest("0")
    config = resolve(["algo=random", "env=gym/CartPole-v1", "eval.every=0", "workers.count=1", "num_envs=2"]).config
    with closing(build(config)) as components:
        assert components.evaluator.env.num_envs == 1
        assert len(multiprocessing.active_children()) == 1
