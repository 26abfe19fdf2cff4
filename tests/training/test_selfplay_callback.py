"""Self-play in whole runs: learning teams, opponents, ratings, and games with known equilibria."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, final

import pytest
import torch

from coterie.assembly.build import build
from coterie.assembly.learners import load_run
from coterie.assembly.resolve import resolve
from coterie.commands import train as training
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from coterie.core.types import Timestep
from coterie.envs import registry
from coterie.envs.worlds.matrix.matrix_game import BimatrixGame, MatrixConfig, bimatrix_game
from coterie.training import selfplay_callback
from coterie.training.collector import Collector
from coterie.training.opponents import SnapshotPool
from coterie.training.selfplay_callback import SelfPlayCallback
from tinyruns import checkpoint_state, log_entries, tiny, train

CPU = torch.device("cpu")
RPS = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=1")
UNIFORM = ("selfplay.opponents=uniform", "selfplay.rating_episodes=4", "eval.every=0")


def names_of(out: Path) -> set[str]:
    return {name for row in log_entries(out) for name in row}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of self-play and what it wrote to the terminal."""
    out, shown = tmp_path_factory.mktemp("played") / "run", io.StringIO()
    with redirect_stderr(shown):
        train(out, *RPS, *UNIFORM, "selfplay.snapshot_interval=40", "progress=lines")
    return out, shown.getvalue()


@pytest.mark.slow
def test_one_policy_learns_and_plays_both_sides(played: tuple[Path, str]):
    out, shown = played
    assert "Elo of the newest snapshot: " in shown
    assert f"coterie exploit {out}" in shown
    names = names_of(out)
    assert {"selfplay/elo", "selfplay/elo_error", "selfplay/win_rate", "selfplay/pool", "loss/row/policy"} <= names
    assert not any(name.startswith("loss/column") for name in names)
    assert undeclared(sorted(names)) == []
    learners = load_run(out, "last", CPU).algorithms
    mine, its = (learners[name].policy.state_dict() for name in ("row", "column"))
    assert all(torch.equal(x, its["module"][name]) for name, x in mine["module"].items())


@pytest.mark.slow
def test_teams_of_asymmetric_games_alternate(tmp_path: Path):
    """Negative control: without self-play both learn at the same time."""
    tag = ("env=particle/simple_tag", "algo=ippo", "steps=160", "env.episode_limit=10", "eval.every=0")
    out = tmp_path / "alternate"
    train(out, *tag, *UNIFORM[:2], "selfplay.snapshot_interval=60", "alternate.every=80")
    learning = [{name.split("/")[1] for name in row if name.startswith("loss/")} for row in log_entries(out)]
    learning = [teams for teams in learning if teams]
    assert {"adversary"} in learning
    assert {"agent"} in learning
    assert {"adversary", "agent"} not in learning
    assert {"selfplay/adversary/elo", "selfplay/agent/elo"} <= names_of(out)
    train(tmp_path / "both", *tag, "steps=40")
    both = [{name.split("/")[1] for name in row if name.startswith("loss/")} for row in log_entries(tmp_path / "both")]
    assert {"adversary", "agent"} in both


@pytest.mark.slow
def test_a_team_that_does_not_learn_does_not_change(tmp_path: Path):
    """Negative control: the team that learns does."""
    settings = ("env=particle/simple_tag", "algo=ippo", "alternate.order=[adversary]", "alternate.every=1000", "seed=3")
    train(tmp_path / "run", *settings, "steps=80", "eval.every=0", "checkpoint.every=40", "checkpoint.keep=true")
    first = load_run(tmp_path / "run", "0", CPU).algorithms
    last = load_run(tmp_path / "run", "last", CPU).algorithms

    def moved(team: str) -> bool:
        before, after = (one[team].policy.state_dict()["module"] for one in (first, last))
        return any(not torch.equal(x, after[name]) for name, x in before.items())

    assert moved("adversary")
    assert not moved("agent")


@pytest.mark.slow
def test_teams_with_different_algorithms_play_each_other(tmp_path: Path):
    """Q-learning from a replay buffer against a policy gradient, alternating, with snapshots of both. Episodes from
    before and after a change of teams are in one log entry.
    """
    out = tmp_path / "run"
    train(
        out,
        *("env=particle/simple_tag", "env.episode_limit=10", "algo=ippo", "eval.every=0", "steps=320"),
        *("teams.agent.algo=iql", "teams.agent.algo.buffer_size=400", "teams.agent.algo.batch_size=4"),
        *("selfplay.opponents=pfsp", "selfplay.snapshot_interval=60", "selfplay.rating_episodes=4"),
        *("alternate.every=80", "log.every=4"),
    )
    snapshots = checkpoint_state(out)["callbacks"]["selfplay"]["ladder"]["snapshots"]
    assert {team for team, _, _ in snapshots} == {"adversary", "agent"}
    assert "rollout/adversary/return_mean" in names_of(out)


