"""Updates of COMA in short: sequences, gradient steps at scheduled rates, metrics, and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot, pad

from algo_worlds import Everything, Probe, observe_age, zero_reward
from coterie.algos import coma
from coterie.algos import sequences as sequences_module
from coterie.algos.sequences import split_into_sequences
from coterie.core.tree import tree_leaves
from coterie.core.types import TIME_LEFT
from coterie.functional import counterfactual
from coterie.functional.counterfactual import coma_loss
from learners import collect_rollout
from learners import coma_learner as learner
from rank_draws import record_draws

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "critic_hidden_sizes": (8,), "rnn_size": 4}


def make(**settings: Any) -> tuple[Any, Any]:
    return learner(Everything("multi_discrete", dead=0.0), 4, **SMALL | settings)


@pytest.mark.parametrize(("rnn", "last_action"), [("none", False), ("gru", True)])
def test_sequences_have_the_probabilities_and_values_of_the_whole_rollout(rnn: str, last_action: bool):
    """The hidden states before them include the last actions of those that were alive."""
    settings = {"rnn": rnn, "obs_last_action": last_action, "critic_last_action": last_action, "td_lambda": 0.0}
    algorithm, collector = make(sequence_length=4, normalize_obs=True, **settings)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    rollout = collect_rollout(algorithm, collector)
    sequences = algorithm.as_sequences(rollout)
    assert (sequences.rollout_length, sequences.num_envs) == (4, 12)
    with torch.no_grad():
        whole, expected = algorithm.targets(rollout)
        parts, found = algorithm.targets(sequences)
    valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    valid = split_into_sequences(valid, 4)
    assert isinstance(valid, torch.Tensor)
    torch.testing.assert_close(found[valid], split_into_sequences(expected, 4)[valid])
    for name in ("taken", "joint_action", "last_joint_action", "valid", "obs", "state"):
        pair = split_into_sequences(getattr(whole, name), 4), getattr(parts, name)
        for one, same in zip(*(tree_leaves(x) for x in pair), strict=True):
            assert torch.equal(one, same)
    assert (parts.last_joint_action is not None) == last_action


def test_a_batch_holds_the_timesteps_that_the_critic_learns_from():
    """All but the last one. Actions of dead agents are zeros in the joint action and in last actions."""
    algorithm, collector = make(critic="joint_state", critic_last_action=True, obs_last_action=True)
    rollout = collect_rollout(algorithm, collector)
    batch, log_pi = algorithm.targets(rollout)
    assert batch.state.equal(torch.cat([rollout.state["global"], rollout.state[TIME_LEFT]], -1)[:-1])
    assert all(batch.obs[role].equal(rollout.obs[role][:-1]) for role in ("guard", "scout"))
    for values in (log_pi, batch.taken, batch.target, batch.valid, batch.joint_action, batch.last_joint_action):
        assert len(values) == 12
    alive, acted = rollout.alive[:-1], rollout.acted[:-1]
    assert batch.valid.equal((alive & acted[..., None]).any(-1, keepdim=True).expand(12, 4, 3))
    guard, scout = rollout.action["guard"].discrete, rollout.action["scout"].discrete
    by_agent = [[one_hot(guard[:, :, i, 0], 3), one_hot(guard[:, :, i, 1], 2)] for i in (0, 1)]
    by_agent += [[one_hot(scout[:, :, 0, 0], 4)]]
    vectors = [torch.cat(parts, -1).float() for parts in by_agent]
    joint = torch.cat([vector * alive[..., i, None] for i, vector in enumerate(vectors)], -1)
    assert batch.joint_action.equal(joint)
    assert not alive[acted].all(), "the control: some agents are dead"
    assert batch.taken.equal(torch.stack([pad(vector, (0, 5 - vector.shape[-1])) for vector in vectors], 2))
    done = torch.cat([vector * (alive & acted[..., None])[..., i, None] for i, vector in enumerate(vectors)], -1)
    start = torch.cat([rollout.first[1:-1, :, i, None].expand(-1, -1, n) for i, n in enumerate((5, 5, 4))], -1)
    assert batch.last_joint_action[1:].equal(done[:-1].masked_fill(start, 0.0))


def test_the_critic_learns_from_timesteps_of_the_team_or_of_the_agent():
    """Q = 0 and targets 1, 2, 4 of three agents, the last one dead: (1 + 4 + 16) / 3 of the team, (1 + 4) / 2 alone."""
    algorithm, collector = make(critic_loss_mask="agent")
    rollout = collect_rollout(algorithm, collector)
    own = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    assert not own.equal(own.any(-1, keepdim=True).expand_as(own)), "the control: some agents are dead"
    assert algorithm.targets(rollout)[0].valid.equal(own)
    target, q, taken = torch.tensor([[1.0, 2.0, 4.0]]), torch.zeros(1, 3, 2), torch.tensor([[[1.0, 0.0]] * 3])
    alive = torch.tensor([[True, True, False]])
    assert counterfactual.critic_loss(q, taken, target, torch.ones(1, 3, dtype=torch.bool)).loss.item() == 7
    assert counterfactual.critic_loss(q, taken, target, alive).loss.item() == 2.5


@pytest.mark.parametrize("can_die", [False, True])
def test_a_mask_of_agents_that_live_as_long_as_the_episode_is_said_to_have_no_effect(can_die: bool):
    world = Everything("discrete", dead=0.0) if can_die else Probe(observe_age, zero_reward)
    for mask in ("team", "agent"):
        algorithm, _ = learner(world, 4, **SMALL, critic_loss_mask=mask)
        has_note = any(note.startswith("algo.critic_loss_mask=agent has no effect") for note in algorithm.notes)
        assert has_note == (mask == "agent" and not can_die)


@pytest.mark.parametrize("updated", [False, True])
def test_advantages_use_values_before_or_after_the_steps_of_the_critic(updated: bool, monkeypatch: pytest.MonkeyPatch):
    algorithm, collector = make(updated_advantages=updated, critic_lr=0.1, critic_time_chunks=2)
    rollout = collect_rollout(algorithm, collector)
    used = []

    def loss(log_pi: torch.Tensor, q: torch.Tensor, *rest: Any, **options: Any) -> Any:
        used.append(q)
        return coma_loss(log_pi, q, *rest, **options)

    batch, _ = algorithm.targets(rollout)
    with torch.no_grad():
        inputs = (batch.obs, batch.state, batch.joint_action, batch.last_joint_action)
        before = algorithm.critic(*inputs)
        monkeypatch.setattr(coma, "coma_loss", loss)
        with torch.enable_grad():
            algorithm.update(rollout, 0.0)
        after = algorithm.critic(*inputs)
    assert used[0].equal(after) == updated
    assert not used[0].equal(before) or not updated


@pytest.mark.parametrize("mask", ["team", "agent"])
def test_returns_end_with_the_team_or_with_the_agent_as_the_loss_of_the_critic_does(mask: str):
    """With lambda 0 and Q = 1 it is the team's mean reward + 0.9, without the 0.9 where all agents have died; or where
    the agent itself has, since a critic that learns only from agents alive has no values of dead ones.
    """
    algorithm, collector = make(td_lambda=0.0, gamma=0.9, critic_loss_mask=mask)
    rollout = collect_rollout(algorithm, collector)
    algorithm.target.module = lambda *inputs: torch.ones(13, 4, 3, 5)
    batch, _ = algorithm.targets(rollout)
    of_team = rollout.episode_terminated[..., None].expand(12, 4, 3)
    ended = of_team if mask == "team" else rollout.terminated
    expected = (rollout.reward + rollout.group_reward).mean(-1, keepdim=True) + 0.9 * ~ended
    torch.testing.assert_close(batch.target[batch.valid], expected[batch.valid])
    assert (rollout.terminated & ~of_team)[batch.valid].any()
    assert rollout.episode_terminated.any()
    assert rollout.episode_truncated.any()


def test_advantages_are_normalized_over_valid_entries_of_a_batch():
    """Two timesteps of three environments with two agents; advantages by hand."""
    generator = torch.Generator().manual_seed(0)
    q, log_pi = (
        torch.randn(2, 3, 2, 4, generator=generator),
        torch.randn(2, 3, 2, 4, generator=generator).log_softmax(-1),
    )
    choice = torch.randint(4, (2, 3, 2), generator=generator)
    taken = torch.nn.functional.one_hot(choice, 4).float()
    valid = torch.tensor([[[1, 1], [1, 0], [0, 1]], [[1, 1], [0, 0], [1, 1]]]).bool()
    advantage, log_prob = [], []
    for t, b, i in valid.nonzero().tolist():
        a, pi = choice[t, b, i], log_pi[t, b, i].exp()
        advantage.append(q[t, b, i, a] - (pi * q[t, b, i]).sum())
        log_prob.append(log_pi[t, b, i, a])
    expected, log_prob = torch.stack(advantage), torch.stack(log_prob)
    plain = coma_loss(log_pi, q, taken, valid)
    assert plain.policy.item() == pytest.approx(-(expected * log_prob).mean().item(), rel=1e-5)
    scaled = (expected - expected.mean()) / expected.std(correction=0)
    found = coma_loss(log_pi, q, taken, valid, normalize_advantage=True)
    assert found.policy.item() == pytest.approx(-(scaled * log_prob).mean().item(), rel=1e-5)
    assert found.advantage.item() == pytest.approx(expected.mean().item(), rel=1e-5)  # before normalization
    assert plain.advantage.item() == pytest.approx(expected.mean().item(), rel=1e-5)


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(("critic_lr", "value_lr"), [(4e-3, 2e-3), (None, 0.5e-3)])
def test_steps_descend_the_weighted_terms_at_scheduled_rates(
    critic_lr: float | None, value_lr: float, monkeypatch: pytest.MonkeyPatch
):
    """Half of the run is done: rates are 0.55 and 0.5 of the initial ones, the entropy bonus 0.75."""
    algorithm, collector = make(
        lr=1e-3, critic_lr=critic_lr, lr_schedule="linear", lr_end=0.1, critic_lr_schedule="linear", critic_lr_end=1e-9,
        entropy_coef=0.02, entropy_schedule="linear", entropy_end=0.5, epochs=2, num_minibatches=2, sequence_length=6,
        critic_time_chunks=3, epsilon_start=0.5, epsilon_end=0.1, epsilon_schedule="linear",
    )  # fmt: skip
    terms, steps, of_chunks = [], [], []
    losses = {name: getattr(coma, name) for name in ("coma_loss", "critic_loss")}

    def spy(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            terms.append((name, losses[name](*arguments, **options)))
            if name == "critic_loss":
                of_chunks.append([x.detach() for x in arguments])
            return terms[-1][1]

        return call

    def spy_on_step(step: Any) -> Any:
        def call(loss: torch.Tensor, lr: dict[str, float]) -> torch.Tensor:
            steps.append((loss.item(), lr))
            return step(loss, lr)

        return call

    for name in losses:
        monkeypatch.setattr(coma, name, spy(name))
    algorithm._actor_optimizer.step = spy_on_step(algorithm._actor_optimizer.step)
    algorithm._critic_optimizer.step = spy_on_step(algorithm._critic_optimizer.step)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.5)
    assert [name for name, _ in terms] == [*["critic_loss"] * 3, "coma_loss"] * 4
    for (name, found), (loss, lr) in zip(terms, steps, strict=True):
        if name == "critic_loss":
            assert (loss, lr) == (pytest.approx(found.loss.item()), {"value": pytest.approx(value_lr)})
        else:
            expected = (found.policy - 0.015 * found.entropy).item()
            assert (loss, lr) == (pytest.approx(expected, rel=1e-5), {"policy": pytest.approx(0.55e-3)})
    actor, critic = ([found for kind, found in terms if kind == name] for name in losses)
    expected = {"policy/lr": 0.55e-3, "value/lr": value_lr, "policy/entropy_coef": 0.015, "policy/epsilon": 0.5}
    of_actor = {
        "policy": "loss/policy",
        "entropy": "policy/entropy",
        "advantage": "policy/advantage",
        "pi_max": "policy/pi_max",
    }
    of_critic = {
        "loss": "loss/value",
        "td_error_abs": "value/td_error_abs",
        "q_taken": "value/q_taken_mean",
        "target": "value/target_mean",
    }
    for term, metric in of_actor.items():
        expected[metric] = sum(getattr(found, term).item() for found in actor) / 4
    for term, metric in of_critic.items():
        expected[metric] = sum(getattr(found, term).item() for found in critic) / 12
    explained = []
    for start in range(0, 12, 3):  # the chunks of a minibatch
        q, taken, target, valid = (torch.cat(parts) for parts in zip(*of_chunks[start : start + 3], strict=True))
        component = algorithm._component
        value = counterfactual.component_mean(counterfactual.sum_by_component(q * taken, component), component)
        residual = (target - value)[valid]
        explained.append(1 - residual.double().var(correction=0) / target[valid].double().var(correction=0))
    expected["value/explained_variance"] = float(torch.stack(explained).mean())
    assert set(metrics) == {*expected, "policy/grad_norm", "value/grad_norm"}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert algorithm.policy.epsilon == pytest.approx(0.3)


def test_minibatches_are_of_sequences(monkeypatch: pytest.MonkeyPatch):
    """Four environments with rollouts of 12 steps have eight sequences of 6."""
    algorithm, collector = make(sequence_length=6, num_minibatches=2)
    found, real = [], sequences_module.minibatch_indices

    def spy(count: int, *args: Any, **options: Any) -> Any:
        for indices in real(count, *args, **options):
            found.append((count, len(indices)))
            yield indices

    monkeypatch.setattr(sequences_module, "minibatch_indices", spy)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert found == [(8, 4)] * 2


def test_next_actions_are_drawn_for_samples_which_are_the_first_axis(monkeypatch: pytest.MonkeyPatch):
    """Ranks draw for the samples of all and take their own. There is a draw per choice."""
    algorithm, collector = make()
    rollout = collect_rollout(algorithm, collector)
    drawn = record_draws(monkeypatch)
    algorithm.targets(rollout)
    assert drawn == [4, 4, 4]


def test_exploration_decays_with_the_environment_steps_of_all_timesteps():
    """Episodes of six steps and a final timestep: agents act at 11, 10, and 10 of 12 timesteps."""
    world = Probe(observe_age, zero_reward, length=6)
    algorithm, collector = learner(
        world, 4, epsilon_start=1.0, epsilon_end=0.1, epsilon_schedule="linear", epsilon_decay_steps=200
    )
    steps = 0
    for acted in (11, 10, 10):
        rollout = collect_rollout(algorithm, collector)
        assert rollout.acted[:-1].sum() == 4 * acted
        algorithm.update(rollout, 0.9)
        steps += 4 * acted
        assert algorithm.policy.epsilon == pytest.approx(1 - 0.9 * steps / 200)
