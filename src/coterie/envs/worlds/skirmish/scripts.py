"""Scripted teams that need no training: baselines for battles.

`attackers_of_the_nearest` and `attackers_of_the_weakest` are created for a team, `make(team, env)`, and use the
observations of its units. `hit_and_run` also needs weapon cooldowns, which are not observable, so it reads the state of
the world, a dict of [B, ...] tensors. Scripts choose legal actions only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.config.schema import Choice
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.skirmish import DUELS, ROSTERS
from coterie.envs.worlds.skirmish.battle import ROLE, Skirmish
from coterie.envs.worlds.skirmish.combat import Layout
from coterie.envs.worlds.skirmish.observations import SIGHT, Sight
from coterie.envs.worlds.skirmish.rosters import FIRST_TARGET, MOVES, NOOP, STOP, Force
from coterie.envs.worlds.skirmish.units import STEP
from coterie.envs.worlds.world import State

_FAR = 1e6
_TOO_NEAR = 5.0
_FIRST_MOVE = FIRST_TARGET - len(MOVES)
_EAST = _FIRST_MOVE + MOVES.index((1, 0))

Act = Callable[[Timestep], dict[str, Action]]


def attackers_of_the_nearest(team: TeamSpec, env: Choice) -> Act:
    """Each unit attacks the nearest available enemy, walks to the nearest visible one, or waits; in a duel it advances
    until it sees an enemy. Healers heal the teammate within reach with the lowest fraction of health.
    """
    return _attackers(team, env, weakest=False)


def attackers_of_the_weakest(team: TeamSpec, env: Choice) -> Act:
    """Like `attackers_of_the_nearest`, but each unit attacks the available enemy with the fewest points."""
    return _attackers(team, env, weakest=True)


def hit_and_run(world: Skirmish, state: State) -> dict[str, Action]:
    """Like attacking the weakest, but ranged units retreat from nearby enemies while their weapon is not ready."""
    n, cooldown, view = world.force.n, world.layout.place["cooldown"], world.observe(state)
    seen = _Reader(world.force).read(view.obs[ROLE])
    near, who = seen.distance.min(2)
    away = -seen.offset.gather(2, who[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    flight = _open_move(view.action_mask[ROLE], away)
    shoots = torch.tensor([unit.range > 1 for unit in world.force.units[:n]], device=near.device)
    waits = shoots & (state["units"][:, cooldown, :n] > STEP)
    alive = state["units"][:, 2, :n] > 0
    attack = _attack(seen, view.action_mask[ROLE], alive, weakest=True, ahead=False)
    runs = waits & (near < _TOO_NEAR) & alive
    return {ROLE: Action(torch.where(runs, flight, attack).unsqueeze(-1))}


def _attackers(team: TeamSpec, env: Choice, weakest: bool) -> Act:
    name = env.name.partition("/")[2]
    reader, ahead = _Reader(Force((ROSTERS | DUELS)[name])), name in DUELS
    agents, at = {}, 0
    for role in team.roles:
        agents[role.name] = slice(at, at + role.n)
        at += role.n

    def act(row: Timestep) -> dict[str, Action]:
        chosen = {}
        for role, own in agents.items():
            seen = reader.read(row.obs[role])
            choice = _attack(seen, row.action_mask[role], row.alive[:, own], weakest, ahead=ahead)
            chosen[role] = Action(choice.unsqueeze(-1))
        return chosen

    return act


class _Reader:
    """Parses the observations [B, n, D] of a side."""

    def __init__(self, force: Force):
        sight, n, m = Sight(force, Layout(force)), force.n, force.m
        self.force = force
        self._parts = (len(MOVES), m * sight.enemy_size, (n - 1) * sight.ally_size, sight.own_size)
        self._full = torch.tensor([[unit.health, unit.shield] for unit in force.units[n:]])
        self._others = torch.tensor([[j for j in range(n) if j != i] for i in range(n)])
        self._heals = torch.tensor([[unit.heals > 0] for unit in force.units[:n]])

    def read(self, obs: Tensor) -> _Seen:
        force, n, m = self.force, self.force.n, self.force.m
        _, foes, mates, _ = obs.split(self._parts, -1)
        foe, full = foes.unflatten(-1, (m, -1)), self._full.to(obs)
        left = foe[..., 4] * full[:, 0]
        if force.shielded[1]:
            left = left + foe[..., 5] * full[:, 1]
        hurt = None
        if force.healers and n > 1:
            mate = mates.unflatten(-1, (n - 1, -1))
            share = torch.where(mate[..., 0] > 0, mate[..., 4], 1.0)
            hurt = obs.new_ones(*obs.shape[:2], n)
            hurt = hurt.scatter(2, self._others.to(obs.device).expand(len(obs), -1, -1), share)
        far = torch.where(foe[..., 1] > 0, foe[..., 1] * SIGHT, _FAR)
        return _Seen(force, far, foe[..., 2:4] * SIGHT, left, hurt, self._heals.to(obs.device))


class _Seen(NamedTuple):
    """Visible features of a side.

    Attributes:
        distance: [B, n, m], distance to each enemy, large if not visible.
        offset: [B, n, m, 2].
        left: [B, n, m], remaining points of each enemy.
        hurt: [B, n, n], fraction of health of teammates; 1 for the unit itself and invisible ones; None without
            healers.
        heals: [n, 1] bool.
    """

    force: Force
    distance: Tensor
    offset: Tensor
    left: Tensor
    hurt: Tensor | None
    heals: Tensor


def _attack(seen: _Seen, mask: Tensor, alive: Tensor, weakest: bool, ahead: bool) -> Tensor:
    """[B, n]: action of each unit. mask: [B, n, A]; alive: [B, n]; ahead: units that see no enemy advance."""
    force = seen.force
    cost = seen.left if weakest else seen.distance
    cost = pad(cost, (0, force.slots - force.m), value=_FAR)
    if seen.hurt is not None:
        cost = torch.where(seen.heals, pad(seen.hurt, (0, force.slots - force.n), value=_FAR), cost)
    fit = mask[..., FIRST_TARGET:]
    target = cost.masked_fill(~fit, 2 * _FAR).argmin(2) + FIRST_TARGET
    near, who = seen.distance.min(2)
    towards = seen.offset.gather(2, who[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    wait = torch.where(mask[..., _EAST], _EAST, STOP) if ahead else STOP
    walk = torch.where(near < SIGHT, _open_move(mask, towards), wait)
    return torch.where(alive, torch.where(fit.any(2), target, walk), NOOP)


def _open_move(mask: Tensor, wanted: Tensor) -> Tensor:
    """[B, n]: legal move closest to the direction `wanted` [B, n, 2]."""
    gain = wanted @ wanted.new_tensor(MOVES).T
    return gain.masked_fill(~mask[..., _FIRST_MOVE:FIRST_TARGET], -_FAR).argmax(2) + _FIRST_MOVE