@pytest.mark.slow
def test_snapshots_below_the_promotion_win_rate_are_not_made(tmp_path: Path, played: tuple[Path, str]):
    """Negative control: without a required win rate they are made."""
    out = tmp_path / "run"
    train(out, *RPS, *UNIFORM, "selfplay.snapshot_interval=40", "selfplay.promotion_win_rate=0.99")
    none, all_ = (
        len(checkpoint_state(run)["callbacks"]["selfplay"]["ladder"]["snapshots"]) for run in (out, played[0])
    )
    assert none == 1
    assert all_ >= 3


@pytest.mark.slow
def test_no_opponent_changes_within_an_episode_when_a_snapshot_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Negative control: without a spare slot, episodes against the oldest snapshot continue against the newest."""

    def changed(out: Path) -> bool:
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        advance = Collector.advance

        def watched(collector: Collector, steps: int) -> Any:
            rollouts, acted = advance(collector, steps)
            seen.append((rollouts["column"].extras["label"][:, :, 0], rollouts["column"].acted))
            return rollouts, acted

        with monkeypatch.context() as patch:
            patch.setattr(Collector, "advance", watched)
            train(
                out,
                *("env=matrix/rock_paper_scissors", "env.episode_limit=7", "algo=ippo", "steps=400", *UNIFORM),
                *("selfplay.latest_ratio=0", "selfplay.window=2", "selfplay.snapshot_interval=40"),
            )
        labels = torch.cat([label for label, _ in seen])
        acted = torch.cat([acted[:-1] for _, acted in seen])
        within = acted[1:] & acted[:-1]  # neither timestep is final, so both belong to one episode
        return bool((labels[1:] != labels[:-1])[within].any())

    assert not changed(tmp_path / "run")
    monkeypatch.setattr(selfplay_callback, "SnapshotPool", lambda policy, size: SnapshotPool(policy, size - 1))
    monkeypatch.setattr(selfplay_callback.SelfPlayCallback, "waits_for_episodes", lambda self, learner, other: False)
    assert changed(tmp_path / "control")


# ----------------------------------------------------------------------------------------------- games of known answers


def strategies(out: Path) -> torch.Tensor:
    """Returns the row player's strategies in a one-shot game at every checkpoint but the first, [checkpoints, A]."""
    found = []
    for path in sorted((out / "checkpoints").glob("0*"))[1:]:
        learners = load_run(out, str(int(path.name)), CPU).algorithms
        policy: Any = learners["row"].policy
        one, yes = torch.ones(1, 1, 1), torch.ones(1, 1, dtype=torch.bool)
        row = Timestep({"row": one}, {}, {}, yes, yes, yes[0])
        with torch.no_grad():
            found.append(policy.action_distribution(row, {}, "sample")["row"].probability[0, 0])
    return torch.stack(found)


def exploitability(strategy: torch.Tensor) -> float:
    """Returns the reward of a best response to a mixture of rock, paper and scissors [3]; 0 in equilibrium."""
    payoff = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    return float((payoff @ strategy).max())


@pytest.mark.slow
def test_the_average_of_self_play_in_rock_paper_scissors_is_the_equilibrium(tmp_path: Path):
    """Against opponents from the whole past the average strategy approaches the equilibrium. Negative control: the
    strategy at a single moment does not.
    """
    out = tmp_path / "run"
    train(
        out,
        *(*RPS, *UNIFORM, "selfplay.latest_ratio=0", "selfplay.window=100", "selfplay.snapshot_interval=2k"),
        *("num_envs=64", "steps=40k", "algo.lr=1e-3", "algo.entropy_coef=0.1", "algo.epochs=10"),
        *("algo.num_minibatches=1", "algo.normalize_obs=false", "checkpoint.every=4k", "checkpoint.keep=true"),
    )
    played = strategies(out)
    average, worst = exploitability(played.mean(0)), max(exploitability(one) for one in played)
    assert average < 0.22
    assert worst > 0.3
    assert worst > 1.5 * average


class RaceConfig(MatrixConfig):
    """Settings of the race."""


