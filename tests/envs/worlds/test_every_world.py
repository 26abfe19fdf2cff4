"""What holds for the worlds of every family: the contract of environments, and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.checks.environment.contract import check
from coterie.envs.contract.traces import random_actions
from coterie.envs.make import make

WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("board/tictactoe", {}),
    ("coop/baton", {"agents": 5, "runners": 3, "size": 7}),
    ("coop/escape", {}),
    ("coop/pushblock", {}),
    ("foraging/2s-8x8-2p-2f-coop", {"action_mask": True}),
    ("foraging/grid-2s-6x6-3p-2f-pen", {"action_mask": True}),
    ("matrix/climbing", {"episode_limit": 3}),
    ("matrix/stag_hunt", {"episode_limit": 3, "last_action": True}),
    ("matrix/two_step", {"last_action": True}),
    (
        "overcooked/coordination_ring",
        {"episode_limit": 9, "random_positions": True, "auto_cook": False, "shaping": 1, "random_objects": 0.5}
        | {"observation_type": "image"},
    ),
    ("probe/continuous", {}),
    ("probe/continuous", {"follow": True}),
    *((f"probe/{name}", {}) for name in ("endless", "hybrid", "image", "masked", "sacrifice")),
    ("skirmish/MMM", {"episode_limit": 15}),
    ("skirmish/2s3z_duel", {"episode_limit": 15}),
    ("sparse/plates", {"episode_limit": 9}),
    ("traffic/junction-medium", {"episode_limit": 12, "arrival_rate": 0.5}),
    (
        "warehouse/tiny-4ag",
        {"max_steps": 9, "msg_bits": 1, "max_inactivity_steps": 5, "observation_type": "image_dict"}
        | {"start_loaded": 0.5},
    ),
]
"""One world per kind of rules and spaces. Particle worlds are in tests/checks/environment/test_contract.py."""
EQUAL_STARTS = ("board/", "matrix/", "probe/continuous", "probe/endless", "probe/sacrifice")
"""Worlds whose episodes may all start alike."""


@pytest.mark.parametrize(("name", "params"), WORLDS)
def test_every_world_keeps_the_contract_of_environments(name: str, params: dict[str, Any], steady_clock: None):
    report = check(lambda num_envs, seed: make(name, params, num_envs, seed, with_state=True), steps=25, num_envs=6)
    allowed = {"slow", "seed-ignored", "envs-identical"} if name.startswith(EQUAL_STARTS) else {"slow"}
    assert {finding.name for finding in report.findings} <= allowed, report.render()
    assert report.summary["resume"] == "bit-for-bit"


@pytest.mark.parametrize(("name", "params"), [*WORLDS, ("skirmish/corridor", {})])  # the map with a wall
def test_every_world_draws_pictures_of_any_size_that_change_with_its_state(name: str, params: dict[str, Any]):
    env, generator = make(name, params), torch.Generator().manual_seed(0)
    timestep = env.reset(0)
    pictures = [env.render(0, 160)]
    for _ in range(4):
        _, timestep = env.step(random_actions(env.spec, timestep, generator))
        pictures.append(env.render(0, 160))
    assert {(picture.dtype, picture.shape[1:]) for picture in pictures} == {(np.dtype(np.uint8), (160, 3))}
    assert any((picture != pictures[0]).any() for picture in pictures)
    assert np.array_equal(pictures[-1], env.render(0, 160))
    assert env.render(0, 64).shape[1:] == (64, 3)
