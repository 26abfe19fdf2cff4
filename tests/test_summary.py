from __future__ import annotations

import io
import math
from pathlib import Path

from rich.console import Console

from coterie.config import resolve
from coterie.summary import summarise, unlearned

RUN = Path("runs/my run")


def rows(*returns: float, name: str = "eval/return_mean") -> list[dict[str, float]]:
    return [{"steps": i * 1000, "time/wall_s": 10.0 * i, name: value} for i, value in enumerate(returns)]


def test_a_finished_run_of_one_team_tells_its_whole_story(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("metrics.jsonl", "curves.png"):
        (run / name).touch()
    summary = summarise(run, rows(-78.5, -50, -41.25, -42), 3000, {"agent": -79.0}, {"agent": -40.0})
    assert (
        summary.text()
        == f"""\
3,000 steps in 30 s (100 steps/s)

evaluation return  random   start     now    best  published  best at step
                   -79.00  -78.50  -42.00  -41.25     -40.00         2,000  ▁▆██

best is 97% of the way from random (-79.00) to the published level (-40.00)

metrics      {run}/metrics.jsonl
curves       {run}/curves.png
checkpoints  {run}/checkpoints

watch        coterie play {run} --video out.mp4
evaluate     coterie evaluate {run}
go on        coterie resume {run} steps=6000
plot         coterie plot {run}
"""
    )


def test_a_stopped_run_of_two_teams_goes_on_where_it_stopped():
    data = rows(1, 2, 3)
    for row, value in zip(data, (-1, -5, math.nan), strict=True):
        row["eval/red/return_mean"] = row.pop("eval/return_mean")
        row["eval/blue/return_mean"] = value
    summary = summarise(RUN, data, 10_000, {"red": 0.5, "blue": -0.5}, {"red": 2.5})
    assert (
        summary.text(80)
        == """\
2,000 of 10,000 steps in 20 s (100 steps/s)

evaluation return  random  start    now   best  published  best at step
red                 0.500   1.00   3.00   3.00       2.50         2,000
blue               -0.500  -1.00  -5.00  -1.00          -             0

red: best is 125% of the way from random (0.500) to the published level (2.50)
blue: best is 0.500 below random (-0.500)

watch        coterie play 'runs/my run' --video out.mp4
evaluate     coterie evaluate 'runs/my run'
go on        coterie resume 'runs/my run'
plot         coterie plot 'runs/my run'
"""
    )


def test_without_evaluations_training_returns_are_told_and_unknown_levels_left_out():
    text = summarise(RUN, rows(1, 2, name="rollout/return_mean"), 1000).text()
    assert text.startswith(
        "1,000 steps in 10 s (100 steps/s)\n\n"
        "training return  start   now  best  best at step\n"
        "                  1.00  2.00  2.00         1,000  ▁█\n"
        "\nwatch "
    )


def test_a_run_without_any_rows_or_times_still_ends_well():
    assert summarise(RUN, [], 1000).text().startswith("0 of 1,000 steps\n\nwatch ")
    assert summarise(RUN, [{"steps": 1000, "time/wall_s": None}], 1000).text().startswith("1,000 steps\n\nwatch")
    assert math.isnan(summarise(RUN, [{"steps": 1000}], 1000).wall_s)


def test_the_verdict_fits_what_is_known():
    def verdict(best, random=None, published=None):
        known = ({"x": random} if random is not None else None, {"x": published} if published is not None else {})
        return summarise(RUN, rows(best), 0, *known).teams[0].verdict

    assert verdict(5) == ""
    assert verdict(5, random=2) == "best is 3.00 above random (2.00)"
    assert verdict(5, published=7) == "best is 2.00 below the published level (7.00)"
    assert (
        verdict(5, random=0, published=10) == "best is 50% of the way from random (0.00) to the published level (10.00)"
    )
    assert verdict(-5, random=0, published=10) == "best is 5.00 below random (0.00)"
    assert verdict(5, random=10, published=1) == "best is 5.00 below random (10.00)"


def test_the_best_is_the_highest_and_the_first_of_equals():
    team = summarise(RUN, rows(1, 3, 3, 2), 3000).teams[0]
    assert (team.start, team.now, team.best, team.best_steps) == (1, 2, 3, 1000)
    assert team.history == (1, 3, 3, 2)


def test_a_team_without_a_level_of_its_own_gets_none_of_anothers():
    data = [{"steps": 1, "eval/red/return_mean": 1.0}]
    assert summarise(RUN, data, 1, {"blue": 5.0}).teams[0].random is None
    assert summarise(RUN, rows(1.0), 1, {"blue": 5.0, "red": 1.0}).teams[0].random is None


def test_a_learner_from_replay_that_took_no_gradient_step_is_named_with_why():
    settings = ["algo=qmix", "steps=6000", "algo.learning_starts=2000", "algo.batch=16"]
    config = resolve(settings).config

    def told(rows, steps=6000, config=config, team="red"):
        return unlearned(config, [team], rows, steps)

    few = [{"steps": 3000, "replay/sequences": 7.0}, {"replay/sequences": 8.0}]
    assert told(few) == (
        "team red: the learner took no gradient step: its replay came to 8 sequences, fewer than algo.batch=16: lower "
        "that, or raise steps",
    )
    long = resolve([*settings, "algo.memory=gru", "algo.sequence_start=episode"]).config
    assert told(few, config=long)[0].endswith("; where episodes are long, give algo.sequence_start=window")
    assert "came to 0 sequences" in told([])[0]
    short = resolve([*settings[:1], "steps=1500", *settings[2:]]).config
    assert told([], 1500, short) == (
        "team red: the learner took no gradient step: the run's 1,500 steps end before algo.learning_starts=2000: "
        "lower that, or raise steps",
    )
    by_turns = [{"replay/red/sequences": 99.0, "replay/red/updates": 0.0, "replay/blue/updates": 5.0}]
    assert "red: the learner took no gradient step: it was given fewer steps than algo.learning" in told(by_turns)[0]
    assert told(by_turns, team="blue") == ()
    own = resolve([*settings, "env=particle/simple_tag", "teams.agent.algo.batch=9"]).config
    assert "fewer than teams.agent.algo.batch=9: lower" in told(few, config=own, team="agent")[0]


def test_a_learner_that_learned_is_to_learn_later_or_has_no_replay_is_not_warned_of():
    config = resolve(["algo=ddpg", "steps=6000", "algo.learning_starts=2000"]).config
    learned = [{"replay/updates": 0.0}, {"replay/updates": 3.0}, {"eval/return_mean": 1.0}]
    assert unlearned(config, ["red"], learned, 6000) == ()
    assert unlearned(config, ["red"], [], 1000) == ()  # it was stopped
    assert unlearned(config, ["red"], [{"replay/updates": 0.0}], 3000)
    assert unlearned(resolve(["algo=ippo"]).config, ["red"], [], 10**6) == ()


def test_on_a_terminal_the_same_words_are_coloured_and_paths_are_whole():
    summary = summarise(Path("runs") / ("long" * 40), rows(1, 2), 1000, {"": 0.0})
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard", _environ={})
    summary.print(console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[" in text
    assert f"coterie resume runs/{'long' * 40} steps=2000" in text
    assert f"coterie resume runs/{'long' * 40} steps=2000\n" in summary.text(80)
