"""Layer normalization."""

import torch

from coterie.nets.layer_norm import LayerNorm


def test_layer_norm_output_has_mean_zero_and_variance_one():
    out = LayerNorm(50, None)(torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 7 + 3)
    torch.testing.assert_close(out.mean(-1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(-1, correction=0), torch.ones(3), atol=1e-3, rtol=0)


def test_layer_norm_has_a_scale_and_a_shift_per_feature_and_set():
    """The normalized numbers of 1 and 3 are -1 and 1."""
    x = torch.tensor([[1.0, 3.0], [3.0, 1.0], [11.0, 13.0]])
    single, sets = LayerNorm(2, None), LayerNorm(2, 2)
    assert (sets.weight.shape, sets.bias.shape) == ((2, 1, 2), (2, 1, 2))
    with torch.no_grad():
        single.weight.copy_(torch.tensor([2.0, 3.0]))
        single.bias.copy_(torch.tensor([10.0, 20.0]))
        sets.weight[1] = single.weight
        sets.bias[1] = single.bias
    expected = torch.tensor([[8.0, 23.0], [12.0, 17.0], [8.0, 23.0]])
    torch.testing.assert_close(single(x), expected, atol=1e-4, rtol=0)
    plain = torch.tensor([[-1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
    torch.testing.assert_close(sets(torch.stack([x, x])), torch.stack([plain, expected]), atol=1e-4, rtol=0)


def test_only_the_last_axis_is_normalized():
    x = torch.tensor([[[1.0, 3.0], [30.0, 10.0]], [[5.0, 7.0], [9.0, 8.0]]])
    expected = torch.tensor([[[-1.0, 1.0], [1.0, -1.0]], [[-1.0, 1.0], [1.0, -1.0]]])
    torch.testing.assert_close(LayerNorm(2, None)(x), expected, atol=1e-4, rtol=0)
