"""Commands of `coterie`. Each command imports what it needs when it runs, so that help is fast."""

from __future__ import annotations

import contextlib
import difflib
import functools
from typing import Annotated, Any, Literal

import typer

from coterie.cli.checks import check_algo, check_env, diagnose
from coterie.cli.compare import CompareCommand, compare
from coterie.cli.demos import demos, record
from coterie.cli.export import export
from coterie.cli.help import HelpCommand, HelpGroup
from coterie.cli.league import exploit, league
from coterie.cli.list import app as list_app
from coterie.cli.options import (
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
    Trust,
    print_report,
    run_or_settings,
    with_names,
)
from coterie.cli.play import play, view, watch
from coterie.cli.plot import plot
from coterie.cli.ps import ps
from coterie.cli.report import report
from coterie.cli.reproduce import reproduce
from coterie.cli.serve import serve
from coterie.cli.sweep import Jobs, LauncherText, check_options, run_sweep
from coterie.cli.tune import tune
from coterie.config import user_code
from coterie.config.trust import trusted_runs
from coterie.core.errors import UserError, nearest
from coterie.core.terminal import print_line, reserved_stdout
from coterie.core.text import coterie_command, shorten, shorten_middle

TRAIN, LOOK, COMPARE = "Train", "Look at runs", "Compare"
TEAMS, DEPLOY, CHECK = "Teams against each other", "Deploy", "Check"
"""Groups of commands in the help."""


class _Interrupted(Exception):
    """Ctrl-C in a command. Typer would end with the exit code of an interrupted training run, without a line."""


class _Commands(HelpGroup):
    """The group of all commands, which tells Ctrl-C from the exit codes of commands."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    name="coterie",
    cls=_Commands,
    help="Multi-agent reinforcement learning on PyTorch.",
    epilog="To get started, run [bold]coterie train[/bold]. Help of a command: coterie COMMAND --help",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        print_line(metadata.version("coterie"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print errors with their traceback. Also after a command.")
    ] = False,
) -> None:
    """Options of the program. `--traceback` may be anywhere on the command line, see `coterie.__main__`."""


class TrainCommand(HelpCommand):
    """The command `train`, with the settings that are changed most often at the end of its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from coterie.cli.list import print_run_keys

        print_run_keys()


