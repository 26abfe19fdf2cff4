"""Updates of Q-learning in short: rewards and targets by loops, rates, priorities, metrics, and statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything, Probe, env_of, observe_x, unit_reward
from coterie.algos.qlearning import QLearning, QLearningConfig
from learners import collect_rollout, learner_of, q_learner
from loops import by_agent, choices_of, greedy, n_step, next_team_values, team_q, team_reward, team_steps

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "rnn_size": 4, "batch_size": 4, "gradient_steps": 1}


def make(kind: str = "discrete", **settings: Any) -> tuple[Any, Any]:
    return q_learner(env_of(Everything(kind, dead=0.0), 4), **SMALL | settings)


def valid_of(rollout: Any) -> torch.Tensor:
    return rollout.alive[:-1] & rollout.acted[:-1, :, None]


@pytest.mark.parametrize(
    ("mixer", "scale", "double"),
    [("none", "none", True), ("none", "rms", False), ("vdn", "standardize", True), ("vdn", "none", False)],
)
def test_one_step_targets_by_loops(mixer: str, scale: str, double: bool):
    """y = r + 0.9 (1 - terminated) Q', with Q' of the best available choice, in a team summed over agents alive.

    Without a mixer, returns with group rewards go on after a death, where Q is that of the first choice.
    """
    algorithm, collector = make(mixer=mixer, reward_scale=scale, double_q=double, rnn="gru", gamma=0.9)
    rollout = collect_rollout(algorithm, collector)
    algorithm.reward_moments = {
        "count": torch.tensor(4.0), "mean": torch.tensor([2.0]), "deviation": torch.tensor([36.0]),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    sizes = {"guard": (2, 3), "scout": (1, 4)}
    online, target = (
        {name: torch.randn(13, 4, *size, generator=generator) for name, size in sizes.items()} for _ in range(2)
    )
    algorithm.reader.online = lambda value, inputs: (
        {name: x[:-1] for name, x in online.items()}, {name: x[1:] for name, x in online.items()},
    )  # fmt: skip
    algorithm.reader.successors = lambda value, inputs: {name: x[1:] for name, x in target.items()}
    batch = algorithm.evaluate_batch(rollout)
    valid = valid_of(rollout)
    assert torch.equal(batch.valid, valid.any(-1, keepdim=True).expand_as(valid) if mixer == "none" else valid.any(-1))
    assert (batch.central_q, batch.weight) == (None, None)

    def best(t: int, b: int, i: int) -> float:
        name, k = ("guard", i) if i < 2 else ("scout", 0)
        chosen = (online if double else target)[name][t, b, k].clone()
        chosen[~rollout.action_mask[name][t, b, k]] = -torch.inf
        return target[name][t, b, k, chosen.argmax() if rollout.alive[t, b, i] else 0].item()

    def taken(t: int, b: int, i: int) -> float:
        name, k = ("guard", i) if i < 2 else ("scout", 0)
        return online[name][t, b, k, rollout.action[name].discrete[t, b, k, 0] * rollout.alive[t, b, i]].item()

    def scaled(reward: float) -> float:
        return {"none": reward, "rms": reward / 13**0.5, "standardize": (reward - 2) / 3}[scale]

    for t, b in ((t, b) for t in range(12) for b in range(4) if rollout.acted[t, b]):
        if mixer == "vdn":
            if not valid[t, b].any() or not rollout.alive[t + 1, b].any():
                continue
            reward = (rollout.reward[t, b].sum() + rollout.group_reward[t, b].sum()).item()
            value = sum(best(t + 1, b, i) for i in range(3) if rollout.alive[t + 1, b, i])
            expected = scaled(reward) + (0.0 if rollout.episode_terminated[t, b] else 0.9 * value)
            assert batch.target[t, b].item() == pytest.approx(expected, abs=1e-4)
            q = sum(taken(t, b, i) for i in range(3) if rollout.alive[t, b, i])
            assert batch.q[t, b].item() == pytest.approx(q, abs=1e-4)
            continue
        for i in range(3):
            reward = (rollout.reward[t, b, i] + rollout.group_reward[t, b, 0]).item()
            value = 0.0 if rollout.episode_terminated[t, b] else best(t + 1, b, i)
            assert batch.target[t, b, i].item() == pytest.approx(scaled(reward) + 0.9 * value, abs=1e-4)
            assert batch.q[t, b, i].item() == pytest.approx(taken(t, b, i), abs=1e-4)


@pytest.mark.parametrize(
    ("mixer", "weighting"), [("qmix", "none"), ("qplex", "none"), ("qmix", "central"), ("qmix", "optimistic")]
)
def test_targets_and_values_of_mixers_by_loops(mixer: str, weighting: str):
    """Three-step returns of the target networks, with masks, states and deaths of each timestep."""
    algorithm, collector = make(
        mixer=mixer, weighting=weighting, gamma=0.9, rnn="gru", n_step=3, normalize_obs=True, bootstrap_at_limit=True,
        value_time_left=True,
    )  # fmt: skip
    for _ in range(2):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    rollout, generator = collect_rollout(algorithm, collector), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in algorithm.target.module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        batch, state, central = algorithm.evaluate_batch(rollout), algorithm._state(rollout.state), algorithm._central
        _, inputs, target_inputs = algorithm.reader.start(rollout)
        q = algorithm.value.net(*inputs["value"])[0]
        name = "value" if central is None else "central"
        source = algorithm if central is None else central
        target_q = source.target_value.net(*target_inputs[name])[0]
        central_q = q if central is None else central.value.net(*inputs[name])[0]
        targets = []
        for b in range(4):
            following = next_team_values(rollout, b, value=source.target_value, q=target_q, chosen_by=q, state=state)
            known = {"reward": team_reward(rollout, b), "next_value": following}
            targets.append([n_step(rollout, t, b, **known, gamma=0.9, n=3) for t in range(12)])
        steps = team_steps(rollout)
        assert batch.valid.nonzero().tolist() == [list(step) for step in steps]
        assert any(not rollout.alive[t, b].all() for t, b in steps)
        for t, b in steps:
            masks, alive, target = by_agent(rollout.action_mask, t, b), rollout.alive[t, b], targets[b][t]
            rest, choices = (masks, alive, state[t, b]), choices_of(rollout, t, b)
            q_taken = team_q(algorithm.value, by_agent(q, t, b), choices, *rest).item()
            assert batch.target[t, b].item() == pytest.approx(target, rel=1e-4, abs=1e-5)
            assert batch.q[t, b].item() == pytest.approx(q_taken, rel=1e-4, abs=1e-5)
            if central is None:
                continue
            of_choices = team_q(central.value, by_agent(central_q, t, b), choices, *rest).item()
            assert batch.central_q[t, b].item() == pytest.approx(of_choices, rel=1e-4, abs=1e-5)
            best = greedy(by_agent(q, t, b), masks)
            promising = q_taken < target
            if weighting == "central":
                same = all(x == y or not here for x, y, here in zip(best, choices, alive, strict=True))
                promising = same or target > team_q(central.value, by_agent(central_q, t, b), best, *rest).item()
            assert batch.weight[t, b].item() == pytest.approx(1.0 if promising else algorithm.config.weighting_alpha)


@pytest.mark.parametrize(("mixer", "weighting"), [("vdn", "none"), ("qplex", "none"), ("qmix", "central")])
def test_a_team_reads_only_the_timestep_that_its_target_bootstraps_from(mixer: str, weighting: str):
    """Targets are those of all successors, also where agents die or the episode ends within the sequence."""
    algorithm, collector = make(mixer=mixer, weighting=weighting, n_step=3, rollout_length=3, normalize_obs=True)
    read = []
    algorithm.value.net.register_forward_pre_hook(lambda net, inputs: read.append(len(inputs[0]["guard"])))
    ended = 0
    for _ in range(12):
        rollout = collect_rollout(algorithm, collector)
        algorithm.reader._bootstraps_once = algorithm._bootstraps_once = True
        read.clear()
        found = algorithm.evaluate_batch(rollout)
        assert set(read) == {1}
        algorithm.reader._bootstraps_once = algorithm._bootstraps_once = False
        read.clear()
        expected = algorithm.evaluate_batch(rollout)
        assert set(read) == {1, 3}
        assert torch.equal(found.valid, expected.valid)
        valid = found.valid
        ended += int(
            rollout.episode_terminated[:2][:, valid[0]].sum() + rollout.episode_truncated[:2][:, valid[0]].sum()
        )
        for name in ("q", "target", "central_q", "weight"):
            one, other = getattr(found, name), getattr(expected, name)
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one[valid], other[valid])
    assert ended


def test_independent_learners_that_die_read_all_successors():
    assert not make(mixer="none", n_step=3)[0]._bootstraps_once
    assert not make(mixer="vdn", n_step=1)[0]._bootstraps_once
    assert not make(mixer="vdn", n_step=3, td_lambda=0.5)[0]._bootstraps_once
    assert not make(mixer="vdn", n_step=3, rnn="gru")[0]._bootstraps_once
    assert q_learner(env_of(Probe(observe_x, unit_reward, n=2), 4), **SMALL, n_step=3)[0]._bootstraps_once


def test_targets_of_a_subclass_are_given_the_values_of_all_successors():
    seen = []

    class Own(QLearning):
        def targets(self, rollout, reward, next_value):
            seen.append(next_value)
            return super().targets(rollout, reward, next_value)

    config = QLearningConfig(mixer="vdn", n_step=3, hidden_sizes=(8,), rollout_length=3)
    algorithm, collector = learner_of(Own, config, env_of(Everything("discrete", dead=0.0), 4))
    algorithm.evaluate_batch(collect_rollout(algorithm, collector))
    assert not torch.equal(seen[0][0], seen[0][1])


@pytest.mark.parametrize("common", [False, True])
def test_reward_statistics_are_those_of_valid_rewards(common: bool):
    algorithm, collector = make(reward_scale="rms", common_reward=common)
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    reward = rollout.reward + rollout.group_reward
    reward = (
        (reward.mean(-1, keepdim=True).expand_as(reward) if common else reward)[valid_of(rollout).any(-1)]
        .flatten()
        .double()
    )
    assert algorithm.reward_moments["count"].item() == len(reward)
    torch.testing.assert_close(algorithm.reward_moments["mean"], reward.mean().unsqueeze(0))
    plain, _ = make()
    plain.update(rollout, 0.0)
    assert plain.reward_moments is None


@pytest.mark.usefixtures("plain_steps")
def test_rates_priorities_and_exploration_follow_their_schedules():
    """At half of the run, rates are 0.55 of the initial ones, and importance exponents 0.4 + 0.6 / 2."""
    algorithm, collector = make(
        lr=1e-3, lr_schedule="linear", lr_end=0.1, priority_alpha=0.5, priority_beta=0.4, gradient_steps=3,
        epsilon_start=0.9, epsilon_end=0.1, epsilon_schedule="linear", epsilon_decay_steps=80, normalize_obs=True,
    )  # fmt: skip
    assert algorithm.policy.epsilon == 0.9
    rates, priorities, step = [], [], algorithm._optimizer.step

    def spy(loss: Any, lr: dict[str, float]) -> Any:
        rates.append(lr)
        return step(loss, lr)

    algorithm._optimizer.step = spy
    algorithm.buffer.update_priorities = lambda index, error: priorities.append((index, error))
    rollout = collect_rollout(algorithm, collector)
    acted = int(rollout.acted[:-1].sum())
    metrics = algorithm.update(rollout, 0.5)
    assert rates == [{"value": pytest.approx(0.55e-3)}] * 3
    assert algorithm.buffer.priority_beta == pytest.approx(0.7)
    assert [error.shape for _, error in priorities] == [(4,)] * 3
    expected = {"policy/epsilon": 0.9 - 0.8 * acted / 80, "policy/lr": 0.55e-3, "replay/updates": 3}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    means = {"loss/td", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm"}
    assert set(metrics) == {*expected, *means, "replay/sequences", "replay/age"}
    assert metrics["replay/sequences"] == algorithm.buffer.num_sequences
    assert algorithm.state_dict()["steps"] == acted
    algorithm.update(collect_rollout(algorithm, collector), 0.5)
    assert algorithm.policy.epsilon == pytest.approx(0.1)
    count = algorithm.policy.obs_normalizer.state_dict()["guard"]["count"].item()
    assert count > valid_of(rollout)[..., :2].sum()


@pytest.mark.parametrize(("mixer", "delta"), [("none", 0.1), ("qmix", None)])
def test_a_report_has_the_means_over_valid_entries(mixer: str, delta: float | None):
    algorithm, collector = make(mixer=mixer, rnn="gru", huber_delta=delta, priority_alpha=0.5)
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0])
    batch = algorithm.evaluate_batch(collect_rollout(algorithm, collector))
    loss = algorithm.loss(batch, weight)
    (report,), sequence_errors = algorithm._report(batch, loss, torch.tensor([7.0]))
    entries = []
    for place in map(tuple, batch.valid.nonzero().tolist()):
        error = (batch.q[place] - batch.target[place]).abs().item()
        term = 0.5 * error**2 if delta is None or error <= delta else delta * (error - 0.5 * delta)
        entries.append([weight[place[1]].item() * term, error, batch.q[place].item(), batch.target[place].item()])
    torch.testing.assert_close(report[:4], torch.tensor(entries).mean(0))
    assert report[4] == 7
    assert sequence_errors.shape == (4,)
    assert not report.requires_grad
    assert not sequence_errors.requires_grad


@pytest.mark.parametrize(("weighting", "delta"), [("optimistic", None), ("central", 0.1)])
def test_the_loss_of_weighted_qmix_is_that_of_both_values_by_loops(weighting: str, delta: float | None):
    algorithm, collector = make(
        mixer="qmix", weighting=weighting, weighting_alpha=0.25, rnn="gru", huber_delta=delta
    )  # fmt: skip
    importance = torch.tensor([0.5, 1.0, 2.0, 3.0])
    batch = algorithm.evaluate_batch(collect_rollout(algorithm, collector))
    assert set(batch.weight.unique().tolist()) <= {0.25, 1.0}

    def cost(error: float) -> float:
        return 0.5 * error**2 if delta is None or abs(error) <= delta else delta * (abs(error) - 0.5 * delta)

    terms = []
    for place in map(tuple, batch.valid.nonzero().tolist()):
        q, central_q, target = (x[place].item() for x in (batch.q, batch.central_q, batch.target))
        own, others = cost(q - target), cost(central_q - target)
        terms.append(importance[place[1]].item() * (batch.weight[place].item() * own + others))
    assert algorithm.loss(batch, importance).item() == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def test_the_team_of_a_single_agent_has_the_targets_of_the_agent():
    """The sum of one value is that value: the same loss without a mixer and with that of VDN."""
    found = []
    for mixer in ("none", "vdn"):
        world = Probe(observe_x, unit_reward, length=3)
        algorithm, collector = q_learner(env_of(world, 4), **SMALL | {"mixer": mixer})
        found.append(algorithm.update(collect_rollout(algorithm, collector), 0.0))
    assert found[0] == pytest.approx(found[1])


def test_a_cloning_optimizer_trains_the_q_networks_and_their_target():
    algorithm, _ = make(mixer="qmix")
    cloning = algorithm.cloning_optimizer()
    assert set(cloning.optimizer.flat) == {"value"}
    assert cloning.targets == (algorithm.target,)
    assert set(algorithm.state_dict()) >= {"policy", "module", "target", "optimizer", "buffer", "state"}
