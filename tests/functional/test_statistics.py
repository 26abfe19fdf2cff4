"""Masked statistics against literal numbers."""

import pytest
import torch

from coterie.functional.statistics import (
    explained_variance,
    masked_mean,
    masked_moments,
    masked_sum,
    own_part,
    pooled_moments,
    standardize,
    valid_count,
)
from coterie.ranks.ranks import Ranks
from rank_threads import on_ranks

PARTS = (torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0]))
"""Samples of rank 0 and of rank 1 in one batch."""
MASKS = (torch.tensor([True, True, False]), torch.tensor([True]))


def own_batch(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts the batch of all four samples. Returns the samples of a rank and their mask."""
    x, places = PARTS[ranks.rank], (torch.tensor([0, 1, 3]), torch.tensor([2]))
    ranks.start_batch(places[ranks.rank], 4)
    return x, MASKS[ranks.rank]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
def test_invalid_entries_change_neither_mean_nor_gradient(poison):
    x = torch.tensor([1.0, 2.0, poison, 4.0], requires_grad=True)
    valid = torch.tensor([True, True, False, True])
    mean = masked_mean(x, valid)
    mean.backward()
    assert mean.item() == pytest.approx(7 / 3)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([1 / 3, 1 / 3, 0.0, 1 / 3]))


def test_mean_without_valid_entries_is_zero():
    assert masked_mean(torch.tensor([float("nan")]), torch.tensor([False])).item() == 0.0


def test_masked_sum_returns_the_count():
    total, count = masked_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    assert (float(total), int(count)) == (4.0, 2)


def test_standardized_valid_entries_have_mean_zero_and_variance_one():
    x = torch.tensor([1.0, 3.0, 1e9, 5.0])
    valid = torch.tensor([True, True, False, True])
    mean, variance = masked_moments(standardize(x, valid), valid)
    assert mean.item() == pytest.approx(0, abs=1e-6)
    assert variance.item() == pytest.approx(1, abs=1e-5)


def test_mean_of_one_number_is_that_number():
    assert masked_mean(torch.tensor([3.0]), None).item() == 3.0
    assert masked_mean(torch.zeros(0), None).item() == 0.0


def test_explained_variance_has_literal_values():
    """Targets 1, 3, 5 and 7 vary by 5, residuals 1, -1, 1 and -1 by 1."""
    target, residual = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    everywhere = torch.ones(2, 2, dtype=torch.bool)
    assert explained_variance(target, residual, everywhere).item() == pytest.approx(0.8)
    assert explained_variance(target, target + 9, everywhere).item() == pytest.approx(0.0)
    some = torch.tensor([[True, True], [True, False]])
    assert explained_variance(target, residual, some).item() == pytest.approx(1 - (8 / 9) / (8 / 3))
    constant = torch.ones(2, 2)
    assert explained_variance(constant, residual, everywhere).item() == pytest.approx(1 - 1e8)


def test_counts_of_masks_add_up_and_are_at_least_one():
    assert valid_count(torch.tensor([True, False, True]), torch.tensor([[True]])).item() == 3
    assert valid_count(torch.zeros(2, dtype=torch.bool)).item() == 1


def test_counts_of_ranks_are_their_mean_and_one_rank_exchanges_nothing():
    def count(ranks: Ranks) -> tuple[float, int]:
        found = valid_count(MASKS[ranks.rank], torch.tensor([True, False]), reduction=ranks.reduction).item()
        return found, ranks.traffic.calls

    assert on_ranks(2, count) == [(2.5, 1)] * 2
    assert on_ranks(1, count) == [(3.0, 0)]


def test_the_average_of_the_parts_of_ranks_is_the_mean_of_all_samples():
    """1, 2, 6 and 3 have the mean 3; without the masked 6 it is 2, of their quarters 1/2."""

    def parts(ranks: Ranks) -> list[float]:
        x, valid = own_batch(ranks)
        means = (masked_mean(y, v, ranks.reduction) for y, v in ((x, None), (x, valid), (x / 4, valid)))
        return [mean.item() for mean in means]

    assert on_ranks(2, parts) == [pytest.approx([4.5, 2.0, 0.5]), pytest.approx([1.5, 2.0, 0.5])]
    assert on_ranks(1, parts) == [pytest.approx([3.0, 1.5, 0.375])]


def test_a_rank_without_samples_adds_nothing_to_a_mean():
    def part(ranks: Ranks) -> float:
        ranks.start_batch(torch.arange(2 - 2 * ranks.rank), 2)
        return masked_mean(torch.tensor([1.0, 3.0])[: 2 - 2 * ranks.rank], None, ranks.reduction).item()

    assert on_ranks(2, part) == [4.0, 0.0]


def test_a_mean_over_the_entries_of_a_rank_becomes_its_part():
    def parts(ranks: Ranks) -> list[tuple[float, float]]:
        own = [masked_mean(PARTS[ranks.rank], valid) for valid in (None, MASKS[ranks.rank])]
        x, valid = own_batch(ranks)
        found = [own_part(mean, v, ranks.reduction).item() for mean, v in zip(own, (None, valid), strict=True)]
        return list(zip(found, [masked_mean(x, v, ranks.reduction).item() for v in (None, valid)], strict=True))

    for rank in on_ranks(2, parts):
        assert all(found == pytest.approx(expected) for found, expected in rank)
    mean = torch.tensor(3.0)
    assert own_part(mean, MASKS[0], None) is mean


def test_moments_are_those_of_all_ranks():
    """Of 1, 2 and 3; of all four samples, whose deviations from 3 are -2, -1, 3 and 0."""

    def moments(ranks: Ranks) -> list[float]:
        x, valid = own_batch(ranks)
        return [float(m) for v in (valid, None) for m in masked_moments(x, v, ranks.reduction)]

    assert on_ranks(2, moments) == [pytest.approx([2, 2 / 3, 3, 14 / 4])] * 2
    one = on_ranks(1, lambda ranks: (moments(ranks), ranks.traffic.calls))[0]
    assert one == (pytest.approx([1.5, 0.25, 3, 14 / 3]), 0)


def test_a_rank_whose_samples_are_all_masked_leaves_the_moments_of_the_others():
    def moments(ranks: Ranks) -> list[float]:
        x, valid = own_batch(ranks)
        return [float(m) for m in masked_moments(x, valid & (ranks.rank == 0), ranks.reduction)]

    assert on_ranks(2, moments) == [pytest.approx([1.5, 0.25])] * 2


def test_pooled_moments_have_literal_values():
    """1 and 3 with 10 and 30, then 5 with 50, and a part without data."""
    count = torch.tensor([2.0, 1.0, 0.0])
    mean = torch.tensor([[2.0, 20.0], [5.0, 50.0], [9.0, 9.0]])
    deviation = torch.tensor([[2.0, 200.0], [0.0, 0.0], [0.0, 0.0]])
    total, mean, deviation = pooled_moments(count, mean, deviation)
    assert (total.item(), mean.tolist(), deviation.tolist()) == (3.0, [3.0, 30.0], [8.0, 800.0])
    total, mean, deviation = pooled_moments(torch.tensor([1.0, 0.0]), torch.tensor([5.0, 0.0]), torch.zeros(2))
    assert (total.item(), mean.item(), deviation.item()) == (1.0, 5.0, 0.0)
    assert [x.item() for x in pooled_moments(*torch.zeros(3, 2))] == [0.0, 0.0, 0.0]
