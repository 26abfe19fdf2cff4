"""Minibatches of a rollout."""

import pytest
import torch

from coterie.algos.minibatches import minibatch_indices, minibatches


@pytest.mark.parametrize(("num_samples", "sizes"), [(16, [2] * 7 + [1] * 2), (18, [2] * 9), (9, [1] * 9), (4, [1] * 4)])
def test_samples_are_partitioned_into_the_requested_number_of_minibatches(num_samples, sizes):
    """Chunks of equal size would split 16 samples into 8 minibatches instead of 9."""
    batch, shuffle = {"x": torch.arange(float(num_samples))}, torch.Generator().manual_seed(0)
    parts = [part["x"] for part, _ in minibatches(batch, None, torch.arange(num_samples), 9, shuffle=shuffle)]
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(num_samples))
    partition = [part for part in minibatch_indices(num_samples, 9, None, shuffle) if part is not None]
    assert [len(part) for part in partition] == sizes
