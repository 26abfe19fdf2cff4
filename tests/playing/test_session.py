"""Sessions: requests of the page, the clock, messages to the page, and recording."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.playing.episode_recording import Recorder, Recording
from coterie.playing.game import Game
from coterie.playing.session import Session, encode_message
from tables import table

HOSTILE = "a\x1b]0;t\x07\r\n\x9b\u202e<b>ä"


class Page:
    """The last message of each kind and all notes, as a page receives them."""

    def __init__(self, game: Game, record: Path | None = None):
        self.last: dict[str, Any] = {}
        self.notes: list[str] = []
        self.image = b""
        self.session = Session(game, "a title", 5, self.receive)
        for message in self.session.welcome:
            self.receive("welcome", message)
        self.recorder = None if record is None else Recorder(record, self.session.header)
        if self.recorder is not None:
            self.session.record(self.recorder)

    def receive(self, kind: str, message: bytes) -> None:
        (length,) = struct.unpack(">I", message[:4])
        fields = json.loads(message[4 : 4 + length])
        assert kind in ("welcome", fields["kind"])
        self.last[fields["kind"]] = fields
        if fields["kind"] == "scene":
            self.image = message[4 + length :]
        if fields["kind"] == "note":
            self.notes.append(fields["text"])

    def request(self, do: str, **more: Any) -> None:
        self.session.handle(json.dumps({"do": do, **more}))

    def press(self, choice: int, agent: int = 0, component: int = 0) -> None:
        self.request("press", agent=agent, component=component, choice=choice)
        self.request("release", agent=agent, component=component, choice=choice)

    @property
    def timestep(self) -> dict[str, Any]:
        return self.last["scene"]["timestep"]


def test_a_new_page_receives_the_complete_state():
    page = Page(table(["a"]))
    assert page.last["hello"]["header"]["title"] == "a title"
    (seat,) = page.last["hello"]["seats"]
    assert seat["keys"]["ArrowRight"] == {"component": 0, "choice": 2}
    assert (page.timestep["timestep"], page.timestep["episode"]) == (0, 0)
    assert page.last["state"] == {
        "kind": "state", "paused": True, "fps": 5, "waiting": [],
        "seats": [{"agent": 0, "chosen": [None], "numbers": []}],
    }  # fmt: skip
    image = np.asarray(Image.open(io.BytesIO(page.image)))
    assert np.array_equal(image, page.session.game.env.render(0, 50))


def test_a_page_shows_names_and_notes_with_escapes():
    message = encode_message({"kind": "note", "text": HOSTILE, "teams": [{HOSTILE: 1.5}, None, True]}, b"\x1b")
    (length,) = struct.unpack(">I", message[:4])
    shown = r"a\x1b]0;t\x07\r\n\x9b\u202e<b>ä"
    assert json.loads(message[4 : 4 + length]) == {"kind": "note", "text": shown, "teams": [{shown: 1.5}, None, True]}
    assert message[4 + length :] == b"\x1b", "images are left as they are"


def test_a_press_takes_a_step_while_the_game_is_paused():
    page = Page(table(["a"]))
    assert page.session.pending is None
    page.press(2)
    assert page.timestep["timestep"] == 1
    assert page.timestep["agents"][0]["action"] == {"discrete": [2], "continuous": []}
    assert page.last["state"]["seats"][0]["chosen"] == [None]
    page.request("step")
    assert page.timestep["timestep"] == 2
    assert page.timestep["agents"][0]["action"]["discrete"] == [0]


def test_a_masked_press_takes_no_step_and_shows_a_note():
    page = Page(table(["a"]))
    page.press(1)
    assert page.timestep["timestep"] == 1
    page.press(1)  # square 0: a wall on the left
    assert page.notes == ["a_0 cannot choose 'left' now (masked)"]
    assert page.timestep["timestep"] == 1
    page.press(2)
    assert (page.timestep["timestep"], len(page.notes)) == (2, 1)


def test_time_advances_at_the_requested_speed_and_uses_held_keys():
    page = Page(table(["a"], limit=50))
    page.request("pause", on=False)
    assert page.session.pending == pytest.approx(1 / 5)
    page.request("speed", fps=20)
    assert page.session.pending == pytest.approx(1 / 20)
    page.request("press", agent=0, component=0, choice=2)
    assert page.timestep["timestep"] == 0  # no step before the next tick
    for _ in range(3):
        page.session.tick()
    assert [page.timestep["timestep"], page.timestep["agents"][0]["total"]] == [3, 2.0 + 3.0 + 4.0]
    page.session.tick()  # held against the wall
    assert page.notes == ["a_0 cannot choose 'right' now (masked)"]
    assert page.timestep["agents"][0]["action"]["discrete"] == [0]
    page.request("pause", on=True)
    assert page.session.pending is None


def test_the_game_pauses_at_the_end_of_an_episode_until_a_new_one_is_requested():
    page = Page(table(["a"], limit=2))
    page.request("pause", on=False)
    page.session.tick()
    page.session.tick()
    assert (page.timestep["final"], page.session.paused) == (True, True)
    page.press(2)
    assert page.notes == ["the episode is over. Press N or take a step to start another."]
    page.request("step")
    assert (page.timestep["episode"], page.timestep["timestep"]) == (1, 0)
    page.press(2)
    page.request("new")
    assert (page.timestep["episode"], page.timestep["timestep"]) == (2, 0)


def test_time_waits_for_a_player_who_has_to_choose():
    page = Page(table(["a"], pause=False))
    page.request("pause", on=False)
    assert page.session.pending is None
    assert page.last["state"]["waiting"] == ["a_0"]
    page.session.tick()
    assert page.timestep["timestep"] == 0
    page.request("press", agent=0, component=0, choice=2)
    assert page.session.pending == pytest.approx(1 / 5)
    page.session.tick()
    assert page.timestep["timestep"] == 1
    page.request("step")
    assert page.timestep["timestep"] == 2  # the key is still held
    page.request("release", agent=0, component=0, choice=2)
    page.request("step")
    assert page.notes == ["a_0 must choose first"]


def test_turns_of_other_agents_are_played_automatically():
    page = Page(table(["a"], turn_based=True, pause=False, limit=50))
    page.press(2)
    assert page.timestep["timestep"] == 3  # after two turns of other agents
    assert page.last["state"]["waiting"] == ["a_0"]
    page = Page(table(["a"], pause=False, limit=50))
    page.press(2)
    assert page.timestep["timestep"] == 1


def test_automatic_turns_stop_at_the_end_of_an_episode():
    page = Page(table(["a"], turn_based=True, limit=2))
    page.press(2)
    assert (page.timestep["timestep"], page.timestep["final"]) == (2, True)


def test_a_player_of_a_dead_agent_gets_a_note():
    page = Page(table(["b"], agents_can_die=True, limit=50))
    page.press(2, agent=1)
    assert not page.timestep["agents"][1]["alive"]
    page.press(1, agent=1)
    assert page.notes == ["b_0 is dead and does not act"]
    assert page.timestep["timestep"] == 1


def test_continuous_values_are_set_and_shown():
    page = Page(table(["b"], numbers=True))
    page.request("set_value", agent=1, number=0, value=3.0)
    assert page.last["state"]["seats"][0]["numbers"] == [3.0]
    page.request("step")
    assert page.timestep["agents"][1]["action"]["continuous"] == [3.0]
    page.request("release_value", agent=1, number=0)
    assert page.last["state"]["seats"][0]["numbers"] == [0.0]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "{}",
        '{"do": "quit"}',
        '{"do": "speed", "fps": 1000}',
        '{"do": "speed", "fps": NaN}',
        '{"do": "pause"}',
        '{"do": "press", "agent": 1, "component": 0, "choice": 0}',  # no player controls this agent
        '{"do": "press", "agent": 0, "component": 1, "choice": 0}',
        '{"do": "press", "agent": 0, "component": 0, "choice": 3}',
        '{"do": "press", "agent": 0, "component": 0, "choice": -1}',
        '{"do": "release", "agent": 0, "component": 7, "choice": 0}',
        '{"do": "set_value", "agent": 0, "number": 0, "value": 1}',
        '{"do": "set_value", "agent": 0, "number": 0, "value": Infinity}',
        '{"do": "step", "more": 1}',
    ],
)
def test_invalid_requests_change_nothing(text: str):
    page = Page(table(["a"]))
    with pytest.raises(ValueError):
        page.session.handle(text)
    assert (page.timestep["timestep"], page.session.paused, page.session.fps) == (0, True, 5)


def test_the_played_episodes_are_recorded(tmp_path: Path):
    page = Page(table(["a"], limit=3), tmp_path / "one.zip")
    page.press(2)
    page.request("new")
    page.press(1)
    page.press(0)
    last_image = page.image
    assert page.recorder is not None
    page.recorder.close()
    found = Recording(tmp_path / "one.zip")
    assert [(r.episode, r.timestep) for r in found.timesteps] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [r.agents[0].action.discrete for r in found.timesteps if r.agents[0].action] == [(2,), (1,), (0,)]
    assert found.frame(4) == last_image
    found.close()
