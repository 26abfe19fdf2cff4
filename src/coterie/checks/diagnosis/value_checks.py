"""Checks of the critic: explained variance, and values next to the returns that rewards allow."""

from __future__ import annotations

import math

from coterie.checks.diagnosis.experience_checks import reward_scale
from coterie.checks.diagnosis.run_view import MIN_ENTRIES, RunView, TeamView, plain, show
from coterie.checks.findings import Finding, Skipped, found_by

UNEXPLAINED = 0.0
"""Explained variance 1 - Var(G - V) / Var(G) at or below which a constant would predict returns as well as the critic
(Schulman's definition in OpenAI Baselines, used by Stable-Baselines3, CleanRL and RLlib).
"""
WORSE_THAN_NOTHING = -1.0
"""Explained variance at which the critic's errors have twice the variance of the returns."""
MIN_UPDATES = 20
"""Updates below which a critic may still be untrained."""

BEYOND_MEDIUM, BEYOND_HIGH = 1.5, 3.0
"""Mean value, in multiples of the largest return, from which on values are impossible. The bound is generous: it is the
smaller of the largest reward in every step and of the range of returns that were seen. Overestimation by bootstrapping
(van Hasselt et al. 2018) passes it.
"""
UNTRAINED = 1.0
"""Mean value that networks may estimate before they have learned, which is the bound where all rewards were 0."""
SEEN = 2.0
"""Standard deviations of single episodes around the mean that returns are taken to reach."""

AT_LIMIT = 0.5
"""Share of the episodes that a limit ends, from which on it decides what values mean."""
FAR = 1.5
"""Discount horizon 1 / (1 - gamma), in mean lengths of an episode, from which on it is beyond the episode. Values are
then mostly what is bootstrapped from final observations, which no step is trained on.
"""


def explained_variance(run: RunView, team: TeamView) -> Finding | None:
    """Finds critics that predict returns no better than a constant."""
    explained = team.series("value/explained_variance")
    if not len(explained):
        raise Skipped(f"{team.algo} does not estimate returns of a rollout", applies=False)
    if len(explained) < MIN_ENTRIES or team.updates < MIN_UPDATES:
        raise Skipped(f"{team.updates:,.0f} updates, fewer than {MIN_UPDATES}")
    value = explained.median(since=0.75)
    if value > UNEXPLAINED:
        return None
    return Finding(
        "high" if value < WORSE_THAN_NOTHING and team.is_stuck else "medium",
        f"the critic explains {show(value)} of the variance of returns, median of the last quarter of the run; a "
        f"constant explains 0{team.progress()}",
        f"{_critic_fix(team)}.",
    )


def _critic_fix(team: TeamView) -> str:
    if team.settings.get("normalize_value") is False:
        return f"Normalize returns: {team.key('normalize_value', True)}"
    lr, critic_lr = team.number("lr") or 5e-4, team.number("critic_lr")
    if (critic_lr or lr) > 1e-3:
        return f"Smaller steps of the critic: {team.key('critic_lr', 5e-4)}"
    if team.settings.get("critic") == "own" and team.algo.partition("/")[0] != "ppo":  # which has one agent
        return f"Let the critic read the whole team: {team.key('critic', 'joint')}"
    return f"Faster steps of the critic: {team.key('critic_lr', 2 * (critic_lr or lr))}"


def values_at_limits(run: RunView, team: TeamView) -> Finding | None:
    """Finds values that have drifted away from returns because they are bootstrapped at the limit of episodes.

    Such values are returns of a task without an end. If the discount horizon is beyond the episode, they are mostly
    values of final observations, from which no action is taken and which no return corrects.
    """
    if "gamma" not in team.settings:
        raise Skipped(f"{team.algo} learns no values", applies=False)
    length = team.series("rollout/length_mean").end()
    if math.isnan(length):
        raise Skipped("no episode has ended")
    if not values_drift(run, team) or not team.is_poor:
        return None
    name = _largest_value(team)
    first, last = (x * _reward_scale(team) for x in (team.series(name).start(), team.series(name).end()))
    course = f"{name}{_unit(team)} went from {show(first)} to {show(last)}{team.progress()}"
    return Finding(
        "high",
        f"{course}: episodes are truncated after {show(length)} steps, where values are bootstrapped over a discount "
        f"horizon of {show(_horizon(team))} steps",
        f"{limit_fix(run, team)}.",
    )


