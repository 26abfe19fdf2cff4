"""Losses of COMA: counterfactual advantages of single choices, and the critic of joint actions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.functional.statistics import Reduction, masked_mean, standardize


def sum_by_component(x: Tensor, component: Tensor | None) -> Tensor:
    """Sums numbers per choice over the choices of each discrete component.

    Args:
        x: [.., N, A].
        component: [N, A, K], 1 where a choice belongs to a component; None if all choices belong to one.

    Returns:
        [.., N, K].
    """
    return x.sum(-1, keepdim=True) if component is None else torch.einsum("...na,nak->...nk", x, component)


def counterfactual_advantage(q: Tensor, pi: Tensor, taken: Tensor, component: Tensor | None = None) -> Tensor:
    """Advantage of each agent's choice over the policy's average, with the actions of the others fixed.

        A_i = Q_i(s, u) - sum_a pi_i(a) Q_i(s, (u_-i, a))

    Its mean over pi_i is 0 for each joint action of the others.

    Args:
        q: Value of each choice given the actions of the others [.., N, A].
        pi: Probability of each choice, 0 for unavailable ones [.., N, A].
        taken: 1 at the choice taken, else 0 [.., N, A].
        component: See `sum_by_component`.

    Returns:
        [.., N, K].

    Source: Foerster et al. 2018, eq. 4.
    """
    return sum_by_component(q * (taken - pi), component)


class COMALoss(NamedTuple):
    """Terms of the actor's loss and diagnostics, each []; the mean advantage is that before normalization."""

    policy: Tensor
    entropy: Tensor
    advantage: Tensor
    pi_max: Tensor


def coma_loss(
    log_pi: Tensor,
    q: Tensor,
    taken: Tensor,
    valid: Tensor,
    component: Tensor | None = None,
    *,
    normalize_advantage: bool = False,
    reduction: Reduction | None = None,
) -> COMALoss:
    """Computes the terms of the actor's loss, L = L_policy - c_H H.

        A_i      = Q_i(s, u) - sum_a pi_i(a) Q_i(s, (u_-i, a))
        L_policy = -mean A_i log pi_i(u_i)

    The mean is over valid entries. With several discrete components, A_i log pi_i is summed over them.

    Args:
        log_pi: Log-probability of each choice, very negative for unavailable ones [.., N, A].
        q: Value of each choice given the actions of the others [.., N, A].
        taken: 1 at the choice taken in each component, else 0 [.., N, A].
        valid: True where the agent acted [.., N].
        component: [N, A, K], 1 where a choice belongs to a component; None if all choices belong to one.
        normalize_advantage: Normalize advantages over valid entries.
        reduction: Processes whose entries the means are over; None for this one's.

    Source: Foerster et al. 2018, eq. 4 and 8.
    """
    pi = log_pi.detach().exp()
    advantage = counterfactual_advantage(q, pi, taken, component)
    advantage = torch.where(valid.unsqueeze(-1), advantage, 0.0)  # masked entries may hold anything
    mean_advantage = masked_mean(component_mean(advantage, component), valid, reduction)
    if normalize_advantage:
        exists = valid.unsqueeze(-1) if component is None else valid.unsqueeze(-1) & component.amax(1).bool()
        advantage = standardize(advantage, exists.expand_as(advantage), reduction)
    log_prob = sum_by_component(torch.where(taken > 0, log_pi, 0.0), component)
    return COMALoss(
        policy=masked_mean(-(advantage * log_prob).sum(-1), valid, reduction),
        entropy=masked_mean(-(log_pi.exp() * log_pi).sum(-1), valid, reduction),
        advantage=mean_advantage,
        pi_max=masked_mean(pi.amax(-1), valid, reduction),
    )


class CriticLoss(NamedTuple):
    """Loss of the critic and diagnostics, each []."""

    loss: Tensor
    td_error_abs: Tensor
    q_taken: Tensor
    target: Tensor


def critic_loss(
    q: Tensor,
    taken: Tensor,
    target: Tensor,
    valid: Tensor,
    component: Tensor | None = None,
    *,
    reduction: Reduction | None = None,
) -> CriticLoss:
    """Computes the critic's loss, L = mean (Q_i(s, u) - G)^2 over valid entries and components.

    Arguments as in `coma_loss`; `target` is the TD(lambda) return G [.., N].
    """
    q_taken = sum_by_component(q * taken, component)
    error = q_taken - target.unsqueeze(-1)
    return CriticLoss(
        loss=masked_mean(component_mean(error.square(), component), valid, reduction),
        td_error_abs=masked_mean(component_mean(error.abs(), component), valid, reduction),
        q_taken=masked_mean(component_mean(q_taken, component), valid, reduction),
        target=masked_mean(target, valid, reduction),
    )


def component_mean(x: Tensor, component: Tensor | None) -> Tensor:
    """Returns the mean of x [.., N, K] over the components that each agent has [.., N]."""
    if component is None:
        return x.squeeze(-1)
    exists = component.amax(1)  # [N, K]
    return (x * exists).sum(-1) / exists.sum(-1)
