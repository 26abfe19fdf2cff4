"""Scripted teams: scripts of environments and users, their scores, and errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.assembly.environment import load_teams, make_environment
from coterie.assembly.learners import make_algorithms
from coterie.assembly.resolve import resolve
from coterie.commands.evaluate import evaluate_baseline
from coterie.config import user_code
from coterie.core.errors import UserError
from coterie.envs import registry
from coterie.envs.make import spec_of
from tinyruns import checkpoint_state, log_entries, train

TAG = ("env=particle/simple_tag", "algo=random")
CPU = torch.device("cpu")

BOTS = """
import torch
from coterie.core.types import Action

def still(team, env):
    shape = lambda timestep, role: (len(timestep.acted), role.n, 1)
    return lambda timestep: {r.name: Action(torch.zeros(shape(timestep, r), dtype=torch.long)) for r in team.roles}

def out_of_range(team, env):
    return lambda timestep: {"agent": Action(torch.full((len(timestep.acted), 1, 1), 5))}



def no_function(team, env):
    return None

def one_argument(team):
    return still(team, None)

number = 3
"""


@pytest.fixture
def bots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a file of a user's scripts on the module path."""
    (tmp_path / "ownbots.py").write_text(BOTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ownbots", raising=False)


def evaluate(*words: str, episodes: int = 200) -> dict[str, Any]:
    return evaluate_baseline(resolve([*words, "device=cpu", "threads=1", "progress=off"]), episodes)


def build(*words: str) -> Any:
    config = resolve([*words, "device=cpu", "threads=1"]).config
    return make_algorithms(config, load_teams(config, CPU), CPU)


@pytest.mark.slow
def test_scripts_of_tag_play_better_than_random():
    touches = {
        (pursuer, prey): evaluate(
            "env=particle/simple_tag", f"teams.adversary.algo={pursuer}", f"teams.agent.algo={prey}", episodes=400
        )["metrics"]["touches"]
        for pursuer in ("random", "scripted")
        for prey in ("random", "scripted")
    }
    assert 0.2 < touches["random", "random"] < 0.7
    assert touches["random", "scripted"] < 0.15
    assert touches["scripted", "random"] > 4.5
    assert touches["scripted", "scripted"] < touches["scripted", "random"] - 1


@pytest.mark.slow
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_scripts_support_discrete_and_continuous_actions(actions: str):
    result = evaluate("env=particle/simple_tag", "algo=scripted", f"env.actions={actions}")
    assert 1.5 < result["metrics"]["touches"] < 5
    assert (
        evaluate("env=particle/simple_spread", "algo=scripted", f"env.actions={actions}")["metrics"]["coverage"] > 0.9
    )


def test_teams_of_one_role_can_use_the_script_of_their_role():
    """A scripted listener reaches the landmark if the speaker is scripted too, and not if it is random."""
    halves = ("teams.talk.roles=[speaker]", "teams.walk.roles=[listener]", "env=particle/simple_speaker_listener")
    together = evaluate(*halves, "algo=scripted")["metrics"]["distance"]
    unheard = evaluate(*halves, "algo=scripted", "teams.talk.algo=random")["metrics"]["distance"]
    assert together < 0.15 < 0.4 < unheard


@pytest.mark.slow
def test_a_team_trains_against_a_scripted_one(tmp_path: Path):
    words = ("env=particle/simple_tag", "algo=mappo", "steps=160", "teams.agent.algo=scripted")
    train(tmp_path / "run", *words, "teams.agent.algo.script=flee")
    names = {name for entry in log_entries(tmp_path / "run") for name in entry}
    assert "loss/adversary/policy" in names
    assert not any(name.startswith("loss/agent") for name in names)
    assert checkpoint_state(tmp_path / "run")["algorithms"]["agent"] == {"policy": {}}


def test_scripts_are_deterministic_in_all_modes():
    policy = build("env=particle/simple_tag", "algo=scripted")["agent"].policy
    config = resolve(["env=particle/simple_tag", "algo=random"]).config
    env = make_environment(config, "play", num_envs=4, device=CPU)
    timestep = env.reset(0).team(policy.team)
    chosen = [
        policy.act(timestep, {}, {}, mode)[0]["agent"].discrete for mode in ("greedy", "sample", "explore", "greedy")
    ]
    assert all(torch.equal(chosen[0], other) for other in chosen[1:])


def test_registered_scripts_support_existing_roles():
    """Scenarios of a family with the same scripts have the same roles."""
    scripts = {str(registry.scripts(env)): (env, registry.scripts(env)) for env in registry.environments()}
    assert len(scripts) > 10
    for env, found in scripts.values():
        names = {role.name for role in spec_of(env).roles} if found else set()
        for name, (target, roles) in found.items():
            assert callable(user_code.load(target, name))
            assert set(roles) <= names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "env=particle/simple_tag teams.agent.algo=scripted teams.agent.algo.script=fle",
            "team 'agent' is scripted, but particle/simple_tag has no script 'fle'. Did you mean 'flee'?",
        ),
        (
            "env=particle/simple_tag teams.adversary.algo=scripted teams.adversary.algo.script=flee",
            "team 'adversary' is scripted, but particle/simple_tag: script 'flee' does not support role 'adversary': "
            "set pursue",
        ),
        ("env=particle/simple_crypto algo=scripted", "particle/simple_crypto provides no scripts. Write one and set"),
        (
            "env=particle/simple_spread env.landmarks=2 algo=scripted",
            "script 'spread_greedily' of particle/simple_spread: env.landmarks: 2 landmarks for 3 agents. Expected one "
            "per agent.",
        ),
        (
            "env=particle/simple_tag env.num_agent_neighbors=2 algo=scripted",
            "env.num_agent_neighbors: 2, but the script needs all of them in their fixed order. Remove the setting.",
        ),
        (
            "env=particle/simple_tag algo=scripted algo.script=nowhere:make",
            "script 'nowhere:make': there is no module 'nowhere'",
        ),
        (
            "env=particle/simple_tag algo=scripted algo.script=ownbots:stil",
            "module 'ownbots' has no 'stil'. Did you mean 'still'?",
        ),
        ("env=particle/simple_tag algo=scripted algo.script=ownbots:number", "'ownbots:number' is a int: expected a"),
        ("env=particle/simple_tag algo=scripted algo.script=ownbots:no_function", "returned a NoneType: expected a"),
        (
            "env=particle/simple_tag algo=scripted algo.script=ownbots:one_argument",
            "script 'ownbots:one_argument' is called as make(team, env), but takes (team)",
        ),
    ],
)
def test_missing_and_unsupported_scripts_are_refused_in_one_line(bots: None, words: str, message: str):
    with pytest.raises(UserError) as caught:
        build(*words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_script_is_evaluated_and_its_invalid_actions_are_reported_in_one_line(bots: None):
    result = evaluate(*TAG, "teams.agent.algo=scripted", "teams.agent.algo.script=ownbots:still", episodes=20)
    assert result["episodes"] == 20
    with pytest.raises(UserError) as caught:
        evaluate(*TAG, "teams.agent.algo=scripted", "teams.agent.algo.script=ownbots:out_of_range", episodes=20)
    assert str(caught.value).startswith("team 'agent': script 'ownbots:out_of_range' chose 5 for agent 'agent_0'")
    assert "\n" not in str(caught.value)
