"""All probes: exact returns and values compared with play, negative controls, errors, pictures."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import UserError
from coterie.envs.make import make
from coterie.envs.worlds.probe import SCENARIOS
from probeplay import GAMMA, is_close_to, make_env, play_episodes, probe_of, step_discrete, world_state

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SCENARIOS),
    ("action", {"choices": 5, "good": 3}),
    ("additive", {}),
    ("constant", {"reward": -2}),
    ("continuous", {"follow": True}),
    ("continuous", {"target": -1.5}),
    ("delayed", {"length": 5}),
    ("endless", {"terminate_at_limit": True, "episode_limit": 4}),
    ("flat", {"actions": "continuous"}),
    ("image", {"size": 24, "channels": 3}),
    ("masked", {"length": 4}),
    ("memory", {"delay": 6, "cues": 3}),
    ("memory", {"delay": 0}),
    ("roles", {"agents": 4}),
    ("sacrifice", {"length": 2, "lure": 0.2}),
    ("sum", {"agents": 3}),
]
BLIND = ("both", "hybrid", "image", "multi_discrete", "observation")


@pytest.mark.parametrize(
    ("name", "params", "best", "random"),
    [
        ("constant", {}, 1, 1),
        ("observation", {}, 0, 0),
        ("delayed", {}, 1, 1),
        ("action", {}, 1, 0),
        ("action", {"choices": 5, "good": 3}, 1, -0.6),
        ("both", {}, 1, 0),
        ("endless", {}, 10, 10),
        ("masked", {}, 1.5, 0.75),
        ("memory", {}, 1, 0),
        ("memory", {"cues": 4}, 1, -0.5),
        ("roles", {"agents": 3}, 3, 1),
        ("additive", {}, 5, 7 / 3),
        ("irrelevant", {}, 1, 0),
        ("sacrifice", {}, 1, 0.75),
        ("sum", {}, 0, -5 / 3),
        ("continuous", {}, 0, -19 / 12),
        ("continuous", {"follow": True}, 0, -5 / 3),
        ("flat", {}, 1, 1),
        ("multi_discrete", {}, 1, 13 / 36),
        ("hybrid", {}, 1, -1 / 12),
        ("image", {}, 1, 0.25),
    ],
)
def test_best_and_random_returns_have_known_values(name: str, params: dict[str, Any], best: float, random: float):
    world = probe_of(make_env(name, **params))
    assert world.best_return() == pytest.approx(best)
    assert world.random_return() == pytest.approx(random)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_optimal_play_has_the_best_return_and_its_discounted_return_is_the_value(name: str, params: dict[str, Any]):
    env = make_env(name, 2000, **params)
    total, discounted, value = play_episodes(env, best=True)
    assert is_close_to(total, probe_of(env).best_return())
    if (name, params) == ("endless", {}):  # the value includes rewards after truncation
        discounted = discounted + GAMMA**10 / (1 - GAMMA)
    assert is_close_to(discounted - value, 0)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_random_play_has_the_random_return(name: str, params: dict[str, Any]):
    env = make_env(name, 4000, **params)
    total, _, _ = play_episodes(env, best=False)
    assert is_close_to(total, probe_of(env).random_return())
    best = probe_of(env).best_return()
    assert best >= probe_of(env).random_return()


def test_a_wrong_random_return_is_detected():
    total, _, _ = play_episodes(make_env("masked", 20_000), best=False)
    assert not is_close_to(total, 0.78)


@pytest.mark.parametrize("name", BLIND)
def test_blind_agents_observe_zeros_and_have_the_value_of_a_guess(name: str):
    env = make_env(name, 16, blind=True)
    world = probe_of(env)
    timestep = env.reset()
    assert not timestep.obs["agent"].any()
    assert make_env(name, 16).reset().obs["agent"].any()
    value = world.best_value(world_state(env), GAMMA)
    assert (value == (world.reference.control_return or 0)).all()


def test_a_good_choice_that_does_not_exist_raises_a_one_line_error():
    with pytest.raises(UserError, match=r"env\.good=2: no such choice\. Expected 0 to 1\.$"):
        make("probe/action", {"choices": 2, "good": 2})


def test_pictures_show_masks_and_dead_agents():
    masked = make_env("masked", 32)
    timestep = masked.reset()
    at = int(timestep.obs["agent"][:, 0, 0].argmax())
    state = {name: value[at : at + 1] for name, value in world_state(masked).items()}
    (line,) = probe_of(masked).picture(state).lines
    assert [cell.masked for cell in line.cells] == [False, False, True]
    assert [cell.best for cell in line.cells] == [False, True, False]
    sacrifice = make_env("sacrifice")
    step_discrete(sacrifice, 1, 0)
    assert [line.name for line in probe_of(sacrifice).picture(world_state(sacrifice)).lines] == [
        "agent_0 (dead)",
        "agent_1",
    ]
