"""Games: agents with a seat follow their player, others follow their policies, and returns are accumulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.algos import registry
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.replay.memory import no_memory_check
from coterie.assembly.learners import load_run_or_make
from coterie.cli.app import run
from coterie.commands.rendering import Episodes, render_episodes
from coterie.core.seeds import seed_of
from coterie.core.types import TIME_LEFT
from coterie.envs.make import make
from coterie.envs.worlds.world import WorldEnv
from coterie.playing.episode_recording import Header, Recording, TimestepRecord, encode
from coterie.playing.game import Game, Players
from coterie.playing.seating import GameRequest, open_game
from coterie.playing.seats import seats_for
from coterie.policies.base import Policy, RandomPolicy
from coterie.training.trajectory import team_view
from tables import Corridor, table
from tinyruns import train

CPU = torch.device("cpu")


def agent(game: Game, moment: Any, name: str) -> dict[str, Any]:
    return moment.timestep["agents"][game.env.spec.agents.index(name)]


def positions(moment: Any) -> list[int]:
    """Positions of both agents, read from the image."""
    return [int(np.flatnonzero(moment.frame[0, :, k])[0]) // 10 for k in (0, 1)]


def test_an_agent_follows_its_player_and_rewards_accumulate():
    game = table(["a"])
    moment = game.begin()
    assert (moment.timestep["timestep"], positions(moment)[0]) == (0, 1)
    assert "action" not in agent(game, moment, "a_0")
    (seat,) = game.seats
    total = 0.0
    for choice, position in ((2, 2), (2, 3), (1, 2), (None, 2)):
        if choice is not None:
            assert seat.press(0, choice, game.mask(seat)) == ""
            seat.release(0, choice)
        moment, refused = game.step()
        total += position
        assert refused == ""
        assert positions(moment)[0] == position
        recorded = agent(game, moment, "a_0")
        assert recorded["action"] == {"discrete": [choice or 0], "continuous": []}
        assert (recorded["reward"], recorded["total"]) == (position, total)
    assert moment.timestep["group_reward"] == {"a": 0.5, "b": 0.0}
    assert moment.timestep["returns"]["a"] == total + 4 * 0.5  # the group reward once per step
    assert moment.timestep["timestep"] == 4


@pytest.mark.parametrize("env", ["coop/pushblock", "probe/sum", "matrix/climbing"])
def test_agents_that_only_get_group_rewards_have_no_return(env: str):
    world = make(env, {}, 1, 0, with_state=True)
    teams = {team.name: team for team in world.spec.default_teams()}
    policies: dict[str, Policy] = {name: RandomPolicy(team, CPU) for name, team in teams.items()}
    players = Players(policies, dict.fromkeys(teams, "sample"))
    game = Game(world, players, [], seed=0, size=64)
    moments = [game.begin(), *(game.step()[0] for _ in range(12))]
    assert {entry["total"] for moment in moments for entry in moment.timestep["agents"]} == {None}
    assert any(value for moment in moments for value in moment.timestep.get("group_reward", {}).values())
    assert any(value for moment in moments for value in moment.timestep["returns"].values())


def test_an_episode_ends_with_a_final_timestep_and_the_next_step_starts_another():
    game = table(["a"], limit=2)
    game.begin()
    game.step()
    moment, _ = game.step()
    assert game.over
    assert (moment.timestep["final"], moment.timestep["ended"], moment.timestep["metrics"]) == (
        True,
        "truncated",
        {"position": 1.0},
    )
    assert "probability" not in agent(game, moment, "b_0")  # no policy acts at a final timestep
    moment, _ = game.step()
    assert (moment.timestep["timestep"], moment.timestep["final"], moment.timestep["returns"]["a"]) == (0, False, 0.0)
    assert "ended" not in moment.timestep


def test_masks_are_recorded_and_random_agents_never_take_masked_actions():
    game = table(["a"], limit=200)
    moment = game.begin()
    before = agent(game, moment, "b_0")
    walls = 0
    for _ in range(60):
        moment, _ = game.step()
        action = agent(game, moment, "b_0")["action"]["discrete"][0]
        assert before["mask"][action]
        assert before["probability"][action] > 0
        free = sum(before["mask"])
        walls += free < 3
        assert before["probability"] == [pytest.approx(m / free, abs=1e-6) for m in before["mask"]]
        before = agent(game, moment, "b_0")
    assert walls > 5


def test_continuous_values_of_a_player_are_mapped_to_the_bounds():
    game = table(["b"], numbers=True)
    game.begin()
    (seat,) = game.seats
    seat.set_value(0, 2.5)
    moment, _ = game.step()
    assert isinstance(game.env, WorldEnv)
    assert isinstance(game.env.world, Corridor)
    assert float(game.env.world.last_continuous[0]) == pytest.approx(0.5)  # 2.5 in [-2, 4], mapped to [-1, 1]
    assert agent(game, moment, "b_0")["action"] == {"discrete": [], "continuous": [2.5]}


def test_time_waits_for_players_who_must_choose_but_not_for_dead_agents():
    game = table(["b"], agents_can_die=True, pause=False, limit=50)
    game.begin()
    assert game.pending() == ["b_0"]
    (seat,) = game.seats
    seat.press(0, 2, game.mask(seat))
    seat.release(0, 2)
    assert game.pending() == []
    moment, _ = game.step()
    assert agent(game, moment, "b_0") == {
        "alive": False, "total": 4.0, "reward": 4.0, "action": {"discrete": [2], "continuous": []},
    }  # fmt: skip
    assert not game.alive(seat)
    assert game.pending() == []
    moment, _ = game.step()
    assert agent(game, moment, "b_0")["total"] == 4.0  # dead agents receive no reward


def test_timesteps_and_header_are_valid_records():
    game = table(["a"], limit=3, numbers=True)
    moment = game.begin()
    header = Header(**game.header("a title", moment.frame))
    assert [(a.name, a.team, a.choices, a.low, a.high) for a in header.agents] == [
        ("a_0", "a", (3,), (), ()),
        ("b_0", "b", (), (-2.0,), (4.0,)),
    ]
    assert (header.width, header.height, header.groups) == (50, 10, {"a": ("a_0",), "b": ("b_0",)})
    for _ in range(5):
        assert TimestepRecord(episode=0, **moment.timestep).agents[1].alive
        moment, _ = game.step()


def test_a_policy_observes_the_player_s_actions_as_last_actions():
    env = WorldEnv(Corridor(limit=50), 1, 0)
    teams = {team.name: team for team in env.spec.default_teams()}
    with no_memory_check():
        cls = registry.algorithm("iql")
        learner = cls(
            cls.Config(rnn="gru", obs_last_action=True),
            AlgorithmContext(team=teams["a"], num_envs=1, seed=0, device=CPU),
        )
    policies = {"a": learner.policy, "b": RandomPolicy(teams["b"], CPU)}
    game = Game(
        env, Players(policies, dict.fromkeys(teams, "sample")), seats_for(["a"], env.spec, teams), seed=0, size=50
    )
    game.begin()
    observed = set()
    for choice in (2, 2, 1):
        game.seats[0].press(0, choice, None)
        game.step()
        assert game.hidden_state["a"]["last"].flatten().tolist() == [float(choice == k) for k in range(3)]
        observed.add(choice)
    assert observed == {1, 2}


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "tag"
    train(out, "algo=mappo", "env=particle/simple_tag", "env.episode_limit=7", "teams.agent.algo=random", "steps=160")
    return out


@pytest.mark.slow
def test_a_game_without_players_equals_a_video_of_the_run(tag: Path):
    trained = load_run_or_make(tag, None)
    config, learners = trained.config, trained.algorithms
    policies = {name: learner.policy for name, learner in learners.items()}
    modes = {name: learner.capabilities.eval_mode for name, learner in learners.items()}
    episodes = Episodes(policies, modes, count=2, seed=seed_of(5, "play"))
    filmed = list(render_episodes(config, episodes, size=96))
    with open_game(GameRequest(tag, seed=5, size=96)) as (game, title):
        played = [game.begin().frame, *(game.step()[0].frame for _ in range(15))]
    assert title == "adversary: mappo, agent: random on particle/simple_tag (tag)"
    assert len(filmed) == 16
    assert all(np.array_equal(a, b) for a, b in zip(filmed, played, strict=True))
    with open_game(GameRequest(tag, seed=6, size=96)) as (game, _):
        assert not np.array_equal(game.begin().frame, filmed[0])


@pytest.mark.slow
def test_the_command_records_the_timesteps_of_the_game(tag: Path, tmp_path: Path):
    out = tmp_path / "one.zip"
    assert run(["play", str(tag), "--record", str(out), "--episodes", "2", "--seed", "5", "--size", "96"]) == 0
    found = Recording(out)
    assert found.header.episodes == (0, 8)
    assert [r.final for r in found.timesteps] == ([False] * 7 + [True]) * 2
    with open_game(GameRequest(tag, seed=5, size=96)) as (game, _):
        assert found.frame(0) == encode(game.begin().frame)
        timestep = game.step()[0].timestep
    again = TimestepRecord(**timestep, episode=0)
    assert found.timesteps[1] == again
    assert found.header == Recording(coterie_play(tag, tmp_path / "two.zip")).header
    found.close()


def coterie_play(run: Path, out: Path) -> Path:
    """Records the same episodes with the Python API."""
    written = coterie.play(run, record=out, episodes=2, seed=5, size=96)
    assert written == out
    return out


def seen(game: Any, team: str, steps: int) -> Any:
    """Returns what a critic reads of the present timestep, `steps` after the start of the episode."""
    left = torch.full((1, 1), 1 - steps / game.env.spec.episode_limit)
    view = team_view(game.players.teams[team], game.timestep)
    return replace(view, state=view.state | {TIME_LEFT: left})


@pytest.mark.slow
def test_value_estimates_come_from_the_critic_of_the_run(tag: Path):
    with open_game(GameRequest(tag, seed=5)) as (game, _):
        moment = game.begin()
        values = [a["value"] for a in moment.timestep["agents"]]
        critic = game.players.critics["adversary"]
        with torch.inference_mode():
            value, _ = critic.estimate_value(seen(game, "adversary", steps=0), {})
        assert values[:3] == [pytest.approx(x, rel=1e-4) for x in value[0].tolist()]
        moments = [game.step()[0] for _ in range(2)]
        later = [a["value"] for a in moments[-1].timestep["agents"]][:3]
        with torch.inference_mode():
            value, stale = (critic.estimate_value(seen(game, "adversary", steps=n), {})[0] for n in (2, 0))
        assert later == [pytest.approx(x, rel=1e-4) for x in value[0].tolist()]
        assert later != [pytest.approx(x, rel=1e-4) for x in stale[0].tolist()], "the critic reads the time left"
        assert values[3] is None  # random agents have no critic
        with torch.no_grad():
            for weight in critic.critic.parameters():  # pyright: ignore[reportAttributeAccessIssue]
                weight.add_(0.1)
        assert [a["value"] for a in game.begin().timestep["agents"]][:3] != values[:3]


@pytest.mark.slow
def test_a_recurrent_critic_with_an_intrinsic_reward_estimates_environment_returns(tmp_path: Path):
    train(tmp_path / "run", "algo=mappo", "env=particle/simple_spread", "algo.rnn=gru", "rewards.rnd.weight=0.5")
    with open_game(GameRequest(tmp_path / "run", human=["agent.agent_1"])) as (game, _):
        game.begin()
        critic: Any = game.players.critics["agent"]
        moments = [game.step()[0] for _ in range(3)]
        with torch.inference_mode():
            again, _ = critic.estimate_value(seen(game, "agent", steps=3), critic.start_value_estimation(1))
        values = [agent["value"] for agent in moments[-1].timestep["agents"]]
    assert len(critic.reward_streams.streams) == 2
    assert all(isinstance(value, float) for value in values)
    assert values != [pytest.approx(x, rel=1e-4) for x in again[0].tolist()]  # the hidden state differs
