"""Soft values: actions drawn from squashed Gaussians and from categorical choices, and what they are worth with their
entropy.

Choices of a role stand side by side, `A = sum A` of all its components; what cannot be chosen has probability 0 and a
log-probability of 0, so that it counts for nothing. Who has no choices has one, taken with certainty: `A = 1`,
probability 1, log-probability 0. So one formula holds for choices, for numbers, and for both at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from coterie.math.distributions import mask_logits

_LOWEST, _HIGHEST = -5.0, 2.0
_MIDDLE, _HALF = (_HIGHEST + _LOWEST) / 2, (_HIGHEST - _LOWEST) / 2
_SHIFT = math.atanh(-_MIDDLE / _HALF)


def bounded_log_std(raw: Tensor) -> Tensor:
    """Any number as a log of a standard deviation in (-5, 2), 0 for 0.

        log std = -1.5 + 3.5 tanh(x + atanh(1.5 / 3.5))

    Unlike a clamp it has a gradient everywhere. Same shape.
    """
    return _MIDDLE + _HALF * torch.tanh(raw + _SHIFT)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of a Gaussian's draw, in [-1, 1], and its log-density [..] summed over the last axis.

        u = mean + std noise;  a = tanh(u);  log p(a) = log N(u; mean, std) - sum 2 (log 2 - u - softplus(-2 u))

    mean, log_std: [.., C]; noise: standard normal [.., C]. Source: Haarnoja et al. 2018, appendix C; the last term is
    log(1 - tanh(u)^2) without cancellation.
    """
    u = mean + noise * log_std.exp()
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    bend = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    return torch.tanh(u), (density - bend).sum(-1)


def choice_spread(choices: tuple[int, ...], logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities and log-probabilities of every choice of every component: [.., sum A] each.

    choices: how many each component has; logits: [.., sum A]; mask: the same shape, bool, or None. What is masked has
    0 for both.
    """
    masked = mask_logits(logits, mask)
    parts = (masked,) if len(choices) == 1 else masked.split(choices, -1)
    logs = [part.log_softmax(-1) for part in parts]
    log_prob = logs[0] if len(logs) == 1 else torch.cat(logs, -1)
    prob = log_prob.exp()
    return prob, log_prob if mask is None else torch.where(mask, log_prob, 0.0)


def most_entropy(choices: tuple[int, ...], mask: Tensor) -> Tensor:
    """Entropy in nats of choosing uniformly among what is available, summed over components: [..] from [.., sum A]."""
    counts = [part.sum(-1) for part in mask.split(choices, -1)]
    return torch.stack(counts, -1).clamp(min=1).float().log().sum(-1)


def expected(prob: Tensor, q: Tensor) -> Tensor:
    """Q of a policy: sum_k sum_a pi_k(a) Q_k(a), components being worth what they add up to; [.., A] -> [..]."""
    return (prob * q).sum(-1)


def entropy(prob: Tensor, log_prob: Tensor, log_density: Tensor) -> Tensor:
    """Entropy of a policy in nats [..]: exact in its choices [.., A], of one draw in its numbers, whose log-density is
    [..].
    """
    return -(prob * log_prob).sum(-1) - log_density


def soft_value(q: Tensor, prob: Tensor, spread: Tensor, temperature: Tensor) -> Tensor:
    """V = E_pi[Q] + alpha H(pi): [..].

    q, prob: [.., A]; spread: the entropy [..]; temperature: alpha, broadcast to [..]. Source: Haarnoja et al. 2018,
    eq. 3; Christodoulou 2019, eq. 10 for choices.
    """
    return expected(prob, q) + temperature * spread
