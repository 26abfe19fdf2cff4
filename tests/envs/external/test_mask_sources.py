"""Action masks of environments with one agent: every place, in this process, workers, vector environments, players."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import coterie
from coterie.__main__ import main
from coterie.config.schema import WorkersConfig
from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec
from coterie.core.types import Timestep
from coterie.envs.contract.traces import random_actions
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.mask_sources import MaskForm, as_mask
from coterie.envs.external.spaces import space_entry
from coterie.envs.make import make
from coterie.export.portable.player import Player
from coterie.export.portable.player import _flat_mask as flat_in_exports
from gymnasium_worlds import registering
from maskworlds import PLACES, Masked, expected_masks, masked, masked_processes, masked_vector
from tinyruns import shorten_checks, train

NAME = "maskworlds:masked"
SHAPES: dict[str, dict[str, bool]] = {
    "discrete": {},
    "flat": {"multi": True},
    "split": {"multi": True, "split": True},
    "parts": {"multi": True, "parts": True},
}
TURNS = [(place, [*SHAPES][k % len(SHAPES)], k) for k, place in enumerate(PLACES)]
"""Every place and every shape, and a number by which a third setting takes turns."""


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks show at once."""
    shorten_checks(monkeypatch)


@pytest.fixture(autouse=True)
def _own_ids() -> Iterator[None]:
    with registering() as register:
        register("Masked-v0", masked, vector_entry_point=masked_vector)
        register("MaskedProcesses-v0", vector_entry_point=masked_processes)
        yield


def phase(timestep: Timestep) -> torch.Tensor:
    """The phase that every environment shows."""
    seen = timestep.obs["agent"]
    while isinstance(seen, dict):
        seen = seen[next(name for name in seen if "pos" in name)]
    return seen[..., 0]


def timesteps_of(env: VectorEnv, steps: int = 20) -> list[Timestep]:
    """Timesteps from a reset on, with random legal actions."""
    generator, timesteps = torch.Generator().manual_seed(0), [env.reset()]
    for _ in range(steps):
        timesteps.append(env.step(random_actions(env.spec, timesteps[-1], generator))[1])
    return timesteps


def assert_masks(name: str, params: dict[str, Any], **more: Any) -> None:
    """Plays with random legal actions and compares all masks."""
    env = make(name, params, num_envs=3, **more)
    timesteps = timesteps_of(env)
    for timestep in timesteps:
        expected = expected_masks(phase(timestep), bool(params.get("multi")))
        assert torch.equal(timestep.action_mask["agent"], expected)
    assert sum(int((~timestep.acted).sum()) for timestep in timesteps) >= 6
    env.close()


PAIR = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
LETTERS = spaces.Dict({"b": PAIR, "a": spaces.MultiDiscrete([2, 3]), "c": spaces.Box(0, 1), "d": spaces.MultiBinary(1)})
FORMS: list[tuple[spaces.Space, Any, str]] = [
    (spaces.Discrete(3), [1, 0, 1], "101"),
    (spaces.Discrete(3), torch.tensor([1, 0, 1]), "101"),
    (spaces.MultiDiscrete([2, 3]), [[1, 0], [0, 1, 1]], "10011"),
    (spaces.MultiDiscrete([2, 2]), [[1, 0], [0, 1]], "1001"),
    (spaces.MultiDiscrete([[2, 2], [1, 2]]), [[[1, 0], [0, 1]], [[1], [0, 1]]], "1001101"),
    (spaces.MultiBinary(2), [[1, 0], [0, 1]], "1001"),
    (PAIR, [1, 0], "10"),
    (PAIR, ([1, 0], None), "10"),
    (PAIR, ([1, 0],), "10"),
    (PAIR, np.array([np.array([1, 0]), None], object), "10"),
    (PAIR, (None, None), "11"),
    (spaces.Tuple([spaces.Tuple([PAIR, PAIR]), spaces.Box(0, 1)]), ([1, 0], [0, 1]), "1001"),
    (spaces.Tuple([spaces.Tuple([PAIR, PAIR]), spaces.Box(0, 1)]), (([1, 0], ([0, 1], None)), None), "1001"),
    (LETTERS, {"d": [0, 1], "a": ([1, 0], [0, 1, 1]), "b": ([0, 1], None), "c": None}, "100110101"),
    (LETTERS, {"a": np.array([1, 0, 0, 1, 1]), "b": [0, 1], "d": None}, "100110111"),
    (LETTERS, [1, 0, 0, 1, 1, 0, 1, 0, 1], "100110101"),
    (spaces.Tuple([LETTERS, spaces.Discrete(2)]), ({"a": None, "b": [0, 1], "d": [0, 1]}, [0, 1]), "11111010101"),
]