@final
class Race(BimatrixGame):
    """The higher number wins: the best strategy is known, and every better strategy beats every worse one."""

    Config = RaceConfig
    equilibria = (((0.0, 0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.0, 1.0)),)

    def __init__(self, config: RaceConfig, with_state: bool = False):
        self.config = config
        number = torch.arange(5)
        won = (number[:, None] > number).float() - (number[:, None] < number).float()
        super().__init__(bimatrix_game("race", (won, won.T), tuple("abcde"), config), with_state)


def ratings_of(out: Path) -> Sequence[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["selfplay/elo"] for row in rows if "selfplay/elo" in row]


@pytest.mark.slow
def test_ratings_rise_only_in_a_game_with_better_and_worse_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the race every later policy is stronger. Negative control: a game in which all choices are equal."""
    common = (
        *("algo=ippo", "env.episode_limit=1", "selfplay.opponents=uniform", "selfplay.snapshot_interval=2k"),
        *("selfplay.rating_episodes=64", "num_envs=64", "eval.num_envs=64", "eval.every=0", "steps=14k"),
    )
    monkeypatch.setattr(
        registry, "environment", lambda name, own=registry.environment: Race if "pennies" in name else own(name)
    )
    train(tmp_path / "race", "env=matrix/matching_pennies", *common, "algo.lr=2e-3")
    rising = ratings_of(tmp_path / "race")
    assert rising[-1] > 250
    assert rising[-1] > rising[len(rising) // 2] > rising[0]
    train(tmp_path / "level", "env=matrix/rock_paper_scissors", *common, "algo.lr=1e-6", "steps=6k")
    assert abs(ratings_of(tmp_path / "level")[-1]) < 100


@pytest.mark.slow
def test_a_new_phase_starts_new_episodes_without_self_play_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Negative control: while the same team learns, episodes continue."""
    firsts: list[bool] = []
    advance = Collector.advance

    def watched(collector: Collector, steps: int) -> Any:
        rollouts, acted = advance(collector, steps)
        firsts.append(bool(rollouts["agent"].first[0].all()))
        return rollouts, acted

    monkeypatch.setattr(Collector, "advance", watched)
    train(
        tmp_path / "run",
        *("env=particle/simple_tag", "algo=ippo", "env.episode_limit=100", "alternate.every=120", "steps=240"),
        "eval.every=0",
    )
    assert firsts == [True, False, False, True, False, False]


def test_opponents_in_training_ignore_the_evaluation_mode(tmp_path: Path):
    settings = ["env=particle/simple_ball", "algo=ippo", "selfplay.opponents=uniform", "device=cpu", "num_envs=2"]
    for mode, rated in (("greedy", "greedy"), ("auto", "sample")):
        components = build(resolve([*settings, f"eval.mode={mode}"]).config)
        (callback,) = components.callbacks
        assert isinstance(callback, SelfPlayCallback)
        assert callback.opponents["right"].policy.mode == "sample"
        assert callback.rating_opponents["right"].policy.mode == rated
        components.close()


@pytest.mark.slow
def test_rating_games_report_their_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], played: tuple[Path, str]
):
    """Negative control: short games report nothing. So does the summary of a run without self-play."""
    assert "rating games" not in played[1]
    reporter = selfplay_callback.PeriodicProgress
    monkeypatch.setattr(
        selfplay_callback,
        "PeriodicProgress",
        lambda print_line, label: reporter(print_line, label, first_s=0.0, interval_s=0.0),
    )
    long = ("env=matrix/rock_paper_scissors", "env.episode_limit=40", "algo=ippo")
    train(tmp_path / "late", *long, *UNIFORM, "selfplay.snapshot_interval=40", "progress=lines")
    assert "rating games: 0 of 4 episodes" in capsys.readouterr().err
    train(tmp_path / "plain", *RPS, "steps=40", "eval.every=0", "progress=lines")
    assert "Elo of" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("env", ["board/connect_four", "skirmish/3m_duel"])
def test_two_sided_games_are_learned_by_self_play(env: str, tmp_path: Path):
    """Turn-based games, masks, agents that die, episodes of any length: wins are counted on either side."""
    settings = ("selfplay.opponents=pfsp", "selfplay.snapshot_interval=100", "selfplay.rating_episodes=2", "steps=300")
    train(tmp_path / "run", "algo=ippo", f"env={env}", *settings, "algo.rollout_length=30", "eval.every=0")
    names = names_of(tmp_path / "run")
    assert "selfplay/elo" in names
    assert undeclared(sorted(names)) == []
    assert len(checkpoint_state(tmp_path / "run")["callbacks"]["selfplay"]["ladder"]["snapshots"]) >= 3


