"""Seeded faults of an environment: by name, the violated rule and a class with the fault. Every rule has one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from contract_worlds import Pond, Wrapped
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec
from coterie.core.tree import tree_map
from coterie.core.types import Action, Step, Timestep
from coterie.envs.worlds.world import World


def on_timesteps(change: Callable[[Timestep], Timestep]) -> type[Wrapped]:
    return type("OnTimesteps", (Wrapped,), {"changed_timestep": lambda self, timestep: change(timestep)})


def on_steps(change: Callable[[Step, Timestep, Timestep], Step]) -> type[Wrapped]:
    return type(
        "OnSteps", (Wrapped,), {"changed_step": lambda self, step, before, timestep: change(step, before, timestep)}
    )


def on_spec(**changes: Any) -> type[Wrapped]:
    def init(self: Wrapped, world: World, num_envs: int, seed: int) -> None:
        Wrapped.__init__(self, world, num_envs, seed)
        self.spec = replace(self.spec, **changes)

    return type("OnSpec", (Wrapped,), {"__init__": init})


def method(name: str, function: Callable[..., Any]) -> type[Wrapped]:
    return type("OnMethod", (Wrapped,), {name: function})


def frogs(timestep: Timestep, change: Callable[[Tensor], Tensor]) -> Timestep:
    return replace(timestep, obs=timestep.obs | {"frog": change(timestep.obs["frog"])})


def raising(*_: Any) -> Any:
    raise RuntimeError("the pond is dry")


def recalling(value: float) -> type[Wrapped]:
    """Truncates frogs instead of terminating them. Their last observations are `value`, and their masks are shown."""

    def step(self: Wrapped, action: dict[str, Action]) -> tuple[Step, Timestep]:
        step, timestep = Wrapped.step(self, action)
        truncated = step.terminated & ~ended(step)[:, None]
        frog = torch.where(truncated[:, 1:, None], torch.tensor([True, False]), True)
        timestep = frogs(timestep, lambda x: torch.where(truncated[:, 1:, None], value, x))
        self.before = replace(timestep, action_mask=timestep.action_mask | {"frog": frog})
        return replace(step, terminated=step.terminated & ~truncated, truncated=step.truncated | truncated), self.before

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
    return on_timesteps(lambda timestep: (draw(), timestep)[1])


def same_buffer(self: Wrapped, timestep: Timestep) -> Timestep:
    if not hasattr(self, "buffer"):
        self.buffer = tree_map(torch.clone, timestep)
    tree_map(lambda old, new: old.copy_(new), self.buffer, timestep)
    return self.buffer


def clamp_in_place(self: Wrapped, action: dict[str, Action]) -> dict[str, Action]:
    continuous = action["frog"].continuous
    assert continuous is not None
    continuous.mul_(0.5)
    return action


def unclipped_reward(self: Wrapped, step: Step, before: Timestep, timestep: Timestep) -> Step:
    return replace(step, reward=step.reward + self.wide[:, None] * before.acted[:, None])  # type: ignore[attr-defined]


def remember_width(self: Wrapped, action: dict[str, Action]) -> dict[str, Action]:
    continuous = action["frog"].continuous
    assert continuous is not None
    self.wide = (continuous.abs() > 1).any(-1).any(-1).float()  # type: ignore[attr-defined]
    return action


def rewards_action(who: Callable[[Timestep], Tensor]) -> type[Wrapped]:
    """Rewards the stork, one step late, for the actions of the frogs in `who` [B, 2]."""

    def act(self: Any, action: dict[str, Action]) -> dict[str, Action]:
        continuous = action["frog"].continuous
        assert continuous is not None
        self.pending, self.earned = (
            (continuous[..., 0] * who(self.before)).sum(1),
            getattr(self, "pending", torch.zeros(())),
        )
        return action

    def reward(self: Any, step: Step, before: Timestep, timestep: Timestep) -> Step:
        own = self.earned * before.acted
        return replace(step, reward=step.reward + own[:, None] * before.alive)

    return type("RewardsAction", (Wrapped,), {"changed_action": act, "changed_step": reward})


def leaking(step: Step, before: Timestep, timestep: Timestep) -> Step:
    shared = timestep.obs["frog"][0].sum()
    return replace(step, group_reward=step.group_reward + torch.where(before.acted, shared, 0.0)[:, None])


class Unseeded(Wrapped):
    def __init__(self, world: World, num_envs: int, seed: int):
        super().__init__(world, num_envs, seed)
        self.own = seed

    def reset(self, seed: int | None = None) -> Timestep:
        return super().reset(self.own if seed is None else seed)


class SeedForgotten(Wrapped):
    def __init__(self, world: World, num_envs: int, seed: int):
        super().__init__(world, num_envs, 0)


class SeedOfResetIgnored(Wrapped):
    def reset(self, seed: int | None = None) -> Timestep:
        return super().reset()


class EnvsIdentical(Wrapped):
    def reset(self, seed: int | None = None) -> Timestep:
        timestep = super().reset(seed)
        self.inner._state = {name: value[:1].expand_as(value).clone() for name, value in self.inner._state.items()}
        return replace(
            timestep, **{n: tree_map(lambda x: x[:1].expand_as(x), getattr(timestep, n)) for n in ("obs", "state")}
        )


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
    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        self.inner._state = {**self.inner._state, "at": self.inner._state["at"] * 0.5}
        return super().render(env_index, size)


class ResetsAtOnce(Wrapped):
    def changed_timestep(self, timestep: Timestep) -> Timestep:
        return replace(timestep, acted=torch.ones_like(timestep.acted))


class LongerThanDeclared(Wrapped):
    def __init__(self, world: World, num_envs: int, seed: int):
        super().__init__(world, num_envs, seed)
        self.spec = replace(self.spec, episode_limit=5)


class FailsWithOneEnv(Wrapped):
    def changed_timestep(self, timestep: Timestep) -> Timestep:
        return frogs(timestep, torch.squeeze)


FAULTS: dict[str, tuple[str, type[Wrapped]]] = {
    # calls
    "reset raises": ("raises", method("reset", raising)),
    "step raises": ("raises", method("step", raising)),
    "render raises": ("raises", method("render", raising)),
    "state_dict raises": ("raises", method("state_dict", raising)),
    "step is refused": ("refused", method("step", refusing)),
    "reset returns a pair": ("return-type", method("reset", lambda self, seed=None: (self.inner.reset(seed), {}))),
    "step returns five things": ("return-type", method("step", lambda self, action: (1, 2, 3, 4, 5))),
    "close fails the second time": ("close", ClosesOnce),
    "render returns floats": ("render", method("render", lambda self, env_index, size: np.zeros((size, size, 3)))),
    "render ignores size": ("render", method("render", lambda self, c, s: np.zeros((99, 99, 3), np.uint8))),
    "render changes the state": ("render-side-effect", RenderSteps),
    # spec
    "no spec": ("spec", method("__init__", lambda self, world, num_envs, seed: None)),
    "two roles of one name": ("spec-roles", on_spec(roles=role(name="stork"))),
    "two agents of one name": ("spec-agents", on_spec(roles=role(agents=("stork", "frog")))),
    "groups out of order": ("spec-groups", on_spec(roles=(*role(), *role(name="toad", group="birds")[1:]))),
    "discrete observations": ("spec-observations", on_spec(roles=role(observation_space=spaces.Discrete(3)))),
    "observations in float64": (
        "spec-observations",
        on_spec(roles=role(observation_space=spaces.Box(0, 1, (3,), float))),
    ),
    "a text action space": ("spec-actions", on_spec(roles=role(action_space=spaces.Text(3)))),
    "a state of an unknown group": ("spec-states", on_spec(state_sizes={"global": 3, "toads": 2})),
    "a metric named twice": ("spec-metrics", on_spec(metrics=("eaten", "eaten"))),
    "a limit of 0 steps": ("spec-limit", on_spec(episode_limit=0)),
    # form
    "a role without observations": (
        "entries",
        on_timesteps(lambda timestep: replace(timestep, obs={"stork": timestep.obs["stork"]})),
    ),
    "an undeclared metric": ("entries", on_spec(metrics=())),
    "numpy in place of tensors": (
        "type",
        on_timesteps(lambda timestep: replace(timestep, acted=timestep.acted.numpy())),
    ),  # type: ignore
    "a list of rewards": ("type", on_steps(lambda step, *_: replace(step, reward=step.reward.tolist()))),
    "agents before environments": ("shape", on_timesteps(lambda timestep: replace(timestep, alive=timestep.alive.T))),
    "observations in double precision": ("dtype", on_timesteps(lambda timestep: frogs(timestep, torch.Tensor.double))),
    "flags as numbers": ("dtype", on_steps(lambda step, *_: replace(step, terminated=step.terminated.float()))),
    "another device": ("device", on_timesteps(lambda timestep: replace(timestep, first=timestep.first.to("meta")))),
    "squeezed with one environment": ("shape", FailsWithOneEnv),
    # values
    "NaN is observed": (
        "non-finite",
        on_timesteps(
            lambda timestep: frogs(
                timestep, lambda x: filled(x, (0, 0, 0), float("nan")).where(timestep.alive[:, 1:, None], x)
            )
        ),
    ),
    "infinite reward": (
        "non-finite",
        on_steps(
            lambda step, before, _: replace(
                step, reward=filled(step.reward, (1, 0), float("inf")).where(before.acted[:, None], 0)
            )
        ),
    ),
    "observations outside of the space": (
        "out-of-bounds",
        on_timesteps(lambda timestep: frogs(timestep, lambda x: x * 10)),
    ),
    "a mask without choices": (
        "mask-empty",
        on_timesteps(lambda timestep: replace(timestep, action_mask={"stork": timestep.action_mask["stork"] & False})),
    ),
    "a mask of dead agents": (
        "mask-dead",
        on_timesteps(
            lambda timestep: replace(
                timestep,
                action_mask=timestep.action_mask
                | {"frog": (timestep.alive[:, 1:, None] | torch.tensor([True, False]))},
            )
        ),
    ),
    "NaN is observed last": ("non-finite", recalling(float("nan"))),
    "a last observation outside of the space": ("out-of-bounds", recalling(5.0)),
    "deaths not declared": ("agents-can-die", on_spec(agents_can_die=False)),
    "group rewards not declared": ("group-reward", on_spec(has_group_reward=False)),
    # ends and resets
    "an episode is terminated and truncated": (
        "terminated-and-truncated",
        on_steps(lambda step, *_: replace(step, episode_terminated=ended(step), episode_truncated=ended(step))),
    ),
    "an agent is terminated and truncated": (
        "terminated-and-truncated",
        on_steps(lambda step, *_: replace(step, truncated=step.truncated | step.terminated)),
    ),
    "no final timesteps": ("acted", ResetsAtOnce),
    "final timesteps without an end": (
        "acted",
        on_timesteps(lambda timestep: replace(timestep, acted=filled(timestep.acted, 2, 0))),
    ),
    "rewards after final timesteps": (
        "reset-step-reward",
        on_steps(lambda step, *_: replace(step, reward=step.reward + 1)),
    ),
    "metrics after final timesteps": (
        "reset-step-reward",
        on_steps(lambda step, *_: replace(step, metrics={"eaten": step.metrics["eaten"] + 1})),
    ),
    "ends after final timesteps": (
        "reset-step-end",
        on_steps(lambda step, before, _: replace(step, episode_truncated=step.episode_truncated | ~before.acted)),
    ),
    "actions at final timesteps matter": (
        "reset-step-action",
        rewards_action(lambda timestep: ~timestep.acted[:, None]),
    ),
    "truncated agents are not alive at the final timestep": (
        "final-timestep-alive",
        on_timesteps(
            lambda timestep: replace(
                timestep, alive=timestep.alive & timestep.acted[:, None], first=timestep.first & timestep.acted[:, None]
            )
        ),
    ),
    "first is never True": ("first", on_timesteps(lambda timestep: replace(timestep, first=timestep.first & False))),
    "first is always True": ("first", on_timesteps(lambda timestep: replace(timestep, first=timestep.alive))),
    "first of dead agents": (
        "first",
        on_timesteps(lambda timestep: replace(timestep, first=timestep.first | ~timestep.alive)),
    ),
    "agents outlive their episode": (
        "episode-end-agents",
        on_steps(lambda step, *_: replace(step, truncated=step.truncated & False)),
    ),
    "agents truncated in a terminated episode": (
        "end-type",
        on_steps(
            lambda step, *_: replace(
                step, terminated=step.terminated & False, truncated=step.terminated | step.truncated
            )
        ),
    ),
    "episodes longer than declared": ("episode-limit", LongerThanDeclared),
    "truncated without a declared limit": ("episode-limit-undeclared", on_spec(episode_limit=None)),
    # dead agents
    "dead agents are rewarded": (
        "dead-reward",
        on_steps(
            lambda step, before, _: replace(step, reward=step.reward + (~before.alive & before.acted[:, None]).float())
        ),
    ),
    "dead agents end again": (
        "dead-end",
        on_steps(
            lambda step, before, _: replace(step, terminated=step.terminated | (~before.alive & before.acted[:, None]))
        ),
    ),
    "actions of dead agents matter": (
        "dead-action",
        rewards_action(lambda timestep: ~timestep.alive[:, 1:] & timestep.acted[:, None]),
    ),
    "slots are reused at once": (
        "alive-after-end",
        on_timesteps(lambda timestep: replace(timestep, alive=torch.ones_like(timestep.alive))),
    ),
    "agents disappear": (
        "end-not-reported",
        on_steps(lambda step, *_: replace(step, terminated=step.terminated & step.episode_terminated[:, None])),
    ),
    # seeds and state
    "unseeded randomness": (
        "determinism",
        on_timesteps(lambda timestep: frogs(timestep, lambda x: x * random.Random().random())),
    ),
    "the seed is ignored": ("seed-ignored", SeedForgotten),
    "every reset is the same": ("reset-repeats", Unseeded),
    "the seed of a reset is ignored": ("reset-seed", SeedOfResetIgnored),
    "environments are identical": ("envs-identical", EnvsIdentical),
    "environments depend on each other": ("envs-not-independent", on_steps(leaking)),
    "torch's global generator": ("global-rng", draws_from(lambda: torch.rand(()))),
    "numpy's global generator": ("global-rng", draws_from(lambda: np.random.rand())),  # noqa: NPY002
    "python's global generator": ("global-rng", draws_from(random.random)),
    "timesteps share one buffer": ("output-reused", method("changed_timestep", same_buffer)),
    "actions are changed in place": ("action-modified", method("changed_action", clamp_in_place)),
    "actions are not clipped": (
        "action-clipping",
        type("Unclipped", (Wrapped,), {"changed_action": remember_width, "changed_step": unclipped_reward}),
    ),
    "a state with an object": ("state-types", SavesAnObject),
    "a state without generator": ("resume", ForgetsItsGenerator),
    "a state without clock": ("resume", ForgetsItsClock),
}
