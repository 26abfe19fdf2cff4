"""Whole episodes of built-in worlds with one role, played by any policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coterie.config.schema import Choice
from coterie.core.types import Action, Timestep
from coterie.envs.script_registry import load_script
from coterie.envs.worlds.world import State, World, WorldEnv

Player = Callable[[Any, State], dict[str, Action]]
"""Maps a world and its full state to the actions of all agents."""


def random_legal_action(timestep: Timestep, generator: torch.Generator) -> dict[str, Action]:
    """Samples uniformly among legal choices, like `algo=random`."""
    ((role, mask),) = timestep.action_mask.items()
    choice = torch.multinomial(mask.float().flatten(0, 1), 1, generator=generator)
    return {role: Action(choice.view(*mask.shape[:2], 1), None)}


def by_script(family: str, script: str) -> Player:
    """Returns a player that acts by a script of the family's worlds, which uses observations only."""
    loaded: dict[str, Callable[[Timestep], dict[str, Action]]] = {}

    def play(world: Any, state: State) -> dict[str, Action]:
        name = f"{family}/{world.spec.name}"
        if name not in loaded:
            (team,) = world.spec.default_teams()
            loaded[name], _, _ = load_script(team, Choice(name=name, params=world.config), script)
        return loaded[name](timestep_of(world, state))

    return play


def timestep_of(world: World, state: State) -> Timestep:
    """Returns the timestep of a state in the middle of an episode."""
    observation, num_envs = world.observe(state), len(next(iter(state.values())))
    alive = torch.ones(num_envs, world.spec.n, dtype=torch.bool) if observation.alive is None else observation.alive
    return Timestep(
        obs=observation.obs,
        action_mask=observation.action_mask,
        state=observation.state,
        alive=alive,
        first=alive,
        acted=torch.ones(num_envs, dtype=torch.bool),
    )


def play_episodes(env: WorldEnv, player: Player | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Plays one episode per environment, by the uniform random policy if `player` is None.

    Returns:
        The team's returns [B] and the metrics at the end of the episode, [B] each.
    """
    timestep = env.reset(0)
    generator = torch.Generator().manual_seed(1)
    returns, over = torch.zeros(env.num_envs), torch.zeros(env.num_envs, dtype=torch.bool)
    metrics = {key: torch.zeros(env.num_envs) for key in env.spec.metrics}
    while not over.all():
        if player is None:
            action = random_legal_action(timestep, generator)
        else:
            action = player(env.world, env.state_dict()["state"])
        step, timestep = env.step(action)
        returns += torch.where(over, 0.0, step.group_reward[:, 0] + step.reward.sum(1))
        ends = (step.episode_terminated | step.episode_truncated) & ~over
        metrics = {key: torch.where(ends, step.metrics[key], value) for key, value in metrics.items()}
        over |= ends
    return returns, metrics
