"""Warehouses by name and by settings: floors, draws, rewards, parameters, observations, couriers and pictures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.config.samplers import Constant, Integers
from coterie.core.errors import UserError
from coterie.core.types import Action, Timestep
from coterie.envs import registry
from coterie.envs.make import make
from coterie.envs.script_registry import load_script
from coterie.envs.worlds.warehouse.layout import DOWN, LEFT, RIGHT, UP, drawn_floor, regular_floor
from coterie.envs.worlds.warehouse.warehouse import FORWARD, ROLE, STAY, TOGGLE, replaced
from coterie.envs.worlds.world import WorldEnv

CPU = torch.device("cpu")
SHELF_ABOVE_GOAL = "x../g.."


def env_of(name: str, num_envs: int = 1, **params: Any) -> WorldEnv:
    env = make(f"warehouse/{name}", params, num_envs, 0, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def placed(env: WorldEnv, **entries: Any) -> None:
    """Sets entries of the state of all environments, and the agents' grid accordingly."""
    env.reset(0)
    found = env.state_dict()
    state = found["state"]
    for name, value in entries.items():
        state[name] = torch.as_tensor(value, dtype=state[name].dtype).expand_as(state[name]).clone()
    numbers = torch.arange(1, state["cell"].shape[1] + 1, dtype=torch.int16).expand_as(state["cell"])
    state["robots"] = torch.zeros_like(state["robots"]).scatter(1, state["cell"], numbers)
    env.load_state_dict(found)


def step(env: WorldEnv, *actions: int) -> tuple[list[float], Timestep]:
    """Steps a single environment and returns the agents' rewards."""
    result, timestep = env.step({ROLE: Action(torch.tensor(actions).view(1, -1, 1).expand(env.num_envs, -1, -1))})
    return result.reward[0].tolist(), timestep


def one_agent(**params: Any) -> WorldEnv:
    """An agent under the only requested shelf, which is above a goal, facing the goal; two more shelves elsewhere."""
    env = env_of("tiny-1ag", layout="x.x/g.x", request_queue_size=1, **params)
    placed(env, cell=[[6]], direction=[[DOWN]], requested=[False, True, False, False])
    return env


@pytest.mark.parametrize(
    ("name", "size", "shelves"),
    [
        ("tiny-2ag", (11, 10), 32),
        ("small-4ag", (20, 10), 80),
        ("medium-6ag", (20, 16), 144),
        ("large-8ag", (29, 16), 224),
    ],
)
def test_floors_have_the_size_of_the_package(name: str, size: tuple[int, int], shelves: int):
    floor = env_of(name).world.floor  # pyright: ignore[reportAttributeAccessIssue]
    assert (floor.size, floor.num_shelves) == (size, shelves)


def test_a_floor_is_drawn_with_line_breaks_or_slashes():
    floor = regular_floor(1, 1, 2)
    assert floor.rows == ("....", "....", "....", "....", ".gg.")[-len(floor.rows) :]
    assert drawn_floor("Xx. / .gG") == drawn_floor("\nxx.\n.gg\n")
    assert drawn_floor("xx./.gg").goals == ((1, 1), (2, 1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"layout": "xx/."}, "lines of 2, 1 cells"),
        ({"layout": "x?/gg"}, "'?' is none of x"),
        ({"layout": "xx/.."}, "no goal"),
        ({"layout": "../.g"}, "no shelf"),
        ({"shelf_columns": 2}, "shelf_columns=2: expected an odd number"),
        ({"request_queue_size": 32}, "request_queue_size=32: expected less than the number of shelves, 32"),
        ({"layout": "x.xx/g...", "agents": 9}, "agents=9: the floor has 8 cells"),
    ],
)
def test_mistakes_are_named(params: dict[str, Any], message: str):
    with pytest.raises(UserError, match="warehouse/tiny-2ag") as error:
        make("warehouse/tiny-2ag", params)
    assert message in str(error.value)


