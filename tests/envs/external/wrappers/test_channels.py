"""Images whose channels come first: noted where environments are shown, and converted by a wrapper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.core.specs import is_channels_first
from coterie.core.team_report import image_notes
from coterie.envs.make import make
from gymworlds import SampledEnv, played, registering
from tinyruns import train

FIRST = [(1, 12, 10), (2, 9, 9), (3, 12, 10), (4, 84, 84), (3, 5, 5), (12, 84, 84), (9, 16, 16)]
LAST = [(12, 10, 3), (84, 84, 4), (84, 84, 12), (5, 5, 3), (3, 4, 4), (4, 4, 4), (9, 9, 9), (7, 9, 8), (12, 10), (8,)]


def image(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    with registering() as register:
        for name, space in {
            "First-v0": image((3, 12, 10)),
            "Last-v0": image((12, 10, 3)),
            "Many-v0": image((6, 12, 10)),
            "Eyes-v0": spaces.Dict(left=image((3, 12, 10)), right=image((12, 10, 3)), arm=spaces.Box(-1, 1, (2,))),
        }.items():
            kwargs: dict[str, Any] = {"observation": space, "action": spaces.Discrete(2)}
            register(name, SampledEnv, max_episode_steps=7, kwargs=kwargs)
        yield


@pytest.mark.parametrize("shape", FIRST)
def test_channels_that_come_first_are_recognized(shape: tuple[int, ...]):
    assert is_channels_first(image(shape))


@pytest.mark.parametrize("shape", LAST)
def test_other_shapes_are_not(shape: tuple[int, ...]):
    assert not is_channels_first(image(shape))
    assert not is_channels_first(spaces.Box(0, 1, (3, 12, 10)))


def test_the_start_of_a_run_and_the_check_note_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    notes = image_notes(make("gym/Eyes-v0").spec)
    assert len(notes) == 1
    assert "images of sensor left of role agent are [3, 12, 10], read as 3 rows with 10 channels" in notes[0]
    train(tmp_path / "run", "env=gym/First-v0", "algo=ippo", "progress=lines")
    assert "images of role agent are [3, 12, 10], read as 3 rows" in "".join(capfd.readouterr())
    assert main(["check-env", "gym/First-v0", "--json"]) == 0
    found = [finding["rule"] for finding in json.loads(capfd.readouterr().out)["findings"]]
    assert "channels-first" in found
    wrapped = {"wrappers": {"channels_last": True}}
    assert not image_notes(make("gym/Last-v0").spec) + image_notes(make("gym/First-v0", wrapped).spec)


@pytest.mark.parametrize("name", ["gym/First-v0", "gym/Eyes-v0", "gym/Many-v0"])
def test_the_wrapper_moves_the_channels(name: str):
    plain, wrapped = make(name), make(name, {"wrappers": {"channels_last": True}})
    pairs = [(plain.reset(), wrapped.reset())]
    pairs += [(one, two) for (_, _, one), (_, _, two) in zip(played(plain, 9), played(wrapped, 9), strict=True)]
    for before, after in pairs:
        old, new = before.obs["agent"], after.obs["agent"]
        old, new = (seen if isinstance(seen, dict) else {"left": seen} for seen in (old, new))
        assert torch.equal(old.pop("left").movedim(-3, -1), new.pop("left"))
        assert all(torch.equal(old[sensor], new[sensor]) for sensor in new)
    space = wrapped.spec.roles[0].observation_space
    assert (space["left"] if isinstance(space, spaces.Dict) else space).shape[:2] == (12, 10)


def test_other_wrappers_read_the_converted_images():
    wrappers = {"channels_last": True, "grayscale": True, "resize": (6, 5), "frame_stack": 2}
    assert make("gym/First-v0", {"wrappers": wrappers}).spec.roles[0].observation_space.shape == (6, 5, 2)


@pytest.mark.parametrize("name", ["gym/Last-v0", "gym/CartPole-v1"])
def test_the_wrapper_is_refused_without_such_images(name: str):
    with pytest.raises(UserError, match=r"env.wrappers.channels_last=true: '.*' has no images \[channels"):
        make(name, {"wrappers": {"channels_last": True}})
