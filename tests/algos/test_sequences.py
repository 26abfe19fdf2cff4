"""Sequences of a rollout: resets of centralized critics."""

from types import SimpleNamespace

import torch

from coterie.algos import sequences


def flags(alive, first, acted):
    """Returns the flags of T + 1 timesteps of one environment."""
    alive, first = (torch.tensor(x, dtype=torch.bool).unsqueeze(1) for x in (alive, first))
    return SimpleNamespace(alive=alive, first=first, acted=torch.tensor(acted, dtype=torch.bool).view(-1, 1))


def test_a_single_new_agent_does_not_reset_the_critic_of_the_team():
    """The last of the other agents leaves at the timestep at which it enters."""
    rollout = flags([[1, 0], [1, 0], [0, 1], [0, 1]], [[1, 0], [0, 0], [0, 1], [0, 0]], [1, 1, 1, 1])
    assert sequences.critic_first(rollout, True).flatten().tolist() == [True, False, False, False]
    assert sequences.critic_first(rollout, False).squeeze(1).tolist() == rollout.first.squeeze(1).tolist()


def test_the_critic_is_reset_after_each_final_timestep():
    rollout = flags([[1, 1], [1, 0], [1, 1], [0, 0]], [[0, 0], [0, 0], [1, 1], [0, 0]], [1, 0, 0, 1])
    assert sequences.critic_first(rollout, True).flatten().tolist() == [False, False, True, True]
