"""Scripted teams that need no training: baselines for battles.

`attackers_of_the_nearest` and `attackers_of_the_weakest` are created for a team, `make(team, env)`, and use the
observations of its units. `hit_and_run` also needs weapon cooldowns, which are not observable, so it reads the state of
the world, a dict of [B, ...] tensors. Scripts choose legal actions only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.config.schema import Choice
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.skirmish import DUELS, ROSTERS
from coterie.envs.worlds.skirmish.battle import ROLE, Skirmish
from coterie.envs.worlds.skirmish.combat import Layout
from coterie.envs.worlds.skirmish.observations import SIGHT, ObservationBuilder
from coterie.envs.worlds.skirmish.units import FIRST_TARGET, MOVES, NOOP, STEP, STOP, Force
from coterie.envs.worlds.world import State

_FAR = 1e6
_TOO_NEAR = 5.0
_FIRST_MOVE = FIRST_TARGET - len(MOVES)
_EAST = _FIRST_MOVE + MOVES.index((1, 0))

Act = Callable[[Timestep], dict[str, Action]]


def attackers_of_the_nearest(team: TeamSpec, env: Choice) -> Act:
    """Each unit attacks the nearest available enemy, walks to the nearest visible one, or waits; in a duel it advances
    until an enemy is visible. Healers heal the teammate within reach with the lowest fraction of health.
    """
    return _attackers(team, env, weakest=False)


def attackers_of_the_weakest(team: TeamSpec, env: Choice) -> Act:
    """Like `attackers_of_the_nearest`, but each unit attacks the available enemy with the fewest points."""
    return _attackers(team, env, weakest=True)


def hit_and_run(world: Skirmish, state: State) -> dict[str, Action]:
    """Like attacking the weakest, but ranged units retreat from nearby enemies while their weapon is not ready."""
    n, cooldown, view = world.force.n, world.layout.place["cooldown"], world.observe(state)
    parsed = _ObservationParser(world.force).parse(view.obs[ROLE])
    distance, nearest = parsed.distance.min(2)
    away = -parsed.offset.gather(2, nearest[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    retreat = _legal_move(view.action_mask[ROLE], away)
    ranged = torch.tensor([unit.range > 1 for unit in world.force.units[:n]], device=distance.device)
    waits = ranged & (state["units"][:, cooldown, :n] > STEP)
    alive = state["units"][:, 2, :n] > 0
    attack = _attack(parsed, view.action_mask[ROLE], alive, weakest=True, advance=False)
    runs = waits & (distance < _TOO_NEAR) & alive
    return {ROLE: Action(torch.where(runs, retreat, attack).unsqueeze(-1))}


def _attackers(team: TeamSpec, env: Choice, weakest: bool) -> Act:
    name = env.name.partition("/")[2]
    parser, advance = _ObservationParser(Force((ROSTERS | DUELS)[name])), name in DUELS
    agents, start = {}, 0
    for role in team.roles:
        agents[role.name] = slice(start, start + role.n)
        start += role.n

    def act(timestep: Timestep) -> dict[str, Action]:
        chosen = {}
        for role, own in agents.items():
            parsed, mask = parser.parse(timestep.obs[role]), timestep.action_mask[role]
            choice = _attack(parsed, mask, timestep.alive[:, own], weakest, advance=advance)
            chosen[role] = Action(choice.unsqueeze(-1))
        return chosen

    return act


class _ObservationParser:
    """Parses the observations [B, n, D] of a side."""

    def __init__(self, force: Force):
        builder, n, m = ObservationBuilder(force, Layout(force)), force.n, force.m
        self._force = force
        self._sizes = (len(MOVES), m * builder.enemy_size, (n - 1) * builder.ally_size, builder.own_size)
        self._full = torch.tensor([[unit.health, unit.shield] for unit in force.units[n:]])
        self._teammates = torch.tensor([[j for j in range(n) if j != i] for i in range(n)])
        self._heals = torch.tensor([[unit.heals > 0] for unit in force.units[:n]])

    def parse(self, obs: Tensor) -> _ParsedObservation:
        force, n, m = self._force, self._force.n, self._force.m
        _, enemies, allies, _ = obs.split(self._sizes, -1)
        enemies, full = enemies.unflatten(-1, (m, -1)), self._full.to(obs)
        enemy_points = enemies[..., 4] * full[:, 0]
        if force.shielded[1]:
            enemy_points = enemy_points + enemies[..., 5] * full[:, 1]
        ally_health = None
        if force.healers and n > 1:
            allies = allies.unflatten(-1, (n - 1, -1))
            health = torch.where(allies[..., 0] > 0, allies[..., 4], 1.0)
            ally_health = obs.new_ones(*obs.shape[:2], n)
            ally_health = ally_health.scatter(2, self._teammates.to(obs.device).expand(len(obs), -1, -1), health)
        distance = torch.where(enemies[..., 1] > 0, enemies[..., 1] * SIGHT, _FAR)
        return _ParsedObservation(
            force=force,
            distance=distance,
            offset=enemies[..., 2:4] * SIGHT,
            enemy_points=enemy_points,
            ally_health=ally_health,
            heals=self._heals.to(obs.device),
        )


@dataclass(frozen=True)
class _ParsedObservation:
    """Visible features of a side.

    Attributes:
        force: Units of the map.
        distance: [B, n, m], distance to each enemy, large if not visible.
        offset: [B, n, m, 2], from each unit to each enemy.
        enemy_points: [B, n, m], remaining health and shield of each enemy.
        ally_health: [B, n, n], fraction of health of teammates; 1 for the unit itself and invisible ones; None without
            healers.
        heals: [n, 1] bool, True for healers.
    """

    force: Force
    distance: Tensor
    offset: Tensor
    enemy_points: Tensor
    ally_health: Tensor | None
    heals: Tensor


def _attack(parsed: _ParsedObservation, mask: Tensor, alive: Tensor, weakest: bool, advance: bool) -> Tensor:
    """[B, n]: action of each unit. mask: [B, n, A]; alive: [B, n]; advance: units without a visible enemy move east."""
    force = parsed.force
    cost = parsed.enemy_points if weakest else parsed.distance
    cost = pad(cost, (0, force.slots - force.m), value=_FAR)
    if parsed.ally_health is not None:
        cost = torch.where(parsed.heals, pad(parsed.ally_health, (0, force.slots - force.n), value=_FAR), cost)
    valid = mask[..., FIRST_TARGET:]
    target = cost.masked_fill(~valid, 2 * _FAR).argmin(2) + FIRST_TARGET
    distance, nearest = parsed.distance.min(2)
    direction = parsed.offset.gather(2, nearest[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    wait = torch.where(mask[..., _EAST], _EAST, STOP) if advance else STOP
    walk = torch.where(distance < SIGHT, _legal_move(mask, direction), wait)
    return torch.where(alive, torch.where(valid.any(2), target, walk), NOOP)


def _legal_move(mask: Tensor, direction: Tensor) -> Tensor:
    """[B, n]: legal move closest to the direction `direction` [B, n, 2]."""
    gain = direction @ direction.new_tensor(MOVES).T
    return gain.masked_fill(~mask[..., _FIRST_MOVE:FIRST_TARGET], -_FAR).argmax(2) + _FIRST_MOVE
