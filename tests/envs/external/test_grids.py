"""Level-Based Foraging and RWARE: equality with the packages' own loop, truncation at the step limit, errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import load_env_creator

from coterie.checks.environment.contract import check
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.types import Action
from coterie.envs.contract.traces import random_actions
from coterie.envs.make import make, spec_of

FORAGING = "lbforaging/Foraging-8x8-2p-2f-coop-v3"
WAREHOUSE = "rware/rware-tiny-2ag-v2"


@pytest.mark.parametrize(("name", "limit"), [(FORAGING, {"max_episode_steps": 12}), (WAREHOUSE, {"max_steps": 12})])
def test_every_environment_equals_the_package_s_own_loop(name: str, limit: dict[str, int]):
    env = make(name, limit, num_envs=2, seed=5)
    timestep, generator = env.reset(), torch.Generator().manual_seed(0)
    timesteps, steps, actions = [timestep], [], []
    for _ in range(30):
        action = random_actions(env.spec, timestep, generator)
        step, timestep = env.step(action)
        timesteps.append(timestep)
        steps.append(step)
        actions.append(action["agent"].discrete)
    truncations = 0
    for b in range(2):
        registered = gymnasium.registry[name.partition("/")[2]]
        own = load_env_creator(str(registered.entry_point))(**{**registered.kwargs, **limit})
        seen, _ = own.reset(seed=seed_of(5, "env", name, b) >> 32)
        over = False
        for t in range(30):
            np.testing.assert_array_equal(timesteps[t].obs["agent"][b].numpy(), np.stack(seen).astype(np.float32))
            assert bool(timesteps[t].acted[b]) == (not over)
            if over:
                seen, _ = own.reset()
                over = False
                assert not steps[t].reward[b].any()
                continue
            picks = actions[t]
            assert picks is not None
            seen, reward, over, _, _ = own.step([int(k) for k in picks[b, :, 0]])
            np.testing.assert_allclose(steps[t].reward[b].numpy(), np.asarray(reward, np.float32))
            assert bool(steps[t].episode_truncated[b]) == over
            assert not steps[t].episode_terminated[b]
            truncations += over
    assert truncations == 2 * 2


@pytest.mark.parametrize(("name", "limit"), [(FORAGING, {"max_episode_steps": 12}), (WAREHOUSE, {"max_steps": 12})])
def test_the_environments_keep_the_contract(name: str, limit: dict[str, int]):
    report = check(lambda num_envs, seed: make(name, limit, num_envs, seed), steps=20, num_envs=2)
    assert not [finding for finding in report.findings if finding.name != "slow"], report  # on a busy machine


def test_a_seeded_reset_does_not_depend_on_the_players_before_it():
    """The package keeps their positions across resets."""
    env = make(FORAGING, {}, num_envs=8)
    first, again = env.reset(3), env.reset(3)
    assert torch.equal(first.obs["agent"], again.obs["agent"])


@pytest.mark.parametrize(("limit", "truncated"), [(50, False), (1, False), (1, True)])
def test_an_empty_field_terminates_and_the_limit_alone_truncates(limit: int, truncated: bool):
    """Two players of the highest level next to the only food load it, or not, in the last step."""
    env: Any = make("lbforaging/Foraging-5x5-2p-1f-coop-v3", {"max_episode_steps": limit}, num_envs=1)
    env.reset()
    inner = env.backend.instances[0].native
    inner.field[:] = 0
    inner.field[2, 2] = inner._food_spawned = 2
    for player, place in zip(inner.players, [(2, 1), (2, 3)], strict=True):
        player.position, player.level = place, 1
    inner._gen_valid_moves()
    load = torch.full((1, 2, 1), 0 if truncated else 5)
    step, timestep = env.step({"agent": Action(load, None)})
    assert bool(step.episode_terminated) == (not truncated)
    assert bool(step.episode_truncated) == truncated
    assert step.reward.sum() == (0 if truncated else pytest.approx(1.0))
    assert not timestep.acted.any()


def test_roles_limits_and_settings_come_from_the_environment():
    spec = spec_of(FORAGING)
    assert [(role.name, role.n) for role in spec.roles] == [("agent", 2)]
    assert spec.episode_limit == 50
    assert spec_of(WAREHOUSE).episode_limit == 500
    assert spec_of(FORAGING, {"max_episode_steps": 7}).episode_limit == 7
    assert spec_of(FORAGING, {"sight": 2}).roles[0].n == 2


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("lbforaging/Foraging-8x8-2p-2f-cop-v3", {}, "Did you mean 'lbforaging/Foraging-8x8-2p-2f-coop-v3'"),
        ("rware/forklift", {}, "no such environment: 'rware/forklift'. An example is 'rware/rware-tiny"),
        (FORAGING, {"players": 0.5}, "environment 'lbforaging/Foraging-8x8-2p-2f-coop-v3'"),
        (FORAGING, {"plyers": 3}, "Did you mean 'env.players'"),
    ],
)
def test_invalid_names_and_settings_raise_one_line_errors(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as raised:
        make(name, params)
    assert "\n" not in str(raised.value)


def test_a_missing_package_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "rware", None)
    with pytest.raises(UserError, match=r"pip install -e '\S+\[rware\]'"):
        make(WAREHOUSE)


@pytest.mark.parametrize("name", [FORAGING, WAREHOUSE])
def test_images_need_no_screen_and_show_movement(name: str):
    env = make(name, num_envs=1)
    timestep, generator = env.reset(), torch.Generator().manual_seed(0)
    first = env.render(0, 200)
    assert (first.shape[-1], max(first.shape), first.dtype) == (3, 200, np.uint8)
    for _ in range(12):
        _, timestep = env.step(random_actions(env.spec, timestep, generator))
    assert (env.render(0, 200) != first).any()
