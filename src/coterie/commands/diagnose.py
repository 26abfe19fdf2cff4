"""Diagnosis of a run: reads its settings, metrics and a checkpoint, and makes all checks.

Code that the run names is executed only if the user trusts the run. Without it, networks are evaluated on observations
that the checkpoint stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from coterie.commands.arguments import run_folder
from coterie.commands.checkpoint_choice import CheckpointChoice, find_checkpoint
from coterie.commands.environment import make_environment
from coterie.commands.learners import TrainedRun, load_run
from coterie.config.sources import from_file
from coterie.core.errors import ReportedError
from coterie.core.process import configure_process
from coterie.core.seeds import generator, seed_of
from coterie.core.specs import TeamSpec
from coterie.core.types import Timestep
from coterie.diagnosis.checks import diagnose_view
from coterie.diagnosis.findings import Diagnosis
from coterie.diagnosis.network_sample import ActivityRecorder, scales_of, stored_sample
from coterie.diagnosis.run_view import Sample, view_run
from coterie.envs.contract.vector import closed, reset_env
from coterie.policies.base import Mode, Policy
from coterie.runs import loggers
from coterie.runs.checkpoints import decoding
from coterie.runs.folder import RunFolder
from coterie.training.curriculum.lessons import lesson_of_checkpoint
from coterie.training.inference import inference_context
from coterie.training.rollout_builder import stack_time
from coterie.training.trajectory import collect

ROLLOUT_STEPS, ROLLOUT_ENVS = 64, 16
"""Length of the rollout on which networks are examined, and its environments."""


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
    settings = {setting.key: setting.value for setting in from_file(folder.config_path, saved=True)}
    manifest = folder.read_manifest()
    rows = loggers.read(folder.metrics_path)
    which = "last" if checkpoint == "auto" and folder.checkpoint is None else checkpoint
    notes: list[str] = []
    samples: dict[str, Sample] = {}
    continuous: dict[str, int | None] = {}
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
        samples, continuous = _examine(folder, settings, choice, teams, notes)
    sources = dict.fromkeys(sample.source for sample in samples.values() if sample.source)
    notes += [f"networks and observations were examined on {source}" for source in sources]
    view = view_run(settings, rows, teams, random=manifest.get("random"), continuous=continuous, samples=samples)
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
) -> tuple[dict[str, Sample], dict[str, int | None]]:
    """Returns observations, activity of networks and numbers of continuous actions by team; adds notes."""
    try:
        trained = load_run(folder.path, choice, torch.device("cpu"))
        samples = _rollout_samples(trained)
        specs = {name: algorithm.policy.team for name, algorithm in trained.algorithms.items()}
        return samples, {name: continuous_actions(spec) for name, spec in specs.items()}
    except ReportedError as error:  # not trusted, or its environment cannot be made here
        notes.append(f"no rollout: {error}")
    samples, continuous = {}, {}
    for team in teams:
        prefix = f"teams.{team}.algo." if f"teams.{team}.algo.name" in settings else "algo."
        own = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
        try:
            with decoding(choice.found):
                samples[team] = stored_sample(choice.found.state, team, own)
                continuous[team] = _stored_continuous(choice.found.state["algorithms"][team]["policy"], own)
        except ReportedError as error:
            samples[team], continuous[team] = Sample(missing=str(error)), None
    return samples, continuous


def _stored_continuous(policy: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    """Returns the continuous actions of an agent from the parameters of its policy; None if they do not show it."""
    if settings.get("state_dependent_std") is True:
        return None
    parameters = [(k, x) for part in policy.values() if isinstance(part, Mapping) for k, x in part.items()]
    return next((int(x.shape[-1]) for key, x in parameters if str(key).startswith("log_std.")), 0)


def continuous_actions(team: TeamSpec) -> int | None:
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
        scales=scales_of(observed.obs, [role.name for role in policy.team.roles]),
        layers=tuple(layers),
        missing="" if layers else "the policy has no hidden layers of a known type",
    )
