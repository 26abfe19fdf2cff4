"""Sparse worlds: rooms, doors, plates and goals; random play never earns a reward, and scripts always do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.config.schema import Choice
from coterie.config.user_code import load
from coterie.core.types import Action, Timestep
from coterie.envs.make import make
from coterie.envs.registry import scripts
from coterie.envs.worlds.sparse.chain import Chain, chain, corner
from coterie.envs.worlds.world import WorldEnv

CPU = torch.device("cpu")
MOVES = {"stay": 0, "left": 1, "right": 2, "down": 3, "up": 4}


def env_of(name: str, num_envs: int = 1, **params: Any) -> WorldEnv:
    env = make(f"sparse/{name}", params, num_envs, 0, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def placed(env: WorldEnv, **entries: Any) -> None:
    """Sets the state of a single environment."""
    env.reset(0)
    shown = env.state_dict()
    for name, value in entries.items():
        old = shown["state"][name]
        shown["state"][name] = torch.as_tensor(value, dtype=old.dtype).expand_as(old).clone()
    env.load_state_dict(shown)


def step(env: WorldEnv, *moves: str) -> Any:
    chosen = torch.tensor([[[MOVES[move]] for move in moves]])
    return env.step({"agent": Action(chosen)})


def at_random(row: Timestep, generator: torch.Generator) -> dict[str, Action]:
    mask = row.action_mask["agent"].float()
    drawn = torch.multinomial(mask.flatten(0, 1), 1, generator=generator)
    return {"agent": Action(drawn.view(*mask.shape[:2], 1))}


def shares(name: str, num_envs: int, script: str | None) -> dict[str, float]:
    """Mean return and metrics of one episode per environment."""
    env = env_of(name, num_envs)
    row = env.reset(0)
    generator = torch.Generator().manual_seed(1)
    act = None
    if script is not None:
        target, _ = scripts(f"sparse/{name}")[script]
        act = load(target, script)(env.spec.default_teams()[0], Choice(name=name, params=env.world.config))  # pyright: ignore
    total = {"return": 0.0, "rooms": 0.0, "done": 0.0}
    over = torch.zeros(num_envs, dtype=torch.bool)
    while not over.all():
        result, row = env.step(at_random(row, generator) if act is None else act(row))
        total["return"] += float((result.reward.sum(1) + result.group_reward.sum(1))[~over].sum())
        ends = (result.episode_terminated | result.episode_truncated) & ~over
        for key in ("rooms", "done"):
            total[key] += float(result.metrics[key][ends].sum())
        over |= ends
    return {key: value / num_envs for key, value in total.items()}


def at(rooms: Chain, squares: torch.Tensor) -> list[tuple[int, int]]:
    """(x, y) of squares."""
    return [(square % rooms.width, square // rooms.width) for square in squares.flatten().tolist()]


def test_rooms_lead_right_then_up_then_left():
    rooms = chain(6, 4, 3, CPU)
    assert (rooms.width, rooms.height) == (14, 9)
    assert [corner(k, 4, 3) for k in range(6)] == [(0, 0), (5, 0), (10, 0), (10, 5), (5, 5), (0, 5)]
    assert at(rooms, rooms.doors) == [(4, 3), (9, 0), (13, 4), (9, 5), (4, 8)]
    assert rooms.room[rooms.doors].tolist() == [0, 1, 2, 3, 4]
    assert int(rooms.floor.sum()) == 6 * 16 + 5
    assert at(rooms, rooms.goal) == [(0, 5)]  # the door of the last room is at (4, 8)
    assert at(rooms, rooms.plates)[:4] == [(0, 3), (3, 0), (5, 3), (8, 0)]


def test_walls_separate_rooms_and_fill_empty_places():
    rooms = chain(5, 4, 3, CPU)
    assert rooms.neighbor[rooms.square(0, 3, 0)].tolist() == [3, 2, 3, 3, 17]
    assert rooms.neighbor[rooms.square(0, 0, 3)].tolist() == [42, 42, 43, 28, 42]  # no door above
    assert not rooms.floor[5 * 14 : 5 * 14 + 4].any()  # the sixth room is none


def test_shortest_path_passes_through_every_door():
    rooms = chain(6, 4, 3, CPU)
    square, way = 0, []
    while square != int(rooms.goal):
        square = int(rooms.neighbor[square, rooms.toward[square, rooms.goal]])
        way.append(square)
    assert len(way) == (3 + 4) + (5 + 3) + (4 + 4) + (4 + 1) + (5 + 3) + (4 + 3)  # from each door to the next
    assert [square for square in way if square in rooms.doors.tolist()] == rooms.doors.tolist()


def test_reaching_the_goal_earns_one_and_terminates():
    env = env_of("rooms", rooms=2, size=3)
    goal = int(chain(2, 3, 2, CPU).goal)
    placed(env, agents=[[goal - 1]], reached=[1])
    result, row = step(env, "right")
    assert result.reward.tolist() == [[1.0]]
    assert result.episode_terminated.all()
    assert {name: float(x) for name, x in result.metrics.items()} == {"rooms": 2.0, "done": 1.0}
    assert not row.acted.any()
    placed(env, agents=[[goal - 1]])
    assert step(env, "left")[0].reward.sum() == 0


def test_walls_block_moves_and_are_masked():
    env = env_of("rooms", rooms=2, size=3)
    placed(env, agents=[[2]])
    _, row = step(env, "right")
    assert env.state_dict()["state"]["agents"].tolist() == [[2]]
    assert row.action_mask["agent"].tolist() == [[[True, True, False, False, True]]]


def test_observation_is_one_hot_position_then_teammates_then_doors():
    env = env_of("plates", rooms=2, size=3)
    placed(env, agents=[[8, 2]], open=[[True]])  # square (1, 1) and square (2, 0) of 7 x 3
    seen = env.world.observe(env.state_dict()["state"]).obs["agent"][0]
    own, mate = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert seen.tolist() == [[*own, *mate, 1], [*mate, *own, 1]]


def test_a_door_opens_when_both_plates_are_occupied_and_stays_open():
    env = env_of("plates", rooms=2, size=3)  # plates of the first room: (0, 2) = 14 and (2, 0) = 2
    placed(env, agents=[[14, 1]])
    _, row = step(env, "stay", "right")
    assert env.state_dict()["state"]["open"].tolist() == [[True]]
    step(env, "down", "up")
    assert env.state_dict()["state"]["open"].tolist() == [[True]]
    assert row.obs["agent"][0, :, -1].tolist() == [1, 1]


@pytest.mark.parametrize("agents", [[14, 0], [14, 14], [2, 2]])
def test_one_occupied_plate_does_not_open_a_door(agents: list[int]):
    env = env_of("plates", rooms=2, size=3)
    placed(env, agents=[agents])
    step(env, "stay", "stay")
    assert env.state_dict()["state"]["open"].tolist() == [[False]]


def test_a_closed_door_blocks_moves():
    env = env_of("plates", rooms=2, size=3)  # the door is (3, 2) = 17
    placed(env, agents=[[16, 0]])
    mask = env.world.observe(env.state_dict()["state"]).action_mask["agent"][0, 0]
    assert mask.tolist() == [True, True, False, True, False]
    step(env, "right", "stay")
    assert env.state_dict()["state"]["agents"].tolist() == [[16, 0]]
    placed(env, agents=[[16, 0]], open=[[True]])
    step(env, "right", "stay")
    assert env.state_dict()["state"]["agents"].tolist() == [[17, 0]]


def test_group_reward_when_both_agents_reach_the_last_room():
    env = env_of("plates", rooms=2, size=3)
    placed(env, agents=[[17, 4]], open=[[True]])
    result, _ = step(env, "stay", "stay")
    assert float(result.group_reward) == 0
    result, _ = step(env, "right", "stay")
    assert result.group_reward.tolist() == [[1.0]]
    assert result.episode_terminated.all()


@pytest.mark.parametrize(("name", "script", "rooms"), [("rooms", "straight_on", 5), ("plates", "plate_by_plate", 4)])
def test_script_always_reaches_the_goal_and_random_play_never_does(name: str, script: str, rooms: int):
    assert shares(name, 128, script) == {"return": 1.0, "rooms": rooms, "done": 1.0}
    found = shares(name, 1024, None)
    assert (found["return"], found["done"]) == (0.0, 0.0)
    assert 1.05 < found["rooms"] < 1.4
