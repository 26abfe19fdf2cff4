"""The families of algorithms behind one interface: targets of a rollout, and critics with given values."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from algo_worlds import Probe, env_of, observe_age, observe_ones
from coterie.algos.replay.buffer import ReplaySample
from coterie.core.tree import tree_map
from learners import (
    coma_learner,
    ddpg_learner,
    happo_learner,
    hasac_learner,
    hatrpo_learner,
    magpo_learner,
    mat_dec_learner,
    mat_learner,
    pac_learner,
    poca_learner,
    ppo_learner,
    pqn_learner,
    q_learner,
    sac_learner,
    seac_learner,
    targets_of,
    vdac_learner,
)

CLIMBING = torch.tensor([[11.0, -30, 0], [-30, 7, 0], [0, 6, 5]])
"""Reward of both agents by the choice of each."""


def ppo_targets(algorithm, rollout):
    return targets_of(algorithm, rollout).batch.target[..., 0]


def seac_targets(algorithm, rollout):
    return targets_of(algorithm, algorithm.shared(rollout)).batch.target[:, : rollout.num_envs, :, 0]


def poca_targets(algorithm, rollout):
    return targets_of(algorithm, rollout).batch.target[..., 0].expand_as(rollout.reward)


def coma_targets(algorithm, rollout):
    algorithm.next_actions.manual_seed(0)
    return algorithm.targets(rollout)[0].target


def q_targets(algorithm, rollout):
    target = algorithm.evaluate_batch(rollout).target
    return target if target.ndim == 3 else target.unsqueeze(-1).expand(*target.shape, rollout.reward.shape[-1])


def pqn_targets(algorithm, rollout):
    target = pqn_samples(algorithm, rollout).target
    return target if target.ndim == 3 else target.unsqueeze(-1).expand(*target.shape, rollout.reward.shape[-1])


def pqn_samples(algorithm, rollout):
    """Returns the samples of a rollout as timesteps [T, B, ..], which must be the same as its sequences."""
    batch, hidden_states = algorithm.samples(rollout)
    shape = rollout.reward.shape[:2]
    return batch if hidden_states else tree_map(lambda x: x.unflatten(0, shape), batch)


def ddpg_targets(algorithm, rollout):
    algorithm.generator.manual_seed(0)
    index = torch.arange(rollout.num_envs)
    return algorithm.targets(algorithm.make_batch(ReplaySample(rollout, index, torch.ones(rollout.num_envs))))


def sac_targets(algorithm, rollout):
    algorithm.generator.manual_seed(0)
    draw = algorithm.sample_actions(rollout)
    return algorithm.targets(rollout, draw, torch.zeros(()))  # temperature 0: only rewards and Q


def q_learner_of_world(world, num_envs, **settings):
    return q_learner(env_of(world, num_envs), **settings)


RAW = {"normalize_value": False, "normalize_advantage": False}
GRU = {"rnn": "gru"}  # feed-forward off-policy learners compute targets only for the first timestep of a sequence
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "ppo": (ppo_learner, ppo_targets, RAW, "gae_lambda"),
    "mappo": (ppo_learner, ppo_targets, RAW | {"critic": "joint"}, "gae_lambda"),
    "happo": (happo_learner, ppo_targets, RAW, "gae_lambda"),
    "hatrpo": (hatrpo_learner, ppo_targets, RAW, "gae_lambda"),
    "mat": (mat_learner, ppo_targets, RAW, "gae_lambda"),
    "mat_dec": (mat_dec_learner, ppo_targets, RAW, "gae_lambda"),
    "magpo": (magpo_learner, ppo_targets, RAW, "gae_lambda"),
    "vdac": (vdac_learner, ppo_targets, RAW, "gae_lambda"),
    "seac": (seac_learner, seac_targets, RAW, "gae_lambda"),
    "pac": (pac_learner, ppo_targets, RAW | {"return_steps": None}, "gae_lambda"),
    "poca": (poca_learner, poca_targets, RAW, "td_lambda"),
    "coma": (coma_learner, coma_targets, {}, "td_lambda"),
    "iql": (q_learner_of_world, q_targets, GRU, "td_lambda"),
    "vdn": (q_learner_of_world, q_targets, GRU | {"mixer": "vdn"}, "td_lambda"),
    "pqn": (pqn_learner, pqn_targets, {}, "td_lambda"),
    "pqn_vdn": (pqn_learner, pqn_targets, {"mixer": "vdn"}, "td_lambda"),
    "ddpg": (ddpg_learner, ddpg_targets, GRU, ""),
    "maddpg": (ddpg_learner, ddpg_targets, GRU | {"critic": "joint"}, ""),
    "sac": (sac_learner, sac_targets, GRU, ""),
    "masac": (sac_learner, sac_targets, GRU | {"critic": "joint"}, ""),
    "hasac": (hasac_learner, sac_targets, GRU, ""),
}
"""Per family: constructor, function that computes targets, settings, and the setting of lambda."""
PER_AGENT = ("ppo", "seac", "iql", "pqn", "ddpg", "sac")
WITH_LAMBDA = [name for name, family in FAMILIES.items() if family[3]]
WITH_N_STEP = [name for name in FAMILIES if name in {"iql", "vdn", "ddpg", "maddpg", "sac", "masac", "hasac"}]


def make_learner(name, world, num_envs=4, **settings):
    """Returns a learner of a family, its collector, and the function that computes its targets."""
    build, targets, defaults, _ = FAMILIES[name]
    algorithm, collector = build(world, num_envs, **defaults | {"rollout_length": 8} | settings)
    return algorithm, collector, targets


def set_values(name, algorithm, values):
    """Replaces the critic in targets: the value of an agent that observes x is values[x], whatever the actions."""
    table = torch.tensor(values)

    def of(obs):
        return table[obs["agent"].long()]  # [.., N, 1]

    def group(obs, state, action, present, first, hidden_state):
        value = of(obs)
        return (value[:, :, :1] if action is None else torch.cat([value[:, :, :1], value], 2)), hidden_state

    if name in {"ppo", "mappo", "vdac", "seac", "happo", "hatrpo", "mat", "mat_dec", "magpo"}:
        algorithm.critic = lambda obs, state, first, hidden_state: (of(obs), hidden_state)
    elif name == "pac":
        algorithm.critic = lambda obs, state, first, hidden_state: (of(obs), hidden_state)
        algorithm.responses.best = lambda critic, obs, state, mask, alive, bonus=None: of(obs).expand(*alive.shape, 2)
    elif name == "poca":
        algorithm.critic = group
    elif name == "coma":
        algorithm.target.module = ObsCritic(lambda obs, joint: table[obs.long()].expand(*obs.shape[:-1], 2))
    elif name in {"iql", "vdn"}:
        algorithm.evaluate = lambda value, q, actions, timesteps: of(timesteps.obs)[
            ..., 0 if name == "vdn" else slice(None), 0
        ]
    elif name in {"pqn", "pqn_vdn"}:
        algorithm.value.evaluate = lambda q, actions, masks, alive, obs, state: of(obs)[
            ..., 0 if name == "pqn_vdn" else slice(None), 0
        ]
    elif name in {"ddpg", "maddpg"}:
        algorithm.critic_features = lambda critic, batch, time: of(batch.timesteps.obs)[time, ..., 0]
        algorithm.evaluate = lambda critic, features, action: features
    else:
        algorithm.evaluate = lambda critics, rollout, timesteps, action, own_action: of(rollout.obs)[timesteps].expand(
            2, -1, -1, -1, 2
        )


def rewarded_by_age(rewards, length, limit, n=1):
    """Returns a world whose agents observe the age of the episode and receive rewards[age]."""
    table = torch.tensor(rewards)
    reward = lambda x, age, d, c: table[age.long()].view(-1, 1)  # noqa: E731
    return Probe(observe_age, reward, n=n, length=length, limit=limit)


def climbing(length=1):
    """Returns the Climbing game: both agents receive the entry of the table for their choices."""
    reward = lambda x, age, d, c: CLIMBING[d[:, 0], d[:, 1]].view(-1, 1)  # noqa: E731
    return Probe(observe_ones, reward, n=2, actions=spaces.Discrete(3), length=length)


class ObsCritic(nn.Module):
    """Replaces COMA's critic: q(obs, joint action) [.., N, A], shifted by a parameter that is zero."""

    def __init__(self, q):
        super().__init__()
        self.q, self.zero = q, nn.Parameter(torch.zeros(()))

    def forward(self, obs, state, joint_action, last_joint_action):
        return self.q(obs["agent"], joint_action) + self.zero
