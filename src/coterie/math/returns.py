"""Returns and advantages."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    boundary: Tensor,
    gamma: float | Tensor,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage of every step.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - boundary_t) A_{t+1}

    reward, value: [T, B, N] or with axes behind, such as reward signals [T, B, N, K] (gamma then may be [K]);
    next_value: the same shape, V of the true successor; terminated, boundary: bool, broadcast to that shape.
    Returns the shape and dtype of value. A + V is the lambda-return. Source: Schulman et al. 2016, eq. 16.
    """
    delta = reward + gamma * next_value.masked_fill(terminated, 0) - value
    decay = (gamma * gae_lambda * (~boundary).to(value.dtype)).expand_as(delta)
    later = torch.zeros_like(delta[0])
    advantage = []
    for d, c in zip(reversed(delta.unbind(0)), reversed(decay.unbind(0)), strict=True):
        later = torch.addcmul(d, c, later)
        advantage.append(later)
    return torch.stack(advantage[::-1])


def lambda_return(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    boundary: Tensor,
    gamma: float | Tensor,
    trace_decay: float,
) -> Tensor:
    """Lambda-return of every step, TD(lambda)'s target.

        G_t = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda X_t)
        X_t = V(s'_t) where boundary_t and in the last row, else G_{t+1}

    reward, next_value: [T, B, N] or with axes behind, such as reward signals [T, B, N, K] (gamma then may be [K]);
    next_value: V of the true successor, read nowhere behind `terminated`; terminated, boundary: bool, broadcast to
    that shape; gamma: a number, or a tensor that broadcasts to that shape, such as one discount a step.
    Returns the shape and dtype of next_value. Source: Sutton and Barto 2018, eq. 12.18.
    """
    discount = (gamma * (~terminated).to(next_value.dtype)).expand_as(next_value)
    trace = (trace_decay * (~boundary).to(next_value.dtype)).expand_as(next_value)
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
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    boundary: Tensor,
    gamma: float | Tensor,
    n: int,
) -> Tensor:
    """Return of every step over the next `n` rewards, or fewer where a boundary or the last row comes first.

        G^1_t = r_t + gamma (1 - terminated_t) V(s'_t)
        G^n_t = r_t + gamma (1 - terminated_t) (V(s'_t) where boundary_t and in the last row, else G^{n-1}_{t+1})

    Arguments as in `lambda_return`; n: at least 1. With n = T it is the lambda-return of lambda 1.
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


def endless_return(reward: Tensor, value: Tensor, live: Tensor, gamma: float | Tensor, trace_decay: float) -> Tensor:
    """Lambda-return of every step of a stream that no end cuts off: it goes on in the next episode, or the next life.

        G_t = r_t + gamma ((1 - lambda) V'_{t+1} + lambda G_{t+1}) where live_t, else G_{t+1};  G_T = V_T
        V'_t = V_t where live_t, else V'_{t+1};  V'_T = V_T

    Rows in which nobody acts take no time: the row behind an episode's last step is the next one's first.
    reward: [T, B, N] or with axes behind, such as reward signals [T, B, N, K] (gamma then may be [K]); value: the same
    with T + 1 rows; live: [T, B, N] bool, broadcast to reward. Returns the shape of reward and the dtype of value.
    Source: Burda et al. 2018, section 2.3 (returns of exploration that are not episodic).
    """
    successor = later = value[-1]
    returns = []
    for r, v, lives in zip(
        reversed(reward.unbind(0)), reversed(value[:-1].unbind(0)), reversed(live.unbind(0)), strict=True
    ):
        later = torch.where(lives, r + gamma * ((1 - trace_decay) * successor + trace_decay * later), later)
        successor = torch.where(lives, v, successor)
        returns.append(later)
    return torch.stack(returns[::-1])
