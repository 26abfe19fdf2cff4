"""Foraging equals the package `lbforaging` step by step, and its initial states have the same distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import lbforaging
import numpy as np
import pytest
import torch
from lbforaging.foraging.environment import ForagingEnv

from coterie.core.types import Action
from coterie.envs import registry
from coterie.envs.worlds.foraging import find, settings
from coterie.envs.worlds.foraging.foraging import Foraging, field_state
from coterie.envs.worlds.world import State

EPISODES, EPISODES_OF_COOPERATION = 40, 300  # in which food is collected rarely


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
    "sight of one, cooperation": ("1s-7x7-2p-2f-coop", {"episode_limit": 15}),
    "penalty": ("5x5-2p-2f-pen", {"episode_limit": 20}),
    "many agents": ("5x5-8p-1f", {"episode_limit": 8, "max_player_level": 4}),
    "single food of level one": ("6x6-2p-3f-ind", {"episode_limit": 20}),
    "layers of the whole field without levels": (
        *("grid-5x5-4p-2f-coop", {"episode_limit": 10, "observe_agent_levels": False}),
    ),
    "other rewards": (
        "3s-6x6-3p-2f",
        {"episode_limit": 15, "normalize_reward": False, "observe_agent_levels": False, "penalty": 0.3}
        | {"min_player_level": 2, "max_player_level": 5, "min_food_level": 2, "max_food_level": 9},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_random_episodes_equal_those_of_the_package(suite: str):
    name, params = SUITES[suite]
    world = make_world(name, **params, action_mask=True)
    episodes = EPISODES_OF_COOPERATION if world.config.coop else EPISODES
    packages = Packages(world, episodes, seed=0)
    generator = torch.Generator().manual_seed(1)
    state = packages.state(world.config.foods)
    running = torch.ones(episodes, dtype=torch.bool)
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
    assert collected > 5
    assert shared or world.config.players < 5  # agents can share a square if another one is in the way


def registered_tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Constructor arguments of all tasks that the package registers, by name, those with layers included."""
    found = {name: dict(spec.kwargs) for name, spec in gymnasium.registry.items() if name.startswith("Foraging-")}
    monkeypatch.setattr(lbforaging, "register", lambda id, entry_point, kwargs: found.setdefault(id, kwargs))
    lbforaging.register_grid_envs()
    return {name.removeprefix("Foraging-").removesuffix("-v3"): kwargs for name, kwargs in found.items()}


def test_names_stand_for_the_settings_that_the_package_registers(monkeypatch: pytest.MonkeyPatch):
    tasks = registered_tasks(monkeypatch)
    assert len(tasks) > 1000
    unset = {"coop": False, "grid_observation": False, "penalty": 0.0, "max_food_level": None, "sight": None}
    for name, kwargs in tasks.items():
        assert find(name) is not None, name
        own = unset | settings(name)
        assert kwargs == {
            "players": own["players"],
            "min_player_level": 1,
            "max_player_level": 2,
            "field_size": (own["size"], own["size"]),
            "min_food_level": 1,
            "max_food_level": own["max_food_level"],
            "max_num_food": own["foods"],
            "sight": own["sight"] or own["size"],
            "max_episode_steps": 50,
            "force_coop": own["coop"],
            "grid_observation": own["grid_observation"],
            **({"penalty": own["penalty"]} if "penalty" in kwargs else {}),
        }, name


@pytest.mark.parametrize("name", ["8x8-2p-2f", "2s-10x10-3p-3f", "8x8-2p-2f-coop"])
def test_defaults_and_observation_spaces_are_those_of_the_registered_task(name: str):
    world = make_world(name)
    env = gymnasium.make(f"Foraging-{name}-v3", disable_env_checker=True).unwrapped
    assert isinstance(env, ForagingEnv)
    space = world.spec.roles[0].observation_space
    assert gymnasium.spaces.Tuple([space] * world.config.players) == env.observation_space
    assert world.spec.episode_limit == env._max_episode_steps
    assert gymnasium.spaces.Tuple([world.spec.roles[0].action_space] * world.config.players) == env.action_space


SAMPLES = 200_000


def properties(state: State) -> dict[str, torch.Tensor]:
    """Properties of initial states as whole numbers [B, k] from -15 to 16."""
    food, food_level = state["food"], state["food_level"]
    players, levels = state["players"], state["levels"]
    return {
        "first food": food[:, 0],
        "last food": food[:, -1],
        "between food": food[:, 1] - food[:, 0],
        "levels": torch.cat((levels[:, :2], food_level[:, :2]), 1),
        "total level": torch.stack((state["spawned"], (food_level > 0).sum(1)), 1),
        "first agent": players[:, 0],
        "between agents": players[:, -1] - players[:, 0],
        "to food": players[:, 0] - food[:, 0],
    }


def chi_square_excess(values: torch.Tensor, others: torch.Tensor) -> float:
    """Chi-square of the frequencies of `values` [B, k] against those of a larger sample, in standard deviations above
    its mean. Rare values count together, so that at least 5 of each are expected.
    """
    radix = 32 ** torch.arange(values.shape[1])
    codes = [((x + 15) * radix).sum(1) for x in (values, others)]
    counts, expected = (torch.bincount(code, minlength=int(max(c.max() for c in codes)) + 1) for code in codes)
    scale = len(values) / len(others)
    common = expected * scale >= 5
    seen = torch.cat((counts[common], counts[~common].sum(0, keepdim=True))).double()
    mean = torch.cat((expected[common], expected[~common].sum(0, keepdim=True))) * scale
    enough = mean >= 5
    # Frequencies of the larger sample are estimates, too, which adds their variance.
    chi = float(((seen - mean)[enough] ** 2 / (mean[enough] * (1 + scale))).sum())
    freedom = int(enough.sum()) - 1
    return 0.0 if freedom == 0 else (chi - freedom) / (2 * freedom) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resets", "params"),
    [
        ("5x5-3p-2f", 1500, {"max_player_level": 3}),  # often without a square for the second item
        ("8x8-4p-4f", 4000, {"min_food_level": 2, "max_food_level": 5}),
    ],
)
def test_initial_states_have_the_distribution_of_the_package(name: str, resets: int, params: dict[str, Any]):
    world = make_world(name, **params)
    package = make_package(constructor_arguments(world))
    package._make_gym_obs = tuple  # pyright: ignore[reportAttributeAccessIssue] - not needed, and slow
    package.reset(seed=1)
    fields, positions, levels = [], [], []
    for _ in range(resets):
        for player in package.players:
            player.position = None  # a new environment has no agents on the field yet
        package.reset()
        fields.append(package.field)
        positions.append([player.position for player in package.players])
        levels.append([int(player.level or 0) for player in package.players])
    theirs = field_state(
        torch.from_numpy(np.stack(fields)), torch.tensor(positions), torch.tensor(levels), foods=world.config.foods
    )
    generator = torch.Generator().manual_seed(0)
    ours = world.reset(torch.rand(SAMPLES, world.reset_noise_size, generator=generator))
    control = world.reset(torch.rand(SAMPLES, world.reset_noise_size, generator=generator) ** 1.1)
    expected, others = properties(ours), properties(control)
    excess = {key: chi_square_excess(value, expected[key]) for key, value in properties(theirs).items()}
    negative = [chi_square_excess(value, others[key]) for key, value in properties(theirs).items()]
    assert max(excess.values()) < 4, excess
    assert max(negative) > 4, negative
