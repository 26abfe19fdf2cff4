"""Batched linear sum assignment of agents to places."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import torch
from torch import Tensor

_MAX_ENUMERATED = 5  # up to this number of agents, trying every permutation is fastest


def assign(cost: Tensor) -> Tensor:
    """Returns the assignment of minimum total cost.

    Args:
        cost: [N agents, N places, B].

    Returns:
        The place of every agent, [N, B] int64.
    """
    return _by_enumeration(cost) if len(cost) <= _MAX_ENUMERATED else _by_augmenting_paths(cost)


@lru_cache(maxsize=4 * _MAX_ENUMERATED)
def _permutations(n: int, device: torch.device) -> Tensor:
    """Returns all permutations: [n!, n]."""
    return torch.tensor(list(permutations(range(n))), device=device)


def _by_enumeration(cost: Tensor) -> Tensor:
    assignments = _permutations(len(cost), cost.device)
    agents = torch.arange(len(cost), device=cost.device)
    best = cost[agents, assignments].sum(1).argmin(0)
    return assignments[best].T


def _by_augmenting_paths(cost: Tensor) -> Tensor:
    """Hungarian method: shortest augmenting paths with potentials, agent by agent, in all environments at once.

    Place 0 means "unassigned"; `agent_at[j]` is the agent (1-based) at place j. Source: Kuhn 1955, in the form of
    Jonker and Volgenant 1987.
    """
    n, _, num_envs = cost.shape
    envs = torch.arange(num_envs, device=cost.device)
    padded = cost.new_zeros(n + 1, n + 1, num_envs)
    padded[1:, 1:] = cost
    agent_potential, place_potential = cost.new_zeros(n + 1, num_envs), cost.new_zeros(n + 1, num_envs)
    agent_at = torch.zeros(n + 1, num_envs, dtype=torch.long, device=cost.device)
    for agent in range(1, n + 1):
        agent_at[0] = agent
        place = torch.zeros_like(agent_at[0])
        min_slack = torch.full_like(place_potential, torch.inf)
        previous_place = torch.zeros_like(agent_at)
        visited = torch.zeros_like(agent_at, dtype=torch.bool)
        for _ in range(agent):
            searching = agent_at[place, envs] != 0
            visited[place, envs] |= searching
            current = agent_at[place, envs]
            slack = padded[current, :, envs].T - agent_potential[current, envs] - place_potential
            improves = ~visited & (slack < min_slack) & searching
            min_slack = torch.where(improves, slack, min_slack)
            previous_place = torch.where(improves, place, previous_place)
            step, nearest = min_slack.masked_fill(visited, torch.inf)[1:].min(0)
            step = step.where(searching, 0)
            # Update the potentials of the visited places and of the agents assigned to them.
            agent_potential.index_put_((agent_at, envs.expand_as(agent_at)), step * visited, accumulate=True)
            place_potential -= step * visited
            min_slack -= step * ~visited
            place = torch.where(searching, nearest + 1, place)
        for _ in range(agent):  # augment: each place takes the agent of the previous one
            before = previous_place[place, envs]
            moves = place != 0
            agent_at[place, envs] = torch.where(moves, agent_at[before, envs], agent_at[place, envs])
            place = torch.where(moves, before, place)
    result = torch.zeros_like(agent_at)
    result.scatter_(0, agent_at, torch.arange(n + 1, device=cost.device).unsqueeze(1).expand_as(agent_at))
    return result[1:] - 1