def values_drift(run: RunView, team: TeamView) -> bool:
    """Returns True if values are beyond the returns because they are bootstrapped at the limit of episodes.

    Values beyond returns that continue over the discount horizon have another cause, see `value_range`.
    """
    name, length = _largest_value(team), team.series("rollout/length_mean").end()
    if not name or not bootstraps_at_limits(run, team) or _horizon(team) <= FAR * length:
        return False
    value, bound = abs(team.series(name).end()) * _reward_scale(team), _bound(run, team)
    is_within = bound is None or value <= BEYOND_MEDIUM * bound[0]
    return is_within and value > _largest_return(team, stds=0.0)


def bootstraps_at_limits(run: RunView, team: TeamView) -> bool:
    """Returns True if a limit ends most episodes, and the learner bootstraps there."""
    truncated, lengths = team.series("rollout/truncated"), team.series("rollout/length_mean")
    if len(truncated):
        ends = truncated.end() >= AT_LIMIT
    else:  # the run is from an earlier version
        at_limit = run.episode_limit is not None and lengths.end() >= (1 - 0.05) * run.episode_limit
        ends = at_limit and run.settings.get("env.terminate_at_limit") is not True
    # A learner without the setting is from an earlier version, which bootstraps.
    return ends and (run.episode_limit is None or team.settings.get("bootstrap_at_limit", True) is True)


def limit_fix(run: RunView, team: TeamView) -> str:
    """Returns the setting with which values do not depend on what follows the limit of episodes."""
    if run.episode_limit is None:
        length = max(2.0, team.series("rollout/length_mean").end())
        return f"Discount within the episode: {team.key('gamma', round(1 - 1 / length, 3))}"
    now = plain(team.settings.get("bootstrap_at_limit", True))
    return f"Let returns end at the limit: {team.prefix}bootstrap_at_limit=false (now {now})"


def _horizon(team: TeamView) -> float:
    """Returns the discount horizon 1 / (1 - gamma) in steps."""
    gamma = team.number("gamma")
    return math.inf if gamma is None or gamma >= 1 else 1 / (1 - gamma)


def _largest_return(team: TeamView, stds: float) -> float:
    """Returns the largest absolute return of the run, or the range of returns if that is larger; NaN without episodes.

    Returns whose rewards cancel are near 0 while values within the episode are not, which the range accounts for.

    Args:
        team: Team that learns.
        stds: Standard deviations of single episodes by which returns differ from the means that are logged.
    """
    means, spread = team.series("rollout/return_mean"), team.series("rollout/return_std").at_steps()
    if not len(means):
        return math.nan
    largest = max(abs(mean) + stds * spread.get(step, 0.0) for step, mean in means.at_steps().items())
    return max(largest, max(means.values) - min(means.values))


def value_range(run: RunView, team: TeamView) -> Finding | None:
    """Finds values beyond every return that the rewards and returns seen allow."""
    name = _largest_value(team)
    if not name:
        raise Skipped("no values were logged: the critic's first update has not been, or the algorithm has none")
    _, missing = _largest_reward(team)
    if missing:
        raise Skipped(missing)
    found = _bound(run, team)
    if found is None:
        raise Skipped("without discount, possible returns are unknown before an episode ends")
    (bound, reason), value = found, team.series(name).end() * _reward_scale(team)
    least = max(bound, UNTRAINED) if _has_no_reward(team) else bound
    if abs(value) <= BEYOND_MEDIUM * least:
        return None
    return Finding(
        "high" if abs(value) > BEYOND_HIGH * least else "medium",
        f"{name}{_unit(team)} is {show(value)}; {reason} {show(bound)}",
        scale.fix if (scale := found_by(reward_scale, run, team)) else f"{_bootstrap_fix(team)}.",
    )


