"""Action distributions: independent categorical choices and Gaussian numbers.

`params` [.., P] holds the logits of every discrete component (`sum A`), then means (`C`). Gaussians have a `log_std`
that broadcasts to [.., C]. Log-probabilities and entropies of components are summed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.choices import mask_logits
from coterie.kernels import policy_gradient as fused


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
        noise: From `coterie.functional.distributions.draw_noise`; None: the most likely action.
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
