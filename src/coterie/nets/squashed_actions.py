"""Actions of soft actor-critics: categorical choices and tanh-squashed Gaussian numbers.

The choices of all components are concatenated, `A = sum A`. Unavailable choices have probability 0 and log-probability
0, so that they do not contribute. An agent without choices has a single one that is always taken: `A = 1`, probability
1, log-probability 0. The same formulas thus hold for choices, for numbers, and for both at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.tree import register_pytree
from coterie.core.types import Action
from coterie.functional.choices import mask_logits
from coterie.functional.policy_gradient import draw_noise
from coterie.nets.team import Block, join_blocks, join_choices

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


@register_pytree
@dataclass(frozen=True)
class PolicySample:
    """A policy's distribution of choices at some timesteps, and one action sampled from the policy.

    Attributes:
        prob: Of every choice [.., N, A].
        entropy: Entropy in nats [.., N], exact for choices, a one-sample estimate for numbers.
        max_entropy: Entropy of uniform choices among those available [.., N].
        action: By role; numbers have a gradient.
        noise: Noise that the action is sampled with, by block, see `draw_block_noise`.
    """

    prob: Tensor
    entropy: Tensor
    max_entropy: Tensor
    action: dict[str, Action]
    noise: dict[str, Tensor]


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
        blocks, outputs: Blocks of the team, and the network's outputs by block [.., n, P].
        action_mask: By role [.., n, sum A].
        noise: From `draw_block_noise`.
    """
    probs, log_probs, densities, uniform, actions = {}, {}, {}, {}, {}
    for block in blocks:
        spec, params, name = block.action_spec, outputs[block.name], block.name
        mask, lead = block.join_masks(action_mask), params.shape[:-1]
        if spec.choices:
            logits = params[..., : spec.mask_size]
            probs[name], log_probs[name] = choice_distribution(spec.choices, logits, mask)
            available = mask if mask is not None else torch.ones_like(logits, dtype=torch.bool)
            uniform[name] = max_entropy(spec.choices, available)
        else:
            probs[name], log_probs[name] = params.new_ones(*lead, 1), params.new_zeros(*lead, 1)
            uniform[name] = params.new_zeros(lead)
        numbers = None
        densities[name] = params.new_zeros(lead)
        if spec.continuous:
            mean, log_std = mean_and_log_std(block, params)
            numbers, densities[name] = sample_squashed(mean, log_std, noise[name][..., spec.mask_size :])
        choices = sample_choices(block, params, noise[name], mask)
        actions.update(block.split_by_role(Action(choices, numbers)))
    prob, log_prob = join_choices(probs, blocks, 0.0), join_choices(log_probs, blocks, 0.0)
    entropy = -(prob * log_prob).sum(-1) - join_blocks(densities, blocks, -1)
    return PolicySample(prob, entropy, join_blocks(uniform, blocks, -1), actions, noise)


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
