"""The warehouse equals the package `rware`: 40 episodes of each kind, from the package's states on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from coterie.core.types import Timestep
from coterie.envs.worlds.warehouse.scripts import couriers
from coterie.envs.worlds.warehouse.warehouse import FORWARD, ROLE, TOGGLE
from rwareplay import Pair, pair, shown, state_of

NAMES = ("cell", "direction", "carrying", "delivered", "shelves", "robots", "requested")
CROSSING = "xxgxx/x...x/g...g/x...x/xxgxx"


def compare(both: Pair, actions: Any, steps: int) -> dict[str, int]:
    """Steps both sides and compares everything after each step. Returns how often each kind of event occurred."""
    config, seen = both.world.config, both.world.observe(both.state)
    events = dict.fromkeys(("deliveries", "blocked", "loads", "unloads", "moves"), 0)
    for step in range(steps):
        before, action = both.state, actions(seen)
        outcome, seen, expected = both.step(action)
        after = state_of(both.native, both.world)
        for name in NAMES:
            assert torch.equal(both.state[name], after[name]), (name, step)
        given = seen.obs[ROLE]
        image = given["image"] if isinstance(given, dict) else given
        np.testing.assert_array_equal(image.numpy(), expected["obs"].astype(np.float32), strict=True)
        if isinstance(given, dict):
            np.testing.assert_array_equal(given["features"].numpy(), expected["features"], strict=True)
        np.testing.assert_array_equal(outcome.reward.numpy(), expected["reward"])
        at_limit = config.max_steps is not None and step + 1 >= config.max_steps
        inactive = torch.zeros(len(action), dtype=torch.bool) if outcome.terminated is None else outcome.terminated
        assert np.array_equal(inactive.numpy() | at_limit, expected["done"])
        events["moves"] += int((before["cell"] != after["cell"]).sum())
        events["loads"] += int(((before["carrying"] == 0) & (after["carrying"] > 0)).sum())
        events["unloads"] += int(((before["carrying"] > 0) & (after["carrying"] == 0)).sum())
    return events | {name: int(both.state[name].sum()) for name in ("deliveries", "blocked")}


def random_actions(both: Pair, seed: int, forward: float = 0.4) -> Any:
    """Random actions with more steps forward, and random messages."""
    config, generator = both.world.config, torch.Generator().manual_seed(seed)
    shape = (len(both.native), config.agents)

    def act(_: Any) -> torch.Tensor:
        chosen = torch.randint(0, TOGGLE + 1, shape, generator=generator)
        chosen[torch.rand(shape, generator=generator) < forward] = FORWARD
        bits = torch.randint(0, 2, (*shape, config.msg_bits), generator=generator)
        return torch.cat((chosen.unsqueeze(-1), bits), -1)

    return act


def courier_actions(both: Pair, seed: int, share: float) -> Any:
    """Actions of the courier, of which a random `share` is replaced by random actions."""
    generator, guess = torch.Generator().manual_seed(seed), random_actions(both, seed + 1)
    script = couriers(cast(Any, None), cast(Any, SimpleNamespace(params=both.world.config)))

    def act(seen: Any) -> torch.Tensor:
        timestep = cast(Timestep, SimpleNamespace(obs=seen.obs))
        planned, random = script(timestep)[ROLE].discrete, guess(seen)
        assert planned is not None
        swapped = torch.rand(planned.shape[:2], generator=generator) < share
        return torch.where(swapped.unsqueeze(-1), random, planned)

    return act


SETTINGS: list[tuple[str, int, dict[str, Any]]] = [
    ("tiny-2ag", 8, {"reward_type": "two_stage"}),
    ("tiny-4ag-hard", 4, {"sensor_range": 2, "reward_type": "global", "normalized_coordinates": True}),
    ("small-4ag", 4, {"msg_bits": 2}),
    ("medium-6ag", 4, {"max_inactivity_steps": 2, "observation_type": "image_dict"}),
    ("large-19ag-easy", 2, {"max_inactivity_steps": 1, "reward_type": "global"}),
    ("tiny-5ag", 4, {"layout": CROSSING, "request_queue_size": 9, "reward_type": "two_stage"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "settings"), SETTINGS)
def test_random_episodes_equal_those_of_the_package(name: str, steps: int, settings: dict[str, Any]):
    both = pair(name, 40, 0, loaded=0.7, max_steps=steps, **settings)
    seen = shown([[env._make_obs(agent) for agent in env.agents] for env in both.native])
    given = both.world.observe(both.state).obs[ROLE]
    image = given["image"] if isinstance(given, dict) else given
    np.testing.assert_array_equal(image.numpy(), seen["obs"].astype(np.float32))
    events = compare(both, random_actions(both, 1), steps)
    assert events["moves"] > 40
    assert events["loads"] > 1
    assert events["blocked"] > 1


@pytest.mark.slow
def test_couriers_and_random_actions_deliver_as_in_the_package():
    both = pair("tiny-4ag", 40, 1, loaded=0.5, max_steps=20, column_height=2, reward_type="two_stage")
    events = compare(both, courier_actions(both, 1, share=0.15), 20)
    assert events["deliveries"] > 60
    assert events["loads"] > 40
    assert events["unloads"] > 12
    assert events["blocked"] > 60
