"""Probe environments with expected solutions, which each family finds, and does not find with a deliberate mistake.

For recurrent networks, masks, agent ids and time limits see the tests of each family and test_mistakes.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Probe, observe_age, observe_ones, observe_x, unit_reward
from coterie.algos.replay.buffer import ReplaySample
from coterie.algos.sac import SAC
from coterie.algos.sequences import as_sequences
from coterie.core.tree import tree_map
from coterie.core.types import Action
from families import FAMILIES
from learners import collect_rollout, run_policy

pytestmark = pytest.mark.slow

NUMBER = spaces.Box(-1.0, 1.0, (1,))
CLIPPED = {"rollout_length": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "value_clip_eps": None}
REPLAYED = {"rollout_length": 8, "lr": 1e-2, "batch_size": 64, "gradient_steps": 8}
FITTED = {"rollout_length": 8, "lr": 1e-2, "epochs": 8, "td_lambda": 0.5, "epsilon_decay_steps": 2000}
NOISY = REPLAYED | {"tau": 0.1, "noise_std": 0.3, "random_steps": 256}
WARM = REPLAYED | {"tau": 0.1, "gradient_steps": 16, "temperature": 0.01, "learn_temperature": False}
QUICK: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ppo": (10, 64, CLIPPED),
    "mappo": (10, 64, CLIPPED | {"critic": "joint"}),
    "happo": (10, 64, CLIPPED),
    "hatrpo": (10, 64, CLIPPED),
    "mat": (10, 64, CLIPPED),
    "mat_dec": (10, 64, CLIPPED),
    "poca": (10, 64, CLIPPED),
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
    "pqn": (40, 64, FITTED),
    "ddpg": (24, 32, NOISY),
    "maddpg": (24, 32, NOISY | {"critic": "joint"}),
    "sac": (14, 16, WARM),
    "masac": (14, 16, WARM | {"critic": "joint"}),
}
"""Rollouts, environments and settings that suffice for the simplest probes."""
SINGLE_AGENT = ("ppo", "mat", "poca", "coma", "iql", "pqn", "ddpg", "sac")


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


def estimated_values(name, algorithm, rollout):
    """Returns V, or Q of the actions taken, at each step of a rollout [T, B, N]."""
    with torch.no_grad():
        if name in {"ppo", "mat", "poca"}:
            mean, scale = algorithm.value_scale()
            if name in {"ppo", "mat"}:
                obs = algorithm.policy.obs_of_rollout(rollout)
                value, _ = algorithm.critic(obs, algorithm._state(rollout.state), None, {})
                return (value[:-1] * scale + mean)[..., 0]
            obs = {role: x[:-1] for role, x in rollout.obs.items()}
            value, _ = algorithm.critic(obs, None, rollout.action, None, None, {})
            return (value[..., 1:, :] * scale + mean)[..., 0]
        if name == "coma":
            batch, _ = algorithm.targets(rollout)
            q = algorithm.critic(batch.obs, batch.state, batch.joint_action, None)
            return (q * batch.taken).sum(-1)
        if name == "iql":
            (q,) = algorithm.reader.unroll(algorithm.value, algorithm.reader.start(rollout)[1]["value"]).values()
            return q[:-1].gather(-1, rollout.action["agent"].discrete)[..., 0]
        if name == "pqn":
            (q,) = algorithm.policy.net(rollout.obs, None, {}, None)[0].values()
            return q[:-1].gather(-1, rollout.action["agent"].discrete)[..., 0]
        if name == "sac":
            q = algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), rollout.action, None).amin(0)
            return (q * algorithm.nets.critics.taken(rollout.action)).sum(-1)
        timesteps = as_sequences(rollout, 1, {})  # DDPG reads only the first timestep of each sequence
        batch = algorithm.make_batch(
            ReplaySample(timesteps, torch.arange(timesteps.num_envs), torch.ones(timesteps.num_envs))
        )
        q = algorithm.q_taken(batch)[0]
        return q.unflatten(1, (rollout.rollout_length, rollout.num_envs))[0]


def play_greedily(algorithm, world):
    """Returns the greedy actions in the first timesteps of new environments, and their mean reward."""
    taken, _, reward = run_policy(algorithm, world, steps=1)
    return taken, reward.mean().item()


# ------------------------------------------------------------------------------------------------ deliberate mistakes


def without_terminal_rewards(rollout):
    """Masks rewards of terminal steps, as by a mask of 1 - terminated."""
    return replace(rollout, reward=rollout.reward.masked_fill(rollout.terminated, 0.0))


def observations_of_another_env(rollout):
    """Gives each environment the observations of the next one, as after flattening in different orders."""
    return replace(rollout, obs={name: x.roll(1, 1) for name, x in rollout.obs.items()})


def negated_rewards(rollout):
    """Negates rewards, as an advantage with the wrong sign would."""
    return replace(rollout, reward=-rollout.reward)


def second_component_flipped(rollout):
    """Replaces the second component of each choice with the other choice."""
    discrete = rollout.action["agent"].discrete
    return replace(rollout, action={"agent": Action(torch.cat([discrete[..., :1], 1 - discrete[..., 1:]], -1))})


def ignore_actions(algorithm):
    """Removes the action from the critic's input, so that Q has no gradient in it."""
    if isinstance(algorithm, SAC):
        evaluate = algorithm.evaluate
        zero = lambda action: tree_map(lambda x: x * 0, action)  # noqa: E731
        algorithm.evaluate = lambda critics, rollout, timesteps, action, own_action: evaluate(
            critics, rollout, timesteps, zero(action), own_action and zero(own_action)
        )
        return
    for critic in algorithm.critics.children():
        critic.q_values = lambda features, action, q_values=critic.q_values: q_values(
            features, tree_map(lambda x: x * 0, action)
        )


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("with_mistake", [False, True])
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_probe_the_value_of_a_constant_reward_is_one(name, with_mistake):
    """Each episode has one step. The mistake masks rewards of terminal steps."""

    def is_solved(algorithm, rollout):
        return abs(estimated_values(name, algorithm, rollout)[rollout.acted[:-1]].mean().item() - 1) < 0.1

    corrupt = without_terminal_rewards if with_mistake else None
    assert solves(name, Probe(observe_ones, unit_reward), is_solved, corrupt=corrupt) != with_mistake


