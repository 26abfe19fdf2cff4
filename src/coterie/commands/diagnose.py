"""Diagnosis of a run: reads its settings, metrics and a checkpoint, and makes all checks. The summary of a training
shows the worst findings of its log.

Code that the run names is executed only if the user trusts the run. Without it, networks are evaluated on observations
that the checkpoint stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from coterie.algos.algorithm import Algorithm
from coterie.assembly.checkpoint_choice import CheckpointChoice, find_checkpoint
from coterie.assembly.environment import make_environment
from coterie.assembly.learners import TrainedRun, load_run
from coterie.checks.diagnosis.diagnosis import OUTCOME_CHECKS, Diagnosis, diagnose_view
from coterie.checks.diagnosis.network_checks import ActivityRecorder, scales_of, stored_sample
from coterie.checks.diagnosis.run_view import Sample, algo_settings, view_run
from coterie.commands.arguments import run_folder
from coterie.config.schema import RunConfig
from coterie.config.sources import flatten, from_run
from coterie.core.errors import ReportedError, one_line
from coterie.core.process import configure_process
from coterie.core.seeds import generator, seed_of
from coterie.core.specs import TeamSpec
from coterie.core.terminal import print_message
from coterie.core.types import Timestep
from coterie.envs.contract.vector import closed, reset_env
from coterie.policies.base import Mode, Policy
from coterie.runs import loggers
from coterie.runs.checkpoints import decoding
from coterie.runs.folder import RunFolder
from coterie.training.curriculum import lesson_of_checkpoint
from coterie.training.rollout_builder import stack_time
from coterie.training.trajectory import collect, inference_context

ROLLOUT_STEPS, ROLLOUT_ENVS = 64, 16
"""Length of the rollout on which networks are examined, and its environments."""
MOST = 2
"""Findings that the summary of a training shows."""


def diagnose(run: Any, checkpoint: str = "auto") -> Diagnosis:
    """Reports what looks wrong in a run, worst first, with the evidence and a fix to try. It may still be in progress.

    Args:
        run: Folder of the run, or the result of `coterie.train` or `coterie.load`.
        checkpoint: Checkpoint whose networks are examined: `auto` for the last, `best`, `last` or a number of steps.

    Returns:
        The findings, the checks that found nothing, and those that were not made, with the reason.

    Raises:
        UserError: If the run, its settings or its metrics cannot be read, or the checkpoint does not exist.
    """
    configure_process(threads=1)
    folder = RunFolder.open(run_folder(run))
    settings = {setting.key: setting.value for setting in from_run(folder.config_path)}
    manifest = folder.read_manifest()
    rows = loggers.read(folder.metrics_path)
    which = "last" if checkpoint == "auto" and folder.checkpoint is None else checkpoint
    notes: list[str] = []
    samples: dict[str, Sample] = {}
    try:
        choice = find_checkpoint(folder, which, announce=checkpoint != "auto")
    except ReportedError as error:
        if checkpoint != "auto":
            raise
        notes.append(str(error))
        teams = _teams_of_log(rows)
    else:
        with decoding(choice.found):
            teams = list(choice.found.state["algorithms"])
        samples = _examine(folder, settings, choice, teams, notes)
    sources = dict.fromkeys(sample.source for sample in samples.values() if sample.source)
    notes += [f"networks and observations were examined on {source}" for source in sources]
    view = view_run(settings, rows, teams, manifest=manifest, samples=samples)
    return diagnose_view(view, folder.path, tuple(notes))


def _teams_of_log(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the teams that the log names; one without a name if it names none."""
    parts = {key.split("/")[1] for row in rows for key in row if key.startswith("loss/") and key.count("/") == 2}
    return sorted(parts) or [""]


def _examine(
    folder: RunFolder,
    settings: Mapping[str, Any],
    choice: CheckpointChoice,
    teams: list[str],
    notes: list[str],
) -> dict[str, Sample]:
    """Returns observations and activity of networks by team; adds notes."""
    try:
        return _rollout_samples(load_run(folder.path, choice, torch.device("cpu")))
    except ReportedError as error:  # not trusted, or its environment cannot be made here
        notes.append(f"no rollout: {error}")
    return {team: _stored_sample(choice, team, algo_settings(settings, team)[1]) for team in teams}


