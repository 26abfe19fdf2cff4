"""Algorithms with reward signals: reward streams, weighted sums, errors, and unchanged evaluations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import torch

from algo_worlds import Everything, Probe, env_of
from coterie.algos import registry
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.poca import POCA, POCAConfig
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.reward_streams import EXTRINSIC, RewardStream, RewardStreams
from coterie.assembly.resolve import resolve
from coterie.commands import evaluate as evaluation
from coterie.commands import train as training
from coterie.config.rewards import RewardsConfig
from coterie.config.schema import Choice
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from coterie.core.types import Rollout
from coterie.policies.base import RandomPolicy
from coterie.rewards.rewarded import RewardedAlgorithm, add_weighted_rewards, make_rewarded
from coterie.training.collector import Collector
from learners import targets_of
from preset_learners import FAMILIES, SMALL
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at, train

CPU = torch.device("cpu")
TINY_SIGNAL = {"hidden_sizes": [4], "features": 3, "num_minibatches": 2}
SPREAD = "env=particle/simple_spread"


def rewarded(name: str, env: Any, **rewards: Any) -> RewardedAlgorithm:
    """Returns a small algorithm with reward signals."""
    (team,) = env.spec.default_teams()
    cls = registry.algorithm(name)
    fields = cls.Config.model_fields
    settable = [key for key in SMALL if key in fields and fields[key].annotation is not NoneType]
    given = [f"algo.{key}={SMALL[key]}" for key in settable]
    given += [f"algo.{key}={value}" for key, value in (("rnn", "none"), ("obs_last_action", "false")) if key in fields]
    choice = resolve([f"algo={name}", "env=probe/both", *given]).config.algo
    context = AlgorithmContext(team=team, num_envs=env.num_envs, seed=0, device=CPU)
    made = make_rewarded(choice, RewardsConfig(**rewards), context)
    assert isinstance(made, RewardedAlgorithm)
    return made


def random_rollout(env: Any, steps: int) -> Rollout:
    (team,) = env.spec.default_teams()
    (rollout,) = Collector(env, {team.name: RandomPolicy(team, CPU)}, seed=0).advance(steps)[0].values()
    return replace(rollout, extras={"log_prob": torch.zeros_like(rollout.reward)})


def count(length: int = 5, limit: bool = False) -> Probe:
    """Observation and reward are the age of the episode."""
    return Probe(lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: age.view(-1, 1), length=length, limit=limit)


# ------------------------------------------------------------------------------------------------ all of them, in runs


@pytest.mark.slow
@pytest.mark.parametrize(("name", "signal"), list(zip(FAMILIES, itertools.cycle(("icm", "rnd")))))
def test_every_family_of_algorithms_learns_with_every_signal(name: str, signal: str):
    """In a team of two roles with masks, death, group rewards, and NaN observations of dead agents."""
    env = env_of(Everything("discrete"), 8)
    algorithm = rewarded(name, env, **{signal: TINY_SIGNAL | {"weight": 1.0}})
    (team,) = env.spec.default_teams()
    collector = Collector(env, {team.name: algorithm.behavior_policy}, seed=0)
    for k in range(2):
        (rollout,) = collector.advance(algorithm.rollout_length)[0].values()
        metrics = algorithm.update(rollout, k / 2)
    assert all(abs(value) < float("inf") for value in metrics.values())
    assert metrics[f"reward/{signal}_mean"] > 0
    assert undeclared(metrics) == []


@pytest.mark.slow
def test_the_environments_reward_alone_equals_no_reward_settings(tmp_path: Path):
    train(tmp_path / "none", SPREAD)
    train(tmp_path / "one", SPREAD, "rewards.extrinsic.weight=1")
    train(tmp_path / "half", SPREAD, "rewards.extrinsic.weight=0.5")
    assert_same(checkpoint_state(tmp_path / "none"), checkpoint_state(tmp_path / "one"))
    assert log_entries(tmp_path / "none") == log_entries(tmp_path / "one")
    with pytest.raises(AssertionError):
        assert_same(
            checkpoint_state(tmp_path / "none")["algorithms"], checkpoint_state(tmp_path / "half")["algorithms"]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("algo=mappo", "rewards.icm={}", "rewards.rnd.weight_schedule=linear", "rewards.icm.normalize=true"),
        (
            "algo=qmix",
            "rewards.icm={}",
            "rewards.rnd={}",
            "algo.learning_starts=20",
            "algo.batch_size=4",
            "algo.buffer_size=200",
            "algo.rnn=none",
            "algo.obs_last_action=false",
        ),
    ],
    ids=["streams", "mixed"],
)
def test_a_resumed_run_is_bit_identical(settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny = [s for s in ("algo.epochs=2", "algo.num_minibatches=2") if "qmix" not in settings[0] or s.endswith("x")]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    base = (
        "num_envs=4",
        "algo.rollout_length=10",
        "algo.hidden_sizes=[8]",
        "steps=160",
        "threads=1",
        "device=cpu",
        "eval.every=120",
        "eval.episodes=4",
        "eval.num_envs=4",
        "log.tensorboard=false",
        "progress=off",
        SPREAD,
    )
    training.train(resolve([*base, *tiny, *settings, f"out={whole}"]))
    with monkeypatch.context() as patch:
        stop_at(patch, 70)
        training.train(resolve([*base, *tiny, *settings, f"out={parts}"]))
    assert checkpoint_state(parts)["steps"] < 160
    training.resume(parts, [])
    assert_same(checkpoint_state(whole), checkpoint_state(parts))
    assert log_entries(whole) == log_entries(parts)
    assert any("reward/icm_mean" in entry and entry["reward/icm_mean"] > 0 for entry in log_entries(whole))


@pytest.mark.slow
def test_returns_and_evaluations_use_the_environments_reward(tmp_path: Path):
    """The first rollout is collected by the same policy, whatever the rewards are."""
    train(tmp_path / "none", SPREAD, "steps=300", "algo.rollout_length=26")
    train(tmp_path / "much", SPREAD, "steps=300", "algo.rollout_length=26", "rewards.rnd.weight=100")
    none, much = log_entries(tmp_path / "none"), log_entries(tmp_path / "much")
    returns = [
        next(timestep for timestep in timesteps if "rollout/return_mean" in timestep)["rollout/return_mean"]
        for timesteps in (none, much)
    ]
    assert returns[0] == returns[1]
    assert none[0]["eval/return_mean"] == much[0]["eval/return_mean"]
    train(tmp_path / "off", SPREAD, "steps=300", "algo.rollout_length=26", "rewards.rnd.weight=0")
    last = [
        [timestep for timestep in timesteps if "rollout/return_mean" in timestep][-1]
        for timesteps in (much, log_entries(tmp_path / "off"))
    ]
    assert last[0]["reward/extrinsic_mean"] != last[1]["reward/extrinsic_mean"]  # the signal was used for learning


@pytest.mark.slow
def test_a_run_with_signals_can_be_evaluated_and_frozen(tmp_path: Path):
    train(tmp_path / "run", SPREAD, "rewards.icm={}", "rewards.rnd={}")
    report = evaluation.evaluate_run(tmp_path / "run", 4, checkpoint="last")
    assert report["episodes"] >= 4
    train(tmp_path / "again", SPREAD, "teams.agent.run=" + str(tmp_path / "run"))
    assert "reward/icm_mean" not in log_entries(tmp_path / "again")[-1]


# -------------------------------------------------------------------------------------------------------------- streams


def set_values(algorithm: PPO, *values: torch.Tensor) -> None:
    """Makes the critic return these values, [T + 1, B, N] for each signal."""
    made: Any = algorithm
    made.critic = lambda obs, state, first, hidden_state: (torch.stack(values, -1), hidden_state)


def ppo(streams: tuple[RewardStream, ...], **settings: Any) -> PPO:
    (team,) = env_of(count(), 4).spec.default_teams()
    raw = {"hidden_sizes": (4,), "rollout_length": 12, "normalize_value": False, "normalize_advantage": False}
    return PPO(
        PPOConfig(**raw | settings), AlgorithmContext(team=team, num_envs=4, seed=0, device=CPU, reward_streams=streams)
    )


def test_streams_with_two_discounts_equal_two_algorithms_with_one_each():
    rollout = random_rollout(env_of(count(), 4), 12)
    g = torch.Generator().manual_seed(0)
    one, two = (torch.rand(13, 4, 1, generator=g) for _ in range(2))
    bonus = torch.where(rollout.acted[:-1, :, None], torch.rand(12, 4, 1, generator=g), 0.0)
    both = ppo(
        (RewardStream(name="extrinsic", weight=2.0, gamma=0.9), RewardStream(name="bonus", weight=3.0, gamma=0.5))
    )
    set_values(both, one, two)
    batch = targets_of(both, replace(rollout, streams={"bonus": bonus})).batch
    alone = []
    for gamma, value, reward in ((0.9, one, rollout.reward), (0.5, two, bonus)):
        single = ppo((), gamma=gamma)
        set_values(single, value)
        alone.append(targets_of(single, replace(rollout, reward=reward)).batch)
    torch.testing.assert_close(batch.target, torch.cat([part.target for part in alone], -1))
    torch.testing.assert_close(batch.advantage, 2.0 * alone[0].advantage + 3.0 * alone[1].advantage)
    swapped = ppo(
        (RewardStream(name="extrinsic", weight=2.0, gamma=0.5), RewardStream(name="bonus", weight=3.0, gamma=0.9))
    )
    set_values(swapped, one, two)
    assert not torch.allclose(
        targets_of(swapped, replace(rollout, streams={"bonus": bonus})).batch.target, batch.target
    )


@pytest.mark.parametrize("episodic", [False, True])
def test_returns_of_a_stream_continue_in_the_next_episode_unless_it_is_episodic(episodic: bool):
    """Two steps per episode, then its final timestep; a bonus of 1 per step, lambda 1, gamma 0.5, V = 0."""
    rollout = random_rollout(env_of(count(length=2), 1), 5)  # acted: 1 1 0 1 1
    assert rollout.acted[:, 0].tolist() == [True, True, False, True, True, False]
    algorithm = ppo((EXTRINSIC, RewardStream(name="bonus", episodic=episodic)), gamma=0.5, gae_lambda=1.0)
    set_values(algorithm, torch.zeros(6, 1, 1), torch.zeros(6, 1, 1))
    bonus = rollout.acted[:-1, :, None].float()
    target = targets_of(algorithm, replace(rollout, streams={"bonus": bonus})).batch.target[..., 1].flatten()
    expected = [1.5, 1.0, 0.0, 1.5, 1.0] if episodic else [1.875, 1.75, 1.5, 1.5, 1.0]
    assert target.tolist() == expected


def test_returns_of_the_environments_stream_end_with_the_episode():
    rollout = random_rollout(env_of(count(length=2), 1), 5)
    algorithm = ppo((EXTRINSIC, RewardStream(name="bonus", episodic=False)), gamma=0.5, gae_lambda=1.0)
    set_values(algorithm, torch.zeros(6, 1, 1), torch.zeros(6, 1, 1))
    batch = targets_of(algorithm, replace(rollout, streams={"bonus": torch.zeros(5, 1, 1)})).batch
    assert batch.target[..., 0].flatten().tolist() == [0.5, 1.0, 0.0, 0.5, 1.0]


@pytest.mark.parametrize("returns", ["member", "group"])
def test_poca_learns_a_signal_from_each_members_own_rewards_or_from_their_sum(returns: str):
    env = env_of(Everything(dead=0.0), 4)
    (team,) = env.spec.default_teams()
    config = POCAConfig.model_validate(
        {"hidden_sizes": (8,), "embedding_size": 8, "rollout_length": 8, "normalize_value": False, "td_lambda": 1.0}
        | {"signal_returns": returns, "normalize_advantage": False, "extrinsic_weight": 0.0}
    )
    algorithm = POCA(
        config,
        AlgorithmContext(
            team=team, num_envs=4, seed=0, device=CPU, reward_streams=(EXTRINSIC, RewardStream(name="bonus", gamma=0.0))
        ),
    )
    rollout = random_rollout(env, 8)
    acted = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    own = acted * torch.tensor([1.0, 2.0, 4.0, 8.0])[: acted.shape[-1]]
    target = targets_of(algorithm, replace(rollout, streams={"bonus": own})).batch.target[..., 1]
    if returns == "group":  # one target for all
        torch.testing.assert_close(target, own.sum(-1, keepdim=True))
    else:  # of the group's value: their mean; of each baseline: its member's
        torch.testing.assert_close(target[..., 1:][acted], own[acted])
        torch.testing.assert_close(target[..., 0], own.sum(-1) / acted.sum(-1).clamp(min=1))


def test_a_weight_follows_its_schedule():
    streams = RewardStreams((EXTRINSIC, RewardStream(name="bonus", weight=0.5, schedule="linear", end=0.2)), 0.9, CPU)
    assert streams.weights(0.0).tolist() == pytest.approx([1.0, 0.5])
    assert streams.weights(0.5).tolist() == pytest.approx([1.0, 0.3])
    assert streams.weights(1.0).tolist() == pytest.approx([1.0, 0.1])


# ------------------------------------------------------------------------------------------------------------- mixtures


def test_without_streams_agents_get_the_weighted_sum_and_groups_their_own():
    rollout = random_rollout(env_of(Everything(dead=0.0), 4), 6)
    own = torch.full_like(rollout.reward, 2.0)
    given = add_weighted_rewards(rollout, {"extrinsic": 0.5, "icm": 3.0}, {"icm": own})
    torch.testing.assert_close(given.reward, 0.5 * rollout.reward + 6.0)
    torch.testing.assert_close(given.group_reward, 0.5 * rollout.group_reward)
    assert not torch.equal(given.reward, rollout.reward)


class Recorder:
    """Replaces the `update` of an algorithm and records the rollouts."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def __call__(self, rollout: Rollout, progress: float) -> dict[str, float]:
        self.rollouts.append(rollout)
        return {}


