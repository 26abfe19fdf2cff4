"""Self-play as a whole: who learns, who is met, what the ladder says, and games whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import pytest
import torch

from coterie.build import load_learners
from coterie.envs.matrix.game import Bimatrix, MatrixConfig, bimatrix_game
from coterie.errors import UserError
from coterie.metrics import undeclared
from coterie.types import Row
from tinyruns import rows_of, state_of, tiny, train

pytestmark = pytest.mark.usefixtures("without_curves")

CPU = torch.device("cpu")
RPS = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=1")


def names_of(out: Path) -> set[str]:
    return {name for row in rows_of(out) for name in row}


def test_one_policy_learns_and_plays_both_sides(tmp_path: Path):
    out = tmp_path / "run"
    train(out, *RPS, "selfplay.opponents=uniform", "selfplay.every=40", "selfplay.games=8")
    names = names_of(out)
    assert {"selfplay/elo", "selfplay/elo_error", "selfplay/win_rate", "selfplay/pool", "loss/row/policy"} <= names
    assert not any(name.startswith("loss/column") for name in names)
    assert undeclared(sorted(names)) == []
    _, learners = load_learners(out, "last", CPU)
    mine, its = (learners[name].policy.state_dict() for name in ("row", "column"))
    assert all(torch.equal(x, its["module"][name]) for name, x in mine["module"].items())


def test_teams_of_unequal_sides_learn_by_turns(tmp_path: Path):
    """Negative control: without self-play both learn at once."""
    tag = ("env=particle/simple_tag", "algo=ippo", "steps=240", "env.episode_limit=10")
    out = tmp_path / "turns"
    train(out, *tag, "selfplay.opponents=uniform", "selfplay.every=60", "selfplay.games=4", "turns.every=120")
    learning = [{name.split("/")[1] for name in row if name.startswith("loss/")} for row in rows_of(out)]
    learning = [teams for teams in learning if teams]
    assert {"adversary"} in learning
    assert {"agent"} in learning
    assert {"adversary", "agent"} not in learning
    assert {"selfplay/adversary/elo", "selfplay/agent/elo"} <= names_of(out)
    train(tmp_path / "both", *tag)
    at_once = [{name.split("/")[1] for name in row if name.startswith("loss/")} for row in rows_of(tmp_path / "both")]
    assert {"adversary", "agent"} in at_once


def test_a_team_whose_turn_is_over_does_not_change(tmp_path: Path):
    """Negative control: the one that learns does."""
    settings = ("env=particle/simple_tag", "algo=ippo", "turns.order=[adversary]", "turns.every=1000", "seed=3")
    train(tmp_path / "run", *settings, "steps=160", "checkpoint.every=40", "checkpoint.keep=true")
    _, first = load_learners(tmp_path / "run", "0", CPU)
    _, last = load_learners(tmp_path / "run", "last", CPU)

    def moved(team: str) -> bool:
        before, after = (one[team].policy.state_dict()["module"] for one in (first, last))
        return any(not torch.equal(x, after[name]) for name, x in before.items())

    assert moved("adversary")
    assert not moved("agent")


def test_teams_that_learn_differently_play_each_other(tmp_path: Path):
    """Values from a replay against a policy gradient, by turns, with snapshots of both."""
    out = tmp_path / "run"
    train(
        out, "env=particle/simple_tag", "algo=ippo", "teams.agent.algo=iql", "teams.agent.algo.replay=400",
        "teams.agent.algo.batch=4", "selfplay.opponents=pfsp", "selfplay.every=60", "selfplay.games=4",
        "turns.every=120", "steps=480", "env.episode_limit=10", "horizon=10",
    )  # fmt: skip
    players = state_of(out)["guides"]["selfplay"]["ladder"]["players"]
    assert {team for team, _, _ in players} == {"adversary", "agent"}


def test_a_gate_keeps_snapshots_out_that_win_too_little(tmp_path: Path):
    """Negative control: without a gate they are made."""
    made = []
    for gate in ("0.99", "null"):
        out = tmp_path / gate
        train(out, *RPS, "selfplay.opponents=uniform", "selfplay.every=40", "selfplay.games=8", f"selfplay.gate={gate}")
        made.append(len(state_of(out)["guides"]["selfplay"]["ladder"]["players"]))
    assert made[0] == 1
    assert made[1] >= 3


def test_no_opponent_changes_within_an_episode_when_a_snapshot_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Negative control: with no slot to spare the oldest one's episodes would go on against the newest."""
    from coterie.collect import Collector
    from coterie.selfplay import guide
    from coterie.selfplay.pool import Pool

    def changed(out: Path) -> bool:
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        advance = Collector.advance

        def watched(collector: Collector, steps: int) -> Any:
            windows, acted = advance(collector, steps)
            seen.append((windows["column"].record["label"][:, :, 0], windows["column"].acted))
            return windows, acted

        with monkeypatch.context() as patch:
            patch.setattr(Collector, "advance", watched)
            train(
                out, "env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=7", "selfplay.latest=0",
                "selfplay.opponents=uniform", "selfplay.window=2", "selfplay.every=40", "selfplay.games=4", "steps=600",
            )  # fmt: skip
        labels = torch.cat([label for label, _ in seen])
        acted = torch.cat([acted[:-1] for _, acted in seen])
        within = acted[1:] & acted[:-1]  # neither row closes an episode, so both are of one
        return bool((labels[1:] != labels[:-1])[within].any())

    assert not changed(tmp_path / "run")
    monkeypatch.setattr(guide, "Pool", lambda policy, size: Pool(policy, size - 1))
    monkeypatch.setattr(guide.SelfPlay, "_needed", lambda self, learner, other: False)
    assert changed(tmp_path / "control")


