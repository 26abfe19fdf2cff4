"""Observations of another form: smaller and grey pictures, several frames at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
from gymnasium import spaces
from PIL import Image

from coterie.envs.adapters.spaces import Observer
from coterie.envs.hosting.instance import Instance, Layout, Place
from coterie.envs.hosting.saved import as_tensor, from_tensor
from coterie.envs.wrappers.wrapper import Wrapper

Size = tuple[int, ...]
"""Height and width in pixels."""


def is_picture(space: spaces.Box) -> bool:
    """Whether a sensor shows pictures: uint8 [H, W, C]."""
    return space.dtype == np.uint8 and len(space.shape) == 3


def seen_as(layout: Layout, change: Callable[[spaces.Box], spaces.Box]) -> Layout:
    """The layout with every sensor's space changed."""
    observers = {}
    for role, observer in layout.observers.items():
        parts: dict[str, spaces.Space] = {sensor.name: change(sensor.space) for sensor in observer.sensors}
        observers[role] = Observer(parts[""] if "" in parts else spaces.Dict(parts))
    roles = tuple(replace(role, observation_space=observers[role.name].space) for role in layout.spec.roles)
    return replace(layout, spec=replace(layout.spec, roles=roles), observers=observers)


# ----------------------------------------------------------------------------------------------------------- pictures


def redrawn(picture: np.ndarray, grey: bool, size: Size | None) -> np.ndarray:
    """A picture uint8 [H, W, C], grey where it had three channels, with sides of `size`.

    Grey is 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601); a pixel of the new size is the mean of those whose
    middle it covers, or the nearest one. Both are rounded.
    """
    if grey and picture.shape[-1] == 3:
        picture = np.asarray(Image.fromarray(picture).convert("L"))[..., None]
    if size is None or picture.shape[:2] == size:
        return picture
    if picture.shape[-1] == 3:
        return _resized(picture, size)
    return np.stack([_resized(channel, size) for channel in np.moveaxis(picture, -1, 0)], -1)


def _resized(picture: np.ndarray, size: Size) -> np.ndarray:
    image = Image.fromarray(np.ascontiguousarray(picture))
    (high, low), (wide, narrow) = zip(picture.shape, size, strict=False)
    if high % low == 0 and wide % narrow == 0:
        return np.asarray(image.reduce((wide // narrow, high // low)))  # rounds once, not once a direction
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BOX))


def redrawn_space(space: spaces.Box, grey: bool, size: Size | None) -> spaces.Box:
    """What a sensor shows of which `redrawn` redraws the pictures; others are as they were."""
    if not is_picture(space):
        return space
    height, width, channels = space.shape
    height, width = (height, width) if size is None else size
    shape = height, width, 1 if grey and channels == 3 else channels
    return space if shape == space.shape else spaces.Box(0, 255, shape, np.uint8)


@final
class Pictures(Wrapper):
    """Shows pictures as `redrawn`. layout: of the inner copy."""

    def __init__(self, inner: Instance, layout: Layout, grey: bool, size: Size | None):
        super().__init__(inner)
        self._layout, self._grey, self._size = layout, grey, size

    def attach(self, place: Place) -> None:
        obs = {role: dict(arrays) for role, arrays in place.obs.items()}
        self._views: list[tuple[np.ndarray, np.ndarray]] = []
        for role, observer in self._layout.observers.items():
            for sensor in observer.sensors:
                if redrawn_space(sensor.space, self._grey, self._size) != sensor.space:
                    shown = place.obs[role][sensor.name]
                    obs[role][sensor.name] = np.zeros((len(shown), *sensor.space.shape), np.uint8)
                    self._views.append((obs[role][sensor.name], shown))
        self.inner.attach(replace(place, obs=obs))

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)
        self._show()

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        self._show()

    def _show(self) -> None:
        for pictures, shown in self._views:
            for picture, where in zip(pictures, shown, strict=True):
                where[...] = redrawn(picture, self._grey, self._size)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])


# ------------------------------------------------------------------------------------------------------------- frames


def stacked_space(space: spaces.Box, frames: int) -> spaces.Box:
    """What a sensor shows of which the latest frames stand side by side along the last axis."""
    low, high = (np.concatenate([bound] * frames, -1) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.dtype(space.dtype).type)


@final
class Stack(Wrapper):
    """Shows the latest observations side by side along the last axis, the oldest first. layout: of the inner copy.

    Where an agent's life begins, its first observation stands for those before it. Who was cut alone sees its last
    observation beside those before it.
    """

    def __init__(self, inner: Instance, layout: Layout, frames: int):
        super().__init__(inner)
        self._layout, self._frames = layout, frames

    def attach(self, place: Place) -> None:
        self._alive, self._truncated, self._was = place.alive, place.truncated, np.zeros_like(place.alive)
        slices = self._layout.spec.role_slices()
        obs: dict[str, dict[str, np.ndarray]] = {}
        self._views: list[tuple[np.ndarray, np.ndarray, np.ndarray, slice]] = []
        for role, observer in self._layout.observers.items():
            obs[role] = {}
            for sensor in observer.sensors:
                shown = place.obs[role][sensor.name]
                frame = obs[role][sensor.name] = np.zeros((len(shown), *sensor.space.shape), shown.dtype)
                self._views.append((frame, np.zeros_like(shown), shown, slices[role]))
        self.inner.attach(replace(place, obs=obs))

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)
        self._was[...] = False
        self._show()

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        self._show()

    def _show(self) -> None:
        begun = ~(self._was & (self._alive | self._truncated))
        for frame, frames, shown, agents in self._views:
            width = frame.shape[-1]
            frames[..., :-width] = frames[..., width:]
            frames[..., -width:] = frame
            if begun.any():
                fresh = begun[agents]
                frames[fresh] = np.concatenate([frame[fresh]] * self._frames, -1)
            shown[...] = frames
        self._was[...] = self._alive

    def state_dict(self) -> dict[str, Any]:
        frames = [as_tensor(view[1]) for view in self._views]
        return {"inner": self.inner.state_dict(), "frames": frames, "was": as_tensor(self._was)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        for view, frames in zip(self._views, state["frames"], strict=True):
            view[1][...] = from_tensor(frames)
        self._was[...] = from_tensor(state["was"])
