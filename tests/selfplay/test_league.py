"""Everyone against everyone, and best responses to who stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import coterie
import coterie.run
from coterie.__main__ import main
from coterie.config import load_resolved, resolve
from coterie.errors import UserError
from coterie.response import exploit
from coterie.selfplay.ladder import tally
from coterie.standings import Standings, draw, league, words
from tinyruns import tiny, train

RPS = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=1", "algo.hidden=[8]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-play that settles on one choice, `rock`, and a run of two policies in tag."""
    folder = tmp_path_factory.mktemp("league")
    patch = pytest.MonkeyPatch()
    patch.setattr("coterie.plot.plot", lambda runs, out: [])
    train(folder / "selfplay", *RPS, "selfplay.opponents=uniform", "selfplay.every=40", "selfplay.games=8")
    train(folder / "tag", "env=particle/simple_tag", "algo=ippo", "env.episode_limit=5")
    train(folder / "short", "env=particle/simple_tag", "algo=ippo", "env.episode_limit=6")
    patch.undo()
    return folder


def standings(score: list[list[float]], equal: bool = True) -> Standings:
    table = torch.tensor(score, dtype=torch.float64)
    names = tuple("abc"[: len(score)])
    returns = {"left": table, "right": -table}
    return Standings("game", names, ("left", "right"), returns, returns, table, 10, equal, "the larger return")


def test_games_from_either_side_count_together():
    """a won 9 of 10 as left against b, and lost 2 of 10 to b as right: 17 of 20."""
    found = standings([[0.5, 0.9], [0.2, 0.5]])
    assert found.score_of().tolist() == [[0, 17], [3, 0]]
    rating, _ = found.ratings() or (None, None)
    assert rating is not None
    assert rating[0] == 0
    assert rating[1] == pytest.approx(-301.3, abs=6)  # 400 log10(17 / 3), a little less by the prior


def test_no_ratings_where_sides_differ():
    assert standings([[0.5, 0.9], [0.2, 0.5]], equal=False).ratings() is None
    assert "elo" not in standings([[0.5, 0.9], [0.2, 0.5]], equal=False).report()


def test_tables_and_pictures_show_every_pair():
    for equal, panels in ((True, 1), (False, 2)):
        found = standings([[0.5, 0.9, 0.4], [0.2, 0.5, 0.3], [0.6, 0.7, 0.5]], equal)
        figure = draw(found)
        assert len(figure.axes) == panels
        shown = {text.get_text() for axes in figure.axes for text in axes.texts}
        assert len([text for axes in figure.axes for text in axes.texts]) == (6 if equal else 18)
        assert ("0.85" if equal else "0.9") in shown
        assert [row[0] for row in words(found)[0][2]] == ["a", "b", "c"]


def test_members_are_runs_and_bots_and_both_sides_are_played(runs: Path):
    found = league([f"learned={runs / 'selfplay'}", "random"], episodes=40)
    assert found.members == ("learned", "random")
    assert found.equal
    for team in ("row", "column"):
        assert found.returns[team].shape == (2, 2)
    assert torch.allclose(found.returns["row"], -found.returns["column"])
    assert torch.equal(found.score, (found.returns["row"] + 1) / 2)
    again = league([f"learned={runs / 'selfplay'}", "random"], episodes=40)
    assert torch.equal(found.score, again.score)


def test_rows_play_the_first_team_and_columns_the_second(runs: Path):
    """Pursuers that act at random touch fewer prey than scripted ones, whoever the prey is."""
    found = league(["random", "scripted"], ["env=particle/simple_tag"], episodes=60)
    assert not found.equal
    caught = found.returns["adversary"]
    assert bool((caught[1] > caught[0]).all())
    assert caught[0, 0] > caught[0, 1]  # prey that flees is caught less


def test_the_command_writes_the_matrix(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    picture = tmp_path / "deep" / "matrix.png"
    assert main(["league", str(runs / "tag"), "random", "--episodes=4", f"--out={picture}"]) == 0
    shown = capsys.readouterr().out
    assert "mean return of adversary; rows play adversary, columns agent" in shown
    assert picture.stat().st_size > 1000
    assert main(["league", str(runs / "selfplay"), "random", "--episodes=4", f"--out={picture}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["elo"]) == {"ippo-0", "random"}
    assert report["picture"] == str(picture)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "a league of 0 has nobody to play: name at least two"),
        (["random"], "a league of 1 has nobody to play"),
        (
            ["{}/tag", "{}/selfplay"],
            r"was trained with env=matrix/rock_paper_scissors, and .* with particle/simple_tag",
        ),
        (["{}/tag", "{}/short"], r"was trained with env.episode_limit=6, and .* with 5"),
        (["{}/tag", "{}/tag"], "two members are called 'tag': give them names, e.g. first=RUN second=RUN"),
        (["{}/nothing", "random"], "there is no run"),
    ],
)
def test_a_league_that_cannot_be_is_one_line(members: list[str], message: str, runs: Path):
    with pytest.raises(UserError, match=message) as refusal:
        league([member.format(runs) for member in members], episodes=4)
    assert "\n" not in str(refusal.value)