# ----------------------------------------------------------------------------------------------- games of known answers


def strategies(out: Path) -> torch.Tensor:
    """What the row's policy of every kept checkpoint but the first plays in a one-shot game: [checkpoints, A]."""
    found = []
    for path in sorted((out / "checkpoints").glob("0*"))[1:]:
        _, learners = load_learners(out, str(int(path.name)), CPU)
        policy: Any = learners["row"].policy
        one, yes = torch.ones(1, 1, 1), torch.ones(1, 1, dtype=torch.bool)
        row = Row({"row": one}, {}, {}, yes, yes, yes[0])
        with torch.no_grad():
            found.append(policy.inspect(row, {}, "sample")["row"].probability[0, 0])
    return torch.stack(found)


def exploitability(strategy: torch.Tensor) -> float:
    """What a best response to a mixture of rock, paper and scissors [3] earns a round; 0 in equilibrium."""
    payoff = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    return float((payoff @ strategy).max())


def test_the_average_of_self_play_in_rock_paper_scissors_is_the_equilibrium(tmp_path: Path):
    """Against opponents from the whole past the average strategy comes near the equilibrium; what is played at one
    moment, the negative control, does not.
    """
    out = tmp_path / "run"
    train(
        out, *RPS, "selfplay.opponents=uniform", "selfplay.latest=0", "selfplay.window=1000", "selfplay.every=2k",
        "selfplay.games=4", "copies=64", "steps=80k", "algo.lr=1e-3", "algo.entropy_coef=0.1", "algo.minibatches=1",
        "checkpoint.every=2k", "checkpoint.keep=true", "eval.every=0",
    )  # fmt: skip
    played = strategies(out)
    average, worst = exploitability(played.mean(0)), max(exploitability(one) for one in played)
    assert average < 0.22
    assert worst > 0.3
    assert worst > 1.5 * average


class RaceConfig(MatrixConfig):
    """Settings of the race."""


@final
class Race(Bimatrix):
    """Whoever chose the higher number wins: the best strategy is known, and every better one beats every worse one."""

    Config = RaceConfig
    equilibria = (((0.0, 0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.0, 1.0)),)

    def __init__(self, config: RaceConfig, with_state: bool = False):
        self.config = config
        number = torch.arange(5)
        won = (number[:, None] > number).float() - (number[:, None] < number).float()
        super().__init__(bimatrix_game("race", won, won.T, tuple("abcde"), config), with_state)


def ladder_of(out: Path) -> Sequence[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["selfplay/elo"] for row in rows if "selfplay/elo" in row]


