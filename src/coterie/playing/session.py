"""A game that somebody sits at: what the page asks for, what it is told, and when time goes on by itself."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from coterie.playing.game import Game, Moment
from coterie.playing.recording import Recorder, encode
from coterie.playing.seats import Seat

SLOWEST, FASTEST = 0.5, 60.0
_TURNS = 32
"""Rows without a decision of a player that are passed over at once."""


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Choose(_Command):
    do: Literal["press", "release"]
    agent: NonNegativeInt
    component: NonNegativeInt
    choice: NonNegativeInt


class _Turn(_Command):
    do: Literal["turn"]
    agent: NonNegativeInt
    number: NonNegativeInt
    value: float = Field(allow_inf_nan=False)


class _LetGo(_Command):
    do: Literal["let_go"]
    agent: NonNegativeInt
    number: NonNegativeInt


class _Pause(_Command):
    do: Literal["pause"]
    on: bool


class _Go(_Command):
    do: Literal["step", "new"]


class _Speed(_Command):
    do: Literal["speed"]
    fps: float = Field(ge=SLOWEST, le=FASTEST)


_COMMANDS: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Choose | _Turn | _LetGo | _Pause | _Go | _Speed, Field(discriminator="do")]
)


def packed(words: dict[str, Any], picture: bytes = b"") -> bytes:
    """A message to a page: the length of the words in four bytes, big end first, the words as JSON, a picture."""
    text = json.dumps(words, allow_nan=False).encode()
    return struct.pack(">I", len(text)) + text + picture


class Session:
    """Stands still at first. `handle` does what a page asks for, `tick` is called when time goes on.

    send: takes messages for all pages, (kind, message) where a later one of a kind makes an earlier one pointless.
    Messages are `scene` (a row with its picture), `state` (who wants what, and whether time goes on) and `note` (a line
    for the player). `welcome` are those that a page needs which comes now.
    """

    def __init__(self, game: Game, title: str, fps: float, send: Callable[[str, bytes], None]):
        self.game, self.fps, self.paused = game, fps, True
        self._send = send
        self._recorder: Recorder | None = None
        self._seats = {seat.agent: seat for seat in game.seats}
        self._episode = 0
        moment = game.begin()
        hands = [
            {"agent": s.agent, "keys": s.keys, "rest": s.rest, "single": s.single, **s.words()} for s in game.seats
        ]
        self.header = game.header(title, moment.frame)
        self._hello = packed({"kind": "hello", "header": self.header, "seats": hands, "speeds": [SLOWEST, FASTEST]})
        self._first = (moment.row, encode(moment.frame))
        self._show(moment)
        self._tell()

    def record(self, recorder: Recorder) -> None:
        """Records all that is played; to be called before anything is."""
        self._recorder = recorder
        recorder.add(*self._first)

    @property
    def welcome(self) -> list[bytes]:
        """What a page that comes now has to be told."""
        return [self._hello, self._scene, self._state]

    @property
    def waits(self) -> float | None:
        """Seconds until the next `tick`; None while time stands still."""
        return None if self.paused or self.game.waits() else 1 / self.fps

    def handle(self, text: str) -> None:
        """Does what a page asks for. ValueError for what is no command of this game."""
        try:
            command = _COMMANDS.validate_json(text)
        except ValidationError as error:
            raise ValueError(str(error)) from error
        if isinstance(command, _Choose):
            self._choose(command, self._seat(command.agent))
        elif isinstance(command, _Turn | _LetGo):
            seat = self._seat(command.agent)
            if command.number >= len(seat.numbers):
                raise ValueError(f"there is no number {command.number}")
            if isinstance(command, _Turn):
                seat.turn(command.number, command.value)
            else:
                seat.let_go(command.number)
        elif isinstance(command, _Pause):
            self.paused = command.on
        elif isinstance(command, _Speed):
            self.fps = command.fps
        elif command.do == "new":
            self.paused = True
            self._show(self.game.begin())
        else:
            self.paused = True
            self._go()
        self._tell()

    def tick(self) -> None:
        """Time goes on by a step, where nobody is waited for."""
        if not self.game.waits():
            self._go()
            self._tell()

    def _seat(self, agent: int) -> Seat:
        if agent not in self._seats:
            raise ValueError(f"nobody plays agent {agent}")
        return self._seats[agent]

    def _choose(self, command: _Choose, seat: Seat) -> None:
        if command.component >= len(seat.chosen):
            raise ValueError(f"there is no component {command.component}")
        if command.choice >= seat.role.action.choices[command.component]:
            raise ValueError(f"there is no choice {command.choice}")
        if command.do == "release":
            seat.release(command.component, command.choice)
            return
        if self.game.over:
            self._note("the episode is over: N or a step begins another")
        elif not self.game.alive(seat):
            self._note(f"{seat.name} is dead: it does nothing until it lives again")
        else:
            refused = seat.press(command.component, command.choice, self.game.mask(seat))
            if refused:
                self._note(refused)
            elif self.paused and seat.single and not self.game.waits():
                self._go()  # the press is the step
                for _ in range(_TURNS):  # and the others' turns follow by themselves
                    if self.game.forced:
                        self._go()

    def _go(self) -> None:
        """One step, if nobody has to choose first."""
        waiting = self.game.waits()
        if waiting:
            self._note(f"{' and '.join(waiting)} must choose first")
            return
        moment, refused = self.game.step()
        self._show(moment)
        if refused:
            self._note(refused)
        if self.game.over:
            self.paused = True

    def _show(self, moment: Moment) -> None:
        picture = encode(moment.frame)
        if moment.row["row"] == 0:
            self._episode += 1
        words = {"kind": "scene", "row": moment.row | {"episode": self._episode - 1}}
        self._scene = packed(words, picture)
        if self._recorder is not None:
            self._recorder.add(moment.row, picture)
        self._send("scene", self._scene)

    def _note(self, text: str) -> None:
        self._send("note", packed({"kind": "note", "text": text}))

    def _tell(self) -> None:
        """Tells who wants what, and whether time goes on."""
        self._state = packed(
            {
                "kind": "state",
                "paused": self.paused,
                "fps": self.fps,
                "waiting": self.game.waits(),
                "seats": [seat.words() for seat in self.game.seats],
            }
        )
        self._send("state", self._state)