def _bound(run: RunView, team: TeamView) -> tuple[float, str] | None:
    """Returns the largest return that rewards and returns allow, and what allows it as a phrase; None if unknown."""
    reward, missing = _largest_reward(team)
    length, horizon, bootstraps = _longest(run, team), _horizon(team), bootstraps_at_limits(run, team)
    if missing or (horizon == math.inf and math.isnan(length)):
        return None
    bonus = _entropy_bonus(team)
    steps = horizon if math.isnan(length) or (bootstraps and horizon < math.inf) else min(horizon, length)
    possible = (reward + bonus) * steps
    seen, mean_length = max(_largest_return(team, SEEN), reward), team.series("rollout/length_mean").max()
    reached = seen * (max(1.0, steps / mean_length) if bootstraps else 1.0) + bonus * steps
    if reward == 0:
        return possible, "all rewards were 0, which allows returns up to"
    if not reached < possible:  # no episode has ended, or longer ones were possible
        return possible, f"the largest reward of a step, {show(reward + bonus)}, allows returns up to"
    continued = f" of {show(mean_length)} steps, continued for {show(steps)}," if bootstraps else ""
    return reached, f"the returns of episodes{continued} reach"


def _largest_value(team: TeamView) -> str:
    """Returns the metric with the largest mean value in the last tenth of the run; "" without any."""
    names = ("value/estimate", "value/q_taken_mean", "value/target_mean")
    logged = [name for name in names if len(team.series(name))]
    return max(logged, key=lambda name: abs(team.series(name).end()), default="")


def _largest_reward(team: TeamView) -> tuple[float, str]:
    """Returns the largest absolute reward that values are learned from, and why it is unknown, otherwise ""."""
    largest = team.series("rollout/reward_abs_max").max()
    if math.isnan(largest):
        return largest, "rollout/reward_abs_max was not logged, the run is from an earlier version"
    if math.isnan(_reward_scale(team)):
        return largest, f"rewards are scaled by {team.prefix}reward_scale"
    weighted = any(name.endswith("_weight") and name.startswith("reward/") for name in team.metrics)
    if weighted and not len(team.series("value/estimate")):
        return largest, "values are those of several reward signals"
    return largest, ""


def _has_no_reward(team: TeamView) -> bool:
    return team.series("rollout/reward_abs_max").max() == 0


def _entropy_bonus(team: TeamView) -> float:
    """Returns the largest entropy that a step adds to a soft return."""
    entropy, temperature = team.series("policy/entropy"), team.series("policy/temperature")
    if not len(temperature):
        return 0.0
    return temperature.max() * max((abs(x) for x in entropy.values), default=0.0) * _reward_scale(team)


def _unit(team: TeamView) -> str:
    """Returns a phrase for values that are shown on another scale than they are logged on."""
    is_scaled = team.settings.get("reward_scale", "none") != "none" and not _has_no_reward(team)
    return " times replay/reward_scale" if is_scaled else ""


def _reward_scale(team: TeamView) -> float:
    """Returns the reward that is 1 on the scale of the logged values; NaN if it is unknown. Without rewards it is 1."""
    if team.settings.get("reward_scale", "none") == "none" or _has_no_reward(team):
        return 1.0
    return team.series("replay/reward_scale").end()


def _longest(run: RunView, team: TeamView) -> float:
    """Returns the largest length of an episode; NaN if unknown.

    Without a limit of the environment it is estimated: single episodes are longer than the mean of those of an entry.
    """
    lengths = team.series("rollout/length_mean")
    if run.episode_limit is not None:
        return run.episode_limit
    return 10 * lengths.max() if len(lengths) else math.nan


def _bootstrap_fix(team: TeamView) -> str:
    if team.settings.get("normalize_value") is False:
        return f"Normalize returns: {team.key('normalize_value', True)}"
    return f"Smaller steps of the critic: {team.smaller_lr()}"