def test_ratings_rise_where_there_is_something_to_learn_and_not_where_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the race every later policy is stronger. Negative control: a game in which all choices are equal."""
    from coterie import registry

    common = (
        "algo=ippo", "env.episode_limit=1", "selfplay.opponents=uniform", "selfplay.every=2k", "selfplay.games=256",
        "copies=64", "horizon=10", "steps=20k", "eval.every=0", "algo.hidden=[8]", "eval.copies=64",
        "algo.epochs=2",
    )  # fmt: skip
    monkeypatch.setattr(
        registry, "environment", lambda name, own=registry.environment: Race if "pennies" in name else own(name)
    )
    train(tmp_path / "race", "env=matrix/matching_pennies", *common, "algo.lr=2e-3")
    rising = ladder_of(tmp_path / "race")
    assert rising[-1] > 250
    assert rising[-1] > rising[len(rising) // 2] > rising[0]
    train(tmp_path / "level", "env=matrix/rock_paper_scissors", *common, "algo.lr=1e-6")
    assert abs(ladder_of(tmp_path / "level")[-1]) < 100


def test_rows_may_come_late_when_teams_take_turns(tmp_path: Path):
    """Episodes from before a turn and from after it stand in one row."""
    out = tmp_path / "run"
    train(
        out, "env=particle/simple_tag", "algo=ippo", "selfplay.opponents=uniform", "selfplay.every=60", "log.every=3",
        "selfplay.games=4", "turns.every=120", "steps=480", "env.episode_limit=5",
    )  # fmt: skip
    assert "rollout/adversary/return_mean" in names_of(out)


def test_a_new_turn_begins_new_episodes_without_self_play_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Negative control: as long as the same team learns, episodes go on."""
    from coterie.collect import Collector

    firsts: list[bool] = []
    advance = Collector.advance

    def watched(collector: Collector, steps: int) -> Any:
        windows, acted = advance(collector, steps)
        firsts.append(bool(windows["agent"].first[0].all()))
        return windows, acted

    monkeypatch.setattr(Collector, "advance", watched)
    train(
        tmp_path / "run",
        "env=particle/simple_tag",
        "algo=ippo",
        "env.episode_limit=100",
        "turns.every=120",
        "steps=240",
    )
    assert firsts == [True, False, False, True, False, False]


def test_opponents_act_in_training_as_their_method_is_judged_whatever_evaluations_do(tmp_path: Path):
    from coterie.build import build
    from coterie.config import resolve

    settings = ["env=particle/simple_ball", "algo=ippo", "selfplay.opponents=uniform", "device=cpu", "copies=2"]
    for mode, judged in (("greedy", "greedy"), ("auto", "sample")):
        parts = build(resolve([*settings, f"eval.mode={mode}"]).config)
        (guide,) = parts.guides
        assert guide._opponents["right"]._policy._mode == "sample"
        assert guide._judges["right"]._policy._mode == judged
        parts.close()


