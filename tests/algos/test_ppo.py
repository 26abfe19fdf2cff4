"""PPO, IPPO and MAPPO: invariants, and probe environments with expected solutions and negative controls."""

import pytest
import torch

from algo_worlds import Everything, Probe, observe_x, observe_zeros
from learners import collect_rollout, mean_reward, targets_of
from learners import ppo_learner as learner


def train(world, updates, num_envs=64, **settings):
    """Returns a learner after some updates, its collector, and the last metrics."""
    quick = {"rollout_length": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "gamma": 0.9, "value_clip_eps": None}
    algorithm, collector = learner(world, num_envs, **quick | settings)
    metrics = {}
    for _ in range(updates):
        rollout = collect_rollout(algorithm, collector)
        metrics = algorithm.update(rollout, 0.0)
    return algorithm, collector, metrics


def values(algorithm, collector):
    """Returns the values [T, B, N] of a new rollout, and the rollout."""
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        batch = targets_of(algorithm, rollout).batch
        mean, scale = algorithm.value_scale()
    return batch.value[..., 0] * scale + mean, rollout


# -------------------------------------------------------------------------------------------------------- invariants


def test_a_centralized_critic_is_evaluated_once_per_environment():
    algorithm, _ = learner(Everything("discrete", equal_roles=True), critic="joint")
    shapes = []
    algorithm.critic.network.register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape))
    obs = {"guard": torch.zeros(7, 2, 5), "scout": torch.zeros(7, 1, 5)}
    value, _ = algorithm.critic(obs, torch.zeros(7, 1), None, {})
    assert shapes == [(7, 1, 15 + 1)]
    assert value.shape == (7, 3, 1)


@pytest.mark.slow
def test_values_converge_while_their_normalization_is_learned():
    """Advantages are computed from denormalized values: see test_answers.py."""
    world = Probe(observation=observe_x, reward=lambda x, age, d, c: torch.full((len(x), 1), 50.0))
    algorithm, collector, _ = train(world, 40, num_envs=16)
    value, rollout = values(algorithm, collector)
    torch.testing.assert_close(
        value[rollout.acted[:-1]], torch.full_like(value[rollout.acted[:-1]], 50.0), atol=1, rtol=0
    )


# ------------------------------------------------------------------------------------------------------------ probes


@pytest.mark.slow
@pytest.mark.parametrize(("share", "agent_id"), [("all", True), ("role", False)])
def test_probe_agents_with_equal_observations_are_distinguished(share, agent_id):
    """Agent i should choose i, which shared parameters without ids cannot represent."""
    world = Probe(observe_zeros, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    algorithm, collector, _ = train(world, 30, share_params=share, obs_agent_id=agent_id)
    found = mean_reward(algorithm, collector)
    assert found > 0.95 if share != "role" else found < 0.7
