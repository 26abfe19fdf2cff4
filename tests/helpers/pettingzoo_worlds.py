"""Small environments with PettingZoo's interface, each for one feature, and factories of them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

NEAR = spaces.Box(-100, 100, (2,), np.float32)
FAR = spaces.Box(-100, 100, (3,), np.float64)


class Isle:
    """Agents that join and leave on a schedule; not a subclass of PettingZoo's classes.

    `worker_0` dies after `dies` steps. `scout_0` has another observation space and two action components, joins after
    step 2 and is truncated at step 6. The remaining agents terminate at step 9.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    possible_agents = ["worker_0", "scout_0", "worker_1"]  # noqa: RUF012

    def __init__(self, dies: int = 4, mask: str = "info"):
        self.dies, self.mask = dies, mask
        self.seen: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space:
        if agent.startswith("scout"):
            return FAR
        return spaces.Dict({"observation": NEAR, "action_mask": spaces.MultiBinary(3)}) if self.mask == "obs" else NEAR

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3) if agent.startswith("worker") else spaces.MultiDiscrete([2, 4])

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.start = np.random.default_rng(seed).integers(90)
        self.now, self.agents = 0, ["worker_0", "worker_1"]
        return self._observations(), self._infos()

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents), (actions, self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action)
            assert not agent.startswith("worker") or self.mask == "late" or self._mask(agent)[action]
        self.seen.append(actions)
        self.now += 1
        before = list(self.agents)
        terminations = {agent: self.now == 9 or (agent, self.now) == ("worker_0", self.dies) for agent in before}
        truncations = {agent: (agent, self.now) == ("scout_0", 6) for agent in before}
        observations, infos = self._observations(), self._infos()
        self.agents = [agent for agent in before if not (terminations[agent] or truncations[agent])]
        if self.now == 2:
            self.agents.append("scout_0")
            observations |= self._observations()
            infos |= self._infos()
        rewards = {agent: self.now + 10.0 * self.possible_agents.index(agent) for agent in before}
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        return np.array([[self.start], [self.now]])

    def _mask(self, agent: str) -> np.ndarray:
        """Masks one action, which changes with every step."""
        return np.array([i != (self.now + int(agent[-1])) % 3 for i in range(3)], np.int8)

    def _observations(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for agent in self.agents:
            numbers = [self.start, self.now, 7.0][: 3 if agent.startswith("scout") else 2]
            seen[agent] = np.array(numbers, self.observation_space(agent).dtype or np.float32)
            if self.mask == "obs" and agent.startswith("worker"):
                seen[agent] = {"observation": seen[agent].astype(np.float32), "action_mask": self._mask(agent)}
        return seen

    def _infos(self) -> dict[str, Any]:
        shows = self.mask == "info" or (self.mask == "late" and self.now > 3)
        return {agent: {"action_mask": self._mask(agent)} if shows and agent[0] == "w" else {} for agent in self.agents}

    def close(self) -> None:
        pass


class Crowd:
    """Agents that are not known in advance: one joins per step and leaves after `age` steps."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, age: int = 3, steps: int = 12):
        self.age, self.steps = age, steps

    def observation_space(self, agent: str) -> spaces.Space:
        return NEAR

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.number = int(np.random.default_rng(seed).integers(50))
        self.now, self.born = 0, {f"ant_{self.number}": 0}
        self.agents = list(self.born)
        return {agent: self._observe(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.now += 1
        before, over = list(self.agents), self.now == self.steps
        old = {agent: self.now - self.born[agent] == self.age for agent in before}
        self.agents = [] if over else [agent for agent in before if not old[agent]]
        if not over:
            joined = f"ant_{self.number + self.now}"
            self.born[joined] = self.now
            self.agents.append(joined)
        observations = {agent: self._observe(agent) for agent in [*before, *self.agents]}
        rewards = {agent: float(actions[agent][0]) for agent in before}
        return observations, rewards, old, dict.fromkeys(before, over), {}

    def _observe(self, agent: str) -> np.ndarray:
        return np.array([int(agent[4:]), self.now - self.born[agent]], np.float32)

    def close(self) -> None:
        pass


class Shifts:
    """Two agents with a reward of 1 per step: `agent_0` is truncated after 3 steps, `agent_1` after 6.

    Observations are 1 and, with `clock`, the step number. `last` replaces the 1 in the last observation of `agent_0`.
    Action 1 is legal after odd steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    possible_agents = ["agent_0", "agent_1"]  # noqa: RUF012

    def __init__(self, clock: bool = False, last: float = 1.0):
        self.clock, self.last = clock, last

    def observation_space(self, agent: str) -> spaces.Space:
        return NEAR

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.now, self.agents = 0, list(self.possible_agents)
        return self._shown(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        before = self.agents
        self.now += 1
        cut = {agent: self.now == (3 if agent == "agent_0" else 6) for agent in before}
        self.agents = [agent for agent in before if not cut[agent]]
        observations, infos = self._shown(before)
        return observations, dict.fromkeys(before, 1.0), dict.fromkeys(before, False), cut, infos

    def _shown(self, agents: list[str]) -> tuple[Any, Any]:
        odd = {agent: self.last if (agent, self.now) == ("agent_0", 3) else 1.0 for agent in agents}
        observations = {agent: np.array([odd[agent], self.clock * self.now], np.float32) for agent in agents}
        return observations, {agent: {"action_mask": np.array([1, self.now % 2], np.int8)} for agent in agents}

    def close(self) -> None:
        pass


class Faulty(Isle):
    """An `Isle` with a fault."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        start = super().reset(seed)
        if self.fault == "reset":
            return start[0]
        if self.fault == "empty":
            self.agents = []
        return start

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = super().step(actions)
        if self.fault == "step":
            return observations, rewards, terminations, infos
        if self.fault == "vanished" and self.now == 3:
            self.agents.remove("worker_1")
        if self.fault == "stranger" and self.now == 3:
            self.agents.append("worker_7")
        if self.fault == "mask":
            infos["worker_0"] = {"action_mask": [1, 1]}
        part = {"rewards": rewards, "truncations": truncations, "observations": observations}.get(self.fault, {})
        part.pop("worker_1", None)
        if self.fault == "unseen" and self.now == 6:
            observations.pop("scout_0", None)
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        return np.zeros(2 + (self.fault == "state" and self.now > 2))


class Seedless(Isle):
    def reset(self) -> tuple[Any, Any]:  # pyright: ignore
        return super().reset()


def isle(dies: int = 4, mask: str = "info") -> Isle:
    return Isle(dies, mask)


def pendulum(g: float = 10.0) -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", g=g)


def spread(**params: Any) -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(**params)


def spread_aec(**params: Any) -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.env(**params)


def raising() -> Any:
    raise TypeError("something within")


def leaving() -> Any:
    raise SystemExit(4)


def needy(size: int) -> Isle:
    return Isle(size)


class Ring(AECEnv):
    """Three players in turn: the next player is rewarded with the number of the move, and player 2 with half of it.

    `player_1` terminates after its second move; the others are truncated after 11 moves. Moves are 1 to 3; the mask, in
    the info, excludes one.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "ring", "is_parallelizable": False}  # noqa: RUF012
    possible_agents = ["player_0", "player_1", "player_2"]  # noqa: RUF012

    def observation_space(self, agent: str) -> spaces.Space:
        return NEAR

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3, start=1)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.now, self.moves = list(self.possible_agents), 0, []
        self.start = int(np.random.default_rng(seed).integers(50))
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {"action_mask": self._mask()} for agent in self.agents}
        self.agent_selection = "player_0"

    def _mask(self) -> np.ndarray:
        return np.array([i != (self.start + self.now) % 3 for i in range(3)], np.int8)

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.now, self.possible_agents.index(agent)], np.float32)

    def step(self, action: int) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        assert self.infos[mover]["action_mask"][action - 1]
        self._cumulative_rewards[mover] = 0
        self._clear_rewards()
        self.now += 1
        self.moves.append((mover, int(action)))
        then = self.agents[(self.agents.index(mover) + 1) % len(self.agents)]
        self.rewards[then] += float(action)
        self.rewards["player_2"] += action / 2
        self._accumulate_rewards()
        self.terminations[mover] = mover == "player_1" and self.now >= 4
        if self.now == 11:
            self.truncations = dict.fromkeys(self.agents, True)
        self.infos = {agent: {"action_mask": self._mask()} for agent in self.agents}
        self.agent_selection = then
        self._deads_step_first()