def _stored_sample(choice: CheckpointChoice, team: str, settings: Mapping[str, Any]) -> Sample:
    try:
        with decoding(choice.found):
            return stored_sample(choice.found.state, team, settings)
    except ReportedError as error:
        return Sample(missing=str(error), continuous=None)


def _continuous_actions(team: TeamSpec) -> int | None:
    """Returns the number of continuous actions of a team's agents; None if they also choose, or differ."""
    counts = {role.action.continuous for role in team.roles}
    choices = any(role.action.choices for role in team.roles)
    return None if len(counts) > 1 or (choices and counts != {0}) else counts.pop()


@torch.no_grad()
def _rollout_samples(trained: TrainedRun) -> dict[str, Sample]:
    """Lets the policies act in environments of their own, and returns what they observed and how active they were."""
    config = trained.config
    policies = {name: algorithm.policy for name, algorithm in trained.algorithms.items()}
    assert trained.checkpoint is not None
    env = make_environment(
        config,
        "diagnose",
        num_envs=min(ROLLOUT_ENVS, config.num_envs),
        device=torch.device("cpu"),
        lesson=lesson_of_checkpoint(trained.checkpoint.state),
    )
    with closed(env):
        seed = seed_of(config.seed, "diagnose")
        noise = {
            name: policy.draw_noise(ROLLOUT_STEPS, env.num_envs, generator(seed, "noise", name))
            for name, policy in policies.items()
        }
        modes: dict[str, Mode] = dict.fromkeys(policies, "explore")
        activations = {name: str(getattr(config.algo_of(name).params, "activation", "")) for name in policies}
        recorders = {name: ActivityRecorder(policy, activations[name]) for name, policy in policies.items()}
        with inference_context(env, policies.values()), ExitStack() as recording:
            timestep = reset_env(env, seed)
            hidden_state = {name: policy.initial_hidden_state(env.num_envs) for name, policy in policies.items()}
            for recorder in recorders.values():
                recording.enter_context(recorder.recording())
            trajectory = collect(env, policies, timestep, hidden_state, noise=noise, modes=modes)
        observed = stack_time(trajectory.timesteps[:-1])
        return {name: _sample(policy, recorders[name], observed) for name, policy in policies.items()}


def _sample(policy: Policy, recorder: ActivityRecorder, observed: Timestep) -> Sample:
    """Returns what a policy observed in timesteps [T, B, ..], and the activity that was recorded."""
    layers, (steps, num_envs) = recorder.layers(), observed.acted.shape
    return Sample(
        source=f"a rollout of {steps} steps in {num_envs} environments",
        observations=steps * num_envs * policy.team.n,
        scales=scales_of({role.name: observed.obs[role.name] for role in policy.team.roles}),
        layers=tuple(layers),
        missing="" if layers else "the policy has no hidden layers of a known type",
        continuous=_continuous_actions(policy.team),
    )


# --------------------------------------------------------------------------------- summary of a training


def worst_findings(
    config: RunConfig,
    rows: Sequence[Mapping[str, Any]],
    algorithms: Mapping[str, Algorithm],
    manifest: Mapping[str, Any],
) -> tuple[str, ...]:
    """Returns the first findings of high severity, one line each.

    They are those of the log alone, without a rollout and without reading checkpoints, which takes milliseconds. The
    summary has a line of its own for the outcome of the run, and a warning for a learner without gradient steps, which
    are left out.

    Args:
        config: Configuration of the run.
        rows: Entries of its log.
        algorithms: Algorithms by team.
        manifest: Its manifest, with the returns of the random policy and the limit of episodes.
    """
    try:
        view = view_run(
            dict(flatten(config.tree())),
            rows,
            list(algorithms),
            manifest=manifest,
            samples={
                name: Sample(continuous=_continuous_actions(algorithm.policy.team))
                for name, algorithm in algorithms.items()
            },
        )
        found = diagnose_view(view, Path()).findings
    except Exception as error:  # a finished training does not fail because of its diagnosis
        print_message(f"the run could not be diagnosed: {one_line(error)}")
        return ()
    unlearned = {team.name for team in view.teams if len(team.series("replay/sequences")) and not team.gradient_steps}
    high = [
        finding
        for finding in found
        if finding.severity == "high"
        and finding.name not in OUTCOME_CHECKS
        and not (finding.name == "gradient steps" and finding.team in unlearned)
    ]
    return tuple(finding.one_line() for finding in high[:MOST])
