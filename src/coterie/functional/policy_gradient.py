"""Policy gradients: generalized advantage estimation, clipped losses, errors of values, and value normalization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.functional.statistics import Reduction, masked_mean, masked_moments, own_part
from coterie.kernels import policy_gradient as fused

EMAMoments = dict[str, Tensor]
"""`mean` and `square` [size], and the `weight` [] that debiases them, float64."""


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, *, terminated: Tensor, boundary: Tensor,
    gamma: float | Tensor, gae_lambda: float,
) -> Tensor:  # fmt: skip
    """Generalized advantage estimation.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - boundary_t) A_{t+1}

    A + V is the lambda-return.

    Args:
        reward: [T, B, N] or with further axes, such as reward signals [T, B, N, K].
        value: V(s_t), the shape of reward.
        next_value: V of the true successor, the shape of reward.
        terminated: Bool, broadcast to the shape of reward; True where there is no successor.
        boundary: Bool, broadcast to the shape of reward; True at the last timestep of an episode.
        gamma: Discount, or discounts [K].
        gae_lambda: Lambda.

    Returns:
        Advantages of the shape and dtype of value.

    Source: Schulman et al. 2016, eq. 16.
    """
    delta = reward + gamma * next_value.masked_fill(terminated, 0) - value
    decay = (gamma * gae_lambda * (~boundary).to(value.dtype)).expand_as(delta)
    later = torch.zeros_like(delta[0])
    advantage = []
    for d, c in zip(reversed(delta.unbind(0)), reversed(decay.unbind(0)), strict=True):
        later = torch.addcmul(d, c, later)
        advantage.append(later)
    return torch.stack(advantage[::-1])


def combined(advantage: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the sum [..] of the signals' advantages [.., K], weighted by [K]; of a single one without weights."""
    return advantage.squeeze(-1) if weights is None else (advantage * weights).sum(-1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_eps: float | Tensor) -> Tensor:
    """PPO's clipped policy loss per sample.

        L = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)

    Args:
        ratio: pi / pi_old, any shape.
        advantage: The same shape.
        clip_eps: Clip range eps, a number or a tensor [].

    Source: Schulman et al. 2017, eq. 7.
    """
    clipped = ratio.clamp(1 - clip_eps, 1 + clip_eps)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return -torch.minimum(ratio * advantage, clipped * advantage)


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor | None, clip_eps: float | Tensor, *,
    kernels: bool = False, reduction: Reduction | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Computes the mean clipped surrogate loss of a policy over valid entries.

        rho = pi / pi_old;  KL(pi_old | pi) ~ mean (rho - 1 - log rho)

    Args:
        log_prob: Log-probabilities under the policy [..].
        old_log_prob: Log-probabilities under the policy that collected the data [..].
        advantage: [..].
        valid: [..] bool; None: everywhere.
        clip_eps: Clip range of the ratio, a number or a tensor [].
        kernels: Compute all by a fused kernel where there is one.
        reduction: Processes whose entries the means are over; None for this one's.

    Returns:
        The loss, the estimated KL divergence, and the fraction of ratios outside the clip range, [] each.
    """
    inputs = (log_prob, old_log_prob, advantage, valid)
    if kernels and not isinstance(clip_eps, Tensor):
        found = fused.clipped_policy_loss(*inputs, clip_eps)
        if found is not None:
            loss, kl, clip_fraction = (own_part(x, valid, reduction) for x in found)
            return loss, kl, clip_fraction
    log_ratio = log_prob - old_log_prob
    if valid is not None:  # other entries may hold anything, and must not reach exp
        log_ratio = torch.where(valid, log_ratio, 0.0)
    ratio = log_ratio.exp()
    loss = masked_mean(clipped_surrogate(ratio, advantage, clip_eps), valid, reduction)
    with torch.no_grad():
        kl = masked_mean(ratio - 1 - log_ratio, valid, reduction)
        clip_fraction = masked_mean(((ratio - 1).abs() > clip_eps).float(), valid, reduction)
    return loss, kl, clip_fraction


def value_error(value: Tensor, target: Tensor, huber_delta: float | None) -> Tensor:
    """Half the squared error per sample, linear for errors above `huber_delta` (None: squared everywhere)."""
    if huber_delta is None:
        return 0.5 * (value - target).square()
    return F.huber_loss(value, target, reduction="none", delta=huber_delta)


def clipped_value_error(
    value: Tensor, old_value: Tensor, target: Tensor, *, clip_eps: float | None, huber_delta: float | None
) -> Tensor:
    """The larger of the errors of the value and of the value clipped around the old one, per sample.

        L = max(l(V, G), l(V_old + clip(V - V_old, -eps, eps), G))

    Args:
        value: V, any shape.
        old_value: V_old, the same shape.
        target: G, the same shape.
        clip_eps: Clip range eps; None: no clipping.
        huber_delta: See `value_error`.

    Source: Yu et al. 2022, section 4 (value clipping, Huber loss).
    """
    error = value_error(value, target, huber_delta)
    if clip_eps is None:
        return error
    clipped = old_value + (value - old_value).clamp(-clip_eps, clip_eps)
    return torch.maximum(error, value_error(clipped, target, huber_delta))


def clipped_value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, valid: Tensor | None, *,
    clip_eps: float | None, huber_delta: float | None, kernels: bool = False,
    reduction: Reduction | None = None,
) -> Tensor:  # fmt: skip
    """Returns the mean of `clipped_value_error` of values [.., K] over valid entries [..] (None: all) and signals."""
    options = {"clip_eps": clip_eps, "huber_delta": huber_delta}
    if kernels:
        mean = fused.clipped_value_loss(value, old_value, target, valid, **options)
        if mean is not None:
            return own_part(mean, valid, reduction)
    return masked_mean(clipped_value_error(value, old_value, target, **options).mean(-1), valid, reduction)


def initial_ema_moments(size: int, device: torch.device | str = "cpu") -> EMAMoments:
    """Returns moving averages of no data."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return {"mean": zeros, "square": zeros.clone(), "weight": torch.zeros((), dtype=torch.float64, device=device)}


def update_ema_moments(moments: EMAMoments, mean: Tensor, square: Tensor, decay: float) -> EMAMoments:
    """Moves the averages toward a batch's mean and mean of squares, both [size].

        m <- beta m + (1 - beta) mean(x);  w <- beta w + (1 - beta)

    Source: Yu et al. 2022 (value normalization), after van Hasselt et al. 2016.
    """
    return {
        "mean": decay * moments["mean"] + (1 - decay) * mean,
        "square": decay * moments["square"] + (1 - decay) * square,
        "weight": decay * moments["weight"] + (1 - decay),
    }


def update_value_moments(
    moments: EMAMoments, target: Tensor, mask: Tensor, decay: float, reduction: Reduction | None = None
) -> EMAMoments:
    """Returns the moving moments of each reward signal's returns [.., K] after those where `mask` [..] is True."""
    of_signals = [masked_moments(x, mask, reduction) for x in target.unbind(-1)]
    mean, variance = (torch.stack(x) for x in zip(*of_signals, strict=True))
    return update_ema_moments(moments, mean, variance + mean.square(), decay)


def ema_mean_and_std(moments: EMAMoments, min_variance: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Returns the debiased mean and standard deviation [size], float32; (0, 1) without data."""
    weight = moments["weight"]
    has_data = weight > 0
    divisor = torch.where(has_data, weight, 1.0)
    mean = moments["mean"] / divisor
    variance = (moments["square"] / divisor - mean.square()).clamp(min=min_variance)
    return mean.float(), torch.where(has_data, variance, 1.0).sqrt().float()