@app.command(cls=TrainCommand, rich_help_panel=TRAIN)
def train(
    overrides: Overrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    config: ConfigFile = None,
    cfg: Annotated[
        Literal["job"] | None,
        typer.Option(
            "--cfg",
            show_default=False,
            help="Print all settings with their origins, and exit.",
        ),
    ] = None,
    multirun: Annotated[bool, typer.Option("-m", "--multirun", help="Run all combinations of values.")] = False,
    jobs: Jobs = None,
    launcher: LauncherText = None,
    print_: Annotated[
        bool,
        typer.Option("--print", help="With -m: print the commands."),
    ] = False,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Train one or several teams. The default is MAPPO on particle/simple_spread, about a minute on two cores.

    Examples:

    coterie train algo=ippo env=particle/simple_tag steps=2e6 num_envs=256 seed=3 algo.lr=5e-4

    coterie train env=particle/simple_tag teams.adversary.algo=mappo teams.agent.algo=random

    coterie train -m seed=0,1,2 algo=mappo,ippo --jobs 2
    """
    overrides = with_names(overrides, algo=algo, env=env)
    check_options(multirun, jobs=jobs, launcher=launcher, print_commands=print_)
    if multirun:
        if cfg:
            raise UserError("--cfg job: prints a single configuration. Remove -m and set each key to one value.")
        return run_sweep(overrides, config, jobs=jobs, launcher=launcher, print_commands=print_, json=json)
    from coterie.assembly.resolve import resolve

    resolved = resolve(overrides, config)
    if cfg:
        from coterie.assembly.environment import check_teams
        from coterie.config.provenance import to_yaml

        check_teams(resolved.config)

        for line in to_yaml(resolved).splitlines():
            print_line(line)
        return 0
    from coterie.cli.results import finish
    from coterie.commands import train as command

    return finish(command.train(resolved), json)


@app.command(cls=HelpCommand, rich_help_panel=TRAIN)
def resume(run: RunPath, overrides: Overrides = None, trust: Trust = False, json: Json = False) -> int:
    """Resume a run.

    Only steps (to train longer), eval.*, checkpoint.*, log.*, progress, threads, kernels and ranks can be changed.

    Example: coterie resume runs/particle/simple_spread/mappo/20260101-120000-seed0 steps=20M
    """
    from coterie.cli.results import finish
    from coterie.commands import train as command

    return finish(command.resume(run, list(overrides or [])), json)


def evaluate(
    what: RunOrOverrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    episodes: Annotated[int, typer.Option(min=1, max=10**7, help="Minimum number of episodes.")] = 100,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "auto",
    trust: Trust = False,
    seed: Seed = None,
    json: Json = False,
) -> int:
    """Evaluate a run, or an algorithm that needs no training.

    Settings after a run change its environment (env.KEY, env, randomize.KEY) or opponents (teams.TEAM.algo).

    Examples:

    coterie evaluate RUN --episodes 1000 --json

    coterie evaluate RUN env.obstacles=4 teams.agent.algo=scripted --checkpoint best:adversary

    coterie evaluate --algo random --env particle/simple_spread --episodes 10000
    """
    path, settings = run_or_settings("evaluate", what, algo, env, with_overrides=True)
    from coterie.commands import evaluate as command

    if path is not None:
        report = command.evaluate_run(path, episodes, mode, checkpoint, seed=seed, overrides=settings)
    else:
        from coterie.assembly.resolve import resolve

        settings = settings if seed is None else [*settings, f"seed={seed}"]
        report = command.evaluate_baseline(resolve(settings), episodes, mode)
    return print_report(report if json else command.as_tables(report), json)


app.command(cls=HelpCommand, rich_help_panel=TRAIN)(tune)
app.command(cls=HelpCommand, rich_help_panel=TRAIN)(reproduce)
for _command in (record, demos):
    app.command(cls=HelpCommand, rich_help_panel=TRAIN)(_command)
for _command in (ps, plot, play, watch, view):
    app.command(cls=HelpCommand, rich_help_panel=LOOK)(_command)
app.add_typer(list_app, name="list", rich_help_panel=LOOK)
app.command(cls=HelpCommand, rich_help_panel=COMPARE)(evaluate)
app.command(cls=CompareCommand, rich_help_panel=COMPARE)(compare)
app.command(cls=HelpCommand, rich_help_panel=COMPARE)(report)
for _command in (league, exploit):
    app.command(cls=HelpCommand, rich_help_panel=TEAMS)(_command)
for _command in (export, serve):
    app.command(cls=HelpCommand, rich_help_panel=DEPLOY)(_command)
app.command(cls=HelpCommand, rich_help_panel=CHECK)(diagnose)


@app.command(cls=HelpCommand, rich_help_panel=CHECK)
def bench(
    overrides: Overrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    config: ConfigFile = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Duration of the measurement in seconds.")] = 10.0,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Measure environment steps per second. The report has the shares of environment, acting, targets and updates.

    Example: coterie bench algo=ippo/yardstick --seconds 30 --json
    """
    from coterie.assembly.resolve import resolve

    resolved = resolve(with_names(overrides, algo=algo, env=env), config)
    from coterie.commands.benchmark import bench as measure

    return print_report(measure(resolved, seconds), json)


app.command("check-env", cls=HelpCommand, rich_help_panel=CHECK)(check_env)
app.command("check-algo", cls=HelpCommand, rich_help_panel=CHECK)(check_algo)


# -------------------------------------------------------------------------------------------------------------- running


@functools.cache
def _command_line() -> Any:
    """Returns the command line that Typer makes of the commands, which takes it 20 ms."""
    return typer.main.get_command(app)


@user_code.reported()
def run(argv: list[str]) -> int:
    """Runs a command line and returns its exit code. Raises UserError for unknown commands and options."""
    if any(word == "with" or word.startswith(("--config", "--env-config", "env_args.")) for word in argv):
        from coterie.assembly.other_programs import pymarl_answer

        if (answer := pymarl_answer([word for word in argv if word != "train"])) is not None:
            raise UserError(answer)
    command = _command_line()
    usage_error_class: Any = typer.BadParameter.__mro__[1]  # defined in typer or in click, depending on typer's version
    try:
        with contextlib.ExitStack() as stack:
            if "--json" in argv:
                stack.enter_context(reserved_stdout())
            if "--trust" in argv:
                stack.enter_context(trusted_runs())
            result = command.main(args=argv, prog_name="coterie", standalone_mode=False)
    except (typer.Abort, _Interrupted) as error:
        raise KeyboardInterrupt from error
    except usage_error_class as error:
        if not error.format_message():  # `coterie` without a command has printed the help
            return 0
        raise UserError(_usage(error, argv)) from error
    return result if isinstance(result, int) else 0


def _setting_answer(error: Any, argv: list[str]) -> str | None:
    """Returns the answer to a setting that is written as an option; None for other errors and misspelled options."""
    option = str(getattr(error, "option_name", None) or "")
    parameters = error.ctx.command.params if error.ctx is not None else ()
    if not option.startswith("--") or not any("KEY=VALUE" in str(parameter.metavar) for parameter in parameters):
        return None
    options = [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
    if difflib.get_close_matches(option, options, n=1, cutoff=0.8):
        return None
    from coterie.assembly.aliases import DIFFERENT

    key = option.strip("-").replace("-", "_")
    if key in DIFFERENT:
        return f"No such option: {option}. {DIFFERENT[key]}"
    words = zip(argv, (*argv[1:], "-"), strict=True)
    place, following = next((word, other) for word, other in words if word.partition("=")[0] == option)
    value = place.partition("=")[2] or ("VALUE" if following.startswith("-") or "=" in following else following)
    return f"No such option: {option}. Settings are words: write {shorten(f'{key}={value}', 200)}."


def _usage(error: Any, argv: list[str]) -> str:
    """Formats a usage error as one line that suggests a fix."""
    if (answer := _setting_answer(error, argv)) is not None:
        return answer
    message = error.format_message().replace("Value error, ", "").strip().rstrip(".")
    word = next((word for word in argv if not word.startswith("-")), "")
    commands = [*(info.name or info.callback.__name__ for info in app.registered_commands if info.callback), "list"]
    if word and word not in commands:
        if "=" in word:
            train = shorten(coterie_command("train", *argv), 200)
            return f"{shorten(word)}: a setting, not a command. Did you mean `{train}`?"
        return f"{shorten(word)}: no such command. {nearest(word, commands)}"
    return f"{shorten_middle(message, 400)}. See `coterie {word + ' ' if word else ''}--help`."