@pytest.mark.parametrize("with_mistake", [False, True])
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_probe_the_value_depends_on_the_observation(name, with_mistake):
    """The reward is 1 for the observation 1, else -1. The mistake takes observations of another environment."""

    def is_solved(algorithm, rollout):
        error = estimated_values(name, algorithm, rollout) - (2 * rollout.obs["agent"][:-1, ..., 0] - 1)
        return error[rollout.acted[:-1]].abs().max().item() < 0.25

    world = Probe(observe_x, lambda x, age, d, c: (2 * x - 1).view(-1, 1))
    assert solves(name, world, is_solved, corrupt=observations_of_another_env if with_mistake else None) != with_mistake


@pytest.mark.parametrize("with_mistake", [False, True])
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_probe_the_value_is_discounted(name, with_mistake):
    """The second of two steps has a reward, gamma 0.5. The mistake is gamma 1."""

    def is_solved(algorithm, rollout):
        found, age = estimated_values(name, algorithm, rollout), rollout.obs["agent"][:-1, ..., 0]
        first, last = (found[(age == k) & rollout.acted[:-1, :, None]].mean().item() for k in (0, 1))
        return abs(first - 0.5) < 0.1 and abs(last - 1) < 0.1

    world = Probe(observe_age, lambda x, age, d, c: (age == 1).float().view(-1, 1), length=2)
    assert solves(name, world, is_solved, gamma=1.0 if with_mistake else 0.5) != with_mistake


# ------------------------------------------------------------------------------------------------------------ choices


@pytest.mark.parametrize("with_mistake", [False, True])
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_probe_the_rewarded_action_is_chosen(name, with_mistake):
    """Choice 1 has the reward. The mistake gives the advantage the wrong sign."""
    world = Probe(observe_ones, lambda x, age, d, c: d.float())
    is_solved = lambda algorithm, rollout: play_greedily(algorithm, world)[1] == 1  # noqa: E731
    assert solves(name, world, is_solved, corrupt=negated_rewards if with_mistake else None) != with_mistake


