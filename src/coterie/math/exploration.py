"""Exploration: noise on numbers, and choices that let gradients through. Noise is an argument; nothing draws here."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.math.distributions import mask_logits


def ornstein_uhlenbeck(state: Tensor, noise: Tensor, theta: float) -> Tensor:
    """The next state of noise that is pulled back to zero, a time step of one.

        x_{t+1} = (1 - theta) x_t + n_t

    state, noise (standard normal): any one shape; theta: in (0, 1], 1 is white noise. Left alone for long, the states'
    standard deviation is 1 / sqrt(theta (2 - theta)). Source: Uhlenbeck and Ornstein 1930, as in Lillicrap et al. 2016.
    """
    return state * (1 - theta) + noise


def noisy(number: Tensor, noise: Tensor) -> Tensor:
    """Numbers in [-1, 1] with noise added, and clipped to [-1, 1] again. Any one shape."""
    return (number + noise).clamp(-1, 1)


def smoothing(noise: Tensor, std: float, clip: float) -> Tensor:
    """Noise of a target action: standard normal `noise` times `std`, clipped to [-clip, clip].

    Source: Fujimoto et al. 2018, eq. 14.
    """
    return (noise * std).clamp(-clip, clip)


def uniform(noise: Tensor) -> Tensor:
    """Standard normal numbers as uniform ones in [-1, 1]: 2 Phi(n) - 1 = erf(n / sqrt 2). The same shape."""
    return torch.erf(noise * 2**-0.5)


def pick(logits: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
    """The index [..] of a choice drawn from softmax(logits); the likeliest one if `noise` is None.

    logits, noise (standard Gumbel): [.., A]; mask: [.., A] bool, False is never drawn where there is a True.
    Source: the Gumbel-max trick (Maddison et al. 2014).
    """
    score = logits if noise is None else logits + noise
    return mask_logits(score, mask).argmax(-1)


def straight_through(logits: Tensor, mask: Tensor | None, noise: Tensor, temperature: float) -> Tensor:
    """A drawn choice, exactly one-hot [.., A], with the gradient of the relaxed one.

        y = softmax((logits + g) / temperature);  one_hot(argmax y) + y - stop_gradient(y)

    Arguments as in `pick`; what is masked is never drawn and gets no gradient; temperature: above zero.
    Source: Jang et al. 2017 (straight-through Gumbel-softmax).
    """
    score = mask_logits((logits + noise) / temperature, mask)
    hard = torch.zeros_like(score).scatter_(-1, score.argmax(-1, keepdim=True), 1.0)
    if not logits.requires_grad or not torch.is_grad_enabled():
        return hard
    soft = score.softmax(-1)
    return hard + (soft - soft.detach())


def drawn_from(logits: Tensor, choices: tuple[int, ...], mask: Tensor | None) -> Tensor:
    """Probabilities [.., sum A] of the softmax of every component's logits; 0 where masked.

    logits: [.., sum A]; choices: how many each component has; mask: the same shape, bool, or None.
    """
    return torch.cat([part.softmax(-1) for part in mask_logits(logits, mask).split(choices, -1)], -1)


def epsilon_greedy(q: Tensor, choices: tuple[int, ...], mask: Tensor | None, epsilon: float) -> Tensor:
    """Probabilities [.., sum A] of taking the best, and now and then any available choice of every component.

        pi(a) = (1 - eps) [a = argmax q] + eps / |available|;  0 where masked

    q: [.., sum A]; choices: how many each component has; mask: the same shape, bool, or None; epsilon: in [0, 1].
    """
    even = drawn_from(torch.zeros_like(q), choices, mask)
    parts = [
        torch.zeros_like(part).scatter_(-1, part.argmax(-1, keepdim=True), 1.0)
        for part in mask_logits(q, mask).split(choices, -1)
    ]
    return (1 - epsilon) * torch.cat(parts, -1) + epsilon * even
