"""Sampling of actions as functions of noise: from `coterie.math.distributions`, and from those of soft actor-critics.

In soft actor-critics, numbers are tanh-squashed Gaussians. The choices of all components are concatenated, `A = sum A`.
Unavailable choices have probability 0 and log-probability 0, so that they do not contribute. An agent without choices
has a single one that is always taken: `A = 1`, probability 1, log-probability 0. The same formulas thus hold for
choices, for numbers, and for both at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.math.choices import mask_logits
from coterie.math.distributions import component_log_probs, gaussian_log_prob

_MIN_LOG_STD, _MAX_LOG_STD = -5.0, 2.0
_CENTER, _HALF_RANGE = (_MAX_LOG_STD + _MIN_LOG_STD) / 2, (_MAX_LOG_STD - _MIN_LOG_STD) / 2
_SHIFT = math.atanh(-_CENTER / _HALF_RANGE)


def draw_noise(spec: ActionSpec, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Returns noise for `sample_action` [*shape, sum A + C]: Gumbel for choices, normal for numbers."""
    size = spec.mask_size
    parts = []
    if size:
        parts.append(torch.empty(*shape, size, device=device).exponential_(generator=generator).log_().neg_())
    if spec.continuous:
        parts.append(torch.randn(*shape, spec.continuous, generator=generator, device=device))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def sample_action(
    spec: ActionSpec, params: Tensor, *, log_std: Tensor | None, mask: Tensor | None, noise: Tensor | None
) -> tuple[Action, Tensor]:
    """Returns an action and its log-probability [..].

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C].
        log_std: [.., C] or [C]; None without numbers.
        mask: [.., sum A] bool; None: all choices are available.
        noise: From `draw_noise`; None: the most likely action.

    Source: the Gumbel-max trick (Maddison et al. 2014).
    """
    size = spec.mask_size
    log_prob: Tensor | None = None
    chosen, start = [], 0
    for log_p in component_log_probs(spec, params, mask):
        width = log_p.shape[-1]
        if noise is None:
            choice = log_p.argmax(-1, keepdim=True)
        else:
            part = noise if width == noise.shape[-1] else noise[..., start : start + width]
            choice = (log_p + part).argmax(-1, keepdim=True)
        component_log_prob = log_p.gather(-1, choice).squeeze(-1)
        log_prob = component_log_prob if log_prob is None else log_prob + component_log_prob
        chosen.append(choice)
        start += width
    discrete = None if not chosen else chosen[0] if len(chosen) == 1 else torch.cat(chosen, -1)
    continuous = None
    if spec.continuous:
        assert log_std is not None
        mean = params[..., size:]
        continuous = mean if noise is None else mean + noise[..., size:] * log_std.exp()
        density = gaussian_log_prob(continuous, mean, log_std)
        log_prob = density if log_prob is None else log_prob + density
    assert log_prob is not None
    return Action(discrete, continuous), log_prob


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
