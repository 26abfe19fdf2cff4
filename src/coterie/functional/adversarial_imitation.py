"""Generative adversarial imitation learning: discriminator losses and the rewards of its logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def discriminator_loss(demonstration_logit: Tensor, policy_logit: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies -log D of demonstrations and -log(1 - D) of the policy's experience, from logits of any shape.

    Source: Ho and Ermon 2016, eq. 16, where D is the probability of a demonstration.
    """
    return functional.softplus(-demonstration_logit), functional.softplus(policy_logit)


def positive_reward(logit: Tensor) -> Tensor:
    """-log(1 - D) >= 0. It favors long episodes, since no step has a cost."""
    return functional.softplus(logit)


def negative_reward(logit: Tensor) -> Tensor:
    """log D <= 0. It favors short episodes, since every step has a cost."""
    return -functional.softplus(-logit)


def bounded_reward(logit: Tensor) -> Tensor:
    """2 D - 1 in [-1, 1], zero where the discriminator is undecided."""
    return 2 * torch.sigmoid(logit) - 1


def gradient_penalty(gradient: Tensor) -> Tensor:
    """(|g| - 1)^2 [..] of a discriminator's input gradient [.., D]. Source: Gulrajani et al. 2017, eq. 3."""
    return (gradient.square().sum(-1).clamp(min=1e-12).sqrt() - 1).square()
