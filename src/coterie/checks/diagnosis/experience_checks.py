"""Checks of what a run experiences: rewards, ends of episodes, speed, exploration, replay, action selection."""

from __future__ import annotations

import math
from typing import Any

from coterie.checks.diagnosis.run_view import FEW_HIGH, RunView, TeamView, logged, plain, show
from coterie.checks.findings import Finding, Skipped

LARGE_HIGH, LARGE = 1000.0, 100.0
"""Largest absolute reward of a step. Networks start with outputs around 1 and learn at rates for targets of that size
(Henderson et al. 2018 find returns that depend on the scale of rewards by a multiple); Mnih et al. 2015 clip at 1.
"""
SMALL_HIGH, SMALL = 1e-5, 1e-3
"""Largest absolute reward of a step, below which errors of values drown in Adam's epsilon (1e-5 by default)."""

SLOW_HIGH, SLOW_MEDIUM = 0.9, 0.75
"""Share of the wall time in which environments are stepped and policies act."""
SLOW_STEPS = 1000.0
"""Environment steps per second from which on the environment is not called slow, whatever its share of the time is."""

ENDLESS_HIGH, ENDLESS_MEDIUM = 1000, 200
"""Steps per environment without the end of any episode. Time limits of common benchmarks are 25 to 1000 steps."""


def reward_scale(run: RunView, team: TeamView) -> Finding | None:
    """Finds rewards that are zero, or so large or small that learning rates do not fit them."""
    largest = team.series("rollout/reward_abs_max").max()
    if math.isnan(largest):
        raise Skipped("rollout/reward_abs_max was not logged, the run is from an earlier version")
    if largest == 0:
        signals = sorted({name.split("/")[1].split("_")[0] for name in team.metrics if name.startswith("reward/")})
        return Finding(
            "medium" if signals else "high",
            f"no step of the run had a reward other than 0 in {run.steps:,} steps",
            "Start with an easier task: curriculum.lessons." if signals else "Reward what is new: rewards.rnd={}.",
        )
    scaled = team.settings.get("reward_scale", "none") != "none"
    if scaled or team.settings.get("normalize_value") is True:
        return None  # the learner is invariant to the scale
    if largest > LARGE:
        severity, size = ("high" if largest > LARGE_HIGH else "medium"), "large"
    elif largest < SMALL:
        severity, size = ("high" if largest < SMALL_HIGH else "medium"), "small"
    else:
        return None
    return Finding(
        severity,
        f"rewards are {size}: at most {show(largest)} per step in absolute value, and nothing normalizes them",
        f"{_scale_fix(run, team, largest)}.",
    )


def _scale_fix(run: RunView, team: TeamView, largest: float) -> str:
    if "reward_scale" in team.settings:
        return f"Scale them: {team.key('reward_scale', 'rms')}"
    if "normalize_value" in team.settings:
        return f"Normalize values: {team.key('normalize_value', True)}"
    if "env.wrappers.reward_scale" in run.settings:
        now = plain(run.settings["env.wrappers.reward_scale"])
        return f"Scale them: env.wrappers.reward_scale={1 / largest:.2g} (now {now})"
    return f"Divide them by about {show(largest)} in the environment"


def environment_speed(run: RunView) -> Finding | None:
    """Finds environments that take most of the time."""
    share = logged(run, "time/collect_share").median(since=0.25)
    rate = logged(run, "time/steps_per_s").median(since=0.25)
    if share < SLOW_MEDIUM or rate >= SLOW_STEPS:
        return None
    workers = run.number("workers.count")
    external = any(key.startswith("env.wrappers.") for key in run.settings) or ":" in run.env
    if external and not workers:
        fix = f"Step environments in parallel: workers.count={min(8, run.num_envs)} (now 0)."
    elif external and run.settings.get("workers.overlap") is False:
        fix = "Step environments while policies act: workers.overlap=true (now false)."
    else:
        fix = f"Step more environments together: num_envs={4 * run.num_envs} (now {run.num_envs})."
    return Finding(
        "high" if share >= SLOW_HIGH else "medium",
        f"{share:.0%} of the time is spent in the environment and in acting, at {show(rate)} steps per second; "
        "updates wait for it",
        fix,
    )


def episode_end(run: RunView) -> Finding | None:
    """Finds episodes that never end."""
    ended = sum(run.series("rollout/episodes").values)
    length = run.steps // run.num_envs
    if ended or length < ENDLESS_MEDIUM:
        return None
    limit = "env.episode_limit"
    fix = "End episodes in the environment, after 200 steps for example."
    if limit in run.settings:
        fix = f"End them by a limit: {limit}=200 (now {plain(run.settings[limit])})."
    return Finding(
        "high" if length >= ENDLESS_HIGH else "medium",
        f"no episode ended in {run.steps:,} steps, {length:,} of each of the {run.num_envs:,} environments: there are "
        "no returns, and no new starts",
        fix,
    )


