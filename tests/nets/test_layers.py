"""Feed-forward layers with and without parameter sets, layer normalization, the fast tanh, and initial weights."""

from __future__ import annotations

import pytest
import torch

from coterie.kernels import switch
from coterie.nets import layers
from coterie.nets.config import NetworkConfig
from coterie.nets.layers import (
    ACTIVATIONS,
    MLP,
    LayerNorm,
    Linear,
    VectorEncoder,
    orthogonal,
    tanh,
    xavier_normal,
)


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def test_fast_tanh_matches_torch_with_its_gradient():
    x = torch.linspace(-12, 12, 4001)
    torch.testing.assert_close(tanh(x.clone()), torch.tanh(x), atol=5e-7, rtol=0)
    exact = torch.randn(3, 4, dtype=torch.double, generator=draw(), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tanh(x * 1.0), exact)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_parameter_sets_are_separate_networks(activation, layer_norm):
    config = NetworkConfig((8, 6), activation, layer_norm)
    stacked = MLP(5, config, draw(), 3)
    x = torch.randn(3, 7, 5, generator=draw(1))
    out = stacked(x)
    assert out.shape == (3, 7, 6)
    for k in range(3):
        single = MLP(5, config, draw())
        own = single.state_dict()
        single.load_state_dict(
            {name: value[k].reshape(own[name].shape) for name, value in stacked.state_dict().items()}
        )
        torch.testing.assert_close(single(x[k]), out[k])


