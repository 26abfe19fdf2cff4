"""Environments of Coterie as ParallelEnv of PettingZoo, with PettingZoo's own checkers."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs.external.parallel_export import ParallelWorld
from coterie.envs.external.spaces import Actuator
from coterie.envs.make import make

WORLDS = [
    "particle/simple_speaker_listener",
    "particle/simple_tag",
    "skirmish/3m_duel",
    "probe/hybrid",
    "board/tictactoe",
]


def sampled(env: ParallelWorld, infos: dict[str, Any]) -> dict[str, Any]:
    """Returns random available actions of the living agents."""
    return {agent: env.action_space(agent).sample(infos[agent].get("action_mask")) for agent in env.agents}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_worlds_pass_the_checkers_of_pettingzoo(name: str, capsys: pytest.CaptureFixture[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the checkers import environments the old way
        from pettingzoo.test import parallel_api_test, parallel_seed_test
        from pettingzoo.test.state_test import test_parallel_env as check_state
    env = coterie.as_parallel_env(name)
    parallel_api_test(env, num_cycles=200)
    parallel_seed_test(lambda: coterie.as_parallel_env(name), num_cycles=100)
    check_state(coterie.as_parallel_env(name))
    env.close()
    env.close()
    assert "Passed Parallel API test" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["skirmish/3m", "particle/simple_tag", "probe/hybrid"])
def test_an_exported_world_that_is_adapted_again_equals_the_world(name: str):
    """Actions, observations, masks, rewards, deaths and ends survive the way through PettingZoo's interface."""
    native, env = make(name, seed=4), coterie.as_parallel_env(name, seed=4)
    timestep = native.reset(4)
    env.reset()
    slices, random = native.spec.role_slices(), torch.Generator().manual_seed(0)
    died = 0
    for _ in range(60):
        actions, given = {}, {}
        for role in native.spec.roles:
            masks = timestep.action_mask.get(role.name, torch.ones(1, role.n, role.action.mask_size, dtype=torch.bool))
            parts = masks[0].split(list(role.action.choices), -1)
            picks = [torch.multinomial(part.float(), 1, generator=random) for part in parts]
            discrete = torch.cat(picks, -1)[None] if picks else None
            continuous = torch.rand(1, role.n, role.action.continuous, generator=random) * 2 - 1
            actions[role.name] = Action(discrete, continuous if role.action.continuous else None)
            own = Actuator(role.action_space)(None if discrete is None else discrete[0].numpy(), continuous[0].numpy())
            given |= dict(zip(role.agents, own, strict=True))
        before = list(env.agents)
        step, timestep = native.step(actions)
        obs, rewards, terminated, truncated, _ = env.step({agent: given[agent] for agent in before})
        for role, where in slices.items():
            for i, agent in enumerate(native.spec.agents[where]):
                if agent not in before:
                    assert agent not in obs
                    continue
                group = native.spec.groups.index(next(r.group for r in native.spec.roles if r.name == role))
                assert np.allclose(obs[agent], timestep.obs[role][0, i].numpy(), atol=1e-5)
                assert rewards[agent] == pytest.approx(
                    float(step.reward[0, where][i] + step.group_reward[0, group]), abs=1e-4
                )
                assert terminated[agent] == bool(step.terminated[0, where][i])
                assert truncated[agent] == bool(step.truncated[0, where][i])
        died += sum(terminated[agent] for agent in before if env.agents)
        if not env.agents:
            assert bool(step.episode_terminated | step.episode_truncated)
            assert all(terminated[agent] != truncated[agent] for agent in before)
            timestep = native.step(actions)[1]
            obs, _ = env.reset()
    assert died or name != "skirmish/3m"


def test_dead_agents_leave_and_metrics_are_in_the_last_infos():
    env = coterie.as_parallel_env("skirmish/3m", seed=1)
    _, infos = env.reset()
    sizes = [len(env.agents)]
    while env.agents:
        assert all(infos[agent]["action_mask"].any() for agent in env.agents)
        assert "won" not in infos[env.agents[0]]
        _, _, _, _, infos = env.step(sampled(env, infos))
        sizes.append(len(env.agents))
    assert set(sizes) == {3, 2, 1, 0}
    assert all(info["won"] == 0.0 for info in infos.values())
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step({})


def test_episodes_continue_the_random_stream_and_can_be_seeded():
    env, other = coterie.as_parallel_env("particle/simple_spread", 3), coterie.as_parallel_env("particle/simple_spread")
    first, second = env.reset()[0]["agent_0"], env.reset()[0]["agent_0"]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other.reset()[0]["agent_0"])
    assert np.array_equal(first, other.reset(seed=3)[0]["agent_0"])
    assert np.array_equal(second, other.reset()[0]["agent_0"])
    assert env.render().shape[2] == 3


def test_mistakes_are_named():
    env = coterie.as_parallel_env("particle/simple_spread")
    env.reset()
    with pytest.raises(ValueError, match=r"no action of \['agent_1', 'agent_2'\]"):
        env.step({"agent_0": 1})
    with pytest.raises(ValueError, match=r"action of agent_1: 5 is not in Discrete\(5\)"):
        env.step({"agent_0": 1, "agent_1": 5, "agent_2": 0})
    with pytest.raises(UserError, match=r"Did you mean 'env\.agents'"):
        coterie.as_parallel_env("particle/simple_spread", agnets=3)


def test_without_pettingzoo_the_error_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "coterie.envs.external.parallel_export", raising=False)
    with pytest.raises(UserError, match=r"PettingZoo is not installed .* Install it: .*\[pettingzoo\]"):
        coterie.as_parallel_env("particle/simple_spread")
