"""Layers with and without sets of parameters, and the activation that is written out."""

import pytest
import torch

from coterie.nets.bodies import Mlp
from coterie.nets.layers import ACTIVATIONS, LayerNorm, Linear, tanh


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def test_tanh_is_tanh_with_its_gradient():
    x = torch.linspace(-12, 12, 4001)
    torch.testing.assert_close(tanh(x.clone()), torch.tanh(x), atol=5e-7, rtol=0)
    exact = torch.randn(3, 4, dtype=torch.double, generator=draw(), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tanh(x * 1.0), exact)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sets_are_separate_networks_in_one_product(activation, layer_norm):
    together = Mlp(5, (8, 6), activation, layer_norm, 3, draw())
    x = torch.randn(3, 7, 5, generator=draw(1))
    out = together(x)
    assert out.shape == (3, 7, 6)
    for k in range(3):
        alone = Mlp(5, (8, 6), activation, layer_norm, None, draw())
        own = alone.state_dict()
        alone.load_state_dict(
            {name: value[k].reshape(own[name].shape) for name, value in together.state_dict().items()}
        )
        torch.testing.assert_close(alone(x[k]), out[k])


def test_weights_start_orthogonal_with_the_gain_that_is_asked_for():
    weight = Linear(16, 8, 2, 0.5, draw()).weight
    for single in weight:
        torch.testing.assert_close(single.T @ single, 0.25 * torch.eye(8), atol=1e-5, rtol=0)
    assert not torch.equal(weight[0], weight[1])


def test_layer_norm_gives_mean_zero_and_variance_one():
    out = LayerNorm(50, None)(torch.randn(3, 50, generator=draw()) * 7 + 3)
    torch.testing.assert_close(out.mean(-1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(-1, correction=0), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("sets", [None, 3])
def test_xavier_weights_are_normal_with_variance_two_over_inputs_and_outputs(sets):
    def weight(init):
        return Linear(300, 100, sets, 0.01, torch.Generator().manual_seed(0), init).weight

    drawn = weight("xavier")
    assert drawn.shape == weight("orthogonal").shape
    torch.testing.assert_close(drawn.std(), torch.tensor((2 / 400) ** 0.5), rtol=0.01, atol=0)
    assert weight("orthogonal").std() < 0.001
    if sets:
        assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("rows", [1023, 1024, 3000])
@pytest.mark.parametrize("outputs", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("sets", [None, 3])
def test_a_product_with_few_columns_is_the_product_and_has_its_gradients(rows, outputs, sets):
    layer = Linear(7, outputs, sets, 1.0, draw()).double()
    x = torch.randn(rows, 7, dtype=torch.double, generator=draw(1)).expand(*(sets or 1,) * (sets is not None), -1, -1)
    x = x.clone().requires_grad_()
    down = torch.randn(*x.shape[:-1], outputs, dtype=torch.double, generator=draw(2))
    given = (x, layer.weight, layer.bias)
    plain = x @ layer.weight + layer.bias
    found = layer(x)
    torch.testing.assert_close(found, plain)
    assert found.is_contiguous()
    for mine, exact in zip(
        torch.autograd.grad(found, given, down), torch.autograd.grad(plain, given, down), strict=True
    ):
        torch.testing.assert_close(mine, exact)


def test_a_product_with_few_columns_is_made_for_several_networks_at_once():
    layers = [Linear(7, 5, None, 1.0, draw(seed)) for seed in range(2)]
    x = torch.randn(2, 2000, 7, generator=draw())
    params = {
        name: torch.stack([layer.get_parameter(name).detach() for layer in layers]) for name in ("weight", "bias")
    }
    found = torch.vmap(lambda p, x: torch.func.functional_call(layers[0], p, (x,)))(params, x)
    torch.testing.assert_close(found, torch.stack([layer(one) for layer, one in zip(layers, x, strict=True)]).detach())
