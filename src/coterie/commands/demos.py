"""Recording demonstrations of a run or a script, and describing a file of demonstrations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from coterie.algos.algorithm import Algorithm
from coterie.assembly.environment import load_teams, make_environment, select_device
from coterie.assembly.learners import EvalMode, eval_modes, load_run, make_algorithms
from coterie.assembly.resolve import Resolved
from coterie.config.schema import Choice, RunConfig
from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.core.specs import EnvSpec
from coterie.core.terminal import print_message
from coterie.envs import registry
from coterie.envs.contract.vector import closed
from coterie.envs.make import make, spec_of
from coterie.imitation.demo_checks import find_errors
from coterie.imitation.demonstrations import Demos, mismatches
from coterie.imitation.recorder import DemoSource, record
from coterie.policies.base import Mode
from coterie.runs.folder import RunFolder
from coterie.runs.progress import PeriodicProgress
from coterie.training.evaluation import ProgressCallback

MAX_NUM_ENVS = 64
"""Maximum number of environments that are played at the same time."""


@dataclass(frozen=True)
class RecordOptions:
    """Options of recording.

    Attributes:
        out: File to write; by default demos.safetensors, in the run's folder if there is a run.
        episodes: Number of episodes.
        mode: Action selection.
        checkpoint: auto, best, best:TEAM, last or a number of steps.
        seed: Seed of the episodes; by default derived from the run's.
    """

    out: Path | None = None
    episodes: int = 20
    mode: EvalMode = "auto"
    checkpoint: str = "auto"
    seed: int | None = None


def record_run(run: Path, options: RecordOptions) -> tuple[Path, Demos]:
    """Records demonstrations by the policies of a run's checkpoint and returns the file and its content."""
    folder = RunFolder.open(run)
    device = torch.device("cpu")  # as fast as a GPU for few environments, and available everywhere
    trained = load_run(run, options.checkpoint, device)
    assert trained.checkpoint is not None
    origin = {"run": str(folder.path), "checkpoint": options.checkpoint, "steps": trained.checkpoint.steps}
    if trained.warnings:
        origin["warnings"] = trained.warnings
    out = options.out or folder.path / "demos.safetensors"
    return out, _record(trained.config, trained.algorithms, out, options, origin=origin, device=device)


def record_baseline(resolved: Resolved, options: RecordOptions) -> tuple[Path, Demos]:
    """Records demonstrations by algorithms that need no training and returns the file and its content."""
    config = resolved.config
    device = select_device(config.device)
    algorithms = make_algorithms(config, load_teams(config, device), device)
    out = options.out or Path("demos.safetensors")
    return out, _record(config, algorithms, out, options, origin={}, device=device)


def _record(
    config: RunConfig,
    algorithms: dict[str, Algorithm],
    out: Path,
    options: RecordOptions,
    *,
    origin: dict[str, Any],
    device: torch.device,
) -> Demos:
    configure_process(config.threads)
    modes = eval_modes(options.mode, algorithms)
    teams = _describe_teams(config, algorithms, modes)
    source = DemoSource(
        env=config.env.name,
        params=config.env.params.model_dump(mode="json"),
        origin={"by": f"coterie {metadata.version('coterie')}", "teams": teams, **origin},
    )
    is_hosted = isinstance(config.env.params, ExternalEnvConfig)  # one environment may be a whole game
    num_envs = min(options.episodes, config.eval.num_envs if is_hosted else MAX_NUM_ENVS)
    env = make_environment(config, "evaluate", num_envs=num_envs, device=device)
    with closed(env), _progress_bar(config, options.episodes) as on_progress:
        demos = record(
            env,
            {name: algorithm.policy for name, algorithm in algorithms.items()},
            source,
            episodes=options.episodes,
            modes=modes,
            seed=seed_of(config.seed if options.seed is None else options.seed, "record"),
            on_progress=on_progress,
        )
    demos.write(out)
    return demos


def _describe_teams(
    config: RunConfig, algorithms: dict[str, Algorithm], modes: dict[str, Mode]
) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "roles": [role.name for role in algorithm.policy.team.roles],
            "algorithm": config.algo_of(name).name,
            "mode": modes[name],
        }
        for name, algorithm in algorithms.items()
    }


@contextmanager
def _progress_bar(config: RunConfig, episodes: int) -> Iterator[ProgressCallback | None]:
    """Shows a progress bar on a terminal, and occasional lines elsewhere."""
    if config.progress == "off":
        yield None
    elif not sys.stderr.isatty():
        yield PeriodicProgress(print_message, "recording")
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("recording"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes"))
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task("recording", total=episodes)
            yield lambda done, *_: bar.update(task, completed=done)


# -------------------------------------------------------------------------------------------------------- description


def describe(demos: Demos) -> dict[str, Any]:
    """Returns a description of valid demonstrations as plain numbers and strings."""
    length = demos.tensors["episode/length"].double()
    returns = demos.tensors["episode/return"]
    return {
        "env": demos.env,
        "params": demos.params,
        "origin": demos.origin,
        "seed": demos.seed,
        "episodes": demos.episodes,
        "timesteps": demos.timesteps,
        "length": {"mean": float(length.mean()), "min": int(length.min()), "max": int(length.max())},
        "terminated": int(demos.tensors["episode/terminated"].sum()),
        "returns": {
            group: {
                "mean": float(returns[:, i].mean()),
                "std": float(returns[:, i].std(correction=0)),
                "min": float(returns[:, i].min()),
                "max": float(returns[:, i].max()),
            }
            for i, group in enumerate(demos.groups)
        },
        "roles": {
            role.name: {
                "agents": role.n,
                "group": role.group,
                "observation": role.observation,
                "choices": list(role.choices),
                "continuous": role.continuous,
                "masked": f"{role.name}/action_mask" in demos.tensors,
            }
            for role in demos.roles
        },
        "states": {
            name.removeprefix("state/"): x.shape[1] for name, x in demos.tensors.items() if name.startswith("state/")
        },
    }


def inspect_file(path: Path, resolved: Resolved | None = None) -> dict[str, Any]:
    """Describes a file of demonstrations and checks it.

    Args:
        path: The file.
        resolved: Configuration with the environment that the demonstrations should fit; None for none.

    Returns:
        The description with `valid` and `errors`; with an environment also `fits`, `mismatches` (reasons why they do
        not fit) and `differences` (settings of the environment with other values).

    Raises:
        UserError: If the file cannot be read.
    """
    demos = Demos.open(path)
    errors = find_errors(demos)
    report: dict[str, Any] = {"file": str(path), "valid": not errors, "errors": errors}
    report |= {"env": demos.env} if errors else describe(demos)
    if resolved is not None:
        env = resolved.config.env
        report["mismatches"] = mismatches(demos, env.name, _spec(env).roles)
        report["fits"] = not report["mismatches"]
        report["differences"] = differences(demos, env.params.model_dump(mode="json")) if report["fits"] else {}
    return report


def _spec(env: Choice) -> EnvSpec:
    """Returns the spec of an environment, which is created for this if it is a user's batch."""
    if not registry.is_batch_factory(env.name):
        return spec_of(env.name, env.params)
    with closed(make(env.name, env.params)) as created:
        return created.spec


def differences(demos: Demos, params: dict[str, Any]) -> dict[str, str]:
    """Returns a description of every setting of the environment that differs from the demonstrations'."""
    return {
        key: f"{demos.params.get(key)} in the demonstrations, {params.get(key)} now"
        for key in dict.fromkeys((*demos.params, *params))
        if demos.params.get(key) != params.get(key)
    }
