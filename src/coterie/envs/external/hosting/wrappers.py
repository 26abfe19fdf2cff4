"""The wrappers that a configuration asks for.

They are sticky and repeated actions, images with channels last, grayscale and resized images, frame stacking, and
scaled and clipped rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
from gymnasium import spaces
from PIL import Image

from coterie.config.wrappers import WrappersConfig
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.specs import ObservationParts, may_be_channels_first
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout, Wrapper
from coterie.envs.external.hosting.numpy_state import as_tensor, from_tensor, rng_state, set_rng_state
from coterie.envs.external.spaces import Observer

InstanceFactory = Callable[[], Instance]


def apply_wrappers(layout: Layout, make: InstanceFactory, wrappers: WrappersConfig) -> tuple[Layout, InstanceFactory]:
    """Wraps an environment, from the inside outwards in the order of the configuration's fields.

    Args:
        layout: Layout of the environment.
        make: Makes an instance of it.
        wrappers: The wrappers.

    Returns:
        Layout of the wrapped environment, and a function that makes an instance of it.

    Raises:
        UserError: For wrappers that do not fit the environment.
    """
    _check(layout, wrappers)
    if wrappers.sticky_actions:
        make = _wrap(make, lambda inner: StickyActions(inner, wrappers.sticky_actions))
    if wrappers.action_repeat > 1:
        make = _wrap(make, lambda inner: ActionRepeat(inner, wrappers.action_repeat))
        layout = _with_repeated_actions(layout, wrappers.action_repeat)
    if wrappers.channels_last:
        first = layout
        make = _wrap(make, lambda inner: ChannelsLast(inner, first))
        layout = with_sensor_spaces(layout, channels_last_space, channels_first=True)
    _check_images(layout, wrappers)
    if wrappers.grayscale or wrappers.resize is not None:
        original = layout
        make = _wrap(make, lambda inner: ImageTransform(inner, original, wrappers.grayscale, wrappers.resize))
        layout = with_sensor_spaces(
            layout,
            lambda space: transformed_space(space, wrappers.grayscale, wrappers.resize),
            grayscale=wrappers.grayscale,
            resize=wrappers.resize,
        )
    if wrappers.frame_stack > 1:
        single = layout
        make = _wrap(make, lambda inner: FrameStack(inner, single, wrappers.frame_stack))
        layout = with_sensor_spaces(
            layout, lambda space: stacked_space(space, wrappers.frame_stack), frame_stack=wrappers.frame_stack
        )
    if wrappers.reward_scale != 1 or wrappers.reward_clip is not None:
        make = _wrap(make, lambda inner: RewardTransform(inner, wrappers.reward_scale, wrappers.reward_clip))
    return layout, make


def _wrap(make: InstanceFactory, wrap: Callable[[Instance], Instance]) -> InstanceFactory:
    return lambda: wrap(make())


def _with_repeated_actions(layout: Layout, repeats: int) -> Layout:
    """Divides the episode limit by the repeats, unless agents can end early, which ends repetitions early."""
    spec = layout.spec
    if spec.episode_limit is None or spec.agents_can_die:
        return layout
    return replace(layout, spec=replace(spec, episode_limit=-(-spec.episode_limit // repeats)))


def _check(layout: Layout, wrappers: WrappersConfig) -> None:
    """UserError for wrappers that do not fit the environment."""
    name = layout.spec.name
    sensors = [sensor.space for observer in layout.observers.values() for sensor in observer.sensors]
    if wrappers.channels_last and not any(may_be_channels_first(space) for space in sensors):
        raise UserError(
            f"env.wrappers.channels_last=true: '{name}' has no images [channels, height, width]. Leave the setting out."
        )
    if not layout.masked:
        return
    for key, used in (("sticky_actions", wrappers.sticky_actions > 0), ("action_repeat", wrappers.action_repeat > 1)):
        if used:
            raise UserError(
                f"env.wrappers.{key}={getattr(wrappers, key)}: '{name}' has action masks, which may not allow the "
                "previous action. Leave the setting out."
            )


def _check_images(layout: Layout, wrappers: WrappersConfig) -> None:
    """UserError for wrappers of images that do not fit their shapes."""
    name, shapes = layout.spec.name, []
    for observer in layout.observers.values():
        shapes += [sensor.space.shape for sensor in observer.sensors if is_image(sensor.space)]
    if wrappers.resize is not None and not shapes:
        raise UserError(f"env.wrappers.resize: '{name}' has no image observations. Leave the setting out.")
    if wrappers.grayscale and not shapes:
        raise UserError(f"env.wrappers.grayscale=true: '{name}' has no image observations. Leave the setting out.")
    if wrappers.grayscale and all(shape[-1] != 3 for shape in shapes):
        found = " and ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise UserError(f"env.wrappers.grayscale=true: images of '{name}' are {found} and do not have three channels")


@final
class StickyActions(Wrapper):
    """Repeats each agent's previous action with some probability, independently per agent and step.

    Draws come from a generator of its own, seeded with the seed of the episode. The first action of an agent is never
    replaced. Source: Machado et al. 2018, Revisiting the Arcade Learning Environment.

    Args:
        inner: The wrapped instance.
        probability: Probability of repeating the previous action.
    """

    def __init__(self, inner: Instance, probability: float):
        super().__init__(inner)
        self._probability = probability
        self._generator = np.random.Generator(np.random.PCG64(0))
        self._previous: list[Any] = []  # actions of the previous step, empty at the start of an episode
        self._was_alive = np.zeros(0, np.bool_)

    def attach(self, buffers: EnvBuffers) -> None:
        self._alive, self._terminated = buffers.alive, buffers.terminated
        self.inner.attach(buffers)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed_of(seed, "sticky actions")))
        self._previous = []
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        uniform = self._generator.random(len(actions))
        if self._previous:
            repeat = ((uniform < self._probability) & self._was_alive).tolist()
            actions = [old if again else new for again, old, new in zip(repeat, self._previous, actions, strict=True)]
        self._previous, self._was_alive = actions, self._alive.copy()
        self.inner.step(actions)
        self._was_alive &= ~self._terminated  # the next life of a slot may begin in the step that ends its last

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "generator": rng_state(self._generator),
            "previous": [as_tensor(action) for action in self._previous],
            "was_alive": as_tensor(self._was_alive),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        set_rng_state(self._generator, state["generator"])
        self._previous = [from_tensor(action) for action in state["previous"]]
        self._was_alive = from_tensor(state["was_alive"])


@final
class ActionRepeat(Wrapper):
    """Takes several steps of the environment per step, with the same actions, and sums their rewards.

    It stops early when an agent or the episode ends or an agent appears, so that the episode's final timestep is not
    skipped and every agent takes only actions that it has chosen. Metrics are those of the last step.

    Args:
        inner: The wrapped instance.
        repeats: Steps of the environment per step.
    """

    def __init__(self, inner: Instance, repeats: int):
        super().__init__(inner)
        self._repeats = repeats

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        self._reward, self._group_reward = np.zeros_like(buffers.reward), np.zeros_like(buffers.group_reward)
        self._alive = buffers.alive.copy()
        self.inner.attach(buffers)

    def step(self, actions: list[Any]) -> None:
        buffers = self._buffers
        self._reward[...] = 0
        self._group_reward[...] = 0
        self._alive[...] = buffers.alive
        for _ in range(self._repeats):
            buffers.reward[...] = 0
            buffers.group_reward[...] = 0
            buffers.metrics[...] = 0
            self.inner.step(actions)
            self._reward += buffers.reward
            self._group_reward += buffers.group_reward
            ended = buffers.episode_end.any() or buffers.terminated.any() or buffers.truncated.any()
            if ended or not np.array_equal(self._alive, buffers.alive):
                break
        buffers.reward[...] = self._reward
        buffers.group_reward[...] = self._group_reward


Size = tuple[int, ...]
"""Height and width in pixels."""


def is_image(space: spaces.Box) -> bool:
    """True if a sensor provides images, uint8 [H, W, C]."""
    return space.dtype == np.uint8 and len(space.shape) == 3


def with_sensor_spaces(layout: Layout, change: Callable[[spaces.Box], spaces.Box], **native_change: Any) -> Layout:
    """Returns the layout with every sensor's space replaced by `change(space)`.

    Args:
        layout: The layout.
        change: Returns the same space for a sensor that is not changed.
        native_change: Fields of `NativeSensor` that tell players of the change.
    """
    observers, native = {}, {role.name: role.native for role in layout.spec.roles}
    for role, observer in layout.observers.items():
        parts: dict[str, spaces.Space] = {sensor.name: change(sensor.space) for sensor in observer.sensors}
        observers[role] = Observer(parts[""] if "" in parts else spaces.Dict(parts))
        unchanged = {sensor.name for sensor in observer.sensors if parts[sensor.name] == sensor.space}
        native[role] = tuple(
            sensor if sensor.name in unchanged else replace(sensor, **native_change)
            for sensor in native[role] or observer.native
        )
    roles = tuple(
        replace(
            role,
            observation_space=observers[role.name].space,
            native=native[role.name],
            parts=role.parts if observers[role.name].space == role.observation_space else ObservationParts(),
        )
        for role in layout.spec.roles
    )
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
    by_width = image.resize((new_width, height), Image.Resampling.BOX)  # players resize in the same order
    return np.asarray(by_width.resize((new_width, new_height), Image.Resampling.BOX))


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
        return {**super().state_dict(), "stacks": stacks, "was_alive": as_tensor(self._was_alive)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for (_, stack, _, _), saved in zip(self._stacks, state["stacks"], strict=True):
            stack[...] = from_tensor(saved)
        self._was_alive[...] = from_tensor(state["was_alive"])


@final
class RewardTransform(Wrapper):
    """Replaces every individual and group reward r by `min(max(scale * r, -clip), clip)`.

    Args:
        inner: The wrapped instance.
        scale: Factor.
        clip: Largest absolute value after scaling; None for no limit.
    """

    def __init__(self, inner: Instance, scale: float, clip: float | None):
        super().__init__(inner)
        self._scale, self._clip = scale, math.inf if clip is None else clip

    def attach(self, buffers: EnvBuffers) -> None:
        self._rewards = (buffers.reward, buffers.group_reward)
        self.inner.attach(buffers)

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        for reward in self._rewards:
            reward *= self._scale
            np.minimum(np.maximum(reward, -self._clip, out=reward), self._clip, out=reward)
