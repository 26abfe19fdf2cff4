"""The operators of clipped losses against PyTorch."""

import pytest
import torch

from coterie.functional import policy_gradient
from coterie.kernels import policy_gradient as kernels


def samples(shape, count, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw, dtype=dtype) for _ in range(count)]


def validity(shape, kind):
    if kind == "all":
        return None
    return torch.zeros(shape, dtype=torch.bool) if kind == "none" else torch.arange(shape.numel()).view(shape) % 3 > 0


@pytest.mark.parametrize(("shape", "valid"), [((0,), "all"), ((1,), "all"), ((50, 3), "some"), ((50, 3), "none")])
def test_the_policy_loss_is_that_of_pytorch(shape, valid):
    log_prob, old, advantage = samples(shape, 3)
    log_prob, valid = (old + 0.3 * log_prob).requires_grad_(), validity(log_prob.shape, valid)
    arguments = (old, advantage, valid)
    found = kernels.clipped_policy_loss(log_prob, *arguments, 0.2)
    expected = policy_gradient.clipped_policy_loss(log_prob, *arguments, clip_eps=0.2)
    torch.testing.assert_close(found, expected, check_dtype=False)  # the fraction is float32 in PyTorch
    if valid is None and log_prob.numel():
        assert torch.autograd.gradcheck(lambda x: kernels.clipped_policy_loss(x, *arguments, 0.2)[0], [log_prob])
    grads = [torch.autograd.grad(x[0], log_prob)[0] for x in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("shape", "valid", "clip_eps", "huber_delta"),
    [
        *(((0, 1), "all", 0.2, 0.5), ((1, 1), "all", None, None), ((50, 3, 2), "all", 0.2, 0.5)),
        *(((50, 3, 2), "some", 0.2, None), ((50, 3, 2), "some", None, 0.5), ((50, 3, 2), "none", 0.2, 0.5)),
    ],
)
def test_the_value_loss_is_that_of_pytorch(shape, valid, clip_eps, huber_delta):
    value, old, target = samples(shape, 3)
    value, valid = value.requires_grad_(), validity(value.shape[:-1], valid)
    options = {"clip_eps": clip_eps, "huber_delta": huber_delta}
    found = kernels.clipped_value_loss(value, old, target, valid, **options)
    expected = policy_gradient.clipped_value_loss(value, old, target, valid, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, value)[0] for x in (found, expected)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_invalid_entries_may_hold_anything(bad):
    log_prob, old, advantage = samples((6,), 3)
    valid = torch.tensor([True, False] * 3)
    for x in (log_prob, old, advantage):
        x[~valid] = bad
    log_prob.requires_grad_()
    loss, kl, share = kernels.clipped_policy_loss(log_prob, old, advantage, valid, 0.2)
    loss.backward()
    assert all(x.isfinite() for x in (loss, kl, share))
    assert not log_prob.grad[~valid].any()
    value = log_prob.detach().unsqueeze(-1).requires_grad_()
    loss = kernels.clipped_value_loss(value, value.detach(), value.detach() + 1, valid, clip_eps=0.2, huber_delta=None)
    loss.backward()
    assert loss.item() == 0.5
    assert not value.grad[~valid].any()


def test_valid_non_finite_entries_make_the_losses_nan():
    x, nan = torch.zeros(3, 1), torch.full((3, 1), float("nan"))
    assert kernels.clipped_policy_loss(nan[:, 0], x[:, 0], x[:, 0] + 1, None, 0.2)[0].isnan()
    assert kernels.clipped_value_loss(nan, x, x, None, clip_eps=0.2, huber_delta=10.0).isnan()
    far = kernels.clipped_policy_loss(x[:, 0] + 1000, x[:, 0], x[:, 0] - 1, None, 0.2)
    assert far[0].item() == float("inf")


def test_the_number_of_threads_does_not_change_a_bit(threads):
    log_prob, old, advantage = samples((100_000,), 3, dtype=torch.float32)
    found = []
    for count in (1, 2, 3):
        with threads(count):
            losses = kernels.clipped_policy_loss(log_prob, old, advantage, None, 0.2)
            value = kernels.clipped_value_loss(
                *(x.unsqueeze(-1) for x in (log_prob, old, advantage)), None, clip_eps=0.2, huber_delta=1.0
            )
            found.append((*losses, value))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
