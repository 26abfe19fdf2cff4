"""The commands of `coterie`. What they do lies in modules imported when a command runs, so that help is quick."""

from __future__ import annotations

import json as jsonlib
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from coterie.cli_demos import demos, record
from coterie.cli_league import exploit, league
from coterie.cli_list import app as list_app
from coterie.cli_options import (
    AlgoName,
    Checkpoint,
    ConfigFile,
    EnvName,
    Json,
    Mode,
    Overrides,
    RunOrOverrides,
    RunPath,
    Seed,
    print_report,
    run_or_settings,
)
from coterie.cli_play import play, view
from coterie.errors import UserError, nearest

app = typer.Typer(
    name="coterie",
    help="Trains teams of agents: multi-agent reinforcement learning on PyTorch.",
    epilog="The first thing to try: [bold]coterie train[/bold]",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(list_app, name="list", help="What there is: algorithms, environments, keys.")


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        print(metadata.version("coterie"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and stop.")
    ] = False,
) -> None:
    """Options of the program itself."""


class TrainCommand(TyperCommand):
    """`train` with every run-level key and its meaning at the end of its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from coterie.cli_list import print_run_keys

        print_run_keys()


@app.command(cls=TrainCommand)
def train(
    overrides: Overrides = None,
    config: ConfigFile = None,
    cfg: Annotated[
        Literal["job"] | None,
        typer.Option("--cfg", show_default=False, help="Print the resolved configuration with origins, and stop."),
    ] = None,
    multirun: Annotated[
        bool, typer.Option("-m", "--multirun", help="Run every combination of comma-separated values.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1024, help="With -m: how many run at a time.")] = 1,
    print_: Annotated[
        bool, typer.Option("--print", help="With -m: print the commands for a cluster's queue instead of running them.")
    ] = False,
    json: Json = False,
) -> int:
    """Trains. Without settings: MAPPO on particle/simple_spread, a few minutes on two cores.

    Examples:

    coterie train algo=ippo env=particle/simple_tag steps=2e6 copies=256 seed=3 algo.lr=5e-4

    coterie train env=particle/simple_tag teams.adversary.algo=mappo teams.agent.algo=random

    coterie train -m seed=0,1,2 algo=mappo,ippo --jobs 2
    """
    given = list(overrides or [])
    if not multirun and (print_ or jobs != 1):
        raise UserError(f"{'--print' if print_ else '--jobs'} goes with -m: add -m")
    if multirun:
        if cfg:
            raise UserError("--cfg job shows one configuration: leave out -m, or give every key one value")
        from coterie import multirun as sweep

        planned = sweep.plan(given, config)
        if print_:
            print("\n".join(sweep.shell_commands(planned, config)))
            return 0
        return sweep.run_all(planned, config, jobs, json)
    from coterie.config import resolve

    resolved = resolve(given, config)
    if cfg:
        from coterie.origins import to_yaml

        sys.stdout.write(to_yaml(resolved))
        return 0
    from coterie import run as running

    return _finish(running.train(resolved), json)


@app.command()
def resume(run: RunPath, overrides: Overrides = None, json: Json = False) -> int:
    """Goes on where a run stopped.

    Only steps (more of them), eval.*, checkpoint.*, log.*, progress and threads can change.

    Example: coterie resume runs/particle/simple_spread/mappo/20260101-120000-seed0 steps=20M
    """
    from coterie import run as running

    return _finish(running.resume(run, list(overrides or [])), json)


@app.command()
def evaluate(
    what: RunOrOverrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    episodes: Annotated[int, typer.Option(min=1, max=10**7, help="At least so many episodes.")] = 100,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "best",
    seed: Seed = None,
    json: Json = False,
) -> int:
    """Evaluates a run's checkpoint, or an algorithm that needs no training.

    Examples:

    coterie evaluate RUN --episodes 1000 --json

    coterie evaluate --algo random --env particle/simple_spread --episodes 10000
    """
    path, settings = run_or_settings("evaluate", what, algo, env)
    from coterie import run as running

    if path is not None:
        report = running.evaluate_run(path, episodes, mode, checkpoint, seed)
    else:
        from coterie.config import resolve

        given = settings if seed is None else [*settings, f"seed={seed}"]
        report = running.evaluate_baseline(resolve(given), episodes, mode)
    return print_report(report, json)


app.command()(league)
app.command()(exploit)
app.command()(play)
app.command()(view)


@app.command()
def bench(
    overrides: Overrides = None,
    config: ConfigFile = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to measure.")] = 10.0,
    json: Json = False,
) -> int:
    """Steps a second, and where the time goes: environment, acting, targets, update.

    Example: coterie bench algo=ippo/yardstick --seconds 30 --json
    """
    from coterie.config import resolve

    resolved = resolve(list(overrides or []), config)
    from coterie.benchmark import bench as measure

    return print_report(measure(resolved, seconds), json)


@app.command()
def plot(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", show_default=False, help="Folders of runs, or above runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The PNG, an SVG lies beside it; by default curves.png in the run, or here for several.",
        ),
    ] = None,
) -> int:
    """Draws learning curves against steps and wall time, seeds gathered with their spread, to PNG and SVG.

    Example: coterie plot runs/particle/simple_spread/* --out spread.png
    """
    from coterie.plot import plot as draw

    for file in draw(runs, out):
        print(file)
    return 0


@app.command("check-env")
def check_env(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An environment, or your own package.module:factory.")],
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Tells whether an environment keeps the contract, and how to mend what does not. Exit code 1 where it does not.

    Example: coterie check-env my_package.my_env:make env.size=8
    """
    for text in overrides or []:
        if not text.startswith("env."):
            raise UserError(f"'{text}': expected keys of the environment, env.KEY=VALUE")
    from coterie.config import resolve
    from coterie.envs.native.check import check_named
    from coterie.process import settle

    settle(threads=1)  # a few copies only: more threads would wait for each other
    config = resolve([f"env={name}", "algo=random", *(overrides or [])]).config
    report = check_named(name, config.env.params)
    if json:
        findings = [vars(finding) for finding in report.findings]
        print(jsonlib.dumps({"env": name, "ok": report.ok, "findings": findings, "facts": report.facts}))
    else:
        sys.stdout.write(report.render(max(60, min(120, shutil.get_terminal_size().columns))))
    return 0 if report.ok else 1


app.command("record")(record)
app.command("demos")(demos)


# -------------------------------------------------------------------------------------------------------------- running


def run(argv: list[str]) -> int:
    """Runs a command line and returns its exit code. UserError for words that are no command or option."""
    command = typer.main.get_command(app)
    usage_error: Any = typer.BadParameter.__mro__[1]  # its class lies in typer or in click, by typer's version
    try:
        result = command.main(args=argv, prog_name="coterie", standalone_mode=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except usage_error as error:
        if not error.format_message():  # `coterie` alone: the help has been printed
            return 0
        raise UserError(_usage(error, argv)) from error
    return result if isinstance(result, int) else 0


def _usage(error: Any, argv: list[str]) -> str:
    """A mistake on the command line in one line that names the mend."""
    message = error.format_message().strip().rstrip(".")
    word = next((word for word in argv if not word.startswith("-")), "")
    commands = [*(info.name or info.callback.__name__ for info in app.registered_commands if info.callback), "list"]
    if word and word not in commands:
        if "=" in word:
            return f"'{word}' is a setting, not a command: did you mean `coterie train {' '.join(argv)}`?"
        return f"there is no command '{word}': {nearest(word, commands)}"
    return f"{message}; see `coterie {word + ' ' if word else ''}--help`"


def _finish(result: Any, json: bool) -> int:
    """What a training run leaves on stdout, and its exit code."""
    if json:
        print(jsonlib.dumps(result.report()))
    return int(result.exit_code)
