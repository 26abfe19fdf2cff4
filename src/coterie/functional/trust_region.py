"""Trust regions: KL divergences of action distributions, products with the Fisher information, conjugate gradients.

Distributions are given as in `functional.policy_gradient`: `params` [.., P] holds the logits of every discrete
component, then means, and `log_std` broadcasts to [.., C]; it is None without numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.specs import ActionSpec
from coterie.functional.policy_gradient import choice_log_probs, component_log_probs

Distribution = tuple[Tensor, Tensor | None]
"""`params` and `log_std`."""


def kl_divergence(spec: ActionSpec, old: Distribution, new: Distribution, mask: Tensor | None) -> Tensor:
    """Returns KL(old || new) in nats [..], summed over components.

        sum_k sum_a p_k(a) (log p_k(a) - log p'_k(a))
        + sum_c (log s'_c - log s_c + (s_c^2 + (m_c - m'_c)^2) / (2 s'_c^2) - 1 / 2)

    with probabilities p, means m and standard deviations s of the old distribution, and p', m', s' of the new one.

    Args:
        spec: Action space of each agent.
        old: Old distribution.
        new: New distribution.
        mask: [.., sum A] bool; masked choices do not contribute. None: all are available.
    """
    total = torch.zeros_like(new[0][..., 0])
    for p, q in zip(*(component_log_probs(spec, x, mask) for x, _ in (old, new)), strict=True):
        total = total + (p.exp() * (p - q)).sum(-1)
    if spec.continuous:
        (mean, log_std), (new_mean, new_log_std) = ((x[..., spec.mask_size :], s) for x, s in (old, new))
        assert log_std is not None
        assert new_log_std is not None
        square = (2 * log_std).exp() + (mean - new_mean).square()
        total = total + (new_log_std - log_std + 0.5 * square * (-2 * new_log_std).exp() - 0.5).sum(-1)
    return total


def fisher_product(spec: ActionSpec, at: Distribution, direction: Distribution, mask: Tensor | None) -> Distribution:
    """Returns the product of the Fisher information of a distribution by its parameters with a direction v.

        logits:  p (v - sum_a p(a) v(a)) in every component;  means: v / s^2;  log s: 2 v

    It is the second derivative of `kl_divergence` by the new distribution's parameters where both are equal.

    Args:
        spec: Action space of each agent.
        at: The distribution.
        direction: v, derivatives of `params` and `log_std`, in their shapes.
        mask: As in `kl_divergence`.
    """
    (params, log_std), (d_params, d_log_std) = at, direction
    parts = []
    if spec.choices:
        probs = choice_log_probs(spec, params, mask).exp()
        components = zip(*(x.split(spec.choices, -1) for x in (probs, d_params[..., : spec.mask_size])), strict=True)
        parts += [p * (v - (p * v).sum(-1, keepdim=True)) for p, v in components]
    if not spec.continuous:
        return torch.cat(parts, -1), None
    assert log_std is not None
    assert d_log_std is not None
    parts.append(d_params[..., spec.mask_size :] * (-2 * log_std).exp())
    return torch.cat(parts, -1), 2 * d_log_std


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, iterations: int, tolerance: float = 1e-6
) -> Tensor:
    """Returns x [P] with A x = b for a symmetric, positive definite matrix A, after at most `iterations` products.

    Nothing is read by the host: after convergence, x stays as it is.

    Args:
        product: Returns A v [P] of v [P].
        b: [P].
        iterations: Number of products. P suffice but for rounding.
        tolerance: Norm of A x - b, relative to that of b, at which x is final.

    Source: Hestenes and Stiefel 1952.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    square = residual.dot(residual)
    smallest = tolerance**2 * square
    for _ in range(iterations):
        image = product(direction)
        curvature = direction.dot(image)
        rate = torch.where((square > smallest) & (curvature > 0), square / curvature, 0.0)
        x = x + rate * direction
        residual = residual - rate * image
        previous, square = square, residual.dot(residual)
        direction = residual + torch.where(previous > smallest, square / previous, 0.0) * direction
    return x
