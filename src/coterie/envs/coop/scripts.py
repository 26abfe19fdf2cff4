"""Scripted players that need no training: how well the cooperative worlds can be played by a plain rule.

Each reads the world's own state, a dict of [B, ...] tensors, and gives the action of every agent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.envs.coop.baton import Baton
from coterie.envs.coop.escape import Escape
from coterie.envs.coop.grid import MOVES, RIGHT, STAY, Grid
from coterie.envs.coop.pushblock import PushBlock
from coterie.envs.coop.task import ROLE
from coterie.envs.world import State
from coterie.types import Action

_FAR = 10_000


def escape_by_one(world: Escape, state: State) -> dict[str, Action]:
    """coop/escape: the one nearest to the dragon meets it, the others keep off; then the nearest to the key takes it to
    the door.
    """
    agents, alive, slain = state["agents"], state["alive"], state["slain"]
    room = world.grid(agents)
    away = room.distance[agents, state["dragon"][:, None]]
    chosen = _only(_nearest(away, alive), agents)
    goal = torch.where(state["holder"] >= 0, state["door"], state["dragon"])[:, None].expand_as(agents)
    goes = torch.where(state["holder"][:, None] >= 0, _only(state["holder"], agents), chosen)
    # What each move leaves to the dragon; away from it is where that is most.
    reached = room.neighbour.view(-1, len(MOVES))[agents]
    flight = room.distance[reached, state["dragon"][:, None, None]].argmax(-1)
    waits = torch.where(~slain[:, None] & (away <= 2), flight, STAY)
    return _action(torch.where(goes, room.way(agents, goal), waits))


def baton_by_turns(world: Baton, state: State) -> dict[str, Action]:
    """coop/baton: who has a baton brings it to the bell, the nearest of the others fetches the next one."""
    agents, carries = state["agents"], state["carries"]
    room = world.grid(agents)
    away = room.distance[agents, state["baton"][:, None]]
    free = state["alive"] & ~carries
    fetches = _only(_nearest(away, free), agents) & free
    goal = torch.where(carries, state["bell"][:, None], state["baton"][:, None])
    return _action(torch.where(carries | fetches, room.way(agents, goal), STAY))


def pushblock_heaviest_first(world: PushBlock, state: State) -> dict[str, Action]:
    """coop/pushblock: agents are given to blocks from the heaviest on, gather at its left, and push to the right.

    A block gets as many agents as it weighs; those left over join the next one, or the last.
    """
    agents, blocks, there = state["agents"], state["blocks"], state["there"]
    room = world.grid(agents)
    weight = torch.tensor(world.config.weights, device=agents.device)
    order = weight.argsort(descending=True, stable=True)
    needed = torch.where(there, weight, 0)[:, order]
    until = needed.cumsum(1)  # in that order, block k has the agents from until - needed to until
    n = torch.arange(agents.shape[1], device=agents.device)[:, None]
    own = (until[:, None] > n) & (needed[:, None] > 0)  # [B, N, K]
    last = torch.where(needed > 0, torch.arange(len(order), device=agents.device), -1).amax(1)
    mine = order[torch.where(own.any(2), own.byte().argmax(2), last[:, None]).clamp(min=0)]
    block = blocks.gather(1, mine)
    behind = (block - 1).clamp(min=0)
    gathered = ((agents[:, None] == behind[:, :, None]) & (mine[:, None] == mine[:, :, None])).sum(2)
    ready = (agents == behind) & (gathered >= weight[mine])
    blocked = torch.zeros(len(agents), room.squares + 1, dtype=torch.bool, device=agents.device)
    blocked = blocked.scatter(1, torch.where(there, blocks, room.squares), True)[:, :-1]
    walk = _around(room, agents, behind, blocked)
    return _action(torch.where(ready, RIGHT, walk))


def _around(room: Grid, agents: Tensor, goal: Tensor, blocked: Tensor) -> Tensor:
    """[B, N]: first moves of shortest ways to `goal` [B, N] that enter no blocked square [B, C]."""
    copies, n = agents.shape
    steps = room.neighbour.view(-1, len(MOVES))
    wall = blocked[:, None].expand(-1, n, -1)
    far = torch.full((copies, n, room.squares), _FAR, device=agents.device).scatter(2, goal[..., None], 0)
    for _ in range(2 * (room.width + room.height)):
        far = torch.minimum(far, far[:, :, steps].amin(-1) + 1).masked_fill(wall, _FAR)
    reached = steps[agents]  # [B, N, 5]
    return far.gather(2, reached).argmin(2)


def _nearest(away: Tensor, among: Tensor) -> Tensor:
    """[B]: the agent with the least `away` [B, N] of those `among` [B, N]."""
    return torch.where(among, away, _FAR).argmin(1)


def _only(agent: Tensor, agents: Tensor) -> Tensor:
    """[B, N]: True for that agent [B] alone; nowhere for -1."""
    return agent[:, None] == torch.arange(agents.shape[1], device=agents.device)


def _action(move: Tensor) -> dict[str, Action]:
    return {ROLE: Action(discrete=move.unsqueeze(-1))}
