"""Observations that contain their action mask, and observations of several sensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import coterie
from coterie.__main__ import main
from coterie.commands.player import split_masks
from coterie.core.errors import UserError
from coterie.export.portable.player import Player as PortablePlayer
from coterie.export.portable.policy_files import PolicyError
from gymnasium_worlds import SampledEnv
from tinyruns import train


def test_a_player_takes_observations_with_masks(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "env=matrix/climbing", "algo=ippo").run
    loaded = coterie.load(run)
    agents = [agent for team in loaded.teams.values() for agent in team.agents]
    sizes = {
        r.agents[0]: (r.observation_space.shape, r.action.mask_size) for t in loaded.teams.values() for r in t.roles
    }
    shape, choices = next(iter(sizes.values()))
    for allowed in range(choices):
        mask = np.arange(choices) == allowed
        given = {agent: {"observation": np.zeros(shape), "action_mask": mask} for agent in agents}
        assert loaded.player(seed=0).act(given) == dict.fromkeys(agents, allowed)
        separate = loaded.player(seed=0).act({agent: np.zeros(shape) for agent in agents}, dict.fromkeys(agents, mask))
        assert separate == dict.fromkeys(agents, allowed)
    some = {agents[0]: {"observation": np.zeros(shape), "action_mask": mask}, agents[1]: np.zeros(shape)}
    assert loaded.player(seed=0).act(some)[agents[0]] == choices - 1


@pytest.mark.parametrize(
    ("obs", "mask", "message"),
    [
        ({"a": {"observation": 1, "action_mask": 2}}, {"a": 3}, "action_mask of 'a': given twice"),
        ({"observation": 1, "action_mask": 2}, 3, "action_mask: given twice"),
        ({"a": {"obs": 1}}, None, "obs of 'a': a dict with obs. Pass an array, or a dict with observation"),
        ({"a": {"observation": 1, "action_mask": 2}}, np.ones(2), "action_mask: one array, but the observations"),
    ],
)
def test_mistakes_are_one_line(obs: dict, mask: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_masks(obs, mask)  # type: ignore[arg-type]


NESTED = spaces.Dict(
    eye=spaces.Box(0, 255, (9, 9, 3), np.uint8), arm=spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (1,)))
)


def nested() -> Any:
    return SampledEnv(NESTED, spaces.Discrete(3), ends=4)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of one agent with several sensors."""
    folder = tmp_path_factory.mktemp("seeing")
    train(folder / "run", f"env={__name__}:nested", "algo=ippo", "steps=40")
    return coterie.load(folder / "run")


