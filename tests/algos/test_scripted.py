"""Teams that act by a rule: the environment's own scripts, a user's, what is refused, and how well they play."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import registry
from coterie.algos.scripted import ScriptedConfig
from coterie.build import algorithms, environment, known_teams
from coterie.config import resolve
from coterie.envs.make import spec_of
from coterie.errors import UserError
from coterie.run import evaluate_baseline
from tinyruns import rows_of, state_of, train

TAG = ("env=particle/simple_tag", "algo=random")
CPU = torch.device("cpu")

BOTS = """
import torch
from coterie.types import Action

def still(team, env):
    return lambda row: {r.name: Action(torch.zeros(len(row.acted), r.n, 1, dtype=torch.long)) for r in team.roles}

def far(team, env):
    return lambda row: {"agent": Action(torch.full((len(row.acted), 1, 1), 5))}

def flat(team, env):
    return lambda row: {"agent": Action(torch.zeros(len(row.acted), 1, dtype=torch.long))}

def loud(team, env):
    return lambda row: {"agent": Action(torch.zeros(len(row.acted), 1, 1, dtype=torch.long), torch.zeros(3))}

def other(team, env):
    return lambda row: {"prey": None}

def bare(team, env):
    return lambda row: {"agent": torch.zeros(1)}

def broken(team, env):
    return lambda row: {"agent": Action(row.obs["agent"] @ row.obs["agent"])}

def nothing(team, env):
    return None

def unasked(team):
    return still(team, None)

