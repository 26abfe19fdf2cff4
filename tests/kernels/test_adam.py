"""The step of Adam with clipped gradients against PyTorch."""

import pytest
import torch

from coterie.kernels.adam import adam_step

LR = torch.full((), 0.01, dtype=torch.float64)


def initial_state(p):
    return {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}


def step_of(p, grad, state, max_grad_norm, weight_decay=0.0, **options):
    return adam_step(p, grad, state, max_grad_norm, lr=LR, weight_decay=weight_decay, eps=1e-5, **options)


def with_gradients(sizes, seed, dtype=torch.float64, steps=4):
    draw = torch.Generator().manual_seed(seed)
    parameters = [torch.randn(size, generator=draw, dtype=dtype).requires_grad_() for size in sizes]
    gradients = [[torch.randn(size, generator=draw, dtype=dtype) for size in sizes] for _ in range(steps)]
    return parameters, gradients


@pytest.mark.parametrize(
    ("rule", "max_grad_norm", "weight_decay"),
    [
        *(("adam", None, 0.0), ("adam", 0.5, 0.1), ("adam", 1e9, 0.0)),
        *(("radam", None, 0.1), ("radam", 0.5, 0.0), ("radam", 1e9, 0.1)),
    ],
)
def test_steps_are_those_of_pytorch(max_grad_norm, weight_decay, rule):
    """The first five steps of RAdam descend along the momentum alone."""
    parameters, gradients = with_gradients((1, 1000, 40_000), 0, steps=4 if rule == "adam" else 8)
    others = [p.detach().clone().requires_grad_() for p in parameters]
    parameters = [p.detach() for p in parameters]
    states = [initial_state(p) for p in parameters]
    kind = torch.optim.Adam if rule == "adam" else torch.optim.RAdam
    eager = kind(others, lr=0.01, eps=1e-5, weight_decay=weight_decay)
    for grads in gradients:
        for q, grad in zip(others, grads, strict=True):
            q.grad = grad.clone()
        found = [
            step_of(p, grad.clone(), state, max_grad_norm, weight_decay, rectify=rule == "radam")
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


@pytest.mark.parametrize(("step", "rate"), [(1, 1.0), (5, 1.0), (6, 0.02582), (1000, 0.64533)])
def test_a_step_of_radam_has_the_published_rectification(step, rate):
    """Liu et al. 2020: rho_5 = 4.996 and rho_6 = 5.994, with r_6 = 0.0258; r approaches 1.

    Up to rho = 5, a step is lr m / (1 - beta1^t), then lr r m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps').
    """
    p, average, square = (torch.tensor([x], dtype=torch.float64) for x in (0.0, 0.5, 0.04))
    state = {"step": torch.tensor(step - 1.0), "exp_avg": average.clone(), "exp_avg_sq": square.clone()}
    adam_step(p, average.clone(), state, None, lr=LR, weight_decay=0.0, eps=0.1, rectify=True)
    momentum, second = 0.5 / (1 - 0.9**step), 0.999 * 0.04 + 0.001 * 0.25
    scale = 1 if step < 6 else (1 - 0.999**step) ** 0.5 / (second**0.5 + 0.1)
    assert p.item() == pytest.approx(-0.01 * rate * momentum * scale, rel=2e-3)


def test_the_rate_and_the_number_of_steps_are_read_when_the_step_is_taken():
    p, rate = torch.zeros(1, dtype=torch.float64), torch.full((), 0.5, dtype=torch.float64)
    state, options = initial_state(p), {"weight_decay": 0.0, "eps": 0.0}
    adam_step(p, torch.ones_like(p), state, None, lr=rate, **options)
    assert p.item() == pytest.approx(-0.5)
    rate.fill_(0.25)
    adam_step(p, torch.ones_like(p), state, None, lr=rate, **options)
    assert p.item() == pytest.approx(-0.75)
    assert state["step"].item() == 2


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
