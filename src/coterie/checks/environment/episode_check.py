"""Plays an environment with random actions, and checks everything it returns against its interface."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.checks.environment.interfaces import ByAgent, EnvInterface, space_problems
from coterie.checks.environment.rules import CheckAborted, FindingCollector
from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec
from coterie.envs.external.mask_sources import MASK, MaskForm, as_mask, without_mask
from coterie.envs.external.spaces import Actuator
from coterie.envs.external.spaces_fit import Problem, as_array, key_problems, observation_problems

_ALL_KEY = "__all__"


class EpisodeCheck:
    """Steps one environment with random actions that its masks allow.

    Args:
        interface: The environment.
        findings: Collects the violations.
        limit: Steps after which a new episode is started; None if the environment ends all episodes.
        has_slots: True if agents need not be in `possible_agents`.
        seed: Seed of the actions.
    """

    def __init__(
        self,
        interface: EnvInterface,
        findings: FindingCollector,
        *,
        limit: int | None,
        has_slots: bool,
        seed: int = 0,
    ):
        self.interface, self._findings, self._has_slots = interface, findings, has_slots
        self._limit: float = float("inf") if limit is None else limit
        self._generator = np.random.default_rng(seed)
        self._spaces: dict[Any, tuple[Any, Any]] = {}
        self._is_masked = False  # the first reset returned a mask
        self._returned: list[tuple[Any, Any, int]] = []  # observation, copy, step
        self._elapsed = self._step_count = 0
        self._ended: set[Any] = set()  # agents that ended in this episode and have not returned
        self._not_removed: set[Any] = set()  # agents that ended and are still in `agents`
        self._reborn: set[Any] = set()  # agents that terminated in the last step and continue with a new life
        self.results: list[Any] = []
        """Copies of the results of every reset and step."""
        self.lengths: list[int] = []
        """Lengths of finished episodes, in steps."""

    # ------------------------------------------------------------------------------------------------------ stepping

    def reset(self, seed: int | None) -> None:
        """Starts an episode.

        Raises:
            CheckAborted: If the environment cannot be stepped afterwards.
        """
        result = self.interface.reset(seed)
        self._elapsed, self._ended, self._not_removed, self._reborn = 0, set(), set(), set()
        agents = self._current_agents()
        if not agents:
            self._add("agents-empty", "`agents` is empty after reset(): an episode needs at least one agent")
            raise CheckAborted
        for agent in agents:
            self.spaces(agent)
        self._require_entries(result, "observations", agents, "reset()")
        self._check_observations(result, agents, "reset()")
        self._last = result
        self.results.append(copy.deepcopy(result["observations"]))

    def steps(self, count: int) -> Iterator[None]:
        """Takes `count` steps, with resets where episodes end; yields after each step."""
        for _ in range(count):
            self._step_count += 1
            if not self._step():
                self.lengths.append(self._elapsed)
                self.reset(self._episode_seed())
            elif self._elapsed >= self._limit:
                self.reset(self._episode_seed())
            yield

    def _episode_seed(self) -> int | None:
        """Seed of an episode after the first, as Coterie's adapters choose it."""
        return int(self._generator.integers(2**31)) if self.interface.several_agents else None

    def _step(self) -> bool:
        """Takes a step; True if the episode continues."""
        before = self._current_agents()
        acting = [agent for agent in self.interface.acting_agents() if agent in before]
        actions = {agent: self._sample_action(agent) for agent in acting}
        given = copy.deepcopy(actions)
        result = self.interface.step(actions)
        self._elapsed += 1
        if not equal(actions, given):
            self._add("action-modified", "step() modified the action passed to it")
        without = {agent for agent in self._reborn if agent not in result["terminations"]}
        if without:  # the environment leaves agents that ended in `agents`
            self._add("agents-not-removed", _not_removed(next(iter(without))))
            self._not_removed |= without
            before = [agent for agent in before if agent not in without]
        ended = self._check_ends(result, before)
        self._check_all_key(result, [agent for agent in before if agent not in ended])
        self._check_rewards(result, before)
        reads_agents = self.interface.several_agents
        after = self._current_agents() if reads_agents else [agent for agent in before if agent not in ended]
        reborn: set[Any] = set()
        if reads_agents:
            reborn = self._check_agents(before, after, ended, result)
        listed = self.interface.current_agents()
        self._not_removed = {agent for agent in listed if agent in ended - reborn or agent in self._not_removed}
        self._reborn = reborn
        remaining = [agent for agent in after if agent not in ended or agent in reborn]
        if remaining:
            self._require_entries(result, "observations", remaining, "step()")
            self._check_infos(result, remaining)
        else:  # values are bootstrapped from the last observation of truncated agents
            truncated = [agent for agent in before if not as_bool(result["terminations"][agent])]
            self._require_entries(result, "observations", truncated, "step()")
        if not self.interface.turn_based:  # there every result covers all agents
            self._check_surplus(result, {*before, *after})
        self._ended |= ended
        self._ended -= set(remaining)
        observing = [agent for agent in (*remaining, *before) if agent in result["observations"]]
        self._check_observations(result, list(dict.fromkeys(observing)), "step()")
        self.check_spaces_again(self.interface, f"at step {self._step_count}", remaining)
        self._last = result
        self.results.append(copy.deepcopy({name: result[name] for name in ("observations", "rewards")}))
        return bool(remaining)

    def _sample_action(self, agent: Any) -> Any:
        """A random native action among those that the mask allows."""
        action_space = self.spaces(agent)[1]
        spec = ActionSpec.of(action_space)
        mask = self._read_mask(agent, self._last, spec)
        choices, start = [], 0
        for size in spec.choices:
            legal = np.flatnonzero(mask[start : start + size]) if mask is not None else np.arange(size)
            choices.append(int(self._generator.choice(legal)) if legal.size else 0)
            start += size
        numbers = self._generator.uniform(-1, 1, (1, spec.continuous)).astype(np.float32)
        return Actuator(action_space)(np.array([choices], np.int64), numbers)[0]

    # ------------------------------------------------------------------------------------------ spaces, observations

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        """Returns an agent's observation and action space, which are checked once.

        Raises:
            CheckAborted: If they are not supported.
        """
        if agent not in self._spaces:
            found = self.interface.spaces(agent)
            observes = without_mask(found[0]) if self.interface.mask_in_observation(agent) else found[0]
            problems = list(space_problems(observes, found[1]))
            for rule, message in problems:
                self._add(rule, self.interface.agent_prefix(agent) + message, with_step=False)
            if problems:
                raise CheckAborted
            self._spaces[agent] = copy.deepcopy(found)
        return self._spaces[agent]

    def check_spaces_again(self, interface: EnvInterface, when: str, agents: list[Any] | None = None) -> None:
        """Compares spaces with those seen first.

        Args:
            interface: The environment, this one or another of the same factory.
            when: Time of the comparison, for messages.
            agents: Agents to compare; None for all seen so far.

        Raises:
            CheckAborted: If spaces change in mid-episode.
        """
        for agent in self._spaces if agents is None else agents:
            found, first = interface.spaces(agent), self.spaces(agent)
            for name, old, new in zip(("observation_space", "action_space"), first, found, strict=True):
                if old != new:
                    message = f"{self.interface.agent_prefix(agent)}{name} is {new} {when}, but was {old} at first"
                    self._add("space-changes", message, with_step=False)
                    if agents is not None:
                        raise CheckAborted

    def check_reuse(self) -> None:
        """Checks that observations did not change after they had been returned."""
        for observation, copied, step in self._returned:
            if not equal(observation, copied):
                message = f"the observation of step {step} changed during later steps"
                self._add("observation-reused", message, with_step=False)
                return

    def _check_observations(self, result: ByAgent, agents: list[Any], call: str) -> None:
        for agent in agents:
            observation = result["observations"][agent]
            self._returned.append((observation, copy.deepcopy(observation), self._step_count))
            self._check_mask(agent, result, call)
            for rule, message in self._observation_problems(agent, observation):
                self._add(rule, f"{self.interface.agent_prefix(agent)}{message}, returned by {call}")

    def _observation_problems(self, agent: Any, observation: Any) -> Iterator[Problem]:
        """Yields the differences between an observation without its mask and the space."""
        space = self.spaces(agent)[0]
        if not (self.interface.mask_in_observation(agent) and isinstance(observation, Mapping)):
            yield from observation_problems(space, observation)
            return
        assert isinstance(space, spaces.Dict)
        yield from key_problems(space, observation)
        parts = {key: part for key, part in space.spaces.items() if key != MASK and key in observation}
        for key, part in parts.items():
            name = "the observation" if len(parts) == 1 else f"the observation['{key}']"
            yield from observation_problems(part, observation[key], name)

    def _read_mask(self, agent: Any, result: ByAgent, spec: ActionSpec) -> np.ndarray | None:
        """The agent's flattened mask; None if there is none.

        Raises:
            CheckAborted: If it has other parts than the action space.
        """
        if not spec.choices:
            return None
        mask = self.interface.mask(agent, result["observations"].get(agent), result["infos"].get(agent))
        if mask is None:
            return None
        try:
            return MaskForm(self.spaces(agent)[1]).flat(mask)
        except UserError as error:
            self._add("mask-size", f"{self.interface.agent_prefix(agent)}{error}")
            raise CheckAborted from error

    def _check_mask(self, agent: Any, result: ByAgent, call: str) -> None:
        spec = ActionSpec.of(self.spaces(agent)[1])
        mask, prefix = self._read_mask(agent, result, spec), self.interface.agent_prefix(agent)
        if mask is None:
            return
        if not self.results:
            self._is_masked = True
        elif not self._is_masked:
            self._add("mask-late", f"{prefix}{call} returned an action mask, but the first reset() did not")
        if mask.size != spec.mask_size:
            self._add("mask-size", f"{prefix}the action mask has {mask.size} entries, expected {spec.mask_size}")
            raise CheckAborted
        try:
            mask = as_mask(mask)
        except UserError as error:
            self._add("mask-values", f"{prefix}{error}")
            raise CheckAborted from error
        if agent not in self.interface.acting_agents():
            return
        for i, component in enumerate(np.split(mask, np.cumsum(spec.choices)[:-1])):
            if not component.any():
                self._add("mask-no-action", f"{prefix}the action mask allows nothing in component {i}")

    # ------------------------------------------------------------------------------------------ rewards, ends, agents

    def _check_rewards(self, result: ByAgent, before: list[Any]) -> None:
        self._require_entries(result, "rewards", before, "step()")
        for agent in before:
            value, prefix = result["rewards"][agent], self.interface.agent_prefix(agent)
            reward = as_float(value)
            if reward is None:
                shape = f" of shape {list(value.shape)}" if isinstance(value, np.ndarray) else ""
                message = f"the reward is a {type(value).__name__}{shape} ({value!r:.40}), expected a number"
                self._add("reward-type", prefix + message)
            elif not np.isfinite(reward):
                self._add("non-finite", f"{prefix}the reward is {reward}")

    def _check_ends(self, result: ByAgent, before: list[Any]) -> set[Any]:
        """The agents that ended in this step."""
        ended = set()
        for part, name in (("terminations", "terminated"), ("truncations", "truncated")):
            self._require_entries(result, part, before, "step()")
            for agent in before:
                value = result[part][agent]
                flag = as_bool(value)
                if flag is None:
                    message = f"{name} is a {type(value).__name__} ({value!r:.40}), expected True or False"
                    self._add("end-flag-type", self.interface.agent_prefix(agent) + message)
                    raise CheckAborted
                if flag:
                    ended.add(agent)
        return ended

    def _check_all_key(self, result: ByAgent, remaining: list[Any]) -> None:
        """Checks RLlib's key for all agents. CheckAborted if it contradicts the flags of the agents."""
        for part in ("terminations", "truncations"):
            if _ALL_KEY not in result[part]:
                continue
            value, message = result[part][_ALL_KEY], f"step() returned {part} of '{_ALL_KEY}'"
            if remaining and as_bool(value):
                message += f", which is {value!r:.40}, but agent '{remaining[0]}' continues"
                self._add("all-key-mismatch", message)
                raise CheckAborted
            if not remaining:
                self._add("all-key-ignored", f"{message}, which is not read", part)

    def _current_agents(self) -> list[Any]:
        """The agents that the environment lists, without those that ended and were not removed."""
        listed, possible = self.interface.current_agents(), self.interface.possible_agents()
        duplicates = {agent for agents in (listed, possible) for agent in agents if agents.count(agent) > 1}
        if duplicates:
            message = f"{sorted(map(str, duplicates))} occurs more than once in the list of agents"
            self._add("agents-duplicate", message)
            raise CheckAborted
        unknown = [agent for agent in listed if possible and agent not in possible]
        if unknown and not self._has_slots:
            message = f"agent '{unknown[0]}' is in `agents`, but not in `possible_agents` {possible}"
            self._add("agents-unknown", message)
            raise CheckAborted
        return [agent for agent in listed if agent not in self._not_removed]

    def _check_agents(self, before: list[Any], after: list[Any], ended: set[Any], result: ByAgent) -> set[Any]:
        """Checks the agents after a step. Returns those that terminated and begin a new life while others continue."""
        removed = [agent for agent in before if agent not in after and agent not in ended]
        if removed:
            self._add("agents-removed", f"agent '{removed[0]}' left `agents` without termination or truncation")
            raise CheckAborted
        listed = [agent for agent in before if agent in ended and agent in after]
        if len(after) == len(listed):  # the episode is over
            return set()
        terminated = {agent for agent in listed if as_bool(result["terminations"][agent])}
        reborn = {agent for agent in terminated - self._reborn if agent in result["observations"]}
        kept = [agent for agent in listed if agent not in reborn]
        if kept:
            self._add("agents-not-removed", _not_removed(kept[0]))
        return reborn

    def _require_entries(self, result: ByAgent, part: str, agents: list[Any], call: str) -> None:
        missing = [agent for agent in agents if agent not in result[part]]
        if missing:
            self._add("entry-missing", f"{call} returned no {part} for agent '{missing[0]}'", part)
            raise CheckAborted

    def _check_infos(self, result: ByAgent, agents: list[Any]) -> None:
        missing = [agent for agent in agents if agent not in result["infos"]]
        if missing:
            self._add("info-missing", f"step() returned no info for agent '{missing[0]}'")

    def _check_surplus(self, result: ByAgent, agents: set[Any]) -> None:
        for part in ("observations", "rewards"):
            surplus = [agent for agent in result[part] if agent not in agents]
            if surplus:
                reason = "ended before" if surplus[0] in self._ended else "is not in `agents`"
                self._add("entry-surplus", f"step() returned {part} for agent '{surplus[0]}', which {reason}", part)

    def _add(self, rule: str, message: str, subject: str = "", *, with_step: bool = True) -> None:
        self._findings.add(rule, f"step {self._step_count}: {message}" if with_step else message, subject)


def _not_removed(agent: Any) -> str:
    return f"agent '{agent}' ended, but is in `agents` after the step, while others continue"


def as_bool(value: Any) -> bool | None:
    """Returns an end flag as a bool, None if it has another type."""
    array = as_array(value)
    return bool(array) if array is not None and array.ndim == 0 and array.dtype.kind in "biu" else None


def as_float(value: Any) -> float | None:
    """Returns a reward as a float, None if it is not a scalar."""
    array = as_array(value)
    return float(array) if array is not None and array.ndim == 0 else None


def equal(one: Any, other: Any) -> bool:
    """True if two observations or actions are equal. They may be nested; NaN equals NaN."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    a, b = as_array(one), as_array(other)
    if a is None or b is None:
        return type(one) is type(other)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
