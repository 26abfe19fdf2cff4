"""Views of runs for the tests of checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.checks.diagnosis.diagnosis import CHECKS, OF_RUN, outcome_of
from coterie.checks.diagnosis.run_view import RunView, Sample, TeamView, view_run
from coterie.checks.findings import Finding, Severity, Skipped

CLIPPED = {"name": "ppo", "lr": 3e-4, "epochs": 4, "num_minibatches": 2, "entropy_coef": 0.0, "clip_eps": 0.2}
"""Settings of a learner that clips the policy ratio."""
OFF_POLICY = {"name": "ddqn", "lr": 1e-3, "buffer_size": 1000, "batch_size": 10, "learning_starts": 10}
"""Settings of a learner with a replay buffer."""


def view(
    metrics: dict[str, Sequence[float]],
    algo: dict[str, Any],
    *,
    steps: int = 1000,
    sample: Sample | None = None,
    manifest: dict[str, Any] | None = None,
    **settings: Any,
) -> RunView:
    """Returns the view of a run of one team that logs `metrics` at equal distances up to `steps`.

    Its algorithm has the settings `algo`; two underscores in the names of `settings` stand for a dot.
    """
    given = {f"algo.{key}": value for key, value in algo.items()}
    given |= {"steps": steps, "num_envs": 10, "env.name": "some/world"}
    given |= {key.replace("__", "."): value for key, value in settings.items()}
    metrics = {"loss/policy": [0.0] * 10, **metrics}
    rows = [
        {"steps": steps * (k + 1) // len(values), name: value}
        for name, values in metrics.items()
        for k, value in enumerate(values)
    ]
    samples = {} if sample is None else {"agent": sample}
    return view_run(given, rows, ["agent"], manifest=manifest, samples=samples)


STUCK: dict[str, Sequence[float]] = {"rollout/return_mean": [5.0] * 10, "rollout/return_std": [1.0] * 10}
"""Metrics of a run whose return stays where it is."""
LEARNING: dict[str, Sequence[float]] = {"rollout/return_mean": [*range(10)], "rollout/return_std": [1.0] * 10}
"""Metrics of a run whose return rises."""


Outcome = Finding | Skipped | None


def checked(check: Callable[..., Finding | None], run: RunView, team: TeamView | None = None) -> Outcome:
    """Returns what a check finds in a run with one team, or why it cannot be made."""
    of_run = check in [CHECKS[name] for name in OF_RUN]
    return outcome_of(check, run) if of_run else outcome_of(check, run, team or run.teams[0])


def reason(outcome: Outcome, *, applies: bool = True) -> str:
    """Returns why a check was not made. AssertionError if it was, or if `applies` is wrong."""
    assert isinstance(outcome, Skipped), outcome
    assert outcome.applies is applies
    return str(outcome)


def severity(outcome: Outcome) -> Severity | None:
    """Returns the severity of a finding, None if there is none. AssertionError if the check was not made."""
    if outcome is None:
        return None
    assert isinstance(outcome, Finding), outcome
    return outcome.severity
