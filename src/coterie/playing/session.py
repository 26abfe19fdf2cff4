"""State machine of a game played in the browser: requests of the page, messages to it, and the clock."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from coterie.config.messages import first_mistake
from coterie.playing.episode_recording import Recorder, encode
from coterie.playing.game import Game, Moment
from coterie.playing.page import page_json
from coterie.playing.seats import Seat

MIN_FPS, MAX_FPS = 0.5, 60.0
_MAX_SKIPPED = 32
"""Maximum number of timesteps without a player decision that are skipped at once."""


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Choose(_Command):
    do: Literal["press", "release"]
    agent: NonNegativeInt
    component: NonNegativeInt
    choice: NonNegativeInt


class _SetValue(_Command):
    do: Literal["set_value"]
    agent: NonNegativeInt
    number: NonNegativeInt
    value: float = Field(allow_inf_nan=False)


class _ReleaseValue(_Command):
    do: Literal["release_value"]
    agent: NonNegativeInt
    number: NonNegativeInt


class _Pause(_Command):
    do: Literal["pause"]
    on: bool


class _Advance(_Command):
    do: Literal["step", "new"]


class _Speed(_Command):
    do: Literal["speed"]
    fps: float = Field(ge=MIN_FPS, le=MAX_FPS)


_COMMANDS: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Choose | _SetValue | _ReleaseValue | _Pause | _Advance | _Speed, Field(discriminator="do")]
)


def encode_message(fields: dict[str, Any], image: bytes = b"") -> bytes:
    """Encodes a message to a page: JSON length (four bytes, big endian), JSON, image."""
    text = page_json(json.dumps(fields, allow_nan=False))
    return struct.pack(">I", len(text)) + text + image


class Session:
    """A game session, initially paused. `handle` executes a request of a page, `tick` advances time.

    `returns` are those of the episode so far, by team. Messages are `scene` (a timestep with its image), `state`
    (requested actions, pause state) and `note` (a line for the player). `welcome` returns the messages for a newly
    connected page.

    Args:
        send: Sends (kind, message) to all pages; a later message of a kind supersedes earlier ones.
        before_episode: Called before every episode but the first. With it, the game does not pause between episodes.
    """

    def __init__(
        self,
        game: Game,
        title: str,
        fps: float,
        send: Callable[[str, bytes], None],
        before_episode: Callable[[], None] | None = None,
    ):
        self.game, self.fps, self.paused = game, fps, True
        self._send, self._before_episode = send, before_episode
        self._recorder: Recorder | None = None
        self._seats = {seat.agent: seat for seat in game.seats}
        self._episode = 0
        moment = game.begin()
        seats = [
            {"agent": s.agent, "keys": s.keys, "rest": s.rest, "single": s.single, **s.state()} for s in game.seats
        ]
        self.header = game.header(title, moment.frame)
        self._hello = encode_message(
            {"kind": "hello", "header": self.header, "seats": seats, "speeds": [MIN_FPS, MAX_FPS]}
        )
        self._first = (moment.timestep, encode(moment.frame))
        self._show(moment)
        self._send_state()

    def record(self, recorder: Recorder) -> None:
        """Records all episodes; call it before the first step."""
        self._recorder = recorder
        recorder.add(*self._first)

    @property
    def welcome(self) -> list[bytes]:
        """Messages for a newly connected page."""
        return [self._hello, self._scene, self._state]

    @property
    def pending(self) -> float | None:
        """Seconds until the next `tick`; None while paused."""
        return None if self.paused or self.game.pending() else 1 / self.fps

    def handle(self, text: str) -> None:
        """Executes a request of a page. ValueError for an invalid request."""
        try:
            command = _COMMANDS.validate_json(text)
        except ValidationError as error:
            raise ValueError(first_mistake(error)) from error
        if isinstance(command, _Choose):
            self._choose(command, self._seat(command.agent))
        elif isinstance(command, _SetValue | _ReleaseValue):
            seat = self._seat(command.agent)
            if command.number >= len(seat.numbers):
                raise ValueError(f"no such continuous component: {command.number}")
            if isinstance(command, _SetValue):
                seat.set_value(command.number, command.value)
            else:
                seat.release_value(command.number)
        elif isinstance(command, _Pause):
            self.paused = command.on
        elif isinstance(command, _Speed):
            self.fps = command.fps
        elif command.do == "new":
            self.paused = self._before_episode is None or self.paused
            self._begin_episode()
        else:
            self.paused = True
            self._advance()
        self._send_state()

    def tick(self) -> None:
        """Advances time by one step unless a player has to choose."""
        if not self.game.pending():
            self._advance()
            self._send_state()

    def _seat(self, agent: int) -> Seat:
        if agent not in self._seats:
            raise ValueError(f"no player controls agent {agent}")
        return self._seats[agent]

    def _choose(self, command: _Choose, seat: Seat) -> None:
        if command.component >= len(seat.chosen):
            raise ValueError(f"no such component: {command.component}")
        if command.choice >= seat.role.action.choices[command.component]:
            raise ValueError(f"no such choice: {command.choice}")
        if command.do == "release":
            seat.release(command.component, command.choice)
            return
        if self.game.over:
            self._note("the episode is over. Press N or take a step to start another.")
        elif not self.game.alive(seat):
            self._note(f"{seat.name} is dead and does not act")
        else:
            refused = seat.press(command.component, command.choice, self.game.mask(seat))
            if refused:
                self._note(refused)
            elif self.paused and seat.single and not self.game.pending():
                self._advance()  # the key press triggers the step
                for _ in range(_MAX_SKIPPED):  # and the turns of other agents follow automatically
                    if self.game.forced:
                        self._advance()

    def _advance(self) -> None:
        """Takes a step unless a player has to choose first."""
        waiting = self.game.pending()
        if waiting:
            self._note(f"{' and '.join(waiting)} must choose first")
            return
        if self.game.over and self._before_episode is not None:
            self._begin_episode()
            return
        moment, refused = self.game.step()
        self._show(moment)
        if refused:
            self._note(refused)
        if self.game.over and self._before_episode is None:
            self.paused = True

    def _begin_episode(self) -> None:
        if self._before_episode is not None:
            self._before_episode()
        self._show(self.game.begin())

    def _show(self, moment: Moment) -> None:
        image = encode(moment.frame)
        if moment.timestep["timestep"] == 0:
            self._episode += 1
        fields = {"kind": "scene", "timestep": moment.timestep | {"episode": self._episode - 1}}
        self._scene = encode_message(fields, image)
        self.returns: dict[str, float | None] = moment.timestep["returns"]
        if self._recorder is not None:
            self._recorder.add(moment.timestep, image)
        self._send("scene", self._scene)

    def _note(self, text: str) -> None:
        self._send("note", encode_message({"kind": "note", "text": text}))

    def _send_state(self) -> None:
        """Sends the requested actions and the pause state."""
        self._state = encode_message(
            {
                "kind": "state",
                "paused": self.paused,
                "fps": self.fps,
                "waiting": self.game.pending(),
                "seats": [seat.state() for seat in self.game.seats],
            }
        )
        self._send("state", self._state)
