"""Checks of updates: their number, gradients, and how they change the policy (entropy, KL divergence, clipping)."""

from __future__ import annotations

import math

from coterie.checks.diagnosis.experience_checks import reward_scale
from coterie.checks.diagnosis.run_view import (
    FEW_HIGH,
    FEW_MEDIUM,
    LEARNED,
    MIN_ENTRIES,
    RunView,
    Series,
    TeamView,
    logged,
    show,
)
from coterie.checks.findings import Finding, Skipped, found_by

COLLAPSED_SHARE = 0.05
"""Share of the initial entropy of discrete actions below which a policy is almost deterministic: with five choices,
0.08 nats, which is one choice with a probability of 98.5%.
"""
COLLAPSED_STD = 0.02
"""Standard deviation of continuous actions below which a policy is almost deterministic, 1% of their range of 2."""
EARLY = 0.5
"""Fraction of the run before which an almost deterministic policy is early: half of the run is left without
exploration.
"""

KL_MEDIUM, KL_HIGH = 0.05, 0.2
"""Estimated KL divergence per update. Implementations of PPO stop an update between 0.01 and 0.03 (`target_kl` in
Spinning Up and Stable-Baselines3); Huang et al. 2022 report values below 0.02 for healthy runs. From 0.05 on, updates
leave the range in which the old data describes the new policy; 0.2 is ten times the usual limit.
"""
KL_SMALL = 1e-6
"""Estimated KL divergence below which an update leaves the policy as it was."""

VANISHING = 1e-6
"""Median gradient norm below which nothing is learned. Adam divides by the gradient's own size plus epsilon (1e-5 by
default), so that steps shrink once single gradients are smaller than that.
"""

CLIP_MEDIUM, CLIP_HIGH = 0.3, 0.6
"""Share of clipped samples. Runs of PPO usually clip 10 to 20% (Engstrom et al. 2020; Andrychowicz et al. 2021). At
0.6, most samples contribute no gradient by the end of an update.
"""

EFFECTIVE_MEDIUM, EFFECTIVE_HIGH = 0.5, 0.2
"""Effective sample size of factors, as a share of the samples, below which few samples decide the update of an agent.
Half is the usual threshold of importance sampling, at which particle filters draw again.
"""


def entropy_collapse(run: RunView, team: TeamView) -> Finding | None:
    """Finds a policy that becomes deterministic early although the return has not improved."""
    if "entropy_coef" not in team.settings:
        raise Skipped(f"{team.algo} has no entropy bonus", applies=False)
    entropy = logged(team, "policy/entropy")
    continuous = team.sample.continuous
    if continuous is None:
        raise Skipped("the number of continuous actions is unknown")
    at, before, now = _collapse(entropy, continuous)
    if at is None:
        return None
    is_early = at <= EARLY * run.total
    if not is_early or not (team.is_stuck or math.isnan(team.improvement)):
        return None
    measured = "entropy" if not continuous else "standard deviation of actions"
    return Finding(
        "high" if team.is_stuck else "medium",
        f"{measured} fell from {show(before)} to {show(now)} within {at:,} of {run.total:,} steps{team.progress()}",
        f"Smaller steps: {team.smaller_lr()}.",
    )


