"""COMA with a critic on own observations and the others' actions, as in XuanCe without its global state."""

import pytest
import torch

from algo_worlds import Everything, Probe, env_of, observe_x
from coterie.algos.poca import POCA, POCAConfig
from coterie.algos.ppo import PPO, PPOConfig
from coterie.core.types import TIME_LEFT
from learners import coma_learner, learner_of


def collect(learner, collector):
    return collector.advance(learner.rollout_length)[0][learner.policy.team.name]


def test_values_are_those_of_a_plain_loop_over_own_observation_time_left_and_the_others_actions():
    """The loop builds each agent's input and multiplies it by the weights; the agents' other inputs do not exist."""
    learner, collector = coma_learner(Everything(), 4, critic="own", obs_agent_id=False, activation="relu")
    rollout = collect(learner, collector)
    batch, _ = learner.targets(rollout)
    with torch.no_grad():
        found = learner.critic(batch.obs, batch.state, batch.joint_action, None)
    agents = [("guard", 0, 3), ("guard", 1, 3), ("scout", 0, 4)]
    for t in range(3):
        for b in range(4):
            alive = rollout.alive[t, b].tolist()
            for i, (role, place, choices) in enumerate(agents):
                parts = [rollout.obs[role][t, b, place], rollout.state[TIME_LEFT][t, b]]
                for j, (other, other_place, other_choices) in enumerate(agents):
                    vector = torch.zeros(other_choices)
                    if j != i and alive[j]:
                        vector[rollout.action[other].discrete[t, b, other_place, 0]] = 1.0
                    parts.append(vector)
                x = torch.cat(parts)
                state = learner.critic.networks[role].state_dict()
                weights = [name for name in state if name.endswith("weight")]
                assert state[weights[0]].shape[0] == len(x)
                for name in weights:
                    x = x @ state[name] + state[name.removesuffix("weight") + "bias"]
                    x = x if name == weights[-1] else x.relu()
                torch.testing.assert_close(found[t, b, i, :choices], x, atol=1e-5, rtol=1e-5)


def equal_choices(x, age, discrete, continuous):
    return (discrete[:, :1] == discrete[:, 1:]).float() + x.unsqueeze(-1)


@pytest.mark.parametrize(("observed", "error"), [(True, (0.0, 0.1)), (False, (0.3, 1.0))])
def test_the_critic_learns_rewards_that_depend_on_own_observation_and_the_others_action(observed, error):
    """Both agents get 1 for equal choices plus x. Control: agents that do not observe x, mean error 1/2."""
    observation = observe_x if observed else (lambda x, age: torch.zeros(len(x), 1, 1))
    world = Probe(observation, equal_choices, n=2)
    learner, collector = coma_learner(world, critic="own", lr=0.0001, critic_lr=0.01, gamma=0.9)
    for _ in range(80):
        metrics = learner.update(collect(learner, collector), 0.0)
    assert error[0] <= metrics["value/td_error_abs"] < error[1]


def one_for_all(x, age, discrete, continuous):
    return torch.ones(len(x), 1)


def zero_critic(learner):
    for parameter in learner.critic.parameters():
        parameter.data.zero_()


@pytest.mark.parametrize("normalize", [False, True])
def test_the_logged_advantage_of_ppo_is_that_before_normalization(normalize):
    """Episodes of one step with reward 1, and V = 0: all advantages are 1."""
    config = PPOConfig(hidden_sizes=(4,), rollout_length=8, normalize_advantage=normalize, normalize_value=False)
    learner, collector = learner_of(PPO, config, env_of(Probe(observe_x, one_for_all, n=2), 4))
    zero_critic(learner)
    assert learner.update(collect(learner, collector), 0.0)["policy/advantage"] == pytest.approx(1.0)


@pytest.mark.parametrize("normalize", [False, True])
def test_poca_logs_value_baseline_group_return_and_the_advantage_before_normalization(normalize):
    """Two agents get 1 each in episodes of one step: the group's return is 2, V and the baselines are the bias 0.5."""
    config = POCAConfig(
        hidden_sizes=(4,), embedding_size=4, rollout_length=8, num_minibatches=1,
        normalize_advantage=normalize, normalize_value=False,
    )  # fmt: skip
    learner, collector = learner_of(POCA, config, env_of(Probe(observe_x, one_for_all, n=2), 4))
    zero_critic(learner)
    learner.critic.head.bias.data.fill_(0.5)
    metrics = learner.update(collect(learner, collector), 0.0)
    expected = {"value/estimate": 0.5, "value/baseline": 0.5, "value/group_return": 2.0, "policy/advantage": 1.5}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
