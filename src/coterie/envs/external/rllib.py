"""RLlib's multi-agent environments behind PettingZoo's parallel interface: agents act where they are observed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from gymnasium import spaces

from coterie.envs.external.mask_sources import MASK
from coterie.envs.external.returned import ALL_KEY, from_reset, from_step, info_of, to_flag

_PROBED_STEPS = 100
"""Random steps after which agents that have not had to wait are assumed to act in every step."""


def is_rllib(env: Any) -> bool:
    """True for a MultiAgentEnv of RLlib, a gymnasium.Env whose spaces and results are dictionaries by agent."""
    if any(kind.__name__ == "MultiAgentEnv" and kind.__module__.startswith("ray.rllib.") for kind in type(env).__mro__):
        return True
    if callable(getattr(env, "observation_space", None)):
        return False
    if not all(callable(getattr(env, method, None)) for method in ("reset", "step")):
        return False
    if getattr(env, "observation_space", None) is None:
        return isinstance(getattr(env, "observation_spaces", None), Mapping | spaces.Dict)
    agents = getattr(env, "possible_agents", None) or getattr(env, "_agent_ids", None) or ()
    by_agent = (getattr(env, name, None) for name in ("observation_spaces", "observation_space"))
    return any(isinstance(found, Mapping | spaces.Dict) and set(agents) & set(found) for found in by_agent)


@final
class RllibEnv:
    """Steps a MultiAgentEnv with the actions of the agents that it has observed, as RLlib does.

    Agents that are not observed wait: they stay alive and show their last observation, and their actions are not passed
    on. A reward counts in the step in which it is returned. `__all__` ends all agents. An agent is in the environment
    from its first observation on.

    Source: RLlib's MultiAgentEnv, https://docs.ray.io/en/latest/rllib/multi-agent-envs.html
    """

    agents: list[Any]
    """Agents that have been observed and have not ended."""
    acting: list[Any]
    """Agents that were observed last. Those that have not ended act in the next step."""

    def __init__(self, env: Any):
        self.env = env
        self.agents, self.acting = [], []
        self._seen: dict[Any, Any] = {}

    @property
    def possible_agents(self) -> list[Any]:
        """All agents: those that the environment names, or those with a space."""
        for name in ("possible_agents", "agents", "_agent_ids", "observation_spaces", "observation_space"):
            found = getattr(self.env, name, None)
            if isinstance(found, list | tuple | set | frozenset | Mapping | spaces.Dict) and len(found):
                return sorted(found, key=str) if isinstance(found, set | frozenset) else list(found)
        return []

    def observation_space(self, agent: Any) -> spaces.Space:
        """The agent's observation space."""
        return self._space("observation_space", agent)

    def action_space(self, agent: Any) -> spaces.Space:
        """The agent's action space."""
        return self._space("action_space", agent)

    def _space(self, name: str, agent: Any) -> Any:
        """The agent's entry of the spaces by agent, or the space that all agents share."""
        for by_agent in (getattr(self.env, f"{name}s", None), getattr(self.env, name, None)):
            if isinstance(by_agent, Mapping | spaces.Dict) and agent in by_agent.keys():  # noqa: SIM118
                return by_agent[agent]
        own = getattr(self.env, f"get_{name}", None)
        return own(agent) if callable(own) else getattr(self.env, name, None)

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Starts an episode. Returns the observations and infos of the agents that act."""
        observations, infos = from_reset(self.env.reset(seed=seed), by_agent=True)
        self._seen = dict(observations)
        self.agents, self.acting = list(observations), list(observations)
        return dict(observations), {agent: infos.get(agent, {}) for agent in observations}

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Takes a step; of `actions`, those of the agents that act are used.

        Returns:
            Observations, rewards, terminations, truncations and infos of all agents, also of those that wait.

        Raises:
            WrongReturn: If the environment returned anything but five dictionaries by agent.
        """
        returned = self.env.step({agent: actions[agent] for agent in self.acting if agent in self.agents})
        observations, rewards, terminated, truncated, infos = from_step(returned, by_agent=True)
        before, known = self.agents, list(dict.fromkeys((*self.agents, *observations)))
        terminations, truncations = _end_flags(terminated, truncated, known)
        self.agents = [agent for agent in known if not (terminations[agent] or truncations[agent])]
        self.acting = list(observations)
        self._seen |= observations
        shown = {agent: self._seen[agent] for agent in dict.fromkeys((*before, *self.agents))}
        earned = {agent: rewards.get(agent, 0.0) for agent in before}
        return shown, earned, terminations, truncations, {agent: infos.get(agent, {}) for agent in shown}

    def has_waiting_agents(self) -> bool:
        """Plays one episode of at most 100 steps at random. Returns True if an agent was alive and not observed."""
        with contextlib.suppress(Exception):  # of illegal actions; what else fails does so again when the run starts
            observations, infos = self.reset(seed=0)
            samplers = {agent: _Sampler(self.action_space(agent), k) for k, agent in enumerate(self.possible_agents)}
            for _ in range(_PROBED_STEPS):
                masks = {agent: _mask_of(observations[agent], info_of(infos, agent)) for agent in self.agents}
                actions = {agent: samplers[agent].sample(masks[agent]) for agent in self.agents}
                observations, _, _, _, infos = self.step(actions)
                if any(agent not in self.acting for agent in self.agents):
                    return True
                if not self.agents:
                    break
        return False

    def close(self) -> None:
        """Closes the environment, if it can be closed."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def _end_flags(
    terminated: Mapping[Any, Any], truncated: Mapping[Any, Any], agents: Sequence[Any]
) -> tuple[dict[Any, bool], dict[Any, bool]]:
    """Terminations and truncations of each agent. Its own flags come before those of `__all__`.

    Raises:
        WrongReturn: If a flag is not True or False.
    """

    def flag(flags: Mapping[Any, Any], name: str, key: Any) -> bool:
        return to_flag(flags.get(key, False), f"{name} of '{key}'")

    all_terminated, all_truncated = (
        flag(flags, name, ALL_KEY) for flags, name in ((terminated, "terminateds"), (truncated, "truncateds"))
    )
    terminations, truncations = {}, {}
    for agent in agents:
        ends, stops = flag(terminated, "terminateds", agent), flag(truncated, "truncateds", agent)
        terminations[agent] = ends or (all_terminated and not stops)
        truncations[agent] = stops or (all_truncated and not ends)
    return terminations, truncations


class _Sampler:
    """Draws random actions from a copy of a space, whose own generator stays as it is."""

    def __init__(self, space: spaces.Space, seed: int):
        self._space = copy.deepcopy(space)
        self._space.seed(seed)

    def sample(self, mask: Any) -> Any:
        """A random action; of a Discrete space, one that the mask allows."""
        if mask is not None and isinstance(self._space, spaces.Discrete):
            return self._space.sample(np.asarray(mask, np.int8))
        return self._space.sample()


def _mask_of(observation: Any, info: Mapping[Any, Any]) -> Any:
    """The action mask in an observation or an info; None if there is none."""
    held = observation if isinstance(observation, Mapping) else {}
    return held.get(MASK, info.get(MASK))
