"""Settings that are null and follow from the environment and the run, and what critics and mixers read of the time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Probe, env_of, observe_zeros, zero_reward
from coterie.algos.base_config import LearnerConfig, RunFacts
from coterie.algos.coma import COMAConfig
from coterie.algos.ddpg import DDPGConfig
from coterie.algos.learner import CentralState
from coterie.algos.mappo_original import MAPPOOriginal, MAPPOOriginalConfig
from coterie.algos.ppo import PPOConfig
from coterie.algos.pqn import PQNConfig
from coterie.algos.qlearning import QLearningConfig
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.core.tree import tree_leaves
from coterie.core.types import TIME_LEFT
from coterie.envs.worlds.probe.single_agent import EndlessConfig, EndlessProbe
from coterie.functional.returns import terminate_at_limit
from families import FAMILIES
from learners import CPU, collect_rollout, learner_of, q_learner

LIMITED, UNLIMITED = RunFacts(25, 1000, 4, 16), RunFacts(None, 1000, 4, 16)
READERS = ("ppo", "mappo", "poca", "coma", "ddpg", "maddpg", "sac", "masac", "hasac")


def team_of(agents: int, *states: str) -> TeamSpec:
    names = tuple(f"agent_{k}" for k in range(agents))
    role = RoleSpec("agent", "agent", names, spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    return EnvSpec("world", (role,), dict.fromkeys(states, 3)).default_teams()[0]


def values(config: Any, facts: RunFacts) -> dict[str, Any]:
    return {name: value for name, (value, _) in config.derived(facts).items()}


def times(config: Any, facts: RunFacts) -> dict[str, Any]:
    """Derived values of the treatment of limits."""
    return {name: value for name, value in values(config, facts).items() if name != "num_minibatches"}


def test_returns_end_at_a_known_limit_and_critics_read_the_time_left() -> None:
    assert times(PPOConfig(), LIMITED) == {"bootstrap_at_limit": False, "value_time_left": True}
    assert times(PPOConfig(), UNLIMITED) == {"bootstrap_at_limit": True, "value_time_left": False}


def test_given_values_are_not_derived() -> None:
    assert times(PPOConfig(bootstrap_at_limit=True), LIMITED) == {"value_time_left": False}
    assert times(PPOConfig(bootstrap_at_limit=False, value_time_left=False), LIMITED) == {}
    assert PPOConfig(gamma=0.5).with_derived(LIMITED).bootstrap_at_limit is False


def test_values_that_cannot_read_the_time_left_are_bootstrapped_from() -> None:
    given: dict[str, Any] = {"gradient_steps": 1, "batch_size": 8, "epsilon_decay_steps": 100, "n_step": 1}
    given |= {"layer_norm": False, "gamma": 0.99}
    assert values(QLearningConfig(mixer="vdn", **given), LIMITED) == {"bootstrap_at_limit": True}
    assert values(LearnerConfig(), LIMITED) == {"bootstrap_at_limit": True}
    mixed = {"bootstrap_at_limit": False, "value_time_left": True}
    assert values(QLearningConfig(mixer="qmix", **given), LIMITED) == mixed


def test_the_amount_of_learning_derives_from_the_run_and_the_networks() -> None:
    found = values(QLearningConfig(mixer="vdn"), RunFacts(25, 1000, 8, 80))
    assert (found["gradient_steps"], found["batch_size"], found["epsilon_decay_steps"]) == (160, 256, 200)
    recurrent = values(QLearningConfig(mixer="vdn", rnn="gru"), RunFacts(25, None, 1, 1))
    expected = {"bootstrap_at_limit": True, "gradient_steps": 1, "batch_size": 32, "sequence_start": "rollout"}
    assert recurrent == expected | {"gamma": 0.92, "n_step": 1, "layer_norm": False}


@pytest.mark.parametrize(
    ("rnn", "limit", "expected"), [("none", 49, 1), ("none", 50, 3), ("none", None, 3), ("gru", 500, 1)]
)
def test_targets_have_more_rewards_and_layers_are_normalized_where_episodes_are_long(
    rnn: Any, limit: int | None, expected: int
) -> None:
    facts = RunFacts(limit, 1000, 8, 80)
    assert values(DDPGConfig(rnn=rnn), facts)["n_step"] == expected
    found = values(QLearningConfig(rnn=rnn), facts)
    assert (found["n_step"], found["layer_norm"]) == (expected, "hidden" if expected == 3 else False)
    given = values(QLearningConfig(rnn=rnn, n_step=5, layer_norm=True), facts)
    assert "n_step" not in given
    assert "layer_norm" not in given
    assert "layer_norm" not in values(QLearningConfig(rnn=rnn, network="attention"), facts)


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, 0.9), (20, 0.9), (25, 0.92), (60, 0.9667), (200, 0.99), (500, 0.99), (None, 0.99)]
)
@pytest.mark.parametrize("config", [QLearningConfig(), QLearningConfig(mixer="qmix"), PQNConfig()])
def test_q_values_look_half_an_episode_ahead(config: Any, limit: int | None, expected: float) -> None:
    facts = RunFacts(limit, 1000, 8, 80)
    assert values(config, facts)["gamma"] == expected
    assert "gamma" not in values(config.model_copy(update={"gamma": 0.5}), facts)
    assert "gamma" not in values(PPOConfig(bootstrap_at_limit=True), facts)


@pytest.mark.parametrize(
    ("config", "num_envs", "expected"),
    [
        (PPOConfig(), 2, 4),
        (PPOConfig(rnn="gru"), 2, 2),
        (PPOConfig(rnn="gru", sequence_length=4), 2, 4),
        (PPOConfig(rnn="gru"), 8, 4),
        (COMAConfig(), 1, 1),
        (MAPPOOriginalConfig(), 3, 3),
        (PPOConfig(rnn="gru", num_minibatches=7), 2, None),
    ],
)
def test_minibatches_are_at_most_the_samples_of_a_rollout(config: Any, num_envs: int, expected: int | None) -> None:
    assert values(config, RunFacts(25, 1000, num_envs, 16)).get("num_minibatches") == expected


@pytest.mark.parametrize(
    ("steps", "expected"), [(None, 16), (10**6, 16), (200_000, 26), (100_000, 51), (20_000, 256), (9_000, 256)]
)
def test_short_runs_take_more_gradient_steps(steps: int | None, expected: int) -> None:
    """Up to sixteen times as many, and about 5,000 in between."""
    assert values(DDPGConfig(), RunFacts(25, steps, 32, 32))["gradient_steps"] == expected


def test_rules_that_depend_on_the_team_name_their_values() -> None:
    pair, state = team_of(2), team_of(2, "global")
    facts, of_state = LIMITED._replace(team=pair), LIMITED._replace(team=state)
    qmix = QLearningConfig(mixer="qmix")
    assert qmix.derived(facts)["mixer_input"] == ("joint", "the environment has no state")
    assert qmix.derived(of_state)["mixer_input"] == ("state", "the environment has a state")
    assert "mixer_input" not in QLearningConfig(mixer="vdn").derived(of_state)


def test_rules_of_the_length_of_a_run_or_an_episode_name_their_values() -> None:
    assert COMAConfig().derived(LIMITED)["epsilon_decay_steps"] == (1000, "the whole run")
    short, long = QLearningConfig(mixer="vdn", rnn="gru"), LIMITED._replace(rollout_length=25)
    reason = "a sequence of 16 timesteps may not hold a whole episode"
    assert short.derived(LIMITED)["sequence_start"] == ("rollout", reason)
    assert short.derived(long)["sequence_start"] == ("episode", "a sequence of 25 timesteps holds a whole episode")
    assert "sequence_start" not in QLearningConfig(mixer="vdn").derived(long)
    assert short.derived(LIMITED)["gradient_steps"].reason == "one per 4 steps of a rollout in a run of 1,000 steps"
    medium = short.derived(LIMITED._replace(steps=100_000))["gradient_steps"]
    assert medium.reason == "one per 20 steps of a rollout in a run of 100,000 steps"


def test_epsilon_of_coma_follows_the_whole_run_with_and_without_the_derived_value() -> None:
    found = []
    for given in (None, 1000, 2000):
        learner, collector = FAMILIES["coma"][0](Probe(observe_zeros, zero_reward, length=4), 8, rollout_length=5)
        learner._run_steps = 1000
        learner.config = learner.config.model_copy(update={"epsilon_decay_steps": given})
        learner.update(collect_rollout(learner, collector), 0.5)
        found.append(learner.policy.epsilon)
    assert found[0] == found[1]
    assert found[2] > found[0]


@pytest.mark.parametrize("name", READERS)
def test_a_critic_of_any_kind_reads_the_time_left(name: str) -> None:
    """It has weights for it, and learns from rollouts that contain it."""
    world, sizes = EndlessProbe(EndlessConfig(episode_limit=4)), []
    for reads in (True, False):
        learner, collector = FAMILIES[name][0](world, 8, rollout_length=5, value_time_left=reads)
        assert learner.config.bootstrap_at_limit is not reads
        learner.update(collect_rollout(learner, collector), 0.5)
        critic = next(x for x in (getattr(learner, a, None) for a in ("critic", "critics", "nets")) if x is not None)
        sizes.append(sum(x.numel() for x in getattr(critic, "critics", critic).parameters()))
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("name", [*READERS, "mappo/original", "iql", "vdn", "pqn", "pqn_vdn"])
def test_an_update_ends_returns_at_the_limit_or_bootstraps(name: str) -> None:
    """If they end, weights are those after the same rollout with termination; if not, they differ."""
    world, found = EndlessProbe(EndlessConfig(episode_limit=4)), []
    for bootstraps, terminates in ((False, False), (True, True), (True, False)):
        reads = {"value_time_left": True} if name in (*READERS, "mappo/original") else {}
        small = {"rollout_length": 12, "gamma": 0.9, "bootstrap_at_limit": bootstraps, **reads}
        if name == "mappo/original":
            config = MAPPOOriginalConfig(hidden_sizes=(8,), sequence_length=6, critic_time_chunks=2, **small)
            learner, collector = learner_of(MAPPOOriginal, config, env_of(world, 8))
        else:
            build, _, settings, _ = FAMILIES[name]
            learner, collector = build(world, 8, **{k: v for k, v in settings.items() if k != "rnn"}, **small)
        for _ in range(2):
            rollout = collect_rollout(learner, collector)
            assert rollout.episode_truncated.any()
            learner.update(terminate_at_limit(rollout) if terminates else rollout, 0.5)
        found.append(
            [x for x in tree_leaves(learner.state_dict()) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        )
    ends, terminated, bootstrapped = found
    assert all(torch.equal(x, y) for x, y in zip(ends, terminated, strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(ends, bootstrapped, strict=True))


def test_the_time_left_is_read_only_where_the_limit_is_known() -> None:
    with pytest.raises(UserError, match=r"^algo.value_time_left=true: the environment has no known step limit"):
        FAMILIES["ppo"][0](Probe(observe_zeros, zero_reward, length=4), value_time_left=True)


def test_the_time_left_makes_values_of_a_finite_horizon_exact() -> None:
    """The value of each step is the discounted reward of those that are left; without it, their mean at best."""
    gamma, limit = 0.9, 4
    world = EndlessProbe(EndlessConfig(episode_limit=limit))
    settings = {"rollout_length": 10, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "value_clip_eps": None}
    learner, collector = FAMILIES["ppo"][0](world, 64, gamma=gamma, **settings)
    for _ in range(30):
        rollout = collect_rollout(learner, collector)
        learner.update(rollout, 0.5)
    with torch.no_grad():
        mean, std = learner.value_scale()
        value = learner.critic(rollout.obs, learner._state(rollout.state), None, {})[0] * std + mean
    exact = [(1 - gamma ** (limit - step)) / (1 - gamma) for step in range(limit)]
    torch.testing.assert_close(value[:limit, 0, 0, 0], torch.tensor(exact), atol=0.05, rtol=0)


def test_states_are_normalized_as_observations_are() -> None:
    env = env_of(EndlessProbe(EndlessConfig(episode_limit=4), with_state=True), 4)
    (team,) = env.spec.default_teams()
    config = PPOConfig(normalize_obs=True).with_derived(LIMITED)
    reader = CentralState(config, team, "global", CPU)
    assert reader.names == ("global", TIME_LEFT)
    size = team.state_sizes["global"]
    assert reader.size == size + 1
    rollout = collect_rollout(*FAMILIES["ppo"][0](EndlessProbe(EndlessConfig(episode_limit=4), with_state=True), 4))
    state = {"global": 100 + torch.randn(13, 4, size), TIME_LEFT: torch.full((13, 4, 1), 0.5)}
    reader.update(type(rollout)(**vars(rollout) | {"state": state}))
    read = reader(state)
    assert read is not None
    assert read[..., :-1].mean().abs() < 0.5
    assert read[..., -1].eq(0.5).all()
    copy = CentralState(config, team, "global", CPU)
    copy.load_state_dict(reader.state_dict())
    assert copy(state).equal(read)  # pyright: ignore[reportOptionalMemberAccess]


def test_a_mixer_that_reads_no_state_cannot_be_told_the_time() -> None:
    env = env_of(EndlessProbe(EndlessConfig(episode_limit=4)), 4)
    with pytest.raises(UserError, match=r"^algo.value_time_left=true: has no effect with algo.mixer=vdn"):
        q_learner(env, mixer="vdn", value_time_left=True)
