"""Imitation: how far a policy is from what was done, and how much a step looks like a demonstrated one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from coterie.math.distributions import mask_logits
from coterie.types import Action, ActionSpec

_EDGE = 0.999
"""Numbers beyond it are taken for it where tanh is inverted: at 1 itself that has no value."""


def shortfall(q: Tensor, done: Tensor, mask: Tensor | None, choices: tuple[int, ...], margin: float) -> Tensor:
    """By how much Q of what was done falls short of exceeding every other by a margin: [..], 0 where it does not.

        L = sum_k max_a (Q_k(a) + margin 1[a != a_k]) - Q_k(a_k)

    q: [.., sum A]; done: [.., K] int64; mask: [.., sum A] bool or None, what is masked is no rival; choices: A of each
    of the K components. Source: the large margin of Hester et al. 2018, eq. 2.
    """
    total, at = q.new_zeros(q.shape[:-1]), 0
    for k, width in enumerate(choices):
        own, part = done[..., k : k + 1], q[..., at : at + width]
        rival = part + torch.full_like(part, margin).scatter_(-1, own, 0.0)
        best = mask_logits(rival, None if mask is None else mask[..., at : at + width]).amax(-1)
        total = total + best - part.gather(-1, own).squeeze(-1)
        at += width
    return total


def squashed_log_prob(mean: Tensor, log_std: Tensor, number: Tensor) -> Tensor:
    """Log-density [..] of numbers in [-1, 1] as tanh of a Gaussian's draw, summed over the last axis.

        u = atanh(a);  log p(a) = log N(u; mean, std) - log(1 - a^2)

    mean, log_std, number: [.., C]; numbers are clipped to [-0.999, 0.999]. Source: Haarnoja et al. 2018, appendix C.
    """
    number = number.clamp(-_EDGE, _EDGE)
    z = (torch.atanh(number) - mean) * (-log_std).exp()
    density = -0.5 * z.square() - log_std - 0.9189385332046727  # half the log of 2 pi
    return (density - (1 - number.square()).log()).sum(-1)


def deterministic_error(spec: ActionSpec, params: Tensor, mask: Tensor | None, action: Action) -> Tensor:
    """How far a deterministic actor is from what was done [..].

        L = sum_k -log softmax(logits_k)[a_k] + sum_c (tanh(x_c) - a_c)^2 / 2

    params: logits of every choice and one output a number [.., sum A + C]; mask: [.., sum A] bool or None.
    """
    error, at = params.new_zeros(params.shape[:-1]), 0
    for k, choices in enumerate(spec.choices):
        part = slice(at, at + choices)
        assert action.discrete is not None
        log_prob = mask_logits(params[..., part], None if mask is None else mask[..., part]).log_softmax(-1)
        error = error - log_prob.gather(-1, action.discrete[..., k : k + 1]).squeeze(-1)
        at += choices
    if spec.continuous:
        assert action.continuous is not None
        error = error + 0.5 * (torch.tanh(params[..., at:]) - action.continuous).square().sum(-1)
    return error


def agrees(likeliest: Action, done: Action, near: float = 0.1) -> Tensor:
    """Whether what a policy finds likeliest is what was done [..]: all choices the same, all numbers within `near`."""
    same: Tensor | None = None
    if likeliest.discrete is not None and done.discrete is not None:
        same = (likeliest.discrete == done.discrete).all(-1)
    if likeliest.continuous is not None and done.continuous is not None:
        close = ((likeliest.continuous.clamp(-1, 1) - done.continuous).abs() <= near).all(-1)
        same = close if same is None else same & close
    assert same is not None
    return same


def discriminator_loss(demonstrated: Tensor, played: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies of telling demonstrations (1) from play (0): -log D and -log(1 - D), from logits of any shape.

    Source: Ho and Ermon 2016, eq. 16, with D for the demonstrated.
    """
    return functional.softplus(-demonstrated), functional.softplus(played)


def positive_reward(logit: Tensor) -> Tensor:
    """-log(1 - D) >= 0 of a discriminator's logit: what looks demonstrated is worth more, and to go on never costs."""
    return functional.softplus(logit)


def negative_reward(logit: Tensor) -> Tensor:
    """log D <= 0: as in `positive_reward`, but every step costs, so that to end soon is worth something."""
    return -functional.softplus(-logit)


def bounded_reward(logit: Tensor) -> Tensor:
    """2 D - 1 in [-1, 1]: 0 for what cannot be told from a demonstration or from play."""
    return 2 * torch.sigmoid(logit) - 1


def gradient_penalty(slope: Tensor) -> Tensor:
    """(|slope| - 1)^2 [..] of a discriminator's slopes in its input [.., D]. Source: Gulrajani et al. 2017, eq. 3."""
    return (slope.square().sum(-1).clamp(min=1e-12).sqrt() - 1).square()
