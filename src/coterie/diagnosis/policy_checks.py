"""Checks of the policy and of the size of its updates: entropy, KL divergence, clip fraction."""

from __future__ import annotations

import math

from coterie.diagnosis.findings import Finding, Outcome, Skipped
from coterie.diagnosis.run_view import LEARNED, RunView, Series, TeamView, show

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

MIN_ENTRIES = 5
"""Log entries below which a median says little."""


def entropy_collapse(run: RunView, team: TeamView) -> Outcome:
    """Finds a policy that becomes deterministic early although the return has not improved."""
    entropy = team.series("policy/entropy")
    if "entropy_coef" not in team.settings:
        return Skipped(f"{team.algo} has no entropy bonus", applies=False)
    if len(entropy) < MIN_ENTRIES:
        return Skipped(f"policy/entropy has {len(entropy)} entries, fewer than {MIN_ENTRIES}")
    if team.continuous is None:
        return Skipped("the number of continuous actions is unknown")
    at, before, now = _collapse(entropy, team.continuous)
    if at is None:
        return None
    is_early = at <= EARLY * run.total
    if not is_early or not (team.is_stuck or math.isnan(team.improvement)):
        return None
    measured = "entropy" if not team.continuous else "standard deviation of actions"
    coef = team.number("entropy_coef") or 0.0
    return Finding(
        "entropy",
        "high" if team.is_stuck else "medium",
        f"{measured} fell from {show(before)} to {show(now)} within {at:,} of {run.total:,} steps{team.progress()}",
        f"Explore longer: {team.key('entropy_coef', max(0.01, 3 * coef))}, or smaller steps: {team.smaller_lr()}.",
        team.name,
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


def kl_range(run: RunView, team: TeamView) -> Outcome:
    """Finds updates that change the policy too much, or not at all."""
    kl = team.series("policy/kl")
    if "clip_eps" not in team.settings:
        return Skipped(f"{team.algo} does not estimate a KL divergence", applies=False)
    if len(kl) < MIN_ENTRIES:
        return Skipped(f"policy/kl has {len(kl)} entries, fewer than {MIN_ENTRIES}")
    value = kl.median(since=0.5)
    fewer = team.key("target_kl", 0.02) if "target_kl" in team.settings else _fewer_epochs(team)
    if value > KL_MEDIUM:
        return Finding(
            "kl",
            "high" if value > KL_HIGH and team.is_stuck else "medium",
            f"the KL divergence per update is {show(value)}, median of the second half of the run "
            f"(usual: below 0.02){team.progress()}",
            f"Smaller updates: {team.smaller_lr()} or {fewer}.",
            team.name,
        )
    vanished = team.series("policy/grad_norm").median(since=0.5) < VANISHING  # a finding of its own
    if abs(kl.median()) < KL_SMALL and not vanished and _steps_per_update(team) > 1 and not team.improvement >= LEARNED:
        return Finding(
            "kl",
            "medium",
            f"updates leave the policy as it was: the KL divergence per update is {show(kl.median())}{team.progress()}",
            f"Larger updates: {team.key('lr', max(5e-4, min(0.01, 10 * (team.number('lr') or 5e-5))))}.",
            team.name,
        )
    return None


def clip_fraction(run: RunView, team: TeamView) -> Outcome:
    """Finds updates in which most samples are clipped."""
    clipped = team.series("policy/clip_fraction")
    if "clip_eps" not in team.settings:
        return Skipped(f"{team.algo} does not clip the policy ratio", applies=False)
    if len(clipped) < MIN_ENTRIES:
        return Skipped(f"policy/clip_fraction has {len(clipped)} entries, fewer than {MIN_ENTRIES}")
    value = clipped.median(since=0.5)
    if value <= CLIP_MEDIUM:
        return None
    return Finding(
        "clip fraction",
        "high" if value > CLIP_HIGH and team.is_stuck else "medium",
        f"{value:.0%} of the samples are outside the clip range, median of the second half of the run (usual: 10 to "
        f"20%){team.progress()}",
        f"Smaller updates: {team.smaller_lr()} or {_fewer_epochs(team)}.",
        team.name,
    )


def _fewer_epochs(team: TeamView) -> str:
    epochs = team.number("epochs") or 1
    return team.key("epochs", max(1, epochs // 2)) if epochs > 1 else team.key("clip_eps", 0.2)


def _steps_per_update(team: TeamView) -> float:
    """Returns the gradient steps per update. With one, the KL divergence is measured before it and always 0."""
    return (team.number("epochs") or 1) * (team.number("num_minibatches") or 1)
