"""Actions of soft actor-critics: categorical choices and tanh-squashed Gaussian numbers, and their temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.tree import register_pytree
from coterie.core.types import Action
from coterie.math.action_sampling import (
    bounded_log_std,
    choice_distribution,
    draw_noise,
    max_entropy,
    sample_squashed,
)
from coterie.nets.team import Block, join_blocks, join_choices


@register_pytree
@dataclass(frozen=True)
class PolicySample:
    """A policy's distribution of choices at some timesteps, and one action sampled from the policy.

    Attributes:
        prob, log_prob: Of every choice [.., N, A], as in `coterie.math.action_sampling`.
        log_density: Log-density of the sampled numbers [.., N].
        max_entropy: Entropy of uniform choices among those available [.., N].
        action: By role; numbers have a gradient.
    """

    prob: Tensor
    log_prob: Tensor
    log_density: Tensor
    max_entropy: Tensor
    action: dict[str, Action]


def draw_block_noise(
    blocks: Sequence[Block], lead: tuple[int, ...], generator: torch.Generator, device: torch.device
) -> dict[str, Tensor]:
    """Returns noise by block [*lead, n, sum A + C]: Gumbel for every choice, normal for every number."""
    return {block.name: draw_noise(block.action_spec, (*lead, block.n), generator, device) for block in blocks}


def sample_actions(
    blocks: Sequence[Block], outputs: dict[str, Tensor], action_mask: dict[str, Tensor], noise: dict[str, Tensor]
) -> PolicySample:
    """Returns the distribution of choices and a sampled action with gradients.

    Args:
        blocks: Blocks of the team.
        outputs: The network's outputs by block [.., n, P].
        action_mask: By role [.., n, sum A].
        noise: From `draw_block_noise`.
    """
    probs, log_probs, densities, entropies, actions = {}, {}, {}, {}, {}
    for block in blocks:
        spec, params, name = block.action_spec, outputs[block.name], block.name
        mask, lead = block.join_masks(action_mask), params.shape[:-1]
        if spec.choices:
            logits = params[..., : spec.mask_size]
            probs[name], log_probs[name] = choice_distribution(spec.choices, logits, mask)
            available = mask if mask is not None else torch.ones_like(logits, dtype=torch.bool)
            entropies[name] = max_entropy(spec.choices, available)
        else:
            probs[name], log_probs[name] = params.new_ones(*lead, 1), params.new_zeros(*lead, 1)
            entropies[name] = params.new_zeros(lead)
        numbers = None
        densities[name] = params.new_zeros(lead)
        if spec.continuous:
            mean, log_std = mean_and_log_std(block, params)
            numbers, densities[name] = sample_squashed(mean, log_std, noise[name][..., spec.mask_size :])
        choices = sample_choices(block, params, noise[name], mask)
        actions.update(block.split_by_role(Action(choices, numbers)))
    return PolicySample(
        prob=join_choices(probs, blocks, 0.0),
        log_prob=join_choices(log_probs, blocks, 0.0),
        log_density=join_blocks(densities, blocks, -1),
        max_entropy=join_blocks(entropies, blocks, -1),
        action=actions,
    )


def mean_and_log_std(block: Block, params: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log standard deviations [.., n, C] of a block's Gaussians before tanh."""
    spec = block.action_spec
    mean, raw = params[..., spec.mask_size :].split(spec.continuous, -1)
    return mean, bounded_log_std(raw)


def sample_choices(block: Block, logits: Tensor, noise: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Choices [.., n, K] by the Gumbel-max trick, the most likely ones without noise; None without choices."""
    spec = block.action_spec
    if not spec.choices:
        return None
    score = logits[..., : spec.mask_size].detach()
    score = score if noise is None else score + noise[..., : spec.mask_size]
    score = score if mask is None else score.masked_fill(~mask, -math.inf)
    return torch.cat([part.argmax(-1, keepdim=True) for part in score.split(spec.choices, -1)], -1)


class Temperature(nn.Module):
    """Entropy temperature: one positive number per block of agents, stored as its logarithm."""

    def __init__(self, blocks: tuple[Block, ...], initial: float, device: torch.device):
        super().__init__()
        self.log = nn.Parameter(torch.full((len(blocks),), math.log(initial), device=device))
        owner = torch.repeat_interleave(torch.arange(len(blocks)), torch.tensor([block.n for block in blocks]))
        self._owner = owner.to(device)

    def forward(self) -> Tensor:
        """Returns the logarithm of every agent's temperature [N]."""
        return self.log[self._owner]
