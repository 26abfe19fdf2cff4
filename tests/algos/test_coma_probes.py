"""What COMA learns: tiny worlds with known answers, each with its negative control."""

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algos.test_coma import climbing, mean_reward, show_nothing, show_x, train
from algos.worlds import Probe


@pytest.mark.parametrize(("seed", "patient"), [(0, True), (1, True), (1, False)])
def test_climbing_is_climbed_to_seven_and_never_to_eleven(seed, patient):
    """As policy gradients do, with the entropy bonus of the preset; the control is sure too soon, and stays at 5."""
    settings = {"gamma": 0.0, "lr": 3e-3, "minibatches": 4, "epsilon": 0.02, "epsilon_end": 0.02, "horizon": 24}
    settings |= {"entropy_coef": 4.0 if patient else 0.0, "entropy_schedule": "exponential", "entropy_end": 0.02}
    settings["normalise_advantage"] = False
    algorithm, collector, _ = train(climbing(24), 110, copies=32, seed=seed, **settings)
    algorithm.policy.epsilon = 0.0
    assert mean_reward(algorithm, collector) == pytest.approx(7 if patient else 5, abs=0.15)


@pytest.mark.parametrize("seen", [True, False])
def test_probe_action_that_fits_the_observation_is_chosen(seen):
    """The control shows nothing: half of the choices are right."""
    world = Probe(show_x if seen else show_nothing, lambda x, age, d, c: (d == x.view(-1, 1)).float(), n=2)
    found = mean_reward(*train(world, 80, lr=5e-3, critic_chunks=4, epsilon_end=0.01)[:2])
    assert found > 0.9 if seen else found < 0.65


@pytest.mark.parametrize("masked", [True, False])
def test_probe_best_action_that_is_masked_is_left(masked):
    """The control masks nothing, and the best is taken."""
    mask = torch.tensor([True, True, not masked])
    world = Probe(show_nothing, lambda x, age, d, c: d.float(), actions=spaces.Discrete(3), mask=mask)
    algorithm, collector, _ = train(world, 60, epsilon_end=0.01)
    assert mean_reward(algorithm, collector) == pytest.approx(1.0 if masked else 2.0, abs=0.05)


@pytest.mark.parametrize("agent_id", [None, False])
def test_probe_agents_that_see_the_same_are_told_apart(agent_id):
    """Agent 0 is to choose 0, agent 1 is to choose 1; without the id one policy cannot."""
    world = Probe(show_nothing, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    found = mean_reward(*train(world, 60, agent_id=agent_id, epsilon_end=0.01)[:2])
    assert found > 0.95 if agent_id is None else found < 0.7


class Cue(Probe):
    """Seen in the first row, asked for in the third. The environment's state, which the critic reads, holds it."""

    def __init__(self):
        super().__init__(
            lambda x, age: torch.stack([(2 * x - 1) * (age == 0), (age == 2).float()], -1).unsqueeze(1),
            lambda x, age, d, c: 3 * ((d == x.view(-1, 1)) & (age == 2).view(-1, 1)).float(),
            size=2,
            length=3,
        )
        self.spec = replace(self.spec, state_sizes={"global": 2})

    def view(self, state):
        return replace(super().view(state), state={"global": torch.stack([state["x"], state["age"]], -1)})


@pytest.mark.parametrize(
    ("memory", "critic"), [("gru", "state"), ("lstm", "state"), ("none", "state"), ("gru", "joint")]
)
def test_probe_cue_is_remembered(memory, critic):
    """The actor needs a memory, the critic, which has none, the state; without either half of the answers are right."""
    settings = {"memory": memory, "critic": critic, "memory_size": 16, "horizon": 16, "epsilon_end": 0.01}
    found = mean_reward(*train(Cue(), 70, lr=5e-3, critic_chunks=4, **settings)[:2])
    assert found > 0.85 if (memory, critic) in {("gru", "state"), ("lstm", "state")} else found < 0.65


class Alternating(Probe):
    """Pays for another choice than in the step before; nothing is seen."""

    def restart(self, noise):
        return super().restart(noise) | {"done": torch.zeros(len(noise), dtype=torch.int64)}

    def step(self, state, action, noise):
        done = action["agent"].discrete[:, 0, 0]
        inner = {"x": ((done != state["done"]) & (state["age"] > 0)).float(), "age": state["age"]}
        after, outcome = super().step(inner, action, noise)
        return after | {"done": done}, outcome


@pytest.mark.parametrize("last_action", [True, False])
def test_probe_last_action_is_an_input(last_action):
    """Who knows what it did can do the other thing; the control draws, and is right half of the time."""
    world = Alternating(show_nothing, lambda x, age, d, c: x.view(-1, 1), length=5)
    settings = {"last_action": last_action, "critic_last_action": True, "horizon": 12, "gamma": 0.5}
    found = mean_reward(*train(world, 120, lr=1e-2, epsilon_end=0.01, entropy_coef=0.02, **settings)[:2])
    assert found > 0.72 if last_action else found < 0.5  # 0.8 and 0.4 of the five steps
