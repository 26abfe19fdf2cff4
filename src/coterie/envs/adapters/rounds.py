"""One copy of an environment with PettingZoo's interface: who is there, what they see, what they are paid."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any, final

import numpy as np

from coterie.envs.adapters.cast import MASK, Cast, Choices
from coterie.envs.adapters.turns import Turns
from coterie.envs.hosting.instance import Instance, Place
from coterie.errors import UserError


@final
class Rounds(Instance):
    """A ParallelEnv, or an AECEnv as `Turns`.

    limit: steps after which an episode is cut, None for the environment's own ends only; mortal: agents can end before
    their episode does. Every episode is begun with a seed of its own: many environments draw one from the machine
    where they are given none.
    """

    def __init__(self, env: Any, cast: Cast, name: str, limit: int | None, mortal: bool):
        self.env, self._cast, self._name, self._mortal = env, cast, name, mortal
        self._limit: float = math.inf if limit is None else limit
        self._turns = isinstance(env, Turns)
        self._generator: np.random.Generator | None = None
        self._elapsed, self._closed = 0, False
        self._seated: dict[Any, int] = {}  # who lives, and where
        self._order: list[Any] = []
        self._cut: list[_Seat] = []  # of those who were cut alone: their last observations are shown for one row

    def attach(self, place: Place) -> None:
        self._place = place
        self._global = place.state.get("global")
        self._seats: list[_Seat] = []
        for part in self._cast.parts:
            obs, masks = place.obs[part.role.name], place.action_mask.get(part.role.name)
            choices, look = Choices(part), part.look()
            for k in range(part.role.n):
                writes = [(sensor.write, obs[sensor.name][k]) for sensor in part.observer.sensors]
                self._seats.append(_Seat(writes, look, part.shows_mask, None if masks is None else masks[k], choices))

    # ------------------------------------------------------------------------------------------------------ episodes

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        elif self._generator is not None:
            seed = int(self._generator.integers(2**31))
        self._elapsed = 0
        begun = self.env.reset(seed=seed)
        if not (isinstance(begun, tuple) and len(begun) == 2):
            raise self._told(f"reset() returned a {type(begun).__name__}, expected the pair (observations, infos)")
        self._place.alive[...] = False
        for seat in self._seats:
            seat.empty()
        self._seated, self._cut = {}, []
        for agent in self.env.agents:
            self._sit(agent)
        if not self._seated:
            raise self._told("reset() left `agents` empty: an episode needs one agent at least")
        self._order = list(self._seated)
        self._show(*begun, self._seated)

    def step(self, actions: list[Any]) -> None:
        for seat in self._cut:
            seat.empty()
        self._cut = []
        brought = self.env.step({agent: actions[seat] for agent, seat in self._seated.items()})
        if not (isinstance(brought, tuple) and len(brought) == 5):
            raise self._told("step() did not return (observations, rewards, terminations, truncations, infos)")
        observations, rewards, terminations, truncations, infos = brought
        self._elapsed += 1
        ended = self._pay(rewards, terminations, truncations)
        before = seen = self._seated
        if ended or self.env.agents != self._order:
            seen = self._change(ended, terminations, truncations, observations)
        if self._elapsed >= self._limit and not self._place.ended.any():
            going = [seat for agent, seat in self._seated.items() if agent in before]
            self._place.truncated[going] = self._place.ended[1] = True
            self._place.alive[self._place.truncated] = True  # who was cut alone at this step is cut with the others
        self._show(observations, infos, seen)

    def _pay(self, rewards: Any, terminations: Any, truncations: Any) -> list[Any]:
        """Writes what those who live earned, and who of them ended; returns these."""
        place, ended = self._place, []
        try:
            for agent, seat in self._seated.items():
                place.reward[seat] = rewards[agent]
                if terminations[agent]:
                    place.terminated[seat] = True
                    ended.append(agent)
                elif truncations[agent]:
                    place.truncated[seat] = True
                    ended.append(agent)
        except KeyError as error:
            name = next(
                name
                for name, given in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations))
                if error.args[0] not in given
            )
            raise self._told(f"step() returned no {name} of agent '{error.args[0]}', which acted") from error
        return ended

    def _change(self, ended: list[Any], terminations: Any, truncations: Any, observations: Any) -> dict[Any, int]:
        """Ends the episode if nobody is left, else frees the seats of those who ended and seats who came; returns who
        is to be shown.
        """
        place, before, present = self._place, self._seated, self.env.agents
        staying = [agent for agent in before if agent not in ended]
        for agent in staying:
            if agent not in present:
                raise self._told(f"agent '{agent}' left `agents`, and neither terminations nor truncations said so")
        came = [
            agent
            for agent in present
            if agent not in before and not (terminations.get(agent) or truncations.get(agent))
        ]
        for agent in ended:
            if place.truncated[before[agent]] and agent not in observations:
                raise self._told(f"step() returned no observation of agent '{agent}', which was cut by a limit")
        if not staying and not came:
            place.ended[1 if place.truncated.any() else 0] = True
            if not self._mortal and place.truncated.any() and place.terminated.any():
                raise self._told("some agents terminated while others were cut: env.mortal=true")
            return {agent: seat for agent, seat in before.items() if agent in observations}
        if not self._mortal and (ended or came):
            raise self._told(f"agent '{(ended or came)[0]}' ended early or came late: env.mortal=true")
        self._seated = dict(before)
        for agent in came:  # who just ended still keeps a seat, in which nobody lives for one row at least
            self._sit(agent)
        cut: dict[Any, int] = {}
        for agent in ended:
            seat = self._seated.pop(agent)
            place.alive[seat] = False
            if place.truncated[seat]:  # its value is taken from what it sees last
                cut[agent] = seat
                self._cut.append(self._seats[seat])
            else:
                self._seats[seat].empty()
        self._seated = {agent: self._seated[agent] for agent in present if agent in self._seated}
        self._order = list(self._seated)
        return self._seated | cut

    def _sit(self, agent: Any) -> None:
        """Gives a seat to one who begins to live. UserError where there is none."""
        if self._cast.seats is not None:
            seat = self._cast.seats.get(agent)
            if seat is None:
                raise self._told(f"agent '{agent}' appeared, which is none of `possible_agents`: set env.max_agents=N")
        else:
            part, starts = self._cast.part_of(self.env, agent), self._cast.starts()
            taken = set(self._seated.values())
            seat = next((k for k in range(starts[part], starts[part + 1]) if k not in taken), None)
            if seat is None:
                role = self._cast.parts[part].role
                raise self._told(
                    f"agent '{agent}' appeared, and all {role.n} slots of role {role.name} are taken: "
                    f"set env.max_agents.{role.name}={2 * role.n}"
                )
        self._seated[agent] = seat
        self._place.alive[seat] = True

    # ------------------------------------------------------------------------------------------------------- showing

    def _show(self, observations: Any, infos: Any, seated: dict[Any, int]) -> None:
        mover = self.env.mover if self._turns else None
        for agent, number in seated.items():
            try:
                observation = observations[agent]
            except KeyError as error:
                raise self._told(f"the environment returned no observation of agent '{agent}', which lives") from error
            seat = self._seats[number]
            shown = observation if seat.look is None else seat.look(observation)
            for write, array in seat.writes:
                write(array, shown)
            if seat.mask is not None:
                if self._turns and agent != mover:
                    seat.choices.wait(seat.mask)
                else:
                    mask = observation[MASK] if seat.shows_mask else (infos.get(agent) or {}).get(MASK)
                    seat.choices.write(seat.mask, mask)
            elif infos and MASK in (infos.get(agent) or ()):
                raise self._told(f"info shows '{MASK}' of agent '{agent}' only later: show it from reset() on")
        if self._global is not None:
            state = np.ravel(self.env.state())
            if state.size == self._global.size:
                self._global[...] = state
            elif not self._place.ended.any():  # some forget who was there when the episode ends: the last one stays
                raise self._told(f"state() returned {state.size} numbers, at first {self._global.size}")

    def _told(self, said: str) -> UserError:
        return UserError(f"environment '{self._name}': {said}")

    def render(self) -> np.ndarray | None:
        env: Any = getattr(self.env, "unwrapped", self.env)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays want no window, and there may be no screen
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
        raise self._told("its state cannot be saved: begin new episodes with reset(seed)")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()


@final
class _Seat:
    """Where one agent is written."""

    def __init__(self, writes: list[Any], look: Any, shows_mask: bool, mask: np.ndarray | None, choices: Choices):
        self.writes, self.look, self.shows_mask, self.mask, self.choices = writes, look, shows_mask, mask, choices

    def empty(self) -> None:
        """Nobody is there: nothing is seen, and any choice would do."""
        for _, array in self.writes:
            array[...] = 0
        if self.mask is not None:
            self.mask[...] = True
