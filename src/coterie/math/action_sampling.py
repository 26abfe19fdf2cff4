"""Sampling of actions from `coterie.math.distributions`, as a function of noise."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.kernels import distributions as kernels
from coterie.kernels import switch
from coterie.math.distributions import component_log_probs, gaussian_log_prob


def sample_action(
    spec: ActionSpec, params: Tensor, *, log_std: Tensor | None, mask: Tensor | None, noise: Tensor | None
) -> tuple[Action, Tensor]:
    """Returns an action and its log-probability [..].

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C].
        log_std: [.., C] or [C]; None without numbers.
        mask: [.., sum A] bool; None: all choices are available.
        noise: From `coterie.math.action_noise.draw_noise`; None: the most likely action.

    Source: the Gumbel-max trick (Maddison et al. 2014).
    """
    if switch.on and not spec.continuous:
        fused = kernels.sample_categorical(params, mask, noise, spec.choices)
        if fused is not None:
            return Action(fused[0]), fused[1]
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
