"""Checks of the environment: rewards, speed, ends of episodes."""

from __future__ import annotations

import math

from coterie.diagnosis.findings import Finding, Outcome, Skipped
from coterie.diagnosis.policy_checks import MIN_ENTRIES
from coterie.diagnosis.run_view import RunView, TeamView, plain, show

LARGE_HIGH, LARGE_MEDIUM = 1000.0, 100.0
"""Largest absolute reward of a step. Networks start with outputs around 1 and learn at rates for targets of that size
(Henderson et al. 2018 find returns that depend on the scale of rewards by a multiple); Mnih et al. 2015 clip at 1.
"""
SMALL_HIGH, SMALL_MEDIUM = 1e-5, 1e-3
"""Largest absolute reward of a step, below which errors of values drown in Adam's epsilon (1e-5 by default)."""

SLOW_HIGH, SLOW_MEDIUM = 0.9, 0.75
"""Share of the wall time in which environments are stepped and policies act."""
SLOW_STEPS = 1000.0
"""Environment steps per second from which on the environment is not called slow, whatever its share of the time is."""

ENDLESS_HIGH, ENDLESS_MEDIUM = 1000, 200
"""Steps per environment without the end of any episode. Time limits of common benchmarks are 25 to 1000 steps."""


def reward_scale(run: RunView, team: TeamView) -> Outcome:
    """Finds rewards that are zero, or so large or small that learning rates do not fit them."""
    largest = team.series("rollout/reward_abs_max").max()
    if math.isnan(largest):
        return Skipped("rollout/reward_abs_max was not logged, the run is from an earlier version")
    if largest == 0:
        signals = sorted({name.split("/")[1].split("_")[0] for name in team.metrics if name.startswith("reward/")})
        return Finding(
            "reward scale",
            "medium" if signals else "high",
            f"no step of the run had a reward other than 0 in {run.steps:,} steps",
            "Start with an easier task (curriculum.lessons), or reward curiosity: rewards.rnd={}.",
            team.name,
        )
    scaled = team.settings.get("reward_scale", "none") != "none"
    if scaled or team.settings.get("normalize_value") is True:
        return None  # the learner is invariant to the scale
    if largest > LARGE_MEDIUM:
        severity, size = ("high" if largest > LARGE_HIGH else "medium"), "large"
    elif largest < SMALL_MEDIUM:
        severity, size = ("high" if largest < SMALL_HIGH else "medium"), "small"
    else:
        return None
    return Finding(
        "reward scale",
        severity,
        f"rewards are {size}: at most {show(largest)} per step in absolute value, and nothing normalizes them",
        f"{_scale_fix(run, team, largest)}.",
        team.name,
    )


def _scale_fix(run: RunView, team: TeamView, largest: float) -> str:
    if "reward_scale" in team.settings:
        return f"Scale them: {team.key('reward_scale', 'std')}"
    if "normalize_value" in team.settings:
        return f"Normalize values: {team.key('normalize_value', True)}"
    if "env.wrappers.reward_scale" in run.settings:
        now = plain(run.settings["env.wrappers.reward_scale"])
        return f"Scale them: env.wrappers.reward_scale={1 / largest:.2g} (now {now})"
    return f"Divide them by about {show(largest)} in the environment"


def environment_speed(run: RunView) -> Outcome:
    """Finds environments that take most of the time."""
    collecting, speed = run.series("time/collect_share"), run.series("time/steps_per_s")
    if len(collecting) < MIN_ENTRIES or not len(speed):
        return Skipped(f"time/collect_share has {len(collecting)} entries, fewer than {MIN_ENTRIES}")
    share, rate = collecting.median(since=0.25), speed.median(since=0.25)
    if share < SLOW_MEDIUM or rate >= SLOW_STEPS:
        return None
    workers = run.number("workers.count")
    external = any(key.startswith("env.wrappers.") for key in run.settings) or ":" in run.env
    if external and not workers:
        fix = f"Step environments in parallel: workers.count={min(8, run.num_envs)} (now 0)."
    elif external and run.settings.get("workers.overlap") is False:
        fix = "Step environments while policies act: workers.overlap=true (now false), or more workers.count."
    else:
        fix = f"Step more environments together: num_envs={4 * run.num_envs} (now {run.num_envs})."
    return Finding(
        "environment speed",
        "high" if share >= SLOW_HIGH else "medium",
        f"{share:.0%} of the time is spent in the environment and in acting, at {show(rate)} steps per second; "
        "updates wait for it",
        fix,
    )


def episode_end(run: RunView) -> Outcome:
    """Finds episodes that never end."""
    ended = sum(run.series("rollout/episodes").values)
    length = run.steps // run.num_envs
    if ended or length < ENDLESS_MEDIUM:
        return None
    limit = "env.episode_limit"
    shown = f"{limit}=200 (now {plain(run.settings[limit])})" if limit in run.settings else "a time limit of 200 steps"
    return Finding(
        "episode end",
        "high" if length >= ENDLESS_HIGH else "medium",
        f"no episode ended in {run.steps:,} steps, {length:,} of each of the {run.num_envs:,} environments: there are "
        "no returns, and no new starts",
        f"Set {shown}, or end episodes in the environment.",
    )
