"""Rollouts with and without CUDA graphs, on a GPU or a stand-in."""

from __future__ import annotations

from typing import Any

import torch

from algo_worlds import Everything, env_of
from coterie.core import cuda_graphs
from coterie.core.tree import tree_leaves, tree_map
from coterie.envs.make import make
from coterie.training.collector import Collector
from preset_learners import preset_learner
from two_teams import TwoSides

STEPS = 5
"""Timesteps per rollout: episodes of the cases end within rollouts and across them."""
CASES: dict[str, tuple[Any, str]] = {
    "spread": (("particle/simple_spread", {"episode_limit": 7}), "gru"),
    "tag, two teams": (("particle/simple_tag", {"episode_limit": 3}), "none"),
    "ends by the task": (("coop/escape", {"episode_limit": 12}), "none"),
    "agents die": (("skirmish/3m", {"episode_limit": 9}), "lstm"),
    "matrix game": (("matrix/climbing", {"episode_limit": 2}), "none"),
    "no time limit": (("particle/simple_spread", {"episode_limit": None}), "none"),
    "deaths and masks": (Everything(dead=0.0), "gru"),
    "two teams with deaths and masks": (TwoSides(dead=0.0), "gru"),
}
"""World, or name and settings, and the policies' recurrent layer."""


def collector_of(case: str, device: Any, num_envs: int = 4) -> Collector:
    """Returns a collector of a case, with untrained policies."""
    world, rnn = CASES[case]
    if isinstance(world, tuple):
        env = make(world[0], world[1], num_envs=num_envs, seed=0, device=torch.device(device), with_state=True)
    else:
        env = env_of(world, num_envs, device=device)
    learners = {team.name: preset_learner("ippo", env, rnn, team) for team in env.spec.default_teams()}
    return Collector(env, {name: learner.policy for name, learner in learners.items()}, seed=0)


def collected(collector: Collector, setting: str, rollouts: int = 4, steps: int = STEPS) -> list[Any]:
    """Returns rollouts, finished episodes and states between them, copied to the CPU."""
    cuda_graphs.configure(setting)
    found = []
    for _ in range(rollouts):
        teams, count = collector.advance(steps)
        finished = collector.last_finished
        assert finished is not None
        found.append((tree_map(copied, (teams, collector.state_dict(), finished.state_dict())), count))
    return found


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
    """Compares rollouts, episodes and states. With graphs, there is one capture."""
    eager, captured = collector_of(case, device), collector_of(case, device)
    expected = collected(eager, "off")
    assert_equal(collected(captured, "on"), expected, rtol=rtol, atol=atol)
    assert captured._collect.captures == 1
