"""VDAC: the value of the team is that of its agents' values, and is learned from the team's return."""

from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything, Probe, env_of, observe_ones, observe_x, zero_reward
from coterie.algos.vdac import MixedCritic
from coterie.core.errors import UserError
from coterie.functional.returns import present_agents
from coterie.nets.mixers import VDNMixer
from coterie.nets.team import join_blocks
from coterie.nets.team_view import VIEW, TeamView
from families import climbing
from learners import collect_rollout, mean_reward, targets_of, vdac_learner
from loops import lambda_returns, team_reward, team_steps

RAW = {"normalize_value": False, "normalize_advantage": False}


def critic_of_sums():
    """Returns a critic with V_i = 2 o_i + 1, and the learner that owns it."""
    world = Probe(observe_x, zero_reward, n=2, length=4, start=lambda noise: noise[:, 0])
    algorithm, collector = vdac_learner(world, 3, mixer="vdn", **RAW)
    critic = algorithm.critic
    assert isinstance(critic, MixedCritic)
    assert isinstance(critic.mixer, VDNMixer)
    critic.network.forward = lambda obs, first, hidden_state, extra=None: (
        {"agent": 2 * obs["agent"] + 1},
        hidden_state,
    )
    return critic, algorithm, collector


def test_the_value_of_the_team_is_the_sum_of_the_values_of_agents_that_are_alive():
    critic, _, _ = critic_of_sums()
    alive = torch.tensor([[True, True], [True, False], [False, False]])
    obs = {"agent": torch.tensor([[[1.0], [2.0]], [[1.0], [2.0]], [[5.0], [5.0]]]), VIEW: TeamView(alive, None, {})}
    value, _ = critic(obs, None, None, {})
    assert value.shape == (3, 2, 1)
    assert value[..., 0].tolist() == [[8.0, 8.0], [3.0, 3.0], [0.0, 0.0]]


def test_all_agents_share_the_advantage_of_the_team():
    """Rewards 1 and 2 are 3; V = 4 o + 2 for equal observations: A = 3 + 0.5 V(s') - V(s) with lambda 0."""
    _, algorithm, collector = critic_of_sums()
    algorithm.config = algorithm.config.model_copy(update={"gamma": 0.5, "gae_lambda": 0.0})
    rollout = collect_rollout(algorithm, collector)
    rollout = replace(rollout, reward=torch.tensor([1.0, 2.0]).expand_as(rollout.reward))
    batch = targets_of(algorithm, rollout, as_sequences=True).batch
    value = 4 * rollout.obs["agent"][:, :, 0, 0] + 2
    following = torch.where(rollout.episode_terminated, 0.0, value[1:])
    expected = 3 + 0.5 * following - value[:-1]
    for agent in range(2):
        torch.testing.assert_close(batch.advantage[..., agent], expected)
        torch.testing.assert_close(batch.target[..., agent, 0], expected + value[:-1])


