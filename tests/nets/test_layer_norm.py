"""Layer normalization."""

import torch

from coterie.nets.layer_norm import LayerNorm


def test_layer_norm_output_has_mean_zero_and_variance_one():
    out = LayerNorm(50, None)(torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 7 + 3)
    torch.testing.assert_close(out.mean(-1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(-1, correction=0), torch.ones(3), atol=1e-3, rtol=0)