def test_games_that_rate_a_snapshot_tell_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Negative control: where they are over soon, nothing is told."""
    from coterie.selfplay import guide

    play = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=40", "selfplay.opponents=uniform")
    settings = (*play, "selfplay.every=40", "selfplay.games=8", "progress=lines")
    train(tmp_path / "soon", *settings)
    assert "games that rate a snapshot" not in capsys.readouterr().err
    waiting = guide.Waiting
    monkeypatch.setattr(guide, "Waiting", lambda note, what: waiting(note, what, first_s=0.0, every_s=0.0))
    train(tmp_path / "late", *settings)
    assert "games that rate a snapshot: 0 of 8 episodes" in capsys.readouterr().err


@pytest.mark.parametrize("env", ["board/connect_four", "board/tictactoe", "skirmish/3m_duel", "particle/simple_ball"])
def test_games_of_two_sides_are_learned_against_oneself(env: str, tmp_path: Path):
    """Turns, masks, agents that die, episodes of any length: won and lost are counted for whoever plays which side."""
    settings = ("selfplay.opponents=pfsp", "selfplay.every=300", "selfplay.games=4", "steps=900", "horizon=40")
    train(tmp_path / "run", "algo=ippo", f"env={env}", *settings)
    names = names_of(tmp_path / "run")
    assert "selfplay/elo" in names
    assert undeclared(sorted(names)) == []
    assert len(state_of(tmp_path / "run")["guides"]["selfplay"]["ladder"]["players"]) >= 3


def test_a_lesson_may_wait_for_a_rating(tmp_path: Path):
    lessons = tmp_path / "lessons.yaml"
    lessons.write_text(
        "curriculum: {lessons: [{name: a, parameters: {speed: 1.0}, advance: {metric: selfplay/elo, above: -5000}}, "
        "{name: b, parameters: {speed: 1.5}}]}\n"
    )
    from coterie import run
    from coterie.config import resolve

    settings = tiny(
        "env=particle/simple_ball", "algo=ippo", "selfplay.opponents=uniform", "selfplay.every=60", "selfplay.games=4",
        "env.episode_limit=5", "steps=400", f"out={tmp_path / 'run'}",
    )  # fmt: skip
    run.train(resolve(settings, lessons))
    assert state_of(tmp_path / "run")["guides"]["curriculum"]["lesson"] == 1


def test_who_learns_nothing_plays_no_self_play():
    from coterie.build import build
    from coterie.config import resolve

    for algo in ("random", "scripted"):
        settings = ["env=particle/simple_ball", f"algo={algo}", "selfplay.opponents=uniform", "device=cpu"]
        with pytest.raises(UserError, match=r"needs two teams that learn, and .* has 0 here: choose"):
            build(resolve(settings).config)


def test_a_checkpoint_of_another_pool_is_one_line(tmp_path: Path):
    from coterie import run

    out = tmp_path / "run"
    train(out, *RPS, "selfplay.opponents=uniform", "selfplay.every=40", "selfplay.games=4", "steps=160")
    config = out / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("window: 10", "window: 4"))
    with pytest.raises(UserError, match=r"does not fit the run's config\.yaml in what guides the run") as refusal:
        run.resume(out, ["steps=320"])
    assert "\n" not in str(refusal.value)
    config.write_text(text.replace("opponents: uniform", "'opponents': 'off'"))
    with pytest.raises(UserError, match=r"expected none, found \['selfplay'\]"):
        run.resume(out, ["steps=320"])


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("env=particle/simple_spread", "selfplay.opponents=uniform"), "needs two teams that learn, and .* has 1 here"),
        (
            ("env=particle/simple_tag", "selfplay.opponents=uniform", "teams.agent.algo=random"),
            "needs two teams that learn, and .* has 1 here",
        ),
        (
            ("env=particle/simple_tag", "selfplay.opponents=uniform", "selfplay.sides=both"),
            r"selfplay.sides=both: one policy cannot play both sides: role 'agent' has .* use selfplay.sides=turns$",
        ),
        (
            (*RPS, "selfplay.opponents=uniform", "selfplay.sides=first", "teams.column.algo=mappo"),
            "teams.column is given settings of its own",
        ),
        (("env=particle/simple_tag", "turns.order=[wolf]", "turns.every=10"), "names 'wolf', which is no team"),
        (("env=particle/simple_tag", "turns.order=[[]]", "turns.every=10"), "has a turn in which nobody learns"),
        (
            (
                *("env=particle/simple_tag", "selfplay.opponents=uniform", "turns.every=10"),
                "turns.order=[agent,[adversary,agent]]",
            ),
            "turns.order has adversary and agent learn at once, and in self-play one team learns at a time",
        ),
        (
            ("env=particle/simple_tag", "turns.until.metric=selfplay/agent/elo", "turns.until.above=1"),
            "is never logged without selfplay.opponents",
        ),
        (
            (
                *("env=particle/simple_tag", "turns.until.metric=selfplay/elo", "turns.until.above=1"),
                "selfplay.opponents=uniform",
            ),
            "which is never logged: did you mean 'selfplay/agent/elo'",
        ),
        (("env=particle/simple_tag", "turns.order=[agent]"), "nothing ends a turn: give turns.every=STEPS"),
        (
            ("env=particle/simple_tag", "turns.until.metric=eval/wolf/return_mean", "turns.until.above=1"),
            "turns.until waits for the metric 'eval/wolf/return_mean', which",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(settings: tuple[str, ...], message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as refusal:
        train(tmp_path / "run", *settings)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_the_summary_tells_the_rating_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Negative control: a run without self-play tells of no rating."""
    train(
        tmp_path / "run", *RPS, "selfplay.opponents=uniform", "selfplay.every=40", "selfplay.games=8", "progress=lines"
    )
    told = capsys.readouterr().err
    assert "the newest snapshot is rated" in told
    assert f"coterie exploit {tmp_path / 'run'}" in told
    train(tmp_path / "plain", *RPS, "progress=lines")
    assert "is rated" not in capsys.readouterr().err
