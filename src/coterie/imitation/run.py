"""What `coterie record` and `coterie demos` do: demonstrations of a run or a script, and what is in a file of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from coterie import registry
from coterie.build import (
    AskedMode,
    algorithms,
    environment,
    eval_modes,
    find_checkpoint,
    known_teams,
    load_learners,
    pick_device,
)
from coterie.config import Resolved
from coterie.envs.make import make, spec_of
from coterie.envs.wrappers.config import HostedConfig
from coterie.evaluation import Told
from coterie.imitation.demos import Demos, misfits
from coterie.imitation.faults import faults
from coterie.imitation.recording import record
from coterie.policy import Mode
from coterie.process import settle
from coterie.progress import Waiting
from coterie.rundir import RunDir
from coterie.schema import Choice, RunConfig
from coterie.seeds import seed_of
from coterie.types import EnvSpec

COPIES = 64
"""Copies of the environment that are played at a time, at most."""


def record_run(
    run: Path,
    out: Path | None = None,
    episodes: int = 20,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int | None = None,
) -> tuple[Path, Demos]:
    """Demonstrations by the policies of a run's checkpoint; by default in the run's folder as demos.safetensors."""
    folder = RunDir.open(run)
    device = torch.device("cpu")  # a few copies: a GPU would not be faster, and a run may come from where one is
    config, learners = load_learners(run, checkpoint, device)
    steps = find_checkpoint(folder, checkpoint).steps
    told = {"run": str(folder.path), "checkpoint": checkpoint, "steps": steps}
    target = out or folder.path / "demos.safetensors"
    return target, _record(config, learners, device, target, episodes, mode, seed, told)


def record_baseline(
    resolved: Resolved, out: Path | None = None, episodes: int = 20, mode: AskedMode = "auto", seed: int | None = None
) -> tuple[Path, Demos]:
    """Demonstrations by algorithms that need no training; by default in demos.safetensors."""
    config = resolved.config
    device = pick_device(config.device)
    learners = algorithms(config, known_teams(config, device), device)
    target = out or Path("demos.safetensors")
    return target, _record(config, learners, device, target, episodes, mode, seed, {})


def _record(
    config: RunConfig,
    learners: dict[str, Any],
    device: torch.device,
    out: Path,
    episodes: int,
    mode: AskedMode,
    seed: int | None,
    told: dict[str, Any],
) -> Demos:
    """Plays and writes."""
    settle(config.threads)
    modes = eval_modes(mode, learners)
    made = {"by": f"coterie {metadata.version('coterie')}", "teams": _who(config, learners, modes), **told}
    policies = {name: learner.policy for name, learner in learners.items()}
    start = seed_of(config.seed if seed is None else seed, "record")
    at_once = config.eval.copies if isinstance(config.env.params, HostedConfig) else COPIES  # a copy may be a game
    copies = min(episodes, at_once)
    with closing(environment(config, copies, "evaluate", device)) as env, _bar(config, episodes) as bar:
        params = config.env.params.model_dump(mode="json")
        demos = record(env, policies, episodes, modes, start, config.env.name, params, made, told=bar)
    demos.write(out)
    return demos


def _who(config: RunConfig, learners: dict[str, Any], modes: dict[str, Mode]) -> dict[str, Any]:
    return {
        name: {
            "roles": [role.name for role in learner.policy.team.roles],
            "algorithm": config.algo_of(name).name,
            "mode": modes[name],
        }
        for name, learner in learners.items()
    }


@contextmanager
def _bar(config: RunConfig, episodes: int) -> Iterator[Told | None]:
    """How far the recording is: a bar on a terminal, now and then a line elsewhere."""
    if config.progress == "off":
        yield None
    elif not sys.stderr.isatty():
        yield Waiting(lambda line: print(f"coterie: {line}", file=sys.stderr), "recording")
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("recording"), BarColumn(), MofNCompleteColumn(), TextColumn("episodes"))
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
            task = shown.add_task("recording", total=episodes)
            yield lambda done, _: shown.update(task, completed=done)


# --------------------------------------------------------------------------------------------------------- describing


def describe(demos: Demos) -> dict[str, Any]:
    """What is in sound demonstrations, as plain numbers and words."""
    length = demos.tensors["episode/length"].double()
    returns = demos.tensors["episode/return"]
    return {
        "env": demos.env,
        "params": demos.params,
        "made": demos.made,
        "seed": demos.seed,
        "episodes": demos.episodes,
        "rows": demos.rows,
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


def look(path: Path, resolved: Resolved | None = None) -> dict[str, Any]:
    """What is in a file, its `faults`, and, for an environment, under `misfits` why it is none of it, and under
    `differs` which parameters are others there. UserError for what cannot be read at all.
    """
    demos = Demos.open(path)
    found = faults(demos)
    report: dict[str, Any] = {"file": str(path), "sound": not found, "faults": found}
    report |= {"env": demos.env} if found else describe(demos)
    if resolved is not None:
        env = resolved.config.env
        report["misfits"] = misfits(demos, env.name, _spec(env).roles)
        report["fits"] = not report["misfits"]
        report["differs"] = differing(demos, env.params.model_dump(mode="json")) if report["fits"] else {}
    return report


def _spec(env: Choice) -> EnvSpec:
    """What an environment is made of; of a user's own batch a copy is made to tell."""
    if not registry.is_batch_factory(env.name):
        return spec_of(env.name, env.params)
    with closing(make(env.name, env.params)) as made:
        return made.spec


def differing(demos: Demos, params: dict[str, Any]) -> dict[str, str]:
    """Parameters that the environment of the demonstrations had other values of, in words by name."""
    return {
        key: f"{demos.params.get(key)} in the demonstrations, {params.get(key)} now"
        for key in dict.fromkeys((*demos.params, *params))
        if demos.params.get(key) != params.get(key)
    }