@pytest.mark.parametrize(("space", "mask", "flat"), FORMS, ids=[f"{i}" for i in range(len(FORMS))])
def test_masks_of_every_form_are_flattened_in_the_order_of_the_space(space: spaces.Space, mask: Any, flat: str):
    found = MaskForm(space).flat(mask)
    assert "".join(str(int(x)) for x in as_mask(found)) == flat
    assert MaskForm(space).size == len(flat)
    if isinstance(mask, list | tuple | dict):
        role = {
            "choices": ActionSpec.of(space).choices,
            "action": json.loads(json.dumps(space_entry(space, bounds=True))),
        }
        assert np.ravel(flat_in_exports(mask, role, "action_mask")).astype(int).tolist() == list(map(int, flat))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"a": None, "b": None}, r"has the parts \['a', 'b'\], expected the parts \['[abd]'"),
        ({"a": None, "b": None, "d": None, "e": None}, "expected the parts"),
        ({"a": {"x": [1, 0]}, "b": None, "d": None}, r"has the parts \['x'\], expected an array"),
        ({"a": [1, 0], "b": None, "d": None}, "has 6 entries, expected 9"),
        ({"a": [2, 0, 1, 1, 1], "b": None, "d": None}, "an action mask holds 2"),
        ({"a": ["1", "0", "1", "1", "1"], "b": None, "d": None}, "an action mask of type"),
    ],
)
def test_masks_of_other_forms_are_one_line_everywhere(
    mask: Any, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Faulty(Masked):
        def __init__(self):
            super().__init__("info")
            self.action_space = LETTERS

        def mask(self) -> Any:
            return mask

    monkeypatch.setattr("maskworlds.Faulty", Faulty, raising=False)
    with pytest.raises(UserError, match=message) as error:
        make("maskworlds:Faulty").reset()
    assert "\n" not in str(error.value)
    assert main(["check-env", "maskworlds:Faulty", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert re.search(message, finding["message"])


@pytest.mark.parametrize(("place", "shape", "turn"), TURNS)
def test_masks_are_read_wherever_they_are(place: str, shape: str, turn: int):
    params = {"place": place, "wrap": ("", "wrapper", "duck")[turn % 3], **SHAPES[shape]}
    assert_masks(NAME, params)
    spec = make(NAME, params).spec
    assert "action_mask" not in str(spec.roles[0].observation_space)
    (note,) = spec.notes
    assert note.startswith("action masks are read from ")
    source = {"action_masks": "action_masks()", "action_mask": "action_mask()", "attribute": "action_masks"}
    place = "info" if place == "info" else "observation"
    assert source.get(params["place"], f"{place}['action_mask']") in note


@pytest.mark.parametrize("place", PLACES)
def test_masks_of_registered_environments_and_of_wrappers_with_a_limit_are_read(place: str):
    assert_masks("gym/Masked-v0", {"place": place, "episode_limit": 4})
    assert_masks(NAME, {"place": place, "episode_limit": 4})


def test_masks_are_read_by_workers():
    assert_masks(NAME, {"place": "action_masks"}, workers=WorkersConfig(count=1))


@pytest.mark.parametrize(("place", "shape", "turn"), TURNS)
def test_masks_of_vector_environments_are_read(place: str, shape: str, turn: int):
    mode = ("SameStep", "Disabled", "NextStep")[turn % 3]
    env = make("gymvec/Masked-v0", {"place": place, "mode": mode, **SHAPES[shape]}, num_envs=3)
    timesteps = timesteps_of(env)
    finals = 0
    for timestep in timesteps:
        expected = expected_masks(phase(timestep), "multi" in SHAPES[shape])
        shown = timestep.action_mask["agent"]
        final = ~timestep.acted
        if mode == "SameStep" and final.any() and place in ("action_masks", "action_mask", "attribute"):
            assert shown[final].all()  # the method returns the mask of the next episode
            shown, expected = shown[~final], expected[~final]
        assert torch.equal(shown, expected)
        finals += int(final.sum())
    assert finals >= 6
    assert env.spec.notes
    env.close()


@pytest.mark.parametrize("place", ["info", "action_masks"])
def test_masks_of_vector_environments_in_processes_are_read(place: str):
    assert_masks("gymvec/MaskedProcesses-v0", {"place": place})


@pytest.mark.parametrize("name", [NAME, "gymvec/Masked-v0"])
def test_a_mask_that_is_missing_allows_all_actions(name: str):
    env = make(name, {"gap": 3} if "gymvec" in name else {"gap": 3, "late": 0, "place": "info"}, num_envs=2)
    for timestep in timesteps_of(env):
        expected = expected_masks(phase(timestep), multi=False) | (phase(timestep) % 3 == 1)[..., None]
        assert torch.equal(timestep.action_mask["agent"], expected)


def test_a_first_mask_after_the_first_reset_is_refused(capsys: pytest.CaptureFixture[str]):
    env = make(NAME, {"late": 3})
    assert not env.spec.notes
    with pytest.raises(UserError, match=r"info shows 'action_mask' only later. Return it from reset\(\) on"):
        timesteps_of(env)
    assert main(["check-env", NAME, "env.late=3", "--json"]) == 1
    assert "mask-late" in {finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize("key", ["legal_moves", "action_masks", "avail_actions"])
def test_keys_that_look_like_masks_are_noted(key: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Masked, "info", lambda self: {key: [1, 1, 1]})
    assert make(NAME, {}).spec.notes == (
        f"info['{key}'] is not read as an action mask. Name it 'action_mask' if it is one",
    )


@pytest.mark.parametrize(("mask", "place"), [("info", "info"), ("obs", "observation")])
def test_the_place_of_the_masks_of_several_agents_is_noted(mask: str, place: str):
    (note,) = make("pettingzoo_worlds:isle", {"mask": mask}).spec.notes
    assert note.startswith(f"action masks of worker are read from {place}['action_mask'];")


def test_a_mask_of_continuous_actions_stays_a_sensor():
    class Numbers(Masked):
        def __init__(self):
            super().__init__("renamed")
            self.action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def step(self, action: Any) -> Any:
            self.age += 1
            return self.seen(), 0.0, self.age == 3, False, {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskworlds.Numbers", Numbers, raising=False)
        env = make("maskworlds:Numbers")
        assert set(env.reset().obs["agent"]) == {"pos", "action_mask"}
        assert not env.reset().action_mask


@pytest.mark.parametrize(("place", "shape"), [(PLACES[0], "discrete"), ("action_mask", "split")])
def test_runs_evaluations_and_players_obey_the_masks(
    place: str, shape: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    run, settings = tmp_path / "run", [f"env.{key}={value}" for key, value in SHAPES[shape].items()]
    train(run, f"env={NAME}", f"env.place={place}", *settings, "algo=ippo", "progress=lines")
    assert "action masks are read from" in "".join(capfd.readouterr())
    assert main(["evaluate", str(run), "--episodes", "4"]) == 0
    assert main(["export", str(run), "--format", "numpy", "--out", str(tmp_path / "policy")]) == 0
    for player in (coterie.load(run).player(), Player(tmp_path / "policy")):
        env = masked(place, **SHAPES[shape])
        observation, info = env.reset(seed=1)
        for _ in range(5):
            separate = None if isinstance(observation, dict) else info.get("action_mask", env.mask())
            action: Any = player.act(observation, separate)
            native = action if shape == "parts" else np.array(action, np.int64)[()]
            observation, reward, _, _, info = env.step(native)
            assert reward == 1
