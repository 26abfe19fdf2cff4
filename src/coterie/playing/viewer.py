"""`coterie view`: recordings on a page of this machine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from coterie.playing.recording import Recording
from coterie.playing.serve import Address, require_server, serving, until_interrupted
from coterie.playing.server import Answer, Files


def view_files(paths: Sequence[Path], address: Address) -> None:
    """Serves recordings side by side until Ctrl-C."""
    require_server()
    with contextlib.ExitStack() as stack:
        recordings = [stack.enter_context(contextlib.closing(Recording(path))) for path in paths]
        with serving(address, "view.html", viewed(recordings), list), until_interrupted():
            while True:
                time.sleep(1.0)


def viewed(recordings: Sequence[Recording]) -> Files:
    """What a viewer's page asks for: `/recordings`, `/recordings/0/rows` and `/recordings/0/frames/12`."""
    heads = [r.header.model_dump(mode="json") | {"file": r.path.name} for r in recordings]
    rows = ["\n".join(row.model_dump_json(exclude_none=True) for row in r.rows) for r in recordings]

    def find(path: str) -> Answer | None:
        match path.strip("/").split("/"):
            case ["recordings"]:
                return Answer(json.dumps(heads).encode(), "application/json")
            case ["recordings", which, "rows"] if which.isdecimal() and int(which) < len(recordings):
                return Answer(rows[int(which)].encode(), "application/x-ndjson; charset=utf-8")
            case ["recordings", which, "frames", row] if which.isdecimal() and row.isdecimal():
                if int(which) < len(recordings) and int(row) < recordings[int(which)].header.rows:
                    return Answer(recordings[int(which)].frame(int(row)), "image/webp")
        return None

    return find
