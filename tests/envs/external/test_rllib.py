"""RLlib's MultiAgentEnv: agents that observe and act at some timesteps only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
import rllibworlds
from coterie.checks.environment.contract import check
from coterie.core.errors import UserError
from coterie.envs.contract.traces import random_actions
from coterie.envs.external.rllib import RllibEnv, is_rllib
from coterie.envs.make import make
from tinyruns import shorten_checks, train

WORLDS = "rllibworlds"
ROTA = f"{WORLDS}:Rota"


def native(env: Any) -> Any:
    """The environment of one that `make` returned."""
    return env.backend._envs.instances[0].env.env


def test_agents_act_where_they_are_observed_and_wait_otherwise():
    """Worker k is observed in every (k + 1)-th step. Waiting agents show what they saw last and can only wait."""
    env, generator = make(ROTA), torch.Generator().manual_seed(0)
    assert env.spec.roles[0].action.choices == (3,), "two choices, and to wait"
    timestep = env.reset(0)
    for now in range(rllibworlds.LENGTH):
        mask, shown = timestep.action_mask["worker"][0], timestep.obs["worker"][0, :, 1] * rllibworlds.LENGTH
        for k in range(3):
            acts = now % (k + 1) == 0
            assert mask[k].tolist() == ([True, True, False] if acts else [False, False, True])
            assert round(shown[k].item()) == now - now % (k + 1)
        assert timestep.alive.all()
        action = random_actions(env.spec, timestep, generator)
        chosen, bits = action["worker"].discrete[0, :, 0], dict(native(env).bits)
        step, timestep = env.step(action)
        acted = native(env).acted[now]
        assert acted == {f"worker_{k}": chosen[k].item() for k in range(3) if now % (k + 1) == 0}
        assert not step.terminated.any()
        assert step.episode_truncated.item() == (now == rllibworlds.LENGTH - 1)
        if now == 0:
            first = {agent: float(acted[agent] == bits[agent]) for agent in acted}
            assert step.reward.sum() == 0
        elif now == 1:
            assert step.reward[0].tolist() == [first[f"worker_{k}"] for k in range(3)]


def test_agents_that_act_in_every_step_have_no_choice_to_wait():
    spec = make(ROTA, {"simultaneous": True}).spec
    assert spec.roles[0].action.choices == (2,)
    assert "worker" not in make(ROTA, {"simultaneous": True}).reset(0).action_mask


def test_the_setting_comes_before_the_probe_and_a_late_wait_is_one_line():
    assert make(ROTA, {"simultaneous": True, "waiting": True}).spec.roles[0].action.choices == (3,)
    env = make(ROTA, {"waiting": False})
    timestep = env.reset(0)
    with pytest.raises(UserError, match=r"agent 'worker_1' has to wait for others, .* Set env.waiting=true"):
        env.step(random_actions(env.spec, timestep, torch.Generator()))
    with pytest.raises(UserError, match=r"env.waiting: .* does not have RLlib's interface. Remove the setting"):
        make("pettingzoo_worlds:Arena", {"waiting": True})


@pytest.mark.parametrize("simultaneous", [False, True])
def test_the_contract_of_environments_holds(simultaneous: bool):
    report = check(lambda num_envs, seed: make(ROTA, {"simultaneous": simultaneous}, num_envs, seed), 30, 2)
    assert [finding for finding in report.findings if finding.severity == "error"] == []


def test_a_run_is_saved_resumed_and_evaluated(tmp_path: Path):
    result = train(tmp_path / "run", f"env={ROTA}", "algo=ippo")
    assert coterie.evaluate(result, episodes=2) is not None
    coterie.resume(result, steps=120)


@pytest.mark.parametrize("form", ["spaces", "agents", "dict", "shared", "methods"])
def test_spaces_are_found_in_every_place_where_rllib_looks(form: str):
    spec = make(f"{WORLDS}:Game", {"form": form}).spec
    assert sorted(spec.agents) == ["a", "b"]
    assert all(role.action.choices == (2,) for role in spec.roles)


@pytest.mark.parametrize("name", ["Duck", "Flock"])
def test_the_class_is_not_needed(name: str, monkeypatch: pytest.MonkeyPatch):
    shorten_checks(monkeypatch)
    assert is_rllib(getattr(rllibworlds, name)())
    env = make(f"{WORLDS}:{name}")
    assert env.spec.n == 2
    env.close()
    assert coterie.check_env(f"{WORLDS}:{name}").ok


ALL, NONE = {"__all__": True}, {"__all__": False}
ENDS = {
    "all terminate": ((ALL, NONE), "ab", "", "terminated"),
    "all are truncated": ((NONE, ALL), "", "ab", "truncated"),
    "flags of NumPy": (({"__all__": np.True_}, {}), "ab", "", "terminated"),
    "each terminates": (({"a": True, "b": True}, {}), "ab", "", "terminated"),
    "a terminates with all, b was truncated": ((ALL, {"b": True}), "a", "b", "truncated"),
    "a terminated when all are truncated": (({"a": True}, ALL), "a", "b", "truncated"),
    "a terminates alone": (({"a": True, "__all__": False}, NONE), "a", "", ""),
    "nobody": ((NONE, NONE), "", "", ""),
    "no flags": (({}, {}), "", "", ""),
}
"""Per case: what `step` returns; the agents that terminate and are truncated, and the end of the episode."""


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("observed", [True, False], ids=["last observations", "no last observations"])
def test_flags_end_agents_and_episodes(case: str, observed: bool, monkeypatch: pytest.MonkeyPatch):
    flags, terminated, truncated, end = ENDS[case]
    if not observed and end:
        monkeypatch.setattr(
            rllibworlds.Game, "_observe", lambda self: {} if self.time else dict.fromkeys("ab", np.zeros(2, "f"))
        )
    env = make(f"{WORLDS}:Game", {"ends": (flags,), "waiting": True})
    step, after = env.step(random_actions(env.spec, env.reset(0), torch.Generator()))
    agents = env.spec.agents
    assert step.terminated[0].tolist() == [agent in terminated for agent in agents]
    assert step.truncated[0].tolist() == [agent in truncated for agent in agents]
    assert (step.episode_terminated.item(), step.episode_truncated.item()) == (end == "terminated", end == "truncated")
    assert after.acted.item() == (not end)


def test_an_agent_that_is_observed_for_the_first_time_joins_and_nobody_may_be_observed():
    env = make(f"{WORLDS}:Game", {"observed": (("a",), (), ("b",), ("a", "b"))})
    timestep, generator = env.reset(0), torch.Generator()
    alive = [timestep.alive[0].tolist()]
    for _ in range(3):
        _, timestep = env.step(random_actions(env.spec, timestep, generator))
        alive.append(timestep.alive[0].tolist())
    assert alive == [[True, False], [True, False], [True, True], [True, True]]


@pytest.mark.parametrize(("flags", "said"), [({"a": "False"}, "'False' of type str"), ({"__all__": None}, "None")])
def test_flags_that_are_none_are_named(flags: Any, said: str):
    env = make(f"{WORLDS}:Game", {"ends": ((flags, {}),), "waiting": True})
    with pytest.raises(UserError, match=said):
        env.step(random_actions(env.spec, env.reset(0), torch.Generator()))


def test_the_probe_leaves_the_generators_of_the_spaces_as_they_are():
    env = RllibEnv(rllibworlds.Rota())
    space = env.action_space("worker_0")
    space.seed(3)
    expected = [space.sample() for _ in range(5)]
    space.seed(3)
    assert env.has_waiting_agents()
    assert [space.sample() for _ in range(5)] == expected
