"""A session: what the page asks for is done or refused, time goes on when it should, and all is told and recorded."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.playing.game import Game
from coterie.playing.recording import Recorder, Recording
from coterie.playing.session import Session
from playing.tables import table


class Page:
    """What a page would know: the last message of each kind, and all notes."""

    def __init__(self, game: Game, record: Path | None = None):
        self.last: dict[str, Any] = {}
        self.notes: list[str] = []
        self.picture = b""
        self.session = Session(game, "a title", 5, self.hear)
        for message in self.session.welcome:
            self.hear("welcome", message)
        self.recorder = None if record is None else Recorder(record, self.session.header)
        if self.recorder is not None:
            self.session.record(self.recorder)

    def hear(self, kind: str, message: bytes) -> None:
        (length,) = struct.unpack(">I", message[:4])
        words = json.loads(message[4 : 4 + length])
        assert kind in ("welcome", words["kind"])
        self.last[words["kind"]] = words
        if words["kind"] == "scene":
            self.picture = message[4 + length :]
        if words["kind"] == "note":
            self.notes.append(words["text"])

    def say(self, do: str, **more: Any) -> None:
        self.session.handle(json.dumps({"do": do, **more}))

    def press(self, choice: int, agent: int = 0, component: int = 0) -> None:
        self.say("press", agent=agent, component=component, choice=choice)
        self.say("release", agent=agent, component=component, choice=choice)

    @property
    def row(self) -> dict[str, Any]:
        return self.last["scene"]["row"]


def test_a_page_that_comes_is_told_everything():
    page = Page(table(["a"]))
    assert page.last["hello"]["header"]["title"] == "a title"
    (seat,) = page.last["hello"]["seats"]
    assert seat["keys"]["ArrowRight"] == {"component": 0, "choice": 2}
    assert (page.row["row"], page.row["episode"]) == (0, 0)
    assert page.last["state"] == {
        "kind": "state", "paused": True, "fps": 5, "waiting": [],
        "seats": [{"agent": 0, "chosen": [None], "numbers": []}],
    }  # fmt: skip
    picture = np.asarray(Image.open(io.BytesIO(page.picture)))
    assert np.array_equal(picture, page.session.game.env.render(0, 50))


def test_while_time_stands_still_a_press_is_a_step():
    page = Page(table(["a"]))
    assert page.session.waits is None
    page.press(2)
    assert page.row["row"] == 1
    assert page.row["agents"][0]["did"] == {"discrete": [2], "continuous": []}
    assert page.last["state"]["seats"][0]["chosen"] == [None]
    page.say("step")
    assert page.row["row"] == 2
    assert page.row["agents"][0]["did"]["discrete"] == [0]


def test_a_masked_press_takes_no_step_and_says_so():
    page = Page(table(["a"]))
    page.press(1)
    assert page.row["row"] == 1
    page.press(1)  # square 0: a wall on the left
    assert page.notes == ["a_0 cannot choose 'left' now: it is masked"]
    assert page.row["row"] == 1
    page.press(2)
    assert (page.row["row"], len(page.notes)) == (2, 1)


def test_time_goes_on_at_the_speed_that_is_asked_for_and_takes_what_is_held():
    page = Page(table(["a"], limit=50))
    page.say("pause", on=False)
    assert page.session.waits == pytest.approx(1 / 5)
    page.say("speed", fps=20)
    assert page.session.waits == pytest.approx(1 / 20)
    page.say("press", agent=0, component=0, choice=2)
    assert page.row["row"] == 0  # not before time goes on
    for _ in range(3):
        page.session.tick()
    assert [page.row["row"], page.row["agents"][0]["total"]] == [3, 2.0 + 3.0 + 4.0]
    page.session.tick()  # held against the wall
    assert page.notes == ["a_0 cannot choose 'right' now: it is masked"]
    assert page.row["agents"][0]["did"]["discrete"] == [0]
    page.say("pause", on=True)
    assert page.session.waits is None


def test_at_the_end_time_stops_and_a_new_episode_begins_when_it_is_wanted():
    page = Page(table(["a"], limit=2))
    page.say("pause", on=False)
    page.session.tick()
    page.session.tick()
    assert (page.row["closing"], page.session.paused) == (True, True)
    page.press(2)
    assert page.notes == ["the episode is over: N or a step begins another"]
    page.say("step")
    assert (page.row["episode"], page.row["row"]) == (1, 0)
    page.press(2)
    page.say("new")
    assert (page.row["episode"], page.row["row"]) == (2, 0)


def test_a_player_who_has_to_choose_is_waited_for():
    page = Page(table(["a"], pause=False))
    page.say("pause", on=False)
    assert page.session.waits is None
    assert page.last["state"]["waiting"] == ["a_0"]
    page.session.tick()
    assert page.row["row"] == 0
    page.say("press", agent=0, component=0, choice=2)
    assert page.session.waits == pytest.approx(1 / 5)
    page.session.tick()
    assert page.row["row"] == 1
    page.say("step")
    assert page.row["row"] == 2  # it is held still
    page.say("release", agent=0, component=0, choice=2)
    page.say("step")
    assert page.notes == ["a_0 must choose first"]


def test_rows_in_which_the_player_waits_for_a_turn_follow_by_themselves():
    page = Page(table(["a"], turns=True, pause=False, limit=50))
    page.press(2)
    assert page.row["row"] == 3  # two rows of others later
    assert page.last["state"]["waiting"] == ["a_0"]
    page = Page(table(["a"], pause=False, limit=50))
    page.press(2)
    assert page.row["row"] == 1


def test_an_episode_that_ends_meanwhile_is_not_passed_over():
    page = Page(table(["a"], turns=True, limit=2))
    page.press(2)
    assert (page.row["row"], page.row["closing"]) == (2, True)


def test_the_dead_are_told_that_they_are():
    page = Page(table(["b"], mortal=True, limit=50))
    page.press(2, agent=1)
    assert not page.row["agents"][1]["alive"]
    page.press(1, agent=1)
    assert page.notes == ["b_0 is dead: it does nothing until it lives again"]
    assert page.row["row"] == 1


def test_numbers_are_set_and_seen():
    page = Page(table(["b"], numbers=True))
    page.say("turn", agent=1, number=0, value=3.0)
    assert page.last["state"]["seats"][0]["numbers"] == [3.0]
    page.say("step")
    assert page.row["agents"][1]["did"]["continuous"] == [3.0]
    page.say("let_go", agent=1, number=0)
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
        '{"do": "press", "agent": 1, "component": 0, "choice": 0}',  # nobody sits there
        '{"do": "press", "agent": 0, "component": 1, "choice": 0}',
        '{"do": "press", "agent": 0, "component": 0, "choice": 3}',
        '{"do": "press", "agent": 0, "component": 0, "choice": -1}',
        '{"do": "release", "agent": 0, "component": 7, "choice": 0}',
        '{"do": "turn", "agent": 0, "number": 0, "value": 1}',
        '{"do": "turn", "agent": 0, "number": 0, "value": Infinity}',
        '{"do": "step", "more": 1}',
    ],
)
def test_what_is_no_command_changes_nothing(text: str):
    page = Page(table(["a"]))
    with pytest.raises(ValueError):
        page.session.handle(text)
    assert (page.row["row"], page.session.paused, page.session.fps) == (0, True, 5)


def test_what_is_played_is_recorded(tmp_path: Path):
    page = Page(table(["a"], limit=3), tmp_path / "one.zip")
    page.press(2)
    page.say("new")
    page.press(1)
    page.press(0)
    shown = page.picture
    assert page.recorder is not None
    page.recorder.close()
    found = Recording(tmp_path / "one.zip")
    assert [(r.episode, r.row) for r in found.rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [r.agents[0].did.discrete for r in found.rows if r.agents[0].did] == [(2,), (1,), (0,)]
    assert found.frame(4) == shown
    found.close()
