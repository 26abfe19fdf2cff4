"""Initial weights: shapes, sets, and the norms of their rows or columns."""

from __future__ import annotations

import pytest
import torch

from coterie.nets.initialization import GAINS, orthogonal, xavier_normal


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (5, 3)])
def test_orthogonal_matrices_have_the_gain_as_singular_values(rows, columns):
    single = orthogonal(rows, columns, sets=None, gain=1.5, generator=draw())
    several = orthogonal(rows, columns, sets=2, gain=1.5, generator=draw())
    assert (single.shape, several.shape) == ((rows, columns), (2, rows, columns))
    for matrix in (single, *several):
        torch.testing.assert_close(torch.linalg.svdvals(matrix), torch.full((3,), 1.5))
    assert single.equal(several[0])
    assert not several[0].equal(several[1])


def test_xavier_matrices_of_several_sets_differ():
    single, several = (xavier_normal(300, 100, sets=sets, generator=draw()) for sets in (None, 2))
    assert (single.shape, several.shape) == ((300, 100), (2, 300, 100))
    assert single.equal(several[0])
    assert not several[0].equal(several[1])
    assert several.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02)


def test_gains_are_those_of_pytorch():
    """PyTorch's gain for tanh is 5/3; the others have that of relu."""
    assert GAINS["tanh"] == torch.nn.init.calculate_gain("tanh")
    for name in ("relu", "elu", "gelu", "silu"):
        assert GAINS[name] == pytest.approx(torch.nn.init.calculate_gain("relu"))


@pytest.mark.parametrize(
    "draw_matrix", [lambda **given: orthogonal(4, 3, gain=1.0, **given), lambda **given: xavier_normal(4, 3, **given)]
)
def test_matrices_are_drawn_one_after_the_other(draw_matrix):
    """A matrix without sets takes as much from the generator as one of a set."""
    source = draw()
    apart = torch.stack([draw_matrix(sets=None, generator=source) for _ in range(3)])
    assert draw_matrix(sets=3, generator=draw()).equal(apart)
