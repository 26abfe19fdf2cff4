from __future__ import annotations

import math
from pathlib import Path

from coterie.assembly.resolve import resolve
from coterie.runs.summary import no_gradient_step_warnings, summarize

RUN = Path("runs/my run")


def rows(*returns: float, name: str = "eval/return_mean") -> list[dict[str, float]]:
    return [{"steps": i * 1000, "time/wall_s": 10.0 * i, name: value} for i, value in enumerate(returns)]


def test_summary_of_a_finished_run_with_one_team(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("metrics.jsonl", "curves.png"):
        (run / name).touch()
    summary = summarize(run, rows(-78.5, -50, -41.25, -42), 3000, {"agent": -79.0}, {"agent": -40.0})
    assert (
        summary.text()
        == f"""\
3,000 steps in 30 s (100 steps/s)

team return  random   start     now  highest  published  at step
evaluation   -79.00  -78.50  -42.00   -41.25     -40.00    2,000  ▁▆██
team return: sum over the agents of a team, group rewards counted once

ends 89% of the way from the random policy (-79.00) to the published score (-40.00)

metrics      {run}/metrics.jsonl
curves       {run}/curves.png
checkpoints  {run}/checkpoints

video        coterie play {run} --video out.gif
evaluate     coterie evaluate {run}
continue     coterie resume {run} steps=6000
plot         coterie plot {run}
"""
    )


def test_nothing_is_called_best_and_the_untrained_policy_is_not_the_highest():
    """Commands use a best checkpoint only if one is marked, which the start of a run says."""
    summary = summarize(RUN, rows(5, 3), 1000)
    assert (summary.teams[0].best, summary.teams[0].best_steps) == (3, 1000)
    untrained = summarize(RUN, rows(5), 1000)
    assert math.isnan(untrained.teams[0].best)
    assert "evaluation    5.00  5.00        -        -" in untrained.text()
    assert "best" not in summary.text() + untrained.text()


def test_a_run_without_metrics_or_times_has_a_summary():
    assert summarize(RUN, [], 1000).text().startswith("0 of 1,000 steps\n\nvideo ")
    assert summarize(RUN, [{"steps": 1000, "time/wall_s": None}], 1000).text().startswith("1,000 steps\n\nvideo")
    assert math.isnan(summarize(RUN, [{"steps": 1000}], 1000).wall_s)


def test_the_comparison_uses_the_known_reference_scores():
    def comparison(best, random=None, published=None):
        known = ({"x": random} if random is not None else None, {"x": published} if published is not None else {})
        return summarize(RUN, rows(best), 0, *known).teams[0].comparison

    assert comparison(5) == ""
    assert comparison(5, random=2) == "ends 3.00 above the random policy (2.00)"
    assert comparison(5, published=7) == "ends 2.00 below the published score (7.00)"
    assert (
        comparison(5, random=0, published=10)
        == "ends 50% of the way from the random policy (0.00) to the published score (10.00)"
    )
    assert comparison(-5, random=0, published=10) == "ends 5.00 below the random policy (0.00)"
    assert comparison(5, random=10, published=1) == "ends 5.00 below the random policy (10.00)"


def evaluated(*returns: float, error: float = 1.0, **more: float) -> list[dict[str, float]]:
    return [row | {"eval/return_error": error, **more} for row in rows(*returns)]


def test_the_end_is_compared_with_the_random_policy_and_the_best_and_diagnosed_if_it_is_worse():
    run = [-56.0, -54.0, -53.0, -52.0, -60.0, -83.0, -84.0, -82.0]
    summary = summarize(RUN, evaluated(*run), 7000, {"agent": -56.0}, random_error={"agent": 1.0})
    assert summary.comparisons == (
        "ends 27.00 below the random policy (-56.00). Examine the run: coterie diagnose 'runs/my run'",
    )
    assert ("diagnose", "coterie diagnose 'runs/my run'") in summary.next_commands
    assert summary.teams[0].is_below_random
    fallen = summarize(RUN, evaluated(*(x + 30 for x in run)), 7000, {"agent": -56.0}, random_error={"agent": 1.0})
    within = "ends within the errors of the random policy (-56.00), fell by 30.00 since step 3,000. Examine the run: "
    assert fallen.comparisons[0].startswith(within)
    assert not fallen.teams[0].is_below_random


def test_noise_is_neither_below_random_nor_a_fall():
    summary = summarize(RUN, evaluated(-56, -54, -57, -58, -57), 4000, {"agent": -56.0}, random_error={"agent": 1.0})
    assert summary.teams[0].comparison == "ends within the errors of the random policy (-56.00)"
    assert not summary.teams[0].is_below_random


def test_without_a_random_policy_the_end_is_compared_with_the_start():
    trained = [{"steps": k, "rollout/return_mean": x, "rollout/return_std": 3.0, "rollout/episodes": 10.0} for k, x in
               enumerate((10.0, 20.0, 30.0, 40.0))]  # fmt: skip
    summary = summarize(RUN, trained, 3)
    assert summary.comparisons == ("ends 20.00 above the start (10.00)",)
    assert not summary.needs_diagnosis


def test_teams_that_play_against_each_other_need_no_diagnosis():
    both = [row | {"eval/blue/return_mean": 0.0, "eval/red/return_mean": -9.0} for row in evaluated(*[0.0] * 5)]
    for row in both:
        del row["eval/return_mean"]
        row |= {"eval/blue/return_error": 1.0, "eval/red/return_error": 1.0}
    assert not summarize(RUN, both, 4000, {"red": 0.0, "blue": 0.0}).needs_diagnosis


def test_lessons_change_the_task_so_that_returns_are_not_compared():
    lessons = [row | {"lesson/index": 1.0 + (k > 2)} for k, row in enumerate(evaluated(9, 9, 9, 1, 1, 1))]
    assert summarize(RUN, lessons, 5000, {"agent": 5.0}).comparisons == ()


def test_a_team_without_a_reference_score_does_not_get_that_of_another_team():
    data = [{"steps": 1, "eval/red/return_mean": 1.0}]
    assert summarize(RUN, data, 1, {"blue": 5.0}).teams[0].random is None
    assert summarize(RUN, rows(1.0), 1, {"blue": 5.0, "red": 1.0}).teams[0].random is None


def warnings_of(config, team, rows, steps):
    settings, keys = {team: vars(config.algo_of(team).params)}, {team: config.algo_key(team)}
    return no_gradient_step_warnings(settings, keys, rows, steps=steps, total=config.steps)


def test_the_warning_about_missing_gradient_steps_gives_the_reason():
    settings = ["algo=qmix", "steps=6000", "algo.learning_starts=2000", "algo.batch_size=16"]
    config = resolve(settings).config

    def warnings(rows, steps=6000, config=config, team="red"):
        return warnings_of(config, team, rows, steps)

    few = [{"steps": 3000, "replay/sequences": 7.0}, {"replay/sequences": 8.0}]
    assert warnings(few) == (
        "team red: the learner took no gradient step because the replay buffer contains 8 sequences, "
        "fewer than algo.batch_size=16. Reduce it or increase steps.",
    )
    long = resolve([*settings, "algo.rnn=gru", "algo.sequence_start=episode"]).config
    assert warnings(few, config=long)[0].endswith(" For long episodes, set algo.sequence_start=rollout.")
    assert "contains 0 sequences" in warnings([])[0]
    short = resolve([*settings[:1], "steps=1500", *settings[2:]]).config
    assert warnings([], 1500, short) == (
        "team red: the learner took no gradient step because the run ended after 1,500 steps, before "
        "algo.learning_starts=2000. Reduce it or increase steps.",
    )
    alternating = [{"replay/red/sequences": 99.0, "replay/red/updates": 0.0, "replay/blue/updates": 5.0}]
    assert (
        "red: the learner took no gradient step because it trained for fewer steps than algo.learning"
        in warnings(alternating)[0]
    )
    assert warnings(alternating, team="blue") == ()
    own = resolve([*settings, "env=particle/simple_tag", "teams.agent.algo.batch_size=9"]).config
    assert "fewer than teams.agent.algo.batch_size=9. Reduce it" in warnings(few, config=own, team="agent")[0]


def test_no_warning_for_learners_that_learned_may_still_learn_or_have_no_replay_buffer():
    config = resolve(["algo=ddpg", "steps=6000", "algo.learning_starts=2000", "algo.batch_size=32"]).config
    learned = [{"replay/updates": 0.0}, {"replay/updates": 3.0}, {"eval/return_mean": 1.0}]
    assert warnings_of(config, "red", learned, 6000) == ()
    assert warnings_of(config, "red", [], 1000) == ()  # it was stopped
    assert warnings_of(config, "red", [{"replay/updates": 0.0}], 3000)
    assert warnings_of(resolve(["algo=ippo"]).config, "red", [], 10**6) == ()
