"""A common view of Gymnasium and PettingZoo environments: agents, spaces, and results by agent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

import gymnasium
from gymnasium import spaces

from coterie.checks.environment.rules import CheckAborted, FindingCollector, describe_error
from coterie.core.errors import LimitExceededError, message_of
from coterie.core.specs import ActionSpec
from coterie.envs.contract.closing import close_limit
from coterie.envs.external.aec import TurnBasedEnv
from coterie.envs.external.foreign_interfaces import foreign_interface
from coterie.envs.external.mask_sources import MASK, MaskSource, find_masks, holds_mask, similar_note
from coterie.envs.external.multi_agent_env import is_multiagent
from coterie.envs.external.pettingzoo import as_parallel
from coterie.envs.external.returned import STEP_PARTS, current_agents, described, from_reset, from_step
from coterie.envs.external.rllib import RllibEnv
from coterie.envs.external.spaces import Observer
from coterie.envs.external.spaces_fit import Problem
from coterie.envs.external.user_factory import supported

ByAgent = dict[str, dict[Any, Any]]
"""Results of `reset` or `step`: by part (see STEP_PARTS) and agent."""


class EnvInterface(ABC):
    """Calls an environment through its native interface, and returns results by agent."""

    env: Any
    several_agents: bool
    """True if results are by agent, and every episode has its own seed."""
    turn_based: bool = False
    """True if agents may have to wait for others."""

    def __init__(self, findings: FindingCollector):
        self._findings = findings

    def call_reset(self, seed: int | None, space: Any = None) -> tuple[Any, Mapping[Any, Any]]:
        """Calls `reset`, and returns observations and infos. CheckAborted if it raises or returns something else.

        Args:
            seed: The seed.
            space: Observation space of a single agent, see `from_reset`.
        """
        with self._findings.calling("reset(seed)"):
            try:
                return from_reset(self.env.reset(seed=seed), self.several_agents, space)
            except TypeError as error:
                if "argument" not in message_of(error) or not _is_call_error(error):
                    raise
                is_old = "; `seed()` is the interface of old Gym" if hasattr(self.env, "seed") else ""
                self._findings.add("reset-signature", f"reset() takes no seed: {describe_error(error)}{is_old}")
                raise CheckAborted from error

    def call_step(self, actions: Any) -> dict[str, Any]:
        """Calls `step`, and returns its five parts. CheckAborted if it raises or returns something else."""
        with self._findings.calling("step()"):
            result = from_step(self.env.step(actions), self.several_agents)
        return dict(zip(STEP_PARTS, result, strict=True))

    @abstractmethod
    def spaces(self, agent: Any) -> tuple[Any, Any]:
        """Returns the observation and action space of an agent. CheckAborted if the environment has none."""

    @abstractmethod
    def possible_agents(self) -> list[Any]:
        """Returns all agents that may ever appear."""

    @abstractmethod
    def current_agents(self) -> list[Any]:
        """Returns the current agents. CheckAborted if the environment does not list them."""

    @abstractmethod
    def acting_agents(self) -> list[Any]:
        """Returns the agents whose actions are used in the next step."""

    @abstractmethod
    def reset(self, seed: int | None) -> ByAgent:
        """Starts an episode, and returns observations and infos."""

    @abstractmethod
    def step(self, actions: dict[Any, Any]) -> ByAgent:
        """Takes a step with actions by agent, and returns all five parts."""

    @abstractmethod
    def mask_in_observation(self, agent: Any) -> bool:
        """Returns True if observations contain the mask, besides what the agent observes."""

    def mask(self, agent: Any, observation: Any, info: Any) -> Any:
        """Returns the agent's mask in the format of the environment, None if there is none."""
        holder = observation if self.mask_in_observation(agent) else info
        return holder.get(MASK) if isinstance(holder, Mapping) else None

    def agent_prefix(self, agent: Any) -> str:
        """Returns the prefix of messages about an agent, empty for a single agent."""
        return f"agent '{agent}': " if self.several_agents else ""

    def render(self) -> Any:
        """Returns an image, None if there is none or the environment must be made for rendering (checked later)."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        inner: Any = getattr(self.env, "unwrapped", self.env)
        if "rgb_array" not in ((getattr(inner, "metadata", None) or {}).get("render_modes") or ()):
            return None
        inner.render_mode = "rgb_array"
        try:
            return self.env.render()
        except KeyboardInterrupt:
            raise
        except BaseException:
            return None

    def close(self) -> None:
        """Closes the environment twice."""
        for call in ("close()", "the second close()"):
            if hasattr(self.env, "close"):
                with self._findings.calling(call, "close", subject="", aborts=False):
                    try:
                        with close_limit(call):
                            self.env.close()
                    except LimitExceededError as error:
                        self._findings.add("close", str(error))
                        raise CheckAborted from error  # so that it is waited for once


@final
class GymnasiumInterface(EnvInterface):
    """A gymnasium.Env."""

    several_agents = False

    def __init__(self, env: Any, findings: FindingCollector):
        super().__init__(findings)
        self.env = env
        self._masks: MaskSource | None = None
        self._is_new = True

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        spaces_found = []
        for name in ("observation_space", "action_space"):
            space = getattr(self.env, name, None)
            if space is None:
                self._findings.add("space-missing", f"the environment has no {name}", name)
            spaces_found.append(space)
        if None in spaces_found:
            raise CheckAborted
        return spaces_found[0], spaces_found[1]

    def possible_agents(self) -> list[Any]:
        return ["agent"]

    def current_agents(self) -> list[Any]:
        return ["agent"]

    def acting_agents(self) -> list[Any]:
        return ["agent"]

    def reset(self, seed: int | None) -> ByAgent:
        observation, info = self.call_reset(seed, getattr(self.env, "observation_space", None))
        if self._is_new:
            self._is_new = False
            self._find_masks(info)
        return {"observations": {"agent": observation}, "infos": {"agent": info}}

    def step(self, actions: dict[Any, Any]) -> ByAgent:
        return {name: {"agent": part} for name, part in self.call_step(actions["agent"]).items()}

    def _find_masks(self, info: Mapping[Any, Any]) -> None:
        observes, acts = self.spaces("agent")
        if any(True for _ in space_problems(observes, acts)):
            return
        self._masks = find_masks(self.env, observes, acts, info)
        if self._masks is None:
            keys = observes.spaces if isinstance(observes, spaces.Dict) else ()
            for place, names in (("info", info), ("the observation", keys)):
                if MASK in names:
                    self._findings.add("mask-ignored", f"{place} contains '{MASK}', but {acts} has no choices to mask")
            for note in similar_note(keys, info):
                self._findings.add("mask-ignored", note)

    def mask_in_observation(self, agent: Any) -> bool:
        return self._masks is not None and self._masks.kind == "observation"

    def mask(self, agent: Any, observation: Any, info: Any) -> Any:
        if self._masks is None or self._masks.kind != "method":
            return super().mask(agent, observation, info)
        with self._findings.calling(str(self._masks)):
            return self._masks.reader(self.env)(observation, info)


@final
class PettingZooInterface(EnvInterface):
    """A ParallelEnv, an AECEnv or a MultiAgentEnv of RLlib."""

    several_agents = True

    def __init__(self, env: Any, findings: FindingCollector):
        super().__init__(findings)
        self.env = as_parallel(env)
        self.turn_based = isinstance(self.env, TurnBasedEnv | RllibEnv)

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        return self._space("observation_space", agent), self._space("action_space", agent)

    def _space(self, name: str, agent: Any) -> Any:
        with self._findings.calling(f"{name}('{agent}')", "space-missing", subject=name):
            return getattr(self.env, name)(agent)

    def possible_agents(self) -> list[Any]:
        agents = getattr(self.env, "possible_agents", None)
        if agents is not None and (isinstance(agents, str) or not isinstance(agents, Collection)):
            message = f"`possible_agents` is {described(agents)}, expected a list of names"
            self._findings.add("agents-empty", message)
            raise CheckAborted
        return list(agents or ())

    def current_agents(self) -> list[Any]:
        with self._findings.calling("agents"):
            return list(current_agents(self.env))

    def acting_agents(self) -> list[Any]:
        agents = self.current_agents()
        return [agent for agent in self.env.acting if agent in agents] if self.turn_based else agents

    def reset(self, seed: int | None) -> ByAgent:
        observations, infos = self.call_reset(seed)
        return {"observations": dict(observations), "infos": dict(infos)}

    def step(self, actions: dict[Any, Any]) -> ByAgent:
        return {name: dict(part) for name, part in self.call_step(actions).items()}

    def mask_in_observation(self, agent: Any) -> bool:
        return holds_mask(self.spaces(agent)[0])


def interface_of(env: Any, findings: FindingCollector) -> EnvInterface | None:
    """Returns the interface of an environment; None for PyMARL's, which is checked through Coterie's only.

    Raises:
        CheckAborted: If it has an interface that is not supported, or none.
    """
    found = supported(env)
    if isinstance(found, gymnasium.Env):
        return GymnasiumInterface(found, findings)
    if found is not None:
        return None if is_multiagent(found) else PettingZooInterface(found, findings)
    said = foreign_interface(env)
    if said is None and callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None)):
        return GymnasiumInterface(env, findings)
    said = said or f"{described(env)}, which has no `reset` and `step`"
    findings.add("factory", f"the factory returned {said}")
    raise CheckAborted


def space_problems(observation_space: Any, action_space: Any) -> Iterator[Problem]:
    """Yields the reasons why the spaces of an agent are not supported."""
    for what, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not isinstance(space, spaces.Space):
            kind = type(space)
            of = f" of {kind.__module__.partition('.')[0]}" if kind.__module__ != "builtins" else ""
            yield "space-type", f"{what} is a {kind.__name__}{of}, expected a space of gymnasium"
            return
    try:
        Observer(observation_space)
    except TypeError as error:
        yield "space-type", str(error)
    try:
        if min(ActionSpec.of(action_space).choices, default=1) < 1:
            yield "space-type", f"the action space {action_space} contains no actions"
    except TypeError as error:
        yield "space-type", str(error)


def _is_call_error(error: Exception) -> bool:
    """True if the call itself failed because of its arguments, in this package or one that forwards it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "coterie" in trace.tb_frame.f_globals.get("__name__", "")
