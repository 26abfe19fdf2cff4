"""Double buffering: one half of the environments is stepped while policies act on the other. Results do not change."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.assembly.resolve import resolve
from coterie.commands.benchmark import bench
from coterie.config.schema import WorkersConfig
from coterie.core.errors import WorkersFailedError
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, Rollout, Timestep
from coterie.envs.contract.partial_step import PartitionedEnv, concat_envs, env_parts, split_envs
from coterie.envs.contract.traces import first_difference
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, DoubleBufferedEnv, SerialBackend
from coterie.envs.make import make
from coterie.nets.config import NetworkConfig
from coterie.policies.base import Mode, Policy, RandomPolicy
from coterie.policies.stochastic import StochasticPolicy
from coterie.training.collector import Collector
from coterie.training.evaluation import evaluate
from gymnasium_worlds import results
from places import ROOT
from tape import Tape
from tinyruns import assert_resumes_exactly, log_entries, tiny

CARTPOLE = "gym/CartPole-v1"
COUNTING = "gym/faultyworlds:Counting-v0"
PATIENT = "gym/faultyworlds:Patient-v0"


def env_of(
    name: str, workers: int, num_envs: int = 5, overlap: bool = True, restarts: int = 2, **params: Any
) -> VectorEnv:
    config = WorkersConfig(count=workers, overlap=overlap, timeout=5.0, restarts=restarts)
    return make(name, params, num_envs, 3, workers=config)


def make_collector(env: VectorEnv, kind: type[Policy] = RandomPolicy) -> Collector:
    (team,) = env.spec.default_teams()
    if kind is RandomPolicy:
        return Collector(env, {team.name: RandomPolicy(team, env.device)}, 0)
    config = NetworkConfig([16], "tanh", rnn="gru", rnn_size=8, share_params="all", normalize_obs=True)
    policy = StochasticPolicy(team, config, torch.Generator().manual_seed(0), env.device)
    return Collector(env, {team.name: policy}, 0)


def rollouts(collector: Collector, *lengths: int) -> list[Rollout]:
    (name,) = collector.policies
    return [collector.advance(length)[0][name] for length in lengths]


# ---------------------------------------------------------------------------------------------------- identical results


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers():
    found, finished = [], []
    for workers in (0, 1, 4):  # three and two of five environments
        env = env_of(CARTPOLE, workers)
        collector = make_collector(env, StochasticPolicy)
        found.append(rollouts(collector, 20, 1, 20))
        finished.append(collector.pop_finished())
        env.close()
    for other in (1, 2):
        assert first_difference(found[0], found[other]) is None
        assert torch.equal(finished[0].returns, finished[other].returns)
        assert torch.equal(finished[0].env_index, finished[other].env_index)


def test_double_buffering_plays_the_same_episodes():
    """The random policy computes nothing from timesteps, so not even rounding may differ."""
    collectors = [make_collector(env_of(CARTPOLE, 0, overlap=overlap)) for overlap in (False, True)]
    assert [len(env_parts(c.env)) for c in collectors] == [1, 2]
    single, halves = (rollouts(c, 25, 25) for c in collectors)
    assert first_difference(single, halves) is None
    assert not single[0].acted.all()
    one, other = (c.pop_finished() for c in collectors)
    assert one is not None
    assert other is not None
    assert torch.equal(one.returns, other.returns)


def test_a_policy_acts_equally_on_halves_up_to_rounding():
    collectors = [make_collector(env_of(CARTPOLE, 0, overlap=overlap), StochasticPolicy) for overlap in (False, True)]
    single, halves = (rollouts(c, 12)[0] for c in collectors)
    assert torch.equal(single.action["agent"].discrete, halves.action["agent"].discrete)  # pyright: ignore
    torch.testing.assert_close(single.extras["log_prob"], halves.extras["log_prob"])
    one, other = (c.hidden_state("agent") for c in collectors)
    for name, hidden_state in one.items():
        torch.testing.assert_close(hidden_state, other[name])


def test_dying_agents_and_group_rewards_are_equal_in_halves():
    envs = [tape_env(5), DoubleBufferedEnv(tape_env(3), tape_env(2, first_index=3))]
    collectors = [make_collector(env) for env in envs]
    single, halves = (rollouts(c, 4, 20) for c in collectors)
    assert first_difference(single, halves) is None
    assert not single[1].alive.all()
    assert single[1].group_reward.any()


def tape_env(num_envs: int, first_index: int = 0) -> BackendVectorEnv:
    return BackendVectorEnv(SerialBackend(Tape, Tape.layout, num_envs, first_index=first_index), 3, "cpu")


def test_evaluation_plays_the_same_episodes_with_double_buffering():
    found = []
    for overlap in (False, True):
        env = env_of(CARTPOLE, 0, overlap=overlap)
        (team,) = env.spec.default_teams()
        policies: dict[str, Policy] = {team.name: RandomPolicy(team, env.device)}
        found.append(evaluate(env, policies, episodes=12, modes={team.name: "sample"}, seed=7).episodes)
    assert len(found[0].env_index) == 15  # three per environment
    assert torch.equal(found[0].returns, found[1].returns)
    assert torch.equal(found[0].env_index, found[1].env_index)


def test_a_single_environment_is_not_double_buffered():
    assert not isinstance(env_of(CARTPOLE, 0, num_envs=1), PartitionedEnv)
    assert isinstance(env_of(CARTPOLE, 0, num_envs=2), PartitionedEnv)


def test_a_state_can_be_restored_with_and_without_double_buffering():
    first = env_of(CARTPOLE, 0)
    initial = first.state_dict()
    first.reset()
    results(first, 12)
    state, expected = first.state_dict(), results(first, 30)
    for overlap in (True, False):
        env = env_of(CARTPOLE, 0, overlap=overlap)
        env.load_state_dict(state)
        assert first_difference(results(env, 30), expected) is None
        env.load_state_dict(initial)
        env.reset()
        results(env, 12)
        assert first_difference(results(env, 30)[-1], expected[-1]) is None


@pytest.mark.slow
def test_a_resumed_double_buffered_run_is_bit_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = ("algo=ppo", "algo.rnn=gru", "algo.rnn_size=6", "algo.normalize_obs=true", "num_envs=5", "steps=240")
    assert_resumes_exactly(tmp_path, monkeypatch, 130, *settings, f"env={CARTPOLE}", "workers.overlap=true")
    assert log_entries(tmp_path / "whole") == log_entries(tmp_path / "halves")


# ---------------------------------------------------------------------------------------------------------- concurrency


class Numbers(Policy):
    """Acts with the number of the call in every environment, and creates a file of that name."""

    def __init__(self, team: TeamSpec, folder: Path):
        self.team, self._folder, self.calls = team, folder, 0

    def initial_hidden_state(self, num_envs: int) -> dict[str, Tensor]:
        return {}

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return [{}] * steps

    def act(self, timestep: Timestep, hidden_state: Any, noise: Tree, mode: Mode) -> Any:
        self.calls += 1
        (self._folder / str(self.calls)).touch()
        calls = torch.full((len(timestep.acted), 1, 1), self.calls)
        return {"agent": Action(calls)}, hidden_state, {"call": calls[..., 0]}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_one_half_is_stepped_while_the_policy_acts_on_the_other(tmp_path: Path):
    """No step ends before the policy has acted once more, which is possible on the other half only."""
    env = env_of(PATIENT, 1, num_envs=4, folder=str(tmp_path), last=10)
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: Numbers(team, tmp_path)}, 0)
    (rollout,) = rollouts(collector, 5)
    env.close()
    assert collector.dropped == 0
    calls = np.arange(1, 11).reshape(5, 2).repeat(2, axis=1)  # first half, second half
    assert rollout.extras["call"][..., 0].tolist() == calls.tolist()
    assert rollout.obs["agent"][1:, :, 0, 0].tolist() == calls.tolist()


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "raises"])
def test_a_failing_worker_loses_only_its_own_environments(fault: str, tmp_path: Path):
    env = env_of(COUNTING, 1, num_envs=4, fault=fault, once=str(tmp_path / "once"))
    collector = make_collector(env)
    (rollout,) = rollouts(collector, 10)
    env.close()
    gone = ~rollout.acted[2]
    assert gone.tolist() in ([True, True, False, False], [False, False, True, True])  # whichever came first
    assert collector.dropped == 2
    assert torch.equal(rollout.episode_truncated[1], gone)
    assert rollout.first[3, gone].all()
    assert not rollout.reward[2, gone].any()
    healthy = env_of(COUNTING, 0, num_envs=4)
    (expected,) = rollouts(make_collector(healthy), 10)
    assert torch.equal(rollout.obs["agent"][:, ~gone], expected.obs["agent"][:, ~gone])
    assert torch.equal(rollout.reward[:, ~gone], expected.reward[:, ~gone])
    numbers = rollout.obs["agent"][-1, :, 0, 0].tolist()
    assert len(set(numbers)) == 4  # restarted environments have new seeds


@pytest.mark.slow
def test_too_many_failures_in_one_half_end_the_workers_of_the_other(caplog: Any):
    env = env_of(COUNTING, 1, num_envs=4, fault="raises", restarts=0)
    assert isinstance(env, DoubleBufferedEnv)
    pids = [pid for half in env.parts for pid in half.backend.pids]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(WorkersFailedError, match="environments 0 to 1 of"):
        rollouts(make_collector(env), 10)
    env.close()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_a_reset_waits_for_the_pending_step():
    """A late reply is not taken for the reply to another command."""
    env, serial = env_of(CARTPOLE, 1, num_envs=4), env_of(CARTPOLE, 0, num_envs=4)
    assert isinstance(env, DoubleBufferedEnv)
    env.reset()
    env.parts[0].send({"agent": Action(torch.zeros(2, 1, 1, dtype=torch.long))})
    assert first_difference(env.reset(5), serial.reset(5)) is None
    (worker,) = env.parts[0].backend.workers  # pyright: ignore[reportAttributeAccessIssue]
    assert not worker.has_reply(0.3)
    assert first_difference(results(env, 8), results(serial, 8)) is None
    env.close()


# ---------------------------------------------------------------------------------------------------------------- parts


def test_concatenation_reverses_splitting():
    tree = {"a": torch.arange(10).reshape(5, 2), "b": {"c": torch.arange(5)}}
    pieces = split_envs(tree, (3, 2))
    assert pieces[1]["a"].tolist() == [[6, 7], [8, 9]]
    assert pieces[1]["b"]["c"].storage_offset() == 0
    assert first_difference(concat_envs(pieces), tree) is None
    assert split_envs(tree, (5,))[0] is tree


def test_an_image_comes_from_the_half_of_the_environment():
    env = DoubleBufferedEnv(tape_env(3), tape_env(2, first_index=3))
    shown = [np.full((2, 2, 3), k, np.uint8) for k in range(5)]
    for half, own in zip(env.parts, (shown[:3], shown[3:]), strict=True):
        backend = half.backend  # pyright: ignore[reportAttributeAccessIssue]
        for instance, image in zip(backend.instances, own, strict=True):
            instance.render = lambda image=image: image
    assert [int(env.render(k, 2)[0, 0, 0]) for k in range(5)] == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------------- speed


@pytest.mark.slow
def test_time_spent_in_both_halves_counts_as_environment_time():
    report = bench(resolve(tiny("algo=ppo", f"env={CARTPOLE}", "workers.overlap=true")), 0.1)
    assert report["time"]["environment"]["share"] > 0
    assert sum(phase["share"] for phase in report["time"].values()) == pytest.approx(1)


def test_the_worker_benchmarks_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    halves, piped = importlib.import_module("halves"), importlib.import_module("piped")
    assert halves.took(CARTPOLE, {}, [8], 4, WorkersConfig(overlap=True), 0.01) > 0
    for name, agents in (("gym/CartPole-v1", 1), ("pettingzoo/mpe2.simple_spread_v3", 3)):
        game = piped.Game(name)
        shown = game.reset(0)
        seen, reward, ended = game.step(game.sample())
        assert seen.shape == shown.shape
        assert np.size(reward) == agents
        assert not ended
        game.close()
