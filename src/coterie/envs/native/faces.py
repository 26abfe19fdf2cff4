"""One agent of Gymnasium or several of PettingZoo, behind one face: who lives, what they see, what a step brought."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import gymnasium
from gymnasium import spaces

from coterie.envs.adapters.cast import MASK
from coterie.envs.adapters.gymlike import as_gym
from coterie.envs.adapters.pettingzoo import is_zoo, played
from coterie.envs.adapters.turns import Turns
from coterie.envs.findings import Broken, Notebook
from coterie.envs.rules import told

Parts = dict[str, dict[Any, Any]]
"""What a step returned, by agent: observations, rewards, terminations, truncations, infos."""

NAMES = ("observations", "rewards", "terminations", "truncations", "infos")


class Face(ABC):
    """An environment that is called as its interface says; what it returns is brought into one form."""

    env: Any
    reads_masks: bool
    turns: bool = False
    """Agents act one after the other."""

    def __init__(self, book: Notebook):
        self._book = book

    def call(self, what: str, function: Any, *arguments: Any, **named: Any) -> Any:
        """What the function returns. What it raises is noted with the line that raised, and Broken."""
        try:
            return function(*arguments, **named)
        except Exception as error:  # an environment may raise anything
            if what == "reset(seed)" and isinstance(error, TypeError) and "argument" in str(error) and _outside(error):
                self._book.note("reset-call", f"reset() takes no seed: {told(error)}")
            else:
                self._book.note("raises", f"{what} raised {told(error)}{_line(error)}", what)
            raise Broken from error

    @abstractmethod
    def spaces(self, agent: Any) -> tuple[Any, Any]:
        """What an agent observes and does. Broken where the environment does not say."""

    @abstractmethod
    def known(self) -> list[Any]:
        """All who may ever live."""

    @abstractmethod
    def living(self) -> list[Any]:
        """Who lives now. Broken where the environment does not say."""

    @abstractmethod
    def movers(self) -> list[Any]:
        """Who is asked for an action now."""

    @abstractmethod
    def reset(self, seed: int | None) -> Parts:
        """Observations and infos of a new episode."""

    @abstractmethod
    def step(self, actions: dict[Any, Any]) -> Parts:
        """What the actions brought."""

    @abstractmethod
    def who(self, agent: Any) -> str:
        """How an agent is named in a finding: nothing where there is one only."""

    def render(self) -> Any:
        """A picture; None if it draws none, or cannot without having been made for it (the later trials tell)."""
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
        """Twice, as some do."""
        for call in ("close()", "close() a second time"):
            if not hasattr(self.env, "close"):
                return
            try:
                self.env.close()
            except Exception as error:
                self._book.note("close", f"{call} raised {told(error)}{_line(error)}")

    def _pair(self, begun: Any, by_agent: bool) -> tuple[Any, Any]:
        if not (isinstance(begun, tuple) and len(begun) == 2):
            said = f"a tuple of {len(begun)}" if isinstance(begun, tuple) else f"a {type(begun).__name__}"
            old = "; the observation alone is what Gym's old interface had" if not isinstance(begun, tuple) else ""
            self._book.note("reset-returns", f"reset() returned {said}, expected the pair (observation, info){old}")
            raise Broken
        self._infos("reset()", begun[1])
        if by_agent and not isinstance(begun[0], Mapping):
            said = f"reset() returned observations that are a {type(begun[0]).__name__}, expected a dict by agent"
            self._book.note("reset-returns", said)
            raise Broken
        return begun

    def _five(self, brought: Any, by_agent: bool) -> tuple[Any, ...]:
        if not (isinstance(brought, tuple) and len(brought) == 5):
            said = f"{len(brought)} values" if isinstance(brought, tuple) else f"a {type(brought).__name__}"
            old = " (four are Gym's old interface)" if isinstance(brought, tuple) and len(brought) == 4 else ""
            self._book.note("step-returns", f"step() returned {said}, expected five{old}")
            raise Broken
        self._infos("step()", brought[4])
        for name, part in zip(NAMES, brought, strict=True):
            if by_agent and name != "infos" and not isinstance(part, Mapping):
                said = f"step() returned {name} that are a {type(part).__name__}, expected a dict by agent"
                self._book.note("step-returns", said, name)
                raise Broken
        return brought

    def _infos(self, call: str, infos: Any) -> None:
        if not isinstance(infos, Mapping):
            self._book.note("info-kind", f"{call} returned an info that is a {type(infos).__name__}, expected a dict")
            raise Broken


@final
class Single(Face):
    """A gymnasium.Env."""

    reads_masks = False

    def __init__(self, env: Any, book: Notebook):
        super().__init__(book)
        self.env = env

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        found = []
        for name in ("observation_space", "action_space"):
            space = getattr(self.env, name, None)
            if space is None:
                self._book.note("space-missing", f"the environment has no {name}", name)
            found.append(space)
        if None in found:
            raise Broken
        return found[0], found[1]

    def known(self) -> list[Any]:
        return ["agent"]

    def living(self) -> list[Any]:
        return ["agent"]

    def movers(self) -> list[Any]:
        return ["agent"]

    def reset(self, seed: int | None) -> Parts:
        begun = self.call("reset(seed)", self.env.reset, seed=seed)
        observation, info = self._pair(begun, by_agent=False)
        if MASK in info:
            self._book.note("mask-unread", f"info holds '{MASK}'")
        return {"observations": {"agent": observation}, "infos": {"agent": info}}

    def step(self, actions: dict[Any, Any]) -> Parts:
        brought = self._five(self.call("step()", self.env.step, actions["agent"]), by_agent=False)
        return {name: {"agent": part} for name, part in zip(NAMES, brought, strict=True)}

    def who(self, agent: Any) -> str:
        return ""


@final
class Several(Face):
    """A ParallelEnv, or an AECEnv as `Turns`."""

    reads_masks = True

    def __init__(self, env: Any, book: Notebook):
        super().__init__(book)
        self.env = played(env)
        self.turns = isinstance(self.env, Turns)

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        return self._space("observation_space", agent), self._space("action_space", agent)

    def _space(self, name: str, agent: Any) -> Any:
        try:
            return getattr(self.env, name)(agent)
        except Exception as error:
            self._book.note("space-missing", f"{name}('{agent}') raised {told(error)}{_line(error)}", name)
            raise Broken from error

    def known(self) -> list[Any]:
        return list(getattr(self.env, "possible_agents", None) or ())

    def living(self) -> list[Any]:
        agents = getattr(self.env, "agents", None)
        if not isinstance(agents, list | tuple | set | dict):
            said = "is not there" if agents is None else f"is a {type(agents).__name__}"
            self._book.note("agents-none", f"`agents` {said} after reset(), expected a list of names")
            raise Broken
        return list(agents)

    def movers(self) -> list[Any]:
        return [self.env.mover] if self.turns and self.env.mover in self.env.agents else self.living()

    def reset(self, seed: int | None) -> Parts:
        observations, infos = self._pair(self.call("reset(seed)", self.env.reset, seed=seed), by_agent=True)
        return {"observations": dict(observations), "infos": dict(infos)}

    def step(self, actions: dict[Any, Any]) -> Parts:
        brought = self._five(self.call("step()", self.env.step, actions), by_agent=True)
        return {name: dict(part) for name, part in zip(NAMES, brought, strict=True)}

    def who(self, agent: Any) -> str:
        return f"agent '{agent}': "


@dataclass(frozen=True)
class Unlike:
    """What is of neither kind."""

    env: Any


def face_of(env: Any, book: Notebook) -> Face | Unlike:
    """The face of an environment by its kind. Broken for one of RLlib's, which has its spaces in dicts."""
    env = as_gym(env)
    if isinstance(env, gymnasium.Env):
        return Single(env, book)
    if is_zoo(env):
        return Several(env, book)
    alike = callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))
    by_agent = getattr(env, "observation_spaces", None)
    if alike and isinstance(by_agent, Mapping | spaces.Dict):
        said = "the environment has `observation_spaces` by agent, and no method `observation_space(agent)`"
        book.note("spaces-by-agent", said)
        raise Broken
    return Single(env, book) if alike and not hasattr(env, "get_avail_actions") else Unlike(env)


def _outside(error: Exception) -> bool:
    """Whether it was the call itself that failed, or one of our own that passes it on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "coterie" in trace.tb_frame.f_globals.get("__name__", "")


def _line(error: Exception) -> str:
    """Where it was raised: ` (pond.py, line 12)`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("coterie."):
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
