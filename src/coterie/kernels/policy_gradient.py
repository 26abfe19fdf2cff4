"""Operators of policy gradients: masked categorical choices, and clipped losses with their gradient in one pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.native import Operator


def categorical(
    logits: Tensor, mask: Tensor | None, action: Tensor, choices: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """Returns the log-probability of choices and the entropy in nats [..] each, summed over components.

    Args:
        logits: [.., sum A].
        mask: [.., sum A] bool; None: all choices are available.
        action: Index of the choice in each component [.., K] int64.
        choices: Number of choices of each component.

    Returns:
        None if there is no kernel for the type or the device.
    """
    if not native.is_supported(logits) or (mask is not None and mask.shape != logits.shape):
        return None
    if action.shape != (*logits.shape[:-1], len(choices)):
        return None
    return _CATEGORICAL(logits, mask, action, choices)


def sample_categorical(
    logits: Tensor, mask: Tensor | None, noise: Tensor | None, choices: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """Returns choices [.., K] int64 and their log-probability [..], see `categorical`; not differentiable.

    Args:
        logits: [.., sum A].
        mask: [.., sum A] bool; None: all choices are available.
        noise: Gumbel noise [.., sum A]; None: the most likely choices.
        choices: Number of choices of each component.
    """
    if not native.is_supported(logits) or torch.is_grad_enabled():
        return None
    if (mask is not None and mask.shape != logits.shape) or (noise is not None and noise.shape != logits.shape):
        return None
    return _CATEGORICAL_SAMPLE(logits, mask, noise, choices)


def _check_choices(
    operator: str, logits: Tensor, mask: Tensor | None, choices: Sequence[int], *others: native.Expected
) -> None:
    """Raises an error for arguments that a C function would read as something else."""
    if not choices or min(choices) < 1 or logits.shape[-1:] != (sum(choices),):
        raise ValueError(
            f"{operator}: choices={list(choices)} do not fit logits {list(logits.shape)}. "
            "Their sum is the size of the last axis, and each is at least 1."
        )
    floats = native.float_type(operator, logits)
    native.check(operator, ("logits", logits, floats, logits.shape), ("mask", mask, torch.bool, logits.shape), *others)


def _raise_if_set(operator: str, invalid: array[int], action: Tensor, choices: Sequence[int]) -> None:
    if invalid[0]:
        wrong = ((action < 0) | (action >= torch.tensor(choices))).nonzero()[0].tolist()
        raise IndexError(
            f"{operator}: action{wrong} is {action[tuple(wrong)].item()}, which is not one of the "
            f"{choices[wrong[-1]]} choices 0 to {choices[wrong[-1]] - 1}."
        )


def _sizes(logits: Tensor, choices: Sequence[int]):
    columns = logits.shape[-1]
    return native.integers(logits.numel() // columns if columns else 0, columns, len(choices), columns, *choices)


def _mask(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous()


def _categorical(logits, mask, action, choices):
    batch = logits.shape[:-1]
    _check_choices("categorical", logits, mask, choices, ("action", action, torch.int64, (*batch, len(choices))))
    logits, invalid = logits.contiguous(), native.integers(0)
    log_prob, entropy = logits.new_empty(batch), logits.new_empty(batch)
    inputs = (_sizes(logits, choices), logits, _mask(mask), action.contiguous())
    native.call("categorical", logits.dtype, *inputs, log_prob, entropy, invalid)
    _raise_if_set("categorical", invalid, action, choices)
    return log_prob, entropy


def _categorical_backward(log_prob_grad, entropy_grad, logits, mask, action, choices):
    batch, floats = logits.shape[:-1], logits.dtype
    _check_choices(
        *("categorical_backward", logits, mask, choices),
        ("action", action, torch.int64, (*batch, len(choices))),
        ("log_prob_grad", log_prob_grad, floats, batch),
        ("entropy_grad", entropy_grad, floats, batch),
    )
    logits, invalid = logits.contiguous(), native.integers(0)
    grad = torch.empty_like(logits)
    inputs = (_sizes(logits, choices), logits, _mask(mask), action.contiguous())
    gradients = (log_prob_grad.contiguous(), entropy_grad.contiguous(), grad)
    native.call("categorical_backward", floats, *inputs, *gradients, invalid)
    _raise_if_set("categorical_backward", invalid, action, choices)
    return grad


def _categorical_sample(logits, mask, noise, choices):
    _check_choices("categorical_sample", logits, mask, choices, ("noise", noise, logits.dtype, logits.shape))
    logits = logits.contiguous()
    noise = None if noise is None else noise.contiguous()
    action = logits.new_empty((*logits.shape[:-1], len(choices)), dtype=torch.int64)
    log_prob = logits.new_empty(logits.shape[:-1])
    native.call(
        "categorical_sample", logits.dtype, *(_sizes(logits, choices), logits, _mask(mask), noise, action, log_prob)
    )
    return action, log_prob


class _Categorical(torch.autograd.Function):
    """The operator with its gradient by the logits."""

    @staticmethod
    def forward(ctx, logits, mask, action, choices):  # type: ignore[override]
        out = _CATEGORICAL.without_gradient(logits, mask, action, choices)
        ctx.save_for_backward(logits, mask, action)
        ctx.choices = choices
        return out

    @staticmethod
    def backward(ctx, log_prob_grad, entropy_grad):  # type: ignore[override]
        logits, mask, action = ctx.saved_tensors
        grad = _CATEGORICAL_BACKWARD(log_prob_grad, entropy_grad, logits, mask, action, ctx.choices)
        return grad, None, None, None


def _fake_categorical(logits, mask, action, choices):
    return logits.new_empty(logits.shape[:-1]), logits.new_empty(logits.shape[:-1])


def _fake_categorical_backward(log_prob_grad, entropy_grad, logits, mask, action, choices):
    return logits.new_empty(logits.shape)


def _fake_categorical_sample(logits, mask, noise, choices):
    return (
        logits.new_empty((*logits.shape[:-1], len(choices)), dtype=torch.int64),
        logits.new_empty(logits.shape[:-1]),
    )


_CATEGORICAL_INPUTS = "Tensor logits, Tensor? mask, Tensor action, int[] choices"
_CATEGORICAL_BACKWARD = Operator(
    "categorical_backward",
    f"(Tensor log_prob_grad, Tensor entropy_grad, {_CATEGORICAL_INPUTS}) -> Tensor",
    _categorical_backward,
    _fake_categorical_backward,
)
_CATEGORICAL = Operator("categorical", f"({_CATEGORICAL_INPUTS}) -> (Tensor, Tensor)", _categorical, _fake_categorical)
_CATEGORICAL.set_gradient(_Categorical.apply)
_CATEGORICAL_SAMPLE = Operator(
    "categorical_sample",
    "(Tensor logits, Tensor? mask, Tensor? noise, int[] choices) -> (Tensor, Tensor)",
    _categorical_sample,
    _fake_categorical_sample,
)


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor | None, clip_eps: float | Tensor
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
    if not isinstance(clip_eps, Tensor):
        clip_eps = torch.full((), clip_eps, dtype=torch.float64)
    if not clip_eps.is_cpu or clip_eps.dtype is not torch.float64:
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
        ("clip_eps", clip_eps, torch.float64, ()),
    )
    inputs = [x.contiguous() for x in (log_prob, old_log_prob, advantage)]
    valid = None if valid is None else valid.contiguous()
    out, grad = log_prob.new_empty(3), log_prob.new_empty(log_prob.shape)
    sizes = native.integers(log_prob.numel())
    native.call("clipped_policy_loss", log_prob.dtype, sizes, clip_eps, *inputs, valid, out, grad)
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
    "(Tensor log_prob, Tensor old_log_prob, Tensor advantage, Tensor? valid, Tensor clip_eps) -> (Tensor, Tensor)",
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
