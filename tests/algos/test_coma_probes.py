"""COMA in probe environments with expected solutions, each with a negative control."""

from dataclasses import replace

import pytest
import torch

from algo_worlds import Probe, observe_ones
from families import climbing
from learners import mean_reward
from learners import train_coma as train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seed", "entropy_bonus"), [(0, True), (1, False)])
def test_coma_converges_to_the_second_best_reward_in_climbing(seed, entropy_bonus):
    """7, as usual for policy gradients, with an entropy bonus. Without it, the control, it is 5."""
    settings = {
        "gamma": 0.0,
        "lr": 3e-3,
        "num_minibatches": 4,
        "epsilon_start": 0.02,
        "epsilon_end": 0.02,
        "rollout_length": 24,
    }
    settings |= {"entropy_coef": 4.0 if entropy_bonus else 0.0, "entropy_schedule": "exponential", "entropy_end": 0.02}
    settings["normalize_advantage"] = False
    algorithm, collector, _ = train(climbing(24), 110, num_envs=32, seed=seed, **settings)
    algorithm.policy.epsilon = 0.0
    assert mean_reward(algorithm, collector) == pytest.approx(7 if entropy_bonus else 5, abs=0.15)


class Cue(Probe):
    """Observed at the first step and needed at the third. The state, which the critic reads, contains it."""

    def __init__(self):
        super().__init__(
            lambda x, age: torch.stack([(2 * x - 1) * (age == 0), (age == 2).float()], -1).unsqueeze(1),
            lambda x, age, d, c: 3 * ((d == x.view(-1, 1)) & (age == 2).view(-1, 1)).float(),
            size=2,
            length=3,
        )
        self.spec = replace(self.spec, state_sizes={"global": 2})

    def observe(self, state):
        return replace(super().observe(state), state={"global": torch.stack([state["x"], state["age"]], -1)})


@pytest.mark.parametrize("critic", ["state", "joint"])
def test_probe_a_recurrent_actor_remembers_a_cue(critic):
    """Needs a critic of the state. Without it, half of the choices are right."""
    settings = {"rnn": "gru", "critic": critic, "rnn_size": 16, "rollout_length": 16, "epsilon_end": 0.01}
    found = mean_reward(*train(Cue(), 70, lr=5e-3, critic_time_chunks=4, **settings)[:2])
    assert found > 0.85 if critic == "state" else found < 0.65


class Alternating(Probe):
    """Rewards a choice that differs from the previous one; observations are constant."""

    def reset(self, noise):
        return super().reset(noise) | {"last_choice": torch.zeros(len(noise), dtype=torch.int64)}

    def step(self, state, action, noise):
        choice = action["agent"].discrete[:, 0, 0]
        inner = {"x": ((choice != state["last_choice"]) & (state["age"] > 0)).float(), "age": state["age"]}
        next_state, outcome = super().step(inner, action, noise)
        return next_state | {"last_choice": choice}, outcome


@pytest.mark.parametrize("last_action", [True, False])
def test_probe_a_policy_that_reads_last_actions_can_alternate(last_action):
    """Without its last action, the control, the policy is random and right half of the time."""
    world = Alternating(observe_ones, lambda x, age, d, c: x.view(-1, 1), length=5)
    settings = {"obs_last_action": last_action, "critic_last_action": True, "rollout_length": 12, "gamma": 0.5}
    found = mean_reward(*train(world, 120, lr=1e-2, epsilon_end=0.01, entropy_coef=0.02, **settings)[:2])
    assert found > 0.72 if last_action else found < 0.5  # optimal: 0.8 and 0.4 of the five steps
