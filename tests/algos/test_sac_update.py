"""Updates of SAC and MASAC in short: targets and losses by hand, rates, temperatures, and schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything
from learners import collect_rollout
from learners import sac_learner as learner

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "rnn_size": 4, "batch_size": 4, "gradient_steps": 1}


def make(kind: str = "discrete", **settings: Any) -> tuple[Any, Any]:
    """Without a critic of the team, rewards are the agents' own, whose returns end with them."""
    return learner(Everything(kind, dead=0.0, groups=settings.get("critic") != "own"), 4, **SMALL | settings)


def valid_of(rollout: Any) -> torch.Tensor:
    return rollout.alive[:-1] & rollout.acted[:-1, :, None]


@pytest.mark.parametrize(
    ("critic", "scale"), [("own", "none"), ("joint_state", "none"), ("joint_state", "rms"), ("own", "standardize")]
)
def test_one_step_targets_of_literal_numbers(critic: str, scale: str):
    """y = r + 0.9 (1 - terminated) (E[min Q] + alpha H), with the values of two critics given by hand."""
    algorithm, collector = make("multi_discrete", critic=critic, gamma=0.9, reward_scale=scale, rnn="gru")
    rollout = collect_rollout(algorithm, collector)
    algorithm.reward_moments = {
        "count": torch.tensor(4.0), "mean": torch.tensor([2.0]), "deviation": torch.tensor([36.0]),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 13, 4, 3, 5, generator=generator)
    algorithm.evaluate = lambda critics, rollout, timesteps, action, own_action: q[:, timesteps]
    with torch.no_grad():
        draw = algorithm.sample_actions(rollout)
    temperature = torch.tensor([0.5, 1.0, 2.0])
    found = algorithm.targets(rollout, draw, temperature)
    reward = rollout.reward + rollout.group_reward
    reward = {"none": reward, "rms": reward / 13**0.5, "standardize": (reward - 2) / 3}[scale]
    own_end = rollout.terminated
    team_end = rollout.episode_terminated.unsqueeze(-1).expand_as(own_end)
    for t, b, i in ((t, b, i) for t in range(12) for b in range(4) for i in range(3)):
        if not valid_of(rollout)[t, b, i]:
            continue
        soft = (draw.prob[t + 1, b, i] * q[:, t + 1, b, i].amin(0)).sum()
        entropy = draw.entropy[t + 1, b, i]
        ended = (own_end if critic == "own" else team_end)[t, b, i]
        if critic == "joint_state" and not rollout.alive[t + 1, b].any():
            continue
        expected = reward[t, b, i] + (0.0 if ended else 0.9 * (soft + temperature[i] * entropy))
        assert found[t, b, i].item() == pytest.approx(float(expected), abs=1e-5)
    if critic == "joint_state":
        assert not draw.entropy[~rollout.alive].any()


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_the_losses_of_actor_and_temperature_by_loops(critic: str):
    """Over agents that are alive and act, also where a centralized critic learns after an agent's death."""
    algorithm, collector = make("hybrid", critic=critic, target_entropy=-0.7, target_entropy_scale=0.4, rnn="gru")
    rollout = collect_rollout(algorithm, collector)
    draw = algorithm.sample_actions(rollout)
    q = torch.randn(2, 12, 4, 3, 4, generator=torch.Generator().manual_seed(0))
    algorithm.evaluate = lambda critics, rollout, timesteps, action, own_action: q
    temperature = torch.tensor([0.5, 1.0, 2.0])
    with torch.no_grad():
        algorithm.nets.temperature.log.copy_(torch.tensor([0.3, -0.2]))
    loss, loss_t, entropy = algorithm.actor_losses(rollout, draw, temperature)
    soft, of_temperature, entropies = [], [], []
    log, numbers = (0.3, 0.3, -0.2), (1, 1, 0)
    for t, b, i in valid_of(rollout).nonzero().tolist():
        h = draw.entropy[t, b, i].item()
        soft.append((draw.prob[t, b, i] * q[:, t, b, i].amin(0)).sum().item() + temperature[i].item() * h)
        wanted = -0.7 * numbers[i] + 0.4 * draw.max_entropy[t, b, i].item()
        of_temperature.append(log[i] * (h - wanted))
        entropies.append(h)
    assert loss.item() == pytest.approx(-sum(soft) / len(soft), rel=1e-4)
    assert loss_t.item() == pytest.approx(sum(of_temperature) / len(soft), rel=1e-4)
    assert entropy.item() == pytest.approx(sum(entropies) / len(soft), rel=1e-4)
    assert algorithm.log_temperature().tolist() == pytest.approx(log)


