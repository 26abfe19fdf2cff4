"""Level-based foraging: a step of all environments as one call, and their initial states as another.

Both return the bits of PyTorch's operations, see `coterie.envs.worlds.foraging`.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.kernels import native

FIELDS = ("players", "levels", "food", "food_level", "spawned")
"""Entries of the state that the kernels read and write."""

MAX_SIDE = 64
"""Side length of the largest field that initial states are drawn for: the squares of a row are bits of one number."""


@dataclass(frozen=True)
class ForagingConstants:
    """Constants of a step.

    Attributes:
        side: Side length of the field in squares.
        players: Number P of agents.
        foods: Number F of food items.
        sight: View range in squares along each axis.
        with_levels: True if the levels of agents are part of observations.
        grid: True if observations are layers of the squares around the agent instead of lists.
        normalized: True if all food of an episode is worth 1 in total.
        moves: Change of row by each of the A actions, and of column.
        load: Index of the action that loads.
        penalty: Penalty for failing to load.
        masked: True for masks of actions.
        with_state: True for the state of the whole field.
    """

    side: int
    players: int
    foods: int
    sight: int
    with_levels: bool
    grid: bool
    normalized: bool
    moves: tuple[Sequence[int], Sequence[int]]
    load: int
    penalty: float
    masked: bool
    with_state: bool
    _cached: dict[int, tuple[array[int], array[float]]] = field(default_factory=dict)

    def arrays(self, envs: int) -> tuple[array[int], array[float]]:
        """Returns the numbers that the C function reads, integers and reals, for a number of environments."""
        if envs not in self._cached:
            sizes = (self.side, self.players, self.foods, self.sight, self.with_levels, self.grid, self.normalized)
            actions = (len(self.moves[0]), self.load, self.penalty > 0, *self.moves[0], *self.moves[1])
            self._cached[envs] = native.integers(envs, *sizes, *actions), native.reals(self.penalty)
        return self._cached[envs]

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of an agent's observation."""
        window = 2 * self.sight + 1
        return (window, window, 3) if self.grid else (3 * self.foods + (3 if self.with_levels else 2) * self.players,)


class StepInputs(NamedTuple):
    """Tensors that a step reads; None for none.

    Attributes:
        state: The entries `FIELDS` of the state.
        action: [B, P, 1] int64.
        size: Side length of the field in the next state [B] int64; None for the constant.
        sight: View range in the next state [B] int64; None for the constant.
        penalty: Penalty for failing to load [B] float32; None for the constant.
        resetting: True where a new episode starts [B] bool.
        initial: The entries `FIELDS` of the new episodes' states.
    """

    state: Mapping[str, Tensor]
    action: Tensor
    size: Tensor | None = None
    sight: Tensor | None = None
    penalty: Tensor | None = None
    resetting: Tensor | None = None
    initial: Mapping[str, Tensor] | None = None


class StepOutputs(NamedTuple):
    """Results of a step; None for what was not asked for.

    Attributes:
        state: The entries `FIELDS` of the next state.
        reward: [B, P], zero where an episode starts.
        obs: [B, P, ..].
        whole_field: Row, column and level of all food and of all agents [B, 3 F + 3 P].
        metrics: Fraction of the levels of food that was collected, and 1 if all was, [2, B].
        done: True where all food was collected [B].
        mask: True for actions with an effect, and for the first action [B, P, A].
    """

    state: dict[str, Tensor]
    reward: Tensor
    obs: Tensor
    whole_field: Tensor | None
    metrics: Tensor
    done: Tensor
    mask: Tensor | None


def foraging_step(constants: ForagingConstants, inputs: StepInputs) -> StepOutputs:
    """Advances all environments by one step, starts episodes, and observes.

    Raises:
        IndexError: If an action is not one of the choices, or something is outside the field.
        TypeError: If a tensor has another type or device.
        ValueError: If a tensor has another shape.
    """
    envs, players, foods = len(inputs.action), constants.players, constants.foods
    entries = _entries(envs, players, foods)
    state = _arranged("foraging_step", inputs.state, entries)
    initial = [None] * len(FIELDS) if inputs.initial is None else _arranged("foraging_step", inputs.initial, entries)
    given = _checked(
        "foraging_step",
        ("action", inputs.action, torch.int64, (envs, players, 1)),
        ("size", inputs.size, torch.int64, (envs,)),
        ("sight", inputs.sight, torch.int64, (envs,)),
        ("penalty", inputs.penalty, torch.float32, (envs,)),
        ("resetting", inputs.resetting, torch.bool, (envs,)),
    )
    after, columns = [entry.empty() for entry in entries], 3 * (foods + players)
    out = StepOutputs(
        state=dict(zip(FIELDS, after, strict=True)),
        reward=torch.empty(envs, players, dtype=torch.float32),
        obs=torch.empty(envs, players, *constants.obs_shape, dtype=torch.float32),
        whole_field=torch.empty(envs, columns, dtype=torch.float32) if constants.with_state else None,
        metrics=torch.empty(2, envs, dtype=torch.float32),
        done=torch.empty(envs, dtype=torch.bool),
        mask=torch.empty(envs, players, len(constants.moves[0]), dtype=torch.bool) if constants.masked else None,
    )
    invalid = native.integers(0)
    addresses = native.addresses(*state, *given, *initial, *after, *out[1:], invalid.buffer_info()[0])
    native.call("foraging_step", torch.float32, *constants.arrays(envs), addresses)
    if invalid[0]:
        raise IndexError("an action is not one of the choices, or something is outside the field")
    return out


