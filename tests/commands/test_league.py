"""Leagues, and best responses to a fixed team."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import coterie
from coterie.__main__ import main
from coterie.assembly.resolve import load_resolved, resolve
from coterie.commands import train as training
from coterie.commands.best_response import exploit
from coterie.commands.league import LeagueOptions, LeagueResult, draw, league, tables
from coterie.core.errors import UserError
from coterie.training.opponents import score_by_opponent
from tinyruns import tiny, train

RPS = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=1", "algo.hidden_sizes=[8]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of self-play in rock paper scissors, and runs of two policies in tag."""
    folder = tmp_path_factory.mktemp("league")
    selfplay = ("selfplay.opponents=uniform", "selfplay.snapshot_interval=40", "selfplay.rating_episodes=8")
    train(folder / "selfplay", *RPS, *selfplay)
    train(folder / "tag", "env=particle/simple_tag", "algo=ippo", "env.episode_limit=5")
    train(folder / "short", "env=particle/simple_tag", "algo=ippo", "env.episode_limit=6")
    return folder


def league_result(score: list[list[float]], symmetric: bool = True) -> LeagueResult:
    table = torch.tensor(score, dtype=torch.float64)
    names = tuple("abc"[: len(score)])
    returns = {"left": table, "right": -table}
    return LeagueResult(
        env="game",
        members=names,
        teams=("left", "right"),
        returns=returns,
        error=returns,
        score=table,
        games=10,
        symmetric=symmetric,
        win_criterion="the larger return",
    )


def test_games_from_both_sides_are_added():
    """a won 9 of 10 games on the left and lost 2 of 10 on the right: 17 of 20."""
    found = league_result([[0.5, 0.9], [0.2, 0.5]])
    assert found.wins().tolist() == [[0, 17], [3, 0]]
    rating, _ = found.ratings() or (None, None)
    assert rating is not None
    assert rating[0] == 0
    assert rating[1] == pytest.approx(-301.3, abs=6)  # 400 log10(17 / 3), reduced a little by the prior


def test_asymmetric_games_have_no_ratings():
    assert league_result([[0.5, 0.9], [0.2, 0.5]], symmetric=False).ratings() is None
    assert "elo" not in league_result([[0.5, 0.9], [0.2, 0.5]], symmetric=False).report()


def test_tables_and_figures_contain_every_pair():
    for symmetric, panels in ((True, 1), (False, 2)):
        found = league_result([[0.5, 0.9, 0.4], [0.2, 0.5, 0.3], [0.6, 0.7, 0.5]], symmetric)
        figure = draw(found)
        assert len(figure.axes) == panels
        shown = {text.get_text() for axes in figure.axes for text in axes.texts}
        assert len([text for axes in figure.axes for text in axes.texts]) == (6 if symmetric else 18)
        assert ("0.85" if symmetric else "0.9") in shown
        assert [row[0] for row in tables(found)[0][2]] == ["a", "b", "c"]


@pytest.mark.slow
def test_runs_and_baselines_play_both_sides(runs: Path):
    found = league([f"learned={runs / 'selfplay'}", "random"], options=LeagueOptions(episodes=40))
    assert found.members == ("learned", "random")
    assert found.symmetric
    for team in ("row", "column"):
        assert found.returns[team].shape == (2, 2)
    assert torch.allclose(found.returns["row"], -found.returns["column"])
    assert torch.equal(found.score, (found.returns["row"] + 1) / 2)
    again = league([f"learned={runs / 'selfplay'}", "random"], options=LeagueOptions(episodes=40))
    assert torch.equal(found.score, again.score)


def test_rows_play_the_first_team_and_columns_the_second(runs: Path):
    """Random pursuers catch the prey less often than scripted ones."""
    found = league(["random", "scripted"], ["env=particle/simple_tag"], options=LeagueOptions(episodes=60))
    assert not found.symmetric
    caught = found.returns["adversary"]
    assert bool((caught[1] > caught[0]).all())
    assert caught[0, 0] > caught[0, 1]  # prey that flees is caught less


@pytest.mark.slow
def test_the_command_writes_the_matrix(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    picture = tmp_path / "deep" / "matrix.png"
    assert main(["league", str(runs / "tag"), "random", "--episodes=4", f"--out={picture}"]) == 0
    shown = capsys.readouterr().out
    assert "mean team return of adversary; rows play adversary, columns agent" in shown
    assert picture.stat().st_size > 1000
    assert main(["league", str(runs / "selfplay"), "random", "--episodes=4", f"--out={picture}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["elo"]) == {"ippo-0", "random"}
    assert report["plot"] == str(picture)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "a league needs at least two members, but has 0. Name"),
        (["random"], "a league needs at least two members, but has 1"),
        (
            ["{}/tag", "{}/selfplay"],
            r"was trained with env=matrix/rock_paper_scissors, but .* with particle/simple_tag",
        ),
        (["{}/tag", "{}/short"], r"was trained with env.episode_limit=6, but .* with 5"),
        (["{}/tag", "{}/tag"], "two members are named 'tag'. Give them names, e.g. first=RUN second=RUN"),
        (["{}/nothing", "random"], "nothing: no such run"),
    ],
)
def test_an_invalid_league_is_refused_in_one_line(members: list[str], message: str, runs: Path):
    with pytest.raises(UserError, match=message) as refusal:
        league([member.format(runs) for member in members], options=LeagueOptions(episodes=4))
    assert "\n" not in str(refusal.value)