@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
def test_advantages_and_targets_are_those_of_loops_over_timesteps(mixer):
    """Critics read the time left; the team has the rewards of its agents and those of their group once."""
    settings = {"mixer": mixer, "gamma": 0.9, "gae_lambda": 0.8, "bootstrap_at_limit": True, "value_time_left": True}
    algorithm, collector = vdac_learner(Everything("discrete", 0.0), 5, normalize_obs=True, **settings, **RAW)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    rollout, critic, value = collect_rollout(algorithm, collector), algorithm.critic, torch.zeros(13, 5)
    obs, state, present = algorithm.read_rollout(rollout), algorithm._state(rollout.state), present_agents(rollout)
    with torch.no_grad():
        blocks, left = critic.network.blocks, rollout.state["time left"].unsqueeze(-2)
        extra = {block.name: left.expand(13, 5, block.n, 1) for block in blocks}
        by_agent = join_blocks(critic.network(obs, None, {}, extra)[0], blocks, -2)[..., 0]
        for t, b in present.any(-1).nonzero().tolist():
            alive = [i for i in range(3) if present[t, b, i]]
            own = torch.zeros(1, 3)
            own[0, alive] = by_agent[t, b, alive]
            mixed = mixer == "qmix"
            value[t, b] = critic.mixer(own, own, state[t, b][None], own, present[t, b][None]) if mixed else own.sum()
        batch = targets_of(algorithm, rollout, as_sequences=True).batch
    for b in range(5):
        known = {"reward": team_reward(rollout, b), "next_value": value[1:, b].tolist()}
        target = torch.tensor(lambda_returns(rollout, b, **known, gamma=0.9, td_lambda=0.8))
        steps = [t for t, env in team_steps(rollout) if env == b]
        for agent in range(3):
            torch.testing.assert_close(batch.target[steps, b, agent, 0], target[steps], atol=1e-5, rtol=1e-5)
            advantage = (target - value[:-1, b])[steps]
            torch.testing.assert_close(batch.advantage[steps, b, agent], advantage, atol=1e-5, rtol=1e-5)


def observe_age_of_two(x, age):
    return age.view(-1, 1, 1).expand(-1, 2, 1)


@pytest.mark.parametrize("new_life", [True, False])
def test_hidden_states_of_the_agents_critics_are_reset_in_a_new_life(new_life):
    """Agent 1 dies after timestep 5, and a new agent has its place at timestep 6, within the episode. The control is
    an agent that lives on.
    """
    world = Probe(observe_age_of_two, zero_reward, n=2, length=20)
    algorithm, collector = vdac_learner(world, 4, mixer="vdn", rnn="gru", **RAW)
    rollout = collect_rollout(algorithm, collector)
    first, obs = rollout.first.clone(), rollout.obs["agent"].clone()
    first[6, :, 1] = new_life
    obs[:6, :, 1] += 5  # in the life before
    one, other = (
        targets_of(algorithm, replace(rollout, first=first, obs={"agent": x})).batch.value
        for x in (rollout.obs["agent"], obs)
    )
    assert (one != other)[:6].all()
    assert torch.equal(one[6:], other[6:]) == new_life
    # Values of single timesteps
    timestep, zeros = env_of(world, 4).reset(), algorithm.start_value_estimation(4)
    timestep = replace(timestep, first=torch.tensor([False, new_life]).expand(4, 2))
    for agent in range(2):
        state = {name: x.index_fill(1, torch.tensor([agent]), 0.5) for name, x in zeros.items()}
        one, other = (algorithm.estimate_value(timestep, x)[0] for x in (zeros, state))
        assert torch.equal(one, other) == (new_life and agent == 1)


def test_vdac_learns_the_better_action():
    """Two agents whose choice 1 earns 1: random play earns 1 per step for the team, and the best is 2."""
    world = Probe(observe_ones, lambda x, age, d, c: (d == 1).float(), n=2, length=1)
    algorithm, collector = vdac_learner(world, 32, mixer="qmix", rollout_length=8, lr=1e-2, epochs=1, entropy_coef=0.0)
    for _ in range(25):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert mean_reward(algorithm, collector) > 0.9


def test_settings_without_effect_are_refused():
    with pytest.raises(UserError, match=r"algo\.common_reward=true: has no effect with VDAC"):
        vdac_learner(climbing(), common_reward=True)
    with pytest.raises(UserError, match=r"algo\.hypernet_layers=1: has no effect"):
        vdac_learner(climbing(), mixer="vdn", hypernet_layers=1)


def test_the_mixer_reads_the_state_if_there_is_one():
    algorithm, _ = vdac_learner(Everything("discrete", 0.0), 2)
    assert algorithm._state.names[0] in algorithm.team.state_sizes
    joint, _ = vdac_learner(Everything("discrete", 0.0), 2, mixer_input="joint", value_time_left=False)
    assert joint._state.names == ()
    assert env_of(climbing(), 2).spec.state_sizes == {}
