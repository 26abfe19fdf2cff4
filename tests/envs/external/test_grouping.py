"""`env.teams`: roles that cooperate form a team with a common reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.assembly.resolve import resolve
from coterie.checks.environment.contract import check
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec
from coterie.core.types import Action
from coterie.envs.make import make, spec_of

RELAY = "relay:Relay"
SPEAKER = "pettingzoo/mpe2.simple_speaker_listener_v4"


def teams_of(spec: EnvSpec) -> dict[str, list[str]]:
    """Returns the roles of each default team."""
    return {team.name: [role.name for role in team.roles] for team in spec.default_teams()}


def test_roles_of_different_names_are_separate_teams_by_default() -> None:
    spec = spec_of(RELAY)
    assert teams_of(spec) == {"scout": ["scout"], "carrier": ["carrier"], "medic": ["medic"]}
    assert spec.grouping == "roles of different names have separate rewards; env.teams=shared makes one team of them"
    assert not any(team.common_reward for team in spec.default_teams())


@pytest.mark.parametrize("name", [RELAY, SPEAKER])
def test_shared_makes_one_team_with_a_common_reward(name: str) -> None:
    spec = spec_of(name, {"teams": "shared"})
    assert len(spec.default_teams()) == 1
    (team,) = spec.default_teams()
    assert (team.name, team.is_entire_env, team.common_reward) == ("all", True, True)
    assert {role.name for role in team.roles} == {role.name for role in spec_of(name).roles}


def test_teams_by_role_reorder_the_agents() -> None:
    params = {"teams": {"front": ("scout", "medic")}}
    spec = spec_of(RELAY, params)
    assert teams_of(spec) == {"front": ["scout", "medic"], "carrier": ["carrier"]}
    assert [team.common_reward for team in spec.default_teams()] == [True, False]
    assert spec.agents == ("scout_0", "medic_0", "carrier_0", "carrier_1")
    rewards = "agents learn from the mean of its rewards, value decomposition and MA-POCA from their sum"
    assert spec.grouping == f"env.teams forms front; {rewards}"
    assert check(lambda num_envs, seed: make(RELAY, params, num_envs, seed), steps=10).ok


def test_agents_keep_their_own_rewards() -> None:
    env = make(RELAY, {"teams": "shared"}, num_envs=2)
    env.reset()
    choices = {"scout": [[1], [0]], "carrier": [[0, 0]] * 2, "medic": [[0]] * 2}
    actions = {role: Action(torch.tensor(chosen).unsqueeze(-1), None) for role, chosen in choices.items()}
    step, _ = env.step(actions)
    assert step.reward.tolist() == [[0, 2, 1, 0], [0, 0, 0, 0]]


def test_pymarl_environments_share_rewards_of_their_agents() -> None:
    (team,) = spec_of("squads:Patrol", {"own": True, "teams": "shared"}).default_teams()
    assert (team.name, team.common_reward) == ("agent", True)
    assert not spec_of("squads:Patrol", {"own": True}).default_teams()[0].common_reward
    with pytest.raises(UserError, match=r"env.teams: environment 'squads:Patrol' is a MultiAgentEnv with one team"):
        spec_of("squads:Patrol", {"own": True, "teams": {"a": ("agent",)}})


@pytest.mark.parametrize(
    ("teams", "message"),
    [
        ({"front": "scot"}, r"env.teams.front: there is no role 'scot'. Did you mean 'scout'\?"),
        ({"a": "scout", "b": "scout"}, r"env.teams.b: role 'scout' is in team 'a', too. Keep it in one."),
        ({"scout": "medic"}, r"env.teams.scout: role 'scout' would be a team of the same name."),
    ],
)
def test_teams_that_do_not_fit_are_refused(teams: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_of(RELAY, {"teams": teams})


@pytest.mark.parametrize("text", ["env.teams={front: [scout, medic]}", "env.teams.front=[scout,medic]"])
def test_teams_can_be_written_on_the_command_line(text: str) -> None:
    config = resolve([f"env={RELAY}", "algo=ippo", text]).config
    assert teams_of(spec_of(RELAY, config.env.params)) == {"front": ["scout", "medic"], "carrier": ["carrier"]}


def test_an_unknown_word_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"env.teams.*'?separate'? or '?shared'?"):
        resolve([f"env={RELAY}", "env.teams=together"])


# --------------------------------------------------------------------------------------------------------------- runs


OFF_POLICY = {"learning_starts": 8, "batch_size": 8, "buffer_size": 100}


@pytest.mark.parametrize(("algo", "more"), [("poca", {}), ("qmix", {"rnn": "gru", "rnn_size": 8, **OFF_POLICY})])
def test_roles_with_different_spaces_learn_in_one_team(algo: str, more: dict[str, Any], tmp_path: Path) -> None:
    settings = {"name": algo, "hidden_sizes": [8], "rollout_length": 4, **more}
    result = coterie.train(
        env={"name": RELAY, "teams": "shared"}, algo=settings, steps=64, num_envs=4, progress="off",
        eval={"episodes": 4, "num_envs": 4}, log={"tensorboard": False}, out=str(tmp_path / "run"),
    )  # fmt: skip
    entries = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    assert any(name.startswith("loss/") for entry in entries for name in entry)  # it took gradient steps
    evaluated = next(entry for entry in entries if "eval/return_mean" in entry)
    by_role = [evaluated[f"eval/return_mean/{role}"] for role in ("scout", "carrier", "medic")]
    assert evaluated["eval/return_mean"] == pytest.approx(sum(by_role))
    assert evaluated["eval/return_mean/carrier_0"] == pytest.approx(2 * evaluated["eval/return_mean/carrier_1"])
    assert list(result.report()["roles"]["all"]["roles"]) == ["scout", "carrier", "medic"]
