"""PQN: its loss and targets of literal numbers, sequences, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, observe_age, observe_zeros, unit_reward, zero_reward
from coterie.algos.pqn import PQN, PQNConfig, pqn_loss, return_of_average_step
from coterie.core.errors import UserError
from coterie.envs.make import make
from families import pqn_samples
from learners import CPU, collect_rollout, learner_of, pqn_learner
from loops import by_agent, choices_of, lambda_returns, next_team_values, team_q, team_reward, team_steps

CONSTANT = [1.0, 3.0, 2.0]
"""Q of three choices."""


def with_constant_q(learner, q):
    """Sets the weights so that every agent's Q-values are these, whatever it observes."""
    with torch.no_grad():
        for parameter in learner.policy.net.parameters():
            parameter.zero_()
        heads = [p for name, p in learner.policy.net.named_parameters() if p.shape[-1] == len(q) and "bias" in name]
        assert len(heads) == 1
        heads[0].copy_(torch.tensor(q))
    return learner


def test_the_loss_of_literal_numbers():
    """Errors 1, -2, 3 with the last one masked: half of (1 + 4) / 2 valid entries."""
    q, target = torch.tensor([2.0, 1.0, 3.0], requires_grad=True), torch.tensor([1.0, 3.0, 0.0])
    valid = torch.tensor([True, True, False])
    loss = pqn_loss(q, target, valid)
    assert loss.item() == pytest.approx(1.25)
    loss.backward()
    assert q.grad is not None
    assert q.grad.tolist() == [0.5, -1.0, 0.0]
    assert pqn_loss(q, target, valid, 1.0).item() == pytest.approx((0.5 + 1.5) / 2)  # linear beyond 1


@pytest.mark.parametrize("mixer", ["none", "vdn"])
def test_targets_take_the_best_choice_that_the_next_timestep_allows(mixer):
    """Q = [1, 3, 2], gamma 0.9, lambda 0: 0.9 x 3, or 0.9 x 2 where choice 1 is masked at the next timestep. With VDN
    two agents' values are summed.
    """
    world = Probe(observe_zeros, zero_reward, n=2, actions=spaces.Discrete(3), mask=torch.ones(3).bool(), length=9)
    learner, collector = pqn_learner(world, 2, rollout_length=4, gamma=0.9, td_lambda=0.0, mixer=mixer)
    with_constant_q(learner, CONSTANT)
    rollout = collect_rollout(learner, collector)
    mask = rollout.action_mask["agent"].clone()
    mask[2, 0, 0, 1] = False
    target = pqn_samples(learner, replace(rollout, action_mask={"agent": mask})).target
    expected = torch.full((4, 2, 2), 2.7)
    expected[1, 0, 0] = 1.8
    torch.testing.assert_close(target, expected if mixer == "none" else expected.sum(-1))


def test_dead_agents_have_no_part_in_the_teams_targets_and_values():
    """Q = [1, 3, 2], gamma 0.9, lambda 0.5, reward 1 for each step of the first agent. The second one is dead from
    timestep 2 on:

        G_3 = 1 + 0.9 x 3 = 3.7,   G_2 = 1 + 0.9 (0.5 x 3 + 0.5 x 3.7) = 4.015,
        G_1 = 1 + 0.9 (0.5 x 3 + 0.5 x 4.015) = 4.15675,   G_0 = 1 + 0.9 (0.5 x 6 + 0.5 x 4.15675) = 5.5705375
    """
    reward = lambda x, age, d, c: torch.tensor([1.0, 0.0]).expand(len(x), 2)  # noqa: E731
    world = Probe(observe_zeros, reward, n=2, actions=spaces.Discrete(3), length=9)
    learner, collector = pqn_learner(world, 2, rollout_length=4, gamma=0.9, td_lambda=0.5, mixer="vdn")
    with_constant_q(learner, CONSTANT)
    rollout = collect_rollout(learner, collector)
    alive, terminated = rollout.alive.clone(), rollout.terminated.clone()
    alive[2:, :, 1], terminated[1, :, 1] = False, True
    dies = replace(rollout, alive=alive, terminated=terminated)
    learner.team = replace(learner.team, agents_can_die=True)
    batch = pqn_samples(learner, dies)
    torch.testing.assert_close(batch.target[:, 0], torch.tensor([5.5705375, 4.15675, 4.015, 3.7]))
    q, _ = learner.policy.net(batch.obs, None, {}, None)
    taken = learner.value.evaluate(q, batch.action, masks={}, alive=batch.alive, obs={}, state=None)
    by_agent = torch.tensor(CONSTANT)[batch.action["agent"][..., 0]]
    torch.testing.assert_close(taken, torch.where(batch.alive, by_agent, 0.0).sum(-1))


