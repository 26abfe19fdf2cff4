"""The option `-m` of `coterie train`: sweeps, and where their jobs run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coterie.core.errors import UserError, nearest
from coterie.core.terminal import print_line

Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, max=1024, show_default=False, help="With -m: parallel runs.")
]
LauncherText = Annotated[
    str | None,
    typer.Option("--launcher", metavar="NAME", show_default=False, help="With -m: local, ray or slurm."),
]

_OPTIONS = {"local": ("cpus",), "ray": ("cpus", "gpus", "address"), "slurm": ("cpus", "gpus")}
"""Launchers and their options."""


@dataclass(frozen=True)
class Launcher:
    """The launcher of a sweep, which decides where its jobs run.

    Attributes:
        name: `local`, `ray` or `slurm`.
        cpus: Cores per job; None for the default.
        gpus: GPUs per job.
        address: Address of a Ray cluster: `auto`, `local` or `host:port`.
        sbatch: Further options of sbatch.
    """

    name: str
    cpus: int | None = None
    gpus: float = 0.0
    address: str = "auto"
    sbatch: tuple[str, ...] = ()


def parse_launcher(text: str) -> Launcher:
    """Parses e.g. `local`, `ray cpus=2 gpus=0.5 address=head:6379`, `slurm cpus=4 --partition=long --time=8:00:00`.

    Raises:
        UserError: For an unknown launcher or option, or an invalid value.
    """
    shown = f"--launcher '{text}'"
    try:
        name, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise UserError(f"{shown}: {error}. Close the quotation mark.") from error
    if name not in _OPTIONS:
        raise UserError(f"--launcher {name or repr('')}: no such launcher. {nearest(name, _OPTIONS)}")
    given: dict[str, str] = {}
    sbatch: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if name == "slurm" and word.startswith("-"):
            sbatch.append(word)
        elif key not in _OPTIONS[name]:
            raise UserError(f"{shown}: {name} has no option '{key}'. {nearest(key, _OPTIONS[name])}")
        else:
            given[key] = value
    number = r"\d{1,4}" if name == "slurm" else r"\d{1,4}(\.\d+)?"
    for key, pattern in (("cpus", r"0*[1-9]\d{0,3}"), ("gpus", number), ("address", r"local|auto|\S+:\d+")):
        if key in given and not re.fullmatch(pattern, given[key]):
            expected = {"cpus": "a number of cores", "address": "auto, local or HOST:PORT"}.get(key, "a number of GPUs")
            raise UserError(f"{shown}: {key}={given[key]} is not {expected}. Write e.g. {key}={_EXAMPLES[key]}.")
    return Launcher(
        name=name,
        cpus=int(given["cpus"]) if "cpus" in given else None,
        gpus=float(given.get("gpus", 0)),
        address=given.get("address", "auto"),
        sbatch=tuple(sbatch),
    )


_EXAMPLES = {"cpus": "2", "gpus": "1", "address": "auto"}


def check_options(multirun: bool, *, jobs: int | None, launcher: str | None, print_commands: bool) -> None:
    """Raises UserError for options of sweeps without `-m`."""
    given = {"--print": print_commands, "--jobs": jobs is not None, "--launcher": launcher is not None}
    for option in (option for option, is_given in given.items() if is_given and not multirun):
        raise UserError(f"{option}: requires -m. Add -m.")


def run_sweep(
    overrides: list[str],
    config: Path | None,
    *,
    jobs: int | None,
    launcher: str | None,
    print_commands: bool,
    json: bool,
) -> int:
    """Runs every combination of comma-separated values, or prints the commands. Returns the exit code."""
    from coterie.cli.job_gate import job_gate
    from coterie.sweeps import sweep

    where = parse_launcher(launcher) if launcher is not None else None
    gate = job_gate()
    if where is None or where.name == "local":
        gate.preload()
    planned = sweep.plan(overrides, config)
    if where is not None and where.name == "slurm":
        from coterie.sweeps.slurm import SlurmOptions, run_on_slurm

        slurm = SlurmOptions(cores=where.cpus, gpus=int(where.gpus), parallel=jobs, sbatch=where.sbatch)
        return run_on_slurm(planned, config, slurm, print_script=print_commands, json=json)
    if print_commands:
        for line in sweep.shell_commands(planned, config):
            print_line(line)
        return 0
    if where is not None and where.name == "ray":
        from coterie.sweeps.ray_sweep import RayOptions, run_on_ray

        ray = RayOptions(address=where.address, cores=where.cpus, gpus=where.gpus, parallel=jobs)
        return run_on_ray(planned, config, ray, json=json)
    fitting = 1 if where is None else sweep.fitting_jobs(where.cpus)
    return sweep.run_all(planned, config, jobs or fitting, json, gate=gate)
