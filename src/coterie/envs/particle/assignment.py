"""The cheapest one-to-one assignment of agents to places, for a batch of copies at once."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import torch
from torch import Tensor

_FEW = 5  # up to so many agents, trying every permutation is quickest


def assign(cost: Tensor) -> Tensor:
    """The place of every agent, [N, B] int64, so that the sum of `cost` [N agents, N places, B] is least."""
    return _by_trying(cost) if len(cost) <= _FEW else _by_augmenting(cost)


@lru_cache(maxsize=_FEW)
def _orders(n: int) -> Tensor:
    """All permutations: [n!, n]."""
    return torch.tensor(list(permutations(range(n))))


def _by_trying(cost: Tensor) -> Tensor:
    orders = _orders(len(cost)).to(cost.device)
    agents = torch.arange(len(cost), device=cost.device)
    best = cost[agents, orders].sum(1).argmin(0)
    return orders[best].T


def _by_augmenting(cost: Tensor) -> Tensor:
    """Shortest augmenting paths with potentials, one agent after the other, all copies in step.

    Place 0 stands for "not placed yet"; `holder[j]` is the agent (1-based) at place j. Source: Kuhn 1955, in the form
    of Jonker and Volgenant 1987.
    """
    n, _, copies = cost.shape
    every = torch.arange(copies, device=cost.device)
    padded = cost.new_zeros(n + 1, n + 1, copies)
    padded[1:, 1:] = cost
    agent_price, place_price = cost.new_zeros(n + 1, copies), cost.new_zeros(n + 1, copies)
    holder = torch.zeros(n + 1, copies, dtype=torch.long, device=cost.device)
    for agent in range(1, n + 1):
        holder[0] = agent
        place = torch.zeros_like(holder[0])
        least = torch.full_like(place_price, torch.inf)
        came_from = torch.zeros_like(holder)
        used = torch.zeros_like(holder, dtype=torch.bool)
        for _ in range(agent):
            searching = holder[place, every] != 0
            used[place, every] |= searching
            now = holder[place, every]
            reduced = padded[now, :, every].T - agent_price[now, every] - place_price
            better = ~used & (reduced < least) & searching
            least = torch.where(better, reduced, least)
            came_from = torch.where(better, place, came_from)
            step, nearest = least.masked_fill(used, torch.inf)[1:].min(0)
            step = step.where(searching, 0)
            # Prices move along the tree: of used places and of the agents that hold them.
            agent_price.index_put_((holder, every.expand_as(holder)), step * used, accumulate=True)
            place_price -= step * used
            least -= step * ~used
            place = torch.where(searching, nearest + 1, place)
        for _ in range(agent):  # walk back, each place taking the agent of the one before
            before = came_from[place, every]
            moves = place != 0
            holder[place, every] = torch.where(moves, holder[before, every], holder[place, every])
            place = torch.where(moves, before, place)
    result = torch.zeros_like(holder)
    result.scatter_(0, holder, torch.arange(n + 1, device=cost.device).unsqueeze(1).expand_as(holder))
    return result[1:] - 1
