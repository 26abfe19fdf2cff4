"""Returns that bootstrap from values (TD(lambda), n-step), and the counterfactual advantage."""

from __future__ import annotations

import torch
from torch import Tensor


def lambda_return(
    reward: Tensor, next_value: Tensor, *, terminated: Tensor, boundary: Tensor, gamma: float | Tensor, td_lambda: float
) -> Tensor:
    """Lambda-return, the target of TD(lambda).

        G_t = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda X_t)
        X_t = V(s'_t) where boundary_t and at the last timestep, else G_{t+1}

    Args:
        reward: [T, B, N] or with further axes, such as reward signals [T, B, N, K].
        next_value: V of the true successor, the shape of reward; not used where `terminated`.
        terminated: Bool, broadcast to the shape of reward.
        boundary: Bool, broadcast to the shape of reward; True at the last timestep of an episode.
        gamma: Discount, or a tensor that broadcasts to the shape of reward.
        td_lambda: Lambda.

    Returns:
        Returns of the shape and dtype of next_value.

    Source: Sutton and Barto 2018, eq. 12.18.
    """
    discount = (gamma * (~terminated).to(next_value.dtype)).expand_as(next_value)
    trace = (td_lambda * (~boundary).to(next_value.dtype)).expand_as(next_value)
    trace = torch.cat([trace[:-1], torch.zeros_like(trace[:1])])
    now = reward + discount * (1 - trace) * next_value.masked_fill(terminated, 0)
    decay = discount * trace
    later = torch.zeros_like(now[0])
    returns = []
    for x, c in zip(reversed(now.unbind(0)), reversed(decay.unbind(0)), strict=True):
        later = torch.addcmul(x, c, later)
        returns.append(later)
    return torch.stack(returns[::-1])


def n_step_return(
    reward: Tensor, next_value: Tensor, *, terminated: Tensor, boundary: Tensor, gamma: float | Tensor, n: int
) -> Tensor:
    """Return over the next `n` rewards, or fewer before a boundary or the last timestep.

        G^1_t = r_t + gamma (1 - terminated_t) V(s'_t)
        G^n_t = r_t + gamma (1 - terminated_t) (V(s'_t) where boundary_t and at the last timestep, else G^{n-1}_{t+1})

    Arguments as in `lambda_return`; n is at least 1. With n = T it is the lambda-return of lambda 1.

    Source: Sutton and Barto 2018, eq. 7.1.
    """
    discount = (gamma * (~terminated).to(next_value.dtype)).expand_as(next_value)
    successor = next_value.masked_fill(terminated, 0)
    stop = boundary.expand_as(next_value)[:-1]
    returns = torch.addcmul(reward, discount, successor)
    for _ in range(min(n, len(reward)) - 1):
        later = torch.cat([torch.where(stop, successor[:-1], returns[1:]), successor[-1:]])
        returns = torch.addcmul(reward, discount, later.masked_fill(terminated, 0))
    return returns


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
