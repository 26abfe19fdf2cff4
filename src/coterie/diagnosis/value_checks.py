"""Checks of the critic: explained variance, and values next to the returns that rewards allow."""

from __future__ import annotations

import math

from coterie.diagnosis.findings import Finding, Outcome, Skipped
from coterie.diagnosis.policy_checks import MIN_ENTRIES
from coterie.diagnosis.run_view import RunView, TeamView, show

UNEXPLAINED = 0.0
"""Explained variance 1 - Var(G - V) / Var(G) at or below which a constant would predict returns as well as the critic
(Schulman's definition in OpenAI Baselines, used by Stable-Baselines3, CleanRL and RLlib).
"""
WORSE_THAN_NOTHING = -1.0
"""Explained variance at which the critic's errors have twice the variance of the returns."""
MIN_UPDATES = 20
"""Updates below which a critic may still be untrained."""

BEYOND_MEDIUM, BEYOND_HIGH = 1.5, 3.0
"""Mean value, in multiples of the largest discounted return |r| / (1 - gamma), from which on values are impossible.
The bound is generous: it takes the largest reward in every step, so that healthy runs are far below 1. Overestimation
by bootstrapping (van Hasselt et al. 2018) passes it when values diverge.
"""


def explained_variance(run: RunView, team: TeamView) -> Outcome:
    """Finds critics that predict returns no better than a constant."""
    explained = team.series("value/explained_variance")
    if not len(explained):
        return Skipped(f"{team.algo} does not estimate returns of a rollout", applies=False)
    if len(explained) < MIN_ENTRIES or run_updates(run, team) < MIN_UPDATES:
        return Skipped(f"{run_updates(run, team):,.0f} updates, fewer than {MIN_UPDATES}")
    value = explained.median(since=0.75)
    if value > UNEXPLAINED:
        return None
    return Finding(
        "explained variance",
        "high" if value < WORSE_THAN_NOTHING and team.is_stuck else "medium",
        f"the critic explains {show(value)} of the variance of returns, median of the last quarter of the run; a "
        f"constant explains 0{team.progress()}",
        f"{_critic_fix(team)}.",
        team.name,
    )


def _critic_fix(team: TeamView) -> str:
    if team.settings.get("normalize_value") is False:
        return f"Normalize returns: {team.key('normalize_value', True)}"
    lr, critic_lr = team.number("lr") or 5e-4, team.number("critic_lr")
    if (critic_lr or lr) > 1e-3:
        return f"Smaller steps of the critic: {team.key('critic_lr', 5e-4)}"
    if team.settings.get("critic") == "own":
        return f"Let the critic read the whole team: {team.key('critic', 'joint')}"
    return f"Faster steps of the critic: {team.key('critic_lr', 2 * (critic_lr or lr))}"


def value_range(run: RunView, team: TeamView) -> Outcome:
    """Finds values beyond every return that the rewards seen allow."""
    values = _values(team)
    if not values:
        return Skipped("no values were logged: the critic's first update has not been, or the algorithm has none")
    reward, missing = _largest_reward(team)
    if missing:
        return Skipped(missing)
    gamma = team.number("gamma")
    lengths = team.series("rollout/length_mean")
    horizon = math.inf if gamma is None or gamma >= 1 else 1 / (1 - gamma)
    if horizon == math.inf:
        if not len(lengths):
            return Skipped("without discount, possible returns are unknown before an episode ends")
        horizon = 10 * lengths.max()  # single episodes are longer than the mean of those of an entry
    name, value = max(values.items(), key=lambda pair: abs(pair[1]))
    bound = reward * horizon
    if abs(value) <= BEYOND_MEDIUM * bound:
        return None
    return Finding(
        "value range",
        "high" if abs(value) > BEYOND_HIGH * bound else "medium",
        f"{name} is {show(value)}; the largest reward of a step, {show(reward)}, allows returns up to {show(bound)}",
        f"{_bootstrap_fix(team)}.",
        team.name,
    )


def _values(team: TeamView) -> dict[str, float]:
    """Returns the mean values of the last tenth of the run by metric."""
    found = {name: team.series(name) for name in ("value/estimate", "value/q_taken_mean", "value/target_mean")}
    return {name: series.end() for name, series in found.items() if len(series)}


def _largest_reward(team: TeamView) -> tuple[float, str]:
    """Returns the largest absolute reward that values are learned from, and why it is unknown, otherwise ""."""
    largest = team.series("rollout/reward_abs_max").max()
    if math.isnan(largest):
        return largest, "rollout/reward_abs_max was not logged, the run is from an earlier version"
    if team.settings.get("reward_scale", "none") != "none":
        return largest, f"rewards are scaled by {team.prefix}reward_scale"
    weighted = any(name.endswith("_weight") and name.startswith("reward/") for name in team.metrics)
    if weighted and not len(team.series("value/estimate")):
        return largest, "values are those of several reward signals"
    entropy, temperature = team.series("policy/entropy"), team.series("policy/temperature")
    if len(temperature):  # the soft return contains the entropy
        largest += temperature.max() * max((abs(x) for x in entropy.values), default=0.0)
    return largest, "" if largest > 0 else "all rewards were 0"


def _bootstrap_fix(team: TeamView) -> str:
    interval, tau = team.number("target_update_interval"), team.number("tau")
    if team.settings.get("normalize_value") is False:
        return f"Normalize returns: {team.key('normalize_value', True)}"
    if interval is not None:
        return f"Slower targets: {team.key('target_update_interval', max(200, 5 * interval))}"
    if tau is not None:
        return f"Slower targets: {team.key('tau', min(0.005, tau / 5))}, or {team.smaller_lr()}"
    return f"Smaller steps of the critic: {team.smaller_lr()}"


def run_updates(run: RunView, team: TeamView) -> float:
    """Returns the number of updates that a team has made, from the entries of its log."""
    losses = [len(x) for name, x in team.metrics.items() if name.startswith("loss/")]
    return max(losses, default=0) * (run.number("log.every") or 1)
