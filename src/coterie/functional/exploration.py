"""Exploration: noise on continuous actions, sampled choices, and epsilon-greedy. Noise is an argument."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.functional.choices import mask_logits


def ornstein_uhlenbeck(state: Tensor, noise: Tensor, theta: float) -> Tensor:
    """Next state of an Ornstein-Uhlenbeck process with a time step of one.

        x_{t+1} = (1 - theta) x_t + n_t

    The stationary standard deviation is 1 / sqrt(theta (2 - theta)).

    Args:
        state: x_t, any shape.
        noise: n_t, standard normal, the same shape.
        theta: Mean reversion in (0, 1]; 1 is white noise.

    Source: Uhlenbeck and Ornstein 1930, as in Lillicrap et al. 2016.
    """
    return state * (1 - theta) + noise


def add_noise(number: Tensor, noise: Tensor) -> Tensor:
    """Adds noise to numbers in [-1, 1] and clips the sum to [-1, 1]."""
    return (number + noise).clamp(-1, 1)


def normal_to_uniform(noise: Tensor) -> Tensor:
    """Maps standard normal numbers to uniform ones in [-1, 1]: 2 Phi(n) - 1 = erf(n / sqrt 2)."""
    return torch.erf(noise * 2**-0.5)


def sample_choice(logits: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
    """Index [..] of a choice drawn from softmax(logits); of the most likely one without noise.

    Args:
        logits: [.., A].
        mask: [.., A] bool; None: all choices are available.
        noise: Standard Gumbel [.., A], or None.

    Source: the Gumbel-max trick (Maddison et al. 2014).
    """
    score = logits if noise is None else logits + noise
    return mask_logits(score, mask).argmax(-1)


def choice_probs(logits: Tensor, choices: tuple[int, ...], mask: Tensor | None) -> Tensor:
    """Softmax probabilities [.., sum A] of every component; 0 where masked.

    Args:
        logits: [.., sum A].
        choices: Number of choices of each component.
        mask: [.., sum A] bool; None: all choices are available.
    """
    return torch.cat([part.softmax(-1) for part in mask_logits(logits, mask).split(choices, -1)], -1)


def epsilon_greedy(q: Tensor, choices: tuple[int, ...], mask: Tensor | None, epsilon: float) -> Tensor:
    """Epsilon-greedy probabilities [.., sum A] of every component.

        pi(a) = (1 - eps) [a = argmax q] + eps / |available|;  0 where masked

    Args:
        q: [.., sum A].
        choices: Number of choices of each component.
        mask: [.., sum A] bool; None: all choices are available.
        epsilon: In [0, 1].
    """
    uniform = choice_probs(torch.zeros_like(q), choices, mask)
    greedy = [
        torch.zeros_like(part).scatter_(-1, part.argmax(-1, keepdim=True), 1.0)
        for part in mask_logits(q, mask).split(choices, -1)
    ]
    return (1 - epsilon) * torch.cat(greedy, -1) + epsilon * uniform
