"""The step of Adam with clipped gradients against PyTorch."""

import pytest
import torch

from coterie.kernels.adam import adam_step


def initial_state(p):
    return {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}


def step_of(p, grad, state, max_grad_norm, weight_decay=0.0):
    return adam_step(p, grad, state, max_grad_norm, lr=0.01, weight_decay=weight_decay, eps=1e-5)


def with_gradients(sizes, seed, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    parameters = [torch.randn(size, generator=draw, dtype=dtype).requires_grad_() for size in sizes]
    gradients = [[torch.randn(size, generator=draw, dtype=dtype) for size in sizes] for _ in range(4)]
    return parameters, gradients


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 1e9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_pytorch(max_grad_norm, weight_decay):
    parameters, gradients = with_gradients((1, 1000, 40_000), 0)
    others = [p.detach().clone().requires_grad_() for p in parameters]
    parameters = [p.detach() for p in parameters]
    states = [initial_state(p) for p in parameters]
    eager = torch.optim.Adam(others, lr=0.01, eps=1e-5, weight_decay=weight_decay)
    for grads in gradients:
        for q, grad in zip(others, grads, strict=True):
            q.grad = grad.clone()
        found = [
            step_of(p, grad.clone(), state, max_grad_norm, weight_decay)
            for p, grad, state in zip(parameters, grads, states, strict=True)
        ]
        expected = [
            torch.nn.utils.clip_grad_norm_([q], max_grad_norm or float("inf"), error_if_nonfinite=True) for q in others
        ]
        eager.step()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(parameters, [q.detach() for q in others])
    for state, q in zip(states, others, strict=True):
        torch.testing.assert_close(state, dict(eager.state[q]))


def test_a_non_finite_gradient_has_a_non_finite_norm():
    (p,), _ = with_gradients((10,), 0)
    p = p.detach()
    assert step_of(p, torch.full_like(p, float("nan")), initial_state(p), 0.5).isnan()


def test_the_number_of_threads_does_not_change_a_bit(threads):
    found = []
    for count in (1, 2, 3):
        with threads(count):
            (p,), gradients = with_gradients((100_000,), 0, torch.float32)
            p = p.detach()
            found.append((step_of(p, gradients[0][0], initial_state(p), 0.5), p))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_parameters_without_a_kernel_are_left_alone():
    p = torch.zeros(3, dtype=torch.float16)
    assert step_of(p, torch.ones_like(p), initial_state(p), None) is None
    assert not p.any()
