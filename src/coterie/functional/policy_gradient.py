"""Policy gradients: distributions of actions, generalized advantage estimation, clipped losses, value normalization.

Actions are independent categorical choices and Gaussian numbers. `params` [.., P] holds the logits of every discrete
component (`sum A`), then means (`C`). Gaussians have a `log_std` that broadcasts to [.., C]. Log-probabilities and
entropies of components are summed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.choices import mask_logits
from coterie.functional.statistics import Reduction, masked_mean, masked_moments, own_part
from coterie.kernels import policy_gradient as fused

EMAMoments = dict[str, Tensor]
"""`mean` and `square` [size], and the `weight` [] that debiases them, float64."""


def draw_noise(spec: ActionSpec, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Returns noise [*shape, sum A + C]: Gumbel for choices, normal for numbers."""
    size = spec.mask_size
    parts = []
    if size:
        parts.append(torch.empty(*shape, size, device=device).exponential_(generator=generator).log_().neg_())
    if spec.continuous:
        parts.append(torch.randn(*shape, spec.continuous, generator=generator, device=device))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def component_log_probs(spec: ActionSpec, params: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Returns the log-probabilities of every discrete component, [.., A_k] each."""
    if not spec.choices:
        return []
    logits = params if params.shape[-1] == spec.mask_size else params[..., : spec.mask_size]
    if mask is not None:
        logits = mask_logits(logits, mask)
    parts = (logits,) if len(spec.choices) == 1 else logits.split(spec.choices, dim=-1)
    return [part.log_softmax(-1) for part in parts]


def choice_log_probs(spec: ActionSpec, params: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the log-probabilities of every choice [.., sum A]; the lowest finite number where masked."""
    parts = component_log_probs(spec, params, mask)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def gaussian_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Returns log N(x; mean, exp(log_std)) summed over the last axis."""
    z = (x - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def log_prob_and_entropy(
    spec: ActionSpec,
    params: Tensor,
    action: Action,
    *,
    log_std: Tensor | None,
    mask: Tensor | None,
    kernels: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of `action` and the entropy of the distribution in nats, [..] each.

        log pi(u) = sum_k log softmax(l_k)[u_k] + sum_c log N(u_c; mean_c, std_c)
        H = -sum_k sum_a pi_k(a) log pi_k(a) + sum_c (log std_c + log(2 pi e) / 2)

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C].
        action: Choices [.., K], numbers [.., C].
        log_std: [.., C] or [C]; None without numbers.
        mask: [.., sum A] bool; masked choices do not contribute to the entropy. None: all are available.
        kernels: Compute both by a fused kernel where there is one.
    """
    if kernels and action.discrete is not None and not spec.continuous:
        found = fused.categorical(params, mask, action.discrete, spec.choices)
        if found is not None:
            return found
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    for k, log_p in enumerate(component_log_probs(spec, params, mask)):
        assert action.discrete is not None
        choice = action.discrete if len(spec.choices) == 1 else action.discrete[..., k : k + 1]
        component_log_prob = log_p.gather(-1, choice).squeeze(-1)
        # p log p with p = 0 and log p = -3e38 is -0, and its gradient is finite: exp underflows first.
        component_entropy = -(log_p.exp() * log_p).sum(-1)
        log_prob = component_log_prob if log_prob is None else log_prob + component_log_prob
        entropy = component_entropy if entropy is None else entropy + component_entropy
    if spec.continuous:
        assert log_std is not None
        assert action.continuous is not None
        density = gaussian_log_prob(action.continuous, params[..., spec.mask_size :], log_std)
        gaussian_entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1).expand(density.shape)
        log_prob = density if log_prob is None else log_prob + density
        entropy = gaussian_entropy if entropy is None else entropy + gaussian_entropy
    assert log_prob is not None
    assert entropy is not None
    return log_prob, entropy


def sample_action(
    spec: ActionSpec,
    params: Tensor,
    *,
    log_std: Tensor | None,
    mask: Tensor | None,
    noise: Tensor | None,
    kernels: bool = False,
) -> tuple[Action, Tensor]:
    """Returns an action and its log-probability [..].

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C].
        log_std: [.., C] or [C]; None without numbers.
        mask: [.., sum A] bool; None: all choices are available.
        noise: From `draw_noise`; None: the most likely action.
        kernels: Sample by a fused kernel where there is one.

    Source: the Gumbel-max trick (Maddison et al. 2014).
    """
    if kernels and not spec.continuous:
        found = fused.sample_categorical(params, mask, noise, spec.choices)
        if found is not None:
            return Action(found[0]), found[1]
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
    if kernels:
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


def update_value_moments(
    moments: EMAMoments, target: Tensor, mask: Tensor, decay: float, reduction: Reduction | None = None
) -> EMAMoments:
    """Moves the averages toward the returns [.., K] of each reward signal where `mask` [..] is True.

        m <- beta m + (1 - beta) mean(x);  w <- beta w + (1 - beta)

    Source: Yu et al. 2022 (value normalization), after van Hasselt et al. 2016.
    """
    of_signals = [masked_moments(x, mask, reduction) for x in target.unbind(-1)]
    mean, variance = (torch.stack(x) for x in zip(*of_signals, strict=True))
    square = variance + mean.square()
    return {
        "mean": decay * moments["mean"] + (1 - decay) * mean,
        "square": decay * moments["square"] + (1 - decay) * square,
        "weight": decay * moments["weight"] + (1 - decay),
    }


def ema_mean_and_std(moments: EMAMoments, min_variance: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Returns the debiased mean and standard deviation [size], float32; (0, 1) without data."""
    weight = moments["weight"]
    has_data = weight > 0
    divisor = torch.where(has_data, weight, 1.0)
    mean = moments["mean"] / divisor
    variance = (moments["square"] / divisor - mean.square()).clamp(min=min_variance)
    return mean.float(), torch.where(has_data, variance, 1.0).sqrt().float()
