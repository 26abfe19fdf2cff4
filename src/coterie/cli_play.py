"""Commands to look at policies, and to play with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli_options import AlgoName, Checkpoint, EnvName, Mode, RunOrOverrides, Seed, run_or_settings
from coterie.errors import UserError

if TYPE_CHECKING:
    from coterie.playing.cast import Wanted
    from coterie.playing.serve import Address

_HOST, _FPS = "127.0.0.1", 5.0

Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where the page is served; others than this machine's own let others in.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The page's port; 0 takes a free one.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def play(
    what: RunOrOverrides = None,
    algo: AlgoName = None,
    env: EnvName = None,
    video: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Record to this .mp4 or .gif instead of showing."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, max=1000, help="How many episodes.")] = 1,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "best",
    seed: Seed = None,
    size: Annotated[int, typer.Option(min=64, max=4096, help="Pixels of the longer side.")] = 480,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default=False, help="Have the game write its own replay there instead."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Record for `coterie view`, to this .zip."),
    ] = None,
    human: Annotated[
        list[str] | None,
        typer.Option(metavar="TEAM.AGENT", show_default=False, help="Play this agent by hand, in a browser."),
    ] = None,
    fps: Annotated[float, typer.Option(min=0.5, max=60, help="With --human: steps a second, when time runs.")] = _FPS,
    host: Host = _HOST,
    port: Port = 0,
    open_: Open = False,
) -> int:
    """Shows or records episodes of a run, or of an algorithm that needs no training; or lets you play in them.

    Examples:

    coterie play RUN --video out.mp4

    coterie play RUN --record episodes.zip --episodes 5

    coterie play RUN --human agent.agent_0

    coterie play --env particle/simple_tag --human agent --human adversary.adversary_0

    coterie play --algo random --env particle/simple_tag --video random.gif

    coterie play RUN --replay replays --episodes 5
    """
    _check(video, replay, record, human, episodes)
    if not human:
        _check_no_page({"--fps": fps != _FPS, "--host": host != _HOST, "--port": port != 0, "--open": open_})
    if human and algo is None and not any(word.startswith("algo=") for word in what or []):
        algo = None if _is_run(what) else "random"
    path, settings = run_or_settings("play", what, algo, env)
    resolved = None
    if path is None:
        from coterie.config import resolve

        resolved = resolve(settings)
    if not human and record is None:
        from coterie import run as running

        running.play(path, resolved, video, episodes, mode, checkpoint, seed, size, replay)
        return 0
    from coterie.playing.cast import Wanted
    from coterie.playing.serve import Address

    wanted = Wanted(path, resolved, human or (), mode, checkpoint, seed, size)
    _step_by_step(wanted, record, episodes, fps, Address(host, port, open_))
    return 0


def _step_by_step(wanted: Wanted, record: Path | None, episodes: int, fps: float, address: Address) -> None:
    """Plays by hand if anybody is to be played, else records."""
    from coterie.playing import byhand
    from coterie.playing.cast import opened
    from coterie.playing.serve import require_server

    if wanted.human:
        require_server()
    with opened(wanted) as (game, title):
        if wanted.human:
            byhand.play_by_hand(game, title, fps, record, address)
        elif record is not None:
            byhand.record_episodes(game, title, episodes, record)


def view(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", show_default=False, help="What `coterie play --record FILE` wrote; up to 4."),
    ],
    host: Host = _HOST,
    port: Port = 0,
    open_: Open = False,
) -> int:
    """Shows recorded episodes in a browser: scrub, speed, several side by side in step.

    Example: coterie view before.zip after.zip
    """
    if len(files) > 4:
        raise UserError(f"{len(files)} files side by side are too many to see: name up to 4")
    from coterie.playing.serve import Address
    from coterie.playing.viewer import view_files

    view_files(files, Address(host, port, open_))
    return 0


def _check_no_page(given: dict[str, bool]) -> None:
    """UserError for an option of the page where there is none."""
    for option, is_given in given.items():
        if is_given:
            raise UserError(f"{option} goes with a page: name whom you play with --human TEAM.AGENT, or leave it out")


def _is_run(what: list[str] | None) -> bool:
    return bool(what) and ("=" not in what[0] or Path(what[0]).exists())


def _check(video: Path | None, replay: Path | None, record: Path | None, human: Any, episodes: int) -> None:
    """UserError for options that do not go together."""
    if video is not None and replay is not None:
        raise UserError("--video records pictures and --replay the game's own file: leave one out")
    if record is not None and (video is not None or replay is not None):
        raise UserError("--record writes episodes for `coterie view`: leave out --video and --replay")
    if human and (video is not None or replay is not None):
        raise UserError("--human plays in a browser: record with --record FILE, not with --video or --replay")
    if human and episodes != 1:
        raise UserError(f"--episodes {episodes} goes with recording: leave it out, --human plays as many as you like")
    if video is not None and video.suffix.lower() not in {".mp4", ".gif"}:
        raise UserError(f"--video {video}: expected a file that ends in .mp4 or .gif")
    if record is not None and record.suffix.lower() != ".zip":
        raise UserError(f"--record {record}: expected a file that ends in .zip")
