"""Kitchens by name and by drawing: rules, rewards, parameters, random starts, observations, cooks and pictures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.config.samplers import Constant, Integers
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs import registry
from coterie.envs.make import make
from coterie.envs.script_registry import load_script
from coterie.envs.worlds.overcooked import LAYOUTS
from coterie.envs.worlds.overcooked.kitchen import ACTIONS, DISH, NOTHING, ONION, SOUP, drawn_kitchen
from coterie.envs.worlds.overcooked.observations import LAYERS
from coterie.envs.worlds.overcooked.overcooked import ROLE, Overcooked
from coterie.envs.worlds.world import Outcome, State, WorldEnv

CPU = torch.device("cpu")
SMALL = "XPOX/X12X/XSDX"
"""Agents at the cells 5 and 6 below the pot 1 and the onions 2, above the serving window 9 and the dishes 10."""


def make_world(layout: str | None = SMALL, **params: Any) -> Overcooked:
    maker = registry.environment("overcooked/cramped_room")
    return cast(Overcooked, maker(maker.Config(layout=layout, **params), with_state=True))


def env_of(name: str, num_envs: int = 1, **params: Any) -> WorldEnv:
    env = make(f"overcooked/{name}", params, num_envs, 0, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def start(world: Overcooked, **entries: Any) -> State:
    """The initial state of one environment with other entries."""
    state = world.reset(torch.zeros(1, world.reset_noise_size))
    return state | {name: torch.tensor([value]) for name, value in entries.items()}


def play(world: Overcooked, state: State, *steps: str) -> tuple[State, list[Outcome]]:
    """Plays steps such as `interact stay`, the actions of both agents."""
    outcomes = []
    for names in steps:
        chosen = torch.tensor([[[ACTIONS.index(name)] for name in names.split()]])
        state, outcome = world.step(state, {ROLE: Action(chosen)}, None)
        outcomes.append(outcome)
    return state, outcomes


def rewards(outcomes: list[Outcome]) -> list[tuple[float, list[float]]]:
    """Group reward and own rewards of each step."""
    return [(float(cast(torch.Tensor, one.group_reward)), one.reward[0].tolist()) for one in outcomes]


def test_the_names_are_the_layouts_of_the_package():
    assert list(LAYOUTS) == [name.partition("/")[2] for name in registry.environments() if "overcooked/" in name]
    sizes = {name: (drawn_kitchen(rows).height, drawn_kitchen(rows).width) for name, rows in LAYOUTS.items()}
    assert sizes == {
        "cramped_room": (4, 5),
        "asymmetric_advantages": (5, 9),
        "coordination_ring": (5, 5),
        "forced_coordination": (5, 5),
        "counter_circuit_o_1order": (5, 8),
    }
    with pytest.raises(UserError, match="counter_circuit_o_1order"):
        make("overcooked/counter_circuit")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("XPX/X1X", "there are 0 cells 2"),
        ("XPOX/X112X/XSDX", "rows of 4, 5, 4 cells"),
        ("XPTX/X12X/XSDX", "'T' is none of X"),
        ("XPOX/X12./XSDX", "floor at the edge"),
        ("XPXX/X12X/XSDX", "no O \\(onions\\)"),
        ("XPOX/X12X/XXDX", "no S \\(serving window\\)"),
    ],
)
def test_mistakes_in_a_drawing_are_named(layout: str, message: str):
    with pytest.raises(UserError, match=f"overcooked/cramped_room.*{message}"):
        make("overcooked/cramped_room", {"layout": layout})


def test_images_of_kitchens_that_are_too_small_for_convolutions_are_refused():
    with pytest.raises(UserError, match="observation_type=image: the kitchen has 4 x 5 cells"):
        make("overcooked/cramped_room", {"observation_type": "image"})


def test_a_soup_is_cooked_plated_and_served():
    world = make_world(cook_time=3, shaping=2)
    full = [0, SOUP + 2, *[0] * 10]
    state = start(world, held=[ONION, NOTHING], item=full, direction=[0, 1])
    state, outcomes = play(world, state, "interact interact", "stay north", "west stay", "north stay")
    # The dish is useful for the pot that was not full before the step.
    assert rewards(outcomes) == [(0, [6, 6]), (0, [0, 0]), (0, [0, 0]), (0, [0, 0])]
    assert state["tick"].tolist() == [[3]]
    state = state | {"held": torch.tensor([[DISH, NOTHING]])}
    state, outcomes = play(world, state, "interact stay", "south stay", "interact stay", "interact stay")
    assert rewards(outcomes) == [(0, [10, 0]), (0, [0, 0]), (20, [0, 0]), (0, [0, 0])]
    assert (state["tick"].tolist(), state["item"].sum(), state["held"].tolist()) == ([[-1]], 0, [[NOTHING, NOTHING]])
    metrics = outcomes[-1].metrics
    assert callable(metrics)
    assert {name: value.tolist() for name, value in metrics().items()} == {
        "deliveries": [1],
        "onions_potted": [1],
        "soups_plated": [1],
    }


def test_a_full_pot_that_does_not_cook_takes_no_onion():
    world = make_world(auto_cook=False)
    state, _ = play(world, start(world, held=[ONION, NOTHING], item=[0, SOUP + 3, *[0] * 10]), "interact stay")
    assert (state["held"].tolist(), int(state["item"][0, 1])) == ([[ONION, NOTHING]], SOUP + 3)


def test_no_shaped_reward_for_dishes_that_are_not_needed():
    world = make_world(shaping=1)
    cooking = {"item": [0, SOUP + 3, *[0] * 10], "tick": [5]}
    for entries, reward in (
        ({}, 0),  # nothing in the pot
        (cooking, 3),
        (cooking | {"held": [DISH, NOTHING]}, 0),  # the other agent has a dish
        ({"item": [DISH, SOUP + 3, *[0] * 10], "tick": [5]}, 0),  # there is a dish on a counter
    ):
        _, outcomes = play(world, start(world, direction=[0, 1], **entries), "stay interact")
        assert rewards(outcomes) == [(0, [0, reward])]


def test_observations_show_layers_by_rows_with_the_own_agent_first():
    world = make_world(cook_time=9, episode_limit=50)
    tick = start(world, held=[SOUP + 2, DISH], item=[ONION, SOUP + 3, *[0] * 10], tick=[4], time=11)
    image = world.observe(tick | {"time": torch.tensor([11])}).obs[ROLE][0].view(2, 3, 4, -1)
    assert image.shape[-1] == len(LAYERS) == 26

    def cells(agent: int, layer: str) -> dict[tuple[int, int], float]:
        shown = image[agent, :, :, LAYERS.index(layer)]
        return {(int(row), int(column)): float(shown[row, column]) for row, column in shown.nonzero()}

    assert cells(0, "own_position") == cells(1, "other_position") == cells(0, "own_north") == {(1, 1): 1}
    assert cells(1, "own_position") == cells(0, "other_position") == cells(1, "own_north") == {(1, 2): 1}
    assert cells(0, "remaining_time") == {(0, 1): 5}
    assert cells(0, "onions_in_soup") == {(0, 1): 3, (1, 1): 2}
    assert cells(0, "soup_ready") == {(1, 1): 1}
    assert (cells(0, "onions"), cells(0, "dishes")) == ({(0, 0): 1}, {(1, 2): 1})
    assert len(cells(0, "urgency")) == 12
    assert len(cells(0, "counter")) == 6


def test_the_layer_urgency_appears_forty_steps_before_the_limit():
    world = make_world(episode_limit=50)
    for time, urgent in ((10, 0), (11, 1)):
        image = world.observe(start(world) | {"time": torch.tensor([time])}).obs[ROLE].view(1, 2, 12, -1)
        assert image[..., LAYERS.index("urgency")].unique().tolist() == [urgent]
    endless = make_world(episode_limit=None)
    image = endless.observe(start(endless) | {"time": torch.tensor([10**6])}).obs[ROLE].view(1, 2, 12, -1)
    assert image[..., LAYERS.index("urgency")].unique().tolist() == [0]


def test_flattened_observations_and_the_state_have_the_numbers_of_the_image():
    kitchen = "XXPXX/X1.2X/X...X/XO.DX/XXSXX"
    image, flat = make_world(kitchen, observation_type="image"), make_world(kitchen)
    first = image.observe(start(image))
    assert first.obs[ROLE].shape == (1, 2, 5, 5, 26)
    assert image.spec.roles[0].observation_space.shape == (5, 5, 26)
    assert torch.equal(first.obs[ROLE].flatten(2), flat.observe(start(flat)).obs[ROLE])
    assert torch.equal(first.state["global"], first.obs[ROLE][:, 0].flatten(1))


def test_starts_can_be_random():
    env = env_of("coordination_ring", 3000, random_positions=True, random_objects=0.5)
    env.reset(1)
    state = env.state_dict()["state"]
    assert (state["cell"][:, 0] != state["cell"][:, 1]).all()
    places = torch.bincount(state["cell"].flatten(), minlength=25)
    assert int((places > 0).sum()) == 8
    assert abs(places[places > 0] / 750 - 1).max() < 0.15
    pots = state["item"][:, env.world.kitchen.pots]  # pyright: ignore[reportAttributeAccessIssue]
    assert abs(torch.bincount(pots.flatten(), minlength=6) / 6000 - torch.tensor([3, 0, 0, 1, 1, 1]) / 6).max() < 0.03
    assert abs((state["tick"] == 0).float().mean() - 0.25) < 0.03
    assert not (state["tick"][pots == NOTHING] == 0).any()
    share = torch.tensor([0.5, 0.3, 0.1, 0.1 / 3, 0.1 / 3, 0.1 / 3])
    assert abs(torch.bincount(state["held"].flatten(), minlength=6) / 6000 - share).max() < 0.03


def test_shaping_cook_time_and_objects_can_vary_between_environments():
    env = env_of("cramped_room", 200, cook_time=8)
    samplers = {"cook_time": Integers(integers=(1, 8)), "shaping": Constant(value=0.5)}
    env.set_samplers(samplers | {"random_objects": Constant(value=1.0)})
    timestep = env.reset(0)
    state = env.state_dict()["state"]
    remaining = timestep.obs[ROLE][:, 0].view(200, 20, -1)[..., LAYERS.index("remaining_time")].amax(1)
    assert torch.equal(remaining, state["cook_time"])
    assert remaining.unique().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    for expected in (1, 0.5):
        env = env_of("cramped_room", 2, shaping=1)
        if expected < 1:
            env.set_samplers({"shaping": Constant(value=expected)})
        env.reset(0)
        found = env.state_dict()
        found["state"] |= {"held": torch.tensor([[ONION, 0]] * 2), "cell": torch.tensor([[7, 13]] * 2)}
        env.load_state_dict(found)
        result, _ = env.step({ROLE: Action(torch.tensor([[[5], [4]]] * 2))})
        assert result.reward.tolist() == [[3 * expected, 0]] * 2


@pytest.mark.slow
def test_cooks_serve_in_all_layouts_from_random_starts():
    for k, name in enumerate(LAYOUTS):
        auto_cook = k % 2 == 0
        positions = name not in ("asymmetric_advantages", "forced_coordination")  # both may start in one room
        params = {"auto_cook": auto_cook, "random_positions": positions, "random_objects": 0.3}
        keys = [f"env.{key}={str(value).lower()}" for key, value in params.items()]
        config = resolve([f"env=overcooked/{name}", "algo=random", *keys]).config
        env = env_of(name, 4, **params)
        act, script, _ = load_script(env.spec.default_teams()[0], config.env, None)
        assert script == "cook"
        timestep, served = env.reset(0), torch.zeros(4)
        for _ in range(120):
            result, timestep = env.step(act(timestep))
            served += result.group_reward[:, 0] / 20
        assert served.min() >= 2, (name, served)


def test_pictures_show_items_directions_and_pots():
    world = make_world(cook_time=3)
    states = [start(world), start(world, held=[ONION, NOTHING])]
    states += [play(world, states[-1], action)[0] for action in ("interact stay", "east stay")]
    states += [start(world, item=[DISH, SOUP + 3, *[0] * 10], tick=[tick]) for tick in (1, 3)]
    pictures = [world.render(state, 240) for state in states]
    assert pictures[0].shape == (pictures[0].shape[0], 240, 3)
    assert all((a != b).any() for a, b in pairwise(pictures))
    assert world.render(states[0], 64).shape[1:] == (64, 3)