@dataclass(frozen=True)
class Rules:
    """Numbers that determine initial states; each is one number, or one per environment [B] int64.

    Attributes:
        size: Side length of the field in squares.
        foods: Number of food items, at most as many as the state has room for.
        min_player_level: Lowest level of agents.
        max_player_level: Highest level of agents.
        min_food_level: Lowest level of food.
        max_food_level: Highest level of food; None for the sum of the three lowest agents' levels.
        coop: True if all food has the highest level; [B] bool if it varies.
        exclusive: True if the highest level of food is drawn only with `coop`, as in version 2.
    """

    size: int | Tensor
    foods: int | Tensor
    min_player_level: int
    max_player_level: int | Tensor
    min_food_level: int
    max_food_level: int | None
    coop: bool | Tensor
    exclusive: bool


def foraging_spawn(
    noise: Tensor, rules: Rules, side: int, players: int, foods: int, *, reach: tuple[int, int]
) -> dict[str, Tensor]:
    """Returns initial states, see `coterie.envs.worlds.foraging.spawn`.

    Args:
        noise: Uniform numbers in [0, 1), [B, 2 P + 2 F] float32.
        rules: Rules of the states.
        side: Side length of the largest field, at most 64.
        players: Number P of agents.
        foods: Number F of food items for which the state has room.
        reach: Distance that food keeps from other food.

    Returns:
        The entries `FIELDS`.

    Raises:
        IndexError: If a field is larger than `side`, or has no square for food or not enough for the agents.
        TypeError: If a tensor has another type or device.
        ValueError: If a tensor has another shape, or `side` is above 64.
    """
    if side > MAX_SIDE:
        raise ValueError(f"foraging_spawn: side={side}, expected at most {MAX_SIDE}.")
    envs = len(noise)
    varying = (rules.size, rules.foods, rules.max_player_level, rules.coop)
    tensors = [x if isinstance(x, Tensor) else None for x in varying]
    size, present, max_player_level, coop = (0 if isinstance(x, Tensor) else int(x) for x in varying)
    given = _checked(
        "foraging_spawn",
        ("noise", noise, torch.float32, (envs, 2 * (players + foods))),
        ("size", tensors[0], torch.int64, (envs,)),
        ("foods", tensors[1], torch.int64, (envs,)),
        ("max_player_level", tensors[2], torch.int64, (envs,)),
        ("coop", tensors[3], torch.bool, (envs,)),
    )
    levels = (rules.min_player_level, max_player_level, rules.min_food_level, rules.max_food_level or 0)
    numbers = native.integers(envs, side, players, foods, size, present, *levels, coop, rules.exclusive, *reach)
    state, invalid = [entry.empty() for entry in _entries(envs, players, foods)], native.integers(0)
    addresses = native.addresses(*given, *state, invalid.buffer_info()[0])
    native.call("foraging_spawn", torch.float32, numbers, addresses)
    if invalid[0]:
        raise IndexError(f"the side length of a field is not within 3 and {side}, or too small for {players} agents")
    return dict(zip(FIELDS, state, strict=True))


def _checked(operator: str, *arguments: native.Expected) -> list[Tensor | None]:
    """Returns contiguous tensors."""
    native.check(operator, *arguments)
    return [None if x is None else x.contiguous() for _, x, *_ in arguments]


@dataclass(frozen=True)
class _Entry:
    """An entry of the state with environments adjacent in memory."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=torch.int64)

    def arranged(self, x: Tensor) -> Tensor:
        """Returns numbers [B, ..] in memory [.., B]."""
        return x if x.stride() == self.stride else x.permute(*range(x.ndim - 1, -1, -1)).contiguous()


@functools.cache
def _entries(envs: int, players: int, foods: int) -> list[_Entry]:
    """Returns the entries `FIELDS`."""
    shapes = ((envs, players, 2), (envs, players), (envs, foods, 2), (envs, foods), (envs,))
    strides = ((1, envs, envs * players), (1, envs), (1, envs, envs * foods), (1, envs), (1,))
    return [_Entry(*entry) for entry in zip(FIELDS, shapes, strides, strict=True)]


def _arranged(operator: str, state: Mapping[str, Tensor], entries: Sequence[_Entry]) -> list[Tensor]:
    native.check(operator, *((entry.name, state[entry.name], torch.int64, entry.shape) for entry in entries))
    return [entry.arranged(state[entry.name]) for entry in entries]
