"""Tracks the agents of a Unity scene over its frames.

Unity has no steps that include all agents: a frame contains the agents that request a decision and those that ended
since the previous frame. One environment step spans as many frames as it takes until every acting agent has requested
another decision after its action, or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from coterie.core.errors import UserError
from coterie.envs.external.unity.behaviors import Behavior
from coterie.envs.external.unity.client import Frame


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
