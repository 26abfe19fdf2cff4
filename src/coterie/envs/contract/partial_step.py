"""Environments that are stepped in parts, each while the policies act on the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, final

import torch
from torch import Tensor

from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv, step_env

T = TypeVar("T", bound=Tree)


class EnvPart(Protocol):
    """Consecutive environments of a vectorized environment. Every `send` is followed by one `receive`."""

    num_envs: int

    def send(self, action: dict[str, Action]) -> None:
        """Starts a step of these environments with actions by role [b, n, ..]."""
        ...

    def receive(self) -> tuple[Step, Timestep]:
        """Waits for the step, and returns its result and the next timestep."""
        ...


class PartitionedEnv(VectorEnv):
    """A vectorized environment whose parts can be stepped independently of each other."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[EnvPart]:
        """All parts, in the order of their environments."""


@final
class SinglePartEnv:
    """A vectorized environment as its own only part: `send` returns when the step is over."""

    def __init__(self, env: VectorEnv):
        self._env, self.num_envs = env, env.num_envs

    def send(self, action: dict[str, Action]) -> None:
        self._result = step_env(self._env, action)

    def receive(self) -> tuple[Step, Timestep]:
        return self._result


def env_parts(env: VectorEnv) -> Sequence[EnvPart]:
    """Returns the parts of an environment, a single one if it is not partitioned."""
    return env.parts if isinstance(env, PartitionedEnv) else (SinglePartEnv(env),)


def split_envs(tree: T, sizes: Sequence[int]) -> list[T]:
    """Splits tensors [B, ..] into parts of `sizes` environments.

    The parts are clones rather than views: results of vectorized code can depend on the memory layout of its operands.
    """
    if len(sizes) == 1:
        return [tree]
    stops = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [tree_map(lambda x, a=b - size, b=b: x[a:b].clone(), tree) for b, size in zip(stops, sizes, strict=True)]


def concat_envs(trees: Sequence[T]) -> T:
    """Concatenates tensors [b, ..] of the parts to tensors [B, ..]."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *x: torch.cat(x), trees[0], *trees[1:])


def concat_steps(steps: Sequence[Step]) -> Step:
    """Concatenates the step results of the parts."""
    if len(steps) > 1 and any(step.lost is not None for step in steps):
        steps = [replace(step, lost=_lost_mask(step)) for step in steps]
    return concat_envs(steps)


def _lost_mask(step: Step) -> Tensor:
    return torch.zeros_like(step.episode_terminated) if step.lost is None else step.lost