number = 3
"""


@pytest.fixture
def bots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a user's own scripts, where Python finds it."""
    (tmp_path / "ownbots.py").write_text(BOTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ownbots", raising=False)


def scored(*words: str, episodes: int = 200) -> dict[str, Any]:
    return evaluate_baseline(resolve([*words, "device=cpu", "threads=1", "progress=off"]), episodes)


def built(*words: str) -> Any:
    config = resolve([*words, "device=cpu", "threads=1"]).config
    return algorithms(config, known_teams(config, CPU), CPU)


def test_prey_that_flees_is_caught_less_and_pursuers_that_pursue_catch_more_than_at_random():
    touches = {
        (pursuer, prey): scored(
            "env=particle/simple_tag", f"teams.adversary.algo={pursuer}", f"teams.agent.algo={prey}", episodes=400
        )["metrics"]["touches"]
        for pursuer in ("random", "scripted")
        for prey in ("random", "scripted")
    }
    assert 0.2 < touches["random", "random"] < 0.7
    assert touches["random", "scripted"] < 0.15
    assert touches["scripted", "random"] > 4.5
    assert touches["scripted", "scripted"] < touches["scripted", "random"] - 1


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_scripts_play_with_either_kind_of_actions(actions: str):
    found = scored("env=particle/simple_tag", "algo=scripted", f"env.actions={actions}")
    assert 1.5 < found["metrics"]["touches"] < 5
    assert scored("env=particle/simple_spread", "algo=scripted", f"env.actions={actions}")["metrics"]["coverage"] > 0.9


def test_spread_by_assignment_covers_more_than_at_random():
    assert scored("env=particle/simple_spread", "algo=random")["metrics"]["coverage"] < 0.3


def test_either_half_of_a_script_plays_beside_another():
    """Whoever walks to what the speaker names is as good as both together, and one who hears noise is not."""
    halves = ("teams.talk.roles=[speaker]", "teams.walk.roles=[listener]", "env=particle/simple_speaker_listener")
    together = scored(*halves, "algo=scripted")["metrics"]["distance"]
    unheard = scored(*halves, "algo=scripted", "teams.talk.algo=random")["metrics"]["distance"]
    assert together < 0.15 < 0.4 < unheard


def test_a_team_learns_against_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    words = ("env=particle/simple_tag", "algo=mappo", "steps=160", "teams.agent.algo=scripted")
    train(tmp_path / "run", *words, "teams.agent.algo.script=flee")
    names = {name for row in rows_of(tmp_path / "run") for name in row}
    assert "loss/adversary/policy" in names
    assert not any(name.startswith("loss/agent") for name in names)
    assert state_of(tmp_path / "run")["algorithms"]["agent"] == {"policy": {}}


def test_a_script_acts_the_same_again_and_in_every_mode():
    policy = built("env=particle/simple_tag", "algo=scripted")["agent"].policy
    config = resolve(["env=particle/simple_tag", "algo=random"]).config
    env = environment(config, 4, "play", CPU)
    row = env.reset(0).team(policy.team)
    chosen = [policy.act(row, {}, {}, mode)[0]["agent"].discrete for mode in ("greedy", "sample", "explore", "greedy")]
    assert all(torch.equal(chosen[0], other) for other in chosen[1:])


def test_every_script_of_an_environment_is_made_for_roles_that_it_has():
    for env in registry.environments():
        for name, (target, roles) in registry.scripts(env).items():
            assert callable(registry.load(target, name))
            assert set(roles) <= {role.name for role in spec_of(env).roles}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "env=particle/simple_tag teams.agent.algo=scripted teams.agent.algo.script=fle",
            "team 'agent' is scripted, and particle/simple_tag has no script 'fle': did you mean 'flee'?",
        ),
        (
            "env=particle/simple_tag teams.adversary.algo=scripted teams.adversary.algo.script=flee",
            "team 'adversary' is scripted, and particle/simple_tag: script 'flee' is not for role 'adversary': give "
            "pursue",
        ),
        ("env=particle/simple_crypto algo=scripted", "particle/simple_crypto brings no scripts: write one and give"),
        (
            "env=particle/simple_spread env.landmarks=2 algo=scripted",
            "script 'spread_greedily' of particle/simple_spread: landmarks=2 with agents=3: expected one for each",
        ),
        (
            "env=particle/simple_tag env.num_agent_neighbors=2 algo=scripted",
            "num_agent_neighbors=2: it needs to see all of them in their order: leave env.num_agent_neighbors out",
        ),
        (
            "env=particle/simple_tag algo=scripted algo.script=nowhere:make",
            "script 'nowhere:make': there is no module 'nowhere'",
        ),
        ("env=particle/simple_tag algo=scripted algo.script=ownbots:stil", "module 'ownbots' has no 'stil': did you"),
        ("env=particle/simple_tag algo=scripted algo.script=ownbots:number", "'ownbots:number' is a int: expected a"),
        ("env=particle/simple_tag algo=scripted algo.script=ownbots:nothing", "returned a NoneType: expected a"),
        (
            "env=particle/simple_tag algo=scripted algo.script=ownbots:unasked",
            "script 'ownbots:unasked' is called as make(team, env), and it takes (team)",
        ),
    ],
)
def test_a_script_that_is_not_there_or_does_not_fit_is_one_line(bots: None, words: str, message: str):
    with pytest.raises(UserError) as caught:
        built(*words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("far", "chose 5 for agent 'agent_0' in copy 0: expected 0 to 4"),
        ("flat", "gave int64 [20, 1] on cpu as discrete actions of role 'agent': expected int64 [20, 1, 1] on cpu"),
        ("loud", "gave continuous actions for role 'agent', which has none"),
        ("other", "gave the roles ['prey']: expected a dict with an Action for each of ['agent']"),
        ("bare", "gave a Tensor for role 'agent': expected a coterie.types.Action"),
        ("broken", "failed: RuntimeError:"),
    ],
)
def test_a_users_script_that_gives_something_else_is_one_line(bots: None, script: str, message: str):
    with pytest.raises(UserError) as caught:
        scored(*TAG, "teams.agent.algo=scripted", f"teams.agent.algo.script=ownbots:{script}", episodes=20)
    assert str(caught.value).startswith(f"team 'agent': script 'ownbots:{script}' ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_own_script_plays(bots: None):
    found = scored(*TAG, "teams.agent.algo=scripted", "teams.agent.algo.script=ownbots:still", episodes=20)
    assert found["episodes"] == 20


def test_a_closed_choice_of_a_users_script_is_named(bots: None):
    with pytest.raises(UserError, match="chose 0 for agent 'ally_0' in copy 0, which is closed to it there"):
        scored("env=skirmish/3m", "algo=scripted", "algo.script=ownbots:still", episodes=2)


def test_the_settings_of_a_script_are_all_that_there_is_to_set():
    assert set(ScriptedConfig.model_fields) == {"script", "horizon"}
