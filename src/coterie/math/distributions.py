"""Distributions of actions: what an agent does is a few categorical choices and a few Gaussian numbers at once.

`params` [.., P] holds a role's outputs in the order: logits of every discrete component (`sum A`), means (`C`).
Gaussians have a `log_std` that broadcasts to [.., C]. Components are independent: log-probabilities and entropies are
summed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.types import Action, ActionSpec


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with the lowest finite number where `mask` (bool, the same shape) is False; they get no gradient."""
    return logits if mask is None else torch.where(mask, logits, torch.finfo(logits.dtype).min)


def _components(spec: ActionSpec, params: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Log-probabilities of every discrete component: [.., A_k] each."""
    if not spec.choices:
        return []
    logits = params if params.shape[-1] == spec.mask_size else params[..., : spec.mask_size]
    logits = mask_logits(logits, mask)
    parts = (logits,) if len(spec.choices) == 1 else logits.split(spec.choices, dim=-1)
    return [part.log_softmax(-1) for part in parts]


def log_choices(spec: ActionSpec, params: Tensor, mask: Tensor | None) -> Tensor:
    """Log-probabilities of every choice [.., sum A], component by component; the lowest finite number where masked."""
    parts = _components(spec, params, mask)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def floored(spec: ActionSpec, params: Tensor, mask: Tensor | None, epsilon: float) -> Tensor:
    """`params` of the policy that is mixed with uniform draws from the available choices, in every component.

        pi'(a) = (1 - eps) pi(a) + eps / |available|;  0 where masked

    epsilon: in [0, 1]; other arguments as in `sample`. Returns the shape of params: log pi' in the place of logits.
    Source: Foerster et al. 2018, section 5.
    """
    if epsilon == 0 or not spec.choices:
        return params
    parts, at = [], 0
    for log_p in _components(spec, params, mask):
        width = log_p.shape[-1]
        if mask is None:
            mixed = ((1 - epsilon) * log_p.exp() + epsilon / width).log()
        else:
            free = mask[..., at : at + width]
            mixed = (1 - epsilon) * log_p.exp() + epsilon / free.sum(-1, keepdim=True)
            # log(0) would have an infinite gradient, which 0 x inf turns into NaN.
            mixed = mask_logits(torch.where(free, mixed, 1.0).log(), free)
        parts.append(mixed)
        at += width
    if spec.continuous:
        parts.append(params[..., at:])
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _gaussian_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(x; mean, exp(log_std)) summed over the last axis."""
    z = (x - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def draw_noise(spec: ActionSpec, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Noise for `sample` [*shape, sum A + C]: standard Gumbel for choices, standard normal for numbers."""
    size = spec.mask_size
    parts = []
    if size:
        parts.append(torch.empty(*shape, size, device=device).exponential_(generator=generator).log_().neg_())
    if spec.continuous:
        parts.append(torch.randn(*shape, spec.continuous, generator=generator, device=device))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def sample(
    spec: ActionSpec, params: Tensor, log_std: Tensor | None, mask: Tensor | None, noise: Tensor | None
) -> tuple[Action, Tensor]:
    """An action and its log-probability [..]; the most likely one if `noise` is None.

    params: [.., sum A + C]; log_std: [.., C] or [C], None without numbers; mask: [.., sum A] bool or None; noise: of
    `draw_noise`. Choices are drawn by the Gumbel-max trick (Maddison et al. 2014).
    """
    size = spec.mask_size
    log_prob: Tensor | None = None
    picks, at = [], 0
    for log_p in _components(spec, params, mask):
        width = log_p.shape[-1]
        if noise is None:
            pick = log_p.argmax(-1, keepdim=True)
        else:
            part = noise if width == noise.shape[-1] else noise[..., at : at + width]
            pick = (log_p + part).argmax(-1, keepdim=True)
        chosen = log_p.gather(-1, pick).squeeze(-1)
        log_prob = chosen if log_prob is None else log_prob + chosen
        picks.append(pick)
        at += width
    discrete = None if not picks else picks[0] if len(picks) == 1 else torch.cat(picks, -1)
    continuous = None
    if spec.continuous:
        assert log_std is not None
        mean = params[..., size:]
        continuous = mean if noise is None else mean + noise[..., size:] * log_std.exp()
        density = _gaussian_log_prob(continuous, mean, log_std)
        log_prob = density if log_prob is None else log_prob + density
    assert log_prob is not None
    return Action(discrete, continuous), log_prob


def evaluate(
    spec: ActionSpec, params: Tensor, log_std: Tensor | None, mask: Tensor | None, action: Action
) -> tuple[Tensor, Tensor]:
    """Log-probability [..] of `action` and the entropy [..] of the distribution. Arguments as in `sample`.

    Impossible choices (masked) count for nothing in the entropy.
    """
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    for k, log_p in enumerate(_components(spec, params, mask)):
        assert action.discrete is not None
        pick = action.discrete if len(spec.choices) == 1 else action.discrete[..., k : k + 1]
        chosen = log_p.gather(-1, pick).squeeze(-1)
        # p log p with p = 0 and log p = -3e38 is -0, and its gradient is finite: exp underflows first.
        spread = -(log_p.exp() * log_p).sum(-1)
        log_prob = chosen if log_prob is None else log_prob + chosen
        entropy = spread if entropy is None else entropy + spread
    if spec.continuous:
        assert log_std is not None
        assert action.continuous is not None
        density = _gaussian_log_prob(action.continuous, params[..., spec.mask_size :], log_std)
        spread = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1).expand(density.shape)
        log_prob = density if log_prob is None else log_prob + density
        entropy = spread if entropy is None else entropy + spread
    assert log_prob is not None
    assert entropy is not None
    return log_prob, entropy