@pytest.mark.parametrize("with_mistake", [False, True])
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_probe_the_action_depends_on_the_observation(name, with_mistake):
    """The observation names the rewarded choice. The mistake removes it, so that half of the choices are right."""
    world = Probe(observe_ones if with_mistake else observe_x, lambda x, age, d, c: (d == x.view(-1, 1)).float())
    is_solved = lambda algorithm, rollout: play_greedily(algorithm, world)[1] == 1  # noqa: E731
    assert solves(name, world, is_solved) != with_mistake


class Pairs(Probe):
    """Rewards 2 in the first component of a choice, and 1 in the second."""

    def __init__(self):
        super().__init__(observe_ones, lambda x, age, d, c: d.float(), actions=spaces.MultiDiscrete([3, 2]))

    def step(self, state, action, noise):
        first, second = action["agent"].discrete.split(1, -1)
        return super().step(state, {"agent": Action((first == 2).long() + (second == 1).long())}, noise)


@pytest.mark.parametrize("with_mistake", [False, True])
@pytest.mark.parametrize("name", SINGLE_AGENT)
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
    "ppo": ("ppo", 12, {"lr": 2e-3}),
    "ppo, state-dependent std": ("ppo", 12, {"lr": 2e-3, "state_dependent_std": True}),
    "hatrpo": ("hatrpo", 12, {}),
    "mat": ("mat", 12, {"lr": 2e-3}),
    "poca": ("poca", 12, {"lr": 2e-3}),
    "ddpg": ("ddpg", 12, {}),
    "ddpg, ornstein-uhlenbeck": ("ddpg", 12, {"noise": "ornstein_uhlenbeck"}),
    "ddpg, td3": ("ddpg", 12, {"twin_critics": True, "policy_delay": 2, "target_noise": 0.2}),
    "sac": ("sac", 10, STEADY),
    "sac, without sharing": ("sac", 10, STEADY | {"share_params": "none"}),
}
SUM = {
    "ippo": ("ppo", 12, {}),
    "mappo": ("mappo", 12, {}),
    "happo": ("happo", 12, {}),
    "hatrpo": ("hatrpo", 12, {}),
    "mat": ("mat", 12, {"lr": 3e-3}),
    "mat_dec": ("mat_dec", 12, {}),
    "poca": ("poca", 12, {"lr": 3e-3}),
    "maddpg": ("maddpg", 36, FASTER),
    "maddpg, current actions": ("maddpg", 36, FASTER | {"other_actions": "current"}),
    "sac": ("sac", 24, STEADY),
    "masac": ("masac", 24, STEADY),
}


def cases(table):
    """Returns (case, mistake) for every case; variants, which have a comma in their name, only without the mistake."""
    return [(case, False) for case in table] + [(case, True) for case in table if "," not in case]


def mistake_of(name):
    """Returns the mistake: the critic ignores actions if the actor follows its gradient, else rewards are negated."""
    return {"prepare": ignore_actions} if name in {"ddpg", "maddpg", "sac", "masac"} else {"corrupt": negated_rewards}


@pytest.mark.parametrize(("case", "with_mistake"), cases(OPTIMUM))
def test_probe_an_interior_optimum_of_a_continuous_action_is_found(case, with_mistake):
    """The reward is -(a - 0.4)^2."""
    name, rollouts, settings = OPTIMUM[case]
    world = Probe(observe_ones, lambda x, age, d, c: -(c[..., 0] - 0.4).square(), actions=NUMBER)
    is_solved = lambda algorithm, rollout: abs(play_greedily(algorithm, world)[0].mean().item() - 0.4) < 0.1  # noqa: E731
    assert (
        solves(name, world, is_solved, rollouts, **settings, **mistake_of(name) if with_mistake else {}) != with_mistake
    )


@pytest.mark.parametrize(("case", "with_mistake"), cases(SUM))
def test_probe_two_agents_coordinate_a_sum_of_actions(case, with_mistake):
    """The reward is -(a1 + a2 - 1)^2."""
    name, rollouts, settings = SUM[case]
    reward = lambda x, age, d, c: -(c[..., 0].sum(1, keepdim=True) - 1).square()  # noqa: E731
    world = Probe(observe_ones, reward, n=2, actions=NUMBER)

    def is_solved(algorithm, rollout):
        return abs(play_greedily(algorithm, world)[0][..., 0].sum(-1).mean().item() - 1) < 0.1

    settings = settings | (mistake_of(name) if with_mistake else {})
    assert solves(name, world, is_solved, rollouts, **settings) != with_mistake
