"""Differentiable actions of deterministic actors: tanh of the outputs, and straight-through Gumbel-softmax choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.functional.choices import mask_logits
from coterie.nets.team import Block


def straight_through(logits: Tensor, mask: Tensor | None, noise: Tensor, temperature: float) -> Tensor:
    """Straight-through Gumbel-softmax: a one-hot sample [.., A] with the gradient of the relaxed one.

        y = softmax((logits + g) / temperature);  one_hot(argmax y) + y - stop_gradient(y)

    Masked choices are never drawn and get no gradient.

    Args:
        logits: [.., A].
        mask: [.., A] bool; None: all choices are available.
        noise: Standard Gumbel [.., A].
        temperature: Above zero.

    Source: Jang et al. 2017.
    """
    score = (logits + noise) / temperature
    if mask is not None:
        score = mask_logits(score, mask)
    hard = torch.zeros_like(score).scatter_(-1, score.argmax(-1, keepdim=True), 1.0)
    if not logits.requires_grad or not torch.is_grad_enabled():
        return hard
    soft = score.softmax(-1)
    return hard + (soft - soft.detach())


def smoothing_noise(noise: Tensor, std: float, clip: float) -> Tensor:
    """Noise of target policy smoothing: standard normal `noise` times `std`, clipped to [-clip, clip].

    Source: Fujimoto et al. 2018, eq. 14.
    """
    return (noise * std).clamp(-clip, clip)


def draw_block_noise(
    blocks: Sequence[Block], lead: tuple[int, ...], generator: torch.Generator, device: torch.device
) -> dict[str, Tensor]:
    """Returns noise by block [*lead, n, sum A + C]: Gumbel for every choice, normal for every number."""
    by_block = {}
    for block in blocks:
        spec, parts = block.action_spec, []
        if spec.choices:  # log log of uniform numbers takes an eighth of the time of exponential ones
            shape = (*lead, block.n, spec.mask_size)
            uniform = torch.rand(shape, generator=generator, device=device)
            parts.append(uniform.clamp_(min=1e-20).log_().neg_().log_().neg_())
        if spec.continuous:
            shape = (*lead, block.n, spec.continuous)
            parts.append(torch.randn(shape, generator=generator, device=device))
        by_block[block.name] = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    return by_block


def relaxed_actions(
    blocks: Sequence[Block],
    outputs: dict[str, Tensor],
    action_mask: dict[str, Tensor],
    noise: dict[str, Tensor],
    *,
    temperature: float,
    smoothing: tuple[float, float] | None = None,
) -> dict[str, Tensor]:
    """Returns differentiable actions as vectors by role [.., n, P].

    Choices are one-hot samples with the gradient of the Gumbel-softmax.

    Args:
        blocks: Blocks of the team.
        outputs: The network's outputs by block.
        action_mask: By role [.., n, sum A].
        noise: From `draw_block_noise`.
        temperature: Temperature of the Gumbel-softmax.
        smoothing: Standard deviation and clip of the noise added to continuous actions; None: no noise.
    """
    vectors = {}
    for block in blocks:
        params, block_noise = outputs[block.name], noise[block.name]
        mask, start, parts = block.join_masks(action_mask), 0, []
        for choices in block.action_spec.choices:
            part = slice(start, start + choices)
            available = None if mask is None else mask[..., part]
            one_hot = straight_through(params[..., part], available, block_noise[..., part], temperature)
            parts.append(one_hot)
            start += choices
        if block.action_spec.continuous:
            numbers = torch.tanh(params[..., start:])
            if smoothing is not None:
                noise_std, clip = smoothing
                added = smoothing_noise(block_noise[..., start:], noise_std, clip)
                numbers = (numbers + added).clamp(-1, 1)
            parts.append(numbers)
        vector = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        vectors |= block.split_by_role(vector)
    return vectors
