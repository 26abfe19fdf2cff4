"""Checks of collected experience: replay buffer, exploration schedule, action selection in evaluation."""

from __future__ import annotations

import math
from typing import Any

from coterie.diagnosis.findings import Finding, Outcome, Skipped
from coterie.diagnosis.gradient_checks import FEW_HIGH, gradient_steps_of
from coterie.diagnosis.run_view import RunView, TeamView, show

SMALL_HIGH, SMALL_MEDIUM = 10, 50
"""Batches that a full buffer holds. Below 10, consecutive batches share much of their data and the buffer covers only
the latest episodes, against which replay was introduced (Lin 1992; Mnih et al. 2015 hold 31,250 batches).
"""
OLDEST_POLICY = 2_500_000
"""Age of the oldest policy in the buffer, in gradient steps, from which on its data is too old. Fedus et al. 2020 vary
it from 25,000 to 25 million and find that returns fall with age; 250,000 is DQN's, ten times that the next larger.
"""
EARLIER_LESSONS = 0.5
"""Share of the buffer from earlier lessons above which it is too old for the current one."""

EPSILON_HIGH = 0.5
"""Probability of a random action at the end of the planned run above which the policy hardly ever acts on its own."""
EPSILON_MEDIUM = 0.2
"""The same, above which a quarter of the actions or more are still random. Published schedules end at 0.05 or below."""

MISMATCH = 1.0
"""Difference between training and evaluation, in standard deviations of single episodes' returns."""
MISMATCH_ENTRIES = 3
"""Latest evaluations that are compared with training."""


def replay(run: RunView, team: TeamView) -> Outcome:
    """Finds replay buffers that are too small, or whose data is too old."""
    capacity, batch = team.number("buffer_size"), team.number("batch_size")
    if capacity is None or batch is None:
        return Skipped(f"{team.algo} has no replay buffer", applies=False)
    sequences = team.series("replay/sequences").max()
    if run.steps > capacity and sequences < SMALL_MEDIUM * batch:
        return Finding(
            "replay",
            "high" if sequences < SMALL_HIGH * batch else "medium",
            f"the full replay buffer holds {sequences:,.0f} sequences, {sequences / batch:.1f} batches of "
            f"{batch:,.0f}, the latest {capacity / run.steps:.1%} of the run",
            f"Keep more: {team.key('buffer_size', int(max(10_000, capacity * SMALL_MEDIUM * batch / sequences)))}.",
            team.name,
        )
    oldest = gradient_steps_of(run, team) * min(1.0, capacity / max(run.steps, 1))
    if oldest > OLDEST_POLICY:
        return Finding(
            "replay",
            "medium",
            f"the oldest data in the replay buffer is from a policy {oldest:,.0f} gradient steps ago; returns fall "
            f"from {OLDEST_POLICY:,} on",
            f"Keep less: {team.key('buffer_size', int(capacity * OLDEST_POLICY / oldest / 2))}.",
            team.name,
        )
    return _earlier_lessons(run, team, capacity)


def _earlier_lessons(run: RunView, team: TeamView, capacity: float) -> Finding | None:
    """Finds a buffer that is mostly from earlier lessons of a curriculum."""
    lessons = run.series("lesson/index")
    if not len(lessons) or lessons.values[0] == lessons.last():
        return None
    start = next(step for step, lesson in zip(lessons.steps, lessons.values, strict=True) if lesson == lessons.last())
    held = min(capacity, run.steps)
    old = max(0.0, start - (run.steps - held)) / held
    if old <= EARLIER_LESSONS:
        return None
    return Finding(
        "replay",
        "medium",
        f"{old:.0%} of the replay buffer is from earlier lessons: lesson {show(lessons.last())} started at step "
        f"{start:,}, and the buffer holds {held:,.0f} steps",
        f"Keep less: {team.key('buffer_size', int(max(1, (run.steps - start) // 2)))}, or train longer in the lesson.",
        team.name,
    )


def exploration(run: RunView, team: TeamView) -> Outcome:
    """Finds exploration schedules that are longer than the run."""
    start, end, decay = (team.number(f"epsilon_{part}") for part in ("start", "end", "decay_steps"))
    for setting in ("random_steps", "learning_starts"):
        steps = team.number(setting)
        if steps is not None and steps >= run.total:
            return Finding(
                "exploration",
                "high",
                f"{team.prefix}{setting} is {steps:,.0f}, and the run has {run.total:,} steps",
                f"Shorten it: {team.key(setting, max(1, run.total // 20))}.",
                team.name,
            )
    if start is None or end is None:
        return Skipped(f"{team.algo} has no schedule of random actions", applies=False)
    if decay is None or decay <= run.total:
        return None
    exponential = team.settings.get("epsilon_schedule") == "exponential" and start > 0 and end > 0
    passed = run.total / decay
    last = start * (end / start) ** passed if exponential else start + (end - start) * passed
    if team.settings.get("epsilon_schedule") == "constant" or last <= max(EPSILON_MEDIUM, 2 * end):
        return None
    return Finding(
        "exploration",
        "high" if last > EPSILON_HIGH else "medium",
        f"epsilon decays over {decay:,.0f} steps, the run has {run.total:,}: it ends with {show(last)} random actions, "
        f"not {show(end)}",
        f"Decay faster: {team.key('epsilon_decay_steps', max(1, run.total // 2))}.",
        team.name,
    )


def evaluation_mode(run: RunView, team: TeamView) -> Outcome:
    """Finds evaluations that are much worse than training at the same time."""
    evaluated, trained = team.series("eval/return_mean"), team.series("rollout/return_mean")
    if len(evaluated) < 2 or not len(trained):
        return Skipped("there are no evaluations to compare with training")
    if _is_shaped(run):
        return Skipped("training changes the environment's rewards or parameters, evaluation does not")
    if not team.alone:
        return Skipped("the opponents in training and evaluation differ")
    if gradient_steps_of(run, team) < FEW_HIGH:
        return Skipped(f"the policy has taken fewer than {FEW_HIGH} gradient steps")
    spreads = (team.series("rollout/return_std").end(), team.series("eval/return_std").end())
    unit = max(*(x for x in spreads if math.isfinite(x)), 0.01 * abs(trained.end()), 1e-8)
    gaps = []
    for step, value in list(zip(evaluated.steps, evaluated.values, strict=True))[-MISMATCH_ENTRIES:]:
        before = [x for at, x in zip(trained.steps, trained.values, strict=True) if at <= step]
        if before and step > 0:
            gaps.append((before[-1] - value) / unit)
    if not gaps or min(gaps) < MISMATCH:
        return None
    mode = str(run.settings.get("eval.mode", "auto"))
    other = "sample" if mode == "greedy" or (mode == "auto" and "buffer_size" in team.settings) else "greedy"
    return Finding(
        "evaluation mode",
        "high",
        f"evaluation returns {show(evaluated.last())}, training {show(trained.end())}: at least "
        f"{show(min(gaps))} standard deviations worse in each of the last {len(gaps)} evaluations",
        f"Act as in training: eval.mode={other} (now {mode}), and `coterie evaluate RUN --mode {other}`.",
        team.name,
    )


def _is_shaped(run: RunView) -> bool:
    """True if rewards or parameters of the environment differ between training and evaluation."""
    default: dict[str, Any] = {"env.wrappers.reward_scale": 1, "env.wrappers.reward_clip": None}
    shaped = any(run.settings.get(key, value) != value for key, value in default.items())
    return (
        shaped
        or bool(run.settings.get("curriculum.lessons"))
        or any(key.startswith(("randomize.", "env.shaping")) for key in run.settings)
    )
