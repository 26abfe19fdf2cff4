"""What is wrong with demonstrations: a line for each fault that names the tensor, the place and what was expected."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.imitation.demos import DemoRole, Demos, leaves

_FLOATS, _FLAGS, _WHOLE = torch.float32, torch.bool, torch.int64
_TYPES = {"float32": torch.float32, "uint8": torch.uint8}
_CLOSE = 1e-3
"""How far a return may lie from the sum of its rewards, beside their rounding."""


def faults(demos: Demos) -> list[str]:
    """Every fault of demonstrations; [] if they are sound. Forms first: the rest is only looked at where they hold."""
    return list(_forms(demos)) or [*_episodes(demos)] or [*_contents(demos)]


# -------------------------------------------------------------------------------------------------------------- forms


def _forms(demos: Demos) -> Iterator[str]:
    """Tensors that are missing, not known, or of another type or shape."""
    names = [role.name for role in demos.roles]
    if len(set(names)) < len(names):
        yield f"a role is named twice in {names}"
        return
    wanted, optional = _wanted(demos)
    rows = {len(x) for name, x in demos.tensors.items() if not name.startswith("episode/") and x.ndim}
    episodes = {len(x) for name, x in demos.tensors.items() if name.startswith("episode/") and x.ndim}
    for name, (kind, rest) in wanted.items():
        if name not in demos.tensors:
            if name not in optional:
                yield f"the tensor {name} is missing"
            continue
        x = demos.tensors[name]
        if x.dtype != kind:
            yield f"{name} is {_kind(x.dtype)}: expected {_kind(kind)}"
        if tuple(x.shape[1:]) != rest or not x.ndim:
            lead = "E" if name.startswith("episode/") else "R"
            yield f"{name} has the shape {list(x.shape)}: expected [{', '.join(map(str, (lead, *rest)))}]"
    for name, x in demos.tensors.items():
        if name.startswith("state/"):
            if x.dtype != _FLOATS or x.ndim != 2:
                yield f"{name} is {_kind(x.dtype)} {list(x.shape)}: expected float32 [R, S]"
        elif name not in wanted:
            yield f"there is a tensor {name}, which nothing in the metadata speaks of"
    if len(rows) > 1:
        yield f"tensors have different numbers of rows: {', '.join(map(str, sorted(rows)))}"
    if len(episodes) > 1:
        yield f"tensors have different numbers of episodes: {', '.join(map(str, sorted(episodes)))}"


def _wanted(demos: Demos) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], set[str]]:
    """Type and shape behind the first axis of every tensor that may be there, and the names of those that need not."""
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "episode/offset": (_WHOLE, ()),
        "episode/length": (_WHOLE, ()),
        "episode/terminated": (_FLAGS, ()),
        "episode/return": (torch.float64, (len(demos.groups),)),
        "group_reward": (_FLOATS, (len(demos.groups),)),
    }
    optional = {"group_reward"}
    for role in demos.roles:
        for name, leaf in leaves(f"{role.name}/obs", role.observation).items():
            wanted[name] = (_TYPES.get(str(leaf["type"]), _FLOATS), (role.n, *leaf["shape"]))
        if role.choices:
            wanted[f"{role.name}/discrete"] = (_WHOLE, (role.n, len(role.choices)))
            wanted[f"{role.name}/action_mask"] = (_FLAGS, (role.n, sum(role.choices)))
            optional.add(f"{role.name}/action_mask")
        if role.continuous:
            wanted[f"{role.name}/continuous"] = (_FLOATS, (role.n, role.continuous))
        wanted[f"{role.name}/reward"] = (_FLOATS, (role.n,))
        wanted |= {f"{role.name}/{flag}": (_FLAGS, (role.n,)) for flag in ("alive", "terminated", "truncated")}
    return wanted, optional


def _kind(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


# ----------------------------------------------------------------------------------------------------------- episodes


def _episodes(demos: Demos) -> Iterator[str]:
    """Offsets and lengths that do not lay the rows out."""
    length, offset = demos.tensors["episode/length"], demos.tensors["episode/offset"]
    if not len(length):
        yield "there are no episodes"
        return
    if bool((length < 1).any()):
        yield f"episode {_first(length < 1)[0]} has {int(length.min())} rows: expected at least 1"
        return
    expected = length.cumsum(0) - length
    if bool((offset != expected).any()):
        at = _first(offset != expected)[0]
        yield f"episode/offset of episode {at} is {int(offset[at])}: expected {int(expected[at])}, behind those before"
    if int(length.sum()) != demos.rows:
        yield f"episode/length adds up to {int(length.sum())} rows, and there are {demos.rows}"


# ----------------------------------------------------------------------------------------------------------- contents


def _contents(demos: Demos) -> Iterator[str]:
    """Numbers, actions, flags and returns that cannot be."""
    last = torch.zeros(demos.rows, dtype=torch.bool)
    last[demos.tensors["episode/offset"] + demos.tensors["episode/length"] - 1] = True
    for name, x in demos.tensors.items():
        if (name == "group_reward" or name.startswith("state/")) and not bool(x.isfinite().all()):
            yield f"{name} is NaN or infinite{_place(demos, ~x.isfinite().flatten(1).all(1))}"
    for role in demos.roles:
        yield from _numbers(demos, role)
        yield from _actions(demos, role)
        yield from _flags(demos, role, last)
    yield from _returns(demos)


def _numbers(demos: Demos, role: DemoRole) -> Iterator[str]:
    alive = demos.tensors[f"{role.name}/alive"]
    names = [*leaves(f"{role.name}/obs", role.observation), f"{role.name}/reward"]
    names += [f"{role.name}/continuous"] if role.continuous else []
    for name in names:
        x = demos.tensors[name]
        bad = ~x.reshape(*alive.shape, -1).isfinite().all(-1) & alive
        if bool(bad.any()):
            yield f"{name} is NaN or infinite{_place(demos, bad, role)}"


def _actions(demos: Demos, role: DemoRole) -> Iterator[str]:
    alive = demos.tensors[f"{role.name}/alive"]
    if role.continuous:
        x = demos.tensors[f"{role.name}/continuous"]
        bad = (x.abs() > 1).any(-1) & alive
        if bool(bad.any()):
            yield f"{role.name}/continuous lies outside [-1, 1]{_place(demos, bad, role)}"
    if not role.choices:
        return
    done = demos.tensors[f"{role.name}/discrete"]
    bad = ((done < 0) | (done >= torch.tensor(role.choices))).any(-1) & alive
    if bool(bad.any()):
        yield f"{role.name}/discrete is none of {_many(role.choices)} choices{_place(demos, bad, role)}"
        return
    mask = demos.tensors.get(f"{role.name}/action_mask")
    if mask is None:
        return
    none = ~torch.stack([part.any(-1) for part in mask.split(role.choices, -1)]).all(0) & alive
    if bool(none.any()):
        yield f"{role.name}/action_mask leaves no choice{_place(demos, none, role)}"
    taken = done.clamp(min=0).minimum(torch.tensor(role.choices) - 1)
    start = torch.tensor(role.choices).cumsum(0) - torch.tensor(role.choices)
    bad = ~mask.gather(-1, taken + start).all(-1) & alive & ~none
    if bool(bad.any()):
        yield f"{role.name}/discrete is a choice that its mask forbids{_place(demos, bad, role)}"


def _flags(demos: Demos, role: DemoRole, last: Tensor) -> Iterator[str]:
    alive, ended, cut = (demos.tensors[f"{role.name}/{name}"] for name in ("alive", "terminated", "truncated"))
    both = ended & cut
    if bool(both.any()):
        yield f"{role.name}/terminated and {role.name}/truncated are both True{_place(demos, both, role)}"
    dead = (ended | cut) & ~alive
    if bool(dead.any()):
        yield f"a life of {role.name} ends where nobody is alive{_place(demos, dead, role)}"
    goes_on = alive & ~(ended | cut) & last[:, None]
    if bool(goes_on.any()):
        yield f"{role.name} outlives its episode, neither terminated nor truncated{_place(demos, goes_on, role)}"
    stays = (ended | cut)[:-1] & alive[1:] & ~last[:-1, None]
    if bool(stays.any()):
        yield f"{role.name} is alive in the row after its end{_place(demos, stays, role)}"


def _returns(demos: Demos) -> Iterator[str]:
    earned = returns_of(demos)
    said = demos.tensors["episode/return"]
    room = _CLOSE * (1 + said.abs())
    bad = ~((said - earned).abs() <= room)
    if bool(bad.any()):
        at, group = _first(bad)
        yield (
            f"episode/return of episode {at} is {float(said[at, group]):g} for {demos.groups[group]}: its rewards add "
            f"up to {float(earned[at, group]):g}"
        )


def returns_of(demos: Demos) -> Tensor:
    """What every group earned in every episode [E, G]: its agents' rewards while alive and what was paid once."""
    parts = []
    for group in demos.groups:
        own = [
            torch.where(demos.tensors[f"{role.name}/alive"], demos.tensors[f"{role.name}/reward"], 0.0).double().sum(-1)
            for role in demos.roles
            if role.group == group
        ]
        parts.append(torch.stack(own).sum(0))
    earned = torch.stack(parts, -1)
    if "group_reward" in demos.tensors:
        earned = earned + demos.tensors["group_reward"].double()
    owner = torch.repeat_interleave(torch.arange(demos.episodes), demos.tensors["episode/length"])
    return torch.zeros(demos.episodes, len(demos.groups), dtype=torch.float64).index_add_(0, owner, earned)


# -------------------------------------------------------------------------------------------------------------- words


def _first(bad: Tensor) -> list[int]:
    return bad.nonzero()[0].tolist()


def _place(demos: Demos, bad: Tensor, role: DemoRole | None = None) -> str:
    """Where the first True of `bad` [R] or [R, n] stands, and how many there are."""
    row, *agent = _first(bad)
    offset = demos.tensors["episode/offset"]
    episode = int(torch.searchsorted(offset, row, right=True)) - 1
    who = f", agent {role.agents[agent[0]]}" if role is not None and agent else ""
    return f": episode {episode}, step {row - int(offset[episode])}{who} ({int(bad.sum())} such places)"


def _many(choices: tuple[int, ...]) -> str:
    return " x ".join(map(str, choices))