FEW_BATCHES_HIGH, FEW_BATCHES = 10, 50
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


def replay(run: RunView, team: TeamView) -> Finding | None:
    """Finds replay buffers that are too small, or whose data is too old."""
    capacity, batch = team.number("buffer_size"), team.number("batch_size")
    if capacity is None or batch is None:
        raise Skipped(f"{team.algo} has no replay buffer", applies=False)
    sequences = team.series("replay/sequences").max()
    if run.steps > capacity and sequences < FEW_BATCHES * batch:
        return Finding(
            "high" if sequences < FEW_BATCHES_HIGH * batch else "medium",
            f"the full replay buffer holds {sequences:,.0f} sequences, {sequences / batch:.1f} batches of "
            f"{batch:,.0f}, the latest {capacity / run.steps:.1%} of the run",
            f"Keep more: {team.key('buffer_size', int(max(10_000, capacity * FEW_BATCHES * batch / sequences)))}.",
        )
    oldest = team.gradient_steps * min(1.0, capacity / max(run.steps, 1))
    if oldest > OLDEST_POLICY:
        return Finding(
            "medium",
            f"the oldest data in the replay buffer is from a policy {oldest:,.0f} gradient steps ago; returns fall "
            f"from {OLDEST_POLICY:,} on",
            f"Keep less: {team.key('buffer_size', int(capacity * OLDEST_POLICY / oldest / 2))}.",
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
    size = max((run.steps - start) // 2, int(FEW_BATCHES * (team.number("batch_size") or 1)))
    if old <= EARLIER_LESSONS or size >= held:
        return None
    return Finding(
        "medium",
        f"{old:.0%} of the replay buffer is from earlier lessons: lesson {show(lessons.last())} started at step "
        f"{start:,}, and the buffer holds {held:,.0f} steps",
        f"Keep less: {team.key('buffer_size', size)}.",
    )


def exploration(run: RunView, team: TeamView) -> Finding | None:
    """Finds exploration schedules that are longer than the run."""
    start, end, decay = (team.number(f"epsilon_{part}") for part in ("start", "end", "decay_steps"))
    for setting in ("random_steps", "learning_starts"):
        steps = team.number(setting)
        if steps is not None and steps >= run.total:
            return Finding(
                "high",
                f"{team.prefix}{setting} is {steps:,.0f}, and the run has {run.total:,} steps",
                f"Shorten it: {team.key(setting, max(1, run.total // 20))}.",
            )
    if start is None or end is None:
        raise Skipped(f"{team.algo} has no schedule of random actions", applies=False)
    if decay is None or decay <= run.total:
        return None
    exponential = team.settings.get("epsilon_schedule") == "exponential" and start > 0 and end > 0
    passed = run.total / decay
    last = start * (end / start) ** passed if exponential else start + (end - start) * passed
    if team.settings.get("epsilon_schedule") == "constant" or last <= max(EPSILON_MEDIUM, 2 * end):
        return None
    return Finding(
        "high" if last > EPSILON_HIGH else "medium",
        f"epsilon decays over {decay:,.0f} steps, the run has {run.total:,}: it ends with {show(last)} random actions, "
        f"not {show(end)}",
        f"Decay faster: {team.key('epsilon_decay_steps', max(1, run.total // 2))}.",
    )


def evaluation_mode(run: RunView, team: TeamView) -> Finding | None:
    """Finds evaluations that are much worse than training at the same time."""
    evaluated, trained = team.series("eval/return_mean"), team.series("rollout/return_mean")
    if len(evaluated) < 2 or not len(trained):
        raise Skipped("there are no evaluations to compare with training")
    if _is_shaped(run):
        raise Skipped("training changes the environment's rewards or parameters, evaluation does not")
    if not team.alone:
        raise Skipped("the opponents in training and evaluation differ")
    if team.gradient_steps < FEW_HIGH:
        raise Skipped(f"the policy has taken fewer than {FEW_HIGH} gradient steps")
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
        "high",
        f"evaluation returns {show(evaluated.last())}, training {show(trained.end())}: at least "
        f"{show(min(gaps))} standard deviations worse in each of the last {len(gaps)} evaluations",
        f"Act as in training: eval.mode={other} (now {mode}), and `coterie evaluate RUN --mode {other}`.",
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
