"""Teams that algorithms support, layouts of a team's agents, and value estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import (
    ALL_ACTIONS,
    AlgorithmContext,
    Capabilities,
    central_inputs,
    central_state_name,
    component_matrix,
    group_membership,
    learns_common_reward,
    require_equal_spaces,
)
from coterie.algos.poca import POCA
from coterie.algos.ppo import PPO, PPOConfig
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import Timestep
from coterie.training.collector import Collector
from learners import targets_of
from rank_threads import on_ranks

LENGTH = 12


def context(team: Any, seed: int) -> AlgorithmContext:
    return AlgorithmContext(team=team, num_envs=4, seed=seed, device=torch.device("cpu"), rollout_length=LENGTH)


@pytest.mark.parametrize(("name", "rnn"), [("ippo", "none"), ("ippo", "gru"), ("mappo", "gru"), ("poca", "lstm")])
def test_values_estimated_one_timestep_at_a_time_are_those_of_the_rollout(name: str, rnn: str):
    env = env_of(Everything("discrete", dead=0.0), 4)
    (team,) = env.spec.default_teams()
    cls: Any = POCA if name == "poca" else PPO
    critic = {"mappo": {"critic": "joint"}, "ippo": {"critic": "own"}}.get(name, {})
    config = cls.Config(**critic, rnn=rnn, rollout_length=LENGTH, normalize_value=True)
    algo = cls(config, context(team, 0))
    collector = Collector(env, {team.name: algo.policy}, 0)
    algo.update(collector.advance(LENGTH)[0][team.name], 0.0)  # the returns now have a scale
    rollout = collector.advance(LENGTH)[0][team.name]
    state = algo.state_dict()
    with torch.inference_mode():
        mean, std = algo.value_scale()
        if name == "poca":
            value = targets_of(algo, rollout).batch.value[:, :, :1]
            hidden_state = {key: x[:, :1] for key, x in state["hidden_state"].items()}
        else:
            value = targets_of(algo, rollout).batch.value
            hidden_state = state["hidden_state"]
        expected = (value * std + mean)[..., 0].expand(-1, -1, team.n)
        other = cls(config, context(team, 7))
        other.policy.load_state_dict(state["policy"])
        other.load_critic(state)
        assert set(hidden_state) == set(other.start_value_estimation(4))
        estimates = []
        for t in range(LENGTH):
            timestep = Timestep(
                obs={role: tree_map(lambda x, t=t: x[t], obs) for role, obs in rollout.obs.items()},
                action_mask={},
                state={key: x[t] for key, x in rollout.state.items()},
                alive=rollout.alive[t],
                first=rollout.first[t],
                acted=rollout.acted[t],
            )
            estimate, hidden_state = other.estimate_value(timestep, hidden_state)
            estimates.append(estimate)
    torch.testing.assert_close(torch.stack(estimates), expected, atol=1e-4, rtol=0)
    assert expected.std() > 1e-3


# --------------------------------------------------------------------------------------------- teams and capabilities

VECTOR, IMAGE = spaces.Box(-9, 9, (4,)), spaces.Box(0, 255, (8, 9, 3), dtype="uint8")
CHOICES = spaces.Discrete(3)


def team_of(*roles: tuple[str, int, Any, Any], can_die: bool = False, states: dict[str, int] | None = None) -> TeamSpec:
    """A team of roles: group, number of agents, observation space, action space."""
    specs = tuple(
        RoleSpec(f"role_{i}", group, tuple(f"{i}_{k}" for k in range(n)), observed, acts)
        for i, (group, n, observed, acts) in enumerate(roles)
    )
    total = sum(role.n for role in specs)
    return TeamSpec("red", specs, 0, total, (0,), can_die, False, states or {}, True)


ONE = team_of(("a", 1, VECTOR, CHOICES))


@pytest.mark.parametrize("space", [*Everything.KINDS.values(), spaces.Discrete(2)])
def test_a_team_with_supported_actions_is_accepted(space: spaces.Space):
    team = team_of(("a", 2, VECTOR, space), ("b", 1, VECTOR, CHOICES), can_die=True)
    Capabilities(actions=ALL_ACTIONS).check("some", team)
    Capabilities(frozenset({team.roles[0].action.kind, "discrete"})).check("some", team)
    pictures = team_of(("a", 1, IMAGE, space), ("b", 1, spaces.Dict({"x": VECTOR, "y": IMAGE}), CHOICES))
    Capabilities(actions=ALL_ACTIONS, images=True).check("some", pictures)


UNSUPPORTED = [
    ({"actions": frozenset({"discrete"})}, team_of(("a", 1, VECTOR, spaces.Box(-1, 1, (2,)))),
     r"^algo: some does not support the continuous actions of role 'role_0' \(Box.*, only discrete. Choose another"),
    ({"actions": frozenset({"hybrid", "continuous"})}, team_of(("a", 1, VECTOR, CHOICES)), "only continuous, hybrid."),
    ({}, team_of(("a", 1, spaces.Box(-1, 1, (2, 2)), CHOICES)), r"^role 'role_0': no network supports its obser"),
    ({"images": True}, team_of(("a", 1, spaces.Box(-1, 1, (2, 2)), CHOICES)), "Use a one-dimensional Box"),
    ({}, team_of(("a", 1, IMAGE, CHOICES)), r"^algo: some supports only vector observations, and role 'role_0'"),
    ({}, team_of(("a", 1, spaces.Dict({"x": VECTOR}), CHOICES)), "supports only vector observations"),
    ({"roles": False}, team_of(*[("a", 1, VECTOR, CHOICES)] * 2),
     r"^algo: some trains a single role, and team 'red' has 2. Split the team"),
    ({"multi_agent": False}, team_of(("a", 2, VECTOR, CHOICES)),
     r"^algo: some trains a single agent, and team 'red' has 2. .*, algo=ippo or algo=mappo.$"),
    ({"dying_agents": False}, replace(ONE, agents_can_die=True),
     r"^algo: some does not support agents that die, and those of team 'red' can. Choose another algorithm with algo"),
]  # fmt: skip


@pytest.mark.parametrize(("properties", "team", "message"), UNSUPPORTED)
def test_an_unsupported_team_is_refused_in_one_line(properties: dict[str, Any], team: TeamSpec, message: str):
    with pytest.raises(UserError, match=message):
        Capabilities(**{"actions": ALL_ACTIONS} | properties).check("some", team)
    with pytest.raises(UserError) as refused:
        Capabilities(**{"actions": ALL_ACTIONS} | properties).check("some", team, "teams.red.algo")
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(("teams.red.algo: some", "role 'role_0': no network"))


def test_only_roles_of_equal_spaces_share_all_parameters():
    equal, different = (team_of(("a", 1, VECTOR, CHOICES), ("a", 1, VECTOR, spaces.Discrete(n))) for n in (3, 4))
    require_equal_spaces(equal, "all")
    require_equal_spaces(different, "role")
    require_equal_spaces(different, "none")
    with pytest.raises(UserError, match=r"^algo.share_params: all agents of team 'red' cannot share parameters"):
        require_equal_spaces(different, "all")


def test_a_central_critic_reads_the_teams_own_state_before_the_global_one():
    roles = ("a", 1, VECTOR, CHOICES), ("b", 1, VECTOR, CHOICES)
    assert central_state_name(team_of(*roles, states={"global": 5, "b": 4}), "state") == "b"
    assert central_state_name(team_of(*roles, states={"b": 4, "a": 3}), "state") == "a"
    assert central_state_name(team_of(*roles, states={"global": 5, "c": 3}), "state") == "global"
    with pytest.raises(UserError, match=r"^algo.critic: joint_state needs an environment state, and there is none"):
        central_state_name(team_of(*roles), "joint_state")


@pytest.mark.parametrize(
    ("critic", "joint_obs", "others"),
    [("own", False, 0), ("joint", True, 0), ("state", False, 0), ("joint_state", True, 0), ("global", True, 1)],
)
def test_only_a_global_critic_reads_the_observations_of_other_teams(critic: str, joint_obs: bool, others: int):
    opponent = RoleSpec("opponent", "b", ("o_0",), VECTOR, CHOICES)
    team = replace(team_of(("a", 2, VECTOR, CHOICES), states={"global": 3}), other_roles=(opponent,))
    inputs = central_inputs(critic, team, 3)
    assert (inputs.joint_obs, inputs.other_roles, inputs.state_size) == (joint_obs, (opponent,) * others, 3)
    assert central_inputs(critic, team, 0).state_size == 0


def test_a_reward_is_common_by_the_algorithms_setting_or_by_that_of_the_team():
    found = {
        (setting, of_team): learns_common_reward(PPOConfig(common_reward=setting), replace(ONE, common_reward=of_team))
        for setting in (False, True)
        for of_team in (False, True)
    }
    assert found == {(False, False): False, (False, True): True, (True, False): True, (True, True): True}


def test_group_membership_of_literal_groups():
    """Two agents of a, one of b, and another one of a."""
    team = team_of(("a", 2, VECTOR, CHOICES), ("b", 1, VECTOR, CHOICES), ("a", 1, VECTOR, CHOICES))
    found = group_membership(team)
    assert (found.tolist(), found.dtype) == ([[1, 1, 0, 1], [0, 0, 1, 0]], torch.float32)


def test_component_matrix_of_literal_choices():
    """Two agents with 2 + 1 choices and one with 2, padded to three."""
    several = team_of(("a", 2, VECTOR, spaces.MultiDiscrete([2, 1])), ("b", 1, VECTOR, spaces.Discrete(2)))
    first = [[1, 0], [1, 0], [0, 1]]
    found = component_matrix(several, torch.device("cpu"))
    assert found is not None
    assert found.tolist() == [first, first, [[1, 0], [1, 0], [0, 0]]]
    assert component_matrix(ONE, torch.device("cpu")) is None


def test_the_environments_of_all_ranks_are_counted():
    found = on_ranks(
        3,
        lambda ranks: (
            AlgorithmContext(team=ONE, num_envs=4, seed=0, device=torch.device("cpu"), ranks=ranks).total_envs
        ),
    )
    assert found == [12, 12, 12]
    assert context(ONE, 0).total_envs == 4
