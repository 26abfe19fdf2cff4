"""Images with channels last, grayscale and resized images, and frame stacking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
from gymnasium import spaces
from PIL import Image

from coterie.core.specs import may_be_channels_first
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout
from coterie.envs.external.hosting.numpy_state import as_tensor, from_tensor
from coterie.envs.external.spaces import Observer
from coterie.envs.external.wrappers.wrapper import Wrapper

Size = tuple[int, ...]
"""Height and width in pixels."""


def is_image(space: spaces.Box) -> bool:
    """True if a sensor provides images, uint8 [H, W, C]."""
    return space.dtype == np.uint8 and len(space.shape) == 3


def with_sensor_spaces(layout: Layout, change: Callable[[spaces.Box], spaces.Box]) -> Layout:
    """Returns the layout with every sensor's space replaced by `change(space)`."""
    observers = {}
    for role, observer in layout.observers.items():
        parts: dict[str, spaces.Space] = {sensor.name: change(sensor.space) for sensor in observer.sensors}
        observers[role] = Observer(parts[""] if "" in parts else spaces.Dict(parts))
    roles = tuple(replace(role, observation_space=observers[role.name].space) for role in layout.spec.roles)
    return replace(layout, spec=replace(layout.spec, roles=roles), observers=observers)


# ------------------------------------------------------------------------------------------------------------- images


@final
class ChannelsLast(Wrapper):
    """Moves the first axis of images to the end if it is the shortest one.

    Args:
        inner: The wrapped instance.
        layout: Its layout.
    """

    def __init__(self, inner: Instance, layout: Layout):
        super().__init__(inner)
        self._layout = layout

    def attach(self, buffers: EnvBuffers) -> None:
        obs = {role: dict(arrays) for role, arrays in buffers.obs.items()}
        for role, observer in self._layout.observers.items():
            for sensor in observer.sensors:
                if may_be_channels_first(sensor.space):  # the instance writes to a view of the same memory
                    obs[role][sensor.name] = np.moveaxis(obs[role][sensor.name], -1, -3)
        self.inner.attach(replace(buffers, obs=obs))

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def channels_last_space(space: spaces.Box) -> spaces.Box:
    """Returns the space of a sensor whose images have their channels last; other sensors are unchanged."""
    if not may_be_channels_first(space):
        return space
    low, high = (np.moveaxis(bound, 0, -1) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.uint8)


def transform_image(image: np.ndarray, grayscale: bool, size: Size | None) -> np.ndarray:
    """Converts an image to grayscale and resizes it.

    Gray is 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601). A pixel of the new size is the mean of the pixels whose
    centers it covers, or the nearest pixel. Both are rounded.

    Args:
        image: uint8 [H, W, C].
        grayscale: True to convert images of three channels.
        size: New height and width; None to keep them.

    Returns:
        uint8 [H', W', C'].
    """
    if grayscale and image.shape[-1] == 3:
        image = np.asarray(Image.fromarray(image).convert("L"))[..., None]
    if size is None or image.shape[:2] == size:
        return image
    if image.shape[-1] == 3:
        return _resize(image, size)
    return np.stack([_resize(channel, size) for channel in np.moveaxis(image, -1, 0)], -1)


