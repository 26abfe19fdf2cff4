"""All wrappers that a configuration asks for, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.wrappers.actions import Repeat, Sticky
from coterie.envs.wrappers.config import WrappersConfig
from coterie.envs.wrappers.rewards import Rewards
from coterie.envs.wrappers.views import Pictures, Stack, is_picture, redrawn_space, seen_as, stacked_space
from coterie.errors import UserError

Make = Callable[[], Instance]


def wrapped(layout: Layout, make: Make, wrappers: WrappersConfig) -> tuple[Layout, Make]:
    """What the wrapped environment is made of, and what makes a copy of it. UserError for wrappers that do not fit it.

    The order, from the environment outwards, is that of the configuration's fields.
    """
    _check(layout, wrappers)
    if wrappers.sticky_actions:
        make = _around(make, lambda inner: Sticky(inner, wrappers.sticky_actions))
    if wrappers.action_repeat > 1:
        make = _around(make, lambda inner: Repeat(inner, wrappers.action_repeat))
        layout = _shortened(layout, wrappers.action_repeat)
    if wrappers.grey or wrappers.resize is not None:
        before = layout
        make = _around(make, lambda inner: Pictures(inner, before, wrappers.grey, wrappers.resize))
        layout = seen_as(layout, lambda space: redrawn_space(space, wrappers.grey, wrappers.resize))
    if wrappers.frame_stack > 1:
        single = layout
        make = _around(make, lambda inner: Stack(inner, single, wrappers.frame_stack))
        layout = seen_as(layout, lambda space: stacked_space(space, wrappers.frame_stack))
    if wrappers.reward_scale != 1 or wrappers.reward_clip is not None:
        make = _around(make, lambda inner: Rewards(inner, wrappers.reward_scale, wrappers.reward_clip))
    return layout, make


def _around(make: Make, wrap: Callable[[Instance], Instance]) -> Make:
    return lambda: wrap(make())


def _shortened(layout: Layout, times: int) -> Layout:
    """The layout whose episodes take so many times fewer steps; only at most so where agents end early, which ends a
    repetition.
    """
    spec = layout.spec
    if spec.episode_limit is None or spec.mortal:
        return layout
    return replace(layout, spec=replace(spec, episode_limit=-(-spec.episode_limit // times)))


def _check(layout: Layout, wrappers: WrappersConfig) -> None:
    """UserError for wrappers that do not fit the environment."""
    name, pictures = layout.spec.name, []
    for observer in layout.observers.values():
        pictures += [sensor.space.shape for sensor in observer.sensors if is_picture(sensor.space)]
    if wrappers.resize is not None and not pictures:
        raise UserError(f"env.wrappers.resize: '{name}' shows no pictures to resize: leave the key out")
    if wrappers.grey and not pictures:
        raise UserError(f"env.wrappers.grey=true: '{name}' shows no pictures to make grey: leave the key out")
    if wrappers.grey and all(shape[-1] != 3 for shape in pictures):
        shown = " and ".join(str(list(shape)) for shape in dict.fromkeys(pictures))
        raise UserError(f"env.wrappers.grey=true: the pictures of '{name}' are {shown}, not of three colours")
    if not layout.masked:
        return
    for key, used in (("sticky_actions", wrappers.sticky_actions > 0), ("action_repeat", wrappers.action_repeat > 1)):
        if used:
            raise UserError(
                f"env.wrappers.{key}={getattr(wrappers, key)}: '{name}' shows which actions can be chosen, and the one "
                "before may not be among them: leave the key out"
            )
