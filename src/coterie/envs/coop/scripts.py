"""Scripted players that need no training: how well the cooperative worlds can be played by a plain rule.

`escapers` and `runners` are made for a team, `make(team, env)`, and read what its agents see. In `pushblock` they see
too little for a rule without memory: `pushblock_heaviest_first` reads the world's own state, a dict of [B, ...]
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.envs.coop.grid import MOVES, RIGHT, STAY, Grid, grid
from coterie.envs.coop.pushblock import PushBlock
from coterie.envs.coop.task import ROLE
from coterie.envs.world import State
from coterie.schema import Choice
from coterie.types import Action, Row, TeamSpec

Act = Callable[[Row], dict[str, Action]]
_FAR = 10_000


def escapers(team: TeamSpec, env: Choice) -> Act:
    """coop/escape: the one nearest to the dragon meets it, the others keep off; then the nearest to the key takes it to
    the door.
    """

    def act(row: Row) -> dict[str, Action]:
        seen = _seen(row, env.params, things=4, shared=1)
        dragon, key, door, _ = seen.things.unbind(1)
        slain = ~seen.there[:, 0]
        dragon = torch.where(slain, key, dragon)
        held = seen.marked.any(1)
        away = seen.room.distance[seen.agents, dragon[:, None]]
        chosen = _only(_nearest(away, seen.alive), seen.agents)
        goal = torch.where(held, door, dragon)[:, None].expand_as(seen.agents)
        # What each move leaves to the dragon; away from it is where that is most.
        reached = seen.room.neighbour.view(-1, len(MOVES))[seen.agents]
        flight = seen.room.distance[reached, dragon[:, None, None]].argmax(-1)
        waits = torch.where(~slain[:, None] & (away <= 2), flight, STAY)
        goes = torch.where(held[:, None], seen.marked, chosen)
        return _action(torch.where(goes, seen.room.way(seen.agents, goal), waits))

    return act


def runners(team: TeamSpec, env: Choice) -> Act:
    """coop/baton: who has a baton brings it to the bell, the nearest of the others fetches the next one."""

    def act(row: Row) -> dict[str, Action]:
        seen = _seen(row, env.params, things=3, shared=2)
        baton, bell, _ = seen.things.unbind(1)
        away = seen.room.distance[seen.agents, baton[:, None]]
        free = seen.alive & ~seen.marked
        fetches = _only(_nearest(away, free), seen.agents) & free
        goal = torch.where(seen.marked, bell[:, None], baton[:, None])
        return _action(torch.where(seen.marked | fetches, seen.room.way(seen.agents, goal), STAY))

    return act


@dataclass(frozen=True)
class _Seen:
    """What the team knows: squares of agents [B, N] and of things [B, M], and whether these are there; who lives, and
    who bears the mark, [B, N] bool.
    """

    room: Grid
    agents: Tensor
    alive: Tensor
    marked: Tensor
    things: Tensor
    there: Tensor


def _seen(row: Row, config: Any, things: int, shared: int) -> _Seen:
    """Read off the observations of agents with one mark, in a square room that each of them sees all of."""
    obs, alive, size = row.obs[ROLE], row.alive, config.size
    own, mark, _, around, _ = obs.split((2, 1, shared, 3 * things, obs.shape[-1] - 3 - shared - 3 * things), -1)
    witness = alive.byte().argmax(1)  # anybody who lives
    told = around[torch.arange(len(obs), device=obs.device), witness].unflatten(-1, (things, 3))
    at = own[torch.arange(len(obs), device=obs.device), witness]

    def square(place: Tensor) -> Tensor:
        x, y = ((place + 1) * ((size - 1) / 2)).round().long().clamp(0, size - 1).unbind(-1)
        return y * size + x

    return _Seen(
        grid(size, size, obs.device),
        square(own),
        alive,
        (mark[..., 0] > 0) & alive,
        square(at.unsqueeze(1) + 2 * told[..., :2]),
        told[..., 2] > 0,
    )


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
