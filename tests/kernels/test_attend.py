"""Attention of queries to keys and values: literal numbers, and the kernel against PyTorch's operations."""

import math

import pytest
import torch

from coterie.kernels.attention import attend as kernel
from coterie.nets import attention
from coterie.nets.attention import attend, masked_softmax


def draw(*shape, dtype=torch.float32, seed=0, tokens_first=False):
    generator = torch.Generator().manual_seed(seed)
    samples, tokens, *rest = shape
    if tokens_first:
        return torch.randn(tokens, samples, *rest, generator=generator, dtype=dtype).transpose(0, 1)
    return torch.randn(shape, generator=generator, dtype=dtype)


def results(query, key_value, visible, heads):
    """Returns the output with and without gradients, and the gradients."""
    query, key_value = query.detach().requires_grad_(), key_value.detach().requires_grad_()
    out = attend(query, *key_value.chunk(2, -1), visible, heads)
    out.backward(torch.arange(out.numel(), dtype=out.dtype).view(out.shape).sin())
    with torch.no_grad():
        again = attend(query, *key_value.chunk(2, -1), visible, heads)
    return [out.detach(), again, query.grad, key_value.grad]


def test_attention_of_literal_numbers():
    """Scores q k / sqrt(2) are 0 and ln 3, so that weights are 1/4 and 3/4; the second sees the first token only."""
    key = torch.tensor([[[0.0, 1.0], [math.log(3) * 2**0.5, 1.0]]])
    value = torch.tensor([[[4.0, 0.0], [8.0, 4.0]]])
    visible = torch.tensor([[[True, True], [True, False], [False, False]]])
    found = attend(torch.tensor([[[1.0, 0.0]] * 3]), key, value, visible, 1)
    torch.testing.assert_close(found, torch.tensor([[[7.0, 3.0], [4.0, 0.0], [0.0, 0.0]]]))


def test_softmax_over_visible_entries_in_numbers():
    score = torch.tensor([[math.log(1.0), math.log(3.0), 50.0], [1.0, 2.0, 3.0]], requires_grad=True)
    weight = masked_softmax(score, torch.tensor([[True, True, False], [False, False, False]]))
    torch.testing.assert_close(weight, torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]))
    weight[:, 1].sum().backward()
    torch.testing.assert_close(score.grad, torch.tensor([[-0.1875, 0.1875, 0.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("heads", [1, 2])
def test_sums_over_pairs_and_products_of_matrices_are_the_same(heads, monkeypatch, kernels_on):
    query, key_value, visible = draw(5, 4, 8), draw(5, 3, 16, seed=1), draw(5, 4, 3, seed=2) < 0.5
    visible[2] = False
    with kernels_on(False):
        few = [*results(query, key_value, None, heads), *results(query, key_value, visible, heads)]
        monkeypatch.setattr(attention, "FEW_TOKENS", 0)
        many = [*results(query, key_value, None, heads), *results(query, key_value, visible, heads)]
    for one, other in zip(few, many, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("tokens_first", "dtype"), [(False, torch.float64), (True, torch.float32)])
@pytest.mark.parametrize(
    ("samples", "queries", "members", "units", "heads"),
    [(1, 1, 1, 16, 1), (70, 3, 3, 32, 1), (33, 5, 7, 64, 2), (3, 2, 30, 64, 4), (2, 0, 3, 32, 1), (0, 2, 3, 32, 1)],
)
def test_values_and_gradients_of_the_kernel(samples, queries, members, units, heads, tokens_first, dtype, kernels_on):
    query = draw(samples, queries, units, dtype=dtype, tokens_first=tokens_first)
    key_value = draw(samples, members, 2 * units, dtype=dtype, seed=1, tokens_first=tokens_first)
    flags = draw(samples, queries, members, seed=2) < 0.3
    tolerance = 1e-9 if dtype is torch.float64 else 1e-4
    for visible in (None, flags, flags[:1] if samples else None, flags[:, :1]):
        with kernels_on(False):
            expected = results(query, key_value, visible, heads)
        with kernels_on(True):
            found = results(query, key_value, visible, heads)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_the_number_of_threads_and_neighbors_do_not_change_a_bit(threads, kernels_on):
    query, key_value, found = draw(100, 3, 32), draw(100, 3, 64, seed=1), []
    with kernels_on(True):
        for count in (1, 2, 5):
            with threads(count):
                found.append(results(query, key_value, None, 1))
        alone = torch.cat(
            [attend(q[None], *kv[None].chunk(2, -1), None, 1) for q, kv in zip(query, key_value, strict=True)]
        )
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    assert torch.equal(alone, found[0][0])


def test_a_key_that_is_nan_spoils_its_own_sample_only(kernels_on):
    query, key = draw(20, 2, 32), draw(20, 3, 32, seed=1)
    key[7, 2, 3] = float("nan")
    with kernels_on(True):
        finite = attend(query, key, draw(20, 3, 32, seed=2), None, 1).isfinite().flatten(1).all(1)
    assert finite.logical_not().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize(("units", "heads"), [(24, 1), (32, 4), (33, 2)])
def test_heads_that_fill_no_vector_have_no_kernel(units, heads):
    assert kernel(draw(2, 3, units), draw(2, 3, units), draw(2, 3, units), None, heads) is None


def test_arguments_of_other_shapes_are_refused():
    x = draw(2, 3, 32)
    with pytest.raises(ValueError, match=r"attend: key is torch.float32 \[2, 3, 16\]"):
        kernel(x, x[..., :16], x, None, 1)
    with pytest.raises(ValueError, match=r"attend: visible is torch.bool \[2, 3, 4\] .* \[2, 3, 3\]"):
        kernel(x, x, x, torch.ones(2, 3, 4, dtype=torch.bool), 1)