def test_names_set_agents_and_requests():
    for name, agents, requests in (("tiny-2ag", 2, 2), ("small-4ag-easy", 4, 8), ("large-19ag-hard", 19, 9)):
        env = env_of(name, 5)
        assert env.reset(0).obs[ROLE].shape[1] == agents
        assert env.state_dict()["state"]["requested"].sum(1).tolist() == [requests] * 5
    assert "warehouse/large-19ag-hard" not in registry.environments()
    assert list(registry.scripts("warehouse/large-19ag-hard")) == ["courier"]
    assert resolve(["env=warehouse/small-7ag", "algo=random"]).config.env.params.agents == 7  # pyright: ignore
    for name in ("warehouse/tiny-0ag", "warehouse/huge-2ag", "warehouse/tiny-2ag-eas"):
        with pytest.raises(UserError, match="there is no environment"):
            make(name)


def test_episodes_start_with_agents_anywhere_and_shelves_at_home():
    env = env_of("tiny-2ag", 4000)
    env.reset(3)
    state, floor = env.state_dict()["state"], env.world.tables(CPU)  # pyright: ignore[reportAttributeAccessIssue]
    assert (state["cell"][:, 0] != state["cell"][:, 1]).all()
    places = torch.bincount(state["cell"].flatten(), minlength=len(floor.highway))[floor.cells]
    assert abs(places / 8000 * 110 - 1).max() < 0.6
    assert abs(torch.bincount(state["direction"].flatten()) / 2000 - 1).max() < 0.1
    assert abs(state["requested"][:, 1:].sum(0) / 250 - 1).max() < 0.3
    assert torch.equal(state["shelves"][0, floor.homes], torch.arange(1, 33, dtype=torch.int16))


def test_a_delivered_shelf_is_replaced_by_each_other_one_equally_often():
    noise = (torch.arange(900) + 0.5) / 900
    requested = torch.tensor([False, True, False, True, False, False]).expand(900, -1)
    shelf = torch.full((900,), 3)
    after, hit = replaced(requested, shelf, noise)
    assert hit.all()
    assert after.sum(0).tolist() == [0, 900, 300, 0, 300, 300]
    after, hit = replaced(requested, torch.zeros_like(shelf), noise)
    assert not hit.any()
    assert torch.equal(after, requested)
    env = env_of("tiny-1ag", 3000, layout="xxxx/g...", request_queue_size=1)
    placed(env, cell=[[13]], shelves=0, carrying=1, requested=[False, True, False, False, False])
    found = env.state_dict()
    found["state"]["shelves"][:, 13] = 1
    env.load_state_dict(found)
    result, _ = env.step({ROLE: Action(torch.full((3000, 1, 1), STAY))})
    assert torch.equal(result.reward, torch.ones(3000, 1))
    drawn = env.state_dict()["state"]["requested"].sum(0)
    assert drawn[:2].tolist() == [0, 0]
    assert abs(drawn[2:] / 1000 - 1).max() < 0.15


def test_the_reward_for_loading_is_taken_back():
    env = one_agent(load_reward=0.25)
    assert [step(env, TOGGLE)[0][0] for _ in range(4)] == [0.25, -0.25, 0.25, -0.25]
    assert [step(env, action)[0][0] for action in (TOGGLE, FORWARD)] == [0.25, 1.0]


def test_agents_may_start_with_requested_shelves():
    env = env_of("tiny-4ag", 200, start_loaded=1.0)
    env.reset(1)
    state, floor = env.state_dict()["state"], env.world.tables(CPU)  # pyright: ignore[reportAttributeAccessIssue]
    loaded = state["carrying"] > 0
    assert torch.equal(loaded, floor.highway[state["cell"]])
    assert state["requested"].gather(1, state["carrying"])[loaded].all()
    assert torch.equal(state["shelves"].gather(1, state["cell"])[loaded].long(), state["carrying"][loaded])
    assert (state["shelves"] > 0).sum(1).tolist() == [32] * 200


