"""Matrix games: payoffs from the literature, rewards, exact returns compared with play, equilibria, pictures."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs.make import make
from coterie.envs.worlds.matrix import SCENARIOS
from coterie.envs.worlds.matrix.matrix_game import BimatrixGame, CooperativeGame, MatrixWorld
from coterie.envs.worlds.world import WorldEnv

COOPERATIVE = ("climbing", "coordination", "monotonic", "penalty", "two_step")
BIMATRIX = sorted(set(SCENARIOS) - set(COOPERATIVE))


def make_env(name: str, num_envs: int = 1, with_state: bool = False, **params: Any) -> WorldEnv:
    env = make(f"matrix/{name}", params, num_envs, seed=0, with_state=with_state)
    assert isinstance(env, WorldEnv)
    env.reset(0)
    return env


def make_world(name: str, **params: Any) -> Any:
    return make_env(name, **params).world


def joint_action(env: WorldEnv, choice: torch.Tensor) -> dict[str, Action]:
    """Returns the action with choices [B, N]."""
    return {name: Action(choice[:, place, None]) for name, place in env.spec.role_slices().items()}


def play_rounds(env: WorldEnv, *rounds: tuple[int, ...]) -> list[Any]:
    """Plays these joint actions in every environment and returns the steps."""
    return [env.step(joint_action(env, torch.tensor([joint] * env.num_envs)))[0] for joint in rounds]


# -------------------------------------------------------------------------------------------------------------- payoffs


def test_payoffs_match_the_literature():
    assert make_world("climbing").payoffs().tolist() == [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]
    assert make_world("penalty").payoffs().tolist() == [[-100, 0, 10], [0, 2, 0], [10, 0, -100]]
    assert make_world("penalty", k=-25).payoffs().tolist() == [[-25, 0, 10], [0, 2, 0], [10, 0, -25]]
    assert make_world("monotonic").payoffs().tolist() == [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]
    assert make_world("two_step").payoffs(1).tolist() == [[7, 7], [7, 7]]
    assert make_world("two_step").payoffs(2).tolist() == [[0, 1], [1, 8]]
    assert make_world("coordination", actions=2, agents=3).payoffs().tolist() == [[[1, 0], [0, 0]], [[0, 0], [0, 1]]]
    assert make_world("coordination", actions=2, graded=True).payoffs().tolist() == [[0.5, 0], [0, 1]]


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
def test_players_of_bimatrix_games_have_payoffs_of_their_own(name: str, row: list, column: list):
    payoffs = make_world(name).payoffs()
    assert payoffs[..., 0].tolist() == row
    assert payoffs[..., 1].tolist() == column
    env = make_env(name)
    assert env.spec.groups == ("row", "column")
    assert not env.spec.has_group_reward
    for i, j in product(range(len(row)), repeat=2):
        env.reset()
        (step,) = play_rounds(env, (i, j))
        assert step.reward.tolist() == [[row[i][j], column[i][j]]]


def test_a_common_payoff_is_given_once_to_the_group():
    env = make_env("climbing", num_envs=9, episode_limit=1)
    joint = torch.tensor(list(product(range(3), repeat=2)))
    step, _ = env.step(joint_action(env, joint))
    assert step.group_reward.tolist() == [[11], [-30], [0], [-30], [7], [0], [0], [6], [5]]
    assert not step.reward.any()
    assert env.spec.has_group_reward


# ------------------------------------------------------------------------------------------------------- the two steps


def test_the_first_agent_chooses_the_second_state_and_both_observe_it():
    env = make_env("two_step", with_state=True)
    for first, state, reward in (((0, 1), 1, 7), ((1, 0), 2, 8)):
        timestep = env.reset()
        assert timestep.obs["agent"].tolist() == [[[1, 0, 0]] * 2]
        assert timestep.state["global"].tolist() == [[1, 0, 0]]
        step, timestep = env.step(joint_action(env, torch.tensor([first])))
        expected = torch.eye(3)[state].tolist()
        assert timestep.obs["agent"].tolist() == [[expected] * 2]
        assert timestep.state["global"].tolist() == [expected]
        assert (step.group_reward.item(), step.episode_terminated.item()) == (0, False)
        (step,) = play_rounds(env, (1, 1))
        assert (step.group_reward.item(), step.episode_terminated.item()) == (reward, True)
        assert step.metrics["optimal"].item() == (reward == 8)


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
def test_best_and_random_returns_have_known_values(name: str, params: dict[str, Any], best: float, random: float):
    world = make_world(name, **params)
    assert isinstance(world, CooperativeGame)
    assert world.best_return() == best
    assert world.random_return() == pytest.approx(random)


@pytest.mark.parametrize("name", SCENARIOS)
def test_random_play_has_the_random_return(name: str):
    num_envs = 20_000
    env = make_env(name, num_envs)
    generator = torch.Generator().manual_seed(3)
    choices = env.spec.roles[0].action.choices[0]
    total = torch.zeros(num_envs, len(env.spec.groups))
    for _ in range(env.spec.episode_limit or 0):
        step, _ = env.step(joint_action(env, torch.randint(choices, (num_envs, env.spec.n), generator=generator)))
        total += step.group_reward + (0 if env.spec.has_group_reward else step.reward)
    world = env.world
    expected = [world.random_return()] if isinstance(world, CooperativeGame) else list(random_returns(world).values())
    error = total.double().std(0) / num_envs**0.5
    assert ((total.double().mean(0) - torch.tensor(expected)).abs() < 4 * error).all()


def random_returns(world: Any) -> dict[str, float]:
    assert isinstance(world, BimatrixGame)
    return world.random_returns()


@pytest.mark.parametrize("name", COOPERATIVE)
def test_the_best_return_is_the_maximum_over_joint_actions(name: str):
    env = make_env(name, **({} if name == "two_step" else {"episode_limit": 2}))
    choices = env.spec.roles[0].action.choices[0]
    returns = []
    for plan in product(product(range(choices), repeat=2), repeat=2):
        env.reset()
        returns.append(sum(step.group_reward.item() for step in play_rounds(env, *plan)))
    assert isinstance(env.world, CooperativeGame)
    assert max(returns) == env.world.best_return()


@pytest.mark.parametrize("name", BIMATRIX)
def test_no_player_gains_by_deviating_from_an_equilibrium(name: str):
    world = make_world(name)
    payoffs = world.payoffs().double()
    for index, (row, column) in enumerate(world.equilibria):
        row, column = torch.tensor(row).double(), torch.tensor(column).double()
        mean = world.equilibrium_returns(index)
        assert float((payoffs[..., 0] @ column).max()) == pytest.approx(mean["row"], abs=1e-6)
        assert float((row @ payoffs[..., 1]).max()) == pytest.approx(mean["column"], abs=1e-6)
        assert float(row.sum()) == float(column.sum()) == pytest.approx(1)


# ---------------------------------------------------------------------------------------------------- rounds and views


def test_repeated_games_are_truncated_and_one_shot_games_terminated():
    *_, last = play_rounds(make_env("climbing"), *[(0, 0)] * 25)
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (True, False)
    (last,) = play_rounds(make_env("climbing", episode_limit=1), (0, 0))
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (False, True)
    (last,) = play_rounds(make_env("climbing", episode_limit=1, terminate_at_limit=False), (0, 0))
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (True, False)
    *_, last = play_rounds(make_env("climbing", episode_limit=2, terminate_at_limit=True), (0, 0), (0, 0))
    assert (last.episode_truncated.item(), last.episode_terminated.item()) == (False, True)


def test_metrics_are_fractions_of_rounds():
    *_, last = play_rounds(make_env("climbing", episode_limit=4), (0, 0), (0, 1), (0, 0), (2, 2))
    assert last.metrics["optimal"].item() == 0.5
    *_, last = play_rounds(make_env("prisoners_dilemma", episode_limit=4), (0, 0), (0, 1), (1, 1), (1, 1))
    assert last.metrics["first_choice"].item() == 3 / 8


def test_the_last_joint_action_is_observed_if_requested():
    env = make_env("climbing", last_action=True, with_state=True, episode_limit=2)
    timestep = env.reset()
    assert timestep.obs["agent"].tolist() == [[[1, 0, 0, 0, 0, 0, 0]] * 2]
    for final in (False, True):
        _, timestep = env.step(joint_action(env, torch.tensor([[2, 1]])))
        assert timestep.obs["agent"].tolist() == [[[1, 0, 0, 1, 0, 1, 0]] * 2]
        assert timestep.state["global"].tolist() == [[1, 0, 0, 1, 0, 1, 0]]
        assert timestep.acted.item() is not final
    _, timestep = env.step(joint_action(env, torch.tensor([[2, 1]])))
    assert timestep.obs["agent"].tolist() == [[[1, 0, 0, 0, 0, 0, 0]] * 2]
    assert make_env("climbing").reset().obs["agent"].tolist() == [[[1], [1]]]


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("coordination", {"agents": 21, "actions": 2}, "env.agents=21 with env.actions=2: 2^21 joint actions"),
        ("prisoners_dilemma", {"reward": 6}, "temptation=5, reward=6, punishment=1, sucker=0. Expected temptation >"),
        ("stag_hunt", {"hare": 4}, "stag=4, hare=4. Expected stag > hare > 0"),
        ("hawk_dove", {"cost": 2}, "cost=2, value=2. Expected cost > value"),
        ("battle_of_sexes", {"other": 3}, "favorite=2, other=3. Expected favorite > other > 0"),
    ],
)
def test_invalid_settings_raise_a_one_line_error(name: str, params: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        make(f"matrix/{name}", params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_largest_allowed_game_can_be_created():
    assert make_world("coordination", agents=6, actions=10).random_return() == pytest.approx(1e-5)


# ------------------------------------------------------------------------------------------------------------ pictures


def test_pictures_of_many_agents_have_a_line_for_each():
    env = make_env("coordination", agents=4)
    before = lines_of(env)
    play_rounds(env, (0, 1, 2, 2))
    after = lines_of(env)
    assert [line.name for line in after] == ["agent_0", "agent_1", "agent_2", "agent_3"]
    assert [[cell.chosen for cell in line.cells].index(True) for line in after] == [0, 1, 2, 2]
    assert not any(cell.chosen for line in before for cell in line.cells)


def lines_of(env: WorldEnv) -> Any:
    assert isinstance(env.world, MatrixWorld)
    return env.world.picture(env.state_dict()["state"]).lines