def test_a_league_needs_two_teams():
    with pytest.raises(UserError, match="a league needs two teams, but particle/simple_spread has 1: agent"):
        league(["random", "scripted"], ["env=particle/simple_spread"], options=LeagueOptions(episodes=4))


@pytest.mark.slow
def test_a_best_response_exploits_a_predictable_policy(runs: Path):
    """A policy that nearly always plays one choice loses to the choice that beats it. Negative control: with a tiny
    budget no better response is found.
    """
    given = ["algo.lr=5e-3", "num_envs=64", "algo.rollout_length=20", "algo.entropy_coef=0", "algo.epochs=4"]
    given += ["selfplay.opponents=latest", "selfplay.snapshot_interval=10k", "selfplay.rating_episodes=8", "seed=1"]
    train(runs / "certain", *RPS, *given, "steps=20k", "eval.num_envs=64", "eval.every=0")
    found = exploit(runs / "certain", ["eval.every=2k", "eval.episodes=64"], steps=10_000, episodes=200)
    assert (found.team, found.response) == ("column", "row")
    assert found.gap > 0.2
    assert found.gap > 4 * found.error
    assert Path(found.run).parent == runs / "certain" / "responses"
    nothing = exploit(runs / "certain", ["eval.every=2k", "algo.lr=1e-9"], steps=1000, episodes=200)
    assert nothing.gap < found.gap - 0.15


@pytest.mark.slow
def test_either_team_of_a_run_can_be_exploited(runs: Path):
    found = exploit(runs / "tag", ["eval.every=0"], team="adversary", steps=100, episodes=8)
    assert (found.team, found.response) == ("adversary", "agent")
    assert found.own_return < 5
    with pytest.raises(UserError, match=r"has no team 'wolf'\. Choose from adversary, agent"):
        exploit(runs / "tag", team="wolf")


@pytest.mark.slow
def test_the_command_reports_the_gap(runs: Path, capsys: pytest.CaptureFixture[str]):
    words = ["exploit", str(runs / "tag"), "--steps", "80", "--episodes", "8", "eval.every=0", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gap"] == pytest.approx(report["response_return"] - report["own_return"])
    assert main(["exploit", str(runs / "tag"), "--steps", "many"]) == 2
    assert "--steps many: not a number of environment steps" in capsys.readouterr().err


@pytest.mark.slow
def test_the_functions_equal_the_commands(runs: Path):
    found = coterie.league({"learned": runs / "selfplay", "random": "random"}, episodes=40)
    assert torch.equal(
        found.score, league([f"learned={runs / 'selfplay'}", "random"], options=LeagueOptions(episodes=40)).score
    )
    gap = coterie.exploit(runs / "tag", steps=1e2, episodes=8, **{"eval.every": 0})
    assert (gap.team, gap.response) == ("agent", "adversary")


@pytest.mark.slow
def test_settings_of_a_response_can_be_overridden_and_its_algorithm_must_learn(tmp_path: Path):
    """Negative control: without overrides, it has the settings of the team that it replaces."""
    tag = ("env=particle/simple_tag", "env.episode_limit=5")
    train(tmp_path / "run", *tag, "algo=ippo", "teams.adversary.algo=mappo", "teams.adversary.algo.hidden_sizes=[6]")
    kept = exploit(tmp_path / "run", ["eval.every=0"], team="agent", steps=80, episodes=4)
    given = exploit(tmp_path / "run", ["eval.every=0", "algo=ippo"], team="agent", steps=80, episodes=4)
    names = [load_resolved(Path(found.run) / "config.yaml").config.algo_of("adversary").name for found in (kept, given)]
    assert names == ["mappo", "ippo"]
    train(tmp_path / "still", *tag, "algo=ippo", "teams.adversary.algo=random")
    with pytest.raises(UserError, match="team 'adversary' cannot respond with algo=random, which does not learn"):
        exploit(tmp_path / "still", team="agent", steps=80, episodes=4)


@pytest.mark.slow
def test_a_response_to_a_run_with_lessons_is_trained_in_the_last_lesson(tmp_path: Path):
    lessons = tmp_path / "lessons.yaml"
    lessons.write_text(
        "curriculum: {lessons: [{name: a, parameters: {speed: 1.0}, advance: {metric: steps, above: 50}}, "
        "{name: b, parameters: {speed: 0.5}}]}\n"
    )
    settings = ["env=particle/simple_tag", "env.episode_limit=5", "algo=ippo", f"out={tmp_path / 'run'}"]
    training.train(resolve(tiny(*settings), lessons))
    found = exploit(tmp_path / "run", ["eval.every=0"], steps=80, episodes=4)
    config = load_resolved(Path(found.run) / "config.yaml").config
    assert config.curriculum.lessons == ()
    assert config.randomize["speed"].mean() == 0.5


def test_scores_are_summed_by_opponent():
    label = torch.tensor([3, -1, 3, 0, 3])
    won = torch.tensor([1.0, 0.5, 0.0, 1.0, 0.5], dtype=torch.float64)
    assert score_by_opponent(label, won) == [(-1, 0.5, 1), (0, 1.0, 1), (3, 1.5, 3)]
