"""A window that shows pictures one after the other; only where there is a display."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from coterie.errors import UserError

if TYPE_CHECKING:
    import numpy as np


def show(frames: Iterable[np.ndarray], title: str, fps: int = 10) -> None:
    """Shows frames, uint8 [H, W, 3], and returns when the window is closed (also by Escape or q).

    The last frame stays until then. UserError where no window can be opened.
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
    coming = iter(frames)
    pictures: list[ImageTk.PhotoImage] = []

    def draw_next() -> None:
        began = time.perf_counter()
        frame = next(coming, None)
        if frame is None:
            return
        picture = ImageTk.PhotoImage(Image.fromarray(frame), master=window)
        label.configure(image=picture)
        pictures[:] = [picture]  # Tk does not keep what it shows
        spent = time.perf_counter() - began
        window.after(max(1, round(1000 * (1 / fps - spent))), draw_next)

    window.after(0, draw_next)
    window.mainloop()


def _no_window(error: Exception) -> UserError:
    return UserError(
        f"no window can be opened here ({error}): record the episode with --video FILE, e.g. --video out.mp4"
    )
