"""`coterie view`: recorded episodes in the browser."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coterie.playing.episode_recording import Recording
from coterie.playing.page import Address, page_json, until_interrupted
from coterie.playing.page_server import serving


def view_files(paths: Sequence[Path], address: Address) -> None:
    """Serves recordings side by side until Ctrl-C."""
    with contextlib.ExitStack() as stack:
        recordings = [stack.enter_context(contextlib.closing(Recording(path))) for path in paths]
        with serving(address, "view.html", viewer_routes(recordings)), until_interrupted():
            while True:
                time.sleep(1.0)


def viewer_routes(recordings: Sequence[Recording]) -> list[Route]:
    """Files of the viewer page: `/recordings`, `/recordings/0/timesteps` and `/recordings/0/frames/12`."""
    headers = page_json(json.dumps([r.header.model_dump(mode="json") | {"file": r.path.name} for r in recordings]))
    timesteps = [
        b"\n".join(page_json(timestep.model_dump_json(exclude_none=True)) for timestep in r.timesteps)
        for r in recordings
    ]

    def index(request: Request, name: str, count: int) -> int:
        text = request.path_params[name]
        if not (text.isdecimal() and len(text) < 10 and int(text) < count):
            raise HTTPException(404, f"no such {name}: there are {count}")
        return int(text)

    async def send_headers(request: Request) -> Response:
        return Response(headers, media_type="application/json")

    async def send_timesteps(request: Request) -> Response:
        found = timesteps[index(request, "recording", len(recordings))]
        return Response(found, media_type="application/x-ndjson; charset=utf-8")

    async def send_frame(request: Request) -> Response:
        recording = recordings[index(request, "recording", len(recordings))]
        frame = recording.frame(index(request, "timestep", recording.header.timesteps))
        return Response(frame, media_type="image/webp")

    return [
        Route("/recordings", send_headers),
        Route("/recordings/{recording}/timesteps", send_timesteps),
        Route("/recordings/{recording}/frames/{timestep}", send_frame),
    ]
