"""Environments whose copies are stepped in parts, each while the policies act on the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, final

import torch
from torch import Tensor

from coterie.envs.vector import VectorEnv, advance
from coterie.types import Action, Row, Step, Tree, tree_map

T = TypeVar("T", bound=Tree)


class Part(Protocol):
    """Some of an environment's copies, next to each other. After every `send` comes one `receive`."""

    copies: int

    def send(self, action: dict[str, Action]) -> None:
        """Begins a step of these copies, by role [b, n, ..]."""
        ...

    def receive(self) -> tuple[Step, Row]:
        """What it brought and the next row, once it is done."""
        ...


class Parted(VectorEnv):
    """An environment that is several parts, whose copies stand side by side in their order."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """All of them."""


@final
class Whole:
    """An environment as its only part: what `send` begins is over when it returns."""

    def __init__(self, env: VectorEnv):
        self._env, self.copies = env, env.copies

    def send(self, action: dict[str, Action]) -> None:
        self._brought = advance(self._env, action)

    def receive(self) -> tuple[Step, Row]:
        return self._brought


def parts_of(env: VectorEnv) -> Sequence[Part]:
    """The parts of an environment; one if it has none."""
    return env.parts if isinstance(env, Parted) else (Whole(env),)


def split(tree: T, sizes: Sequence[int]) -> list[T]:
    """Tensors [B, ..] cut into pieces of `sizes` copies, each as if it had been made so: results of vector code can
    depend on how its operands lie in memory.
    """
    if len(sizes) == 1:
        return [tree]
    stops = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return [tree_map(lambda x, a=b - size, b=b: x[a:b].clone(), tree) for b, size in zip(stops, sizes, strict=True)]


def beside(trees: Sequence[T]) -> T:
    """Pieces [b, ..] of tensors as tensors [B, ..]."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *x: torch.cat(x), trees[0], *trees[1:])


def steps_beside(steps: Sequence[Step]) -> Step:
    """What the parts' steps brought as one step of all copies."""
    if len(steps) > 1 and any(step.lost is not None for step in steps):
        steps = [replace(step, lost=_lost(step)) for step in steps]
    return beside(steps)


def _lost(step: Step) -> Tensor:
    return torch.zeros_like(step.episode_terminated) if step.lost is None else step.lost
