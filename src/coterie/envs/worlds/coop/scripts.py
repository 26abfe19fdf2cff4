"""Scripted policies that need no training: baselines for the cooperative worlds.

`escapers` and `runners` are created for a team, `make(team, env)`, and use the observations of its agents. The limited
view of `pushblock` is not enough for a memoryless rule, so `pushblock_heaviest_first` reads the state of the world, a
dict of [B, ...] tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.config.schema import Choice
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.coop.pushblock import PushBlock
from coterie.envs.worlds.coop.rooms import MOVES, RIGHT, ROLE, STAY, Grid, grid
from coterie.envs.worlds.world import State

Act = Callable[[Timestep], dict[str, Action]]
_FAR = 10_000


def escapers(team: TeamSpec, env: Choice) -> Act:
    """coop/escape: the agent nearest to the dragon meets it and the others stay away; then the nearest to the key takes
    it to the door.
    """

    def act(timestep: Timestep) -> dict[str, Action]:
        view = _parse_observation(timestep, env.params, num_items=4, num_shared=1)
        dragon, key, door, _ = view.items.unbind(1)
        dead = ~view.present[:, 0]
        dragon = torch.where(dead, key, dragon)
        held = view.marked.any(1)
        distance = view.room.distance[view.agents, dragon[:, None]]
        chosen = _only(_nearest(distance, view.alive), view.agents)
        goal = torch.where(held, door, dragon)[:, None].expand_as(view.agents)
        # Distance to the dragon after each move; fleeing maximizes it.
        reached = view.room.neighbor.view(-1, len(MOVES))[view.agents]
        flight = view.room.distance[reached, dragon[:, None, None]].argmax(-1)
        waits = torch.where(~dead[:, None] & (distance <= 2), flight, STAY)
        goes = torch.where(held[:, None], view.marked, chosen)
        return _action(torch.where(goes, view.room.way(view.agents, goal), waits))

    return act


def runners(team: TeamSpec, env: Choice) -> Act:
    """coop/baton: a runner with a baton takes it to the bell, and the nearest of the others fetches the next baton."""

    def act(timestep: Timestep) -> dict[str, Action]:
        view = _parse_observation(timestep, env.params, num_items=3, num_shared=2)
        baton, bell, _ = view.items.unbind(1)
        distance = view.room.distance[view.agents, baton[:, None]]
        free = view.alive & ~view.marked
        fetches = _only(_nearest(distance, free), view.agents) & free
        goal = torch.where(view.marked, bell[:, None], baton[:, None])
        return _action(torch.where(view.marked | fetches, view.room.way(view.agents, goal), STAY))

    return act


@dataclass(frozen=True)
class _RoomView:
    """The room as a team observes it.

    Attributes:
        room: Tables of the room.
        agents: [B, N], squares of the agents.
        alive: [B, N] bool.
        marked: [B, N] bool, living agents with a mark.
        items: [B, M], squares of the items.
        present: [B, M] bool, items that are present.
    """

    room: Grid
    agents: Tensor
    alive: Tensor
    marked: Tensor
    items: Tensor
    present: Tensor


def _parse_observation(timestep: Timestep, config: Any, num_items: int, num_shared: int) -> _RoomView:
    """Parses the observations of agents with one mark in a square room that is fully visible to each agent."""
    obs, alive, size = timestep.obs[ROLE], timestep.alive, config.size
    parts = (2, 1, num_shared, 3 * num_items, obs.shape[-1] - 3 - num_shared - 3 * num_items)
    pos, mark, _, item_features, _ = obs.split(parts, -1)
    env, observer = torch.arange(len(obs), device=obs.device), alive.byte().argmax(1)  # any agent that is alive
    item_features = item_features[env, observer].unflatten(-1, (num_items, 3))
    item_pos = pos[env, observer].unsqueeze(1) + 2 * item_features[..., :2]

    def square(pos: Tensor) -> Tensor:
        x, y = ((pos + 1) * ((size - 1) / 2)).round().long().clamp(0, size - 1).unbind(-1)
        return y * size + x

    return _RoomView(
        room=grid(size, size, obs.device),
        agents=square(pos),
        alive=alive,
        marked=(mark[..., 0] > 0) & alive,
        items=square(item_pos),
        present=item_features[..., 2] > 0,
    )


def pushblock_heaviest_first(world: PushBlock, state: State) -> dict[str, Action]:
    """coop/pushblock: agents are assigned to blocks from the heaviest on, gather on their left side, and push to the
    right.

    A block gets as many agents as its weight; the remaining agents join the next block, or the last one.
    """
    agents, blocks, present = state["agents"], state["blocks"], state["present"]
    room = world.grid(agents)
    weight = torch.tensor(world.config.weights, device=agents.device)
    order = weight.argsort(descending=True, stable=True)
    needed = torch.where(present, weight, 0)[:, order]
    until = needed.cumsum(1)  # in that order, block k gets the agents from until - needed to until
    n = torch.arange(agents.shape[1], device=agents.device)[:, None]
    own = (until[:, None] > n) & (needed[:, None] > 0)  # [B, N, K]
    last = torch.where(needed > 0, torch.arange(len(order), device=agents.device), -1).amax(1)
    mine = order[torch.where(own.any(2), own.byte().argmax(2), last[:, None]).clamp(min=0)]
    block = blocks.gather(1, mine)
    behind = (block - 1).clamp(min=0)
    gathered = ((agents[:, None] == behind[:, :, None]) & (mine[:, None] == mine[:, :, None])).sum(2)
    ready = (agents == behind) & (gathered >= weight[mine])
    blocked = torch.zeros(len(agents), room.squares + 1, dtype=torch.bool, device=agents.device)
    blocked = blocked.scatter(1, torch.where(present, blocks, room.squares), True)[:, :-1]
    walk = _around(room, agents, behind, blocked)
    return _action(torch.where(ready, RIGHT, walk))


def _around(room: Grid, agents: Tensor, goal: Tensor, blocked: Tensor) -> Tensor:
    """[B, N]: first moves of shortest paths to `goal` [B, N] that avoid the blocked squares [B, C]."""
    num_envs, n = agents.shape
    steps = room.neighbor.view(-1, len(MOVES))
    wall = blocked[:, None].expand(-1, n, -1)
    far = torch.full((num_envs, n, room.squares), _FAR, device=agents.device).scatter(2, goal[..., None], 0)
    for _ in range(2 * (room.width + room.height)):
        far = torch.minimum(far, far[:, :, steps].amin(-1) + 1).masked_fill(wall, _FAR)
    reached = steps[agents]  # [B, N, 5]
    return far.gather(2, reached).argmin(2)


def _nearest(distance: Tensor, among: Tensor) -> Tensor:
    """[B]: agent with the smallest `distance` [B, N] among the agents `among` [B, N]."""
    return torch.where(among, distance, _FAR).argmin(1)


def _only(agent: Tensor, agents: Tensor) -> Tensor:
    """[B, N]: True for the given agent [B] only; all False for -1."""
    return agent[:, None] == torch.arange(agents.shape[1], device=agents.device)


def _action(move: Tensor) -> dict[str, Action]:
    return {ROLE: Action(discrete=move.unsqueeze(-1))}
