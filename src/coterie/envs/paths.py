"""What a batch of an environment lived through, the random actions that it takes, and where two lives differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.types import Action, EnvSpec, Row, Step, tree_leaves, tree_map

Actions = dict[str, Action]


def leaves(tree: Any, name: str = "") -> dict[str, Any]:
    """What a record holds, by name: `obs['agent']`, `alive`. None is left out."""
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = [(field.name, getattr(tree, field.name)) for field in fields(tree)]
        return {k: v for part, value in parts for k, v in leaves(value, f"{name}.{part}" if name else part).items()}
    if isinstance(tree, Mapping):
        return {k: v for key, value in tree.items() for k, v in leaves(value, f"{name}[{key!r}]").items()}
    if isinstance(tree, tuple | list):
        return {k: v for i, value in enumerate(tree) for k, v in leaves(value, f"{name}[{i}]").items()}
    return {} if tree is None else {name: tree}


@dataclass
class Path:
    """What was lived through: rows (one more than steps), steps and actions, all on the host."""

    rows: list[Row] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    actions: list[Actions] = field(default_factory=list)

    def ended(self, t: int) -> Tensor:
        """[B] bool: copies whose episode ended at step t."""
        return self.steps[t].episode_terminated | self.steps[t].episode_truncated


def on_host(tree: Any) -> Any:
    """A copy of a tree of tensors, on the host."""
    return tree_map(lambda leaf: leaf.detach().to("cpu", copy=True), tree)


def random_actions(spec: EnvSpec, row: Row, generator: torch.Generator) -> Actions:
    """Uniform choices among those that the masks allow, and uniform numbers in [-1, 1]; on the host."""
    actions = {}
    for role in spec.roles:
        shape = (len(row.acted), role.n)
        mask = row.action_mask.get(role.name)
        discrete = continuous = None
        if role.action.choices:
            mask = torch.ones(*shape, role.action.mask_size, dtype=torch.bool) if mask is None else mask.cpu()
            lots = torch.rand(*shape, role.action.mask_size, generator=generator).masked_fill(~mask, -1)
            discrete = torch.stack([part.argmax(-1) for part in lots.split(role.action.choices, dim=-1)], -1)
        if role.action.continuous:
            continuous = 2 * torch.rand(*shape, role.action.continuous, generator=generator) - 1
        actions[role.name] = Action(discrete, continuous)
    return actions


def other_actions(actions: Actions, spec: EnvSpec, where: Tensor) -> Actions:
    """Other actions for the agents of `where` [B, N]: the next choice, the opposite number."""
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


def difference(one: Any, other: Any, copies: Tensor | None = None) -> str | None:
    """The name of the first tensor that differs between two records, for the copies of the mask [B]; None if none."""
    if copies is None:
        flat, like = tree_leaves(one), tree_leaves(other)
        same = (x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(flat, like, strict=False))
        if len(flat) == len(like) and all(same):
            return None  # the usual case, without names
    ours, theirs = leaves(one), leaves(other)
    if ours.keys() != theirs.keys():
        return ", ".join(sorted(ours.keys() ^ theirs.keys()))
    for name, x in ours.items():
        y = theirs[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            return name
        same = (x == y) | (x.isnan() & y.isnan()) if x.is_floating_point() else x == y
        if not (same if copies is None else same[copies]).all():
            return name
    return None
