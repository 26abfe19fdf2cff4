"""COMA: targets and advantages against literal numbers, and invariants. For learning see test_coma_probes.py."""

import pytest
import torch

from algo_worlds import Everything, Probe, observe_age, observe_ones, zero_reward
from coterie.algos.algorithm import component_matrix
from coterie.algos.sequences import split_into_sequences
from coterie.core.errors import NonFiniteError, UserError
from coterie.functional import counterfactual
from coterie.functional.returns import valid_mask
from families import CLIMBING, ObsCritic, climbing
from learners import collect_rollout
from learners import coma_learner as learner
from learners import train_coma as train

CPU = torch.device("cpu")


def record_calls(monkeypatch):
    """Records arguments and results of later calls of `counterfactual_advantage`."""
    calls, original = [], counterfactual.counterfactual_advantage

    def spy(q, pi, taken, component=None):
        advantage = original(q, pi, taken, component)
        calls.append((q, pi, taken, advantage))
        return advantage

    monkeypatch.setattr(counterfactual, "counterfactual_advantage", spy)
    return calls


# ---------------------------------------------------------------------------------------------------- literal numbers


def test_advantages_and_the_policy_gradient_in_climbing(monkeypatch):
    """For both agents and all joint actions of a uniform policy."""
    algorithm, collector = learner(climbing(), 64, max_grad_norm=None)
    with torch.no_grad():
        for p in algorithm.policy.net.networks["agent"].network.head.parameters():
            p.zero_()
    # The values of agent 0's choices depend on the column of the table, those of agent 1's choices on its row.
    algorithm.critic = ObsCritic(lambda obs, u: torch.stack([u[..., 3:] @ CLIMBING.T, u[..., :3] @ CLIMBING], -2))
    calls = record_calls(monkeypatch)
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    ((_, pi, taken, advantage),) = calls
    torch.testing.assert_close(pi, torch.full_like(pi, 1 / 3))
    expected = torch.tensor([[17.3333, -24.3333, -1.6667], [-23.6667, 12.6667, -1.6667], [6.3333, 11.6667, 3.3333]])
    row, column = taken.argmax(-1).unbind(-1)
    assert len({*zip(row.flatten().tolist(), column.flatten().tolist(), strict=True)}) == 9
    torch.testing.assert_close(advantage[..., 0, 0], expected[row, column], atol=1e-4, rtol=0)
    others = CLIMBING - CLIMBING.mean(1, keepdim=True)
    torch.testing.assert_close(advantage[..., 1, 0], others[row, column])
    valid = rollout.acted[:-1].unsqueeze(-1).unsqueeze(-1)
    gradient = -(advantage * 0.5 * (taken - 1 / 3) * valid).sum((0, 1, 2)) / (
        valid.sum() * 2
    )  # epsilon = 0.5 halves gradients
    bias = algorithm.policy.net.networks["agent"].network.head.bias
    torch.testing.assert_close(bias.grad, gradient, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_the_critic_learns_the_table_of_climbing():
    settings = {"gamma": 0.0, "critic_hidden_sizes": (64,), "critic_time_chunks": 2}
    algorithm, _, _ = train(climbing(7), 120, lr=1e-9, critic_lr=1e-2, **settings)
    table = torch.zeros(3, 3)
    for column in range(3):
        joint = torch.zeros(1, 6)
        joint[0, 3 + column] = 1
        q = algorithm.critic({"agent": torch.ones(1, 2, 1)}, None, joint, None)
        table[:, column] = q[0, 0].detach()
    torch.testing.assert_close(table, CLIMBING, atol=1.0, rtol=0)
    assert table.mean().item() == pytest.approx(-3.4444, abs=0.5)
    assert table.mean(1).tolist() == pytest.approx([-6.3333, -7.6667, 3.6667], abs=0.6)
    assert table.mean(0).tolist() == pytest.approx([-6.3333, -5.6667, 1.6667], abs=0.6)


def targets(algorithm, rollout, q):
    """Returns targets [T, B, N] of a target critic q(obs) and a uniform policy at the last timestep."""
    algorithm.target.module = ObsCritic(lambda obs, joint: q(obs))
    with torch.no_grad():
        for p in algorithm.policy.net.networks["agent"].network.head.parameters():
            p.zero_()
    return algorithm.targets(rollout)[0].target


def test_targets_use_values_of_actions_taken_and_the_mean_value_after_the_rollout():
    """Q = [10 age, 10 age + 1]; the rollout ends within an episode."""
    algorithm, collector = learner(
        Probe(observe_age, zero_reward, length=9), rollout_length=3, gamma=1.0, td_lambda=0.0
    )
    rollout = collect_rollout(algorithm, collector)
    found = targets(algorithm, rollout, lambda age: 10 * age + torch.tensor([0.0, 1.0]))
    taken = rollout.action["agent"].discrete[..., 0].float()
    assert 0 < taken.mean() < 1
    torch.testing.assert_close(found[:2], 10 * torch.tensor([1.0, 2.0]).view(2, 1, 1) + taken[1:])
    torch.testing.assert_close(found[2], torch.full((16, 1), 30.5))


def test_actions_of_others_after_the_rollout_are_drawn_from_the_policy():
    world = Probe(observe_ones, zero_reward, n=2, length=9)
    algorithm, collector = learner(world, 4000, rollout_length=1)
    algorithm.policy.epsilon = 0.0
    rollout = collect_rollout(algorithm, collector)
    log_pi = torch.tensor([[0.8, 0.2], [0.1, 0.9]]).log().expand(2, 4000, 2, 2)
    algorithm.policy.log_probs = lambda *args, **kwargs: log_pi
    joint_actions = []
    algorithm.target.module = ObsCritic(lambda obs, joint: joint_actions.append(joint) or torch.zeros(2, 4000, 2, 2))
    algorithm.targets(rollout)
    (joint,) = joint_actions
    torch.testing.assert_close(joint[1].mean(0), torch.tensor([0.8, 0.2, 0.1, 0.9]), atol=0.03, rtol=0)
    assert (joint.view(2, 4000, 2, 2).sum(-1) == 1).all()


def test_rewards_are_the_mean_of_the_team_or_individual():
    reward = lambda x, age, d, c: torch.tensor([1.0, 3.0]).expand(len(x), 2)  # noqa: E731
    for common_reward, expected in ((True, [2.0, 2.0]), (False, [1.0, 3.0])):
        algorithm, collector = learner(Probe(observe_ones, reward, n=2), rollout_length=1, common_reward=common_reward)
        rollout = collect_rollout(algorithm, collector)
        found = targets(algorithm, rollout, lambda obs: torch.zeros(*obs.shape[:-1], 2))
        assert found[0, 0].tolist() == expected


# -------------------------------------------------------------------------------------------------------- invariants


def make_decisive(algorithm):
    """Scales the actor's output layers so that its choices are far from uniform."""
    with torch.no_grad():
        for net in algorithm.policy.net.networks.values():
            net.network.head.weight.mul_(300)


def log_probs(algorithm, rollout):
    """Returns the learner's log-probabilities of the actions taken [T, B, N]."""
    batch, log_pi = algorithm.targets(rollout)
    return torch.where(batch.taken > 0, log_pi, 0.0).sum(-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rnn", "settings"),
    [
        ("discrete", "none", {}),
        ("discrete", "lstm", {"obs_last_action": True, "critic_last_action": True, "critic": "joint_state"}),
        ("multi_discrete", "gru", {}),
    ],
)
def test_acting_and_learning_use_the_same_probabilities(kind, rnn, settings):
    """With masks, deaths, resets and short sequences. The control learns with another epsilon."""
    algorithm, collector = learner(
        Everything(kind),
        rnn=rnn,
        sequence_length=4,
        normalize_obs=True,
        num_minibatches=2,
        critic_time_chunks=2,
        **settings,
    )
    make_decisive(algorithm)
    for progress in (0.0, 0.3, 0.6):  # epsilon and the hidden state change between rollouts
        rollout = collect_rollout(algorithm, collector)
        sequences = algorithm.as_sequences(rollout)
        assert sequences.num_envs == 48
        valid = valid_mask(sequences)
        expected = split_into_sequences(rollout.extras["log_prob"], 4)[valid]
        torch.testing.assert_close(log_probs(algorithm, sequences)[valid], expected, atol=1e-5, rtol=0)
        epsilon, algorithm.policy.epsilon = algorithm.policy.epsilon, algorithm.policy.epsilon / 2
        assert (log_probs(algorithm, sequences)[valid] - expected).abs().max() > 1e-2 * epsilon
        algorithm.policy.epsilon = epsilon
        metrics = algorithm.update(rollout, progress)
        assert all(abs(value) < 1e9 for value in metrics.values())


@pytest.mark.slow
@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize("others_matter", [False, True])
def test_an_irrelevant_teammate_gets_no_credit(monkeypatch, others_matter):
    """The reward depends on agent 0 only, so that agent 1's advantage is about 0. In the control it depends on both."""
    reward = lambda x, age, d, c: (d[:, :1] + others_matter * d[:, 1:]).float() * 4  # noqa: E731
    algorithm, collector, _ = train(
        Probe(observe_ones, reward, n=2), 60 if others_matter else 200, lr=1e-9, critic_lr=1e-2
    )
    calls = record_calls(monkeypatch)
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    size = calls[0][3][..., 0][rollout.acted[:-1]].abs().mean(0).tolist()
    assert size[0] > 1.5
    assert size[1] > 1.5 if others_matter else size[1] < 0.15


def test_advantages_have_mean_zero_under_the_policy(monkeypatch):
    """For all agents and components, with masks and epsilon. In the control the baseline has no epsilon."""
    calls = record_calls(monkeypatch)
    algorithm, collector = learner(Everything("multi_discrete"), epsilon_start=0.5)
    make_decisive(algorithm)
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    ((q, pi, _, _),) = calls
    valid = valid_mask(rollout)
    every = torch.eye(5).view(5, 1, 1, 1, 5)

    def mean(baseline):
        component = component_matrix(algorithm.team, CPU)
        total = counterfactual.sum_by_component
        advantage = total(q * every, component) - total(q * baseline, component)
        probability = total(every * pi, component)
        return (probability * advantage).sum(0)[valid].abs().max()

    assert mean(pi) < 1e-5
    algorithm.policy.epsilon = 0.0
    without_epsilon = algorithm.policy.log_probs(rollout.obs, rollout.action_mask, None, {}, None)[:-1].exp()
    assert mean(without_epsilon) > 1e-2


def test_missing_components_do_not_change_the_normalization_of_advantages(monkeypatch):
    """Guards have two components and the scout one; its missing component does not count as a zero."""
    algorithm, collector = learner(Everything("multi_discrete"), normalize_advantage=True, lr=1e-6, critic_lr=1e-6)
    calls, scaled, original = record_calls(monkeypatch), [], counterfactual.standardize

    def spy(x, *args):
        scaled.append(original(x, *args))
        return scaled[-1]

    monkeypatch.setattr(counterfactual, "standardize", spy)
    rollout = collect_rollout(algorithm, collector)
    metrics = algorithm.update(rollout, 0.0)
    ((_, _, _, advantage),) = calls
    exists = valid_mask(rollout)[..., None] & torch.tensor([[True, True], [True, True], [True, False]])
    values = advantage[exists].double()
    assert values.mean().abs() > 0.01  # so that additional zeros would change mean and variance
    expected = (values - values.mean()) / values.std(correction=0)
    torch.testing.assert_close(scaled[0][exists].double(), expected, atol=1e-5, rtol=1e-5)
    one, other = advantage[..., 0], torch.where(exists[..., 1], advantage[..., 1], advantage[..., 0])
    mean = ((one + other) / 2)[valid_mask(rollout)].mean()  # before normalization
    assert mean.abs() > 0.01
    assert metrics["policy/advantage"] == pytest.approx(mean.item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("chunks", "timesteps"), [(1, [[0, 1, 2, 3, 4]]), (2, [[2, 3, 4], [0, 1]]), (99, [[4], [3], [2], [1], [0]])]
)
def test_the_critic_is_trained_backward_in_time_and_advantages_use_values_before_each_step(
    monkeypatch, chunks, timesteps
):
    algorithm, collector = learner(
        Probe(observe_age, zero_reward, length=9), rollout_length=5, critic_time_chunks=chunks
    )
    calls, observed, values = record_calls(monkeypatch), [], []

    def record(module, args, out):
        observed.append(args[0]["agent"][:, 0, 0, 0].tolist())
        values.append(out.detach().clone())

    algorithm.critic.register_forward_hook(record)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert observed == timesteps
    assert algorithm.state_dict()["critic_optimizer"]["value"]["step"] == len(timesteps)
    ((q, _, _, _),) = calls
    assert torch.equal(q, torch.cat(values[::-1]))
    rollout = collect_rollout(algorithm, collector)
    after = algorithm.critic(rollout.obs, None, torch.zeros(6, 16, 2), None)
    assert not torch.equal(after[:-1], q)  # the control: the steps change the values


def test_incompatible_settings_are_refused():
    with pytest.raises(UserError, match=r"algo.sequence_length: 5 does not divide the rollout length of 12"):
        learner(climbing(), sequence_length=5)
    with pytest.raises(UserError, match="share_params=role"):
        learner(Everything(), share_params="all")
    with pytest.raises(UserError, match="needs an environment state"):
        learner(climbing(), critic="state")
    with pytest.raises(UserError, match=r"algo.batch_size: 17 is more than the 16 sequences of a rollout"):
        learner(climbing(), batch_size=17)
    with pytest.raises(UserError, match=r"algo.epsilon_end: must be above 0 for an exponential schedule"):
        learner(climbing(), epsilon_end=0.0, epsilon_schedule="exponential")


def test_a_non_finite_loss_is_named():
    algorithm, collector = learner(climbing())
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        next(algorithm.critic.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"loss/value.* became NaN or infinite in minibatch 0"):
        algorithm.update(rollout, 0.0)
