"""Checks of demonstrations. Each error is a line that names the tensor, the place and the expected value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from coterie.imitation.demo_roles import DemoRole, observation_tensors

_FLOAT, _BOOL, _INT = torch.float32, torch.bool, torch.int64
_OBSERVATION_TYPES = {"float32": torch.float32, "uint8": torch.uint8}
_RETURN_TOLERANCE = 1e-3
"""Relative tolerance between a return and the sum of its rewards."""


class DemoTensors(Protocol):
    """Demonstrations as the checks read them, see `coterie.imitation.demonstrations.Demos`."""

    @property
    def roles(self) -> tuple[DemoRole, ...]: ...
    @property
    def tensors(self) -> dict[str, Tensor]: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def episodes(self) -> int: ...
    @property
    def timesteps(self) -> int: ...


def find_errors(demos: DemoTensors) -> list[str]:
    """Returns every error of demonstrations; [] if they are valid. Later checks run only if earlier ones pass."""
    return list(_check_shapes(demos)) or list(_check_episodes(demos)) or list(_check_contents(demos))


# ------------------------------------------------------------------------------------------------- shapes and types


def _check_shapes(demos: DemoTensors) -> Iterator[str]:
    """Yields tensors that are missing, unknown, or of another type or shape."""
    names = [role.name for role in demos.roles]
    if len(set(names)) < len(names):
        yield f"duplicate role in {names}"
        return
    expected, optional = _expected_tensors(demos)
    for name, (dtype, shape) in expected.items():
        if name not in demos.tensors:
            if name not in optional:
                yield f"the tensor {name} is missing"
            continue
        x = demos.tensors[name]
        if x.dtype != dtype:
            yield f"{name} is {_dtype_name(x.dtype)}: expected {_dtype_name(dtype)}"
        if tuple(x.shape[1:]) != shape or not x.ndim:
            first_axis = "E" if name.startswith("episode/") else "R"
            yield f"{name} has shape {list(x.shape)}: expected [{', '.join(map(str, (first_axis, *shape)))}]"
    for name, x in demos.tensors.items():
        if name.startswith("state/"):
            if x.dtype != _FLOAT or x.ndim != 2:
                yield f"{name} is {_dtype_name(x.dtype)} {list(x.shape)}: expected float32 [R, S]"
        elif name not in expected:
            yield f"the tensor {name} does not belong to a role in the metadata"
    timesteps = {len(x) for name, x in demos.tensors.items() if not name.startswith("episode/") and x.ndim}
    episodes = {len(x) for name, x in demos.tensors.items() if name.startswith("episode/") and x.ndim}
    if len(timesteps) > 1:
        yield f"tensors have different numbers of timesteps: {', '.join(map(str, sorted(timesteps)))}"
    if len(episodes) > 1:
        yield f"tensors have different numbers of episodes: {', '.join(map(str, sorted(episodes)))}"


def _expected_tensors(demos: DemoTensors) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], set[str]]:
    """Returns type and shape after the first axis of every possible tensor, and the names of the optional ones."""
    expected: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "episode/offset": (_INT, ()),
        "episode/length": (_INT, ()),
        "episode/terminated": (_BOOL, ()),
        "episode/return": (torch.float64, (len(demos.groups),)),
        "group_reward": (_FLOAT, (len(demos.groups),)),
    }
    optional = {"group_reward"}
    for role in demos.roles:
        for name, leaf in observation_tensors(f"{role.name}/obs", role.observation).items():
            expected[name] = (_OBSERVATION_TYPES.get(str(leaf["type"]), _FLOAT), (role.n, *leaf["shape"]))
        if role.choices:
            expected[f"{role.name}/discrete"] = (_INT, (role.n, len(role.choices)))
            expected[f"{role.name}/action_mask"] = (_BOOL, (role.n, sum(role.choices)))
            optional.add(f"{role.name}/action_mask")
        if role.continuous:
            expected[f"{role.name}/continuous"] = (_FLOAT, (role.n, role.continuous))
        expected[f"{role.name}/reward"] = (_FLOAT, (role.n,))
        expected |= {f"{role.name}/{flag}": (_BOOL, (role.n,)) for flag in ("alive", "terminated", "truncated")}
    return expected, optional


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ----------------------------------------------------------------------------------------------------------- episodes


def _check_episodes(demos: DemoTensors) -> Iterator[str]:
    """Yields offsets and lengths that do not match the timesteps."""
    length, offset = demos.tensors["episode/length"], demos.tensors["episode/offset"]
    if not len(length):
        yield "there are no episodes"
        return
    bad = (length < 1) | (length > demos.timesteps)
    if bool(bad.any()):
        at = _first(bad)[0]
        yield f"episode {at} has {int(length[at])} timesteps: expected at least 1, and at most all {demos.timesteps}"
        return
    expected = length.cumsum(0) - length
    if bool((offset != expected).any()):
        at = _first(offset != expected)[0]
        yield (
            f"episode/offset of episode {at} is {int(offset[at])}: expected {int(expected[at])}, after the episodes "
            "before it"
        )
    if int(length.sum()) != demos.timesteps:
        yield f"the sum of episode/length is {int(length.sum())}: expected {demos.timesteps}, the number of timesteps"


# ----------------------------------------------------------------------------------------------------------- contents


def _check_contents(demos: DemoTensors) -> Iterator[str]:
    """Yields impossible numbers, actions, flags and returns."""
    last = torch.zeros(demos.timesteps, dtype=torch.bool)
    last[demos.tensors["episode/offset"] + demos.tensors["episode/length"] - 1] = True
    for name, x in demos.tensors.items():
        if (name == "group_reward" or name.startswith("state/")) and not bool(x.isfinite().all()):
            yield f"{name} is NaN or infinite{_place(demos, ~x.isfinite().flatten(1).all(1))}"
    for role in demos.roles:
        yield from _check_finite(demos, role)
        yield from _check_actions(demos, role)
        yield from _check_flags(demos, role, last)
    yield from _check_returns(demos)


def _check_finite(demos: DemoTensors, role: DemoRole) -> Iterator[str]:
    alive = demos.tensors[f"{role.name}/alive"]
    names = [*observation_tensors(f"{role.name}/obs", role.observation), f"{role.name}/reward"]
    names += [f"{role.name}/continuous"] if role.continuous else []
    for name in names:
        x = demos.tensors[name]
        bad = ~x.reshape(*alive.shape, -1).isfinite().all(-1) & alive
        if bool(bad.any()):
            yield f"{name} is NaN or infinite{_place(demos, bad, role)}"


def _check_actions(demos: DemoTensors, role: DemoRole) -> Iterator[str]:
    alive = demos.tensors[f"{role.name}/alive"]
    if role.continuous:
        x = demos.tensors[f"{role.name}/continuous"]
        bad = (x.abs() > 1).any(-1) & alive
        if bool(bad.any()):
            yield f"{role.name}/continuous is outside [-1, 1]{_place(demos, bad, role)}"
    if not role.choices:
        return
    taken = demos.tensors[f"{role.name}/discrete"]
    choices = torch.tensor(role.choices)
    bad = ((taken < 0) | (taken >= choices)).any(-1) & alive
    if bool(bad.any()):
        yield (
            f"{role.name}/discrete is not one of {' x '.join(map(str, role.choices))} choices{_place(demos, bad, role)}"
        )
        return
    mask = demos.tensors.get(f"{role.name}/action_mask")
    if mask is None:
        return
    none = ~torch.stack([part.any(-1) for part in mask.split(role.choices, -1)]).all(0) & alive
    if bool(none.any()):
        yield f"{role.name}/action_mask leaves no choice{_place(demos, none, role)}"
    index = taken.clamp(min=0).minimum(choices - 1) + choices.cumsum(0) - choices
    bad = ~mask.gather(-1, index).all(-1) & alive & ~none
    if bool(bad.any()):
        yield f"{role.name}/discrete is a masked choice{_place(demos, bad, role)}"


def _check_flags(demos: DemoTensors, role: DemoRole, last: Tensor) -> Iterator[str]:
    names = ("alive", "terminated", "truncated")
    alive, terminated, truncated = (demos.tensors[f"{role.name}/{name}"] for name in names)
    both = terminated & truncated
    if bool(both.any()):
        yield f"{role.name}/terminated and {role.name}/truncated are both True{_place(demos, both, role)}"
    ended = terminated | truncated
    dead = ended & ~alive
    if bool(dead.any()):
        yield f"{role.name} is terminated or truncated while not alive{_place(demos, dead, role)}"
    continues = alive & ~ended & last[:, None]
    if bool(continues.any()):
        yield f"{role.name} is neither terminated nor truncated at the end{_place(demos, continues, role)}"
    revived = truncated[:-1] & alive[1:] & ~last[:-1, None]  # after a termination, the slot's next life may begin
    if bool(revived.any()):
        yield f"{role.name} is alive in the timestep after its end{_place(demos, revived, role)}"


def _check_returns(demos: DemoTensors) -> Iterator[str]:
    expected, stated = episode_returns(demos), demos.tensors["episode/return"]
    bad = ~((stated - expected).abs() <= _RETURN_TOLERANCE * (1 + stated.abs()))
    if bool(bad.any()):
        at, group = _first(bad)
        yield (
            f"episode/return of episode {at} is {float(stated[at, group]):g} for {demos.groups[group]}: expected "
            f"{float(expected[at, group]):g}, the sum of its rewards"
        )


def episode_returns(demos: DemoTensors) -> Tensor:
    """Returns each group's return per episode [E, G]: its agents' rewards while alive plus the group's reward."""
    parts = []
    for group in demos.groups:
        own = [
            torch.where(demos.tensors[f"{role.name}/alive"], demos.tensors[f"{role.name}/reward"], 0.0).double().sum(-1)
            for role in demos.roles
            if role.group == group
        ]
        parts.append(torch.stack(own).sum(0))
    reward = torch.stack(parts, -1)
    if "group_reward" in demos.tensors:
        reward = reward + demos.tensors["group_reward"].double()
    episode = torch.repeat_interleave(torch.arange(demos.episodes), demos.tensors["episode/length"])
    zeros = torch.zeros(demos.episodes, len(demos.groups), dtype=torch.float64)
    return zeros.index_add_(0, episode, reward)


# ------------------------------------------------------------------------------------------------------------- places


def _first(bad: Tensor) -> list[int]:
    return bad.nonzero()[0].tolist()


def _place(demos: DemoTensors, bad: Tensor, role: DemoRole | None = None) -> str:
    """Returns the place of the first True of `bad` [R] or [R, n], and the number of them."""
    timestep, *agent = _first(bad)
    offset = demos.tensors["episode/offset"]
    episode = int(torch.searchsorted(offset, timestep, right=True)) - 1
    who = f", agent {role.agents[agent[0]]}" if role is not None and agent else ""
    return f": episode {episode}, step {timestep - int(offset[episode])}{who} ({int(bad.sum())} in all)"
