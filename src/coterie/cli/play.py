"""`coterie play`, `coterie view` and `coterie watch`: watch, record and play episodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import (
    AlgoName,
    Checkpoint,
    EnvName,
    Mode,
    RunOrOverrides,
    RunPath,
    Seed,
    Trust,
    run_or_settings,
)
from coterie.core.errors import UserError
from coterie.core.terminal import print_line
from coterie.core.text import coterie_command

if TYPE_CHECKING:
    from coterie.assembly.resolve import Resolved
    from coterie.playing.page import Address
    from coterie.playing.seating import GameRequest

_HOST, _FPS = "127.0.0.1", 5.0

Host = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Address that serves the page. Other than the default, it allows access from other machines.",
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the page. 0 selects a free port.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


Video = Annotated[
    Path | None,
    typer.Option(metavar="FILE", show_default=False, help="Record to this .mp4 or .gif instead of opening a window."),
]
EpisodeCount = Annotated[int, typer.Option(min=1, max=1000, help="Number of episodes.")]
Size = Annotated[int, typer.Option(min=64, max=4096, help="Length of the longer side in pixels.")]
Replay = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        show_default=False,
        help="Write the game's own replay to this folder instead; of Coterie's environments a recording for view.",
    ),
]
Record = Annotated[
    Path | None, typer.Option(metavar="FILE", show_default=False, help="Record to this .zip for `coterie view`.")
]
Human = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEAM.AGENT", show_default=False, help="Play this agent yourself in a browser. May be repeated."
    ),
]
Fps = Annotated[
    float, typer.Option(min=0.5, max=60, help="With --human: environment steps per second in real-time mode.")
]


def play(
    what: RunOrOverrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    video: Video = None,
    episodes: EpisodeCount = 1,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "auto",
    trust: Trust = False,
    seed: Seed = None,
    size: Size = 480,
    replay: Replay = None,
    record: Record = None,
    human: Human = None,
    fps: Fps = _FPS,
    host: Host = _HOST,
    port: Port = 0,
    open_: Open = False,
) -> int:
    """Show or record episodes, or play in them yourself. Of a run, or of an algorithm that needs no training.

    Examples:

    coterie play RUN --video out.mp4

    coterie play RUN --record episodes.zip --episodes 5

    coterie play RUN --human agent.agent_0

    coterie play --env particle/simple_tag --human agent --human adversary.adversary_0

    coterie play --algo random --env particle/simple_tag --video random.gif

    coterie play RUN --replay replays --episodes 5
    """
    _check_options(video, replay, record, human, episodes=episodes)
    if not human:
        _check_no_page({"--fps": fps != _FPS, "--host": host != _HOST, "--port": port != 0, "--open": open_})
    path, resolved = _run_or_configuration(what, algo, env, human)
    if replay is not None and _is_built_in(path, resolved):
        # No game writes a replay of them; a recording shows the same, with what the policy computes.
        record = replay / "episodes.zip"
    if not human and record is None:
        from coterie.commands import play as command

        options = command.PlayOptions(
            video=video, replay=replay, episodes=episodes, mode=mode, checkpoint=checkpoint, seed=seed, size=size
        )
        command.play(path, resolved, options)
        return 0
    from coterie.playing.page import Address
    from coterie.playing.seating import GameRequest

    request = GameRequest(
        run=path, resolved=resolved, human=human or (), mode=mode, checkpoint=checkpoint, seed=seed, size=size
    )
    _play_or_record(request, record, episodes, fps, address=Address(host, port, open_))
    return 0


def _run_or_configuration(
    what: list[str] | None, algo: str | None, env: str | None, human: list[str] | None
) -> tuple[Path | None, Resolved | None]:
    """Returns the run, or the configuration to play with. Without an algorithm, other agents than humans are random."""
    if human and algo is None and not any(word.startswith("algo=") for word in what or []):
        algo = None if _is_run(what) else "random"
    path, settings = run_or_settings("play", what, algo, env)
    if path is not None:
        return path, None
    from coterie.assembly.resolve import resolve

    return None, resolve(settings)


def _is_built_in(run: Path | None, resolved: Resolved | None) -> bool:
    """True if episodes are played in one of Coterie's own environments."""
    from coterie.envs import registry

    if run is not None:
        from coterie.runs.folder import RunFolder

        name = str(RunFolder.open(run).read_manifest().get("env"))
    else:
        name = "" if resolved is None else resolved.config.env.name
    return name.partition("/")[0] in registry.FAMILIES


