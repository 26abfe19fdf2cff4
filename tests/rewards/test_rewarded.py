"""Learners that are rewarded by signals: streams, mixtures, what is refused, and what stays as it was."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from algos.test_every import LEARNERS, SMALL, supports
from algos.worlds import Everything, Probe, env_of
from coterie import registry, run
from coterie.algos.poca import POCA, POCAConfig
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.streams import EXTRINSIC, Stream, Streams
from coterie.collect import Collector
from coterie.config import resolve
from coterie.errors import UserError
from coterie.metrics import undeclared
from coterie.policy import RandomPolicy
from coterie.rewards.config import RewardsConfig
from coterie.rewards.rewarded import Rewarded, compose, mixed
from coterie.types import Window
from tinyruns import assert_same, rows_of, state_of, stop_at, train

CPU = torch.device("cpu")
TINY_SIGNAL = {"hidden": [4], "features": 3, "minibatches": 2}
SPREAD = "env=particle/simple_spread"


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])


def rewarded(name: str, env: Any, **rewards: Any) -> Rewarded:
    """A small learner of the named algorithm with signals."""
    (team,) = env.spec.default_teams()
    cls = registry.algorithm(name)
    fields = cls.Config.model_fields
    given = [f"algo.{key}={value}" for key, value in SMALL.items() if key in fields]
    given += [f"algo.{key}={value}" for key, value in (("memory", "none"), ("last_action", "false")) if key in fields]
    config = resolve([f"algo={name}", "env=probe/both", *given]).config.algo.params
    made = compose(cls, name, team, config, RewardsConfig(**rewards), env.copies, None, 0, CPU)
    assert isinstance(made, Rewarded)
    return made


def lived(env: Any, steps: int) -> Window:
    (team,) = env.spec.default_teams()
    (window,) = Collector(env, {team.name: RandomPolicy(team, CPU)}, seed=0).advance(steps)[0].values()
    return replace(window, record={"log_prob": torch.zeros_like(window.reward)})


def count(length: int = 5, limit: bool = False) -> Probe:
    """Shows the age, and pays it."""
    return Probe(lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: age.view(-1, 1), length=length, limit=limit)


# ------------------------------------------------------------------------------------------------ all of them, in runs


@pytest.mark.parametrize(("name", "signal"), list(itertools.product(LEARNERS, ("icm", "rnd"))))
def test_every_algorithm_learns_with_every_signal(name: str, signal: str):
    """In a team of two roles with masks, deaths, rewards of the group, and NaN in dead places."""
    kind = "discrete" if supports(name, "discrete") else "continuous"
    env = env_of(Everything(kind) if kind == "discrete" else Probe(
        lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: c[..., 0], actions=Everything.KINDS["continuous"]
    ), 8)  # fmt: skip
    algorithm = rewarded(name, env, **{signal: TINY_SIGNAL | {"strength": 1.0}})
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: algorithm.policy}, seed=0)
    for k in range(3):
        (window,) = collector.advance(algorithm.horizon)[0].values()
        metrics = algorithm.update(window, k / 3)
    assert all(abs(value) < float("inf") for value in metrics.values())
    assert metrics[f"reward/{signal}_mean"] > 0
    assert undeclared(metrics) == []


def test_the_environments_reward_alone_is_the_same_bits_as_no_section(tmp_path: Path):
    train(tmp_path / "none", SPREAD)
    train(tmp_path / "one", SPREAD, "rewards.extrinsic.strength=1")
    train(tmp_path / "half", SPREAD, "rewards.extrinsic.strength=0.5")
    assert_same(state_of(tmp_path / "none"), state_of(tmp_path / "one"))
    assert rows_of(tmp_path / "none") == rows_of(tmp_path / "one")
    with pytest.raises(AssertionError):
        assert_same(state_of(tmp_path / "none")["algorithms"], state_of(tmp_path / "half")["algorithms"])


@pytest.mark.parametrize("settings", [
    ("algo=mappo", "rewards.icm={}", "rewards.rnd.strength_schedule=linear", "rewards.icm.normalise=true"),
    ("algo=qmix", "rewards.icm={}", "rewards.rnd={}", "algo.learning_starts=20", "algo.batch=4", "algo.replay=200",
     "algo.memory=none", "algo.last_action=false"),
], ids=["streams", "mixed"])  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bits(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny = [s for s in ("algo.epochs=2", "algo.minibatches=2") if "qmix" not in settings[0] or s.endswith("x")]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    base = ("copies=4", "algo.horizon=10", "algo.hidden=[8]", "steps=160", "threads=1", "device=cpu", "eval.every=120",
            "eval.episodes=4", "eval.copies=4", "log.tensorboard=false", "progress=off", SPREAD)  # fmt: skip
    run.train(resolve([*base, *tiny, *settings, f"out={whole}"]))
    with monkeypatch.context() as patch:
        stop_at(patch, 70)
        run.train(resolve([*base, *tiny, *settings, f"out={parts}"]))
    assert state_of(parts)["steps"] < 160
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)
    assert any("reward/icm_mean" in row and row["reward/icm_mean"] > 0 for row in rows_of(whole))


def test_returns_and_evaluations_stay_the_environments(tmp_path: Path):
    """The first window is collected by the same policy, whatever it is going to be rewarded for."""
    train(tmp_path / "none", SPREAD, "steps=300", "algo.horizon=26")
    train(tmp_path / "much", SPREAD, "steps=300", "algo.horizon=26", "rewards.rnd.strength=100")
    none, much = rows_of(tmp_path / "none"), rows_of(tmp_path / "much")
    paid = [next(row for row in rows if "rollout/return_mean" in row)["rollout/return_mean"] for rows in (none, much)]
    assert paid[0] == paid[1]
    assert none[0]["eval/return_mean"] == much[0]["eval/return_mean"]
    train(tmp_path / "off", SPREAD, "steps=300", "algo.horizon=26", "rewards.rnd.strength=0")
    last = [[row for row in rows if "rollout/return_mean" in row][-1] for rows in (much, rows_of(tmp_path / "off"))]
    assert last[0]["reward/extrinsic_mean"] != last[1]["reward/extrinsic_mean"]  # the signal was learned from


def test_a_run_with_signals_is_evaluated_and_frozen(tmp_path: Path):
    train(tmp_path / "run", SPREAD, "rewards.icm={}", "rewards.rnd={}")
    report = run.evaluate_run(tmp_path / "run", 4, "auto", "last", None)
    assert report["episodes"] >= 4
    train(tmp_path / "again", SPREAD, "teams.agent.run=" + str(tmp_path / "run"))
    assert "reward/icm_mean" not in rows_of(tmp_path / "again")[-1]


# -------------------------------------------------------------------------------------------------------------- streams


def told(algorithm: PPO, *values: torch.Tensor) -> None:
    """From now on the critic says these values [T + 1, B, N], a signal each."""
    algorithm._values = lambda obs, state, begins: torch.stack(values, -1)  # pyright: ignore[reportAttributeAccessIssue]


def ppo(streams: tuple[Stream, ...], **settings: Any) -> PPO:
    (team,) = env_of(count(), 4).spec.default_teams()
    raw = {"hidden": (4,), "horizon": 12, "normalise_value": False, "normalise_advantage": False}
    return PPO(team, PPOConfig(**raw | settings), 4, None, 0, CPU, streams)


def test_streams_with_two_discounts_are_two_runs_with_one_each():
    window = lived(env_of(count(), 4), 12)
    g = torch.Generator().manual_seed(0)
    one, two = (torch.rand(13, 4, 1, generator=g) for _ in range(2))
    bonus = torch.where(window.acted[:-1, :, None], torch.rand(12, 4, 1, generator=g), 0.0)
    both = ppo((Stream("extrinsic", 2.0, 0.9), Stream("bonus", 3.0, 0.5)))
    told(both, one, two)
    batch, _ = both._targets(replace(window, streams={"bonus": bonus}))
    alone = []
    for gamma, value, reward in ((0.9, one, window.reward), (0.5, two, bonus)):
        single = ppo((), gamma=gamma)
        told(single, value)
        alone.append(single._targets(replace(window, reward=reward))[0])
    torch.testing.assert_close(batch.target, torch.cat([part.target for part in alone], -1))
    torch.testing.assert_close(batch.advantage, 2.0 * alone[0].advantage + 3.0 * alone[1].advantage)
    swapped = ppo((Stream("extrinsic", 2.0, 0.5), Stream("bonus", 3.0, 0.9)))
    told(swapped, one, two)
    assert not torch.allclose(swapped._targets(replace(window, streams={"bonus": bonus}))[0].target, batch.target)


@pytest.mark.parametrize("episodic", [False, True])
def test_a_stream_goes_on_in_the_next_episode_unless_it_is_episodic(episodic: bool):
    """Two steps an episode, then the row that closes it; a bonus of 1 a step, lambda 1, gamma 0.5, V = 0."""
    window = lived(env_of(count(length=2), 1), 5)  # acted: 1 1 0 1 1
    assert window.acted[:, 0].tolist() == [True, True, False, True, True, False]
    algorithm = ppo((EXTRINSIC, Stream("bonus", episodic=episodic)), gamma=0.5, gae_lambda=1.0)
    told(algorithm, torch.zeros(6, 1, 1), torch.zeros(6, 1, 1))
    bonus = window.acted[:-1, :, None].float()
    target = algorithm._targets(replace(window, streams={"bonus": bonus}))[0].target[..., 1].flatten()
    expected = [1.5, 1.0, 0.0, 1.5, 1.0] if episodic else [1.875, 1.75, 1.5, 1.5, 1.0]
    assert target.tolist() == expected


def test_the_environments_stream_ends_with_the_episode_beside_one_that_does_not():
    window = lived(env_of(count(length=2), 1), 5)
    algorithm = ppo((EXTRINSIC, Stream("bonus", episodic=False)), gamma=0.5, gae_lambda=1.0)
    told(algorithm, torch.zeros(6, 1, 1), torch.zeros(6, 1, 1))
    batch, _ = algorithm._targets(replace(window, streams={"bonus": torch.zeros(5, 1, 1)}))
    assert batch.target[..., 0].flatten().tolist() == [0.5, 1.0, 0.0, 0.5, 1.0]


def test_pocas_members_share_what_each_earns_from_a_signal():
    env = env_of(Everything(dead=0.0), 4)
    (team,) = env.spec.default_teams()
    config = POCAConfig.model_validate(
        {"hidden": (8,), "embedding": 8, "horizon": 8, "normalise_value": False, "td_lambda": 1.0}
    )
    algorithm = POCA(team, config, 4, None, 0, CPU, (EXTRINSIC, Stream("bonus", gamma=0.0)))
    window = lived(env, 8)
    acted = (window.alive[:-1] & window.acted[:-1, :, None]).float()
    batch, _, _ = algorithm._targets(replace(window, streams={"bonus": acted}))
    torch.testing.assert_close(batch.target[:, :, 0, 1], acted.sum(-1))


def test_a_strength_goes_along_its_schedule():
    streams = Streams((EXTRINSIC, Stream("bonus", 0.5, schedule="linear", end=0.2)), 0.9, CPU)
    assert streams.weights(0.0).tolist() == pytest.approx([1.0, 0.5])
    assert streams.weights(0.5).tolist() == pytest.approx([1.0, 0.3])
    assert streams.weights(1.0).tolist() == pytest.approx([1.0, 0.1])


# ------------------------------------------------------------------------------------------------------------- mixtures


def test_without_streams_agents_earn_the_weighted_sum_and_groups_their_own():
    window = lived(env_of(Everything(dead=0.0), 4), 6)
    own = torch.full_like(window.reward, 2.0)
    given = mixed(window, {"extrinsic": 0.5, "icm": 3.0}, {"icm": own})
    torch.testing.assert_close(given.reward, 0.5 * window.reward + 6.0)
    torch.testing.assert_close(given.group_reward, 0.5 * window.group_reward)
    assert not torch.equal(given.reward, window.reward)


class Recorder:
    """In the place of a learner's `update`: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[Window] = []

    def __call__(self, window: Window, progress: float) -> dict[str, float]:
        self.given.append(window)
        return {}


