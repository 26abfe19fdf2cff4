"""Whole episodes of built-in worlds with one role, by any player."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coterie.envs.scripts import script_of
from coterie.envs.world import State, World, WorldEnv
from coterie.schema import Choice
from coterie.types import Action, Row

Player = Callable[[Any, State], dict[str, Action]]
"""What all agents do, by who knows the world and its whole state."""


def at_random(row: Row, generator: torch.Generator) -> dict[str, Action]:
    """Uniform among the open choices, as `algo=random` plays."""
    ((role, mask),) = row.action_mask.items()
    drawn = torch.multinomial(mask.float().flatten(0, 1), 1, generator=generator)
    return {role: Action(drawn.view(*mask.shape[:2], 1), None)}


def by_script(family: str, script: str) -> Player:
    """Acts by a script of the family's worlds, which sees no more than the agents."""
    made: dict[str, Callable[[Row], dict[str, Action]]] = {}

    def play(world: Any, state: State) -> dict[str, Action]:
        name = f"{family}/{world.spec.name}"
        if name not in made:
            (team,) = world.spec.default_teams()
            made[name], _, _ = script_of(team, Choice(name=name, params=world.config), script)
        return made[name](row_of(world, state))

    return play


def row_of(world: World, state: State) -> Row:
    """What a world shows of a state in the middle of an episode."""
    view, copies = world.view(state), len(next(iter(state.values())))
    lives = torch.ones(copies, world.spec.n, dtype=torch.bool) if view.alive is None else view.alive
    return Row(view.obs, view.action_mask, view.state, lives, lives, torch.ones(copies, dtype=torch.bool))


def played(env: WorldEnv, player: Player | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One episode of every copy: the team's returns [B] and the metrics at its end, [B] each. player: None plays at
    random.
    """
    row = env.reset(0)
    generator = torch.Generator().manual_seed(1)
    total, over = torch.zeros(env.copies), torch.zeros(env.copies, dtype=torch.bool)
    metrics = {key: torch.zeros(env.copies) for key in env.spec.metrics}
    while not over.all():
        action = at_random(row, generator) if player is None else player(env.world, env.state_dict()["state"])
        result, row = env.step(action)
        total += torch.where(over, 0.0, result.group_reward[:, 0] + result.reward.sum(1))
        ends = (result.episode_terminated | result.episode_truncated) & ~over
        metrics = {key: torch.where(ends, result.metrics[key], value) for key, value in metrics.items()}
        over |= ends
    return total, metrics