@pytest.mark.parametrize("mixer", ["vdn", "qmix", "qplex"])
def test_an_update_is_that_of_loops_over_entries(mixer):
    """Lambda-returns step by step, and Q of the team agent by agent, with masks, states and deaths of each timestep."""
    settings = {"gamma": 0.9, "td_lambda": 0.6, "normalize_obs": True, "bootstrap_at_limit": True, "epochs": 1}
    settings |= {"output_gain": 1.0} | ({} if mixer == "vdn" else {"value_time_left": True})
    learner, collector = pqn_learner(Everything("discrete", 0.0), 5, mixer=mixer, **settings)
    learner.update(collect_rollout(learner, collector), 0.0)
    rollout, value = collect_rollout(learner, collector), learner.value
    with torch.no_grad():
        q, _ = learner.policy.net(learner.policy.obs_normalizer.of_rollout(rollout), None, {}, None)
        state = torch.zeros(13, 5, 1) if mixer == "vdn" else learner._state(rollout.state)
        targets = []
        for b in range(5):
            following = next_team_values(rollout, b, value=value, q=q, chosen_by=q, state=state)
            targets.append(
                lambda_returns(
                    rollout, b, reward=team_reward(rollout, b), next_value=following, gamma=0.9, td_lambda=0.6
                )
            )
        steps, taken = team_steps(rollout), []
        for t, b in steps:
            masks = by_agent(rollout.action_mask, t, b)
            entry = by_agent(q, t, b), choices_of(rollout, t, b), masks, rollout.alive[t, b], state[t, b]
            taken.append(team_q(value, *entry))
        assert any(not rollout.alive[t, b].all() for t, b in steps)
        expected, q_taken = torch.tensor([targets[b][t] for t, b in steps]), torch.stack(taken)
        batch = pqn_samples(learner, rollout)
    assert batch.valid.nonzero().tolist() == [list(step) for step in steps]
    torch.testing.assert_close(batch.target[batch.valid], expected, atol=1e-5, rtol=1e-5)
    metrics = learner.update(rollout, 0.0)
    assert metrics["value/q_taken_mean"] == pytest.approx(q_taken.mean().item(), rel=1e-4)
    assert metrics["loss/td"] == pytest.approx(0.5 * (q_taken - expected).square().mean().item(), rel=1e-4)