@pytest.mark.parametrize(
    ("name", "streams"), [("ippo", True), ("poca", True), ("coma", False), ("qmix", False), ("masac", False)]
)
def test_an_algorithm_gets_streams_or_their_sum_before_signals_are_updated(
    name: str, streams: bool, monkeypatch: pytest.MonkeyPatch
):
    env = env_of(Everything(dead=0.0), 4)
    algorithm = rewarded(name, env, rnd=TINY_SIGNAL | {"weight": 2.0}, extrinsic={"weight": 0.5})
    recorder = Recorder()
    monkeypatch.setattr(algorithm.algorithm, "update", recorder)
    rollout = random_rollout(env, algorithm.rollout_length)
    algorithm.update(rollout, 0.0)
    expected = algorithm.signals["rnd"].reward(rollout)  # before the second update
    assert float(expected.max()) > 0
    algorithm.update(rollout, 0.0)
    given = recorder.rollouts[-1]
    assert any(note.startswith("rnd: added to the environment's reward") for note in algorithm.notes) != streams
    if streams:
        assert torch.equal(given.streams["rnd"], expected)
        assert torch.equal(given.reward, rollout.reward)
    else:
        assert given.streams == {}
        torch.testing.assert_close(given.reward, 0.5 * rollout.reward + 2.0 * expected)
    assert not torch.equal(algorithm.signals["rnd"].reward(rollout), expected)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("algo=random", "rewards.icm={}"), r"team 'agent' has reward settings, but algo=random does not learn"),
        (("teams.agent.algo=random", "teams.agent.rewards.rnd={}"), r"does not learn\. Remove rewards\.\* and teams"),
        (
            ("algo=qmix", "rewards.icm.gamma=0.5"),
            r"rewards\.icm\.gamma=0\.5 .* algo=qmix learns from the sum of rewards",
        ),
        (("algo=qmix", "rewards.extrinsic.gamma=0.5"), r"rewards\.extrinsic\.gamma=0\.5"),
        (("algo=iql", "algo.gamma=null", "rewards.rnd.gamma=0.93"), r"sum of rewards with algo\.gamma=0\.92\."),
    ],
)
def test_invalid_settings_are_one_line_errors(settings: tuple[str, ...], message: str, tmp_path: Path):
    from coterie.assembly.build import build

    with pytest.raises(UserError, match=message):
        build(resolve([SPREAD, "num_envs=2", *settings]).config)


def test_streams_may_have_another_discount_and_sums_the_same():
    (team,) = env_of(count(), 2).spec.default_teams()
    rewards = RewardsConfig.model_validate({"rnd": {"gamma": 0.5}})
    context = AlgorithmContext(team=team, num_envs=2, seed=0, device=CPU)
    ppo_choice = Choice(name="ppo", params=PPOConfig.model_validate({"gamma": 0.9}))
    made = make_rewarded(ppo_choice, rewards, context, with_signals=False)
    assert isinstance(made, PPO)
    assert torch.as_tensor(made.reward_streams.gamma).tolist() == pytest.approx([0.9, 0.5])
    cls = registry.algorithm("iql")
    for gamma in (0.5, None):
        derived = RewardsConfig.model_validate({"rnd": {"gamma": gamma or 0.99}})  # no step limit
        same = make_rewarded(Choice(name="iql", params=cls.Config(gamma=gamma, rnn="none")), derived, context)
        assert isinstance(same, RewardedAlgorithm)
