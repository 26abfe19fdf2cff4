"""One Unity environment: tracks its agents, assigns them to slots, and converts frames to timesteps and steps.

Unity has no steps that include all agents: a frame contains the agents that request a decision and those that ended
since the previous frame. One environment step spans as many frames as it takes until every acting agent has requested
another decision after its action, or has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from coterie.core.errors import UserError
from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.unity.behaviors import Behavior
from coterie.envs.external.unity.client import Frame, UnityClient


@final
@dataclass(eq=False)
class UnityAgent:
    """One Unity agent from its first decision to its end.

    Attributes:
        behavior: Its behavior.
        id: Unity's agent ID.
        group: Unity's group ID, 0 for none.
        observations: Latest observation of every sensor.
        disallowed: [sum A] bool, True for discrete actions that are not available; None if all are.
        slot: Index of the agent in the spec; None while it waits for a slot.
        action: Its action whenever it requests a decision; None for a no-op.
        action_sent: True if the action was sent at least once.
        step_done: True if it has requested another decision after its action.
        reward: Individual reward of the current step.
        group_reward: Group reward of the current step.
        interrupted: None until it ends, then True if a limit ended it.
        last_frame: Number of the latest frame that contains it.
    """

    behavior: Behavior
    id: int
    group: int = 0
    observations: list[np.ndarray] = field(default_factory=list)
    disallowed: np.ndarray | None = None
    slot: int | None = None
    action: tuple[np.ndarray, np.ndarray] | None = None
    action_sent: bool = False
    step_done: bool = False
    reward: float = 0.0
    group_reward: float = 0.0
    interrupted: bool | None = None
    last_frame: int = 0

    def start_step(self, native: Any) -> None:
        """Starts a new step with this action."""
        self.action = self.behavior.action(native)
        self.action_sent = self.step_done = False
        self.reward = self.group_reward = 0.0

    def decide(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns continuous and discrete actions for a requested decision.

        Discrete actions that have become unavailable are replaced by the first available one.
        """
        own = self.behavior
        self.action_sent = self.action is not None
        numbers, choices = self.action or (
            np.zeros(own.continuous, np.float32),
            np.zeros(len(own.branches), np.int32),
        )
        return numbers, own.replace_disallowed(choices, self.disallowed)


@final
class UnityAgents:
    """The current agents by behavior and Unity's agent ID."""

    def __init__(self, behaviors: Sequence[Behavior]):
        self._known = {behavior.native: behavior for behavior in behaviors}
        self._order: list[Behavior] = []  # in the order of their first appearance, by which frames number them
        self._agents: dict[tuple[str, int], UnityAgent] = {}
        self._requesting: dict[int, list[UnityAgent]] = {}
        self._frames = 0

    def __iter__(self) -> Iterator[UnityAgent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def clear(self) -> None:
        """Removes all agents, after Unity was reset."""
        self._agents.clear()
        self._requesting.clear()
        self._order.clear()

    def decisions(self) -> dict[str, np.ndarray]:
        """Returns the actions of the agents that requested a decision, as `UnityClient.step` takes them."""
        arrays = {}
        for index, requesting in self._requesting.items():
            actions = [agent.decide() for agent in requesting]
            arrays[f"continuous {index}"] = np.stack([numbers for numbers, _ in actions])
            arrays[f"discrete {index}"] = np.stack([choices for _, choices in actions])
        return arrays

    def update(self, frame: Frame) -> list[UnityAgent]:
        """Updates the agents from a frame, and returns those that ended.

        Raises:
            UserError: For behaviors that did not exist at the start.
        """
        for description in frame.new:
            if description["name"] not in self._known:
                raise UserError(
                    f"behavior '{description['name']}' first appeared during an episode. Add one of its agents to the "
                    "start of the scene."
                )
            self._order.append(self._known[description["name"]])
        self._frames += 1
        ended = [agent for index in range(len(self._order)) for agent in self._read_ended(index, frame.arrays)]
        requesting = {index: self._read_requesting(index, frame.arrays) for index in range(len(self._order))}
        self._requesting = {index: agents for index, agents in requesting.items() if agents}
        return ended

    def _read_ended(self, index: int, arrays: dict[str, np.ndarray]) -> list[UnityAgent]:
        native, ended = self._order[index].native, []
        for i, agent_id in enumerate(arrays[f"t id {index}"].tolist()):
            agent = self._agents.pop((native, agent_id), None)
            if agent is None:  # it never requested a decision, or belongs to the time before a reset
                continue
            self._read(agent, arrays, "t", index, i=i)
            agent.interrupted = bool(arrays[f"t interrupted {index}"][i])
            ended.append(agent)
        return ended

    def _read_requesting(self, index: int, arrays: dict[str, np.ndarray]) -> list[UnityAgent]:
        behavior, requesting = self._order[index], []
        disallowed = arrays.get(f"d mask {index}")
        for i, agent_id in enumerate(arrays[f"d id {index}"].tolist()):
            agent = self._agents.get((behavior.native, agent_id))
            if agent is None:
                agent = self._agents[behavior.native, agent_id] = UnityAgent(behavior, agent_id)
            self._read(agent, arrays, "d", index, i=i)
            agent.disallowed = None if disallowed is None else disallowed[i]
            agent.step_done = agent.action_sent
            requesting.append(agent)
        return requesting

    def _read(self, agent: UnityAgent, arrays: dict[str, np.ndarray], kind: str, index: int, i: int) -> None:
        """Reads the i-th entry of a behavior's decisions (`d`) or ends (`t`) into an agent."""
        agent.observations = [arrays[f"{kind} obs {index} {k}"][i] for k in range(len(agent.behavior.images))]
        agent.group, agent.last_frame = int(arrays[f"{kind} group {index}"][i]), self._frames
        agent.reward += float(arrays[f"{kind} reward {index}"][i])
        agent.group_reward += float(arrays[f"{kind} group_reward {index}"][i])


def group_rewards(agents: Iterable[UnityAgent]) -> dict[tuple[str, int], float]:
    """Returns the reward of every Unity group in a step, by Coterie's group and Unity's group ID.

    Unity reports a group's rewards to each member from the member's previous frame on, so the member with the latest
    frame has the full sum.

    Args:
        agents: Agents at the start of the step, in the order of their slots.
    """
    latest: dict[tuple[str, int], UnityAgent] = {}
    for agent in agents:
        key = agent.behavior.role.group, agent.group
        if agent.group and (key not in latest or agent.last_frame > latest[key].last_frame):
            latest[key] = agent
    return {key: agent.group_reward for key, agent in latest.items()}


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
