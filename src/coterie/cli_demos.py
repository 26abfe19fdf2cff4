"""`coterie record` and `coterie demos`: demonstrations made, and what is in a file of them."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli_options import AlgoName, Checkpoint, EnvName, Json, Mode, RunOrOverrides, Seed, run_or_settings

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Where to; by default demos.safetensors in the run's folder, or here without a run.",
    ),
]


def record(
    what: RunOrOverrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    out: Out = None,
    episodes: Annotated[int, typer.Option(min=1, max=10**7, help="How many episodes.")] = 20,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "best",
    seed: Seed = None,
    json: Json = False,
) -> int:
    """Plays episodes of a run, or of an algorithm that needs no training, and writes them down as demonstrations.

    Examples:

    coterie record RUN --episodes 50 --out expert.safetensors

    coterie record --algo random --env particle/simple_spread
    """
    path, settings = run_or_settings("record", what, algo, env)
    from coterie.imitation import run as recording

    if path is not None:
        target, demos = recording.record_run(path, out, episodes, mode, checkpoint, seed)
    else:
        from coterie.config import resolve

        target, demos = recording.record_baseline(resolve(settings), out, episodes, mode, seed)
    report = {"file": str(target), "sound": True, "faults": [], **recording.describe(demos)}
    print(f"wrote {target}", file=sys.stderr)
    return _print(report, json)


def demos(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A file of demonstrations.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", show_default=False, help="With --env: its keys, env.KEY=VALUE."),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", show_default=False, help="Whether they fit it.")
    ] = None,
    json: Json = False,
) -> int:
    """Tells what is in a file of demonstrations and whether it is sound. Exit code 1 where it is not, or does not fit.

    Example: coterie demos expert.safetensors --env particle/simple_spread
    """
    from coterie.imitation.run import look

    resolved = None
    if env is not None:
        from coterie.config import resolve

        resolved = resolve([f"env={env}", "algo=random", *(overrides or [])])
    report = look(file, resolved)
    _print(report, json)
    return 0 if report["sound"] and report.get("fits", True) else 1


def _print(report: dict[str, Any], json: bool) -> int:
    if json:
        print(jsonlib.dumps(report))
        return 0
    for fault in report["faults"]:
        print(f"not sound: {fault}")
    if report["sound"]:
        _print_content(report)
    for line in report.get("misfits", []):
        print(f"does not fit: {line}")
    for key, said in report.get("differs", {}).items():
        print(f"fits, but env.{key}: {said}")
    if report["sound"] and report.get("fits", False) and not report["differs"]:
        print("fits the environment")
    return 0


def _print_content(report: dict[str, Any]) -> None:
    from coterie.tables import print_table

    length, made = report["length"], report["made"]
    spread = f"{length['min']} to {length['max']}" if length["min"] < length["max"] else f"{length['min']}"
    print(f"{report['episodes']:,} episodes of {report['env']}, {report['rows']:,} steps ({spread} each)")
    for team, who in made.get("teams", {}).items():
        source = f", {made['run']} at {made['steps']:,} steps" if "run" in made else ""
        print(f"played by {who['algorithm']} as {team} ({who['mode']}{source})")
    returns = [
        [group, *(f"{found[key]:.4g}" for key in ("mean", "std", "min", "max"))]
        for group, found in report["returns"].items()
    ]
    print_table(["return of", "mean", "std", "min", "max"], returns)
    roles = [
        [name, str(role["agents"]), _seen(role["observation"]), _acts(role), "yes" if role["masked"] else "no"]
        for name, role in report["roles"].items()
    ]
    print_table(["role", "agents", "observes", "acts by", "masks"], roles)


def _seen(observation: dict[str, Any]) -> str:
    if "sensors" in observation:
        return ", ".join(f"{name} {_seen(part)}" for name, part in observation["sensors"].items())
    return " x ".join(map(str, observation["shape"]))


def _acts(role: dict[str, Any]) -> str:
    parts = [f"{' x '.join(map(str, role['choices']))} choices"] if role["choices"] else []
    return " and ".join(parts + ([f"{role['continuous']} numbers"] if role["continuous"] else []))
