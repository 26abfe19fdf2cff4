"""Probe environments with expected solutions, which each family finds, and does not find with a deliberate mistake.

For values, one choice, discounts, memory, masks and time limits see tests/checks/algorithm/test_check_algorithm.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Probe, observe_ones
from coterie.core.tree import tree_map
from coterie.core.types import Action
from families import FAMILIES
from learners import collect_rollout, run_policy

pytestmark = pytest.mark.slow

NUMBER = spaces.Box(-1.0, 1.0, (1,))
CLIPPED = {"rollout_length": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "value_clip_eps": None}
REPLAYED = {"rollout_length": 8, "lr": 1e-2, "batch_size": 64, "gradient_steps": 8}

NOISY = REPLAYED | {"tau": 0.1, "noise_std": 0.3, "random_steps": 256}
WARM = REPLAYED | {"tau": 0.1, "gradient_steps": 16, "temperature": 0.01, "learn_temperature": False}
QUICK: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ppo": (10, 64, CLIPPED),
    "mappo": (10, 64, CLIPPED | {"critic": "joint"}),
    "hatrpo": (10, 64, CLIPPED),
    "mat": (10, 64, CLIPPED),
    "coma": (
        60,
        64,
        {
            "rollout_length": 8,
            "lr": 1e-2,
            "epsilon_start": 0.1,
            "target_update_interval": 5,
            "normalize_advantage": True,
        },
    ),
    "iql": (20, 16, REPLAYED | {"target_update_interval": 20, "epsilon_decay_steps": 2000}),
    "ddpg": (24, 32, NOISY),
    "maddpg": (24, 32, NOISY | {"critic": "joint"}),
    "sac": (14, 16, WARM),
    "masac": (14, 16, WARM | {"critic": "joint"}),
}
"""Rollouts, environments and settings that suffice for the simplest probes."""
SINGLE_AGENT = ("ppo", "mat", "coma", "iql", "ddpg", "sac")


def solves(name, world, is_solved, rollouts=0, corrupt=None, prepare=None, **settings):
    """Returns True if `is_solved(learner, rollout)` holds at two consecutive checks within the given rollouts.

    corrupt: changes the rollouts that the learner receives; prepare: changes the learner before the first one.
    """
    max_rollouts, num_envs, quick = QUICK[name]
    algorithm, collector = FAMILIES[name][0](world, num_envs, **{"gamma": 0.9} | quick | settings)
    if prepare is not None:
        prepare(algorithm)
    consecutive = 0
    for k in range(rollouts or max_rollouts):
        rollout = collect_rollout(algorithm, collector)
        algorithm.update(rollout if corrupt is None else corrupt(rollout), 0.5)
        if k % 2:
            consecutive = consecutive + 1 if is_solved(algorithm, rollout) else 0
        if consecutive == 2:
            return True
    return False


def play_greedily(algorithm, world):
    """Returns the greedy actions in the first timesteps of new environments, and their mean reward."""
    taken, _, reward = run_policy(algorithm, world, steps=1)
    return taken, reward.mean().item()


# ------------------------------------------------------------------------------------------------ deliberate mistakes


def negated_rewards(rollout):
    """Negates rewards, as an advantage with the wrong sign would."""
    return replace(rollout, reward=-rollout.reward)


def second_component_flipped(rollout):
    """Replaces the second component of each choice with the other choice."""
    discrete = rollout.action["agent"].discrete
    return replace(rollout, action={"agent": Action(torch.cat([discrete[..., :1], 1 - discrete[..., 1:]], -1))})


def ignore_actions(algorithm):
    """Removes the action from the critic's input, so that Q has no gradient in it."""
    for critic in algorithm.critics.children():
        critic.q_values = lambda features, action, q_values=critic.q_values: q_values(
            features, tree_map(lambda x: x * 0, action)
        )


# ------------------------------------------------------------------------------------------------------------ choices


class Pairs(Probe):
    """Rewards 2 in the first component of a choice, and 1 in the second."""

    def __init__(self):
        super().__init__(observe_ones, lambda x, age, d, c: d.float(), actions=spaces.MultiDiscrete([3, 2]))

    def step(self, state, action, noise):
        first, second = action["agent"].discrete.split(1, -1)
        return super().step(state, {"agent": Action((first == 2).long() + (second == 1).long())}, noise)


@pytest.mark.parametrize(("name", "with_mistake"), [*((name, False) for name in SINGLE_AGENT), ("ppo", True)])
def test_probe_all_components_of_an_action_are_learned(name, with_mistake):
    """The mistake flips the second component in rollouts."""
    world = Pairs()
    is_solved = lambda algorithm, rollout: play_greedily(algorithm, world)[1] == 2  # noqa: E731
    assert solves(name, world, is_solved, corrupt=second_component_flipped if with_mistake else None) != with_mistake


# -------------------------------------------------------------------------------------------------- continuous actions

FASTER = {"lr": 3e-3, "critic_lr": 1e-2}
"""The critic learns faster than the actor."""
STEADY = FASTER | {"hidden_sizes": (32, 32), "activation": "relu"}
"""As FASTER, with a larger network."""
OPTIMUM = {
    "ppo, state-dependent std": ("ppo", 12, {"lr": 2e-3, "state_dependent_std": True}),
    "hatrpo": ("hatrpo", 12, {}),
    "ddpg, ornstein-uhlenbeck": ("ddpg", 12, {"n_step": 1, "noise": "ornstein_uhlenbeck"}),
    "ddpg, td3": ("ddpg", 12, {"n_step": 1, "twin_critics": True, "policy_delay": 2, "target_noise": 0.2}),
    "sac, without sharing": ("sac", 10, STEADY | {"share_params": "none"}),
}
SUM = {"mappo": (12, {}), "mat": (12, {"lr": 3e-3}), "maddpg": (36, FASTER | {"n_step": 1}), "masac": (24, STEADY)}


NEGATED, IGNORED = {"corrupt": negated_rewards}, {"prepare": ignore_actions}
"""Mistakes: the advantage has the wrong sign; the critic, whose gradient the actor follows, ignores actions."""


@pytest.mark.parametrize(("case", "mistake"), [*((case, {}) for case in OPTIMUM), ("hatrpo", NEGATED)])
def test_probe_an_interior_optimum_of_a_continuous_action_is_found(case, mistake):
    """The reward is -(a - 0.4)^2."""
    name, rollouts, settings = OPTIMUM[case]
    world = Probe(observe_ones, lambda x, age, d, c: -(c[..., 0] - 0.4).square(), actions=NUMBER)
    is_solved = lambda algorithm, rollout: abs(play_greedily(algorithm, world)[0].mean().item() - 0.4) < 0.1  # noqa: E731
    assert solves(name, world, is_solved, rollouts, **settings, **mistake) != bool(mistake)


@pytest.mark.parametrize(("name", "mistake"), [*((name, {}) for name in SUM), ("maddpg", IGNORED)])
def test_probe_two_agents_coordinate_a_sum_of_actions(name, mistake):
    """The reward is -(a1 + a2 - 1)^2."""
    rollouts, settings = SUM[name]
    reward = lambda x, age, d, c: -(c[..., 0].sum(1, keepdim=True) - 1).square()  # noqa: E731
    world = Probe(observe_ones, reward, n=2, actions=NUMBER)

    def is_solved(algorithm, rollout):
        return abs(play_greedily(algorithm, world)[0][..., 0].sum(-1).mean().item() - 1) < 0.1

    assert solves(name, world, is_solved, rollouts, **settings, **mistake) != bool(mistake)
