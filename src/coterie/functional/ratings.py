"""Elo ratings with standard errors, and probabilities of opponents in self-play."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ELO = 400 / math.log(10)
"""Elo points per unit of log odds: 400 points are odds of ten to one."""


def elo(score: Tensor, prior_std: float = 1000.0, anchor: int = 0, iterations: int = 50) -> tuple[Tensor, Tensor]:
    """Maximum a posteriori Elo ratings of P players, and their standard errors.

        P(i beats j) = 1 / (1 + exp((r_j - r_i) / 173.7))

    Newton's method maximizes the log-likelihood of all games with a normal prior around the anchor's rating, which
    keeps the ratings of players who won or lost every game finite.

    Args:
        score: [P, P], games that i won against j; a draw is half a game for each.
        prior_std: Standard deviation of the prior in Elo points.
        anchor: The player whose rating is 0.
        iterations: Maximum number of Newton steps.

    Returns:
        Ratings [P], and standard errors [P] of their difference to the anchor's, in Elo points, float64. Players
        without games have the prior's.

    Source: Bradley and Terry 1952; Elo 1978 for the scale.
    """
    score = score.double()
    games = score + score.T
    others = [i for i in range(len(score)) if i != anchor]
    rating = torch.zeros(len(score), dtype=torch.float64)
    weight = (ELO / prior_std) ** 2

    def curvature() -> tuple[Tensor, Tensor]:
        expected = torch.sigmoid(rating[:, None] - rating[None, :])
        variance = games * expected * (1 - expected)
        information = torch.diag(variance.sum(1) + weight) - variance
        return expected, information[others][:, others]

    for _ in range(iterations):
        expected, information = curvature()
        gradient = (score - games * expected).sum(1) - weight * rating
        step = torch.linalg.solve(information, gradient[others])
        largest = step.abs().max().item() if len(step) else 0.0
        rating[others] += step * min(1.0, 2.0 / max(largest, 1e-12))  # steps of many hundred points overshoot
        if largest < 1e-10:
            break
    error = torch.zeros_like(rating)
    if others:
        error[others] = torch.linalg.inv(curvature()[1]).diagonal().sqrt()
    return rating * ELO, error * ELO


def uniform_probs(count: int) -> Tensor:
    """Returns equal probabilities of `count` opponents."""
    return torch.full((count,), 1 / count)


def recency_probs(count: int) -> Tensor:
    """Returns probabilities of opponents that grow linearly from the oldest to the newest, 1 : 2 : .. : count."""
    rank = torch.arange(1, count + 1, dtype=torch.float32)
    return rank / rank.sum()


def pfsp_probs(win_rate: Tensor, exponent: float) -> Tensor:
    """Returns probabilities of opponents proportional to (1 - win_rate)^exponent; uniform if every game is won.

    Args:
        win_rate: [S] in [0, 1], of the learner against each opponent.
        exponent: Higher values prefer opponents that are hard to beat.

    Source: Vinyals et al. 2019, prioritized fictitious self-play, f_hard.
    """
    weight = (1 - win_rate).clamp(min=0).pow(exponent)
    total = weight.sum()
    return torch.where(total > 0, weight / total.clamp(min=1e-12), uniform_probs(len(weight)))