def _play_or_record(request: GameRequest, record: Path | None, episodes: int, fps: float, address: Address) -> None:
    """Starts interactive play if the request names human players, otherwise records episodes."""
    from coterie.playing import play_by_hand
    from coterie.playing.seating import open_game

    with open_game(request) as (game, title):
        if request.human:
            play_by_hand.play_by_hand(game, title, fps, record, address=address)
        elif record is not None:
            play_by_hand.record_episodes(game, title, episodes, record)
            print_line(f"wrote the episodes. Show them with: {coterie_command('view', record)}", sys.stderr)


def view(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", show_default=False, help="Up to 4 files written by `coterie play --record FILE`."
        ),
    ],
    host: Host = _HOST,
    port: Port = 0,
    open_: Open = False,
) -> int:
    """View recorded episodes in a browser. Seek, change the speed, compare several files in sync.

    Example: coterie view before.zip after.zip
    """
    if len(files) > 4:
        raise UserError(f"{len(files)} files: too many to compare. Name at most 4.")
    from coterie.playing.page import Address
    from coterie.playing.viewer import view_files

    view_files(files, Address(host, port, open_))
    return 0


def watch(
    run: RunPath,
    mode: Mode = "auto",
    trust: Trust = False,
    seed: Seed = None,
    size: Size = 480,
    fps: Annotated[float, typer.Option(min=0.5, max=60, help="Environment steps per second at the start.")] = 10.0,
    host: Host = _HOST,
    port: Port = 0,
    open_: Open = False,
) -> int:
    """Watch a run in a browser while it trains. The page shows its newest policy.

    Between episodes the page takes the newest snapshot of the policy, see checkpoint.policy_seconds.

    Example: coterie watch runs/particle/simple_spread/mappo/20260101-120000-seed0 --open
    """
    from coterie.playing import watch as page
    from coterie.playing.page import Address

    options = page.WatchOptions(mode=mode, fps=fps, size=size, seed=seed)
    page.watch(run, options, Address(host, port, open_))
    return 0


def _check_no_page(options: dict[str, bool]) -> None:
    """Raises UserError for an option of the page if none is served."""
    for option, is_given in options.items():
        if is_given:
            raise UserError(f"{option}: requires --human TEAM.AGENT. Add it, or remove {option}.")


def _is_run(what: list[str] | None) -> bool:
    return any("=" not in word or Path(word).exists() for word in what or [])


def _check_options(video: Path | None, replay: Path | None, record: Path | None, human: Any, episodes: int) -> None:
    """Raises UserError for options that cannot be combined."""
    if video is not None and replay is not None:
        raise UserError("--video: cannot be combined with --replay. Remove one of them.")
    if record is not None and (video is not None or replay is not None):
        raise UserError("--record: cannot be combined with --video or --replay. Remove them.")
    if human and (video is not None or replay is not None):
        raise UserError("--human: cannot be combined with --video or --replay. Record with --record FILE.")
    if human and episodes != 1:
        raise UserError(
            f"--episodes {episodes}: cannot be combined with --human, which plays until you stop. Remove it."
        )
    if video is not None and video.suffix.lower() not in {".mp4", ".gif"}:
        raise UserError(f"--video {video}: unsupported file type. Expected .mp4 or .gif.")
    if record is not None and record.suffix.lower() != ".zip":
        raise UserError(f"--record {record}: unsupported file type. Expected .zip.")
