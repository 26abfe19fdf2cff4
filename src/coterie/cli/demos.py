"""`coterie record` and `coterie demos`: record demonstrations, and inspect a file of demonstrations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import (
    AlgoName,
    Checkpoint,
    EnvName,
    Json,
    Mode,
    RunOrOverrides,
    Seed,
    Trust,
    require_environment,
    run_or_settings,
    with_names,
)
from coterie.core.terminal import print_json, print_line

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="File to write. Default: demos.safetensors in the run's folder, or in the current folder without a run.",
    ),
]


def record(
    what: RunOrOverrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    out: Out = None,
    episodes: Annotated[int, typer.Option(min=1, max=10**7, help="Number of episodes.")] = 20,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "auto",
    trust: Trust = False,
    seed: Seed = None,
    json: Json = False,
) -> int:
    """Record demonstrations with a run or a script. Any algorithm that needs no training can play.

    Examples:

    coterie record RUN --episodes 50 --out expert.safetensors

    coterie record --algo random --env particle/simple_spread
    """
    path, settings = run_or_settings("record", what, algo, env)
    from coterie.commands import demos as recording

    options = recording.RecordOptions(out=out, episodes=episodes, mode=mode, checkpoint=checkpoint, seed=seed)
    if path is not None:
        target, demos = recording.record_run(path, options)
    else:
        from coterie.assembly.resolve import resolve

        target, demos = recording.record_baseline(resolve(settings), options)
    report = {"file": str(target), "valid": True, "errors": [], **recording.describe(demos)}
    print_line(f"wrote {target}", sys.stderr)
    return _print_report(report, json)


def demos(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="File of demonstrations.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", show_default=False, help="Environment and its settings: env=NAME env.KEY=VALUE."
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="NAME", show_default=False, help="Check that they match this environment."),
    ] = None,
    json: Json = False,
) -> int:
    """Inspect and validate a file of demonstrations. The exit code is 1 if it is invalid or does not match --env.

    Example: coterie demos expert.safetensors --env particle/simple_spread
    """
    from coterie.commands.demos import inspect_file

    resolved = None
    settings = with_names(overrides, env=env)
    if settings:
        from coterie.assembly.resolve import resolve

        require_environment(settings)
        resolved = resolve(["algo=random", *settings])
    report = inspect_file(file, resolved)
    _print_report(report, json)
    return 0 if report["valid"] and report.get("fits", True) else 1


def _print_report(report: dict[str, Any], json: bool) -> int:
    if json:
        print_json(report)
        return 0
    for error in report["errors"]:
        print_line(f"invalid: {error}")
    if report["valid"]:
        _print_content(report)
    for line in report.get("mismatches", []):
        print_line(f"does not match: {line}")
    for key, difference in report.get("differences", {}).items():
        print_line(f"matches, but env.{key}: {difference}")
    if report["valid"] and report.get("fits", False) and not report["differences"]:
        print_line("matches the environment")
    return 0


def _print_content(report: dict[str, Any]) -> None:
    from coterie.runs.tables import print_table

    length, source = report["length"], report["origin"]
    steps = f"{length['min']} to {length['max']}" if length["min"] < length["max"] else f"{length['min']}"
    print_line(
        f"{report['episodes']:,} episodes of {report['env']}, {report['timesteps']:,} steps ({steps} per episode)"
    )
    for team, policy in source.get("teams", {}).items():
        run = f", {source['run']} at {source['steps']:,} steps" if "run" in source else ""
        print_line(f"team {team} played by {policy['algorithm']} ({policy['mode']}{run})")
    returns = [
        [group, *(f"{statistics[key]:.4g}" for key in ("mean", "std", "min", "max"))]
        for group, statistics in report["returns"].items()
    ]
    print_table(["return", "mean", "std", "min", "max"], returns)
    roles = [
        [
            name,
            str(role["agents"]),
            _observation(role["observation"]),
            _actions(role),
            "yes" if role["masked"] else "no",
        ]
        for name, role in report["roles"].items()
    ]
    print_table(["role", "agents", "observation", "actions", "action mask"], roles)


def _observation(observation: dict[str, Any]) -> str:
    if "sensors" in observation:
        return ", ".join(f"{name} {_observation(part)}" for name, part in observation["sensors"].items())
    return " x ".join(map(str, observation["shape"]))


def _actions(role: dict[str, Any]) -> str:
    parts = [f"{' x '.join(map(str, role['choices']))} choices"] if role["choices"] else []
    return " and ".join(parts + ([f"{role['continuous']} continuous"] if role["continuous"] else []))
