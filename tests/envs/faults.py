"""Faults of an environment, one for every rule and more: by name, the rule that must find it, and the fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pond import Pond, Wrapped
from torch import Tensor

from coterie.envs.world import World
from coterie.errors import UserError
from coterie.types import Action, RoleSpec, Row, Step, tree_map


def on_rows(change: Callable[[Row], Row]) -> type[Wrapped]:
    return type("OnRows", (Wrapped,), {"changed_row": lambda self, row: change(row)})


def on_steps(change: Callable[[Step, Row, Row], Step]) -> type[Wrapped]:
    return type("OnSteps", (Wrapped,), {"changed_step": lambda self, step, before, row: change(step, before, row)})


def on_spec(**changes: Any) -> type[Wrapped]:
    def init(self: Wrapped, world: World, copies: int, seed: int) -> None:
        Wrapped.__init__(self, world, copies, seed)
        self.spec = replace(self.spec, **changes)

    return type("OnSpec", (Wrapped,), {"__init__": init})


def method(name: str, function: Callable[..., Any]) -> type[Wrapped]:
    return type("OnMethod", (Wrapped,), {name: function})


def frogs(row: Row, change: Callable[[Tensor], Tensor]) -> Row:
    return replace(row, obs=row.obs | {"frog": change(row.obs["frog"])})


def raising(*_: Any) -> Any:
    raise RuntimeError("the pond is dry")


def recalling(sees: float) -> type[Wrapped]:
    """Frogs are not caught but cut, and their last observations hold `sees`; what they can do then is shown too."""

    def step(self: Wrapped, action: dict[str, Action]) -> tuple[Step, Row]:
        step, row = Wrapped.step(self, action)
        cut = step.terminated & ~ended(step)[:, None]
        frog = torch.where(cut[:, 1:, None], torch.tensor([True, False]), True)
        row = frogs(row, lambda x: torch.where(cut[:, 1:, None], sees, x))
        self.before = replace(row, action_mask=row.action_mask | {"frog": frog})
        return replace(step, terminated=step.terminated & ~cut, truncated=step.truncated | cut), self.before

    return type("Recalling", (Wrapped,), {"step": step})


def refusing(*_: Any) -> Any:
    raise UserError("environment 'pond': step() returned no frog")


def ended(step: Step) -> Tensor:
    return step.episode_terminated | step.episode_truncated


def role(**changes: Any) -> tuple[RoleSpec, ...]:
    stork, frog = Pond().spec.roles
    return stork, replace(frog, **changes)


def filled(value: Tensor, at: Any, number: float) -> Tensor:
    value = value.clone()
    value[at] = number
    return value


def draws_from(draw: Callable[[], Any]) -> type[Wrapped]:
    return on_rows(lambda row: (draw(), row)[1])


def same_buffer(self: Wrapped, row: Row) -> Row:
    if not hasattr(self, "buffer"):
        self.buffer = tree_map(torch.clone, row)
    tree_map(lambda old, new: old.copy_(new), self.buffer, row)
    return self.buffer


def clamp_in_place(self: Wrapped, action: dict[str, Action]) -> dict[str, Action]:
    continuous = action["frog"].continuous
    assert continuous is not None
    continuous.mul_(0.5)
    return action


def unclipped(self: Wrapped, step: Step, before: Row, row: Row) -> Step:
    return replace(step, reward=step.reward + self.wide[:, None] * before.acted[:, None])  # type: ignore[attr-defined]


def remember_width(self: Wrapped, action: dict[str, Action]) -> dict[str, Action]:
    continuous = action["frog"].continuous
    assert continuous is not None
    self.wide = (continuous.abs() > 1).any(-1).any(-1).float()  # type: ignore[attr-defined]
    return action


def pays_for_action(who: Callable[[Row], Tensor]) -> type[Wrapped]:
    """A stork that is paid, one step late, for what the frogs of `who` [B, 2] did."""

    def act(self: Any, action: dict[str, Action]) -> dict[str, Action]:
        continuous = action["frog"].continuous
        assert continuous is not None
        self.due, self.paid = (continuous[..., 0] * who(self.before)).sum(1), getattr(self, "due", torch.zeros(()))
        return action

    def pay(self: Any, step: Step, before: Row, row: Row) -> Step:
        own = self.paid * before.acted
        return replace(step, reward=step.reward + own[:, None] * before.alive)

    return type("PaysForAction", (Wrapped,), {"changed_action": act, "changed_step": pay})


def leaking(step: Step, before: Row, row: Row) -> Step:
    shared = row.obs["frog"][0].sum()
    return replace(step, group_reward=step.group_reward + torch.where(before.acted, shared, 0.0)[:, None])


class Unseeded(Wrapped):
    def __init__(self, world: World, copies: int, seed: int):
        super().__init__(world, copies, seed)
        self.own = seed

    def reset(self, seed: int | None = None) -> Row:
        return super().reset(self.own if seed is None else seed)


class SeedForgotten(Wrapped):
    def __init__(self, world: World, copies: int, seed: int):
        super().__init__(world, copies, 0)


class SeedOfResetIgnored(Wrapped):
    def reset(self, seed: int | None = None) -> Row:
        return super().reset()


class AllCopiesAlike(Wrapped):
    def reset(self, seed: int | None = None) -> Row:
        row = super().reset(seed)
        self.inner._state = {name: value[:1].expand_as(value).clone() for name, value in self.inner._state.items()}
        return replace(row, **{n: tree_map(lambda x: x[:1].expand_as(x), getattr(row, n)) for n in ("obs", "state")})


class ForgetsItsGenerator(Wrapped):
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "inner": {**state["inner"], "generator": torch.Generator().get_state()}}


class ForgetsItsClock(Wrapped):
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "inner": {**state["inner"], "age": torch.zeros_like(state["inner"]["age"])}}


class SavesAnObject(Wrapped):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tool": range(3)}


class ClosesOnce(Wrapped):
    def close(self) -> None:
        super().close()
        assert self.closed < 2, "already closed"


class RenderSteps(Wrapped):
    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        self.inner._state = {**self.inner._state, "at": self.inner._state["at"] * 0.5}
        return super().render(copy, size)


class RestartsAtOnce(Wrapped):
    def changed_row(self, row: Row) -> Row:
        return replace(row, acted=torch.ones_like(row.acted))


class LongerThanDeclared(Wrapped):
    def __init__(self, world: World, copies: int, seed: int):
        super().__init__(world, copies, seed)
        self.spec = replace(self.spec, episode_limit=5)


class BreaksWithOneCopy(Wrapped):
    def changed_row(self, row: Row) -> Row:
        return frogs(row, torch.squeeze)


FAULTS: dict[str, tuple[str, type[Wrapped]]] = {
    # calls
    "reset raises": ("raises", method("reset", raising)),
    "step raises": ("raises", method("step", raising)),
    "render raises": ("raises", method("render", raising)),
    "state_dict raises": ("raises", method("state_dict", raising)),
    "step is refused": ("refused", method("step", refusing)),
    "reset returns a pair": ("returns", method("reset", lambda self, seed=None: (self.inner.reset(seed), {}))),
    "step returns five things": ("returns", method("step", lambda self, action: (1, 2, 3, 4, 5))),
    "close fails the second time": ("close", ClosesOnce),
    "render returns floats": ("render", method("render", lambda self, copy, size: np.zeros((size, size, 3)))),
    "render ignores size": ("render", method("render", lambda self, c, s: np.zeros((99, 99, 3), np.uint8))),
    "render changes the state": ("render-touches", RenderSteps),
    # spec
    "no spec": ("spec", method("__init__", lambda self, world, copies, seed: None)),
    "two roles of one name": ("spec-roles", on_spec(roles=role(name="stork"))),
    "two agents of one name": ("spec-agents", on_spec(roles=role(agents=("stork", "frog")))),
    "groups out of order": ("spec-groups", on_spec(roles=(*role(), *role(name="toad", group="birds")[1:]))),
    "discrete observations": ("spec-observations", on_spec(roles=role(observation_space=spaces.Discrete(3)))),
    "observations in float64": (
        "spec-observations",
        on_spec(roles=role(observation_space=spaces.Box(0, 1, (3,), float))),
    ),
    "text as action": ("spec-actions", on_spec(roles=role(action_space=spaces.Text(3)))),
    "a state of an unknown group": ("spec-states", on_spec(state_sizes={"global": 3, "toads": 2})),
    "a metric named twice": ("spec-metrics", on_spec(metrics=("eaten", "eaten"))),
    "a limit of nothing": ("spec-limit", on_spec(episode_limit=0)),
    # form
    "a role without observations": ("names", on_rows(lambda row: replace(row, obs={"stork": row.obs["stork"]}))),
    "an undeclared metric": ("names", on_spec(metrics=())),
    "numpy in place of tensors": ("type", on_rows(lambda row: replace(row, acted=row.acted.numpy()))),  # type: ignore
    "agents before copies": ("shape", on_rows(lambda row: replace(row, alive=row.alive.T))),
    "observations in double precision": ("dtype", on_rows(lambda row: frogs(row, torch.Tensor.double))),
    "flags as numbers": ("dtype", on_steps(lambda step, *_: replace(step, terminated=step.terminated.float()))),
    "another device": ("device", on_rows(lambda row: replace(row, first=row.first.to("meta")))),
    "squeezed with one copy": ("shape", BreaksWithOneCopy),
    # values
    "NaN is observed": (
        "finite",
        on_rows(lambda row: frogs(row, lambda x: filled(x, (0, 0, 0), float("nan")).where(row.alive[:, 1:, None], x))),
    ),
    "infinite reward": (
        "finite",
        on_steps(
            lambda step, before, _: replace(
                step, reward=filled(step.reward, (1, 0), float("inf")).where(before.acted[:, None], 0)
            )
        ),
    ),
    "observations outside of the space": ("range", on_rows(lambda row: frogs(row, lambda x: x * 10))),
    "a mask with nothing": (
        "mask-empty",
        on_rows(lambda row: replace(row, action_mask={"stork": row.action_mask["stork"] & False})),
    ),
    "a mask of the dead": (
        "mask-dead",
        on_rows(
            lambda row: replace(
                row, action_mask=row.action_mask | {"frog": (row.alive[:, 1:, None] | torch.tensor([True, False]))}
            )
        ),
    ),
    "NaN is observed last": ("finite", recalling(float("nan"))),
    "a last observation outside of the space": ("range", recalling(5.0)),
    "mortal not declared": ("mortal", on_spec(mortal=False)),
    "group rewards not declared": ("group-reward", on_spec(paid_by_group=False)),
    # ends and restarts
    "done is both": (
        "both-ends",
        on_steps(lambda step, *_: replace(step, episode_terminated=ended(step), episode_truncated=ended(step))),
    ),
    "an agent ends twice over": (
        "both-ends",
        on_steps(lambda step, *_: replace(step, truncated=step.truncated | step.terminated)),
    ),
    "no closing rows": ("acted", RestartsAtOnce),
    "closing rows without an end": ("acted", on_rows(lambda row: replace(row, acted=filled(row.acted, 2, 0)))),
    "rewards after closing rows": ("closing-earns", on_steps(lambda step, *_: replace(step, reward=step.reward + 1))),
    "metrics after closing rows": (
        "closing-earns",
        on_steps(lambda step, *_: replace(step, metrics={"eaten": step.metrics["eaten"] + 1})),
    ),
    "ends after closing rows": (
        "closing-ends",
        on_steps(lambda step, before, _: replace(step, episode_truncated=step.episode_truncated | ~before.acted)),
    ),
    "actions of closing rows count": ("closing-action", pays_for_action(lambda row: ~row.acted[:, None])),
    "closing rows hide who was cut": (
        "closing-hides",
        on_rows(lambda row: replace(row, alive=row.alive & row.acted[:, None], first=row.first & row.acted[:, None])),
    ),
    "first is never True": ("first", on_rows(lambda row: replace(row, first=row.first & False))),
    "first is always True": ("first", on_rows(lambda row: replace(row, first=row.alive))),
    "first of the dead": ("first", on_rows(lambda row: replace(row, first=row.first | ~row.alive))),
    "agents outlive their episode": (
        "end-leaves-agents",
        on_steps(lambda step, *_: replace(step, truncated=step.truncated & False)),
    ),
    "agents cut by an end": (
        "end-kind",
        on_steps(
            lambda step, *_: replace(
                step, terminated=step.terminated & False, truncated=step.terminated | step.truncated
            )
        ),
    ),
    "longer than declared": ("limit", LongerThanDeclared),
    "cut without a declared limit": ("limit-undeclared", on_spec(episode_limit=None)),
    # the dead
    "the dead are paid": (
        "dead-earns",
        on_steps(
            lambda step, before, _: replace(step, reward=step.reward + (~before.alive & before.acted[:, None]).float())
        ),
    ),
    "the dead end again": (
        "dead-ends",
        on_steps(
            lambda step, before, _: replace(step, terminated=step.terminated | (~before.alive & before.acted[:, None]))
        ),
    ),
    "actions of the dead count": ("dead-action", pays_for_action(lambda row: ~row.alive[:, 1:] & row.acted[:, None])),
    "slots fill at once": ("slot-empty", on_rows(lambda row: replace(row, alive=torch.ones_like(row.alive)))),
    "agents vanish": (
        "vanished",
        on_steps(lambda step, *_: replace(step, terminated=step.terminated & step.episode_terminated[:, None])),
    ),
    # seeds and state
    "chance without a seed": ("determinism", on_rows(lambda row: frogs(row, lambda x: x * random.Random().random()))),
    "the seed is forgotten": ("seed-ignored", SeedForgotten),
    "every reset is the same": ("reset-repeats", Unseeded),
    "the seed of a reset is ignored": ("reset-seed", SeedOfResetIgnored),
    "copies live one life": ("copies-alike", AllCopiesAlike),
    "copies know of each other": ("copies-leak", on_steps(leaking)),
    "torch's global generator": ("global-random", draws_from(lambda: torch.rand(()))),
    "numpy's global generator": ("global-random", draws_from(lambda: np.random.rand())),  # noqa: NPY002
    "python's global generator": ("global-random", draws_from(random.random)),
    "rows share one buffer": ("fresh", method("changed_row", same_buffer)),
    "actions are changed in place": ("action-modified", method("changed_action", clamp_in_place)),
    "actions are not clipped": (
        "clip",
        type("Unclipped", (Wrapped,), {"changed_action": remember_width, "changed_step": unclipped}),
    ),
    "a state with an object": ("state-kinds", SavesAnObject),
    "a state without generator": ("resume", ForgetsItsGenerator),
    "a state without clock": ("resume", ForgetsItsClock),
}
