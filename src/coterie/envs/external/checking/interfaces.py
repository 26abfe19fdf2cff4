"""A common view of Gymnasium and PettingZoo environments: agents, spaces, and results by agent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

import gymnasium
from gymnasium import spaces

from coterie.core.errors import LimitExceededError, message_of
from coterie.envs.contract.closing import close_limit
from coterie.envs.contract.invariants import describe_error
from coterie.envs.contract.report import CheckAborted, FindingCollector
from coterie.envs.external.aec import TurnBasedEnv
from coterie.envs.external.checking.spaces_fit import space_problems
from coterie.envs.external.foreign_interfaces import foreign_interface
from coterie.envs.external.mask_sources import MASK, MaskSource, find_masks, holds_mask, similar_note
from coterie.envs.external.multi_agent_env import is_multiagent
from coterie.envs.external.pettingzoo import as_parallel
from coterie.envs.external.returned import STEP_PARTS, WrongReturn, current_agents, described, from_reset, from_step
from coterie.envs.external.rllib import RllibEnv
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

    def call(self, call: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function of the environment. An exception becomes a finding, and CheckAborted is raised."""
        try:
            return function(*args, **kwargs)
        except WrongReturn as error:
            self._findings.add(error.rule, str(error), error.subject)
            raise CheckAborted from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment may raise anything
            if (
                call == "reset(seed)"
                and isinstance(error, TypeError)
                and "argument" in message_of(error)
                and _is_call_error(error)
            ):
                is_old = "; `seed()` is the interface of old Gym" if hasattr(self.env, "seed") else ""
                self._findings.add("reset-signature", f"reset() takes no seed: {describe_error(error)}{is_old}")
            else:
                self._findings.add("raises", f"{call} raised {describe_error(error)}{_location(error)}", call)
            raise CheckAborted from error

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

    @abstractmethod
    def agent_prefix(self, agent: Any) -> str:
        """Returns the prefix of messages about an agent, empty for a single agent."""

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
            if not hasattr(self.env, "close"):
                return
            try:
                with close_limit(call):
                    self.env.close()
            except LimitExceededError as error:
                self._findings.add("close", str(error))
                raise CheckAborted from error  # so that it is waited for once
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._findings.add("close", f"{call} raised {describe_error(error)}{_location(error)}")

    def _read(self, read: Callable[..., Any], returned: Any, by_agent: bool, **more: Any) -> Any:
        """Returns what `from_reset` or `from_step` reads. A wrong structure becomes a finding, and CheckAborted."""
        try:
            return read(returned, by_agent, **more)
        except WrongReturn as error:
            self._findings.add(error.rule, str(error), error.subject)
            raise CheckAborted from error


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
        result = self.call("reset(seed)", self.env.reset, seed=seed)
        observation, info = self._read(
            from_reset, result, by_agent=False, space=getattr(self.env, "observation_space", None)
        )
        if self._is_new:
            self._is_new = False
            self._find_masks(info)
        return {"observations": {"agent": observation}, "infos": {"agent": info}}

    def step(self, actions: dict[Any, Any]) -> ByAgent:
        result = self._read(from_step, self.call("step()", self.env.step, actions["agent"]), by_agent=False)
        return {name: {"agent": part} for name, part in zip(STEP_PARTS, result, strict=True)}

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
        return self.call(str(self._masks), self._masks.reader(self.env), observation, info)

    def agent_prefix(self, agent: Any) -> str:
        return ""


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
        try:
            return getattr(self.env, name)(agent)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._findings.add(
                "space-missing", f"{name}('{agent}') raised {describe_error(error)}{_location(error)}", name
            )
            raise CheckAborted from error

    def possible_agents(self) -> list[Any]:
        agents = getattr(self.env, "possible_agents", None)
        if agents is not None and (isinstance(agents, str) or not isinstance(agents, Collection)):
            message = f"`possible_agents` is {described(agents)}, expected a list of names"
            self._findings.add("agents-empty", message)
            raise CheckAborted
        return list(agents or ())

    def current_agents(self) -> list[Any]:
        return list(self._read(lambda env, _: current_agents(env), self.env, by_agent=True))

    def acting_agents(self) -> list[Any]:
        agents = self.current_agents()
        return [agent for agent in self.env.acting if agent in agents] if self.turn_based else agents

    def reset(self, seed: int | None) -> ByAgent:
        returned = self.call("reset(seed)", self.env.reset, seed=seed)
        observations, infos = self._read(from_reset, returned, by_agent=True)
        return {"observations": dict(observations), "infos": dict(infos)}

    def step(self, actions: dict[Any, Any]) -> ByAgent:
        result = self._read(from_step, self.call("step()", self.env.step, actions), by_agent=True)
        return {name: dict(part) for name, part in zip(STEP_PARTS, result, strict=True)}

    def mask_in_observation(self, agent: Any) -> bool:
        return holds_mask(self.spaces(agent)[0])

    def agent_prefix(self, agent: Any) -> str:
        return f"agent '{agent}': "


@dataclass(frozen=True)
class UnknownInterface:
    """An object of neither interface."""

    env: Any


def interface_of(env: Any, findings: FindingCollector) -> EnvInterface | UnknownInterface:
    """Returns the interface of an environment. CheckAborted for one that is not supported."""
    found = supported(env)
    if isinstance(found, gymnasium.Env):
        return GymnasiumInterface(found, findings)
    if found is not None:
        return UnknownInterface(found) if is_multiagent(found) else PettingZooInterface(found, findings)
    has_methods = callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))
    said = foreign_interface(env)
    if said is not None:
        findings.add("factory", f"the factory returned {said}")
        raise CheckAborted
    return GymnasiumInterface(env, findings) if has_methods else UnknownInterface(env)


def _is_call_error(error: Exception) -> bool:
    """True if the call itself failed because of its arguments, in this package or one that forwards it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "coterie" in trace.tb_frame.f_globals.get("__name__", "")


def _location(error: BaseException) -> str:
    """Returns where an exception was raised: ` (pond.py, line 12)`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("coterie."):
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
