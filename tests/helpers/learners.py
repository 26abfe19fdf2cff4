"""Small learners of each family with their collectors, and functions that train and evaluate them."""

from __future__ import annotations

from typing import Any

import torch

from algo_worlds import env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.clipped_learner import ClippedLearner, Targets, ValueState
from coterie.algos.coma import COMA, COMAConfig
from coterie.algos.ddpg import DDPG, DDPGConfig
from coterie.algos.happo import HAPPO, HAPPOConfig
from coterie.algos.hasac import HASAC, HASACConfig
from coterie.algos.hatrpo import HATRPO, HATRPOConfig
from coterie.algos.magpo import MAGPO, MAGPOConfig
from coterie.algos.mat import MAT, MATConfig, MATDec, MATDecConfig
from coterie.algos.pac import PAC, PACConfig
from coterie.algos.poca import POCA, POCAConfig
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.pqn import PQN, PQNConfig
from coterie.algos.qlearning import QLearning, QLearningConfig
from coterie.algos.sac import SAC, SACConfig
from coterie.algos.seac import SEAC, SEACConfig
from coterie.algos.vdac import VDAC, VDACConfig
from coterie.core.types import Rollout
from coterie.training.collector import Collector

CPU = torch.device("cpu")
RAW: dict[str, Any] = {"normalize_obs": False}
"""Observations as they are, so that tests can compute what learners compute."""
CLIPPED = RAW | {"lr": 5e-4, "epochs": 10, "num_minibatches": 1}
REPLAYED = RAW | {"reward_scale": "none"}


