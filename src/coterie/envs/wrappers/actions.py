"""Actions that last: repeated by plan, or by chance."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from coterie.envs.hosting.instance import Instance, Place
from coterie.envs.hosting.saved import as_tensor, from_tensor, set_words, words
from coterie.envs.wrappers.wrapper import Wrapper
from coterie.seeds import seed_of


@final
class Sticky(Wrapper):
    """Every step, each agent does with a probability what it did the step before. Source: Machado et al. 2018.

    The copy has a generator of its own for it, from the seed of its episodes. An agent that was not there the step
    before does what was chosen.
    """

    def __init__(self, inner: Instance, probability: float):
        super().__init__(inner)
        self._probability = probability
        self._generator = np.random.Generator(np.random.PCG64(0))
        self._done: list[Any] = []  # what everybody did the step before, if there was one
        self._was = np.zeros(0, np.bool_)  # who did it

    def attach(self, place: Place) -> None:
        self._alive = place.alive
        self.inner.attach(place)

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed_of(seed, "sticky actions")))
        self._done = []
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        lots = self._generator.random(len(actions))
        if self._done:
            again = ((lots < self._probability) & self._was).tolist()
            actions = [old if sticks else new for sticks, old, new in zip(again, self._done, actions, strict=True)]
        self._done, self._was = actions, self._alive.copy()
        self.inner.step(actions)

    def state_dict(self) -> dict[str, Any]:
        return {
            "inner": self.inner.state_dict(),
            "generator": words(self._generator),
            "done": [as_tensor(action) for action in self._done],
            "was": as_tensor(self._was),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        set_words(self._generator, state["generator"])
        self._done = [from_tensor(action) for action in state["done"]]
        self._was = from_tensor(state["was"])


@final
class Repeat(Wrapper):
    """Every step is several of the environment's with the same actions, and earns what these earn together.

    It ends early when an agent or the episode ends or an agent comes, so that its last row is the closing one, and
    nobody does what it did not choose. Metrics are those of the last step.
    """

    def __init__(self, inner: Instance, times: int):
        super().__init__(inner)
        self._times = times

    def attach(self, place: Place) -> None:
        self._place = place
        self._reward, self._group_reward = np.zeros_like(place.reward), np.zeros_like(place.group_reward)
        self._alive = place.alive.copy()
        self.inner.attach(place)

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        place = self._place
        self._reward[...] = 0
        self._group_reward[...] = 0
        self._alive[...] = place.alive
        for _ in range(self._times):
            place.reward[...] = 0
            place.group_reward[...] = 0
            place.metrics[...] = 0
            self.inner.step(actions)
            self._reward += place.reward
            self._group_reward += place.group_reward
            over = place.ended.any() or place.terminated.any() or place.truncated.any()
            if over or not np.array_equal(self._alive, place.alive):
                break
        place.reward[...] = self._reward
        place.group_reward[...] = self._group_reward

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
