"""Applies the wrappers that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coterie.config.wrappers import WrappersConfig
from coterie.core.errors import UserError
from coterie.core.specs import may_be_channels_first
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.wrappers.action_wrappers import ActionRepeat, StickyActions
from coterie.envs.external.wrappers.observation_wrappers import (
    ChannelsLast,
    FrameStack,
    ImageTransform,
    channels_last_space,
    is_image,
    stacked_space,
    transformed_space,
    with_sensor_spaces,
)
from coterie.envs.external.wrappers.reward_wrappers import RewardTransform

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
        layout = with_sensor_spaces(layout, channels_last_space)
    _check_images(layout, wrappers)
    if wrappers.grayscale or wrappers.resize is not None:
        original = layout
        make = _wrap(make, lambda inner: ImageTransform(inner, original, wrappers.grayscale, wrappers.resize))
        layout = with_sensor_spaces(layout, lambda space: transformed_space(space, wrappers.grayscale, wrappers.resize))
    if wrappers.frame_stack > 1:
        single = layout
        make = _wrap(make, lambda inner: FrameStack(inner, single, wrappers.frame_stack))
        layout = with_sensor_spaces(layout, lambda space: stacked_space(space, wrappers.frame_stack))
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