@pytest.mark.slow
def test_a_lesson_may_wait_for_a_rating(tmp_path: Path):
    lessons = tmp_path / "lessons.yaml"
    lessons.write_text(
        "curriculum: {lessons: [{name: a, parameters: {speed: 1.0}, advance: {metric: selfplay/elo, above: -5000}}, "
        "{name: b, parameters: {speed: 1.5}}]}\n"
    )
    settings = tiny(
        *("env=particle/simple_ball", "env.episode_limit=5", "algo=ippo", "steps=160", f"out={tmp_path / 'run'}"),
        *(*UNIFORM, "selfplay.snapshot_interval=40"),
    )
    training.train(resolve(settings, lessons))
    assert checkpoint_state(tmp_path / "run")["callbacks"]["curriculum"]["lesson"] == 1


def test_self_play_needs_algorithms_that_learn():
    for algo in ("random", "scripted"):
        settings = ["env=particle/simple_ball", f"algo={algo}", "selfplay.opponents=uniform", "device=cpu"]
        with pytest.raises(UserError, match=r"needs two teams that learn, but .* has 0 here\. Choose"):
            build(resolve(settings).config)


@pytest.mark.slow
def test_a_checkpoint_with_another_pool_is_refused_in_one_line(tmp_path: Path, played: tuple[Path, str]):
    out = shutil.copytree(played[0], tmp_path / "run")
    config = out / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("window: 10", "window: 4"))
    with pytest.raises(UserError, match=r"selfplay\.window is 4, was 10") as refusal:
        training.resume(out, ["steps=320"])
    assert "\n" not in str(refusal.value)
    config.write_text(text.replace("opponents: uniform", "'opponents': 'off'"))
    with pytest.raises(UserError, match=r"selfplay\.opponents is off, was uniform"):
        training.resume(out, ["steps=320"])


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("env=particle/simple_spread", "selfplay.opponents=uniform"), "needs two teams that learn, but .* has 1 here"),
        (
            ("env=particle/simple_tag", "selfplay.opponents=uniform", "teams.agent.algo=random"),
            "needs two teams that learn, but .* has 1 here",
        ),
        (
            ("env=particle/simple_tag", "selfplay.opponents=uniform", "selfplay.sides=both"),
            r"selfplay.sides=both: one policy cannot play both sides, because .* selfplay.sides=alternate.$",
        ),
        (
            (*RPS, "selfplay.opponents=uniform", "selfplay.sides=first", "teams.column.algo=mappo"),
            "teams.column has settings of its own",
        ),
        *(
            (
                ("env=particle/simple_ball", "selfplay.opponents=uniform", *settings),
                f"{key}: the state of .* covers both sides .* Use {key}=joint or selfplay.sides=first",
            )
            for key, *settings in (
                ("algo.critic", "algo=mappo", "algo.critic=state"),
                ("algo.mixer_input", "algo=vdac"),
            )
        ),
        (
            ("env=particle/simple_tag", "alternate.order=[wolf]", "alternate.every=10"),
            "'wolf' is not a team that learns",
        ),
        (
            ("env=particle/simple_tag", "alternate.order=[[]]", "alternate.every=10"),
            "no team learns in one of the phases",
        ),
        (
            (
                *("env=particle/simple_tag", "selfplay.opponents=uniform", "alternate.every=10"),
                "alternate.order=[agent,[adversary,agent]]",
            ),
            "alternate.order: adversary and agent learn at the same time, but self-play trains one team at a time",
        ),
        (
            ("env=particle/simple_tag", "alternate.until.metric=selfplay/agent/elo", "alternate.until.above=1"),
            "is never logged without selfplay.opponents",
        ),
        (
            (
                *("env=particle/simple_tag", "alternate.until.metric=selfplay/elo", "alternate.until.above=1"),
                "selfplay.opponents=uniform",
            ),
            "which is never logged. Did you mean 'selfplay/agent/elo'",
        ),
        (("env=particle/simple_tag", "alternate.order=[agent]"), "nothing ends a phase. Set alternate.every=STEPS"),
        (
            ("env=particle/simple_tag", "alternate.until.metric=eval/wolf/return_mean", "alternate.until.above=1"),
            "alternate.until waits for the metric 'eval/wolf/return_mean', which",
        ),
    ],
)
def test_an_invalid_combination_is_refused_in_one_line(settings: tuple[str, ...], message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as refusal:
        train(tmp_path / "run", *settings)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
