"""The moments of data by the kernel."""

import pytest
import torch

from coterie.functional.statistics import initial_moments, update_moments
from coterie.kernels import moments as kernel


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [None, 0.0, 0.7])
def test_they_are_those_of_pytorch(share, dtype):
    """Old data and new data, of which rows that do not count are NaN."""
    x, valid = 3 * drawn(7, 5, 18, dtype=dtype) + 100, None
    if share is not None:
        valid = torch.rand(7, 5, generator=torch.Generator().manual_seed(0)) < share
        x[~valid] = torch.nan
    old = update_moments(initial_moments(18), drawn(9, 18), None)
    for before in (initial_moments(18), old):
        found, expected = (update_moments(before, x, valid, kernels=kernels) for kernels in (True, False))
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)


def test_the_kernel_is_used_where_it_fits(monkeypatch):
    calls = []
    update = kernel.update_moments
    monkeypatch.setattr(kernel, "update_moments", lambda *x: (calls.append(update(*x)), calls[-1])[1])
    x, valid = drawn(4, 3), torch.ones(4, dtype=torch.bool)
    wrong = [(drawn(4, 2), None), (drawn(4, 3).to(torch.bfloat16), None), (x, torch.ones(4))]
    update_moments(initial_moments(3), x, valid, kernels=True)
    update_moments(initial_moments(3), x.T.contiguous().T, valid, kernels=True)
    assert [type(found) for found in calls] == [tuple, tuple]
    moments = tuple(initial_moments(3).values())
    assert [update(moments, *arguments) for arguments in wrong] == [None] * 3