def test_requests_and_loads_can_vary_between_environments():
    env = env_of("tiny-2ag", 300)
    env.set_samplers({"request_queue_size": Integers(integers=(1, 40)), "start_loaded": Constant(value=1.0)})
    env.reset(0)
    state = env.state_dict()["state"]
    assert torch.equal(state["requested"].sum(1), state["request_queue_size"].long().clamp(max=31))
    assert state["requested"].sum(1).unique().tolist() == list(range(1, 32))
    assert (state["carrying"] > 0).any()
    step(env, FORWARD, FORWARD)


def test_episodes_are_truncated_at_the_limit_and_terminated_without_deliveries():
    env = env_of("tiny-2ag", 3, max_steps=3)
    env.reset(0)
    ends = [env.step({ROLE: Action(torch.zeros(3, 2, 1, dtype=torch.int64))})[0] for _ in range(3)]
    assert [bool(end.episode_truncated.all()) for end in ends] == [False, False, True]
    env = env_of("tiny-2ag", 3, max_inactivity_steps=2)
    env.reset(0)
    ends = [env.step({ROLE: Action(torch.zeros(3, 2, 1, dtype=torch.int64))})[0] for _ in range(2)]
    assert [bool(end.episode_terminated.all()) for end in ends] == [False, True]


def test_the_state_shows_agents_and_the_whole_floor():
    env = one_agent()
    timestep = step(env, TOGGLE)[1]
    own, shelves, requests = timestep.state["global"][0].split((8, 6, 6))
    assert own.tolist() == [0, 0, 1, *(float(d == DOWN) for d in (UP, DOWN, LEFT, RIGHT)), 0]
    assert shelves.tolist() == [1, 0, 1, 0, 0, 1]
    assert requests.tolist() == [1, 0, 0, 0, 0, 0]


def test_couriers_deliver_far_more_than_random_play():
    returns = {}
    for algo in ("scripted", "random"):
        env = env_of("small-4ag", 24)
        config = resolve(["env=warehouse/small-4ag", "algo=random"]).config
        act, name, _ = load_script(env.spec.default_teams()[0], config.env, None)
        assert name == "courier"
        timestep, generator, total = env.reset(0), torch.Generator().manual_seed(0), 0.0
        for _ in range(500):
            guess = {ROLE: Action(torch.randint(0, 5, (24, 4, 1), generator=generator))}
            result, timestep = env.step(act(timestep) if algo == "scripted" else guess)
            total += float(result.reward.sum()) / 24
        returns[algo] = total
    assert returns["scripted"] > 14
    assert returns["random"] < 0.5


@pytest.mark.parametrize(
    ("params", "message"),
    [({"layout": SHELF_ABOVE_GOAL}, "env.layout"), ({"sensor_range": 0}, "env.sensor_range"), ({"msg_bits": 3}, "")],
)
def test_couriers_need_a_regular_floor_and_a_view(params: dict[str, Any], message: str):
    keys = [f"env.{key}={value}" for key, value in params.items()]
    config = resolve(["env=warehouse/tiny-2ag", "algo=random", "env.request_queue_size=0", *keys]).config
    env = env_of("tiny-2ag", request_queue_size=0, **params)
    if message:
        with pytest.raises(UserError, match=message):
            load_script(env.spec.default_teams()[0], config.env, "courier")
    else:
        act, _, _ = load_script(env.spec.default_teams()[0], config.env, "courier")
        env.step(act(env.reset(0)))


def test_pictures_show_requests_loads_and_directions():
    env = one_agent()
    pictures = [env.render(0, 240)]
    for action in (TOGGLE, FORWARD):
        step(env, action)
        pictures.append(env.render(0, 240))
    assert pictures[0].shape[1:] == (240, 3)
    assert all((a != b).any() for a, b in pairwise(pictures))
    assert env.render(0, 64).shape[1:] == (64, 3)
