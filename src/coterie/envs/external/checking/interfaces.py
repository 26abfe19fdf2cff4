"""A common view of Gymnasium and PettingZoo environments: agents, spaces, and results by agent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import gymnasium
from gymnasium import spaces

from coterie.envs.contract.invariants import describe_error
from coterie.envs.contract.report import CheckAborted, FindingCollector
from coterie.envs.external.aec import TurnBasedEnv
from coterie.envs.external.agents import MASK
from coterie.envs.external.gym_like import as_gym
from coterie.envs.external.pettingzoo import as_parallel, is_zoo

ByAgent = dict[str, dict[Any, Any]]
"""Results of `reset` or `step`: by part (see STEP_PARTS) and agent."""

STEP_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


class EnvInterface(ABC):
    """Calls an environment through its native interface, and returns results by agent."""

    env: Any
    reads_masks: bool
    turn_based: bool = False
    """True if one agent acts per step."""

    def __init__(self, findings: FindingCollector):
        self._findings = findings

    def call(self, call: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function of the environment. An exception becomes a finding, and CheckAborted is raised."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # an environment may raise anything
            if (
                call == "reset(seed)"
                and isinstance(error, TypeError)
                and "argument" in str(error)
                and _is_call_error(error)
            ):
                self._findings.add("reset-signature", f"reset() takes no seed: {describe_error(error)}")
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
        except Exception:
            return None

    def close(self) -> None:
        """Closes the environment twice."""
        for call in ("close()", "the second close()"):
            if not hasattr(self.env, "close"):
                return
            try:
                self.env.close()
            except Exception as error:
                self._findings.add("close", f"{call} raised {describe_error(error)}{_location(error)}")

    def _check_reset_result(self, result: Any, by_agent: bool) -> tuple[Any, Any]:
        if not (isinstance(result, tuple) and len(result) == 2):
            message = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
            hint = "; returning only the observation is the old Gym interface" if not isinstance(result, tuple) else ""
            self._findings.add(
                "reset-return", f"reset() returned {message}, expected the pair (observation, info){hint}"
            )
            raise CheckAborted
        self._check_infos("reset()", result[1])
        if by_agent and not isinstance(result[0], Mapping):
            message = f"reset() returned observations of type {type(result[0]).__name__}, expected a dict by agent"
            self._findings.add("reset-return", message)
            raise CheckAborted
        return result

    def _check_step_result(self, result: Any, by_agent: bool) -> tuple[Any, ...]:
        if not (isinstance(result, tuple) and len(result) == 5):
            message = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            hint = " (four are the old Gym interface)" if isinstance(result, tuple) and len(result) == 4 else ""
            self._findings.add("step-return", f"step() returned {message}, expected five{hint}")
            raise CheckAborted
        self._check_infos("step()", result[4])
        for name, part in zip(STEP_PARTS, result, strict=True):
            if by_agent and name != "infos" and not isinstance(part, Mapping):
                message = f"step() returned {name} of type {type(part).__name__}, expected a dict by agent"
                self._findings.add("step-return", message, name)
                raise CheckAborted
        return result

    def _check_infos(self, call: str, infos: Any) -> None:
        if not isinstance(infos, Mapping):
            self._findings.add("info-type", f"{call} returned an info of type {type(infos).__name__}, expected a dict")
            raise CheckAborted


@final
class GymnasiumInterface(EnvInterface):
    """A gymnasium.Env."""

    reads_masks = False

    def __init__(self, env: Any, findings: FindingCollector):
        super().__init__(findings)
        self.env = env

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
        observation, info = self._check_reset_result(result, by_agent=False)
        if MASK in info:
            self._findings.add("mask-ignored", f"info contains '{MASK}'")
        return {"observations": {"agent": observation}, "infos": {"agent": info}}

    def step(self, actions: dict[Any, Any]) -> ByAgent:
        result = self._check_step_result(self.call("step()", self.env.step, actions["agent"]), by_agent=False)
        return {name: {"agent": part} for name, part in zip(STEP_PARTS, result, strict=True)}

    def agent_prefix(self, agent: Any) -> str:
        return ""


@final
class PettingZooInterface(EnvInterface):
    """A ParallelEnv, or an AECEnv wrapped in `Turns`."""

    reads_masks = True

    def __init__(self, env: Any, findings: FindingCollector):
        super().__init__(findings)
        self.env = as_parallel(env)
        self.turn_based = isinstance(self.env, TurnBasedEnv)

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        return self._space("observation_space", agent), self._space("action_space", agent)

    def _space(self, name: str, agent: Any) -> Any:
        try:
            return getattr(self.env, name)(agent)
        except Exception as error:
            self._findings.add(
                "space-missing", f"{name}('{agent}') raised {describe_error(error)}{_location(error)}", name
            )
            raise CheckAborted from error

    def possible_agents(self) -> list[Any]:
        return list(getattr(self.env, "possible_agents", None) or ())

    def current_agents(self) -> list[Any]:
        agents = getattr(self.env, "agents", None)
        if not isinstance(agents, list | tuple | set | dict):
            message = "is missing" if agents is None else f"is a {type(agents).__name__}"
            self._findings.add("agents-empty", f"`agents` {message} after reset(), expected a list of names")
            raise CheckAborted
        return list(agents)

    def acting_agents(self) -> list[Any]:
        return [self.env.mover] if self.turn_based and self.env.mover in self.env.agents else self.current_agents()

    def reset(self, seed: int | None) -> ByAgent:
        observations, infos = self._check_reset_result(
            self.call("reset(seed)", self.env.reset, seed=seed), by_agent=True
        )
        return {"observations": dict(observations), "infos": dict(infos)}

    def step(self, actions: dict[Any, Any]) -> ByAgent:
        result = self._check_step_result(self.call("step()", self.env.step, actions), by_agent=True)
        return {name: dict(part) for name, part in zip(STEP_PARTS, result, strict=True)}

    def agent_prefix(self, agent: Any) -> str:
        return f"agent '{agent}': "


@dataclass(frozen=True)
class UnknownInterface:
    """An object of neither interface."""

    env: Any


def interface_of(env: Any, findings: FindingCollector) -> EnvInterface | UnknownInterface:
    """Returns the interface of an environment. CheckAborted for RLlib's, whose spaces are dictionaries by agent."""
    env = as_gym(env)
    if isinstance(env, gymnasium.Env):
        return GymnasiumInterface(env, findings)
    if is_zoo(env):
        return PettingZooInterface(env, findings)
    has_methods = callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))
    by_agent = getattr(env, "observation_spaces", None)
    if has_methods and isinstance(by_agent, Mapping | spaces.Dict):
        message = "the environment has a dict `observation_spaces`, but no method `observation_space(agent)`"
        findings.add("spaces-as-dict", message)
        raise CheckAborted
    return (
        GymnasiumInterface(env, findings)
        if has_methods and not hasattr(env, "get_avail_actions")
        else UnknownInterface(env)
    )


def _is_call_error(error: Exception) -> bool:
    """True if the call itself failed because of its arguments, in this package or one that forwards it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "coterie" in trace.tb_frame.f_globals.get("__name__", "")


def _location(error: Exception) -> str:
    """Returns where an exception was raised: ` (pond.py, line 12)`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("coterie."):
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
