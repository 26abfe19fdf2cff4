"""Names, shapes and types of the tensors that an exported team reads and returns, in every format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from coterie.core.specs import RoleSpec
from coterie.export.subject import Subject, sensors, tensor_name
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.epsilon_soft import EpsilonSoftPolicy

_LAST = "last"
"""Name of the last actions in the hidden state."""

E = TypeVar("E", "Input", "Output")

DTYPES = {"float32": torch.float32, "uint8": torch.uint8, "bool": torch.bool}


@dataclass(frozen=True)
class Input:
    """An input tensor.

    Attributes:
        name: Its name.
        kind: `obs`, `mask`, `first`, `alive`, `hidden` or `noise`.
        key: Role, or name of the hidden state; empty for `first` and `alive`.
        sensor: Sensor of an observation that is a Dict, otherwise empty.
        shape: Shape without the leading axis of environments.
        dtype: `float32`, `uint8` or `bool`.
    """

    name: str
    kind: str
    key: str
    sensor: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Output:
    """An output tensor.

    Attributes:
        name: Its name.
        kind: `outputs` of the network, `discrete` or `continuous` actions, or the next `hidden` state.
        key: Role, or name of the hidden state.
        mode: `greedy`, `sample`, `any` if it is the same in both modes, or `none` if acting does not need it.
    """

    name: str
    kind: str
    key: str
    mode: str


def inputs(subject: Subject) -> list[Input]:
    """Returns the inputs of a team in order."""
    team, found = subject.team, []
    for role in team.roles:
        for sensor, box in sensors(role.observation_space).items():
            dtype = "uint8" if box.dtype == "uint8" else "float32"
            name = tensor_name("obs", role.name, sensor)
            found.append(Input(name, "obs", role.name, sensor, (role.n, *box.shape), dtype))
    for role in team.roles:
        if role.action.choices:
            shape = (role.n, role.action.mask_size)
            found.append(Input(tensor_name("mask", role.name), "mask", role.name, "", shape, "bool"))
    hidden = hidden_sizes(subject)
    if hidden:
        found.append(Input("first", "first", "", "", (team.n,), "bool"))
    if reads_alive(subject):
        found.append(Input("alive", "alive", "", "", (team.n,), "bool"))
    for key, size in hidden.items():
        found.append(Input(tensor_name("hidden", key), "hidden", key, "", (team.n, size), "float32"))
    for role in team.roles:
        shape = (role.n, sum(size for _, size in noise_parts(subject, role)))
        found.append(Input(tensor_name("noise", role.name), "noise", role.name, "", shape, "float32"))
    return _unique(found)


def outputs(subject: Subject) -> list[Output]:
    """Returns the outputs of a team in order."""
    return _unique(_outputs(subject))


def _outputs(subject: Subject) -> Iterator[Output]:
    for role in subject.team.roles:
        if subject.has_outputs:
            yield Output(tensor_name("outputs", role.name), "outputs", role.name, "none")
        for mode in ("greedy", "sample"):
            if role.action.choices:
                yield Output(tensor_name(mode, "discrete", role.name), "discrete", role.name, mode)
            if role.action.continuous:
                yield Output(tensor_name(mode, "continuous", role.name), "continuous", role.name, mode)
    for key in hidden_sizes(subject):
        if key == _LAST:
            for mode in ("greedy", "sample"):
                yield Output(tensor_name(mode, "next_hidden", key), "hidden", key, mode)
        else:
            yield Output(tensor_name("next_hidden", key), "hidden", key, "any")


def _unique(entries: Iterable[E]) -> list[E]:
    """Returns entries whose names differ: those of later ones get a number where texts of users do not."""
    found: list[E] = []
    taken: set[str] = set()
    for entry in entries:
        name, count = entry.name, 1
        while name in taken:
            count += 1
            name = f"{entry.name}_{count}"
        taken.add(name)
        found.append(replace(entry, name=name))
    return found


def hidden_sizes(subject: Subject) -> dict[str, int]:
    """Returns the size per agent of each part of the hidden state that the policy reads."""
    policy = subject.policy
    shapes = {name: x.shape[-1] for name, x in policy.initial_hidden_state(1).items()}
    read = set(policy.net.initial_hidden_state(1, policy.device))
    if reads_last_action(subject):
        read.add(_LAST)
    return {name: size for name, size in shapes.items() if name in read}


def reads_last_action(subject: Subject) -> bool:
    """True if the network reads the agents' last actions."""
    policy = subject.policy
    return isinstance(policy, EpsilonGreedyPolicy | EpsilonSoftPolicy) and policy.reads_last_action


def reads_alive(subject: Subject) -> bool:
    """True if actions depend on who is alive: last actions or messages of dead agents are zero."""
    forgets = isinstance(subject.policy, EpsilonSoftPolicy) and reads_last_action(subject)
    return subject.policy.team.agents_can_die and (forgets or subject.policy.communicates)


def noise_parts(subject: Subject, role: RoleSpec) -> list[tuple[str, int]]:
    """Returns kind and size of the noise per agent of a role: `gumbel`, `normal` or `uniform`."""
    spec = role.action
    if subject.head == "epsilon_greedy":
        return [("uniform", 1 + spec.mask_size)]
    return [(kind, size) for kind, size in (("gumbel", spec.mask_size), ("normal", spec.continuous)) if size]
