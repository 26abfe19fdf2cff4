"""Masked categorical choices as operators: log-probabilities with entropies, and samples."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.operators import Operator


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
    return _SAMPLE(logits, mask, noise, choices)


def _check(
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


def _forward(logits, mask, action, choices):
    batch = logits.shape[:-1]
    _check("categorical", logits, mask, choices, ("action", action, torch.int64, (*batch, len(choices))))
    logits, invalid = logits.contiguous(), native.integers(0)
    log_prob, entropy = logits.new_empty(batch), logits.new_empty(batch)
    inputs = (_sizes(logits, choices), logits, _mask(mask), action.contiguous())
    native.call("categorical", logits.dtype, *inputs, log_prob, entropy, invalid)
    _raise_if_set("categorical", invalid, action, choices)
    return log_prob, entropy


def _backward(log_prob_grad, entropy_grad, logits, mask, action, choices):
    batch, floats = logits.shape[:-1], logits.dtype
    _check(
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


def _sample(logits, mask, noise, choices):
    _check("categorical_sample", logits, mask, choices, ("noise", noise, logits.dtype, logits.shape))
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
        grad = _BACKWARD(log_prob_grad, entropy_grad, logits, mask, action, ctx.choices)
        return grad, None, None, None


def _fake_forward(logits, mask, action, choices):
    return logits.new_empty(logits.shape[:-1]), logits.new_empty(logits.shape[:-1])


def _fake_backward(log_prob_grad, entropy_grad, logits, mask, action, choices):
    return logits.new_empty(logits.shape)


def _fake_sample(logits, mask, noise, choices):
    return (
        logits.new_empty((*logits.shape[:-1], len(choices)), dtype=torch.int64),
        logits.new_empty(logits.shape[:-1]),
    )


_INPUTS = "Tensor logits, Tensor? mask, Tensor action, int[] choices"
_BACKWARD = Operator(
    "categorical_backward",
    f"(Tensor log_prob_grad, Tensor entropy_grad, {_INPUTS}) -> Tensor",
    _backward,
    _fake_backward,
)
_CATEGORICAL = Operator("categorical", f"({_INPUTS}) -> (Tensor, Tensor)", _forward, _fake_forward)
_CATEGORICAL.set_gradient(_Categorical.apply)
_SAMPLE = Operator(
    "categorical_sample",
    "(Tensor logits, Tensor? mask, Tensor? noise, int[] choices) -> (Tensor, Tensor)",
    _sample,
    _fake_sample,
)
