"""Soft actor-critic: tanh-squashed Gaussians, categorical choices, and soft values.

The choices of all components are concatenated, `A = sum A`. Unavailable choices have probability 0 and log-probability
0, so that they do not contribute. An agent without choices has a single one that is always taken: `A = 1`, probability
1, log-probability 0. The same formulas thus hold for choices, for numbers, and for both at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from coterie.math.choices import mask_logits

_MIN_LOG_STD, _MAX_LOG_STD = -5.0, 2.0
_CENTER, _HALF_RANGE = (_MAX_LOG_STD + _MIN_LOG_STD) / 2, (_MAX_LOG_STD - _MIN_LOG_STD) / 2
_SHIFT = math.atanh(-_CENTER / _HALF_RANGE)


def bounded_log_std(raw: Tensor) -> Tensor:
    """Maps any number to a log standard deviation in (-5, 2), and 0 to 0.

        log std = -1.5 + 3.5 tanh(x + atanh(1.5 / 3.5))

    Unlike a clamp it has a gradient everywhere. Same shape.
    """
    return _CENTER + _HALF_RANGE * torch.tanh(raw + _SHIFT)


def sample_squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample of a tanh-squashed Gaussian in [-1, 1], and its log-density [..] summed over the last axis.

        u = mean + std noise;  a = tanh(u);  log p(a) = log N(u; mean, std) - sum 2 (log 2 - u - softplus(-2 u))

    The last term is log(1 - tanh(u)^2) without cancellation.

    Args:
        mean: [.., C].
        log_std: [.., C].
        noise: Standard normal [.., C].

    Source: Haarnoja et al. 2018, appendix C.
    """
    u = mean + noise * log_std.exp()
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_derivative = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    return torch.tanh(u), (density - log_derivative).sum(-1)


def choice_distribution(choices: tuple[int, ...], logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities and log-probabilities of every choice, [.., sum A] each; both are 0 where masked.

    Args:
        choices: Number of choices of each component.
        logits: [.., sum A].
        mask: [.., sum A] bool; None: all choices are available.
    """
    masked = logits if mask is None else mask_logits(logits, mask)
    parts = (masked,) if len(choices) == 1 else masked.split(choices, -1)
    log_probs = [part.log_softmax(-1) for part in parts]
    log_prob = log_probs[0] if len(log_probs) == 1 else torch.cat(log_probs, -1)
    prob = log_prob.exp()
    return prob, log_prob if mask is None else torch.where(mask, log_prob, 0.0)


def max_entropy(choices: tuple[int, ...], mask: Tensor) -> Tensor:
    """Entropy in nats [..] of uniform choices among those available [.., sum A], summed over components."""
    counts = [part.sum(-1) for part in mask.split(choices, -1)]
    return torch.stack(counts, -1).clamp(min=1).float().log().sum(-1)


def expected_q(prob: Tensor, q: Tensor) -> Tensor:
    """Expected Q under a policy: sum_k sum_a pi_k(a) Q_k(a); [.., A] -> [..]."""
    return (prob * q).sum(-1)


def entropy(prob: Tensor, log_prob: Tensor, log_density: Tensor) -> Tensor:
    """Entropy of a policy in nats [..]: exact for choices [.., A], a one-sample estimate for numbers.

    Args:
        prob: [.., A].
        log_prob: [.., A].
        log_density: [..], log-density of the sampled numbers.
    """
    return -(prob * log_prob).sum(-1) - log_density


def soft_value(q: Tensor, prob: Tensor, entropy: Tensor, temperature: Tensor) -> Tensor:
    """Soft state value V = E_pi[Q] + alpha H(pi): [..].

    Args:
        q: [.., A].
        prob: [.., A].
        entropy: H [..].
        temperature: alpha, broadcast to [..].

    Source: Haarnoja et al. 2018, eq. 3; Christodoulou 2019, eq. 10 for choices.
    """
    return expected_q(prob, q) + temperature * entropy
