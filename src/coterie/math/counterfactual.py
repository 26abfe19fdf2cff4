"""Counterfactuals: what an agent's action was worth against what it would have done on average."""

from __future__ import annotations

import torch
from torch import Tensor


def by_component(x: Tensor, component: Tensor | None) -> Tensor:
    """Numbers by choice [.., N, A] summed over the choices of every component: [.., N, K].

    component: [N, A, K], 1 where a choice belongs to a component; None: all choices are of one.
    """
    return x.sum(-1, keepdim=True) if component is None else torch.einsum("...na,nak->...nk", x, component)


def counterfactual_advantage(q: Tensor, pi: Tensor, taken: Tensor, component: Tensor | None = None) -> Tensor:
    """How much better the choice taken is than the policy's average, all others doing what they did: [.., N, K].

        A_i = Q_i(s, u) - sum_a pi_i(a) Q_i(s, (u_-i, a))

    q: [.., N, A] of every choice given the others' actions; pi: [.., N, A], zero for choices that cannot be made;
    taken: [.., N, A], 1 at the choice taken, else 0; component: see `by_component`. Its mean over pi_i is 0 for each
    joint action of the others. Source: Foerster et al. 2018, eq. 4.
    """
    return by_component(q * (taken - pi), component)
