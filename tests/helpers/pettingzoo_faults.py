"""User environments with PettingZoo's interface and one seeded fault each, by name; see `gymnasium_faults`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from gymnasium_faults import Table

FIELD = spaces.Box(-20, 20, (2,))
MOVES = spaces.Discrete(3)
"""Left, stay, right."""


class Meadow:
    """A correct parallel environment: three sheep graze on a line, and leave it through a gate."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    possible_agents = ("sheep_0", "sheep_1", "sheep_2")

    def observation_space(self, agent: str) -> Any:
        return FIELD

    def action_space(self, agent: str) -> Any:
        return MOVES

    def reset(self, seed=None, options=None) -> Any:
        self.random = np.random.default_rng(seed)
        self.agents, self.now = list(self.possible_agents), 0
        self.position = {agent: int(self.random.integers(1, 8)) for agent in self.agents}
        return self.seen(), self.masks()

    def step(self, actions) -> Any:
        self.now += 1
        before = list(self.agents)
        for agent in before:
            self.position[agent] += int(actions[agent]) - 1
        out = {agent: self.position[agent] <= 0 for agent in before}
        late = dict.fromkeys(before, self.now >= 12)
        observations, infos = self.seen(), self.masks()
        self.agents = [agent for agent in before if not (out[agent] or late[agent])]
        return observations, {agent: float(out[agent]) for agent in before}, out, late, infos

    def seen(self) -> Any:
        return {agent: np.array([self.position[agent], self.now], np.float32) for agent in self.agents}

    def masks(self) -> Any:
        return {agent: {"action_mask": [1, 1, int(self.position[agent] < 8)]} for agent in self.agents}

    def render(self) -> Any:
        return np.zeros((40, 40, 3), np.uint8)

    def close(self) -> None:
        pass


def meadow(**changes: Any) -> type[Meadow]:
    return type("Changed", (Meadow,), changes)


def stepped(change: Any) -> type[Meadow]:
    """change: called with the environment and the dictionaries that a step returns; modifies or replaces them."""

    def step(self, actions):
        result = Meadow.step(self, actions)
        changed = change(self, *result)
        return result if changed is None else changed

    return meadow(step=step)


def masks(value: Any) -> type[Meadow]:
    return meadow(masks=lambda self: {agent: {"action_mask": value} for agent in self.agents})


class Lingers(Meadow):
    """Agents that ended stay in `agents` for one more step."""

    def reset(self, seed=None, options=None):
        self.lingering: list[str] = []
        return Meadow.reset(self, seed)

    def step(self, actions):
        self.agents = [agent for agent in self.agents if agent not in self.lingering]
        result = Meadow.step(self, actions)
        self.lingering = [agent for agent in result[2] if agent not in self.agents]
        self.agents += self.lingering if self.agents else []
        return result


class Leaves(Meadow):
    def step(self, actions):
        result = Meadow.step(self, actions)
        self.agents = self.agents[:-1] if self.now == 1 else self.agents
        return result


class Guest(Meadow):
    def reset(self, seed=None, options=None):
        result = Meadow.reset(self, seed)
        self.agents.append("wolf")
        self.position["wolf"] = 5
        return self.seen(), self.masks() if result else {}


class MasksLater(Meadow):
    def reset(self, seed=None, options=None):
        return Meadow.reset(self, seed)[0], {agent: {} for agent in self.agents}


def without(part: int, agent: str) -> Any:
    """A step that omits an agent from one of the five dictionaries."""

    def change(self, *parts):
        parts[part].pop(agent, None)

    return stepped(change)


