"""Value estimators: estimates per timestep equal the values of a whole rollout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.poca import POCA
from coterie.algos.ppo import PPO
from coterie.core.tree import tree_map
from coterie.core.types import Timestep
from coterie.training.collector import Collector

LENGTH = 12


def context(team: Any, seed: int) -> AlgorithmContext:
    return AlgorithmContext(team=team, num_envs=4, seed=seed, device=torch.device("cpu"), rollout_length=LENGTH)


@pytest.mark.parametrize("rnn", ["none", "gru", "lstm"])
@pytest.mark.parametrize("name", ["ippo", "mappo", "poca"])
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
            value = algo.targets(rollout, 0.0)[0].value[:, :, :1]
            hidden_state = {key: x[:, :1] for key, x in state["hidden_state"].items()}
        else:
            value = algo.targets(rollout, 0.0, as_sequences=False)[0].value
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