@pytest.mark.parametrize(
    ("given", "critic_rate", "temperature_rate", "learns"),
    [
        ({}, 0.55e-3, 0.55e-3, True),
        ({}, 0.55e-3, 0.55e-3, False),
        ({"critic_lr": 4e-3, "temperature_lr": 2e-3}, 2.2e-3, 1.1e-3, True),
    ],
)
def test_rates_and_priorities_follow_their_schedules(
    given: dict[str, float], critic_rate: float, temperature_rate: float, learns: bool
):
    algorithm, collector = make(
        "hybrid", lr=1e-3, lr_schedule="linear", lr_end=0.1, priority_alpha=0.5, priority_beta=0.4, random_steps=60,
        learn_temperature=learns, gradient_steps=2, **given,
    )  # fmt: skip
    assert algorithm.policy.uniform
    rates: dict[str, list[float]] = {"policy": [], "critic": [], "temperature": []}
    for name in rates:
        optimizer = getattr(algorithm.nets, f"{name}_optimizer")

        def spy(loss: Any, lr: dict[str, float], step: Any = optimizer.step, name: str = name) -> Any:
            rates[name].append(lr[name])
            return step(loss, lr)

        optimizer.step = spy
    priorities = []
    algorithm.buffer.update_priorities = lambda index, error: priorities.append(error)
    before = algorithm.nets.temperature.log.detach().exp().mean().item()
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.5)
    assert rates["policy"] == pytest.approx([0.55e-3] * 2)
    assert rates["critic"] == pytest.approx([critic_rate] * 2)
    assert rates["temperature"] == pytest.approx([temperature_rate] * 2 if learns else [])
    assert algorithm.buffer.priority_beta == pytest.approx(0.7)
    assert len(priorities) == 2
    assert metrics["policy/lr"] == pytest.approx(0.55e-3)
    assert metrics["policy/temperature"] == pytest.approx(before, rel=2e-3)
    assert (metrics["replay/updates"], metrics["replay/sequences"]) == (2, algorithm.buffer.num_sequences)
    assert algorithm.policy.uniform, "48 of 60 steps"
    algorithm.update(collect_rollout(algorithm, collector), 0.5)
    assert not algorithm.policy.uniform
    assert all(p.requires_grad for p in algorithm.nets.critics.parameters())


@pytest.mark.parametrize(("rnn", "burn_in", "first"), [("gru", 3, 3), ("none", 3, 0)])
def test_the_burn_in_is_not_learned_from(rnn: str, burn_in: int, first: int):
    algorithm, collector = make(rnn=rnn, burn_in=burn_in, critic="joint")
    rollout = collect_rollout(algorithm, collector)
    valid, of_team = (algorithm.valid_mask(rollout, of_critic=flag) for flag in (False, True))
    expected = valid_of(rollout)
    assert not valid[:first].any()
    assert torch.equal(valid[first:], expected[first:])
    assert torch.equal(of_team[first:], expected.any(-1, keepdim=True).expand_as(expected)[first:])


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_reported_means_of_the_critics_are_those_over_valid_entries(critic: str):
    """Those of a centralized critic include agents that are dead while others act."""
    algorithm, collector = make("discrete", critic=critic, rnn="gru", priority_alpha=0.5)
    rollout = collect_rollout(algorithm, collector)
    target = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(0))
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0])
    with torch.no_grad():
        q = algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), rollout.action, own_action=None)
        q = (q * algorithm.nets.critics.taken(rollout.action)).sum(-1)
    report, error = algorithm._update_critics(rollout, target, weight, {"critic": 1e-3})
    valid, entries = valid_of(rollout), []
    if critic == "joint":
        valid = valid.any(-1, keepdim=True).expand(12, 4, 3)
        assert not valid_of(rollout)[valid].all()
    for t, b, i in valid.nonzero().tolist():
        errors = (q[:, t, b, i] - target[t, b, i]).abs()
        entries.append((0.5 * weight[b] * errors.square().sum(), q[:, t, b, i].mean(), errors.mean()))
    means = torch.tensor(entries).mean(0)
    torch.testing.assert_close(report[:3], means)
    assert report[3] > 0
    assert error.shape == (4,)


@pytest.mark.parametrize(("random_steps", "uniform"), [(48, False), (49, True)])
def test_a_restored_learner_explores_like_the_saved_one(random_steps: int, uniform: bool):
    """After 48 steps."""
    algorithm, collector = make(random_steps=random_steps)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    other, _ = make(random_steps=random_steps)
    other.load_state_dict(algorithm.state_dict())
    assert algorithm.policy.uniform == other.policy.uniform == uniform


@pytest.mark.parametrize("normalize", [False, True])
def test_losses_read_observations_that_are_normalized_by_present_statistics(normalize: bool):
    algorithm, collector = make(normalize_obs=normalize)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)  # the statistics now have a scale
    statistics = algorithm.policy.obs_normalizer
    draw, losses, read = algorithm.buffer.samples, algorithm.actor_losses, []

    def spy_on_samples(size: int, count: int) -> Any:
        for sample in draw(size, count):
            read.append(statistics(sample.rollout.obs))
            yield sample

    def spy_on_losses(rollout: Any, *arguments: Any) -> Any:
        read.append(rollout.obs)
        return losses(rollout, *arguments)

    algorithm.buffer.samples, algorithm.actor_losses = spy_on_samples, spy_on_losses
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    expected, found = read
    assert all(found[role].equal(expected[role]) for role in ("guard", "scout"))
    assert statistics(rollout.obs)["guard"].equal(rollout.obs["guard"]) != normalize


def test_reward_statistics_are_those_of_valid_rewards():
    algorithm, collector = make(reward_scale="rms")
    assert [x.shape for x in algorithm.reward_moments.values()] == [(), (1,), (1,)]
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    reward = (rollout.reward + rollout.group_reward)[valid_of(rollout)].double()
    assert algorithm.reward_moments["count"].item() == len(reward)
    torch.testing.assert_close(algorithm.reward_moments["mean"], reward.mean().unsqueeze(0))
