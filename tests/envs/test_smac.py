"""PyMARL's interface: what SMAC's packages are given and say, deaths, limits, crashes, seeds, replays, refusals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squads
import starcraft
import torch

from coterie import run
from coterie.__main__ import main
from coterie.config import resolve
from coterie.envs.check import check
from coterie.envs.make import make, spec_of
from coterie.envs.paths import random_actions
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError
from coterie.schema import WorkersConfig
from coterie.seeds import seed_of
from coterie.types import Action, Row, Step
from tinyruns import stop_at, train

PATROL = "squads:Patrol"


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a game with two maps, and all packages."""
    folder = starcraft.unpacked(tmp_path / "StarCraftII", "3m", "10gen_terran")
    starcraft.install(monkeypatch, folder, "smac", "smacv2", "smaclite")
    return folder


def acting(env: VectorEnv, *choices: list[int]) -> list[tuple[Step, Row]]:
    """What every step of one copy brings."""
    role = env.spec.roles[0].name
    return [env.step({role: Action(torch.tensor(picks)[None, :, None])}) for picks in choices]


# ---------------------------------------------------------------------------------------------------------------- SMAC


def test_smac_is_made_with_the_map_and_the_keys_and_its_limit_is_told_apart(game: Path):
    env = make("smac/3m", {"difficulty": 5, "reward_win": 100}, copies=2, seed=4)
    env.reset()
    first, second = starcraft.LAUNCHED
    assert (first["map_name"], first["difficulty"], first["continuing_episode"]) == ("3m", "5", True)
    assert first["reward_win"] == 100  # not one of the declared keys
    assert first["seed"] == seed_of(4, "env", "smac/3m", 0) >> 32 != second["seed"]
    spec = env.spec
    assert [(role.name, role.group, role.n, role.action.choices) for role in spec.roles] == [
        ("ally", "allies", 3, (8,))
    ]
    assert spec.metrics == ("won", "enemies_dead", "allies_dead")
    assert (spec.mortal, spec.paid_by_group, spec.episode_limit, spec.exact_resume) == (True, True, 12, False)
    assert spec_of("smac/3m").state_sizes == {"global": 4}
    assert not make("smac/3m").spec.state_sizes  # nobody reads it


def test_who_can_do_nothing_but_action_0_is_dead_even_if_it_is_told_the_time(game: Path):
    env = make("smac/3m", with_state=True)
    row = env.reset()
    assert row.action_mask["ally"][0, 0].tolist() == [False, True, True, False, True, True, True, True]
    (_, _), (_, _), (step, row), (after, last) = acting(env, [1, 1, 2], [1, 1, 2], [1, 1, 2], [7, 1, 5])
    assert row.alive.tolist() == [[False, True, True]]
    assert step.terminated.tolist() == [[True, False, False]]
    assert not row.obs["ally"][0, 0].any()
    assert row.action_mask["ally"][0, 0].all()
    assert row.obs["ally"][0, 1].any()
    assert step.group_reward.tolist() == [[pytest.approx(0.3)]]
    assert not step.reward.any()
    assert step.metrics["allies_dead"].tolist() == [1]
    # The stand-in asserts that the dead choose 0: what was chosen for the first of them reached nobody.
    assert after.metrics["enemies_dead"].tolist() == [0]
    assert after.terminated.tolist() == [[False, True, False]]
    assert last.state["global"].tolist() == [[0, 0, 1, 4]]


def test_a_battle_that_is_won_or_lost_is_an_end_and_a_limit_a_cut(game: Path):
    env = make("smac/3m")
    env.reset()
    won = acting(env, [6, 6, 6], [7, 7, 7])[-1]
    assert won[0].metrics["won"].tolist() == [1]
    assert won[0].metrics["enemies_dead"].tolist() == [2]
    assert (bool(won[0].episode_terminated), bool(won[0].episode_truncated)) == (True, False)
    assert won[0].terminated.all()
    _, row = acting(env, [0, 0, 0])[0]  # from the closing row
    assert row.first.all()
    *_, (cut, last) = acting(env, *[[1, 1, 1]] * 12)
    assert (bool(cut.episode_terminated), bool(cut.episode_truncated)) == (False, True)
    assert cut.truncated.all()
    assert not cut.terminated.any()
    assert not last.acted.any()
    published = make("smac/3m", {"continuing_episode": False})
    published.reset()
    *_, (cut, _) = acting(published, *[[1, 1, 1]] * 12)
    assert (bool(cut.episode_terminated), bool(cut.episode_truncated)) == (True, False)


