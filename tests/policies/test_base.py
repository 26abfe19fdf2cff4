"""RandomPolicy: uniform over available choices and over [-1, 1]."""

import pytest
import torch

from coterie.policies.base import RandomPolicy
from policy_cases import CPU, draw, make_team, make_timestep


def test_random_actions_are_uniform_over_available_choices_and_numbers():
    actor = RandomPolicy(make_team("hybrid"), CPU)
    timestep = make_timestep(actor.team, 20_000, (True, False, True, True))
    action = actor.act(timestep, {}, actor.draw_noise(1, 20_000, draw())[0], "sample")[0]["guard"]
    frequency = torch.nn.functional.one_hot(action.discrete[..., 0], 4).float().mean(0)
    torch.testing.assert_close(frequency, torch.tensor([[1 / 3, 0, 1 / 3, 1 / 3]] * 2), atol=0.02, rtol=0)
    assert action.continuous.var().item() == pytest.approx(1 / 3, abs=0.01)
    reported = actor.action_distribution(make_timestep(actor.team, 1, (True, False, True, True)), {}, "sample")
    torch.testing.assert_close(reported["guard"].probability[0, 0], torch.tensor([1 / 3, 0, 1 / 3, 1 / 3]))
