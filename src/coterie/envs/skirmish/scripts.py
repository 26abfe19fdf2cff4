"""Scripted teams that need no training: how far plain rules come in a battle.

`attackers_of_the_nearest` and `attackers_of_the_weakest` are made for a team, `make(team, env)`, and read what its
units see. `hit_and_run` also needs to know when a weapon is ready, which nobody sees: it reads the world's own state, a
dict of [B, ...] tensors. Rules give open choices only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.envs.skirmish import DUELS, ROSTERS
from coterie.envs.skirmish.battle import ROLE, Skirmish
from coterie.envs.skirmish.combat import Layout
from coterie.envs.skirmish.force import FIRST_TARGET, MOVES, NOOP, STOP, Force
from coterie.envs.skirmish.sight import SIGHT, Sight
from coterie.envs.skirmish.units import STEP
from coterie.envs.world import State
from coterie.schema import Choice
from coterie.types import Action, Row, TeamSpec

_FAR = 1e6
_TOO_NEAR = 5.0
_FIRST_MOVE = FIRST_TARGET - len(MOVES)
_EAST = _FIRST_MOVE + MOVES.index((1, 0))

Act = Callable[[Row], dict[str, Action]]


def attackers_of_the_nearest(team: TeamSpec, env: Choice) -> Act:
    """Everybody attacks the nearest enemy that it can choose, walks to the nearest in sight, or waits; in a duel it
    walks ahead until it sees somebody. Healers heal the mate within reach whose share of health is the least.
    """
    return _attackers(team, env, weakest=False)


def attackers_of_the_weakest(team: TeamSpec, env: Choice) -> Act:
    """As `attackers_of_the_nearest`, but of the enemies that it can choose it takes the one with the fewest points."""
    return _attackers(team, env, weakest=True)


def hit_and_run(world: Skirmish, state: State) -> dict[str, Action]:
    """As those who attack the weakest, but who shoots walks away from an enemy that is near while its weapon is not
    ready.
    """
    n, cooldown, view = world.force.n, world.layout.place["cooldown"], world.view(state)
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

    def act(row: Row) -> dict[str, Action]:
        chosen = {}
        for role, own in agents.items():
            seen = reader.read(row.obs[role])
            choice = _attack(seen, row.action_mask[role], row.alive[:, own], weakest, ahead)
            chosen[role] = Action(choice.unsqueeze(-1))
        return chosen

    return act


class _Reader:
    """Reads the observations of a side, [B, n, D]."""

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
    """What the units of a side see.

    distance: [B, n, m] to the enemies, far where they are not seen; offset: [B, n, m, 2]; left: [B, n, m] their points;
    hurt: [B, n, n] the mates' shares of health, 1 for oneself and for whom one does not see, None without healers;
    heals: [n, 1] bool.
    """

    force: Force
    distance: Tensor
    offset: Tensor
    left: Tensor
    hurt: Tensor | None
    heals: Tensor


def _attack(seen: _Seen, mask: Tensor, alive: Tensor, weakest: bool, ahead: bool) -> Tensor:
    """[B, n]: what everybody does. mask: [B, n, A]; alive: [B, n]; ahead: who sees nobody walks on."""
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
    """[B, n]: the open move that leads most nearly in the direction `wanted` [B, n, 2]."""
    gain = wanted @ wanted.new_tensor(MOVES).T
    return gain.masked_fill(~mask[..., _FIRST_MOVE:FIRST_TARGET], -_FAR).argmax(2) + _FIRST_MOVE
