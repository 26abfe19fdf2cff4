"""SMAC packages and PyMARL's interface: settings, deaths, limits, crashes, seeds, replays, errors."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import squads
import starcraft
from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.checks.environment.contract import check
from coterie.commands import train as training
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make, spec_of
from coterie.playing.episode_recording import Recording
from tinyruns import stop_at, train

PATROL = "squads:Patrol"


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a simulated game with two maps, with all packages installed."""
    folder = starcraft.unpacked(tmp_path / "StarCraftII", "3m", "10gen_terran")
    starcraft.install(monkeypatch, folder, "smac", "smacv2", "smaclite")
    return folder


def play(env: VectorEnv, *choices: list[int]) -> list[tuple[Step, Timestep]]:
    """Steps one environment and returns the results."""
    role = env.spec.roles[0].name
    return [env.step({role: Action(torch.tensor(picks)[None, :, None])}) for picks in choices]


# ----------------------------------------------------------------------------------------------------------------- SMAC


def test_smac_is_created_with_the_map_and_the_settings_and_its_limit_truncates(game: Path):
    env = make("smac/3m", {"difficulty": 5, "reward_win": 100}, num_envs=2, seed=4)
    env.reset()
    first, second = starcraft.LAUNCHED
    assert (first["map_name"], first["difficulty"], first["continuing_episode"]) == ("3m", "5", True)
    assert first["reward_win"] == 100  # not a declared setting
    assert first["seed"] == seed_of(4, "env", "smac/3m", 0) >> 32 != second["seed"]
    spec = env.spec
    (role,) = spec.roles
    assert (role.name, role.group, role.n, role.action.choices) == ("ally", "allies", 3, (8,))
    assert spec.metrics == ("won", "enemies_dead", "allies_dead")
    assert (spec.agents_can_die, spec.has_group_reward) == (True, True)
    assert (spec.episode_limit, spec.exact_resume) == (12, False)
    assert spec_of("smac/3m").state_sizes == {"global": 4}
    assert not make("smac/3m").spec.state_sizes  # no algorithm reads it


def test_agents_with_action_0_only_are_dead_even_if_they_observe_the_step_number(game: Path):
    env = make("smac/3m", with_state=True)
    timestep = env.reset()
    assert timestep.action_mask["ally"][0, 0].tolist() == [False, True, True, False, True, True, True, True]
    (_, _), (_, _), (step, timestep), (after, last) = play(env, [1, 1, 2], [1, 1, 2], [1, 1, 2], [7, 1, 5])
    assert timestep.alive.tolist() == [[False, True, True]]
    assert step.terminated.tolist() == [[True, False, False]]
    assert not timestep.obs["ally"][0, 0].any()
    assert timestep.action_mask["ally"][0, 0].all()
    assert timestep.obs["ally"][0, 1].any()
    assert step.group_reward.tolist() == [[pytest.approx(0.3)]]
    assert not step.reward.any()
    assert step.metrics["allies_dead"].tolist() == [1]
    # The stand-in asserts that dead agents choose 0, so the action sampled for the first one was replaced.
    assert after.metrics["enemies_dead"].tolist() == [0]
    assert after.terminated.tolist() == [[False, True, False]]
    assert last.state["global"].tolist() == [[0, 0, 1, 4]]


def test_won_and_lost_battles_terminate_and_the_limit_truncates(game: Path):
    env = make("smac/3m")
    env.reset()
    won = play(env, [6, 6, 6], [7, 7, 7])[-1]
    assert won[0].metrics["won"].tolist() == [1]
    assert won[0].metrics["enemies_dead"].tolist() == [2]
    assert (bool(won[0].episode_terminated), bool(won[0].episode_truncated)) == (True, False)
    assert won[0].terminated.all()
    _, timestep = play(env, [0, 0, 0])[0]  # from the final timestep
    assert timestep.first.all()
    *_, (cut, last) = play(env, *[[1, 1, 1]] * 12)
    assert (bool(cut.episode_terminated), bool(cut.episode_truncated)) == (False, True)
    assert cut.truncated.all()
    assert not cut.terminated.any()
    assert not last.acted.any()
    published = make("smac/3m", {"continuing_episode": False})
    published.reset()
    *_, (cut, _) = play(published, *[[1, 1, 1]] * 12)
    assert (bool(cut.episode_terminated), bool(cut.episode_truncated)) == (True, False)


