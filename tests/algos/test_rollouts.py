"""Rollouts: resets of centralized critics, and minibatches."""

from types import SimpleNamespace

import pytest
import torch

from coterie.algos import rollouts, sequences


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


@pytest.mark.parametrize(("num_samples", "sizes"), [(16, [2] * 7 + [1] * 2), (18, [2] * 9), (9, [1] * 9), (4, [1] * 4)])
def test_samples_are_partitioned_into_the_requested_number_of_minibatches(num_samples, sizes):
    """Chunks of equal size would split 16 samples into 8 minibatches instead of 9."""
    batch, shuffle = {"x": torch.arange(float(num_samples))}, torch.Generator().manual_seed(0)
    parts = [part["x"] for part, _ in rollouts.minibatches(batch, None, torch.arange(num_samples), 9, shuffle=shuffle)]
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(num_samples))
    partition = [part for part in rollouts.minibatch_indices(num_samples, 9, None, shuffle) if part is not None]
    assert [len(part) for part in partition] == sizes