def test_a_game_that_died_in_a_step_cuts_the_episode(game: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    monkeypatch.setattr(starcraft.StarCraft2Env, "_crash", 2)
    env = make("smac/3m")
    env.reset()
    step, _ = acting(env, [1, 1, 1], [1, 1, 1])[-1]
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (False, True)
    assert "started anew" in caplog.text


def test_the_game_is_seeded_when_it_starts_and_anew_where_that_is_asked_for(game: Path):
    for relaunch, launches in ((False, 1), (True, 2)):
        starcraft.LAUNCHED.clear()
        env = make("smac/3m", {"relaunch": relaunch}, seed=1)
        env.reset()
        acting(env, [6, 6, 6], [7, 7, 7], [0, 0, 0])
        env.reset(9)
        seeds = [made["seed"] for made in starcraft.LAUNCHED]
        assert seeds == [seed_of(seed, "env", "smac/3m", 0) >> 32 for seed in (1, 9)][:launches]


def test_smacv2_draws_its_teams(game: Path):
    env = make("smacv2/terran_5_vs_6", {"conic_fov": True}, copies=2)
    env.reset()
    made = starcraft.LAUNCHED[0]
    assert (made["map_name"], made["conic_fov"], made["obs_own_pos"]) == ("10gen_terran", True, True)
    drawn = made["capability_config"]
    assert (drawn["n_units"], drawn["n_enemies"]) == (5, 6)
    assert drawn["team_gen"]["unit_types"] == ["marine", "marauder", "medivac"]
    assert drawn is not starcraft.LAUNCHED[1]["capability_config"]


def test_smaclite_gets_smac_s_limit_and_keeps_the_contract(game: Path):
    lite = make("smaclite/mmm2", copies=1, with_state=True)
    assert (lite.spec.name, lite.spec.episode_limit, lite.spec.state_sizes) == ("smaclite/mmm2", 180, {"global": 2})
    lite.reset()
    (step, row), (won, _) = acting(lite, [2, 6], [6, 6])[:2]
    assert row.alive.tolist() == [[True, False]]
    assert step.metrics["allies_dead"].tolist() == [1]
    assert not won.metrics["won"].any()
    short = make("smaclite/mmm2", {"episode_limit": 3})
    short.reset()
    *_, (step, _) = acting(short, *[[1, 1]] * 3)
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (False, True)
    report = check(lambda copies, seed: make("smaclite/2s3z", {}, copies, seed), steps=20, copies=2)
    assert {finding.rule for finding in report.findings} - {"slow"} == {"render-missing"}, report


def test_the_game_s_version_and_difficulty_are_in_the_manifest_and_a_change_is_told(
    game: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    tiny = (
        "env=smac/3m",
        "workers.count=0",
        "algo=ippo",
        "steps=64",
        "copies=4",
        "algo.horizon=8",
        "eval.episodes=2",
        "eval.copies=1",
    )
    stop_at(monkeypatch, 32)
    train(tmp_path / "run", *tiny)
    said = json.loads((tmp_path / "run" / "manifest.json").read_text())["environment"]
    assert said == {
        "map": "3m", "difficulty": "7", "game_version": "4.10.0", "game_build": "75689", "smac": "unknown",
        "pysc2": "unknown",
    }  # fmt: skip
    capfd.readouterr()
    monkeypatch.setattr("coterie.envs.adapters.smac._version", lambda name: "2.0")
    run.resume(tmp_path / "run", [])
    assert "smac was unknown, and is 2.0: results before and after do not compare" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "folder"), [("smac/3m", "given"), ("smacv2/terran_5_vs_5", "given"), (PATROL, None), ("skirmish/3m", None)]
)
def test_a_game_writes_its_own_replay_where_it_has_any(
    name: str, folder: str | None, game: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "replays"
    words = ["play", "--algo", "random", "--env", name, "--replay", str(out), "--episodes", "2"]
    assert main(words) == (0 if folder else 2)
    said = capsys.readouterr().err
    if folder:
        [file] = out.iterdir()
        assert file.name.endswith("_2026.SC2Replay")
        assert str(file) in said
    else:
        assert f"{name} saves no replays: record its pictures, --video FILE" in said


# ----------------------------------------------------------------------------------------------------- what is missing


def test_a_missing_package_game_or_map_is_one_line_with_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for family, name in (("smac", "smac/3m"), ("smacv2", "smacv2/zerg_5_vs_5"), ("smaclite", "smaclite/2s3z")):
        assert _refused(name, rf'needs {family}: pip install "git\+https://.*/{family}.git"')
    monkeypatch.setenv("SC2PATH", "/elsewhere")
    starcraft.install(monkeypatch, None, "smac")
    assert _refused("smac/3m", r"the game is not there: unpack StarCraft II there, or set SC2PATH .*/elsewhere")
    starcraft.install(monkeypatch, starcraft.unpacked(tmp_path / "game"), "smac")
    assert _refused("smac/3m", "'3m' is none of the maps in .*game/Maps: copy the SMAC_Maps of the package smac there")
    starcraft.install(monkeypatch, starcraft.unpacked(tmp_path / "other", "3m"), "smac")
    assert _refused("smac/3m", r"env.game_version=4.1: Unknown game version: 4.1. Known", game_version="4.1")
    assert _refused("smac/3m", "unexpected keyword argument 'obs_taste'", obs_taste=True)
    monkeypatch.delitem(sys.modules, "smac.env")
    assert _refused("smac/3m", "that is installed is another of the same name: pip uninstall smac, then pip install")


def _refused(name: str, words: str, **params: Any) -> bool:
    """Whether an environment is refused in one line with these words."""
    with pytest.raises(UserError) as raised:
        make(name, params)
    return re.search(words, str(raised.value)) is not None and "\n" not in str(raised.value)


def test_wrong_names_and_keys_are_told_without_the_packages():
    assert _refused("smacv2/terran_5_vs_4", "no environment 'smacv2/terran_5_vs_4'.*the enemy's no smaller")
    assert _refused("smacv2/human_5_vs_5", "terran, protoss or zerg")
    assert _refused("smac/3m", "difficulty", difficulty="0")
    config = resolve(["env=smac/3m", "algo=qmix", "env.difficulty=9"]).config
    assert config.env.params.model_dump()["difficulty"] == "9"


# ------------------------------------------------------------------------------------------------------- anybody's own


@pytest.mark.parametrize(("form", "shown"), [(3, ""), (3, "gymnasium"), (5, "")])
@pytest.mark.parametrize("cut", [False, True])
def test_ends_and_cuts_of_every_form_of_a_step(form: int, shown: str, cut: bool):
    env = make(PATROL, {"form": form, "cut": cut, "shown": shown})
    env.reset()
    *_, (before, _), (step, row) = acting(env, *[[2, 2]] * 5)
    assert not before.episode_terminated | before.episode_truncated
    assert (bool(step.episode_terminated), bool(step.episode_truncated)) == (not cut, cut)
    assert (step.truncated if cut else step.terminated).all()
    assert row.obs["agent"].tolist() == [[[1, 6], [1, 6]]]
    assert step.group_reward.tolist() == [[3]]


def test_roles_metrics_rewards_and_facts_are_read_off_an_environment():
    spec = make(PATROL, {}, with_state=True).spec
    assert [(role.name, role.n, role.action.choices) for role in spec.roles] == [("agent", 2, (3,))]
    assert spec.metrics == ("won", "moved")  # a word is no metric
    assert (spec.episode_limit, spec.state_sizes, spec.facts) == (
        20,
        {"global": 3},
        {"map_name": "yard", "difficulty": "7"},
    )
    each = make(PATROL, {"own": True})
    each.reset()
    step, _ = acting(each, [2, 2])[0]
    assert not each.spec.paid_by_group
    assert step.reward.tolist() == [[1, 2]]
    assert not step.group_reward.any()
    short = make(PATROL, {"episode_limit": 2})
    short.reset()
    assert [bool(step.episode_truncated) for step, _ in acting(short, [2, 2], [2, 2])] == [False, True]


def test_the_dead_are_told_by_their_masks_and_by_what_they_see_unless_it_is_said_otherwise():
    for mortal, alive, terminated in ((None, False, True), (True, False, True), (False, True, False)):
        env = make(PATROL, {"mortal": mortal})
        env.reset()
        step, row = acting(env, [1, 2], [1, 2], [1, 2])[-1]
        assert row.alive.tolist() == [[alive, True]]
        assert bool(step.terminated[0, 0]) == terminated
        assert env.spec.mortal == (mortal is not False)
        assert row.action_mask["agent"][0, 0].tolist() == ([True, False, False] if alive else [True] * 3)


def test_an_environment_that_takes_its_seed_when_it_is_made_gets_it_there():
    squads.Patrol.made.clear()
    env = make(PATROL, {}, seed=5, with_state=True)
    first = env.reset(2).state["global"]
    other, again = env.reset(3).state["global"], env.reset(2).state["global"]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    own = [seed_of(seed, "env", PATROL, 0) >> 32 for seed in (2, 3, 2)]
    assert squads.Patrol.made[-3:] == own
    fixed = make(PATROL, {"seed": 11}, seed=5, with_state=True)
    assert torch.equal(fixed.reset(2).state["global"], fixed.reset(3).state["global"])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"form": 4}, "step.. returned 4 values, expected .reward, terminated, info., or EPyMARL's"),
        ({"shown": "infos"}, "step.. returned a list for info, expected a dict"),
        ({"shown": "nothing"}, "get_env_info.. has no n_agents"),
        ({"shown": "mask"}, r"get_avail_actions.. is of shape \(2, 2\), and get_env_info.. says \(2, 3\): mend either"),
        ({"shown": "obs"}, "get_obs.. returned 1 observations of 2"),
        ({"roles": {"a": "*"}}, "is a MultiAgentEnv with one team: leave env.roles out"),
    ],
)
def test_an_interface_that_is_not_kept_is_one_line(params: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        make(PATROL, params).reset()


def test_a_factory_of_something_else_is_told_what_there_can_be():
    assert _refused(
        "squads:number", "expected PettingZoo's ParallelEnv or AECEnv, PyMARL's MultiAgentEnv or a gymnasium.Env"
    )


def test_an_environment_that_raises_in_a_worker_is_replaced_and_the_others_go_on(tmp_path: Path, caplog: Any):
    params = {"crash": 3, "once": str(tmp_path / "once"), "ends": 6}
    env = make(PATROL, params, copies=4, seed=1, workers=WorkersConfig(count=2))
    row, generator, lost = env.reset(), torch.Generator().manual_seed(0), []
    for _ in range(5):
        step, row = env.step(random_actions(env.spec, row, generator))
        lost.append([] if step.lost is None else step.lost.tolist())
    env.close()
    assert [any(found) for found in lost] == [False, False, True, False, False]
    assert sum(lost[2]) == 2
    assert "ConnectionError: the game is gone" in caplog.text
    assert np.isfinite(row.obs["agent"].numpy()).all()


@pytest.mark.parametrize("algo", ["qmix", "mappo", "iql", "coma"])
def test_learners_train_on_an_exported_battle(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: None)  # takes longer than the run
    own = ["algo.learning_starts=16", "algo.batch=4"] if algo in ("qmix", "iql") else ["algo.critic_hidden=[8]"]
    settings = (
        "env=squads:battle",
        "env.limit=6",
        f"algo={algo}",
        "copies=4",
        "steps=128",
        "threads=1",
        "progress=off",
    )
    evaluated = ("eval.every=64", "eval.episodes=1", "eval.copies=1", "log.tensorboard=false")
    given = [*settings, *evaluated, "algo.horizon=8", "algo.hidden=[8]", *own, f"out={tmp_path / algo}"]
    assert run.train(resolve(given)).exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / algo / "metrics.jsonl").read_text().splitlines()]
    assert any(key.startswith("loss/") for row in rows for key in row)
    assert any(key.endswith("/won") for row in rows for key in row)
