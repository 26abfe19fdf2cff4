"""Rollouts with and without CUDA graphs, on a GPU or a stand-in."""

from __future__ import annotations

from typing import Any

import torch

from algo_worlds import Everything, env_of
from coterie.core.tree import tree_leaves, tree_map
from coterie.envs.make import make
from coterie.policies.deterministic import DeterministicPolicy
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.epsilon_soft import EpsilonSoftPolicy
from coterie.training.collector import Collector
from preset_learners import preset_learner
from two_teams import TwoSides

STEPS = 5
"""Timesteps per rollout: episodes of the cases end within rollouts and across them."""
OU = {"noise": "ornstein_uhlenbeck"}
LAST, DIRECT = {"obs_last_action": "true"}, {"random_steps": "0"}
CASES: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "spread": (("particle/simple_spread", {"episode_limit": 7}), "ippo", "gru", {}),
    "tag, two teams": (("particle/simple_tag", {"episode_limit": 3}), "ippo", "none", {}),
    "ends by the task": (("coop/escape", {"episode_limit": 12}), "ippo", "none", {}),
    "agents die": (("skirmish/3m", {"episode_limit": 9}), "ippo", "lstm", {}),
    "matrix game": (("matrix/climbing", {"episode_limit": 2}), "ippo", "none", {}),
    "no time limit": (("particle/simple_spread", {"episode_limit": None}), "ippo", "none", {}),
    "deaths and masks": (Everything(dead=0.0), "ippo", "gru", {}),
    "two teams with deaths and masks": (TwoSides(dead=0.0), "ippo", "gru", {}),
    "epsilon-greedy": (Everything(dead=0.0), "qmix", "gru", LAST),
    "epsilon-greedy, components": (Everything("multi_discrete", dead=0.0), "iql", "none", {"normalize_obs": "true"}),
    "epsilon-greedy, two teams": (("particle/simple_tag", {"episode_limit": 3}), "vdn", "lstm", {}),
    "epsilon-soft": (Everything(dead=0.0), "coma", "gru", LAST),
    "epsilon-soft without masks": (("particle/simple_spread", {"episode_limit": 7}), "coma", "none", {}),
    "noise on actions": (Everything("hybrid", dead=0.0), "maddpg", "gru", DIRECT),
    "Ornstein-Uhlenbeck noise": (Everything("continuous", dead=0.0), "td3", "none", DIRECT | OU),
    "deterministic, uniform": (Everything("hybrid", dead=0.0), "maddpg", "none", OU),
    "squashed": (Everything("hybrid", dead=0.0), "masac", "gru", DIRECT),
    "squashed, uniform": (Everything("hybrid", dead=0.0), "masac", "none", {}),
}
"""World, or name and settings, the algorithm of the policies, their recurrent layer, and settings."""


def collector_of(case: str, device: Any, num_envs: int = 4) -> Collector:
    """Returns a collector of a case, with untrained policies."""
    world, algo, rnn, settings = CASES[case]
    if isinstance(world, tuple):
        env = make(world[0], world[1], num_envs=num_envs, seed=0, device=torch.device(device), with_state=True)
    else:
        env = env_of(world, num_envs, device=device)
    fewer = {"num_minibatches": 1} if algo in ("ippo", "mappo") else {}  # than sequences of a recurrent network
    learners = {
        team.name: preset_learner(algo, env, rnn, team, **fewer | settings) for team in env.spec.default_teams()
    }
    return Collector(env, {name: learner.behavior_policy for name, learner in learners.items()}, seed=0)


def collected(collector: Collector, setting: str, rollouts: int = 3, steps: int = STEPS) -> list[Any]:
    """Returns rollouts, finished episodes and states between them, copied to the CPU."""
    collector._collect.cuda_graphs = setting == "on"
    found = []
    for k in range(rollouts):
        set_exploration(collector, 0.8 - 0.2 * k)
        teams, count = collector.advance(steps)
        finished = collector.last_finished
        assert finished is not None
        found.append((tree_map(copied, (teams, collector.state_dict(), finished.state_dict())), count))
    return found


def set_exploration(collector: Collector, scale: float) -> None:
    """Sets the numbers by which policies explore, as learners do between rollouts."""
    for policy in collector.policies.values():
        if isinstance(policy, EpsilonGreedyPolicy | EpsilonSoftPolicy):
            policy.epsilon = scale
        if isinstance(policy, DeterministicPolicy):
            policy.noise_std = scale


def copied(x: Any) -> Any:
    return x.detach().cpu().clone() if isinstance(x, torch.Tensor) else x


def assert_equal(found: list[Any], expected: list[Any], *, rtol: float = 0, atol: float = 0) -> None:
    """Compares results of `collected`, bit for bit without tolerances."""
    assert len(found) == len(expected)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
        else:
            assert one == other


def assert_rollouts_are_those_without_graphs(case: str, device: Any, *, rtol: float = 0, atol: float = 0) -> None:
    """Compares rollouts, episodes and states. With graphs, there is one capture, whatever exploration is set."""
    eager, captured = collector_of(case, device), collector_of(case, device)
    expected = collected(eager, "off")
    assert_equal(collected(captured, "on"), expected, rtol=rtol, atol=atol)
    assert captured._collect.captures == 1