@pytest.mark.parametrize(
    ("batch", "outputs", "sets"), [(1023, 5, None), (1024, 1, 3), (1024, 8, None), (3000, 5, 3), (3000, 9, None)]
)
def test_padded_products_match_plain_ones_with_gradients(batch, outputs, sets):
    layer = Linear(7, outputs, gain=1.0, generator=draw(), sets=sets).double()
    x = torch.randn(batch, 7, dtype=torch.double, generator=draw(1)).expand(*(sets or 1,) * (sets is not None), -1, -1)
    x = x.clone().requires_grad_()
    down = torch.randn(*x.shape[:-1], outputs, dtype=torch.double, generator=draw(2))
    given = (x, layer.weight, layer.bias)
    plain = x @ layer.weight + layer.bias
    found = layer(x)
    torch.testing.assert_close(found, plain)
    assert found.is_contiguous()
    for actual, expected in zip(
        torch.autograd.grad(found, given, down), torch.autograd.grad(plain, given, down), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_padded_products_work_under_vmap():
    layers = [Linear(7, 5, gain=1.0, generator=draw(seed)) for seed in range(2)]
    x = torch.randn(2, 2000, 7, generator=draw())
    params = {
        name: torch.stack([layer.get_parameter(name).detach() for layer in layers]) for name in ("weight", "bias")
    }
    found = torch.vmap(lambda p, x: torch.func.functional_call(layers[0], p, (x,)))(params, x)
    torch.testing.assert_close(found, torch.stack([layer(one) for layer, one in zip(layers, x, strict=True)]).detach())


@pytest.mark.parametrize("layer_norm", [False, True, "hidden"])
@pytest.mark.parametrize("init", ["orthogonal", "xavier"])
def test_hidden_layers_are_products_with_an_activation_each(layer_norm, init):
    """5, 8, 6 and 7 units; with layer normalization, the input and each layer's output are normalized, or each layer's
    product before its activation.
    """
    mlp = MLP(5, NetworkConfig((8, 6, 7), "relu", layer_norm, init=init), draw())
    assert mlp.features == 7
    assert [tuple(layer.weight.shape) for layer in mlp.layers] == [(5, 8), (8, 6), (6, 7)]
    assert len(mlp.norms or ()) == {False: 0, True: 4, "hidden": 3}[layer_norm]
    x = torch.randn(4, 5, generator=draw(1))
    expected = torch.nn.functional.layer_norm(x, (5,)) if layer_norm is True else x
    for layer in mlp.layers:
        assert layer.bias.equal(torch.zeros_like(layer.bias))
        expected = expected @ layer.weight
        if layer_norm == "hidden":
            expected = torch.nn.functional.layer_norm(expected, expected.shape[-1:])
        expected = expected.clamp(min=0)
        if layer_norm is True:
            expected = torch.nn.functional.layer_norm(expected, expected.shape[-1:])
        singular = torch.linalg.svdvals(layer.weight)
        is_orthogonal = torch.allclose(singular, torch.full_like(singular, 2**0.5))
        assert is_orthogonal == (init == "orthogonal"), "the gain of relu"
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize(
    ("on", "supported", "replaced"), [(False, True, False), (True, False, False), (True, True, True)]
)
def test_a_kernel_replaces_layers_where_kernels_are_on_and_have_one(on, supported, replaced, monkeypatch):
    """Of a linear layer, of hidden layers, and of hidden layers with a head."""
    x, fused = torch.randn(4, 5, generator=draw()), torch.full((4, 6), 7.0)
    mlp = MLP(5, NetworkConfig((8, 6), "relu"), draw())
    linear, head = Linear(5, 6, gain=1.0, generator=draw()), Linear(6, 3, gain=1.0, generator=draw())
    monkeypatch.setattr(layers, "mlp", lambda *args, **options: fused if supported else None)
    monkeypatch.setattr(switch, "on", False)
    plain = [linear(x), mlp(x), mlp(x, head)]
    assert [y.shape for y in plain] == [(4, 6), (4, 6), (4, 3)]
    monkeypatch.setattr(switch, "on", on)
    for found, expected in zip((linear(x), mlp(x), mlp(x, head)), plain, strict=True):
        assert found.equal(fused if replaced else expected)


def test_a_linear_layer_has_no_activation_with_kernels_either(monkeypatch):
    linear, x = Linear(5, 6, gain=3.0, generator=draw()), torch.randn(4, 5, generator=draw())
    monkeypatch.setattr(switch, "on", False)
    expected = linear(x)
    monkeypatch.setattr(switch, "on", True)
    torch.testing.assert_close(linear(x), expected)
    assert expected.abs().max() > 1, "the control: more than tanh returns"


def test_vector_observations_become_floats():
    encoder, x = VectorEncoder(3), torch.randn(2, 3)
    assert encoder.features == 3
    assert encoder(x) is x
    assert encoder(x.double()).dtype == torch.double
    assert encoder(torch.tensor([[1, 2, 3]])).equal(torch.tensor([[1.0, 2.0, 3.0]]))


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


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (5, 3)])
def test_orthogonal_matrices_have_the_gain_as_singular_values(rows, columns):
    single = orthogonal(rows, columns, sets=None, gain=1.5, generator=seeded())
    several = orthogonal(rows, columns, sets=2, gain=1.5, generator=seeded())
    assert (single.shape, several.shape) == ((rows, columns), (2, rows, columns))
    for matrix in (single, *several):
        torch.testing.assert_close(torch.linalg.svdvals(matrix), torch.full((3,), 1.5))
    assert single.equal(several[0])
    assert not several[0].equal(several[1])


def test_xavier_matrices_of_several_sets_differ():
    single, several = (xavier_normal(300, 100, sets=sets, generator=seeded()) for sets in (None, 2))
    assert (single.shape, several.shape) == ((300, 100), (2, 300, 100))
    assert single.equal(several[0])
    assert not several[0].equal(several[1])
    assert several.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    "draw_matrix", [lambda **given: orthogonal(4, 3, gain=1.0, **given), lambda **given: xavier_normal(4, 3, **given)]
)
def test_matrices_are_drawn_one_after_the_other(draw_matrix):
    """A matrix without sets takes as much from the generator as one of a set."""
    source = seeded()
    apart = torch.stack([draw_matrix(sets=None, generator=source) for _ in range(3)])
    assert draw_matrix(sets=3, generator=seeded()).equal(apart)