def _collapse(entropy: Series, continuous: int) -> tuple[int | None, float, float]:
    """Returns the steps after which the entropy stays collapsed, None if it does not, and its first and last values.

    For continuous actions, the values are standard deviations of the normal distribution of the same entropy.
    """
    values = entropy.values
    if continuous:
        values = tuple(math.exp(h / continuous) / math.sqrt(2 * math.pi * math.e) for h in values)
    before = max(values[: max(1, len(values) // 20)])
    limit = COLLAPSED_STD if continuous else COLLAPSED_SHARE * before
    if limit <= 0:  # there was no choice from the start
        return None, before, values[-1]
    at = None
    for step, value in zip(reversed(entropy.steps), reversed(values), strict=True):
        if value > limit:
            break
        at = step
    return at, before, values[-1]


def kl_range(run: RunView, team: TeamView) -> Finding | None:
    """Finds updates that change the policy too much, or not at all."""
    if "max_kl" in team.settings:
        raise Skipped(f"{team.algo} bounds the KL divergence of each step", applies=False)
    if "clip_eps" not in team.settings:
        raise Skipped(f"{team.algo} does not estimate a KL divergence", applies=False)
    kl = logged(team, "policy/kl")
    value = kl.median(since=0.5)
    if value > KL_MEDIUM:
        return Finding(
            "high" if value > KL_HIGH and team.is_stuck else "medium",
            f"the KL divergence per update is {show(value)}, median of the second half of the run "
            f"(usual: below 0.02){team.progress()}",
            f"Smaller updates: {team.smaller_lr()}.",
        )
    vanished = team.series("policy/grad_norm").median(since=0.5) < VANISHING  # a finding of its own
    if abs(kl.median()) < KL_SMALL and not vanished and _steps_per_update(team) > 1 and not team.improvement >= LEARNED:
        return Finding(
            "medium",
            f"updates leave the policy as it was: the KL divergence per update is {show(kl.median())}{team.progress()}",
            f"Larger updates: {team.key('lr', max(5e-4, min(0.01, 10 * (team.number('lr') or 5e-5))))}.",
        )
    return None


def clip_fraction(run: RunView, team: TeamView) -> Finding | None:
    """Finds updates in which most samples are clipped."""
    if "clip_eps" not in team.settings:
        raise Skipped(f"{team.algo} does not clip the policy ratio", applies=False)
    value = logged(team, "policy/clip_fraction").median(since=0.5)
    if value <= CLIP_MEDIUM:
        return None
    return Finding(
        "high" if value > CLIP_HIGH and team.is_stuck else "medium",
        f"{value:.0%} of the samples are outside the clip range, median of the second half of the run (usual: 10 to "
        f"20%){team.progress()}",
        f"Smaller updates: {team.smaller_lr()}.",
    )


def effective_samples(run: RunView, team: TeamView) -> Finding | None:
    """Finds sequential updates in which few samples decide the updates of the last agents."""
    if not len(team.series("policy/effective_samples")):
        raise Skipped(f"{team.algo} does not update agents one after the other", applies=False)
    value = logged(team, "policy/effective_samples").median(since=0.5)
    if value >= EFFECTIVE_MEDIUM:
        return None
    max_kl = team.number("max_kl")
    smaller = team.smaller_lr() if max_kl is None else team.key("max_kl", max_kl / 2)
    return Finding(
        "high" if value < EFFECTIVE_HIGH and team.is_stuck else "medium",
        f"the ratios of the other agents leave an effective sample size of {value:.0%} for the last agent, median of "
        f"the second half of the run (usual: above 90%){team.progress()}",
        f"Smaller updates: {smaller}.",
    )


def _steps_per_update(team: TeamView) -> float:
    """Returns the gradient steps per update. With one, the KL divergence is measured before it and always 0."""
    return (team.number("epochs") or 1) * (team.number("num_minibatches") or 1)


EXPLODING = 100.0
"""Median gradient norm, in multiples of `max_grad_norm`, from which on gradients explode. Clipping at a few times the
usual norm is customary (Pascanu et al. 2013 clip at half to ten times the mean norm). Beyond a factor of 100, clipping
hides a wrong scale of rewards, values or observations.
"""
GROWTH = 1000.0
"""Growth of the gradient norm from the first to the last quarter of the run that counts as an explosion."""
EXPLODED = 100.0
"""Gradient norm below which growth is no explosion. It also replaces 100 x `max_grad_norm` where nothing is clipped,
as 100 x 10, the default of `max_grad_norm`.
"""


FEWEST_ENVS = 8
"""Environments that a run should keep so that a rollout of an on-policy learner is varied."""
FEWEST_STEPS = 8
"""Environment steps per gradient step of an off-policy learner that are usual at least with batched environments, half
of what runs that are short have by default.
"""

_NETWORKS = (("policy/grad_norm", "policy", "lr"), ("value/grad_norm", "critic", "critic_lr"))


def gradient_norm(run: RunView, team: TeamView) -> Finding | None:
    """Finds gradients that explode or vanish."""
    known = [(team.series(name), network, lr) for name, network, lr in _NETWORKS]
    known = [(norms, network, lr) for norms, network, lr in known if len(norms) >= MIN_ENTRIES]
    if not known:
        raise Skipped(f"the gradient norm has fewer than {MIN_ENTRIES} entries")
    for norms, network, lr in known:
        finding = _exploding(run, team, norms, network, lr)
        if finding is not None:
            return finding
    for norms, network, _ in known:
        if norms.median(since=0.5) < VANISHING:
            # Where the return is good, nothing is left to learn.
            if network == "critic" or team.improvement >= LEARNED:
                continue
            return Finding(
                "high" if team.is_stuck else "medium",
                f"the gradient of the {network} vanishes: its norm is {show(norms.median(since=0.5))}, median of the "
                f"second half of the run{team.progress()}",
                _vanishing_fix(team, norms.median(since=0.5)),
            )
    return None


def _exploding(run: RunView, team: TeamView, norms: Series, network: str, lr: str) -> Finding | None:
    limit = team.number("max_grad_norm")
    now = norms.median(since=0.75)
    first = Series(norms.steps, norms.values[: max(1, len(norms) // 4)]).median()
    far_above = now > EXPLODING * (limit or 10.0)
    grown = now > GROWTH * first and now > EXPLODED
    if not far_above and not grown:
        return None
    course = f"grew from {show(first)} to {show(now)}" if grown else f"is {show(now)}, median of the last quarter"
    clip = f"; it is clipped at {show(limit)}" if limit else "; it is not clipped"
    fix = f"Clip it: {team.key('max_grad_norm', 10)}." if limit is None else f"Smaller steps: {_smaller(team, lr)}."
    if cause := found_by(reward_scale, run, team):  # gradients are proportional to rewards
        fix = cause.fix
    return Finding(
        "high" if team.is_stuck or grown else "medium",
        f"the gradient norm of the {network} {course}{clip}{team.progress()}",
        fix,
    )


def _smaller(team: TeamView, lr: str) -> str:
    rate = team.number(lr)
    return team.smaller_lr() if rate is None else team.key(lr, rate / 3)


def _vanishing_fix(team: TeamView, norm: float) -> str:
    if team.has_large_lr:
        return f"Train again with smaller steps: {team.smaller_lr()}."
    if norm == 0:
        return "Check that agents have a choice (action masks)."
    if team.settings.get("layer_norm") is False:
        return f"Normalize layers: {team.key('layer_norm', True)}."
    return f"Larger steps: {team.key('lr', min(0.01, 3 * (team.number('lr') or 5e-4)))}."


def gradient_steps(run: RunView, team: TeamView) -> Finding | None:
    """Finds runs with too few gradient steps to learn anything."""
    steps = team.gradient_steps
    if steps >= FEW_MEDIUM:
        return None
    if not steps and run.steps == 0:
        raise Skipped("no rollout has been collected yet")
    return Finding(
        "high" if steps < FEW_HIGH else "medium",
        f"the run took {steps:,.0f} gradient steps in {run.steps:,} environment steps; learning takes some hundreds "
        "at least",
        more_steps(run, team, steps),
    )


def more_steps(run: RunView, team: TeamView, steps: float) -> str:
    """Returns the setting for more gradient steps than the `steps` of the run.

    A run of the same length has enough of them if it updates more often. Where that would be more often than is usual,
    it is too short.
    """
    factor = math.ceil(FEW_MEDIUM / max(steps, 1))
    starts = team.number("learning_starts")
    if starts is not None:
        if not steps and run.steps <= starts:
            return f"Start earlier: {team.key('learning_starts', max(1, run.total // 20))}."
        now, rollout = team.number("gradient_steps") or 1, run.num_envs * (team.number("rollout_length") or 1)
        if factor * now <= rollout / FEWEST_STEPS:
            return f"More gradient steps per rollout: {team.key('gradient_steps', factor * now)}."
    elif run.num_envs >= FEWEST_ENVS * factor:
        return f"Update more often: num_envs={run.num_envs // factor} (now {run.num_envs})."
    return f"Train longer: steps={max(2 * run.total, factor * run.steps)}."