def test_a_league_needs_two_teams():
    with pytest.raises(UserError, match="a league needs two teams, and particle/simple_spread has 1: agent"):
        league(["random", "scripted"], ["env=particle/simple_spread"], episodes=4)


def test_a_best_response_finds_what_a_policy_leaves(runs: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever nearly always plays one choice loses to the one that beats it. Negative control: with no budget to speak
    of nothing is found.
    """
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    given = ["algo.lr=5e-3", "copies=64", "horizon=20", "algo.entropy_coef=0", "algo.epochs=4", "eval.copies=64"]
    train(
        runs / "certain", *RPS, "selfplay.opponents=latest", "selfplay.every=10k", "selfplay.games=8", *given,
        "steps=60k", "eval.every=0", "seed=1",
    )  # fmt: skip
    found = exploit(runs / "certain", ["eval.every=2k", "eval.episodes=64"], steps=20_000, episodes=200)
    assert (found.team, found.response) == ("column", "row")
    assert found.gap > 0.2
    assert found.gap > 4 * found.error
    assert Path(found.run).parent == runs / "certain" / "responses"
    nothing = exploit(runs / "certain", ["eval.every=2k", "algo.lr=1e-9"], steps=1000, episodes=200)
    assert nothing.gap < found.gap - 0.15


def test_either_team_of_a_run_can_be_exploited(runs: Path):
    found = exploit(runs / "tag", ["eval.every=0"], team="adversary", steps=100, episodes=8)
    assert (found.team, found.response) == ("adversary", "agent")
    assert found.own_return < 5
    with pytest.raises(UserError, match="has no team 'wolf': choose from adversary, agent"):
        exploit(runs / "tag", team="wolf")


def test_the_command_tells_the_gap(runs: Path, capsys: pytest.CaptureFixture[str]):
    words_ = ["exploit", str(runs / "tag"), "--steps", "80", "--episodes", "8", "eval.every=0", "--json"]
    assert main(words_) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gap"] == pytest.approx(report["response_return"] - report["own_return"])
    assert main(["exploit", str(runs / "tag"), "--steps", "many"]) == 2
    assert "expected a number of environment steps" in capsys.readouterr().err


def test_the_functions_do_what_the_commands_do(runs: Path):
    found = coterie.league({"learned": runs / "selfplay", "random": "random"}, episodes=40)
    assert torch.equal(found.score, league([f"learned={runs / 'selfplay'}", "random"], episodes=40).score)
    gap = coterie.exploit(runs / "tag", steps=1e2, episodes=8, **{"eval.every": 0})
    assert (gap.team, gap.response) == ("agent", "adversary")


def test_bots_play_in_a_league_of_runs_with_rewards_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    train(tmp_path / "curious", *RPS, "rewards.icm.strength=0.1")
    found = league([f"curious={tmp_path / 'curious'}", "random"], episodes=20)
    assert found.members == ("curious", "random")


def test_a_response_takes_the_settings_that_it_is_given_and_has_to_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Negative control: without any it has those of the team that it stands for."""
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    tag = ("env=particle/simple_tag", "env.episode_limit=5")
    train(tmp_path / "run", *tag, "algo=ippo", "teams.adversary.algo=mappo", "teams.adversary.algo.hidden=[6]")
    kept = exploit(tmp_path / "run", ["eval.every=0"], team="agent", steps=80, episodes=4)
    given = exploit(tmp_path / "run", ["eval.every=0", "algo=ippo"], team="agent", steps=80, episodes=4)
    names = [load_resolved(Path(found.run) / "config.yaml").config.algo_of("adversary").name for found in (kept, given)]
    assert names == ["mappo", "ippo"]
    train(tmp_path / "still", *tag, "algo=ippo", "teams.adversary.algo=random")
    with pytest.raises(UserError, match="team 'adversary' would respond by algo=random, which learns nothing"):
        exploit(tmp_path / "still", team="agent", steps=80, episodes=4)


def test_a_response_to_a_run_with_lessons_is_trained_on_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    lessons = tmp_path / "lessons.yaml"
    lessons.write_text(
        "curriculum: {lessons: [{name: a, parameters: {speed: 1.0}, advance: {metric: steps, above: 50}}, "
        "{name: b, parameters: {speed: 0.5}}]}\n"
    )
    settings = ["env=particle/simple_tag", "env.episode_limit=5", "algo=ippo", f"out={tmp_path / 'run'}"]
    coterie.run.train(resolve(tiny(*settings), lessons))
    found = exploit(tmp_path / "run", ["eval.every=0"], steps=80, episodes=4)
    config = load_resolved(Path(found.run) / "config.yaml").config
    assert config.curriculum.lessons == ()
    assert config.randomise["speed"].mean() == 0.5


def test_games_are_added_up_by_opponent():
    label = torch.tensor([3, -1, 3, 0, 3])
    won = torch.tensor([1.0, 0.5, 0.0, 1.0, 0.5], dtype=torch.float64)
    assert tally(label, won) == [(-1, 0.5, 1), (0, 1.0, 1), (3, 1.5, 3)]
