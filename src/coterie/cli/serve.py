"""`coterie serve`: an exported team for programs in any language."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Mode
from coterie.core.terminal import print_line
from coterie.core.text import shorten


def serve(
    export: Annotated[
        Path, typer.Argument(metavar="EXPORT", help="Folder that `coterie export` wrote.", show_default=False)
    ],
    mode: Mode = "auto",
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address. Other than the default, it allows access from other machines, with a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port. 0 selects a free port.")] = 0,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            show_default=False,
            help="Password of clients. Default: none on this machine, else a new one.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            show_default=False,
            help="Allow pages of this origin to send requests, such as https://example.com. May be repeated.",
        ),
    ] = None,
) -> int:
    """Serve an exported team on a web socket and over HTTP. For programs without an ONNX runtime.

    Examples:

    coterie serve exported

    coterie serve exported --host 0.0.0.0 --port 8765 --mode greedy
    """
    from coterie.playing.page import until_interrupted
    from coterie.playing.policy_server import serve_policy

    with (
        until_interrupted(),
        serve_policy(export, mode, host, port, token=token, allow_origins=allow_origin or ()) as server,
    ):
        suffix = "" if server.token is None else f" with the token {shorten(server.token)}"
        url = f"http://{server.address}/act"
        print_line(f"Serving at ws://{server.address}/act and {url}{suffix}. Press Ctrl-C to stop.", sys.stderr)
        while True:
            time.sleep(1.0)
    return 0