def _resize(array: np.ndarray, size: Size) -> np.ndarray:
    image = Image.fromarray(np.ascontiguousarray(array))
    (height, new_height), (width, new_width) = zip(array.shape, size, strict=False)
    if height % new_height == 0 and width % new_width == 0:
        return np.asarray(image.reduce((width // new_width, height // new_height)))  # rounds once, not per direction
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BOX))


def transformed_space(space: spaces.Box, grayscale: bool, size: Size | None) -> spaces.Box:
    """Returns the space of a sensor after `transform_image`; sensors without images are unchanged."""
    if not is_image(space):
        return space
    height, width, channels = space.shape
    height, width = (height, width) if size is None else size
    shape = height, width, 1 if grayscale and channels == 3 else channels
    return space if shape == space.shape else spaces.Box(0, 255, shape, np.uint8)


@final
class ImageTransform(Wrapper):
    """Applies `transform_image` to all images.

    Args:
        inner: The wrapped instance.
        layout: Its layout.
        grayscale, size: As in `transform_image`.
    """

    def __init__(self, inner: Instance, layout: Layout, grayscale: bool, size: Size | None):
        super().__init__(inner)
        self._layout, self._grayscale, self._size = layout, grayscale, size

    def attach(self, buffers: EnvBuffers) -> None:
        obs = {role: dict(arrays) for role, arrays in buffers.obs.items()}
        self._images: list[tuple[np.ndarray, np.ndarray]] = []  # original and transformed
        for role, observer in self._layout.observers.items():
            for sensor in observer.sensors:
                if transformed_space(sensor.space, self._grayscale, self._size) != sensor.space:
                    transformed = buffers.obs[role][sensor.name]
                    obs[role][sensor.name] = np.zeros((len(transformed), *sensor.space.shape), np.uint8)
                    self._images.append((obs[role][sensor.name], transformed))
        self.inner.attach(replace(buffers, obs=obs))

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)
        self._transform()

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        self._transform()

    def _transform(self) -> None:
        for originals, transformed in self._images:
            for image, out in zip(originals, transformed, strict=True):
                out[...] = transform_image(image, self._grayscale, self._size)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])


# ------------------------------------------------------------------------------------------------------ frame stacking


def stacked_space(space: spaces.Box, frames: int) -> spaces.Box:
    """Returns the space of a sensor whose latest frames are concatenated along the last axis."""
    low, high = (np.concatenate([bound] * frames, -1) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.dtype(space.dtype).type)


@final
class FrameStack(Wrapper):
    """Concatenates the latest observations along the last axis, oldest first.

    The first observation of an agent is repeated for the missing ones before it. The stack of an agent that is
    truncated on its own ends with its last observation.

    Args:
        inner: The wrapped instance.
        layout: Its layout.
        frames: Number of observations.
    """

    def __init__(self, inner: Instance, layout: Layout, frames: int):
        super().__init__(inner)
        self._layout, self._frames = layout, frames

    def attach(self, buffers: EnvBuffers) -> None:
        self._alive, self._truncated, self._buffers = buffers.alive, buffers.truncated, buffers
        self._was_alive = np.zeros_like(buffers.alive)
        slices = self._layout.spec.role_slices()
        obs: dict[str, dict[str, np.ndarray]] = {}
        self._stacks: list[tuple[np.ndarray, np.ndarray, np.ndarray, slice]] = []  # frame, stack, output, agents
        for role, observer in self._layout.observers.items():
            obs[role] = {}
            for sensor in observer.sensors:
                out = buffers.obs[role][sensor.name]
                frame = obs[role][sensor.name] = np.zeros((len(out), *sensor.space.shape), out.dtype)
                self._stacks.append((frame, np.zeros_like(out), out, slices[role]))
        self.inner.attach(replace(buffers, obs=obs))

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)
        self._was_alive[...] = False
        self._update()

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        self._update()

    def _update(self) -> None:
        starts = ~(self._was_alive & (self._alive | self._truncated))
        if not self._buffers.episode_end.any():  # the next life of a slot may begin in the step that ends its last
            starts |= self._buffers.terminated & self._alive
        for frame, stack, out, agents in self._stacks:
            width = frame.shape[-1]
            stack[..., :-width] = stack[..., width:]
            stack[..., -width:] = frame
            if starts.any():
                first = starts[agents]
                stack[first] = np.concatenate([frame[first]] * self._frames, -1)
            out[...] = stack
        self._was_alive[...] = self._alive

    def state_dict(self) -> dict[str, Any]:
        stacks = [as_tensor(stack) for _, stack, _, _ in self._stacks]
        return {"inner": self.inner.state_dict(), "stacks": stacks, "was_alive": as_tensor(self._was_alive)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        for (_, stack, _, _), saved in zip(self._stacks, state["stacks"], strict=True):
            stack[...] = from_tensor(saved)
        self._was_alive[...] = from_tensor(state["was_alive"])
