"""Losses of clipped policy gradients as operators that compute the loss and its gradient in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.operators import Operator


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor | None, clip_eps: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns loss, KL divergence and clip fraction, see `coterie.functional.policy_gradient.clipped_policy_loss`.

    None if there is no kernel for the type, the device or the shapes.
    """
    if not native.is_supported(log_prob, old_log_prob, advantage):
        return None
    if not log_prob.shape == old_log_prob.shape == advantage.shape:
        return None
    if valid is not None and valid.shape != log_prob.shape:
        return None
    found, _ = _POLICY_LOSS(log_prob, old_log_prob, advantage, valid, clip_eps)
    loss, kl, clip_fraction = found.unbind(0)
    return loss, kl.detach(), clip_fraction.detach()


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    valid: Tensor | None,
    *,
    clip_eps: float | None,
    huber_delta: float | None,
) -> Tensor | None:
    """Returns the mean error of values [.., K], see `coterie.functional.policy_gradient.clipped_value_loss`.

    None if there is no kernel for the type, the device or the shapes.
    """
    if not native.is_supported(value, old_value, target):
        return None
    if not value.shape == old_value.shape == target.shape or (valid is not None and valid.shape != value.shape[:-1]):
        return None
    options = (clip_eps or 0.0, huber_delta or 0.0)
    return _VALUE_LOSS(value, old_value, target, valid, *options)[0]


def _policy_loss(log_prob, old_log_prob, advantage, valid, clip_eps):
    shape, floats = log_prob.shape, native.float_type("clipped_policy_loss", log_prob)
    native.check(
        "clipped_policy_loss",
        ("log_prob", log_prob, floats, shape),
        ("old_log_prob", old_log_prob, floats, shape),
        ("advantage", advantage, floats, shape),
        ("valid", valid, torch.bool, shape),
    )
    inputs = [x.contiguous() for x in (log_prob, old_log_prob, advantage)]
    valid = None if valid is None else valid.contiguous()
    out, grad = log_prob.new_empty(3), log_prob.new_empty(log_prob.shape)
    sizes, options = native.integers(log_prob.numel()), native.reals(clip_eps)
    native.call("clipped_policy_loss", log_prob.dtype, sizes, options, *inputs, valid, out, grad)
    return out, grad


def _value_loss(value, old_value, target, valid, clip_eps, huber_delta):
    shape, floats = value.shape, native.float_type("clipped_value_loss", value)
    if not shape or not shape[-1]:
        raise ValueError(f"clipped_value_loss: value is {list(shape)}. Its last axis has at least one reward signal.")
    native.check(
        "clipped_value_loss",
        ("value", value, floats, shape),
        ("old_value", old_value, floats, shape),
        ("target", target, floats, shape),
        ("valid", valid, torch.bool, shape[:-1]),
    )
    inputs = [x.contiguous() for x in (value, old_value, target)]
    valid = None if valid is None else valid.contiguous()
    out, grad = value.new_empty(()), value.new_empty(value.shape)
    signals = value.shape[-1]
    sizes, options = native.integers(value.numel() // signals, signals), native.reals(clip_eps, huber_delta)
    native.call("clipped_value_loss", value.dtype, sizes, options, *inputs, valid, out, grad)
    return out, grad


class _PolicyLoss(torch.autograd.Function):
    """The operator with the gradient of the first of its three numbers by `log_prob`."""

    @staticmethod
    def forward(ctx, *inputs):  # type: ignore[override]
        out, grad = _POLICY_LOSS.without_gradient(*inputs)
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(grad)
        return out, grad

    @staticmethod
    def backward(ctx, grad_out, _):  # type: ignore[override]
        return ctx.saved_tensors[0] * grad_out[0], None, None, None, None


class _ValueLoss(torch.autograd.Function):
    """The operator with the gradient of the loss by `value`."""

    @staticmethod
    def forward(ctx, *inputs):  # type: ignore[override]
        out, grad = _VALUE_LOSS.without_gradient(*inputs)
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(grad)
        return out, grad

    @staticmethod
    def backward(ctx, grad_out, _):  # type: ignore[override]
        return ctx.saved_tensors[0] * grad_out, None, None, None, None, None


def _fake_policy_loss(log_prob, old_log_prob, advantage, valid, clip_eps):
    return log_prob.new_empty(3), log_prob.new_empty(log_prob.shape)


def _fake_value_loss(value, old_value, target, valid, clip_eps, huber_delta):
    return value.new_empty(()), value.new_empty(value.shape)


_POLICY_LOSS = Operator(
    "clipped_policy_loss",
    "(Tensor log_prob, Tensor old_log_prob, Tensor advantage, Tensor? valid, float clip_eps) -> (Tensor, Tensor)",
    _policy_loss,
    _fake_policy_loss,
)
_POLICY_LOSS.set_gradient(_PolicyLoss.apply)
_VALUE_LOSS = Operator(
    "clipped_value_loss",
    "(Tensor value, Tensor old_value, Tensor target, Tensor? valid, float clip_eps, float huber_delta) "
    "-> (Tensor, Tensor)",
    _value_loss,
    _fake_value_loss,
)
_VALUE_LOSS.set_gradient(_ValueLoss.apply)