def test_a_crash_of_the_game_truncates_the_episode(game: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    monkeypatch.setattr(starcraft.StarCraft2Env, "crash_at", 2)
    env = make("smac/3m")
    env.reset()
    step, _ = play(env, [1, 1, 1], [1, 1, 1])[-1]
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (False, True)
    assert "the game was restarted" in caplog.text


def test_the_game_is_seeded_at_launch_and_for_every_episode_with_relaunch(game: Path):
    for relaunch, launches in ((False, 1), (True, 2)):
        starcraft.LAUNCHED.clear()
        env = make("smac/3m", {"relaunch": relaunch}, seed=1)
        env.reset()
        play(env, [6, 6, 6], [7, 7, 7], [0, 0, 0])
        env.reset(9)
        seeds = [made["seed"] for made in starcraft.LAUNCHED]
        assert seeds == [seed_of(seed, "env", "smac/3m", 0) >> 32 for seed in (1, 9)][:launches]


def test_smacv2_samples_its_teams(game: Path):
    env = make("smacv2/terran_5_vs_6", {"conic_fov": True}, num_envs=2)
    env.reset()
    made = starcraft.LAUNCHED[0]
    assert (made["map_name"], made["conic_fov"], made["obs_own_pos"]) == ("10gen_terran", True, True)
    drawn = made["capability_config"]
    assert (drawn["n_units"], drawn["n_enemies"]) == (5, 6)
    assert drawn["team_gen"]["unit_types"] == ["marine", "marauder", "medivac"]
    assert drawn is not starcraft.LAUNCHED[1]["capability_config"]


@pytest.mark.slow
def test_smaclite_has_smac_s_limit_and_keeps_the_contract(game: Path):
    lite = make("smaclite/mmm2", num_envs=1, with_state=True)
    assert (lite.spec.name, lite.spec.episode_limit, lite.spec.state_sizes) == ("smaclite/mmm2", 180, {"global": 2})
    lite.reset()
    (step, timestep), (won, _) = play(lite, [2, 6], [6, 6])[:2]
    assert timestep.alive.tolist() == [[True, False]]
    assert step.metrics["allies_dead"].tolist() == [1]
    assert not won.metrics["won"].any()
    short = make("smaclite/mmm2", {"episode_limit": 3})
    short.reset()
    *_, (step, _) = play(short, *[[1, 1]] * 3)
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (False, True)
    report = check(lambda num_envs, seed: make("smaclite/2s3z", {}, num_envs, seed), steps=20, num_envs=2)
    assert {finding.name for finding in report.findings} - {"slow"} == {"render-missing"}, report


@pytest.mark.slow
def test_version_and_difficulty_are_in_the_manifest_and_changes_are_reported(
    game: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    tiny = ("env=smac/3m", "workers.count=0", "algo=ippo", "steps=64", "algo.rollout_length=8", "eval.num_envs=1")
    stop_at(monkeypatch, 32)
    train(tmp_path / "run", *tiny)
    env_info = json.loads((tmp_path / "run" / "manifest.json").read_text())["environment"]
    assert env_info == {
        "map": "3m", "difficulty": "7", "game_version": "4.10.0", "game_build": "75689", "smac": "unknown",
        "pysc2": "unknown",
    }  # fmt: skip
    capfd.readouterr()
    version = metadata.version

    def installed_versions(name: str) -> str:
        return "2.0" if name in ("smac", "pysc2") else version(name)

    monkeypatch.setattr("coterie.envs.external.smac.metadata.version", installed_versions)
    training.resume(tmp_path / "run", [])
    assert "smac was unknown and is now 2.0. Results before and after are not comparable." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "folder"),
    [("smac/3m", "given"), (PATROL, None)],
)
def test_native_replays_are_saved_if_the_environment_supports_them(
    name: str, folder: str | None, game: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "replays"
    command = ["play", "--algo", "random", "--env", name, "--replay", str(out), "--episodes", "2"]
    assert main(command) == (0 if folder else 2)
    output = capsys.readouterr().err
    if folder:
        [file] = out.iterdir()
        assert file.name.endswith("_2026.SC2Replay")
        assert str(file) in output
    else:
        assert f"{name}: replays cannot be saved. Record a video instead: --video FILE" in output


def test_a_replay_of_a_built_in_skirmish_is_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "replays"
    assert main(["play", "--algo", "random", "--env", "skirmish/3m", "--replay", str(out), "--episodes", "2"]) == 0
    recording = Recording(out / "episodes.zip")
    assert [timestep.episode for timestep in recording.timesteps if timestep.final] == [0, 1]
    recording.close()
    assert f"Show them with: coterie view {out / 'episodes.zip'}" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ what is missing


def test_a_missing_package_game_or_map_is_reported_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for family, name in (("smac", "smac/3m"), ("smacv2", "smacv2/zerg_5_vs_5"), ("smaclite", "smaclite/2s3z")):
        assert raises_one_line(name, rf'needs {family}. Install it with: pip install "git\+https://.*/{family}.git"')
    monkeypatch.setenv("SC2PATH", "/elsewhere")
    starcraft.install(monkeypatch, None, "smac")
    assert raises_one_line(
        "smac/3m", r"StarCraft II is not installed. Unpack StarCraft II there, or set SC2PATH .*/elsewhere"
    )
    starcraft.install(monkeypatch, starcraft.unpacked(tmp_path / "game"), "smac")
    assert raises_one_line("smac/3m", "'3m' is not a map in .*game/Maps. Copy the SMAC_Maps of the package smac there")
    starcraft.install(monkeypatch, starcraft.unpacked(tmp_path / "other", "3m"), "smac")
    assert raises_one_line("smac/3m", r"env.game_version=4.1: Unknown game version: 4.1. Known", game_version="4.1")
    assert raises_one_line("smac/3m", "unexpected keyword argument 'obs_taste'", obs_taste=True)
    monkeypatch.delitem(sys.modules, "smac.env")
    assert raises_one_line("smac/3m", "is a different one of the same name. Run: pip uninstall smac, then pip install")


def raises_one_line(name: str, pattern: str, **params: Any) -> bool:
    """True if creating the environment raises a one-line error that matches the pattern."""
    with pytest.raises(UserError) as raised:
        make(name, params)
    return re.search(pattern, str(raised.value)) is not None and "\n" not in str(raised.value)


def test_wrong_names_and_settings_are_reported_without_the_packages():
    assert raises_one_line("smacv2/terran_5_vs_4", "no such environment: 'smacv2/terran_5_vs_4'.*the enemy not smaller")
    assert raises_one_line("smacv2/human_5_vs_5", "terran, protoss or zerg")
    assert raises_one_line("smac/3m", "difficulty", difficulty="0")
    config = resolve(["env=smac/3m", "algo=qmix", "env.difficulty=9"]).config
    assert config.env.params.model_dump()["difficulty"] == "9"


# -------------------------------------------------------------------------------------------- user-defined environments


@pytest.mark.parametrize(("form", "fault"), [(3, ""), (3, "gymnasium"), (5, "")])
@pytest.mark.parametrize("truncated", [False, True])
def test_termination_and_truncation_in_every_step_format(form: int, fault: str, truncated: bool):
    env = make(PATROL, {"form": form, "truncates": truncated, "fault": fault})
    env.reset()
    *_, (before, _), (step, timestep) = play(env, *[[2, 2]] * 5)
    assert not before.episode_terminated | before.episode_truncated
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (not truncated, truncated)
    assert (step.truncated if truncated else step.terminated).all()
    assert timestep.obs["agent"].tolist() == [[[1, 6], [1, 6]]]
    assert step.group_reward.tolist() == [[3]]


def test_roles_metrics_rewards_and_env_info_come_from_the_environment():
    spec = make(PATROL, {}, with_state=True).spec
    assert [(role.name, role.n, role.action.choices) for role in spec.roles] == [("agent", 2, (3,))]
    assert spec.metrics == ("won", "moved")  # a string is not a metric
    assert (spec.episode_limit, spec.state_sizes) == (20, {"global": 3})
    assert spec.env_info == {"map_name": "yard", "difficulty": "7"}
    each = make(PATROL, {"own": True})
    each.reset()
    step, _ = play(each, [2, 2])[0]
    assert not each.spec.has_group_reward
    assert step.reward.tolist() == [[1, 2]]
    assert not step.group_reward.any()
    short = make(PATROL, {"episode_limit": 2})
    short.reset()
    assert [bool(step.episode_truncated) for step, _ in play(short, [2, 2], [2, 2])] == [False, True]


def test_deaths_are_recognized_by_masks_and_observations_unless_configured():
    for agents_can_die, alive, terminated in ((None, False, True), (True, False, True), (False, True, False)):
        env = make(PATROL, {"agents_can_die": agents_can_die})
        env.reset()
        step, timestep = play(env, [1, 2], [1, 2], [1, 2])[-1]
        assert timestep.alive.tolist() == [[alive, True]]
        assert bool(step.terminated[0, 0]) == terminated
        assert env.spec.agents_can_die == (agents_can_die is not False)
        assert timestep.action_mask["agent"][0, 0].tolist() == ([True, False, False] if alive else [True] * 3)


def test_an_environment_with_a_constructor_seed_receives_it_there():
    squads.Patrol.seeds.clear()
    env = make(PATROL, {}, seed=5, with_state=True)
    first = env.reset(2).state["global"]
    other, again = env.reset(3).state["global"], env.reset(2).state["global"]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    own = [seed_of(seed, "env", PATROL, 0) >> 32 for seed in (2, 3, 2)]
    assert squads.Patrol.seeds[-3:] == own
    fixed = make(PATROL, {"seed": 11}, seed=5, with_state=True)
    assert torch.equal(fixed.reset(2).state["global"], fixed.reset(3).state["global"])


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"form": 4}, "step.. returned 4 values, expected .reward, terminated, info., or EPyMARL's"),
        ({"fault": "infos"}, "step.. returned a list for info, expected a dict"),
        ({"fault": "nothing"}, "get_env_info.. lacks n_agents"),
        (
            {"fault": "mask"},
            r"get_avail_actions.. is of shape \(2, 2\), but get_env_info.. declares \(2, 3\). Fix one of them.",
        ),
        ({"fault": "obs"}, "get_obs.. returned 1 observations of 2"),
        ({"roles": {"a": "*"}}, "env.roles: environment 'squads:Patrol' is a MultiAgentEnv with one team"),
    ],
)
def test_interface_violations_raise_one_line_errors(params: dict[str, Any], pattern: str):
    with pytest.raises(UserError, match=pattern):
        make(PATROL, params).reset()
