"""Foraging equals the package `lbforaging` step by step, and its initial states have the same distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from lbforaging.foraging.environment import ForagingEnv

from coterie.config import registry
from coterie.core.types import Action
from coterie.envs.worlds.foraging.task import Foraging, field_state
from coterie.envs.worlds.world import State

EPISODES = 1000


def constructor_arguments(world: Foraging) -> dict[str, Any]:
    """Arguments of the package's constructor for a world's settings."""
    config = world.config
    return {
        "players": config.players,
        "min_player_level": config.min_player_level,
        "max_player_level": config.max_player_level,
        "field_size": (config.size, config.size),
        "min_food_level": config.min_food_level,
        "max_food_level": config.max_food_level,
        "max_num_food": config.foods,
        "sight": config.sight or config.size,
        "max_episode_steps": config.episode_limit,
        "force_coop": config.coop,
        "normalize_reward": config.normalize_reward,
        "grid_observation": config.grid_observation,
        "observe_agent_levels": config.observe_agent_levels,
        "penalty": config.penalty,
    }


def make_world(name: str, **params: Any) -> Foraging:
    maker = registry.environment(f"foraging/{name}")
    return cast(Foraging, maker(maker.Config(**params), with_state=True))


@dataclass(frozen=True)
class Everything:
    """Accepts all observations: the package checks each of them, which takes most of its time."""

    shape: tuple[int, ...]

    def contains(self, x: object) -> bool:
        return True


class Packages:
    """Environments of the package with the settings of a world."""

    def __init__(self, world: Foraging, count: int, seed: int):
        arguments = constructor_arguments(world)
        shape = world.spec.roles[0].observation_space.shape
        assert shape is not None
        if world.config.grid_observation:
            # The package's constructor fails: it gives the space of layers a shape of one axis.
            space = gymnasium.spaces.Box(0, 9, (3, shape[0], shape[1]))
            arguments["observation_space"] = space
        self._grid = world.config.grid_observation
        self.envs = []
        for k in range(count):
            env = make_package(arguments)
            env.observation_space = [Everything(shape)] * world.config.players  # pyright: ignore
            env.reset(seed=seed + k)
            self.envs.append(env)

    def state(self, foods: int) -> State:
        """The state of all environments; all food of the episode is still there."""
        field = torch.from_numpy(np.stack([env.field for env in self.envs]))
        positions = torch.tensor([[player.position for player in env.players] for env in self.envs])
        levels = torch.tensor([[int(player.level) for player in env.players] for env in self.envs])
        return field_state(field, positions, levels, foods=foods)

    def field(self) -> torch.Tensor:
        return torch.from_numpy(np.stack([env.field for env in self.envs])).long()

    def positions(self) -> torch.Tensor:
        return torch.tensor([[player.position for player in env.players] for env in self.envs])

    def observations(self) -> torch.Tensor:
        seen = torch.from_numpy(np.stack([np.stack(env.test_make_gym_obs()) for env in self.envs]))
        return self._as_ours(seen)

    def _as_ours(self, seen: torch.Tensor) -> torch.Tensor:
        """Coterie's images have their layers in the last axis."""
        return seen.movedim(2, -1) if self._grid else seen

    def masks(self) -> torch.Tensor:
        """Valid actions [B, P, 6] bool."""
        masks = torch.zeros(len(self.envs), len(self.envs[0].players), 6, dtype=torch.bool)
        for b, env in enumerate(self.envs):
            for p, player in enumerate(env.players):
                masks[b, p, [action.value for action in env._valid_actions[player]]] = True  # pyright: ignore
        return masks

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns observations, rewards and done."""
        results = [env.step(action) for env, action in zip(self.envs, actions.tolist(), strict=True)]
        seen = torch.from_numpy(np.stack([np.stack(result[0]) for result in results]))
        reward = torch.tensor([[float(x) for x in result[1]] for result in results], dtype=torch.float64)
        return self._as_ours(seen), reward, torch.tensor([bool(result[2]) for result in results])


def make_package(arguments: dict[str, Any]) -> ForagingEnv:
    arguments = dict(arguments)
    space = arguments.pop("observation_space", None)
    if space is None:
        return ForagingEnv(**arguments)

    class WithSpace(ForagingEnv):
        def _get_observation_space(self):
            return space

    return WithSpace(**arguments)


def field_of(state: State, size: int) -> torch.Tensor:
    """The field [B, size, size] of a state."""
    square = state["food"][..., 0] * size + state["food"][..., 1]
    field = torch.zeros(len(square), size * size + 1, dtype=torch.int64)
    there = torch.where(state["food_level"] > 0, square, size * size)
    return field.scatter(1, there, state["food_level"])[:, :-1].view(-1, size, size)


SUITES: dict[str, tuple[str, dict[str, Any]]] = {
    "registered": ("8x8-2p-2f", {"episode_limit": 20}),
    "cooperation": ("5x5-3p-1f-coop", {"episode_limit": 20}),
    "sight": ("2s-8x8-3p-3f", {"episode_limit": 20}),
    "sight of one, cooperation": ("1s-7x7-2p-2f-coop", {"episode_limit": 15}),
    "penalty": ("5x5-2p-2f-pen", {"episode_limit": 20}),
    "many agents": ("5x5-8p-1f", {"episode_limit": 8, "max_player_level": 4}),
    "single food of level one": ("6x6-2p-3f-ind", {"episode_limit": 20}),
    "layers": ("grid-2s-6x6-3p-2f", {"episode_limit": 15}),
    "layers of the whole field without levels": (
        *("grid-5x5-4p-2f-coop", {"episode_limit": 10, "observe_agent_levels": False}),
    ),
    "other rewards": (
        "3s-6x6-3p-2f",
        {
            "episode_limit": 15,
            "normalize_reward": False,
            "observe_agent_levels": False,
            "penalty": 0.3,
            "min_player_level": 2,
            "max_player_level": 5,
            "min_food_level": 2,
            "max_food_level": 9,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_1000_random_episodes_equal_those_of_the_package(suite: str):
    name, params = SUITES[suite]
    world = make_world(name, **params, action_mask=True)
    packages = Packages(world, EPISODES, seed=0)
    generator = torch.Generator().manual_seed(1)
    state = packages.state(world.config.foods)
    running = torch.ones(EPISODES, dtype=torch.bool)
    collected, shared = 0, False
    assert torch.equal(world.observe(state).obs["agent"], packages.observations())
    for t in range(1, params["episode_limit"] + 1):
        observation = world.observe(state)
        mask = packages.masks()
        assert torch.equal(observation.action_mask["agent"][running], mask[running])
        # Half of the actions are drawn among the valid ones, so that food is collected.
        anything = torch.randint(0, 6, mask.shape[:2], generator=generator)
        valid = torch.multinomial((mask * torch.tensor([1.0, 1, 1, 1, 1, 20])).flatten(0, 1), 1, generator=generator)
        free = torch.rand(mask.shape[:2], generator=generator) < 0.5
        action = torch.where(free, anything, valid.view(mask.shape[:2]))
        state, outcome = world.step(state, {"agent": Action(action.unsqueeze(-1))}, None)
        obs, reward, done = packages.step(action)
        assert outcome.terminated is not None
        assert torch.equal(field_of(state, world.config.size)[running], packages.field()[running])
        assert torch.equal(state["players"][running], packages.positions()[running])
        assert torch.equal(outcome.reward[running], reward.float()[running])
        assert torch.equal(world.observe(state).obs["agent"][running], obs[running])
        ended = outcome.terminated | (t >= params["episode_limit"])
        assert torch.equal(ended[running], done[running])
        collected += int((outcome.reward > 0)[running].any(1).sum())
        together = (state["players"].unsqueeze(1) == state["players"].unsqueeze(2)).all(-1).sum((1, 2))
        shared = shared or bool((together > world.config.players)[running].any())
        running = running & ~ended
    assert collected > 10
    assert shared or world.config.players < 5  # agents can share a square if another one is in the way
