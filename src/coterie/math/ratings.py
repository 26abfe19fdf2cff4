"""Strength from results: ratings on the Elo scale with their uncertainty, and whom to play next."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ELO = 400 / math.log(10)
"""Elo points of one unit of log odds: 400 points are odds of ten to one."""


def elo(score: Tensor, prior_std: float = 1000.0, anchor: int = 0, iterations: int = 50) -> tuple[Tensor, Tensor]:
    """Elo ratings of P players and their standard errors, as the results make them most likely.

        P(i beats j) = 1 / (1 + exp((r_j - r_i) / 173.7))

    by Newton's method on the log-likelihood of all games at once, with a normal prior of `prior_std` points round the
    anchor's rating that keeps players who won or lost every game finite.

    score: [P, P], games that i won of j, a draw being half of one for each; anchor: the player whose rating is 0.
    Returns [P] ratings and [P] standard errors of their difference to the anchor's, in Elo points, float64; who played
    nobody has the prior's. Sources: Bradley and Terry 1952; Elo 1978 for the scale.
    """
    score = score.double()
    games = score + score.T
    others = [i for i in range(len(score)) if i != anchor]
    rating = torch.zeros(len(score), dtype=torch.float64)
    weight = (ELO / prior_std) ** 2

    def curvature() -> tuple[Tensor, Tensor]:
        expected = torch.sigmoid(rating[:, None] - rating[None, :])
        spread = games * expected * (1 - expected)
        information = torch.diag(spread.sum(1) + weight) - spread
        return expected, information[others][:, others]

    for _ in range(iterations):
        expected, information = curvature()
        gradient = (score - games * expected).sum(1) - weight * rating
        step = torch.linalg.solve(information, gradient[others])
        largest = step.abs().max().item() if len(step) else 0.0
        rating[others] += step * min(1.0, 2.0 / max(largest, 1e-12))  # a step of many hundred points overshoots
        if largest < 1e-10:
            break
    error = torch.zeros_like(rating)
    if others:
        error[others] = torch.linalg.inv(curvature()[1]).diagonal().sqrt()
    return rating * ELO, error * ELO


def win_share(rating: Tensor) -> Tensor:
    """[P, P]: the share of games that i is expected to win of j, draws counted half, for Elo ratings [P]."""
    return torch.sigmoid((rating[:, None] - rating[None, :]) / ELO)


def uniform(count: int) -> Tensor:
    """Equal probabilities of `count` opponents."""
    return torch.full((count,), 1 / count)


def recency(count: int) -> Tensor:
    """Probabilities of `count` opponents from the oldest to the newest that grow linearly: 1 : 2 : .. : count."""
    rank = torch.arange(1, count + 1, dtype=torch.float32)
    return rank / rank.sum()


def prioritised(win_rate: Tensor, power: float) -> Tensor:
    """Probabilities of opponents in proportion to (1 - win_rate)^power: whoever is hard to beat comes more often.

    win_rate: [S] in [0, 1], of the learner against each. All equal where it wins every game. Source: Vinyals et al.
    2019, prioritised fictitious self-play, f_hard.
    """
    weight = (1 - win_rate).clamp(min=0).pow(power)
    total = weight.sum()
    return torch.where(total > 0, weight / total.clamp(min=1e-12), uniform(len(weight)))
