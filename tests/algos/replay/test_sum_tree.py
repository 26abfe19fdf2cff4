from __future__ import annotations

import pytest
import torch

from coterie.algos.replay.prioritized import SumTree

CPU = torch.device("cpu")


def tree_of(*values: float) -> SumTree:
    tree = SumTree(len(values), CPU)
    tree.fill(0, torch.tensor(values, dtype=torch.float64))
    return tree


def test_find_returns_where_the_cumulative_sum_exceeds_the_target():
    tree = tree_of(1, 0, 2, 4)
    targets = torch.tensor([0.0, 0.999, 1.0, 2.999, 3.0, 6.999], dtype=torch.float64)
    assert tree.find(targets).tolist() == [0, 0, 2, 2, 3, 3]
    assert tree.total == 7


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 4097, 300_000])
def test_trees_of_any_depth_equal_a_search_in_the_cumulative_sum(size):
    chance = torch.Generator().manual_seed(size)
    values = torch.randint(0, 5, (size,), generator=chance).double()  # integers have exact sums
    values[size // 2] = 3
    tree = SumTree(size, CPU)
    tree.fill(0, values)
    targets = torch.rand(500, generator=chance, dtype=torch.float64) * values.sum()
    assert tree.find(targets).equal(torch.searchsorted(values.cumsum(0), targets, right=True))


def test_sums_are_exact_after_each_change():
    chance = torch.Generator().manual_seed(0)
    tree, values = SumTree(10_000, CPU), torch.zeros(10_000, dtype=torch.float64)
    for _ in range(20):
        start = int(torch.randint(9_000, (1,), generator=chance))
        run = torch.randint(0, 9, (int(torch.randint(1, 1_000, (1,), generator=chance)),), generator=chance).double()
        tree.fill(start, run)
        values[start : start + len(run)] = run
        index = torch.randperm(10_000, generator=chance)[:300]
        fresh = torch.randint(0, 9, (300,), generator=chance).double()
        tree.set(index, fresh, torch.ones(300, dtype=torch.bool))
        values[index] = fresh
        assert tree.leaves.equal(values)
        assert tree.total == values.sum()
    targets = torch.arange(0, float(values.sum()), 7, dtype=torch.float64)
    assert tree.find(targets).equal(torch.searchsorted(values.cumsum(0), targets, right=True))


def test_the_largest_of_repeated_values_is_set():
    tree = tree_of(1, 1, 1, 1)
    tree.set(torch.tensor([2, 0, 2, 3]), torch.tensor([5.0, 7.0, 4.0, 9.0]), torch.tensor([True, True, True, False]))
    assert tree.leaves.tolist() == [7, 1, 5, 1]
    assert tree.total == 14


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_rounding_never_returns_a_zero_priority(scale):
    """Targets at and beyond the total, in a tree whose last priorities are zero."""
    values = torch.rand(5_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    values[::3] = 0
    values[4_000:] = 0
    tree = SumTree(5_000, CPU)
    tree.fill(0, values)
    total = tree.total
    ends = torch.stack([total * 0, total * (1 - 1e-16), total, total * (1 + 1e-9)])
    found = tree.find(torch.cat([ends, values.cumsum(0).clamp(max=float(total))]))
    assert (values[found] > 0).all()


def test_samples_are_stratified():
    tree = tree_of(3, 1, 0, 4)
    for seed in range(20):
        drawn = tree.sample(8, torch.Generator().manual_seed(seed))
        assert drawn.tolist() == [0, 0, 0, 1, 3, 3, 3, 3]
