"""Copies in two halves: one is stepped while the other is acted on, and nothing else changes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tape import Tape
from torch import Tensor

from coterie import run
from coterie.actor import ActorPolicy
from coterie.benchmark import bench
from coterie.collect import Collector
from coterie.config import resolve
from coterie.envs.check import check
from coterie.envs.hosting.halves import Halves
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.make import make
from coterie.envs.parts import Parted, beside, parts_of, split, steps_beside
from coterie.envs.paths import difference, random_actions
from coterie.envs.vector import VectorEnv
from coterie.errors import WorkersFailedError
from coterie.evaluation import evaluate
from coterie.nets.team import Shape
from coterie.policy import Mode, Policy, RandomPolicy
from coterie.schema import WorkersConfig
from coterie.types import Action, Row, Step, TeamSpec, Tree, Window
from tinyruns import assert_same, rows_of, state_of, stop_at

CARTPOLE = "gym/CartPole-v1"
COUNTING = "gym/faultyworlds:Counting-v0"
PATIENT = "gym/patientworlds:Patient-v0"


def env_of(
    name: str, workers: int, copies: int = 5, overlap: bool = True, restarts: int = 2, **params: Any
) -> VectorEnv:
    config = WorkersConfig(count=workers, overlap=overlap, timeout=5.0, restarts=restarts)
    return make(name, params, copies, 3, workers=config)


def collector(env: VectorEnv, kind: type[Policy] = RandomPolicy) -> Collector:
    (team,) = env.spec.default_teams()
    if kind is RandomPolicy:
        return Collector(env, {team.name: RandomPolicy(team, env.device)}, 0)
    shape = Shape([16], "tanh", False, "gru", 8)
    generator = torch.Generator().manual_seed(0)
    policy = ActorPolicy(team, shape, "all", False, False, 1.0, True, generator, env.device)
    return Collector(env, {team.name: policy}, 0)


def windows(collector: Collector, *lengths: int) -> list[Window]:
    (name,) = collector.policies
    return [collector.advance(length)[0][name] for length in lengths]


# ---------------------------------------------------------------------------------------------------- the same bits


def test_any_number_of_workers_gives_the_same_bits_in_halves():
    found, finished = [], []
    for workers in (0, 1, 4):  # of five copies: three and two
        env = env_of(CARTPOLE, workers)
        collects = collector(env, ActorPolicy)
        found.append(windows(collects, 20, 1, 20))
        finished.append(collects.statistics())
        env.close()
    for other in (1, 2):
        assert all(difference(a, b) is None for a, b in zip(found[0], found[other], strict=True))
        assert torch.equal(finished[0].returns, finished[other].returns)
        assert torch.equal(finished[0].copy, finished[other].copy)


def test_halves_are_the_same_episodes_as_the_whole():
    """Draws of a policy that computes nothing over rows: not even the last bit may differ."""
    collects = [collector(env_of(CARTPOLE, 0, overlap=overlap)) for overlap in (False, True)]
    assert [len(parts_of(c.env)) for c in collects] == [1, 2]
    whole, halves = (windows(c, 25, 25) for c in collects)
    assert all(difference(a, b) is None for a, b in zip(whole, halves, strict=True))
    assert not whole[0].acted.all()
    one, other = (c.statistics() for c in collects)
    assert one is not None
    assert other is not None
    assert torch.equal(one.returns, other.returns)


def test_an_actor_does_in_halves_what_it_does_at_once_but_for_rounding():
    collects = [collector(env_of(CARTPOLE, 0, overlap=overlap), ActorPolicy) for overlap in (False, True)]
    whole, halves = (windows(c, 12)[0] for c in collects)
    assert torch.equal(whole.action["agent"].discrete, halves.action["agent"].discrete)  # pyright: ignore
    torch.testing.assert_close(whole.record["log_prob"], halves.record["log_prob"])
    for name, memory in collects[0]._carry["agent"].items():
        torch.testing.assert_close(memory, collects[1]._carry["agent"][name])


def test_agents_that_die_and_groups_that_are_paid_are_the_same_in_halves():
    envs = [of_tapes(5), Halves(of_tapes(3), of_tapes(2, first=3))]
    collects = [collector(env) for env in envs]
    whole, halves = (windows(c, 4, 20) for c in collects)
    assert all(difference(a, b) is None for a, b in zip(whole, halves, strict=True))
    assert not whole[1].alive.all()
    assert whole[1].group_reward.any()


def of_tapes(copies: int, first: int = 0) -> HostedEnv:
    return HostedEnv(Alone(Tape, Tape.layout, copies, first), 3, "cpu")


def test_evaluation_plays_the_same_episodes_in_halves():
    found = []
    for overlap in (False, True):
        env = env_of(CARTPOLE, 0, overlap=overlap)
        (team,) = env.spec.default_teams()
        policies: dict[str, Policy] = {team.name: RandomPolicy(team, env.device)}
        found.append(evaluate(env, policies, 12, {team.name: "sample"}, 7).episodes)
    assert len(found[0].copy) == 15  # three a copy
    assert torch.equal(found[0].returns, found[1].returns)
    assert torch.equal(found[0].copy, found[1].copy)


def test_halves_keep_the_contract_of_environments():
    def create(copies: int, seed: int) -> VectorEnv:
        return make(CARTPOLE, {}, copies, seed, workers=WorkersConfig(overlap=True))

    assert [finding for finding in check(create, steps=40, copies=3).findings if finding.severity == "error"] == []


def test_one_copy_has_no_halves():
    assert not isinstance(env_of(CARTPOLE, 0, copies=1), Parted)
    assert isinstance(env_of(CARTPOLE, 0, copies=2), Parted)


def test_a_state_goes_on_with_halves_or_without():
    first = env_of(CARTPOLE, 0)
    begun = first.state_dict()
    first.reset()
    played(first, 12)
    state, expected = first.state_dict(), played(first, 30)
    for overlap in (True, False):
        env = env_of(CARTPOLE, 0, overlap=overlap)
        env.load_state_dict(state)
        assert all(difference(a, b) is None for a, b in zip(played(env, 30), expected, strict=True))
        env.load_state_dict(begun)
        env.reset()
        played(env, 12)
        assert difference(played(env, 30)[-1], expected[-1]) is None


def played(env: VectorEnv, steps: int) -> list[Row | Step]:
    generator = torch.Generator().manual_seed(0)
    each = torch.ones(env.copies, 1)
    row = Row({}, {}, {}, each, each, each[:, 0])
    found: list[Row | Step] = []
    for _ in range(steps):
        step, row = env.step(random_actions(env.spec, row, generator))
        found += [step, row]
    return found


SETTINGS = {
    "ppo": ("algo.memory=gru", "algo.memory_size=6", "algo.normalise_obs=true", "algo.epochs=2", "algo.minibatches=2"),
    "ddqn": ("algo.learning_starts=40", "algo.batch=4", "algo.replay=200", "algo.updates=2"),
}
EACH = (
    *(f"env={CARTPOLE}", "copies=5", "steps=400", "horizon=10", "algo.hidden=[8]", "workers.overlap=true", "threads=1"),
    *("device=cpu", "eval.every=120", "eval.episodes=4", "eval.copies=4", "log.tensorboard=false", "progress=off"),
)


@pytest.mark.parametrize("algo", SETTINGS)
def test_a_resumed_run_in_halves_ends_with_the_same_bits(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    settings = [f"algo={algo}", *SETTINGS[algo], *EACH]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run.train(resolve([*settings, f"out={whole}"]))
    with monkeypatch.context() as patch:
        stop_at(patch, 170)
        run.train(resolve([*settings, f"out={parts}"]))
    assert state_of(parts)["steps"] < 300
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)


# ------------------------------------------------------------------------------------------------------- at one time


class Numbers(Policy):
    """Tells every copy the number of the call, and makes a file of that name."""

    def __init__(self, team: TeamSpec, folder: Path):
        self.team, self._folder, self.calls = team, folder, 0

    def start(self, copies: int) -> dict[str, Tensor]:
        return {}

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        return [{}] * steps

    def act(self, row: Row, carry: Any, noise: Tree, mode: Mode) -> Any:
        self.calls += 1
        (self._folder / str(self.calls)).touch()
        told = torch.full((len(row.acted), 1, 1), self.calls)
        return {"agent": Action(told)}, carry, {"call": told[..., 0]}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_one_half_is_stepped_while_the_policy_acts_on_the_other(tmp_path: Path):
    """No step ends before the policy has acted once more, which it can do on the other half only."""
    env = env_of(PATIENT, 1, copies=4, folder=str(tmp_path), last=10)
    (team,) = env.spec.default_teams()
    collects = Collector(env, {team.name: Numbers(team, tmp_path)}, 0)
    (window,) = windows(collects, 5)
    env.close()
    assert collects.dropped == 0
    calls = np.arange(1, 11).reshape(5, 2).repeat(2, axis=1)  # of the first half, then of the second
    assert window.record["call"][..., 0].tolist() == calls.tolist()
    assert window.obs["agent"][1:, :, 0, 0].tolist() == calls.tolist()


def test_all_copies_at_once_would_wait_for_ever(tmp_path: Path):
    env = env_of(PATIENT, 1, copies=4, overlap=False, folder=str(tmp_path), patience=0.3)
    (team,) = env.spec.default_teams()
    collects = Collector(env, {team.name: Numbers(team, tmp_path)}, 0)
    windows(collects, 1)
    env.close()
    assert collects.dropped == 4


# ------------------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("fault", ["killed", "raises", "nan"])
def test_a_worker_that_fails_costs_its_own_copies_of_its_half_only(fault: str, tmp_path: Path):
    env = env_of(COUNTING, 1, copies=4, fault=fault, once=str(tmp_path / "once"))
    collects = collector(env)
    (window,) = windows(collects, 10)
    env.close()
    gone = ~window.acted[2]
    assert gone.tolist() in ([True, True, False, False], [False, False, True, True])  # whichever came first
    assert collects.dropped == 2
    assert torch.equal(window.episode_truncated[1], gone)
    assert window.first[3, gone].all()
    assert not window.reward[2, gone].any()
    sound = env_of(COUNTING, 0, copies=4)
    (expected,) = windows(collector(sound), 10)
    assert torch.equal(window.obs["agent"][:, ~gone], expected.obs["agent"][:, ~gone])
    assert torch.equal(window.reward[:, ~gone], expected.reward[:, ~gone])
    numbers = window.obs["agent"][-1, :, 0, 0].tolist()
    assert len(set(numbers)) == 4  # also those that began anew have seeds of their own


def test_when_it_ends_for_failures_what_is_under_way_in_the_other_half_stops_too(caplog: Any):
    env = env_of(COUNTING, 1, copies=4, fault="raises", restarts=0)
    assert isinstance(env, Halves)
    pids = [pid for half in env.parts for pid in half._host.pids]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(WorkersFailedError, match="copies 0 to 1 of"):
        windows(collector(env), 10)
    env.close()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_new_begin_waits_for_the_step_that_is_under_way():
    """What a worker answers late is not taken for the answer to something else."""
    env, calm = env_of(CARTPOLE, 1, copies=4), env_of(CARTPOLE, 0, copies=4)
    assert isinstance(env, Halves)
    env.reset()
    env.parts[0].send({"agent": Action(torch.zeros(2, 1, 1, dtype=torch.long))})
    assert difference(env.reset(5), calm.reset(5)) is None
    (worker,) = env.parts[0]._host._workers  # pyright: ignore[reportAttributeAccessIssue]
    assert not worker._orders.poll(0.3)  # nothing is left to be heard
    assert all(difference(a, b) is None for a, b in zip(played(env, 8), played(calm, 8), strict=True))
    env.close()


# ------------------------------------------------------------------------------------------------------------ pieces


def test_pieces_beside_each_other_are_what_was_split():
    tree = {"a": torch.arange(10).reshape(5, 2), "b": {"c": torch.arange(5)}}
    pieces = split(tree, (3, 2))
    assert pieces[1]["a"].tolist() == [[6, 7], [8, 9]]
    assert pieces[1]["b"]["c"].storage_offset() == 0
    assert difference(beside(pieces), tree) is None
    assert split(tree, (5,))[0] is tree


def test_a_step_that_one_half_lost_is_lost_in_no_other():
    zero, no = torch.zeros(2, 1), torch.zeros(2, dtype=torch.bool)
    step = Step(zero, zero, zero.bool(), zero.bool(), no, no, {})
    lost = Step(zero, zero, zero.bool(), zero.bool(), no, no, {}, torch.tensor([False, True]))
    found = steps_beside([step, lost])
    assert found.lost is not None
    assert found.lost.tolist() == [False, False, False, True]
    assert steps_beside([step, step]).lost is None


def test_a_picture_is_of_the_half_that_the_copy_is_in():
    env = Halves(of_tapes(3), of_tapes(2, first=3))
    shown = [np.full((2, 2, 3), k, np.uint8) for k in range(5)]
    for half, own in zip(env.parts, (shown[:3], shown[3:]), strict=True):
        crew = half._host._crew  # pyright: ignore[reportAttributeAccessIssue]
        for instance, picture in zip(crew.instances, own, strict=True):
            instance.render = lambda picture=picture: picture
    assert [int(env.render(k, 2)[0, 0, 0]) for k in range(5)] == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------------------------------- speed


def test_the_time_of_halves_is_that_of_the_environment_too():
    settings = [
        "algo=ppo",
        f"env={CARTPOLE}",
        "copies=4",
        "horizon=4",
        "threads=1",
        "device=cpu",
        "workers.overlap=true",
    ]
    report = bench(resolve(settings), 0.1)
    assert report["time"]["environment"]["share"] > 0
    assert sum(phase["share"] for phase in report["time"].values()) == pytest.approx(1)


def test_the_scripts_that_measure_workers_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
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
