"""`coterie view`: recorded episodes in the browser."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from coterie.playing.episode_recording import Recording
from coterie.playing.page import Address, page_json, require_server, serving, until_interrupted
from coterie.playing.server import Files, Response


def view_files(paths: Sequence[Path], address: Address) -> None:
    """Serves recordings side by side until Ctrl-C."""
    require_server()
    with contextlib.ExitStack() as stack:
        recordings = [stack.enter_context(contextlib.closing(Recording(path))) for path in paths]
        with serving(address, "view.html", viewer_files(recordings), list), until_interrupted():
            while True:
                time.sleep(1.0)


def viewer_files(recordings: Sequence[Recording]) -> Files:
    """Files of the viewer page: `/recordings`, `/recordings/0/timesteps` and `/recordings/0/frames/12`."""
    headers = [r.header.model_dump(mode="json") | {"file": r.path.name} for r in recordings]
    timesteps = [
        b"\n".join(page_json(timestep.model_dump_json(exclude_none=True)) for timestep in r.timesteps)
        for r in recordings
    ]

    def find(path: str) -> Response | None:
        match path.strip("/").split("/"):
            case ["recordings"]:
                return Response(page_json(json.dumps(headers)), "application/json")
            case ["recordings", which, "timesteps"] if which.isdecimal() and int(which) < len(recordings):
                return Response(timesteps[int(which)], "application/x-ndjson; charset=utf-8")
            case ["recordings", which, "frames", timestep] if which.isdecimal() and timestep.isdecimal():
                if int(which) < len(recordings) and int(timestep) < recordings[int(which)].header.timesteps:
                    return Response(recordings[int(which)].frame(int(timestep)), "image/webp")
        return None

    return find