def rarely(settings: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """Returns the settings with a gradient step per 200 steps of a rollout where they name no number."""
    return {"gradient_steps": max(1, settings["rollout_length"] * num_envs // 200)} | settings


def learner_of(algorithm: Any, config: Any, env: Any, *, seed: int = 0, streams: tuple[Any, ...] = ()) -> Any:
    """Returns a learner of the environment's only team and its collector."""
    (team,) = env.spec.default_teams()
    context = AlgorithmContext(team=team, num_envs=env.num_envs, seed=seed, device=CPU, reward_streams=streams)
    learner = algorithm(config, context)
    return learner, Collector(env, {team.name: learner.behavior_policy}, seed=0)


def ppo_learner(world, num_envs=16, **settings):
    small = CLIPPED | {"hidden_sizes": (16, 16), "rollout_length": 12}
    return learner_of(PPO, PPOConfig(**small | settings), env_of(world, num_envs))


def happo_learner(world, num_envs=16, **settings):
    small = CLIPPED | {"hidden_sizes": (16, 16), "rollout_length": 12}
    return learner_of(HAPPO, HAPPOConfig(**small | settings), env_of(world, num_envs))


def hatrpo_learner(world, num_envs=16, **settings):
    small = CLIPPED | {"hidden_sizes": (16, 16), "rollout_length": 12, "max_kl": 0.05}
    return learner_of(HATRPO, HATRPOConfig(**small | settings), env_of(world, num_envs))


def mat_learner(world, num_envs=16, seed=0, **settings):
    small = CLIPPED | {"embedding_size": 16, "rollout_length": 12}
    return learner_of(MAT, MATConfig(**small | settings), env_of(world, num_envs), seed=seed)


def mat_dec_learner(world, num_envs=16, seed=0, **settings):
    small = CLIPPED | {"embedding_size": 16, "hidden_sizes": (16,), "rollout_length": 12}
    return learner_of(MATDec, MATDecConfig(**small | settings), env_of(world, num_envs), seed=seed)


def magpo_learner(world, num_envs=16, seed=0, **settings):
    small = CLIPPED | {"embedding_size": 16, "hidden_sizes": (16, 16), "rollout_length": 12, "rnn_size": 8}
    return learner_of(MAGPO, MAGPOConfig(**small | settings), env_of(world, num_envs), seed=seed)


def vdac_learner(world, num_envs=16, **settings):
    small = CLIPPED | {"hidden_sizes": (16, 16), "rollout_length": 12, "rnn_size": 8, "hypernet_embed_dim": 8}
    return learner_of(VDAC, VDACConfig(**small | settings), env_of(world, num_envs))


def seac_learner(world, num_envs=16, **settings):
    small = CLIPPED | {"hidden_sizes": (16, 16), "rollout_length": 12, "rnn_size": 8}
    return learner_of(SEAC, SEACConfig(**small | settings), env_of(world, num_envs))


def pac_learner(world, num_envs=16, **settings):
    small = CLIPPED | {"hidden_sizes": (16, 16), "rollout_length": 12, "rnn_size": 8}
    return learner_of(PAC, PACConfig(**small | settings), env_of(world, num_envs))


def poca_learner(world, num_envs=16, streams=(), **settings):
    small = RAW | {
        "hidden_sizes": (16,),
        "embedding_size": 8,
        "rollout_length": 12,
        "activation": "tanh",
        "num_minibatches": 1,
    }
    return learner_of(POCA, POCAConfig(**small | settings), env_of(world, num_envs), streams=streams)


def coma_learner(world, num_envs=16, seed=0, **settings):
    small = {"hidden_sizes": (16, 16), "critic_hidden_sizes": (16, 16), "rollout_length": 12, "rnn_size": 8}
    small |= RAW | {"num_minibatches": 1, "critic_time_chunks": 1, "target_update_interval": 200, "epsilon_start": 0.5}
    small |= {"normalize_advantage": False, "entropy_coef": 0.0, "lr": 5e-4}
    return learner_of(COMA, COMAConfig(**small | settings), env_of(world, num_envs), seed=seed)


def q_learner(env, **settings):
    """Returns a Q-learner of an environment, which need not be a `World`, and its collector."""
    small = REPLAYED | {
        "hidden_sizes": (16,),
        "output_gain": 1.0,
        "rnn_size": 8,
        "rollout_length": 12,
        "learning_starts": 0,
        "batch_size": 8,
        "target_update_interval": 5,
    }
    return learner_of(QLearning, QLearningConfig(**rarely(small | settings, env.num_envs)), env)


def pqn_learner(world, num_envs=16, **settings):
    small = REPLAYED | {"hidden_sizes": (16,), "rnn_size": 8, "rollout_length": 12, "num_minibatches": 1, "epochs": 2}
    small |= {"lr_schedule": "constant", "max_grad_norm": 10.0, "center_values": False}
    return learner_of(PQN, PQNConfig(**small | settings), env_of(world, num_envs))


def ddpg_learner(world, num_envs=16, seed=0, **settings):
    small = REPLAYED | {
        "hidden_sizes": (16, 16),
        "critic_lr": None,
        "rnn_size": 8,
        "rollout_length": 12,
        "batch_size": 16,
        "learning_starts": 0,
        "buffer_size": 2000,
    }
    return learner_of(DDPG, DDPGConfig(**rarely(small | settings, num_envs)), env_of(world, num_envs), seed=seed)


SOFT: dict[str, Any] = REPLAYED | {
    "hidden_sizes": (16,),
    "rollout_length": 12,
    "batch_size": 16,
    "learning_starts": 0,
    "buffer_size": 4000,
    "rnn_size": 8,
    "tau": 0.005,
    "lr": 5e-4,
    "temperature": 1.0,
    "target_entropy_scale": 0.5,
}


def sac_learner(world, num_envs=16, **settings):
    return learner_of(SAC, SACConfig(**rarely(SOFT | settings, num_envs)), env_of(world, num_envs))


def hasac_learner(world, num_envs=16, cls=HASAC, **settings):
    return learner_of(cls, HASACConfig(**rarely(SOFT | settings, num_envs)), env_of(world, num_envs))


def collect_rollout(learner, collector):
    (rollout,) = collector.advance(learner.rollout_length)[0].values()
    return rollout


def mean_reward(learner, collector):
    """Returns the mean reward per step of the next rollout."""
    rollout = collect_rollout(learner, collector)
    return rollout.reward[rollout.acted[:-1]].mean().item()


def train_poca(world, updates, num_envs=64, streams=(), *, prepare=None, add_streams=None, **settings):
    """Returns an MA-POCA learner after some updates, and its collector.

    prepare: called with the learner before the first update; add_streams: adds reward streams to rollouts.
    """
    quick = {"rollout_length": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "gamma": 0.9, "value_clip_eps": None}
    learner, collector = poca_learner(world, num_envs, streams, **quick | settings)
    if prepare is not None:
        prepare(learner)
    for _ in range(updates):
        rollout = collect_rollout(learner, collector)
        learner.update(rollout if add_streams is None else add_streams(rollout), 0.0)
    return learner, collector


def train_coma(world, updates, num_envs=64, seed=0, **settings):
    """Returns a COMA learner after some updates, its collector, and the last metrics."""
    quick = {
        "rollout_length": 8,
        "lr": 1e-2,
        "critic_lr": 1e-2,
        "epsilon_start": 0.1,
        "gamma": 0.9,
        "target_update_interval": 5,
        "normalize_advantage": True,
    }
    learner, collector = coma_learner(world, num_envs, seed, **quick | settings)
    metrics = {}
    for update in range(updates):
        metrics = learner.update(collect_rollout(learner, collector), update / updates)
    return learner, collector, metrics


def run_policy(learner, world, mode="greedy", steps=8):
    """Returns actions, observations and rewards of the policy in new environments, without final timesteps."""
    env, policy = env_of(world, 32, seed=5), learner.policy
    timestep, hidden_state = env.reset(), policy.initial_hidden_state(32)
    rewards, observations, actions = [], [], []
    for noise in policy.draw_noise(steps, 32, torch.Generator().manual_seed(1)):
        with torch.no_grad():
            action, hidden_state, _ = policy.act(timestep, hidden_state, noise, mode)
        step, following = env.step(action)
        rewards.append(step.reward[timestep.acted])
        observations.append(timestep.obs["agent"][timestep.acted])
        taken = action["agent"]
        actions.append((taken.continuous if taken.discrete is None else taken.discrete)[timestep.acted])
        timestep = following
    return torch.cat(actions), torch.cat(observations), torch.cat(rewards)


def targets_of(
    algorithm: ClippedLearner, rollout: Rollout, progress: float = 0.0, *, as_sequences: bool | None = None
) -> Targets:
    """Returns the targets that an update computes first, and replaces the value state as the update does.

    Args:
        algorithm: The learner.
        rollout: Experience of its team.
        progress: Fraction of the run that is done.
        as_sequences: True if timesteps in which nobody acts are masked; None: as in the learner's updates.
    """
    weights = None if algorithm.reward_streams is None else algorithm.reward_streams.weights(progress)
    before = ValueState(algorithm.value_moments, algorithm._critic_state)
    masked = algorithm._recurrent if as_sequences is None else as_sequences
    found = algorithm.targets(rollout, before, weights, as_sequences=masked)
    algorithm.value_moments, algorithm._critic_state = found.value_state
    return found
