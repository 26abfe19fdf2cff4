"""One environment with PettingZoo's interface: agents, observations and rewards written to shared arrays."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection
from typing import Any, final

import numpy as np

from coterie.core.errors import UserError
from coterie.envs.external.aec import TurnBasedEnv
from coterie.envs.external.agents import AgentLayout, Choices, Part
from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.mask_sources import MASK, late_mask
from coterie.envs.external.returned import (
    ALL_KEY,
    call_reset,
    check_all_key,
    current_agents,
    from_reset,
    from_step,
    info_of,
    to_flag,
    to_number,
)
from coterie.envs.external.rllib import RllibEnv
from coterie.envs.external.spaces_fit import UNLIKE, KeyCheck, misfit


@final
class ParallelInstance(Instance):
    """A ParallelEnv, an AECEnv wrapped as `TurnBasedEnv`, or a MultiAgentEnv of RLlib wrapped as `RllibEnv`.

    Every episode gets its own seed, because many environments otherwise seed themselves from the operating system.

    Args:
        limit: Truncate episodes after this many steps; None: only the environment ends episodes.
        agents_can_die: Agents can terminate before their episode does.
    """

    def __init__(self, env: Any, layout: AgentLayout, name: str, *, limit: int | None, agents_can_die: bool):
        self.env, self._layout, self._name, self._agents_can_die = env, layout, name, agents_can_die
        self._limit: float = math.inf if limit is None else limit
        self._turns = isinstance(env, TurnBasedEnv | RllibEnv)
        self._generator: np.random.Generator | None = None
        self._elapsed, self._closed = 0, False
        self._seated: dict[Any, int] = {}  # living agents and their slots
        self._order: list[Any] = []
        self._truncated: list[_Seat] = []  # last observations of agents truncated individually, shown for one timestep
        self._reborn: set[Any] = set()  # agents that terminated in the last step and continued with a new life
        self._lists_ended = False  # the environment leaves agents that terminated in `agents`

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        self._global = buffers.state.get("global")
        self._seats: list[_Seat] = []
        for part in self._layout.parts:
            obs, masks = buffers.obs[part.role.name], buffers.action_mask.get(part.role.name)
            choices, extract, check = Choices(part), part.extract_observation(), KeyCheck.of(part.observes)
            for k in range(part.role.n):
                writes = [(sensor.write, obs[sensor.name][k]) for sensor in part.observer.sensors]
                mask = None if masks is None else masks[k]
                seat = _Seat(part, writes, extract, check_keys=check, mask=mask, choices=choices)
                self._seats.append(seat)

    # --------------------------------------------------------------------------------------------------------- episodes

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        elif self._generator is not None:
            seed = int(self._generator.integers(2**31))
        self._elapsed = 0
        start = from_reset(call_reset(self.env, seed), by_agent=True)
        self._buffers.alive[...] = False
        for seat in self._seats:
            seat.empty()
        self._seated, self._truncated, self._reborn = {}, [], set()
        for agent in current_agents(self.env):
            self._assign_slot(agent)
        if not self._seated:
            raise self._error("reset() left `agents` empty. An episode needs at least one agent.")
        self._order = list(self._seated)
        self._show(*start, self._seated)

    def step(self, actions: list[Any]) -> None:
        for seat in self._truncated:
            seat.empty()
        self._truncated = []
        returned = self.env.step({agent: actions[seat] for agent, seat in self._seated.items()})
        observations, rewards, terminations, truncations, infos = from_step(returned, by_agent=True)
        self._elapsed += 1
        ended = self._write_rewards(rewards, terminations, truncations)
        before = seen = self._seated
        if len(ended) < len(before):
            check_all_key(terminations, truncations, next(agent for agent in before if agent not in ended))
        if ended or self.env.agents != self._order:
            seen = self._update_agents(ended, terminations, truncations, observations)
        else:
            self._reborn = set()
        if self._elapsed >= self._limit and not self._buffers.episode_end.any():
            active = [seat for agent, seat in self._seated.items() if agent in before]
            self._buffers.truncated[active] = self._buffers.episode_end[1] = True
            # Agents truncated individually in this step are truncated with the others.
            self._buffers.alive[self._buffers.truncated] = True
        self._show(observations, infos, seen)

    def _write_rewards(self, rewards: Any, terminations: Any, truncations: Any) -> list[Any]:
        """Writes rewards and termination flags of living agents; returns the agents whose episode ended."""
        buffers, ended = self._buffers, []
        try:
            for agent, seat in self._seated.items():
                if agent in self._reborn and agent not in terminations:  # it has no next life
                    buffers.terminated[seat] = True
                    ended.append(agent)
                    continue
                reward, terminated, truncated = rewards[agent], terminations[agent], truncations[agent]
                if type(reward) is not float:
                    reward = to_number(reward, f"the reward of agent '{agent}'")
                if type(terminated) is not bool:
                    terminated = to_flag(terminated, f"terminations of agent '{agent}'")
                if type(truncated) is not bool:
                    truncated = to_flag(truncated, f"truncations of agent '{agent}'")
                buffers.reward[seat] = reward
                if terminated:
                    buffers.terminated[seat] = True
                    ended.append(agent)
                elif truncated:
                    buffers.truncated[seat] = True
                    ended.append(agent)
        except KeyError as error:
            name, given = next(
                (name, given)
                for name, given in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations))
                if error.args[0] not in given
            )
            only = f". '{ALL_KEY}' is RLlib's convention. Set the flag of every agent" if ALL_KEY in given else ""
            raise self._error(f"step() returned no {name} of agent '{error.args[0]}', which acted{only}") from error
        return ended

    def _update_agents(
        self, ended: list[Any], terminations: Any, truncations: Any, observations: Any
    ) -> dict[Any, int]:
        """Ends the episode if no agent is left, else frees the slots of terminated agents and seats new ones.

        An agent that terminated and is still in `agents` while others continue begins a new life, unless it terminates
        once more in the next step, or has no result there: then the environment does not remove agents that ended.

        Returns:
            The agents to show, by name.
        """
        buffers, before, present = self._buffers, self._seated, current_agents(self.env)
        staying = [agent for agent in before if agent not in ended]
        for agent in staying:
            if agent not in present:
                raise self._error(f"agent '{agent}' left `agents` without a termination or truncation")
        joined = [
            agent
            for agent in present
            if agent not in before and not (terminations.get(agent) or truncations.get(agent))
        ]
        for agent in ended:
            if buffers.truncated[before[agent]] and agent not in observations:
                raise self._error(f"step() returned no observation of agent '{agent}', which was truncated")
        if not staying and not joined:
            buffers.episode_end[1 if buffers.truncated.any() else 0] = True
            if not self._agents_can_die and buffers.truncated.any() and buffers.terminated.any():
                raise self._error("some agents terminated while others were truncated. Set env.agents_can_die=true.")
            return {agent: seat for agent, seat in before.items() if agent in observations}
        if not self._agents_can_die and (ended or joined):
            raise self._error(
                f"agent '{(ended or joined)[0]}' terminated early or joined late. Set env.agents_can_die=true."
            )
        self._seated, left = dict(before), {agent: before[agent] for agent in ended}
        for agent, seat in left.items():
            del self._seated[agent]
            buffers.alive[seat] = False
            if not buffers.truncated[seat]:
                self._seats[seat].empty()
        truncated = {agent: seat for agent, seat in left.items() if buffers.truncated[seat]}
        self._truncated = [self._seats[seat] for seat in truncated.values()]  # shown, as values bootstrap from them
        listed = {agent for agent in left if agent not in truncated and agent in present and agent in observations}
        self._lists_ended |= any(agent in self._reborn and agent in present for agent in ended)
        self._reborn = set() if self._lists_ended else listed
        for agent in (*joined, *(agent for agent in ended if agent in self._reborn)):
            self._assign_slot(agent, left.values())
        self._seated = {agent: self._seated[agent] for agent in present if agent in self._seated}
        self._order = list(self._seated)
        return self._seated | truncated

    def _assign_slot(self, agent: Any, left: Collection[int] = ()) -> None:
        """Assigns a slot to a new agent, if possible none of those that were `left` in this step.

        Raises:
            UserError: If there is none.
        """
        if self._layout.seats is not None:
            seat = self._layout.seats.get(agent)
            if seat is None:
                raise self._error(f"agent '{agent}' joined but is not in `possible_agents`. Set env.max_agents=N.")
        else:
            part, starts = self._layout.role_of(self.env, agent), self._layout.starts()
            taken = {*self._seated.values(), *(seat for seat in left if self._buffers.truncated[seat])}
            free = [seat for seat in range(starts[part], starts[part + 1]) if seat not in taken]
            seat = min(free, key=lambda seat: seat in left, default=None)
            if seat is None:
                role = self._layout.parts[part].role
                raise self._error(
                    f"agent '{agent}' joined, but all {role.n} slots of role {role.name} are taken. "
                    f"Set env.max_agents.{role.name}={2 * role.n}."
                )
        self._seated[agent] = seat
        self._buffers.alive[seat] = True

    # ---------------------------------------------------------------------------------------------------------- showing

    def _show(self, observations: Any, infos: Any, seated: dict[Any, int]) -> None:
        acting = self.env.acting if self._turns else seated
        for agent, number in seated.items():
            try:
                observation = observations[agent]
            except KeyError as error:
                raise self._error(
                    f"the environment returned no observation of agent '{agent}', which is alive"
                ) from error
            seat = self._seats[number]
            seat.show(agent, observation)
            if agent not in acting:
                self._wait(agent, seat)
            elif seat.mask is not None:
                mask = observation[MASK] if seat.mask_in_observation else info_of(infos, agent).get(MASK)
                seat.write_mask(agent, mask)
            elif infos and MASK in info_of(infos, agent):
                raise late_mask(f"the info of agent '{agent}'")
        if self._global is not None:
            state = np.ravel(self.env.state())
            if state.size == self._global.size:
                self._global[...] = state
            elif (
                not self._buffers.episode_end.any()
            ):  # some clear their agents when the episode ends: the last state is kept
                raise self._error(f"state() returned {state.size} elements, initially {self._global.size}")

    def _wait(self, agent: Any, seat: _Seat) -> None:
        """Lets an agent that is not to act choose nothing but to wait."""
        if seat.waits:
            if seat.mask is not None:
                seat.choices.wait(seat.mask)
        elif agent in self.env.agents:
            raise self._error(f"agent '{agent}' has to wait for others, as it was not observed. Set env.waiting=true.")

    def _error(self, problem: str) -> UserError:
        return UserError(f"environment '{self._name}': {problem}")

    def render(self) -> np.ndarray | None:
        env: Any = getattr(self.env, "unwrapped", self.env)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays need no window, and there may be no screen
        if getattr(env, "render_mode", None) != "rgb_array":
            if "rgb_array" not in (getattr(env, "metadata", {}).get("render_modes") or ()):
                return None
            env.render_mode = "rgb_array"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn: Any = self.env.render()
        return drawn

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise self._error("its state cannot be restored. Start new episodes with reset(seed).")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()


@final
class _Seat:
    """Slot of one agent in the shared arrays."""

    def __init__(
        self,
        part: Part,
        writes: list[Any],
        extract: Any,
        *,
        check_keys: KeyCheck | None,
        mask: np.ndarray | None,
        choices: Choices,
    ):
        self._space, self._writes, self._extract, self._check_keys = part.observes, writes, extract, check_keys
        self.mask, self.choices, self.mask_in_observation = mask, choices, part.mask_in_observation
        self.waits = part.turns

    def show(self, agent: Any, observation: Any) -> None:
        """Writes an observation. UserError that names agent and part if it has another structure than its space."""
        try:
            if self._check_keys is not None:
                self._check_keys(observation)
            shown = observation if self._extract is None else self._extract(observation)
            for write, array in self._writes:
                write(array, shown)
        except UNLIKE as error:
            raise misfit(self._space, observation, error, f"agent '{agent}': ") from error

    def write_mask(self, agent: Any, mask: Any) -> None:
        """Writes an action mask. UserError that names the agent if it is none."""
        assert self.mask is not None
        try:
            self.choices.write(self.mask, mask)
        except UserError as error:
            raise UserError(f"agent '{agent}' of {error}") from None

    def empty(self) -> None:
        """Clears the slot: zero observation, all actions available."""
        for _, array in self._writes:
            array[...] = 0
        if self.mask is not None:
            self.mask[...] = True
