"""Recorded transitions of an environment, random actions, and the comparison of two recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import EnvSpec
from coterie.core.tree import tree_leaves, tree_map
from coterie.core.types import Action, Step, Timestep

Actions = dict[str, Action]


def named_leaves(tree: Any, name: str = "") -> dict[str, Any]:
    """Returns the leaves of nested dataclasses, mappings and sequences by name: `obs['agent']`, `alive`.

    None is left out.
    """
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = [(f".{field.name}" if name else field.name, getattr(tree, field.name)) for field in fields(tree)]
    elif isinstance(tree, Mapping):
        parts = [(f"[{key!r}]", value) for key, value in tree.items()]
    elif isinstance(tree, tuple | list):
        parts = [(f"[{i}]", value) for i, value in enumerate(tree)]
    else:
        return {} if tree is None else {name: tree}
    return {leaf: value for part, child in parts for leaf, value in named_leaves(child, name + part).items()}


@dataclass
class Trace:
    """Transitions of a batch of environments, on the CPU.

    Attributes:
        timesteps: One more than steps.
        steps: `steps[t]` leads from `timesteps[t]` to `timesteps[t + 1]`.
        actions: Actions of every step.
    """

    timesteps: list[Timestep] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    actions: list[Actions] = field(default_factory=list)

    def episode_ended(self, t: int) -> Tensor:
        """[B] bool: environments whose episode ended at step t."""
        return self.steps[t].episode_terminated | self.steps[t].episode_truncated


def to_cpu(tree: Any) -> Any:
    """Returns a copy of a tree of tensors on the CPU."""
    return tree_map(lambda leaf: leaf.detach().to("cpu", copy=True), tree)


def random_actions(spec: EnvSpec, timestep: Timestep, generator: torch.Generator) -> Actions:
    """Samples uniformly among the choices that the masks allow, and uniform numbers in [-1, 1].

    Returns:
        Actions by role, on the CPU.
    """
    actions = {}
    for role in spec.roles:
        shape = (len(timestep.acted), role.n)
        mask = timestep.action_mask.get(role.name)
        discrete = continuous = None
        if role.action.choices:
            mask = torch.ones(*shape, role.action.mask_size, dtype=torch.bool) if mask is None else mask.cpu()
            scores = torch.rand(*shape, role.action.mask_size, generator=generator).masked_fill(~mask, -1)
            discrete = torch.stack([part.argmax(-1) for part in scores.split(role.action.choices, dim=-1)], -1)
        if role.action.continuous:
            continuous = 2 * torch.rand(*shape, role.action.continuous, generator=generator) - 1
        actions[role.name] = Action(discrete, continuous)
    return actions


def other_actions(actions: Actions, spec: EnvSpec, where: Tensor) -> Actions:
    """Changes the actions of the agents in `where` [B, N] bool: to the next choice and the negated number."""
    changed = {}
    for role in spec.roles:
        here, action = where[:, spec.role_slices()[role.name], None], actions[role.name]
        discrete, continuous = action.discrete, action.continuous
        if discrete is not None:
            discrete = torch.where(here, (discrete + 1) % torch.tensor(role.action.choices), discrete)
        if continuous is not None:
            continuous = torch.where(here, -continuous, continuous)
        changed[role.name] = Action(discrete, continuous)
    return changed


def first_difference(one: Any, other: Any, env_mask: Tensor | None = None) -> str | None:
    """Compares two trees of tensors with each other; NaN equals NaN.

    Args:
        one, other: Trees such as `Timestep` and `Step`.
        env_mask: [B] bool, the environments to compare; None for all.

    Returns:
        Name of the first tensor that differs, None if all are equal.
    """
    if env_mask is None:
        flat, other_flat = tree_leaves(one), tree_leaves(other)
        equal = (x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(flat, other_flat, strict=False))
        if len(flat) == len(other_flat) and all(equal):
            return None  # the usual case, without the cost of names
    leaves, other_leaves = named_leaves(one), named_leaves(other)
    if leaves.keys() != other_leaves.keys():
        return ", ".join(sorted(leaves.keys() ^ other_leaves.keys()))
    for name, x in leaves.items():
        y = other_leaves[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            return name
        same = (x == y) | (x.isnan() & y.isnan()) if x.is_floating_point() else x == y
        if not (same if env_mask is None else same[env_mask]).all():
            return name
    return None
