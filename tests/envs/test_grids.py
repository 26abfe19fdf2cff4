"""Level-based foraging and robotic warehouse: the packages' own loop to the letter, limits that are cuts, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import load_env_creator

import coterie
from coterie.envs.adapters import grids
from coterie.envs.check import check
from coterie.envs.make import make, spec_of
from coterie.envs.paths import difference, random_actions
from coterie.errors import UserError
from coterie.schema import WorkersConfig
from coterie.seeds import seed_of
from coterie.types import Action

FORAGING = "lbforaging/Foraging-8x8-2p-2f-coop-v3"
WAREHOUSE = "rware/rware-tiny-2ag-v2"


@pytest.mark.parametrize(("name", "limit"), [(FORAGING, {"max_episode_steps": 12}), (WAREHOUSE, {"max_steps": 12})])
def test_every_copy_agrees_with_the_package_step_by_step(name: str, limit: dict[str, int]):
    env = make(name, limit, copies=2, seed=5)
    row, generator = env.reset(), torch.Generator().manual_seed(0)
    rows, steps, actions = [row], [], []
    for _ in range(30):
        action = random_actions(env.spec, row, generator)
        step, row = env.step(action)
        rows.append(row)
        steps.append(step)
        actions.append(action["agent"].discrete)
    cuts = 0
    for b in range(2):
        registered = gymnasium.registry[name.partition("/")[2]]
        own = load_env_creator(str(registered.entry_point))(**{**registered.kwargs, **limit})
        seen, _ = own.reset(seed=seed_of(5, "env", name, b) >> 32)
        over = False
        for t in range(30):
            np.testing.assert_array_equal(rows[t].obs["agent"][b].numpy(), np.stack(seen).astype(np.float32))
            assert bool(rows[t].acted[b]) == (not over)
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
            cuts += over
    assert cuts == 2 * 2


@pytest.mark.parametrize("name", [FORAGING, WAREHOUSE, "lbforaging/Foraging-2s-10x10-3p-3f-v3"])
def test_they_keep_the_contract(name: str):
    report = check(lambda copies, seed: make(name, {}, copies, seed))
    assert not [finding for finding in report.findings if finding.rule != "slow"], report  # who else computes here?


def test_foragers_of_the_episode_before_would_stand_in_the_way_of_a_seed(monkeypatch: pytest.MonkeyPatch):
    """The checker finds what the package keeps, if it is not cleared."""
    kept = replace(grids.LIBRARIES["lbforaging"], forget=lambda env: None)
    monkeypatch.setitem(grids.LIBRARIES, "lbforaging", kept)
    report = check(lambda copies, seed: make(FORAGING, {}, copies, seed))
    assert {finding.rule for finding in report.findings} - {"slow"} == {"reset-seed"}


@pytest.mark.parametrize(("limit", "cut"), [(50, False), (1, False), (1, True)])
def test_a_field_that_is_empty_is_an_end_and_a_limit_alone_a_cut(limit: int, cut: bool):
    """Two players of the highest level beside the only food, which both lift, or do not, in the last step."""
    env: Any = make("lbforaging/Foraging-5x5-2p-1f-coop-v3", {"max_episode_steps": limit}, copies=1)
    env.reset()
    inner = env._host._crew.instances[0]._env
    inner.field[:] = 0
    inner.field[2, 2] = inner._food_spawned = 2
    for player, place in zip(inner.players, [(2, 1), (2, 3)], strict=True):
        player.position, player.level = place, 1
    inner._gen_valid_moves()
    load = torch.full((1, 2, 1), 0 if cut else 5)
    step, row = env.step({"agent": Action(load, None)})
    assert bool(step.episode_terminated) == (not cut)
    assert bool(step.episode_truncated) == cut
    assert step.reward.sum() == (0 if cut else pytest.approx(1.0))
    assert not row.acted.any()


def test_roles_limits_and_keys_are_read_off_the_environment():
    spec = spec_of(FORAGING)
    assert [(role.name, role.n) for role in spec.roles] == [("agent", 2)]
    assert spec.episode_limit == 50
    assert spec_of(WAREHOUSE).episode_limit == 500
    assert spec_of(FORAGING, {"max_episode_steps": 7}).episode_limit == 7
    assert spec_of(FORAGING, {"sight": 2}).roles[0].n == 2


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("lbforaging/Foraging-8x8-2p-2f-cop-v3", {}, "did you mean 'lbforaging/Foraging-8x8-2p-2f-coop-v3'"),
        ("rware/forklift", {}, "there is no environment 'rware/forklift': such as 'rware/rware-tiny"),
        (FORAGING, {"players": 0.5}, "environment 'lbforaging/Foraging-8x8-2p-2f-coop-v3'"),
        (FORAGING, {"plyers": 3}, "did you mean 'env.players'"),
    ],
)
def test_what_cannot_be_made_is_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words) as raised:
        make(name, params)
    assert "\n" not in str(raised.value)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "rware", None)
    with pytest.raises(UserError, match=r'pip install "coterie\[rware\]"'):
        make(WAREHOUSE)


@pytest.mark.parametrize("name", [FORAGING, WAREHOUSE])
def test_pictures_need_no_screen_and_show_what_moves(name: str):
    env = make(name, copies=1)
    row, generator = env.reset(), torch.Generator().manual_seed(0)
    first = env.render(0, 200)
    assert (first.shape[-1], max(first.shape), first.dtype) == (3, 200, np.uint8)
    for _ in range(12):
        _, row = env.step(random_actions(env.spec, row, generator))
    assert (env.render(0, 200) != first).any()


def test_workers_change_nothing():
    envs = [make(FORAGING, {"max_episode_steps": 9}, 3, 1, workers=WorkersConfig(count=k)) for k in (0, 2)]
    rows = [env.reset() for env in envs]
    assert difference(*rows) is None
    generator = torch.Generator().manual_seed(0)
    for _ in range(25):
        action = random_actions(envs[0].spec, rows[0], generator)
        both = [env.step(action) for env in envs]
        rows = [row for _, row in both]
        assert difference(both[0][0], both[1][0]) is None
        assert difference(*rows) is None
    for env in envs:
        env.close()


@pytest.mark.parametrize("algo", ["mappo", "qmix", "poca"])
def test_a_run_trains_on_it(algo: str, tmp_path: Path):
    result = coterie.train(
        algo=algo, env=FORAGING, steps=300, copies=4, device="cpu", threads=1, out=tmp_path / "run", progress="off",
        eval={"every": 150, "episodes": 4, "copies": 2}, log={"tensorboard": False},
    )  # fmt: skip
    assert result.summary.steps >= 300