def test_the_time_limit_ends_the_trace_and_not_the_return():
    """Q = 3, gamma 0.5, lambda 1, r = 1, episodes of two steps: 1 + 0.5 x 3 = 2.5 and 1 + 0.5 x 2.5 = 2.25 before the
    limit, whose successor is the episode's last observation. The controls end there: by termination, or as configured.
    """
    reward = lambda x, age, d, c: torch.ones(len(x), 1)  # noqa: E731
    for limit, bootstraps, expected in (
        (True, True, [2.25, 2.5]),
        (False, True, [1.5, 1.0]),
        (True, False, [1.5, 1.0]),
    ):
        world = Probe(observe_zeros, reward, actions=spaces.Discrete(3), length=2, limit=limit)
        given = {"rollout_length": 6, "gamma": 0.5, "td_lambda": 1.0, "bootstrap_at_limit": bootstraps, "lr": 1e-20}
        learner, collector = pqn_learner(world, 2, **given)
        with_constant_q(learner, CONSTANT)
        seen, found = collect_rollout(learner, collector), []
        targets = learner.targets
        learner.targets = lambda *arguments, targets=targets, found=found: (
            found.append(targets(*arguments)) or found[-1]
        )
        learner.update(seen, 0.0)
        assert found[0][:2, 0, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mixer", "reward", "limit", "average"),
    [("none", -1.0, True, -10.0), ("vdn", -1.0, False, -1 / 0.55), ("none", 1.0, True, 0.0)],
)
def test_values_are_learned_relative_to_the_return_of_an_average_step(mixer, reward, limit, average):
    """Q = 0, r = -1, gamma 0.9, lambda 0, episodes of two steps. If only a limit ends them, b = -1 / (1 - 0.9) = -10,
    and targets -1 + 0.9 b - b are 0 everywhere. If they terminate, b = -1 / (1 - 0.9 / 2), and the last step has
    -1 - b. Positive rewards: b = 0.
    """
    rewards = lambda x, age, d, c: torch.full((len(x), 1), reward)  # noqa: E731
    world = Probe(observe_zeros, rewards, actions=spaces.Discrete(3), length=2, limit=limit)
    given = {"gamma": 0.9, "td_lambda": 0.0, "mixer": mixer, "reward_scale": "none", "bootstrap_at_limit": True}
    learner, collector = pqn_learner(world, 2, lr=1e-20, center_values=True, **given)
    with_constant_q(learner, [0.0, 0.0, 0.0])
    rollout = collect_rollout(learner, collector)
    metrics = learner.update(rollout, 0.0)
    batch = pqn_samples(learner, rollout)
    expected = torch.where(rollout.terminated[..., 0], reward - average, reward + 0.9 * average - average)
    target = batch.target if mixer == "vdn" else batch.target[..., 0]
    valid = batch.valid if mixer == "vdn" else batch.valid[..., 0]
    torch.testing.assert_close(target[valid], expected[valid], atol=1e-5, rtol=1e-5)
    assert rollout.terminated.any() != limit
    for name in ("value/average_return", "value/q_taken_mean"):
        assert metrics[name] == pytest.approx(average)
    assert learner.average_return().item() == pytest.approx(average)


def test_the_return_of_an_average_step_is_bounded_without_discount_and_ends():
    one, zero = torch.tensor(1.0), torch.tensor(0.0)
    assert return_of_average_step(one, zero, 0.9).item() == pytest.approx(10)
    assert return_of_average_step(one, torch.tensor(0.5), 1.0).item() == pytest.approx(2)
    assert return_of_average_step(one, zero, 1.0).item() == pytest.approx(1000)


@pytest.mark.slow
def test_centered_values_plus_the_average_return_are_the_values_of_the_game():
    """r = -1, gamma 0.9, episodes terminate after two steps: V = -1.9, -1."""
    rewards = lambda x, age, d, c: -unit_reward(x, age, d, c)  # noqa: E731
    world = Probe(observe_age, rewards, actions=spaces.Discrete(3), length=2)
    given = {"gamma": 0.9, "reward_scale": "none", "normalize_obs": False, "lr": 3e-3, "epochs": 4}
    learner, collector = pqn_learner(world, 32, center_values=True, **given)
    for _ in range(150):
        rollout = collect_rollout(learner, collector)
        learner.update(rollout, 0.0)
    with torch.no_grad():
        (q,) = learner.policy.net({"agent": torch.tensor([0.0, 1.0]).view(2, 1, 1)}, None, {}, None)[0].values()
    found = q[:, 0] + learner.average_return()
    torch.testing.assert_close(found, torch.tensor([[-1.9], [-1.0]]).expand(2, 3), atol=0.02, rtol=0.0)


