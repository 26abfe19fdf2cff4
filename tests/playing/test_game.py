"""A game: seats move their agents, others draw from what is shown, and rewards are added up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie import registry, shown
from coterie.cli import run
from coterie.config import resolve
from coterie.envs.world import WorldEnv
from coterie.playing.cast import Wanted, opened
from coterie.playing.game import Cast, Game
from coterie.playing.recording import Header, Recording, RowRecord, encode
from coterie.playing.seats import named
from coterie.policy import RandomPolicy
from coterie.replay import unfilled
from coterie.run import learners_of
from coterie.seeds import seed_of
from playing.tables import Corridor, table
from tinyruns import train

CPU = torch.device("cpu")


def agent(game: Game, moment: Any, name: str) -> dict[str, Any]:
    return moment.row["agents"][game.env.spec.agents.index(name)]


def place(moment: Any) -> list[int]:
    """Where both stand, read off the picture."""
    return [int(np.flatnonzero(moment.frame[0, :, k])[0]) // 10 for k in (0, 1)]


def test_a_seat_moves_its_agent_and_rewards_add_up():
    game = table(["a"])
    moment = game.begin()
    assert (moment.row["row"], place(moment)[0]) == (0, 1)
    assert "did" not in agent(game, moment, "a_0")
    (seat,) = game.seats
    total = 0.0
    for want, stands in ((2, 2), (2, 3), (1, 2), (None, 2)):
        if want is not None:
            assert seat.press(0, want, game.mask(seat)) == ""
            seat.release(0, want)
        moment, refused = game.step()
        total += stands
        assert refused == ""
        assert place(moment)[0] == stands
        told = agent(game, moment, "a_0")
        assert told["did"] == {"discrete": [want or 0], "continuous": []}
        assert (told["reward"], told["total"]) == (stands, total)
    assert moment.row["group_reward"] == {"a": 0.5, "b": 0.0}
    assert moment.row["returns"]["a"] == total + 4 * 0.5  # the group's reward once a step
    assert moment.row["row"] == 4


def test_the_episode_ends_with_a_closing_row_and_the_next_step_begins_another():
    game = table(["a"], limit=2)
    game.begin()
    game.step()
    moment, _ = game.step()
    assert game.over
    assert (moment.row["closing"], moment.row["ended"], moment.row["metrics"]) == (True, "truncated", {"far": 1.0})
    assert "probability" not in agent(game, moment, "b_0")  # nobody weighs anything up any more
    moment, _ = game.step()
    assert (moment.row["row"], moment.row["closing"], moment.row["returns"]["a"]) == (0, False, 0.0)
    assert "ended" not in moment.row


def test_a_new_episode_may_begin_at_any_time():
    game = table(["a"])
    game.begin()
    game.seats[0].press(0, 2, None)
    game.step()
    moment = game.begin()
    assert (moment.row["row"], place(moment)[0], moment.row["returns"]["a"]) == (0, 1, 0.0)


def test_masks_are_shown_and_random_agents_never_do_what_is_masked():
    game = table(["a"], limit=200)
    moment = game.begin()
    before = agent(game, moment, "b_0")
    walls = 0
    for _ in range(60):
        moment, _ = game.step()
        did = agent(game, moment, "b_0")["did"]["discrete"][0]
        assert before["mask"][did]
        assert before["probability"][did] > 0
        free = sum(before["mask"])
        walls += free < 3
        assert before["probability"] == [pytest.approx(m / free, abs=1e-6) for m in before["mask"]]
        before = agent(game, moment, "b_0")
    assert walls > 5


def test_numbers_of_a_seat_reach_the_world_within_their_bounds():
    game = table(["b"], numbers=True)
    game.begin()
    (seat,) = game.seats
    seat.turn(0, 2.5)
    moment, _ = game.step()
    assert float(game.env._state["last"][0, 0]) == pytest.approx(0.5)  # 2.5 of -2 to 4, in -1 to 1
    assert agent(game, moment, "b_0")["did"] == {"discrete": [], "continuous": [2.5]}


def test_who_must_choose_is_waited_for_and_the_dead_are_not():
    game = table(["b"], mortal=True, pause=False, limit=50)
    game.begin()
    assert game.waits() == ["b_0"]
    (seat,) = game.seats
    seat.press(0, 2, game.mask(seat))
    seat.release(0, 2)
    assert game.waits() == []
    moment, _ = game.step()
    assert agent(game, moment, "b_0") == {
        "alive": False, "total": 4.0, "reward": 4.0, "did": {"discrete": [2], "continuous": []},
    }  # fmt: skip
    assert not game.alive(seat)
    assert game.waits() == []
    moment, _ = game.step()
    assert agent(game, moment, "b_0")["total"] == 4.0  # the dead earn nothing


def test_rows_are_records_and_the_header_is_one():
    game = table(["a"], limit=3, numbers=True)
    moment = game.begin()
    header = Header(**game.header("a title", moment.frame))
    assert [(a.name, a.team, a.choices, a.low, a.high) for a in header.agents] == [
        ("a_0", "a", (3,), (), ()),
        ("b_0", "b", (), (-2.0,), (4.0,)),
    ]
    assert (header.width, header.height, header.groups) == (50, 10, {"a": ("a_0",), "b": ("b_0",)})
    for _ in range(5):
        assert RowRecord(episode=0, **moment.row).agents[1].alive
        moment, _ = game.step()


def test_a_policy_that_reads_last_actions_reads_what_the_player_did():
    env = WorldEnv(Corridor(limit=50), 1, 0)
    teams = {team.name: team for team in env.spec.default_teams()}
    with unfilled():
        cls = registry.algorithm("iql")
        learner = cls(teams["a"], cls.Config(memory="gru", last_action=True), 1, None, 0, CPU)
    policies = {"a": learner.policy, "b": RandomPolicy(teams["b"], CPU)}
    game = Game(env, Cast(policies, dict.fromkeys(teams, "sample")), named(["a"], env.spec, teams), 0, 50)
    game.begin()
    seen = set()
    for want in (2, 2, 1):
        game.seats[0].press(0, want, None)
        game.step()
        assert game._carry["a"]["last"].flatten().tolist() == [float(want == k) for k in range(3)]
        seen.add(want)
    assert seen == {1, 2}


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "tag"
    train(out, "algo=mappo", "env=particle/simple_tag", "env.episode_limit=7", "teams.agent.algo=random", "steps=160")
    return out


def test_without_seats_a_game_is_what_videos_show(tag: Path):
    config, learners = learners_of(tag, None)
    policies = {name: learner.policy for name, learner in learners.items()}
    modes = {name: learner.capabilities.eval_mode for name, learner in learners.items()}
    start = seed_of(5, "play")
    filmed = list(shown.frames(config, policies, modes, 2, start, 96))
    with opened(Wanted(tag, seed=5, size=96)) as (game, title):
        played = [game.begin().frame, *(game.step()[0].frame for _ in range(15))]
    assert title == "adversary: mappo, agent: random on particle/simple_tag (tag)"
    assert len(filmed) == 16
    assert all(np.array_equal(a, b) for a, b in zip(filmed, played, strict=True))
    with opened(Wanted(tag, seed=6, size=96)) as (game, _):
        assert not np.array_equal(game.begin().frame, filmed[0])


def test_the_command_records_what_the_game_shows(tag: Path, tmp_path: Path):
    out = tmp_path / "one.zip"
    assert run(["play", str(tag), "--record", str(out), "--episodes", "2", "--seed", "5", "--size", "96"]) == 0
    found = Recording(out)
    assert found.header.episodes == (0, 8)
    assert [r.closing for r in found.rows] == ([False] * 7 + [True]) * 2
    with opened(Wanted(tag, seed=5, size=96)) as (game, _):
        assert found.frame(0) == encode(game.begin().frame)
        row = game.step()[0].row
    again = RowRecord(**row, episode=0)
    assert found.rows[1] == again
    assert found.header == Recording(coterie_play(tag, tmp_path / "two.zip")).header
    found.close()


def coterie_play(run: Path, out: Path) -> Path:
    """The same from Python."""
    written = coterie.play(run, record=out, episodes=2, seed=5, size=96)
    assert written == out
    return out


def test_values_are_those_of_the_run_s_critic(tag: Path):
    with opened(Wanted(tag, seed=5)) as (game, _):
        moment = game.begin()
        told = [a["value"] for a in moment.row["agents"]]
        critic = game.cast.critics["adversary"]
        with torch.inference_mode():
            value, _ = critic.judge(game._row.team(game.cast.teams["adversary"]), {})
        assert told[:3] == [pytest.approx(x, rel=1e-4) for x in value[0].tolist()]
        assert told[3] is None  # random agents expect nothing
        with torch.no_grad():
            for weight in critic.critic.parameters():  # pyright: ignore[reportAttributeAccessIssue]
                weight.add_(0.1)
        assert [a["value"] for a in game.begin().row["agents"]][:3] != told[:3]


def test_without_a_run_nobody_claims_to_know_what_will_be_earned():
    with opened(Wanted(resolved=resolve(["algo=mappo", "env=particle/simple_tag"]))) as (game, title):
        moment = game.begin()
    assert title == "mappo on particle/simple_tag"
    assert [a["value"] for a in moment.row["agents"]] == [None] * 4


def test_a_recurrent_run_with_a_second_reward_says_what_the_environment_will_pay(tmp_path: Path):
    train(tmp_path / "run", "algo=mappo", "env=particle/simple_spread", "algo.memory=gru", "rewards.rnd.strength=0.5")
    with opened(Wanted(tmp_path / "run", human=["agent.agent_1"])) as (game, _):
        game.begin()
        critic: Any = game.cast.critics["agent"]
        moments = [game.step()[0] for _ in range(3)]
        with torch.inference_mode():
            rows = game._row.team(game.cast.teams["agent"])
            again, _ = critic.judge(rows, critic.start_judging(1))
        told = [agent["value"] for agent in moments[-1].row["agents"]]
    assert len(critic.streams) == 2
    assert all(isinstance(value, float) for value in told)
    assert told != [pytest.approx(x, rel=1e-4) for x in again[0].tolist()]  # its memory went along
