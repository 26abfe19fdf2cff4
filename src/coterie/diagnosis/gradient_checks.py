"""Checks of gradients: their norm, and the number of gradient steps."""

from __future__ import annotations

from coterie.diagnosis.findings import Finding, Outcome, Skipped
from coterie.diagnosis.policy_checks import MIN_ENTRIES, VANISHING
from coterie.diagnosis.run_view import LEARNED, RunView, Series, TeamView, show
from coterie.diagnosis.value_checks import run_updates

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

FEW_HIGH, FEW_MEDIUM = 100, 500
"""Gradient steps of a run. Adam's steps are at most about `lr` long, so that 100 steps with lr=5e-4 move a weight by at
most 0.05, a fraction of its initial size; tasks with an exact answer take some hundreds (see the probes).
"""

_NETWORKS = (("policy/grad_norm", "policy", "lr"), ("value/grad_norm", "critic", "critic_lr"))


def gradient_norm(run: RunView, team: TeamView) -> Outcome:
    """Finds gradients that explode or vanish."""
    known = [(team.series(name), network, lr) for name, network, lr in _NETWORKS]
    known = [(norms, network, lr) for norms, network, lr in known if len(norms) >= MIN_ENTRIES]
    if not known:
        return Skipped(f"the gradient norm has fewer than {MIN_ENTRIES} entries")
    for norms, network, lr in known:
        finding = _exploding(team, norms, network, lr)
        if finding is not None:
            return finding
    for norms, network, _ in known:
        if norms.median(since=0.5) < VANISHING:
            # Where the return is good, nothing is left to learn.
            if network == "critic" or team.improvement >= LEARNED:
                continue
            return Finding(
                "gradients",
                "high" if team.is_stuck else "medium",
                f"the gradient of the {network} vanishes: its norm is {show(norms.median(since=0.5))}, median of the "
                f"second half of the run{team.progress()}",
                _vanishing_fix(team, norms.median(since=0.5)),
                team.name,
            )
    return None


def _exploding(team: TeamView, norms: Series, network: str, lr: str) -> Finding | None:
    limit = team.number("max_grad_norm")
    now = norms.median(since=0.75)
    first = Series(norms.steps, norms.values[: max(1, len(norms) // 4)]).median()
    far_above = now > EXPLODING * (limit or 10.0)
    grown = now > GROWTH * first and now > EXPLODED
    if not far_above and not grown:
        return None
    course = f"grew from {show(first)} to {show(now)}" if grown else f"is {show(now)}, median of the last quarter"
    clip = f"; it is clipped at {show(limit)}" if limit else "; it is not clipped"
    fix = f"Clip it: {team.key('max_grad_norm', 10)}" if limit is None else f"Smaller steps: {_smaller(team, lr)}"
    return Finding(
        "gradients",
        "high" if team.is_stuck or grown else "medium",
        f"the gradient norm of the {network} {course}{clip}{team.progress()}",
        f"{fix}; look at the findings on rewards, values and observations first.",
        team.name,
    )


def _smaller(team: TeamView, lr: str) -> str:
    rate = team.number(lr)
    return team.smaller_lr() if rate is None else team.key(lr, rate / 3)


def _vanishing_fix(team: TeamView, norm: float) -> str:
    if norm == 0:
        return "Check that agents have a choice (action masks), and look at the findings on dead and saturated units."
    if team.settings.get("layer_norm") is False:
        return f"Normalize layers: {team.key('layer_norm', True)}; look at the findings on dead and saturated units."
    return f"Larger steps: {team.key('lr', min(0.01, 3 * (team.number('lr') or 5e-4)))}."


def gradient_steps(run: RunView, team: TeamView) -> Outcome:
    """Finds runs with too few gradient steps to learn anything."""
    steps = gradient_steps_of(run, team)
    if steps >= FEW_MEDIUM:
        return None
    if not steps and run.steps == 0:
        return Skipped("no rollout has been collected yet")
    return Finding(
        "gradient steps",
        "high" if steps < FEW_HIGH else "medium",
        f"the run took {steps:,.0f} gradient steps in {run.steps:,} environment steps; learning takes some hundreds "
        "at least",
        _more_steps(run, team, steps),
        team.name,
    )


def gradient_steps_of(run: RunView, team: TeamView) -> float:
    """Returns the gradient steps of a team's policy so far, exact off-policy and estimated from the log on-policy."""
    updates = team.series("replay/updates")
    if len(updates):
        return updates.max()
    epochs = team.series("policy/epochs").median() if len(team.series("policy/epochs")) else team.number("epochs") or 1
    return run_updates(run, team) * epochs * (team.number("num_minibatches") or 1)


def _more_steps(run: RunView, team: TeamView, steps: float) -> str:
    longer = f"Train longer: steps={max(2 * run.total, int(run.total * FEW_MEDIUM / max(steps, 1)))}"
    starts = team.number("learning_starts")
    if starts is not None:
        if not steps and run.steps <= starts:
            return f"Start earlier: {team.key('learning_starts', max(1, run.total // 20))}. {longer}."
        now = team.number("gradient_steps") or max(1, _per_update(run, team) // 200)
        return f"More steps per rollout: {team.key('gradient_steps', int(10 * now))}. {longer}."
    length = team.number("rollout_length") or 1
    if run.num_envs > 8:
        return f"Update more often: num_envs={run.num_envs // 4} (now {run.num_envs}). {longer}."
    return f"Update more often: {team.key('rollout_length', max(1, int(length // 4)))}. {longer}."


def _per_update(run: RunView, team: TeamView) -> int:
    return run.num_envs * int(run.number("rollout_length") or team.number("rollout_length") or 1)
