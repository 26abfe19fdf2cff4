"""Behavior cloning: losses between a policy and demonstrated actions."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.choices import mask_logits

_MAX_ABS_ACTION = 0.999
"""Continuous actions are clipped to this magnitude before tanh is inverted, which is infinite at 1."""


def large_margin_loss(
    q: Tensor, demonstrated: Tensor, mask: Tensor | None, *, choices: tuple[int, ...], margin: float
) -> Tensor:
    """Large-margin classification loss of Q [..]; 0 where Q of the demonstrated action is the highest by the margin.

        L = sum_k max_a (Q_k(a) + margin 1[a != a_k]) - Q_k(a_k)

    Args:
        q: [.., sum A].
        demonstrated: [.., K] int64, demonstrated choices.
        mask: [.., sum A] bool, the maximum is over available choices; None: all are available.
        choices: Number of choices of each of the K components.
        margin: Required difference.

    Source: Hester et al. 2018, eq. 2.
    """
    total, start = q.new_zeros(q.shape[:-1]), 0
    for k, width in enumerate(choices):
        own, part = demonstrated[..., k : k + 1], q[..., start : start + width]
        raised = part + torch.full_like(part, margin).scatter_(-1, own, 0.0)
        highest = mask_logits(raised, None if mask is None else mask[..., start : start + width]).amax(-1)
        total = total + highest - part.gather(-1, own).squeeze(-1)
        start += width
    return total


def squashed_log_prob(mean: Tensor, log_std: Tensor, number: Tensor) -> Tensor:
    """Log-density [..] of numbers in [-1, 1] under a tanh-squashed Gaussian, summed over the last axis.

        u = atanh(a);  log p(a) = log N(u; mean, std) - log(1 - a^2)

    Args:
        mean: [.., C].
        log_std: [.., C].
        number: a [.., C], clipped to [-0.999, 0.999].

    Source: Haarnoja et al. 2018, appendix C.
    """
    number = number.clamp(-_MAX_ABS_ACTION, _MAX_ABS_ACTION)
    z = (torch.atanh(number) - mean) * (-log_std).exp()
    density = -0.5 * z.square() - log_std - 0.9189385332046727  # log(2 pi) / 2
    return (density - (1 - number.square()).log()).sum(-1)


def deterministic_loss(spec: ActionSpec, params: Tensor, mask: Tensor | None, action: Action) -> Tensor:
    """Cross-entropy of choices and half the squared error of numbers of a deterministic actor [..].

        L = sum_k -log softmax(logits_k)[a_k] + sum_c (tanh(x_c) - a_c)^2 / 2

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C], logits of the choices and one output per number.
        mask: [.., sum A] bool; None: all choices are available.
        action: Demonstrated action.
    """
    loss, start = params.new_zeros(params.shape[:-1]), 0
    for k, choices in enumerate(spec.choices):
        part = slice(start, start + choices)
        assert action.discrete is not None
        log_prob = mask_logits(params[..., part], None if mask is None else mask[..., part]).log_softmax(-1)
        loss = loss - log_prob.gather(-1, action.discrete[..., k : k + 1]).squeeze(-1)
        start += choices
    if spec.continuous:
        assert action.continuous is not None
        loss = loss + 0.5 * (torch.tanh(params[..., start:]) - action.continuous).square().sum(-1)
    return loss


def actions_match(action: Action, demonstrated: Action, tolerance: float = 0.1) -> Tensor:
    """True [..] where all choices are equal and all numbers differ by at most `tolerance`."""
    match: Tensor | None = None
    if action.discrete is not None and demonstrated.discrete is not None:
        match = (action.discrete == demonstrated.discrete).all(-1)
    if action.continuous is not None and demonstrated.continuous is not None:
        close = ((action.continuous.clamp(-1, 1) - demonstrated.continuous).abs() <= tolerance).all(-1)
        match = close if match is None else match & close
    assert match is not None
    return match
