"""Window that shows a sequence of images."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from coterie.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np


def show(frames: Iterable[np.ndarray], title: str, fps: int = 10) -> None:
    """Shows images until the window is closed, also with Escape or q. The last image stays.

    Args:
        frames: Images, uint8 [H, W, 3].
        title: Title of the window.
        fps: Images per second.

    Raises:
        UserError: If no window can be opened.
    """
    try:
        import tkinter

        window = tkinter.Tk()
    except (ImportError, RuntimeError) as error:  # Python without Tk
        raise _no_window(error) from error
    except Exception as error:
        if type(error).__name__ != "TclError":
            raise
        raise _no_window(error) from error
    from PIL import Image, ImageTk

    window.title(title)
    window.resizable(False, False)
    for key in ("<Escape>", "q"):
        window.bind(key, lambda _: window.destroy())
    label = tkinter.Label(window, borderwidth=0)
    label.pack()
    remaining = iter(frames)
    images: list[ImageTk.PhotoImage] = []

    def draw_next() -> None:
        started = time.perf_counter()
        frame = next(remaining, None)
        if frame is None:
            return
        image = ImageTk.PhotoImage(Image.fromarray(frame), master=window)
        label.configure(image=image)
        images[:] = [image]  # Tk holds no reference to the image that it shows
        elapsed = time.perf_counter() - started
        window.after(max(1, round(1000 * (1 / fps - elapsed))), draw_next)

    window.after(0, draw_next)
    window.mainloop()


def _no_window(error: Exception) -> UserError:
    return UserError(f"cannot open a window ({error}). Record the episode instead: --video FILE, e.g. --video out.mp4")
