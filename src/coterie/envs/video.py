"""Writes videos (MP4, GIF) and still images (PNG) atomically: a failure leaves no partial file."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import UserError
from coterie.core.installation import install_extra

if TYPE_CHECKING:
    import numpy as np

_GIF_COLORS = 256
_PALETTE_FRAMES = 8  # frames from which the palette of a GIF is computed


def write_video(path: str | Path, frames: Iterable[np.ndarray], fps: int = 10) -> Path:
    """Writes frames to a video file.

    Frames of an MP4 are encoded as they come, so its length is not bounded by memory. The file is written to a
    temporary name and renamed at the end: if anything fails, `frames` included, an older file stays unchanged.

    Args:
        path: The file. Its suffix determines the format: `.mp4` (H.264, extra `video`), `.gif` (looping, at most 50
            frames per second) or `.png` (the first frame). Missing folders are created.
        frames: RGB images uint8 [H, W, 3] of equal size.
        fps: Frames per second, 1 to 240.

    Returns:
        The path.

    Raises:
        UserError: For another suffix, an invalid `fps`, no frames, a path that cannot be written, or an MP4 without the
            extra `video`.
        ValueError: For a frame of another type or size.
    """
    path = Path(path)
    writers = {".mp4": _write_mp4, ".gif": _write_gif, ".png": _write_png}
    suffix = path.suffix.lower()
    if suffix not in writers:
        raise UserError(f"video {path}: unknown suffix '{path.suffix}'. Use one of {', '.join(writers)}.")
    if not 1 <= fps <= 240:
        raise UserError(f"video {path}: fps={fps} is outside of 1 to 240. Choose a value in this range.")
    temporary = _temporary_file(path, suffix)
    try:
        writers[suffix](temporary, _checked(path, frames), fps)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _temporary_file(path: Path, suffix: str) -> Path:
    """Creates an empty file in the folder of `path` with the same suffix. UserError if that fails."""
    if path.is_dir():
        raise UserError(f"video {path}: this is a folder. Name a file in it, such as {path / ('episode' + suffix)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=suffix, prefix=f".{path.stem[:40]}-", dir=path.parent)
        os.chmod(handle, 0o666 & ~_umask())  # mkstemp makes it readable by the owner only
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
        f"video {path}: cannot be written ({reason}). Choose a folder that you may write to, with free space."
    )


def _checked(path: Path, frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the frames. ValueError for one that is not an RGB image or has another size than the first."""
    shape = None
    for i, frame in enumerate(frames):
        shape = shape or frame.shape
        if frame.ndim != 3 or frame.shape[2] != 3 or str(frame.dtype) != "uint8" or not frame.size:
            raise ValueError(f"frame {i} is {frame.dtype} {list(frame.shape)}; expected uint8 [H, W, 3]")
        if frame.shape != shape:
            raise ValueError(
                f"frame {i} is {list(frame.shape)}, the first is {list(shape)}; all must have the same size"
            )
        yield frame
    if shape is None:
        raise UserError(f"video {path}: there are no frames to write. Record an episode of at least one step.")


def _write_mp4(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    try:
        import imageio_ffmpeg  # noqa: F401
        from imageio import v2 as imageio
    except ImportError as error:
        raise UserError(
            f"video: MP4 needs imageio-ffmpeg, which is not installed ({error}). Install it: {install_extra('video')}. "
            "Or write a .gif."
        ) from error
    import numpy as np

    first = next(frames)
    height, width = first.shape[:2]
    # yuv420p, the only format that every player supports, stores chroma for blocks of 2 x 2 pixels.
    padding = ((0, height % 2), (0, width % 2), (0, 0))
    writer = imageio.get_writer(
        path,
        format="FFMPEG",  # type: ignore[arg-type]
        fps=fps,
        codec="libx264",
        quality=None,
        pixelformat="yuv420p",
        macro_block_size=1,
        ffmpeg_log_level="error",
        output_params=["-crf", "20", "-preset", "fast", "-movflags", "+faststart"],
    )
    with contextlib.closing(writer):  # also after an error, unlike the writer's own context
        for frame in chain([first], frames):
            writer.append_data(np.pad(frame, padding, mode="edge"))
    # The writer does not report an encoder that fails at the end. The index, before the frames, is written last.
    with open(path, "rb") as file:
        if b"moov" not in file.read(64):
            raise OSError("the encoder failed, its reason is above")


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    import numpy as np
    from PIL import Image

    first = next(frames)
    # The palette needs all frames before the first is written. Compressed, drawings take about 1% of the memory.
    packed = [zlib.compress(np.ascontiguousarray(frame).data, 1) for frame in chain([first], frames)]

    def image(i: int) -> Image.Image:
        return Image.fromarray(np.frombuffer(zlib.decompress(packed[i]), np.uint8).reshape(first.shape))

    # A palette per frame would make colors flicker.
    sampled = range(0, len(packed), max(1, len(packed) // _PALETTE_FRAMES))
    palette = Image.fromarray(np.concatenate([np.asarray(image(i)) for i in sampled])).quantize(_GIF_COLORS)
    indexed = (image(i).quantize(palette=palette, dither=Image.Dither.NONE) for i in range(len(packed)))
    # Browsers show frames of less than 20 ms for 100 ms.
    duration = max(20, round(1000 / fps))
    next(indexed).save(path, save_all=True, append_images=indexed, duration=duration, loop=0, optimize=False)


def _write_png(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    from PIL import Image

    Image.fromarray(next(frames)).save(path)
