"""Matrix games: the literature's numbers, who is paid, known returns held to play, equilibria, pictures."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from coterie.envs.check import check
from coterie.envs.make import make
from coterie.envs.matrix import SCENARIOS
from coterie.envs.matrix.game import Bimatrix, Cooperative, MatrixWorld
from coterie.envs.world import WorldEnv
from coterie.errors import UserError
from coterie.types import Action

COOPERATIVE = ("climbing", "coordination", "monotonic", "penalty", "two_step")
OPPONENTS = sorted(set(SCENARIOS) - set(COOPERATIVE))


def env_of(name: str, copies: int = 1, with_state: bool = False, **params: Any) -> WorldEnv:
    env = make(f"matrix/{name}", params, copies, seed=0, with_state=with_state)
    assert isinstance(env, WorldEnv)
    env.reset(0)
    return env


def world_of(name: str, **params: Any) -> Any:
    return env_of(name, **params).world


def actions(env: WorldEnv, choice: torch.Tensor) -> dict[str, Action]:
    """choice: [B, N]."""
    return {name: Action(choice[:, place, None]) for name, place in env.spec.role_slices().items()}


def played(env: WorldEnv, *rounds: tuple[int, ...]) -> list[Any]:
    """The steps that these joint actions bring to every copy."""
    return [env.step(actions(env, torch.tensor([joint] * env.copies)))[0] for joint in rounds]


# -------------------------------------------------------------------------------------------------------------- payoffs


def test_tables_are_those_of_the_literature():
    assert world_of("climbing").table().tolist() == [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]
    assert world_of("penalty").table().tolist() == [[-100, 0, 10], [0, 2, 0], [10, 0, -100]]
    assert world_of("penalty", k=-25).table().tolist() == [[-25, 0, 10], [0, 2, 0], [10, 0, -25]]
    assert world_of("monotonic").table().tolist() == [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]
    assert world_of("two_step").table(1).tolist() == [[7, 7], [7, 7]]
    assert world_of("two_step").table(2).tolist() == [[0, 1], [1, 8]]
    assert world_of("coordination", actions=2, agents=3).table().tolist() == [[[1, 0], [0, 0]], [[0, 0], [0, 1]]]
    assert world_of("coordination", actions=2, graded=True).table().tolist() == [[0.5, 0], [0, 1]]


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [
        ("prisoners_dilemma", [[3, 0], [5, 1]], [[3, 5], [0, 1]]),
        ("stag_hunt", [[4, 0], [3, 3]], [[4, 3], [0, 3]]),
        ("hawk_dove", [[1, 0], [2, -1]], [[1, 2], [0, -1]]),
        ("battle_of_sexes", [[2, 0], [0, 1]], [[1, 0], [0, 2]]),
        ("matching_pennies", [[1, -1], [-1, 1]], [[-1, 1], [1, -1]]),
        ("rock_paper_scissors", [[0, -1, 1], [1, 0, -1], [-1, 1, 0]], [[0, 1, -1], [-1, 0, 1], [1, -1, 0]]),
    ],
)
def test_opponents_have_payoffs_of_their_own(name: str, row: list, column: list):
    table = world_of(name).table()
    assert table[..., 0].tolist() == row
    assert table[..., 1].tolist() == column
    env = env_of(name)
    assert env.spec.groups == ("row", "column")
    assert not env.spec.paid_by_group
    for i, j in product(range(len(row)), repeat=2):
        env.reset()
        (step,) = played(env, (i, j))
        assert step.reward.tolist() == [[row[i][j], column[i][j]]]


def test_a_shared_payoff_is_paid_once_to_the_group():
    env = env_of("climbing", copies=9, episode_limit=1)
    joint = torch.tensor(list(product(range(3), repeat=2)))
    step, _ = env.step(actions(env, joint))
    assert step.group_reward.tolist() == [[11], [-30], [0], [-30], [7], [0], [0], [6], [5]]
    assert not step.reward.any()
    assert env.spec.paid_by_group


@pytest.mark.parametrize("joint", list(product(range(2), repeat=3)))
def test_many_agents_are_paid_for_agreeing(joint: tuple[int, ...]):
    (step,) = played(env_of("coordination", agents=3, actions=2), joint)
    assert step.group_reward.tolist() == [[float(len(set(joint)) == 1)]]


# ------------------------------------------------------------------------------------------------------- the two steps


def test_the_first_agent_chooses_the_second_state_and_both_see_it():
    env = env_of("two_step", with_state=True)
    for first, state, paid in (((0, 1), 1, 7), ((1, 0), 2, 8)):
        row = env.reset()
        assert row.obs["agent"].tolist() == [[[1, 0, 0]] * 2]
        assert row.state["global"].tolist() == [[1, 0, 0]]
        step, row = env.step(actions(env, torch.tensor([first])))
        seen = torch.eye(3)[state].tolist()
        assert row.obs["agent"].tolist() == [[seen] * 2]
        assert row.state["global"].tolist() == [seen]
        assert (step.group_reward.item(), step.episode_terminated.item()) == (0, False)
        (step,) = played(env, (1, 1))
        assert (step.group_reward.item(), step.episode_terminated.item()) == (paid, True)
        assert step.metrics["optimal"].item() == (paid == 8)


# ------------------------------------------------------------------------------------------------------- known returns


@pytest.mark.parametrize(
    ("name", "params", "best", "random"),
    [
        ("climbing", {}, 275, 25 * -31 / 9),
        ("climbing", {"episode_limit": 1}, 11, -31 / 9),
        ("penalty", {}, 250, 25 * -178 / 9),
        ("penalty", {"k": 0}, 250, 25 * 22 / 9),
        ("monotonic", {}, 8, -40 / 9),
        ("two_step", {}, 8, 4.75),
        ("coordination", {"agents": 4, "actions": 5}, 1, 1 / 125),
    ],
)
def test_best_and_random_returns_are_literal(name: str, params: dict[str, Any], best: float, random: float):
    world = world_of(name, **params)
    assert isinstance(world, Cooperative)
    assert world.best_return() == best
    assert world.random_return() == pytest.approx(random)


@pytest.mark.parametrize("name", SCENARIOS)
def test_random_play_earns_the_random_return(name: str):
    copies = 20_000
    env = env_of(name, copies)
    generator = torch.Generator().manual_seed(3)
    choices = env.spec.roles[0].action.choices[0]
    total = torch.zeros(copies, len(env.spec.groups))
    for _ in range(env.spec.episode_limit or 0):
        step, _ = env.step(actions(env, torch.randint(choices, (copies, env.spec.n), generator=generator)))
        total += step.group_reward + (0 if env.spec.paid_by_group else step.reward)
    world = env.world
    known = [world.random_return()] if isinstance(world, Cooperative) else list(random_returns(world).values())
    error = total.double().std(0) / copies**0.5
    assert ((total.double().mean(0) - torch.tensor(known)).abs() < 4 * error).all()


def random_returns(world: Any) -> dict[str, float]:
    assert isinstance(world, Bimatrix)
    return world.random_returns()


@pytest.mark.parametrize("name", COOPERATIVE)
def test_no_joint_actions_earn_more_than_the_best_return_and_some_earn_it(name: str):
    env = env_of(name, **({} if name == "two_step" else {"episode_limit": 2}))
    choices = env.spec.roles[0].action.choices[0]
    returns = []
    for plan in product(product(range(choices), repeat=2), repeat=2):
        env.reset()
        returns.append(sum(step.group_reward.item() for step in played(env, *plan)))
    assert isinstance(env.world, Cooperative)
    assert max(returns) == env.world.best_return()


@pytest.mark.parametrize("name", OPPONENTS)
def test_nobody_gains_by_leaving_an_equilibrium(name: str):
    world = world_of(name)
    table = world.table().double()
    for which, (row, column) in enumerate(world.equilibria):
        row, column = torch.tensor(row).double(), torch.tensor(column).double()
        mean = world.equilibrium_returns(which)
        assert float((table[..., 0] @ column).max()) == pytest.approx(mean["row"], abs=1e-6)
        assert float((row @ table[..., 1]).max()) == pytest.approx(mean["column"], abs=1e-6)
        assert float(row.sum()) == float(column.sum()) == pytest.approx(1)


def test_cooperating_is_no_equilibrium_of_the_prisoners_dilemma():
    table = world_of("prisoners_dilemma").table()
    assert table[1, 0, 0] > table[0, 0, 0]


# ---------------------------------------------------------------------------------------------------- rounds and views


def test_rounds_are_cut_at_the_limit_and_one_round_is_an_end():
    *_, last = played(env_of("climbing"), *[(0, 0)] * 25)
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (True, False)
    (last,) = played(env_of("climbing", episode_limit=1), (0, 0))
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (False, True)
    (last,) = played(env_of("climbing", episode_limit=1, limit_ends=False), (0, 0))
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (True, False)
    *_, last = played(env_of("climbing", episode_limit=2, limit_ends=True), (0, 0), (0, 0))
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (False, True)


def test_the_metrics_count_rounds():
    *_, last = played(env_of("climbing", episode_limit=4), (0, 0), (0, 1), (0, 0), (2, 2))
    assert last.metrics["optimal"].item() == 0.5
    *_, last = played(env_of("prisoners_dilemma", episode_limit=4), (0, 0), (0, 1), (1, 1), (1, 1))
    assert last.metrics["first_choice"].item() == 3 / 8


def test_the_last_joint_action_is_seen_where_it_is_asked_for():
    env = env_of("climbing", last_action=True, with_state=True, episode_limit=2)
    row = env.reset()
    assert row.obs["agent"].tolist() == [[[1, 0, 0, 0, 0, 0, 0]] * 2]
    for closing in (False, True):
        _, row = env.step(actions(env, torch.tensor([[2, 1]])))
        assert row.obs["agent"].tolist() == [[[1, 0, 0, 1, 0, 1, 0]] * 2]
        assert row.state["global"].tolist() == [[1, 0, 0, 1, 0, 1, 0]]
        assert row.acted.item() is not closing
    _, row = env.step(actions(env, torch.tensor([[2, 1]])))
    assert row.obs["agent"].tolist() == [[[1, 0, 0, 0, 0, 0, 0]] * 2]
    assert env_of("climbing").reset().obs["agent"].tolist() == [[[1], [1]]]


# ------------------------------------------------------------------------------------------------- contract, mistakes


@pytest.mark.parametrize("last_action", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_game_keeps_the_contract(name: str, last_action: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.envs.trials._SLOW", 0)
    params = {"last_action": last_action} | ({} if name == "two_step" else {"episode_limit": 3})
    report = check(lambda n, seed: make(f"matrix/{name}", params, n, seed, with_state=True), steps=20, copies=4)
    # There is nothing to draw: the same actions bring the same rows whatever the seed.
    assert [finding.rule for finding in report.findings] == ["seed-ignored"], report.render()


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("climbing", {"episode_limit": 0}, "env.episode_limit=0: expected a whole number at least 1"),
        ("penalty", {"k": 1}, "env.k=1: expected a number at most 0"),
        ("penalty", {"p": 1}, "has no key 'env.p'"),
        ("coordination", {"agents": 1}, "env.agents=1"),
        ("coordination", {"agents": 21, "actions": 2}, "agents=21 with actions=2 have 2^21 joint actions"),
        ("prisoners_dilemma", {"reward": 6}, "temptation=5, reward=6, punishment=1, sucker=0: expected temptation >"),
        ("stag_hunt", {"hare": 4}, "stag=4, hare=4: expected stag > hare > 0"),
        ("hawk_dove", {"cost": 2}, "cost=2, value=2: expected cost > value"),
        ("battle_of_sexes", {"other": 3}, "favourite=2, other=3: expected favourite > other > 0"),
    ],
)
def test_wrong_numbers_are_one_line(name: str, params: dict[str, Any], words: str):
    with pytest.raises(UserError) as error:
        make(f"matrix/{name}", params)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_largest_table_that_is_allowed_is_made():
    assert world_of("coordination", agents=6, actions=10).random_return() == pytest.approx(1e-5)


# ------------------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize("size", [64, 200, 480])
@pytest.mark.parametrize("name", SCENARIOS)
def test_pictures_show_what_was_chosen(name: str, size: int):
    env = env_of(name)
    pictures = []
    for joint in (None, (0, 0), (1, 0)):
        env.reset()
        if joint is not None:
            played(env, joint)
            if name == "two_step":
                played(env, joint)
        pictures.append(env.render(0, size))
        assert pictures[-1].shape == (size, size, 3)
        assert pictures[-1].dtype == np.uint8
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (pictures[one] != pictures[other]).any()


def test_pictures_of_many_agents_show_a_line_for_each():
    env = env_of("coordination", agents=4)
    before = board(env)
    played(env, (0, 1, 2, 2))
    after = board(env)
    assert [line.name for line in after] == ["agent_0", "agent_1", "agent_2", "agent_3"]
    assert [[cell.chosen for cell in line.cells].index(True) for line in after] == [0, 1, 2, 2]
    assert not any(cell.chosen for line in before for cell in line.cells)


def board(env: WorldEnv) -> Any:
    assert isinstance(env.world, MatrixWorld)
    return env.world.board(env.state_dict()["state"]).lines
