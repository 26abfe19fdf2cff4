"""Moments of all data so far against literal numbers."""

import pytest
import torch

from coterie.functional.statistics import initial_moments, mean_and_std, root_mean_square, update_moments
from coterie.ranks.ranks import Ranks
from rank_threads import on_ranks


def test_moments_of_parts_equal_those_of_all_data():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 4 + 2
    moments = initial_moments(3)
    for part in x.split([1, 20, 29]):
        moments = update_moments(moments, part, None)
    mean, std = mean_and_std(moments)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(std, x.std(0, correction=0))


def test_without_data_mean_is_zero_and_std_is_one():
    mean, std = mean_and_std(initial_moments(2))
    assert (mean.tolist(), std.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_moments_of_a_batch_with_masked_entries_have_literal_values():
    """Samples (1, 10) and (3, 30), then (5, 50); the standard deviations are those of all three."""
    x = torch.tensor([[[1.0, 10.0], [9e9, 9e9], [3.0, 30.0]], [[9e9, 9e9]] * 3])
    valid = torch.tensor([[True, False, True], [False] * 3])
    moments = update_moments(initial_moments(2), x, valid)
    assert (moments["mean"].tolist(), moments["deviation"].tolist()) == ([2.0, 20.0], [2.0, 200.0])
    moments = update_moments(moments, torch.tensor([[5.0, 50.0]]), None)
    assert (moments["count"].item(), moments["mean"].tolist()) == (3.0, [3.0, 30.0])
    assert moments["deviation"].tolist() == [8.0, 800.0]
    mean, std = mean_and_std(moments)
    assert mean.tolist() == [3.0, 30.0]
    assert std.tolist() == pytest.approx([(8 / 3) ** 0.5, (800 / 3) ** 0.5])


def test_samples_that_are_all_masked_change_nothing():
    none = torch.zeros(3, dtype=torch.bool)
    empty = update_moments(initial_moments(1), torch.full((3, 1), float("nan")), none)
    assert [x.tolist() for x in empty.values()] == [x.tolist() for x in initial_moments(1).values()]


def test_variance_has_a_floor():
    moments = update_moments(initial_moments(1), torch.full((4, 1), 3.0), None)
    assert mean_and_std(moments)[1].item() == pytest.approx(0.01)
    assert mean_and_std(moments, min_variance=0.25)[1].item() == pytest.approx(0.5)


def test_data_of_all_ranks_count_and_one_rank_exchanges_nothing():
    """Samples (1, 10, 0) and (3, 30, 2) on rank 0, (5, 50, 4) on rank 1, after (3, 30, 2)."""
    parts = (torch.tensor([[1.0, 10.0, 0.0], [3.0, 30.0, 2.0]]), torch.tensor([[5.0, 50.0, 4.0], [9e9, 9e9, 9e9]]))
    masks = (None, torch.tensor([True, False]))

    def moments(ranks: Ranks) -> tuple[list[object], int]:
        before = update_moments(initial_moments(3), torch.tensor([[3.0, 30.0, 2.0]]), None)
        found = update_moments(before, parts[ranks.rank], masks[ranks.rank], ranks.reduction)
        return [x.tolist() for x in found.values()], ranks.traffic.calls

    assert on_ranks(2, moments) == [([4.0, [3.0, 30.0, 2.0], [8.0, 800.0, 8.0]], 1)] * 2
    found, calls = on_ranks(1, moments)[0]
    assert (found[0], calls) == (3.0, 0)


def test_the_root_mean_square_of_constant_and_of_rare_data():
    """It is 1 for rewards of -1 in every step, where the standard deviation is 0, and for data that are all 0."""
    assert root_mean_square(initial_moments(1)).tolist() == [1.0]
    assert root_mean_square(update_moments(initial_moments(1), torch.zeros(5, 1), None)).tolist() == [1.0]
    assert root_mean_square(update_moments(initial_moments(1), -torch.ones(5, 1), None)).tolist() == [1.0]
    rare = update_moments(initial_moments(2), torch.tensor([[0.0, 1e3], [0, 1e3], [0, -1e3], [4e-3, -1e3]]), None)
    torch.testing.assert_close(root_mean_square(rare), torch.tensor([2e-3, 1e3]))
