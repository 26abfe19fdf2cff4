"""Videos of frames: MP4 (H.264), GIF, or a still PNG; complete or not there at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import UserError

if TYPE_CHECKING:
    import numpy as np

_GIF_COLORS = 256
_PALETTE_FRAMES = 8  # frames that a GIF's palette is made from


def write_video(path: str | Path, frames: Iterable[np.ndarray], fps: int = 10) -> Path:
    """Writes frames, uint8 [H, W, 3] of one size, to `path` and returns it. Missing folders are made.

    The suffix says what is written: `.mp4` (H.264, plays anywhere), `.gif` (loops; at most 50 frames a second), `.png`
    (the first frame). An MP4 is written as frames come, so that its length is not bounded by memory. The file is
    written beside and renamed: a failure, of `frames` too, leaves an older file as it was. Raises UserError for another
    suffix, fps outside of 1 to 240, no frames, or a place that cannot be written.
    """
    path = Path(path)
    writers = {".mp4": _write_mp4, ".gif": _write_gif, ".png": _write_png}
    suffix = path.suffix.lower()
    if suffix not in writers:
        raise UserError(f"video {path}: the suffix '{path.suffix}' is not known; use one of {', '.join(writers)}")
    if not 1 <= fps <= 240:
        raise UserError(f"video {path}: fps={fps} is outside of 1 to 240")
    beside = _place_beside(path, suffix)
    try:
        writers[suffix](beside, _checked(path, frames), fps)
        os.replace(beside, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        beside.unlink(missing_ok=True)
    return path


def _place_beside(path: Path, suffix: str) -> Path:
    """An empty file in the folder of `path`, with the same suffix. UserError if there can be none."""
    if path.is_dir():
        raise UserError(f"video {path}: this is a folder; name a file in it, such as {path / ('episode' + suffix)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=suffix, prefix=f".{path.stem[:40]}-", dir=path.parent)
        os.chmod(handle, 0o666 & ~_umask())  # a private file's rights are not what a user expects of a video
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from error
    return Path(name)


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _unwritable(path: Path, error: OSError) -> UserError:
    reason = (error.strerror or str(error)).splitlines()[0]
    return UserError(
        f"video {path}: cannot be written ({reason}); choose a folder that you may write to, with room left"
    )


def _checked(path: Path, frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The frames, each looked at. ValueError for one that is no picture or of another size than the first."""
    shape = None
    for i, frame in enumerate(frames):
        shape = shape or frame.shape
        if frame.ndim != 3 or frame.shape[2] != 3 or str(frame.dtype) != "uint8" or not frame.size:
            raise ValueError(f"frame {i} is {frame.dtype} {list(frame.shape)}; expected uint8 [H, W, 3]")
        if frame.shape != shape:
            raise ValueError(f"frame {i} is {list(frame.shape)}, the first is {list(shape)}; all must have one size")
        yield frame
    if shape is None:
        raise UserError(f"video {path}: there are no frames to write; an episode of one step or more is needed")


def _write_mp4(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    import imageio_ffmpeg
    import numpy as np

    first = next(frames)
    height, width = first.shape[:2]
    # Chroma of yuv420p, the one format that every player knows, is kept for squares of 2 x 2 pixels.
    padding = ((0, height % 2), (0, width % 2), (0, 0))
    size = f"{width + width % 2}x{height + height % 2}"
    command = [
        *(imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error"),
        *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"),
        *("-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-preset", "fast", "-movflags", "+faststart"),
        f"file:{path}",
    ]
    # Not through imageio_ffmpeg's writer, which does not tell when the encoder failed at the end (a full disk).
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said) as encoder:
        assert encoder.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it went, and has said why
                for frame in chain([first], frames):
                    even = np.pad(frame, padding, mode="edge") if height % 2 or width % 2 else frame
                    encoder.stdin.write(np.ascontiguousarray(even).data)
                encoder.stdin.close()
        except BaseException:
            encoder.kill()
            raise
        if encoder.wait() != 0:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise OSError(f"the encoder said: {lines[-1] if lines else f'nothing, exit code {encoder.returncode}'}")


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    import numpy as np
    from PIL import Image

    first = next(frames)
    # All frames are needed before the first is written, for the palette; drawings pack to a hundredth.
    packed = [zlib.compress(np.ascontiguousarray(frame).data, 1) for frame in chain([first], frames)]

    def picture(i: int) -> Image.Image:
        return Image.fromarray(np.frombuffer(zlib.decompress(packed[i]), np.uint8).reshape(first.shape))

    # One palette for all frames: with one each, colours flicker.
    sampled = range(0, len(packed), max(1, len(packed) // _PALETTE_FRAMES))
    palette = Image.fromarray(np.concatenate([np.asarray(picture(i)) for i in sampled])).quantize(_GIF_COLORS)
    indexed = (picture(i).quantize(palette=palette, dither=Image.Dither.NONE) for i in range(len(packed)))
    # Browsers take less than 20 ms for 100.
    duration = max(20, round(1000 / fps))
    next(indexed).save(path, save_all=True, append_images=indexed, duration=duration, loop=0, optimize=False)


def _write_png(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    from PIL import Image

    Image.fromarray(next(frames)).save(path)
