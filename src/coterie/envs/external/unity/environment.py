"""One Unity environment: assigns agents to slots, and converts frames to timesteps and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.core.errors import UserError
from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.unity.agent_lifetimes import UnityAgent, UnityAgents, group_rewards
from coterie.envs.external.unity.behaviors import Behavior
from coterie.envs.external.unity.client import Frame, UnityClient

_MAX_FRAMES = 1000
"""Frames per step without a decision request before an agent is assumed to be stuck."""


@dataclass(frozen=True)
class UnityOptions:
    """Options of a Unity environment.

    Attributes:
        reseed: True to restart Unity for a new seed.
        episode_limit: Steps after which an episode is truncated and Unity reset; None for no limit.
        shared_groups: True if group rewards are given once per group, False to add them to each member's own reward.
        has_group_reward: True if group rewards are expected.
    """

    reseed: bool
    episode_limit: int | None
    shared_groups: bool
    has_group_reward: bool


@final
class UnityInstance(Instance):
    """One Unity process, or the editor.

    Args:
        name: Name of the environment, for messages.
        behaviors: Its behaviors.
        start: Starts a Unity process.
        options: Options.
        client: A running Unity that cannot be restarted (the editor); None to start one.
    """

    def __init__(
        self,
        name: str,
        behaviors: Sequence[Behavior],
        start: Callable[[], UnityClient],
        options: UnityOptions,
        *,
        client: UnityClient | None = None,
    ):
        self._name, self._behaviors, self._start, self._options = name, behaviors, start, options
        self._client = start() if client is None else client
        self._is_editor, self._used = client is not None, client is not None
        self._limit: float = math.inf if options.episode_limit is None else options.episode_limit
        self._parameters: dict[str, float] = {}
        self._agents = UnityAgents(behaviors)
        self._slots: dict[int, UnityAgent] = {}
        self._elapsed, self._continues, self._closed = 0, False, False
        groups = list(dict.fromkeys(behavior.role.group for behavior in behaviors))
        self._group_columns = {group: k for k, group in enumerate(groups)}

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        self._writes, self._masks = {}, {}
        for behavior in self._behaviors:
            obs, masks = buffers.obs[behavior.role.name], buffers.action_mask.get(behavior.role.name)
            for k, slot in enumerate(behavior.slots):
                self._writes[slot] = [(s.write, obs[s.name][k]) for s in behavior.observer.sensors]
                if masks is not None:
                    self._masks[slot] = masks[k]
        if not self._is_editor:
            self._client.ready()  # the processes of all environments have been starting in parallel

    # ------------------------------------------------------------------------------------------------------ episodes

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Sets environment parameters of the scene from the next reset on."""
        self._parameters = {name: float(value) for name, value in values.items()}
        if self._used:
            self._client.set_parameters(self._parameters)

    def reset(self, seed: int | None) -> None:
        self._elapsed = 0
        restart = not self._used or (seed is not None and self._options.reseed and not self._is_editor)
        if restart or seed is not None or not self._continues:
            self._reset_unity(seed, restart)
        self._continues = False
        for _ in range(_MAX_FRAMES):
            if len(self._agents):
                break
            self._update(self._client.step({}))
        else:
            raise self._error(f"no agent requested a decision within {_MAX_FRAMES} frames of the episode's start")
        self._buffers.alive[...] = False
        for slot in self._writes:
            self._clear_slot(slot)
        self._slots = {}
        for agent in self._agents:
            agent.slot, agent.action = None, None
        self._assign_slots(self._agents, leaving=[])
        for slot, agent in self._slots.items():
            self._write(slot, agent)

    def _reset_unity(self, seed: int | None, restart: bool) -> None:
        """Resets Unity, after seeding it if it has not been used or is restarted."""
        if restart:
            if self._used:
                self._client.close()
                self._client = self._start()
                self._client.ready()
            self._client.seed(0 if seed is None else seed)
            if self._parameters:
                self._client.set_parameters(self._parameters)
        self._used = True
        self._agents.clear()
        self._update(self._client.reset())

    def step(self, actions: list[Any]) -> None:
        buffers, before = self._buffers, dict(sorted(self._slots.items()))
        for slot, agent in before.items():
            agent.start_step(actions[slot])
        ended = self._advance(before)
        self._elapsed += 1
        self._write_rewards(before)
        remaining = {slot: agent for slot, agent in before.items() if agent.interrupted is None}
        for slot in ended:
            flags = buffers.truncated if before[slot].interrupted else buffers.terminated
            flags[slot] = True
        interrupted = any(before[slot].interrupted for slot in ended)
        at_limit = self._elapsed >= self._limit
        if interrupted or at_limit or not remaining:
            buffers.truncated[list(remaining)] = True
            buffers.episode_end[1 if interrupted or (at_limit and remaining) else 0] = True
            self._continues = not at_limit
        else:
            for slot in ended:
                del self._slots[slot]
                buffers.alive[slot] = False
                self._clear_slot(slot)
            # Agents that replace a whole group belong to another one: for one timestep, the group has no agents.
            ended_groups = _groups(before) - _groups(remaining)
            new = (x for x in self._agents if x.slot is None and x.behavior.role.group not in ended_groups)
            self._assign_slots(new, leaving=ended)
        for slot, agent in self._slots.items():
            self._write(slot, agent)

    def _advance(self, before: dict[int, UnityAgent]) -> list[int]:
        """Advances Unity until every agent has finished its step or ended. Returns the slots of those that ended."""
        for _ in range(_MAX_FRAMES):
            self._update(self._client.step(self._agents.decisions()))
            if all(agent.step_done or agent.interrupted is not None for agent in before.values()):
                return [slot for slot, agent in before.items() if agent.interrupted is not None]
        stuck = next(agent for agent in before.values() if not agent.step_done and agent.interrupted is None)
        raise self._error(
            f"an agent of behavior '{stuck.behavior.native}' has neither requested a decision nor ended for "
            f"{_MAX_FRAMES} frames. Give it a Decision Requester, or disable it."
        )

    def _update(self, frame: Frame) -> None:
        try:
            self._agents.update(frame)
        except UserError as error:
            raise self._error(str(error)) from error

    def _write_rewards(self, before: dict[int, UnityAgent]) -> None:
        buffers, shared = self._buffers, self._options.shared_groups
        for slot, agent in before.items():
            buffers.reward[slot] = agent.reward if shared else agent.reward + agent.group_reward
        if not shared:
            return
        rewards = group_rewards(before.values())
        for name in self._group_columns:
            if sum(group == name for group, _ in rewards) > 1:
                raise self._error(
                    f"two groups of '{name}' exist at the same time. Use one area per scene (Coterie starts several "
                    "environments itself), or env.groups=own, which adds group rewards to each agent's own reward."
                )
        for (group, _), reward in rewards.items():
            if reward and not self._options.has_group_reward:
                raise self._error("a group reward was given, but no group existed at the start. Set env.grouped=true.")
            buffers.group_reward[self._group_columns[group]] = reward

    def _assign_slots(self, agents: Iterable[UnityAgent], *, leaving: list[int]) -> None:
        """Assigns new agents to free slots.

        A slot in `leaving` stays empty for one timestep, and an agent that finds no other waits for it. UserError if
        there are not enough slots.
        """
        for agent in sorted(agents, key=lambda agent: (agent.behavior.start, agent.id)):
            slots = agent.behavior.slots
            free = [slot for slot in slots if slot not in self._slots and slot not in leaving]
            if not free:
                if any(slot in slots for slot in leaving):
                    continue
                role = agent.behavior.role
                raise self._error(
                    f"more agents of role {role.name} exist at the same time than its {role.n} slots. "
                    f"Set env.max_agents.{role.name}={2 * role.n}"
                )
            agent.slot = free[0]
            self._slots[agent.slot] = agent
            self._buffers.alive[agent.slot] = True

    # ------------------------------------------------------------------------------------------------- observations

    def _write(self, slot: int, agent: UnityAgent) -> None:
        observation = agent.behavior.observation(agent.observations)
        for write, array in self._writes[slot]:
            write(array, observation)
        if slot in self._masks:
            self._masks[slot][...] = agent.behavior.mask(agent.disallowed)

    def _clear_slot(self, slot: int) -> None:
        for _, array in self._writes[slot]:
            array[...] = 0
        if slot in self._masks:
            self._masks[slot][...] = True

    def render(self) -> np.ndarray | None:
        """Returns the first camera image of the agents."""
        for agent in self._slots.values():
            for name, image in zip(agent.behavior.images, agent.observations, strict=True):
                if name is not None:
                    return np.repeat(image[..., :1], 3, -1) if image.shape[-1] < 3 else image[..., :3].copy()
        return None

    def _error(self, message: str) -> UserError:
        return UserError(f"environment '{self._name}': {message}")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise self._error("its state cannot be saved. Start new episodes with reset(seed).")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.close()


def _groups(agents: dict[int, UnityAgent]) -> set[str]:
    return {agent.behavior.role.group for agent in agents.values()}