SEVERAL: Table = {
    "no_one_at_reset": (
        "agents-empty",
        "`agents` is empty after reset()",
        meadow(reset=lambda self, seed=None, options=None: (setattr(self, "agents", []), ({}, {}))[1]),
    ),
    "agents_of_none": (
        "agents-empty",
        "`agents` is missing, expected a list of names",
        meadow(
            reset=lambda self, seed=None, options=None: (Meadow.reset(self, seed), setattr(self, "agents", None))[0]
        ),
    ),
    "one_name_twice": (
        "agents-duplicate",
        "['sheep_0'] occurs more than once",
        meadow(possible_agents=("sheep_0", "sheep_0")),
    ),
    "an_unknown_agent": ("agents-unknown", "agent 'wolf' is in `agents`, but not in `possible_agents`", Guest),
    "agents_stay": ("agents-not-removed", "ended, but is in `agents` after the step, while others continue", Lingers),
    "agents_vanish": ("agents-removed", "agent 'sheep_2' left `agents` without termination or truncation", Leaves),
    "no_observation_at_reset": (
        "entry-missing",
        "reset() returned no observations for agent 'sheep_1'",
        meadow(
            reset=lambda self, seed=None, options=None: (
                Meadow.reset(self, seed)[0].pop("sheep_1"),
                ({"sheep_0": np.zeros(2, np.float32)}, {}),
            )[1]
        ),
    ),
    "no_observation": ("entry-missing", "step() returned no observations for agent 'sheep_1'", without(0, "sheep_1")),
    "no_reward": ("entry-missing", "step() returned no rewards for agent 'sheep_0'", without(1, "sheep_0")),
    "no_info": ("info-missing", "step() returned no info for agent 'sheep_0'", without(4, "sheep_0")),
    "the_dead_observe": (
        "entry-surplus",
        "which ended before",
        stepped(
            lambda self, seen, *_: seen.update(
                {a: np.zeros(2, np.float32) for a in self.possible_agents if a not in seen}
            )
        ),
    ),
    "a_list_of_rewards": (
        "step-return",
        "rewards of type list, expected a dict by agent",
        stepped(lambda self, o, r, t, c, i: (o, list(r.values()), t, c, i)),
    ),
    "old_reset": (
        "reset-return",
        "reset() returned a dict, expected the pair",
        meadow(reset=lambda self, seed=None, options=None: Meadow.reset(self, seed)[0]),
    ),
    "space_of_some": (
        "space-missing",
        "observation_space('sheep_1') raised KeyError: 'sheep_1' (pettingzoo_faults.py, line",
        meadow(observation_space=lambda self, agent: {"sheep_0": spaces.Box(-20, 20, (2,))}[agent]),
    ),
    "space_of_the_moment": (
        "space-changes",
        "at step 3, but was",
        meadow(observation_space=lambda self, agent: spaces.Box(-20, 21 if getattr(self, "now", 0) == 3 else 20, (2,))),
    ),
    "all_is_over": (
        "all-key-mismatch",
        "step() returned terminations of '__all__', which is True, but agent 'sheep_",
        stepped(lambda self, o, r, t, *_: t.update(__all__=self.now == 9)),
    ),
    "all_besides": (
        "all-key-ignored",
        "step() returned terminations of '__all__', which is not read",
        stepped(lambda self, o, r, t, *_: t.update(__all__=all(t.values()))),
    ),
    "mask_too_long": ("mask-size", "agent 'sheep_0': the action mask has 4 entries, expected 3", masks([1, 1, 1, 1])),
    "mask_of_logits": ("mask-values", "an action mask holds", masks([0.0, -np.inf, 0.0])),
    "mask_of_nothing": ("mask-no-action", "allows nothing in component 0", masks([0, 0, 0])),
    "mask_later": ("mask-late", "step() returned an action mask, but the first reset() did not", MasksLater),
    "cut_unseen": (
        "entry-missing",
        "step() returned no observations for agent 'sheep_0'",
        stepped(lambda self, o, r, t, late, *_: ([o.pop(agent) for agent in list(o) if late[agent]], None)[1]),
    ),
}


def several(fault: str = "") -> Any:
    """Returns a correct environment without a fault."""
    return SEVERAL[fault][2]() if fault else Meadow()