def test_observations_of_several_sensors_are_read_in_every_form(seeing: Any) -> None:
    seen: Any = NESTED.sample()
    flat = {"eye": seen["eye"], "arm.a": seen["arm"]["a"], "arm.b": seen["arm"]["b"]}
    mask = [0, 0, 1]
    for given in (seen, flat):
        assert seeing.player().act(given, mask) == 2
        assert seeing.player().act(given | {"action_mask": mask}) == 2
        assert seeing.player().act({"observation": given, "action_mask": mask}) == 2
        assert seeing.player().act({"agent": given}, {"agent": mask}) == {"agent": 2}
        assert seeing.player().act({"agent": given | {"action_mask": mask}}) == {"agent": 2}
        assert seeing.player().act({"agent": {"observation": given, "action_mask": mask}}) == {"agent": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda seen: {"eye": seen["eye"]}, "lacks the sensor 'arm.a'. The sensors are 'arm.a', 'arm.b', 'eye'"),
        (lambda seen: seen | {"ear": np.zeros(2)}, "has no sensor 'ear'. The sensors are"),
        (lambda seen: {"agnet": seen}, "no agent or role 'agnet'. Did you mean 'agent'"),
        (lambda seen: np.zeros(3), "lacks the sensor 'arm.a': it is of type ndarray"),
        (lambda seen: seen | {"eye": np.zeros((9, 9))}, r"'eye' has shape \[9, 9\], expected \[9, 9, 3\]"),
    ],
)
def test_wrong_sensors_are_named(seeing: Any, change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        seeing.player().act(change(NESTED.sample()))


@pytest.mark.parametrize(
    ("eye", "message"),
    [
        (np.full((9, 9, 3), 256), r"holds 256 at index \[0, 0, 0\], expected integers from 0 to 255"),
        (np.full((9, 9, 3), -1), r"holds -1 at index \[0, 0, 0\], expected integers from 0 to 255"),
        (np.full((9, 9, 3), 0.5), r"holds 0\.5 at index \[0, 0, 0\], expected integers from 0 to 255"),
        (np.full((9, 9, 3), "7"), "Pass numbers of shape"),
    ],
)
def test_images_out_of_range_and_texts_are_refused_by_players(
    seeing: Any, eye: Any, message: str, tmp_path: Path
) -> None:
    """They were taken modulo 256, without fractions."""
    seen: Any = NESTED.sample()
    assert main(["export", str(seeing.path), "--format", "numpy", "--out", str(tmp_path / "policy"), "--trust"]) == 0
    for player in (seeing.player(mode="greedy"), PortablePlayer(tmp_path / "policy", mode="greedy")):
        whole = player.act(seen | {"eye": np.full((9, 9, 3), 255.0)})
        assert whole == player.act(seen | {"eye": np.full((9, 9, 3), 255, np.uint8)})
        with pytest.raises((UserError, PolicyError), match=message):
            player.act(seen | {"eye": eye})


SENSORS = spaces.Dict(
    {
        "arm": spaces.Box(-np.inf, np.inf, (2,)),
        "flags": spaces.MultiBinary(2),
        "room": spaces.Discrete(3),
        "eye": spaces.Box(0, 255, (9, 9, 3), np.uint8),
    }
)
SEEN = {"arm": [-3.5, 2], "flags": [0, 1], "room": [0, 0, 1], "eye": np.zeros((9, 9, 3), np.uint8).tolist()}


def sensing() -> Any:
    return SampledEnv(SENSORS, spaces.Discrete(3), ends=4)


@pytest.fixture(scope="module")
def sensing_players(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Coterie's player and that of an export."""
    folder = tmp_path_factory.mktemp("sensing")
    train(folder / "run", f"env={__name__}:sensing", "algo=ippo", "steps=40")
    assert main(["export", str(folder / "run"), "--format", "numpy", "--out", str(folder / "policy"), "--trust"]) == 0
    return coterie.load(folder / "run").player(mode="greedy"), PortablePlayer(folder / "policy", mode="greedy")


def test_booleans_are_accepted_in_place_of_zeros_and_ones_only(sensing_players: Any) -> None:
    for player in sensing_players:
        expected = player.act({"agent": SEEN})
        for flags in ([False, True], np.array([False, True]), [0, True], [0.0, 1.0]):
            assert player.act({"agent": SEEN | {"flags": flags}}) == expected
        for sensor, value in (("arm", [True, 2]), ("eye", np.zeros((9, 9, 3), bool))):
            with pytest.raises((UserError, PolicyError), match=f"obs of 'agent', sensor '{sensor}' holds (True|False)"):
                player.act({"agent": SEEN | {sensor: value}})


@pytest.mark.parametrize("sensor", SEEN)
@pytest.mark.parametrize(
    "value",
    ["1.5", [None, 1], None, [[1], [1, 2]], [float("nan"), 1], [10**400, 1], {"a": 1}, [], [0, 1, 0, 1]],
    ids=str,
)
def test_players_name_agent_and_sensor_of_what_is_no_number_of_its_space(
    sensing_players: Any, sensor: str, value: Any
) -> None:
    for player in sensing_players:
        with pytest.raises((UserError, PolicyError)) as error:
            player.act({"agent": SEEN | {sensor: value}})
        message = str(error.value)
        assert message.startswith("obs of 'agent'")
        assert sensor in message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("obs", "name"),
    [
        ({"agent": SEEN | {"ear": [1]}}, "ear"),
        ({"agent": {name: value for name, value in SEEN.items() if name != "arm"}}, "arm"),
        ({"agent": SEEN, "other": SEEN}, "other"),
        ({"agent": [1, 2]}, "'agent'"),
        ({"agent": "left"}, "'agent'"),
        ({"agent": None}, "'agent'"),
    ],
)
def test_players_name_wrong_agents_and_sensors(sensing_players: Any, obs: Any, name: str) -> None:
    for player in sensing_players:
        with pytest.raises((UserError, PolicyError), match=name):
            player.act(obs)