@pytest.mark.parametrize(("rnn", "last_action"), [("gru", False), ("lstm", True)])
def test_sequences_of_any_length_have_the_same_targets_and_values(rnn, last_action):
    """The hidden state before each sequence is that of the whole rollout, with resets within."""
    found = []
    for length in (12, 4, 1):
        learner, collector = pqn_learner(
            Everything(dead=0.0), 8, rnn=rnn, sequence_length=length, mixer="qmix", obs_last_action=last_action
        )
        for _ in range(2):  # the second rollout starts within episodes
            rollout = collect_rollout(learner, collector)
        batch, before = learner.samples(rollout)
        assert batch.target.shape == (length, 96 // length)
        with torch.no_grad():
            q, _ = learner.policy.net(batch.obs, batch.first, before, batch.last_action)
            q_taken = learner.value.evaluate(
                q, batch.action, masks=batch.masks, alive=batch.alive, obs=batch.obs, state=batch.state
            )
        whole = [x.unflatten(1, (-1, 8)).transpose(0, 1).flatten(0, 1) for x in (batch.target, q_taken, batch.valid)]
        found.append(whole)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rnn", ["none", "gru", "lstm"])
def test_values_are_those_that_the_policy_acted_on(rnn):
    """Without exploration, every action is the best one of the values of timesteps and of sequences."""
    learner, collector = pqn_learner(
        Everything(dead=0.0), 8, rnn=rnn, sequence_length=4 if rnn != "none" else None, mixer="vdn", epochs=1, lr=0.01
    )
    learner.policy.epsilon = 0.0
    for _ in range(3):  # the later rollouts start within episodes
        rollout = collect_rollout(learner, collector)
        batch, before = learner.samples(rollout)
        q, _ = learner.policy.net(batch.obs, batch.first, before, batch.last_action)
        for block in learner.policy.blocks:
            values = q[block.name]
            if rnn == "none":
                values = values.unflatten(0, (12, 8))
            else:
                values = values.unflatten(1, (3, 8)).transpose(0, 1).flatten(0, 1)
            mask = block.join_masks(rollout.action_mask)
            best = values.masked_fill(~mask[:-1], -torch.inf).argmax(-1)
            assert best.equal(block.join_actions(rollout.action).discrete[..., 0])


def test_settings_without_effect_and_too_many_minibatches_are_refused():
    world = Probe(observe_zeros, zero_reward, n=2)
    for settings, message in (
        ({"num_minibatches": 999}, "algo.num_minibatches: 999 is more than the 192 timesteps of a rollout"),
        ({"rnn": "gru", "num_minibatches": 17}, "algo.num_minibatches: 17 is more than the 16 sequences of a rollout"),
        ({"obs_last_action": True}, "algo.obs_last_action=true: requires a recurrent network. Set algo.rnn=gru."),
        ({"mixer": "vdn", "common_reward": True}, "algo.common_reward=true: has no effect with algo.mixer=vdn"),
        ({"rnn": "gru", "sequence_length": 5}, "algo.sequence_length: 5 does not divide the rollout length of 12"),
    ):
        with pytest.raises(UserError, match=message):
            pqn_learner(world, **settings)


# -------------------------------------------------------------------------------------------------------- exact games

UNIFORM = {"epsilon_start": 1.0, "epsilon_end": 1.0, "epsilon_schedule": "constant", "td_lambda": 0.0}
QUICK = {"lr": 5e-3, "epochs": 8, "rollout_length": 8, "hidden_sizes": (32,), "share_params": "none"}


@pytest.mark.slow
def test_pqn_qmix_reaches_the_known_payoff_of_the_two_step_game():
    """VDN cannot represent the best joint action, see `test_qlearning.py`: it ends at 7."""
    env = make("matrix/two_step", {}, 64, 0, device=CPU, with_state=True)
    settings = QUICK | UNIFORM | {"reward_scale": "none", "gamma": 0.99, "mixer": "qmix", "num_minibatches": 4}
    learner, collector = learner_of(PQN, PQNConfig(**settings), env)
    for _ in range(50):
        learner.update(collect_rollout(learner, collector), 0.0)
    learner.policy.epsilon = 0.0
    collect_rollout(learner, collector)  # ends the episodes in which actions were random
    rollout = collect_rollout(learner, collector)
    total = (rollout.reward.sum(-1) + rollout.group_reward.sum(-1))[rollout.acted[:-1]]
    assert set(total.tolist()) == {0.0, 8}  # the first of two steps has no reward