@pytest.mark.parametrize(
    ("name", "streams"), [("ippo", True), ("poca", True), ("coma", False), ("qmix", False), ("masac", False)]
)
def test_a_learner_gets_streams_or_the_sum_before_signals_learn(
    name: str, streams: bool, monkeypatch: pytest.MonkeyPatch
):
    env = env_of(Everything(dead=0.0), 4)
    algorithm = rewarded(name, env, rnd=TINY_SIGNAL | {"strength": 2.0}, extrinsic={"strength": 0.5})
    heard = Recorder()
    monkeypatch.setattr(algorithm.learner, "update", heard)
    window = lived(env, algorithm.horizon)
    algorithm.update(window, 0.0)
    expected = algorithm.signals["rnd"].reward(window)  # what it says before it learns from the window again
    assert float(expected.max()) > 0
    algorithm.update(window, 0.0)
    given = heard.given[-1]
    assert any(note.startswith("rnd: added to what the environment pays") for note in algorithm.notes) != streams
    if streams:
        assert torch.equal(given.streams["rnd"], expected)
        assert torch.equal(given.reward, window.reward)
    else:
        assert given.streams == {}
        torch.testing.assert_close(given.reward, 0.5 * window.reward + 2.0 * expected)
    assert not torch.equal(algorithm.signals["rnd"].reward(window), expected)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(("settings", "said"), [
    (("algo=random", "rewards.icm={}"), r"team 'agent' is given rewards, and algo=random learns nothing"),
    (("teams.agent.algo=random", "teams.agent.rewards.rnd={}"), r"learns nothing: leave out rewards\.\* and teams"),
    (("algo=qmix", "rewards.icm.gamma=0.5"), r"rewards\.icm\.gamma=0\.5 .* algo=qmix learns from their sum"),
    (("algo=qmix", "rewards.extrinsic.gamma=0.5"), r"rewards\.extrinsic\.gamma=0\.5"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(settings: tuple[str, ...], said: str, tmp_path: Path):
    from coterie.build import build

    with pytest.raises(UserError, match=said):
        build(resolve([SPREAD, "copies=2", *settings]).config)


def test_an_own_discount_goes_with_streams_and_the_same_one_with_a_sum():
    (team,) = env_of(count(), 2).spec.default_teams()
    rewards = RewardsConfig.model_validate({"rnd": {"gamma": 0.5}})
    made = compose(PPO, "ppo", team, PPOConfig.model_validate({"gamma": 0.9}), rewards, 2, None, 0, CPU, rewarded=False)
    assert isinstance(made, PPO)
    assert torch.as_tensor(made.streams.gamma).tolist() == pytest.approx([0.9, 0.5])
    cls = registry.algorithm("iql")
    same = compose(cls, "iql", team, cls.Config(gamma=0.5, memory="none"), rewards, 2, None, 0, CPU)
    assert isinstance(same, Rewarded)