class Recalled(Ring):
    """`player_1` is truncated after its second move, and the others continue."""

    def step(self, action: int) -> None:
        super().step(action)
        if self.terminations.get("player_1"):
            self.terminations["player_1"], self.truncations["player_1"] = False, True


class Arena:
    """A guard that lives for the episode of `steps` steps, and fighters of which number k dies every k + 2 steps.

    A fighter that dies gets a reward of 1 and, with `revives`, begins its next life in the same step: it stays in
    `agents`, and its observation is the first of that life. Without, it stays in `agents` and remains terminated.
    Observations are the age, in steps, and the step.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, fighters: int = 2, steps: int = 12, revives: bool = True):
        self.fighters = [f"fighter_{k}" for k in range(fighters)]
        self.possible_agents, self.steps, self.revives = ["guard", *self.fighters], steps, revives

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.now, self.born, self.dead = 0, dict.fromkeys(self.possible_agents, 0), set()
        self.agents = list(self.possible_agents)
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.now += 1
        awaited = [agent for agent in self.agents if agent not in self.dead]
        assert set(awaited) <= set(actions), (sorted(actions), awaited)
        over = self.now == self.steps
        died = [a for k, a in enumerate(self.fighters) if a not in self.dead and self.now - self.born[a] == k + 2]
        if self.revives:
            self.born |= dict.fromkeys(died, self.now)
        else:
            self.dead |= set(died)
        observed = self._observe()
        rewards = {agent: float(agent in died) for agent in self.agents}
        ended = {agent: agent in died or agent in self.dead for agent in self.agents}
        if over:
            self.agents = []
        return observed, rewards, ended, dict.fromkeys(ended, over), {}

    def _observe(self) -> dict[str, np.ndarray]:
        return {agent: np.array([self.now - self.born[agent], self.now], np.float32) for agent in self.agents}

    def close(self) -> None:
        pass
