"""Sticky actions and action repeat."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from coterie.core.seeds import seed_of
from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.hosting.numpy_state import as_tensor, from_tensor, rng_state, set_rng_state
from coterie.envs.external.wrappers.wrapper import Wrapper


@final
class StickyActions(Wrapper):
    """Repeats each agent's previous action with some probability, independently per agent and step.

    Draws come from a generator of its own, seeded with the seed of the episode. The first action of an agent is never
    replaced. Source: Machado et al. 2018, Revisiting the Arcade Learning Environment.

    Args:
        inner: The wrapped instance.
        probability: Probability of repeating the previous action.
    """

    def __init__(self, inner: Instance, probability: float):
        super().__init__(inner)
        self._probability = probability
        self._generator = np.random.Generator(np.random.PCG64(0))
        self._previous: list[Any] = []  # actions of the previous step, empty at the start of an episode
        self._was_alive = np.zeros(0, np.bool_)

    def attach(self, buffers: EnvBuffers) -> None:
        self._alive, self._terminated = buffers.alive, buffers.terminated
        self.inner.attach(buffers)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed_of(seed, "sticky actions")))
        self._previous = []
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        uniform = self._generator.random(len(actions))
        if self._previous:
            repeat = ((uniform < self._probability) & self._was_alive).tolist()
            actions = [old if again else new for again, old, new in zip(repeat, self._previous, actions, strict=True)]
        self._previous, self._was_alive = actions, self._alive.copy()
        self.inner.step(actions)
        self._was_alive &= ~self._terminated  # the next life of a slot may begin in the step that ends its last

    def state_dict(self) -> dict[str, Any]:
        return {
            "inner": self.inner.state_dict(),
            "generator": rng_state(self._generator),
            "previous": [as_tensor(action) for action in self._previous],
            "was_alive": as_tensor(self._was_alive),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        set_rng_state(self._generator, state["generator"])
        self._previous = [from_tensor(action) for action in state["previous"]]
        self._was_alive = from_tensor(state["was_alive"])


@final
class ActionRepeat(Wrapper):
    """Takes several steps of the environment per step, with the same actions, and sums their rewards.

    It stops early when an agent or the episode ends or an agent appears, so that the episode's final timestep is not
    skipped and every agent takes only actions that it has chosen. Metrics are those of the last step.

    Args:
        inner: The wrapped instance.
        repeats: Steps of the environment per step.
    """

    def __init__(self, inner: Instance, repeats: int):
        super().__init__(inner)
        self._repeats = repeats

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        self._reward, self._group_reward = np.zeros_like(buffers.reward), np.zeros_like(buffers.group_reward)
        self._alive = buffers.alive.copy()
        self.inner.attach(buffers)

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        buffers = self._buffers
        self._reward[...] = 0
        self._group_reward[...] = 0
        self._alive[...] = buffers.alive
        for _ in range(self._repeats):
            buffers.reward[...] = 0
            buffers.group_reward[...] = 0
            buffers.metrics[...] = 0
            self.inner.step(actions)
            self._reward += buffers.reward
            self._group_reward += buffers.group_reward
            ended = buffers.episode_end.any() or buffers.terminated.any() or buffers.truncated.any()
            if ended or not np.array_equal(self._alive, buffers.alive):
                break
        buffers.reward[...] = self._reward
        buffers.group_reward[...] = self._group_reward

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
