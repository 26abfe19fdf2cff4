"""One copy of a Unity environment: its lives in seats, and frames as rows and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from coterie.envs.hosting.instance import Instance, Place
from coterie.envs.unity.behaviours import Behaviour
from coterie.envs.unity.lives import Life, Lives, group_rewards
from coterie.envs.unity.player import Frame, Player
from coterie.errors import UserError

_FRAMES = 1000
"""Frames that a step may take before somebody is held not to ask any more."""


@final
class Scene(Instance):
    """One Unity process, or the editor.

    start: starts another; begun: one that cannot be started anew, to be used instead; reseed: whether Unity is started
    anew for a new seed; limit: steps after which an episode is cut and Unity reset; shared: group rewards are a
    group's, else added to each member's own; grouped: Unity pays group rewards.
    """

    def __init__(
        self,
        name: str,
        behaviours: Sequence[Behaviour],
        start: Callable[[], Player],
        begun: Player | None,
        reseed: bool,
        limit: int | None,
        shared: bool,
        grouped: bool,
    ):
        self._name, self._behaviours, self._start = name, behaviours, start
        self._player = start() if begun is None else begun
        self._fixed, self._used = begun is not None, begun is not None
        self._reseed, self._shared, self._grouped = reseed, shared, grouped
        self._limit: float = math.inf if limit is None else limit
        self._parameters: dict[str, float] = {}
        self._lives = Lives(behaviours)
        self._seated: dict[int, Life] = {}
        self._elapsed, self._goes_on, self._closed = 0, False, False
        groups = list(dict.fromkeys(behaviour.role.group for behaviour in behaviours))
        self._columns = {group: k for k, group in enumerate(groups)}

    def attach(self, place: Place) -> None:
        self._place = place
        self._writes, self._masks = {}, {}
        for behaviour in self._behaviours:
            obs, masks = place.obs[behaviour.role.name], place.action_mask.get(behaviour.role.name)
            for k, seat in enumerate(behaviour.seats):
                self._writes[seat] = [(s.write, obs[s.name][k]) for s in behaviour.observer.sensors]
                if masks is not None:
                    self._masks[seat] = masks[k]
        if not self._fixed:
            self._player.ready()  # those of all copies have been starting side by side

    # ------------------------------------------------------------------------------------------------------ episodes

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Environment parameters of the scene from the next reset on."""
        self._parameters = {name: float(value) for name, value in values.items()}
        if self._used:
            self._player.set_parameters(self._parameters)

    def reset(self, seed: int | None) -> None:
        self._elapsed = 0
        fresh = not self._used or (seed is not None and self._reseed and not self._fixed)
        if fresh or seed is not None or not self._goes_on:
            self._anew(seed, fresh)
        self._goes_on = False
        for _ in range(_FRAMES):
            if len(self._lives):
                break
            self._take(self._player.step({}))
        else:
            raise self._told(f"nobody asked for a decision within {_FRAMES} frames of an episode's start")
        self._place.alive[...] = False
        for seat in self._writes:
            self._empty(seat)
        self._seated = {}
        for life in self._lives:
            life.seat, life.action = None, None
        self._sit([], self._lives)
        for seat, life in self._seated.items():
            self._show(seat, life)

    def _anew(self, seed: int | None, fresh: bool) -> None:
        """Resets Unity, and has it begin from a seed if it has not yet, or has to once more."""
        if fresh:
            if self._used:
                self._player.close()
                self._player = self._start()
                self._player.ready()
            self._player.begin(0 if seed is None else seed)
            if self._parameters:
                self._player.set_parameters(self._parameters)
        self._used = True
        self._lives.clear()
        self._take(self._player.reset())

    def step(self, actions: list[Any]) -> None:
        place, before = self._place, dict(sorted(self._seated.items()))
        for seat, life in before.items():
            life.act(actions[seat])
        ended = self._advance(before)
        self._elapsed += 1
        self._pay(before)
        staying = {seat: life for seat, life in before.items() if life.interrupted is None}
        for seat in ended:
            flags = place.truncated if before[seat].interrupted else place.terminated
            flags[seat] = True
        cut = any(before[seat].interrupted for seat in ended)
        over = self._elapsed >= self._limit
        if cut or over or not staying:
            place.truncated[list(staying)] = True
            place.ended[1 if cut or (over and staying) else 0] = True
            self._goes_on = not over
        else:
            for seat in ended:
                del self._seated[seat]
                place.alive[seat] = False
                self._empty(seat)
            # Who comes next to a group that has just ended whole is of another one: for a row nobody is there.
            gone = _groups(before) - _groups(staying)
            self._sit(ended, (x for x in self._lives if x.seat is None and x.behaviour.role.group not in gone))
        for seat, life in self._seated.items():
            self._show(seat, life)

    def _advance(self, before: dict[int, Life]) -> list[int]:
        """Lets Unity go on until everybody is due or has ended; returns the seats of who ended, who keep them still."""
        for _ in range(_FRAMES):
            self._take(self._player.step(self._lives.answers()))
            if all(life.due or life.interrupted is not None for life in before.values()):
                return [seat for seat, life in before.items() if life.interrupted is not None]
        silent = next(life for life in before.values() if not life.due and life.interrupted is None)
        raise self._told(
            f"an agent of behaviour '{silent.behaviour.native}' has neither asked for a decision nor ended for "
            f"{_FRAMES} frames: give it a Decision Requester, or disable it"
        )

    def _take(self, frame: Frame) -> None:
        try:
            self._lives.take(frame)
        except UserError as error:
            raise self._told(str(error)) from error

    def _pay(self, before: dict[int, Life]) -> None:
        place = self._place
        for seat, life in before.items():
            place.reward[seat] = life.reward if self._shared else life.reward + life.group_reward
        if not self._shared:
            return
        earned = group_rewards(before.values())
        for column in self._columns:
            own = [number for group, number in earned if group == column]
            if len(own) > 1:
                raise self._told(
                    f"two groups of '{column}' live at once: give the scene one area (Coterie starts copies of it), or "
                    "env.groups=own, which pays each agent what its group is paid"
                )
        for (group, _), reward in earned.items():
            if reward and not self._grouped:
                raise self._told("a group is paid that was not there at the start: env.grouped=true")
            place.group_reward[self._columns[group]] = reward

    def _sit(self, leaving: list[int], came: Iterable[Life]) -> None:
        """Gives seats to those who came; who finds none but of those `leaving` waits, for a seat is empty for a row.

        UserError where there are not enough.
        """
        for life in sorted(came, key=lambda life: (life.behaviour.start, life.id)):
            free = [seat for seat in life.behaviour.seats if seat not in self._seated and seat not in leaving]
            if not free:
                if any(seat in life.behaviour.seats for seat in leaving):
                    continue
                role = life.behaviour.role
                raise self._told(
                    f"more agents of role {role.name} live at once than its {role.n} slots: "
                    f"set env.max_agents.{role.name}={2 * role.n}"
                )
            life.seat = free[0]
            self._seated[life.seat] = life
            self._place.alive[life.seat] = True

    # ------------------------------------------------------------------------------------------------------- showing

    def _show(self, seat: int, life: Life) -> None:
        seen = life.behaviour.observation(life.seen)
        for write, array in self._writes[seat]:
            write(array, seen)
        if seat in self._masks:
            self._masks[seat][...] = life.behaviour.mask(life.barred)

    def _empty(self, seat: int) -> None:
        for _, array in self._writes[seat]:
            array[...] = 0
        if seat in self._masks:
            self._masks[seat][...] = True

    def render(self) -> np.ndarray | None:
        for life in self._seated.values():
            for picture, seen in zip(life.behaviour.pictures, life.seen, strict=True):
                if picture is not None:
                    return np.repeat(seen[..., :1], 3, -1) if seen.shape[-1] < 3 else seen[..., :3].copy()
        return None

    def _told(self, said: str) -> UserError:
        return UserError(f"environment '{self._name}': {said}")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise self._told("its state cannot be saved: begin new episodes with reset(seed)")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._player.close()


def _groups(seated: dict[int, Life]) -> set[str]:
    return {life.behaviour.role.group for life in seated.values()}
