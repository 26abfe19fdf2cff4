"""Foraging: rules by literal positions, names, parameters, the script, images."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

import coterie
from coterie.config.samplers import parse_sampler
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs import registry
from coterie.envs.make import make
from coterie.envs.worlds.foraging.foraging import ACTIONS, Foraging, field_state
from coterie.envs.worlds.world import Outcome, State, WorldEnv


def make_world(name: str, **params: Any) -> Foraging:
    maker = registry.environment(f"foraging/{name}")
    return cast(Foraging, maker(maker.Config(**params), with_state=True))


def env_of(name: str, num_envs: int, **params: Any) -> WorldEnv:
    env = make(f"foraging/{name}", params, num_envs, 0, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def placed(world: Foraging, food: dict[tuple[int, int], int], agents: dict[tuple[int, int], int]) -> State:
    """A state with food and agents on squares (row, column), by their levels."""
    side = world.config.size
    field = torch.zeros(1, side, side, dtype=torch.int64)
    for square, level in food.items():
        field[0][square] = level
    positions, levels = torch.tensor([list(agents)]), torch.tensor([list(agents.values())])
    return field_state(field, positions, levels, foods=world.config.foods)


def act(world: Foraging, state: State, *names: str) -> tuple[State, Outcome]:
    chosen = torch.tensor([[[ACTIONS.index(name)] for name in names]])
    return world.step(state, {"agent": Action(chosen)}, None)


def test_the_episode_ends_with_the_last_food():
    world = make_world("5x5-2p-1f")
    state = placed(world, {(1, 1): 2}, {(0, 1): 2, (4, 4): 1})
    after, outcome = act(world, state, "load", "none")
    assert outcome.terminated is not None
    assert outcome.terminated.tolist() == [True]
    assert outcome.reward.tolist() == [[1.0, 0.0]]
    assert callable(outcome.metrics)
    assert {key: value.tolist() for key, value in outcome.metrics().items()} == {"collected": [1.0], "done": [1.0]}
    obs = world.observe(after).obs["agent"]
    assert obs[0, 0].tolist() == [-1, -1, 0, 0, 1, 2, 4, 4, 1]
    assert obs[0, 1].tolist() == [-1, -1, 0, 4, 4, 1, 0, 1, 2]


def test_the_state_for_critics_holds_the_whole_field():
    world = make_world("1s-6x6-2p-2f")
    state = placed(world, {(1, 1): 3, (4, 4): 2}, {(0, 1): 1, (5, 0): 2})
    observation = world.observe(state)
    assert observation.state["global"].tolist() == [[1, 1, 3, 4, 4, 2, 0, 1, 1, 5, 0, 2]]
    assert observation.obs["agent"][0, 1].tolist() == [-1, -1, 0, -1, -1, 0, 1, 0, 2, -1, -1, 0]


def test_actions_are_masked_on_request_only():
    assert not env_of("8x8-2p-2f", 2).reset(0).action_mask
    mask = env_of("8x8-2p-2f", 2, action_mask=True).reset(0).action_mask["agent"]
    assert mask.shape == (2, 2, 6)
    assert bool(mask[..., 0].all())
    assert not bool(mask.all())


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("8x8-2p-2g", {}, "no environment"),
        ("8x9-2p-2f", {}, "no environment"),
        ("5x5-2p-1f", {"players": 26}, "players=26 do not fit on 25 squares"),
        ("5x5-2p-1f", {"min_player_level": 3}, "min_player_level=3 is above max_player_level=2"),
        ("5x5-2p-1f", {"min_food_level": 3}, "the highest level of food, which can be 2"),
    ],
)
def test_mistakes_are_explained(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        make(f"foraging/{name}", params)


def test_version_2_draws_lower_levels_of_food():
    def levels(**params: Any) -> set[int]:
        world = make_world("8x8-2p-1f", min_player_level=2, **params)
        state = world.reset(torch.rand(2000, world.reset_noise_size, generator=torch.Generator().manual_seed(0)))
        return set(state["food_level"].flatten().tolist())

    assert levels() == {1, 2, 3, 4}
    assert levels(version=2) == {1, 2, 3}
    assert levels(version=2, coop=True) == levels(coop=True) == {4}


def test_parameters_vary_by_episode():
    env = env_of("8x8-3p-3f", 400)
    samplers = {"size": {"integers": [4, 6]}, "foods": 1, "coop": 1, "max_player_level": 1, "penalty": 0.5, "sight": 2}
    env.set_samplers({name: parse_sampler(value) for name, value in samplers.items()})
    env.reset(0)
    state = env.state_dict()["state"]
    assert set(state["size"].tolist()) == {4.0, 5.0, 6.0}
    assert bool((state["players"] < state["size"].view(-1, 1, 1)).all())
    assert bool((state["food"] < state["size"].view(-1, 1, 1) - 1).all())
    assert set((state["food_level"] > 0).sum(1).tolist()) <= {0, 1}
    assert set(state["food_level"].flatten().tolist()) <= {0, 3}
    for _ in range(8):  # agents stay on the smaller field
        env.step({"agent": Action(torch.randint(2, 6, (400, 3, 1)))})
    state = env.state_dict()["state"]
    assert bool((state["players"] < state["size"].view(-1, 1, 1)).all())
    assert bool((state["players"] == state["size"].view(-1, 1, 1) - 1).any())
    near = make_world("2s-8x8-3p-3f").observe({k: v for k, v in state.items() if k != "sight"})
    assert torch.equal(env.world.observe(state).obs["agent"], near.obs["agent"])


def test_the_script_collects_nearly_all_food():
    found, random = (
        coterie.evaluate(algo=algo, env="foraging/6x6-3p-2f-coop", episodes=100, progress="off")
        for algo in ("scripted", "random")
    )
    assert found["teams"]["team"]["return_mean"] > 0.95
    assert random["teams"]["team"]["return_mean"] < 0.6
    assert found["metrics"]["collected"] == pytest.approx(found["teams"]["team"]["return_mean"])


def test_the_script_needs_the_whole_field():
    with pytest.raises(UserError, match=r"env.sight=2: the script needs the whole field"):
        coterie.evaluate(algo="scripted", env={"name": "foraging/5x5-2p-1f", "sight": 2}, episodes=1, progress="off")


def test_images_show_agents_and_food():
    world = make_world("5x5-3p-1f")
    state = placed(world, {(3, 3): 1}, {(0, 0): 1, (0, 1): 2, (4, 4): 1})
    image = world.render(state, 240)
    assert image.shape == (240, 240, 3)
    assert world.render(state, 60).shape == (60, 60, 3)
    shared = placed(world, {(3, 3): 1}, {(0, 0): 1, (1, 1): 2, (4, 4): 1})
    shared["players"][0, 1] = torch.tensor([0, 0])
    assert (world.render(shared, 240) != image).any()
