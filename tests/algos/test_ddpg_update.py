"""Updates of DDPG and MADDPG in short: batches, hidden states, targets, losses by hand, rates, and schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from algo_worlds import Everything
from coterie.algos.replay.buffer import ReplaySample
from coterie.core.tree import tree_map
from coterie.core.types import TIME_LEFT
from coterie.nets.relaxed_actions import draw_block_noise
from learners import CPU, collect_rollout
from learners import ddpg_learner as learner
from rank_draws import record_draws

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "rnn_size": 4, "batch_size": 4, "gradient_steps": 1}


def make(kind: str = "discrete", **settings: Any) -> tuple[Any, Any]:
    """Without a critic of the team, rewards are the agents' own, whose returns end with them."""
    return learner(Everything(kind, dead=0.0, groups=settings.get("critic") != "own"), 4, **SMALL | settings)


def batch_of(algorithm: Any, collector: Any, weight: Any = None) -> tuple[Any, Any]:
    """A batch of all sequences of a rollout, and the rollout."""
    rollout = collect_rollout(algorithm, collector)
    weight = torch.ones(4) if weight is None else weight
    return algorithm.make_batch(ReplaySample(rollout, torch.arange(4), weight)), rollout


@pytest.mark.parametrize(
    ("settings", "start"),
    [({"critic": "own"}, 1), ({"critic": "joint_state"}, 5), ({"critic": "joint", "share_critic": False}, 5)],
)
def test_features_of_some_timesteps_are_those_of_the_whole_sequence(settings: dict[str, Any], start: int):
    """Timesteps before them warm up the hidden state of critics."""
    algorithm, collector = make(rnn="gru", **settings)
    batch, _ = batch_of(algorithm, collector)
    critic = algorithm.critics[0]
    whole, part = (algorithm.critic_features(critic, batch, slice(first, 12)) for first in (0, start))
    if settings["critic"] != "own":
        whole, part = {"all": whole}, {"all": part}
    for name in whole:
        torch.testing.assert_close(part[name], whole[name][start:])
        fresh = algorithm.critic_features(
            critic, replace(batch, timesteps=later(batch, start), critic_first=batch.critic_first[start:]), slice(0, 12)
        )
        fresh = fresh if isinstance(fresh, dict) else {"all": fresh}
        assert not torch.allclose(fresh[name][0], part[name][0]), "the control: from a hidden state of zero"


def later(batch: Any, start: int) -> Any:
    return tree_map(lambda x: x[start:], batch.timesteps)


@pytest.mark.parametrize(
    ("critic", "rnn", "burn_in"), [("own", "none", 3), ("joint", "none", 0), ("own", "gru", 0), ("joint", "gru", 3)]
)
def test_a_batch_is_masked_and_starts_after_the_burn_in(critic: str, rnn: str, burn_in: int):
    algorithm, collector = make("hybrid", critic=critic, rnn=rnn, burn_in=burn_in)
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0])
    batch, rollout = batch_of(algorithm, collector, weight)
    start, stop = (burn_in, 12) if rnn == "gru" else (0, 1)
    assert batch.learned == slice(start, stop)
    valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    of_team = valid.any(-1, keepdim=True).expand_as(valid)
    of_critic = valid if critic == "own" else of_team
    assert torch.equal(batch.valid, valid[start:stop])
    assert torch.equal(batch.critic_valid, of_critic[start:stop])
    assert batch.weight is weight
    reward = rollout.reward + rollout.group_reward
    assert torch.equal(batch.reward, torch.where(of_critic, reward, 0.0))
    for name, agents in (("guard", slice(0, 2)), ("scout", slice(2, 3))):
        assert not batch.taken[name][~valid[..., agents]].any()
        assert batch.taken[name][valid[..., agents]].abs().sum(-1).min() > 0
    assert set(batch.hidden_state) == ({"h"} if rnn == "gru" else set())
    assert (batch.critic_first is None) == (rnn == "none")


@pytest.mark.parametrize("normalize", [False, True])
def test_networks_read_normalized_observations_if_they_are_configured(normalize: bool):
    algorithm, collector = make(normalize_obs=normalize)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    batch, rollout = batch_of(algorithm, collector)
    expected = algorithm.policy.obs_normalizer(rollout.obs) if normalize else rollout.obs
    for name, obs in batch.timesteps.obs.items():
        assert torch.equal(obs, expected[name])
        assert torch.equal(obs, rollout.obs[name]) == (not normalize)


def test_actions_are_drawn_for_samples_which_are_the_second_axis(monkeypatch: pytest.MonkeyPatch):
    """Ranks draw for the samples of all and take their own."""
    algorithm, collector = make("continuous", critic="joint", target_noise=0.5)
    batch, _ = batch_of(algorithm, collector)
    drawn = record_draws(monkeypatch)
    algorithm.targets(batch)
    algorithm.policy_loss(batch)
    assert drawn == [4, 4]


@pytest.mark.parametrize("twin", [False, True])
def test_the_actors_objective_is_the_mean_q_of_their_actions_less_the_penalty_on_logits(twin: bool):
    """By loops over valid agents and their available choices. Of two critics, it is the first one's."""
    algorithm, collector = make(
        "discrete", critic="own", logit_penalty=1e5, rnn="gru", gumbel_temperature=0.7, twin_critics=twin
    )
    batch, _ = batch_of(algorithm, collector)
    algorithm.generator.manual_seed(3)
    outputs, action = algorithm.sample_joint_action(batch)
    algorithm.generator.manual_seed(3)
    loss, value = algorithm.policy_loss(batch)
    split = algorithm._joint.split(action.detach())
    with torch.no_grad():
        q = algorithm.evaluate(
            algorithm.critics[0], algorithm.critic_features(algorithm.critics[0], batch, batch.learned), split
        )
    assert value.item() == pytest.approx(-q[batch.valid].mean().item(), rel=1e-5)
    squares, count = 0.0, 0
    for t, s, agent in batch.valid.nonzero().tolist():
        name, i = ("guard", agent) if agent < 2 else ("scout", 0)
        for choice, available in enumerate(batch.timesteps.action_mask[name][t, s, i].tolist()):
            if available:
                squares, count = squares + outputs[name][t, s, i, choice].item() ** 2, count + 1
    algorithm.generator.manual_seed(3)
    without, _ = make("discrete", critic="own", logit_penalty=0.0, rnn="gru", gumbel_temperature=0.7, twin_critics=twin)
    without.generator.manual_seed(3)
    plain, _ = without.policy_loss(batch)
    assert (loss - plain).item() == pytest.approx(1e5 * squares / count, rel=1e-3)


@pytest.mark.parametrize(("critic_lr", "expected_lr"), [(None, 0.55e-3), (4e-3, 2.2e-3)])
def test_rates_priorities_and_exploration_follow_their_schedules(critic_lr: float | None, expected_lr: float):
    """At half of the run, rates are 0.55 of the initial ones, noise 0.6, and importance exponents 0.4 + 0.6 / 2."""
    algorithm, collector = make(
        "hybrid", lr=1e-3, critic_lr=critic_lr, lr_schedule="linear", lr_end=0.1, noise_std=0.5,
        noise_schedule="linear", noise_end=0.2, random_steps=60, priority_alpha=0.5, priority_beta=0.4,
        policy_delay=2, gradient_steps=4,
    )  # fmt: skip
    assert (algorithm.policy.noise_std, algorithm.policy.uniform) == (0.5, True)
    rates: dict[str, list[float]] = {"policy": [], "critic": []}
    for name, optimizer in (("policy", algorithm._policy_optimizer), ("critic", algorithm._critic_optimizer)):

        def spy(loss: Any, lr: dict[str, float], step: Any = optimizer.step, name: str = name) -> Any:
            rates[name].append(lr[name])
            return step(loss, lr)

        optimizer.step = spy
    rollout = collect_rollout(algorithm, collector)
    metrics = algorithm.update(rollout, 0.5)
    assert rates == {"policy": pytest.approx([0.55e-3] * 2), "critic": pytest.approx([expected_lr] * 4)}
    assert algorithm.buffer.priority_beta == pytest.approx(0.7)
    assert (metrics["policy/lr"], metrics["policy/noise_std"]) == pytest.approx((0.55e-3, 0.3))
    assert (metrics["replay/updates"], metrics["replay/sequences"]) == (4, algorithm.buffer.num_sequences)
    means = {"loss/critic", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm"}
    means |= {"loss/policy", "policy/grad_norm"}
    assert set(metrics) == {"policy/lr", "policy/noise_std", "replay/updates", "replay/sequences", "replay/age"} | means
    acted = int(rollout.acted[:-1].sum())
    assert algorithm.policy.uniform == (acted < 60)
    algorithm.update(collect_rollout(algorithm, collector), 1.0)
    assert algorithm.policy.noise_std == pytest.approx(0.1)
    assert not algorithm.policy.uniform


@pytest.mark.parametrize("actors", ["target", "online"])
def test_next_actions_are_those_of_the_configured_actors(actors: str):
    """gamma 1 and rewards of zero: targets are the target critic's Q of the configured actors' next actions."""
    algorithm, collector = make("continuous", next_action_policy=actors, gamma=1.0, rnn="gru", critic="own")
    with torch.no_grad():
        for p in algorithm.policy.net.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    batch, _ = batch_of(algorithm, collector)
    ends = torch.zeros_like(batch.terminated)
    batch = replace(batch, reward=torch.zeros_like(batch.reward), terminated=ends)
    algorithm.generator.manual_seed(0)
    found = algorithm.targets(batch)
    assert not found.requires_grad
    net = algorithm.policy.net if actors == "online" else algorithm.target_policy.module
    critic, hidden_state = algorithm.target_critics.module[0], batch.hidden_state
    with torch.no_grad():
        outputs, _ = net(batch.timesteps.obs, batch.timesteps.first, hidden_state)
        zeros = {k: torch.zeros_like(x) for k, x in hidden_state.items()}
        left = batch.timesteps.state[TIME_LEFT]
        features, _ = critic.encode(batch.timesteps.obs, left, batch.timesteps.first, zeros)
        action = {"guard": outputs["guard"].tanh()}
        guards = critic.networks["guard"](features["guard"], action["guard"])[..., 0]
    torch.testing.assert_close(found[..., :2], guards[1:])


@pytest.mark.parametrize(("critic", "twin"), [("own", True), ("joint", False)])
def test_reported_means_are_those_of_the_first_critic_over_valid_entries(critic: str, twin: bool):
    """The loss is the sum over critics; those of a team include agents that are dead while others act."""
    algorithm, collector = make(critic=critic, rnn="gru", twin_critics=twin, priority_alpha=0.5)
    batch, rollout = batch_of(algorithm, collector, torch.tensor([0.5, 1.0, 2.0, 3.0]))
    target = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        q = torch.stack(algorithm.q_taken(batch))
    report, error = algorithm._update_critics(batch, target, {"critic": 1e-3})
    valid, entries = rollout.alive[:-1] & rollout.acted[:-1, :, None], []
    valid = valid if critic == "own" else valid.any(-1, keepdim=True).expand_as(valid)
    for t, b, i in valid.nonzero().tolist():
        errors, y = q[:, t, b, i] - target[t, b, i], target[t, b, i]
        entries.append((batch.weight[b] * errors.square().sum(), errors[0].abs(), q[0, t, b, i], y))
    assert len(q) == 1 + twin
    torch.testing.assert_close(report[:4], torch.tensor(entries).mean(0))
    assert report[4] > 0
    assert error.shape == (4,)


def spy_on_actions(algorithm: Any) -> list[dict[str, torch.Tensor]]:
    """Records the actions that critics evaluate, vectors by role."""
    evaluate, found = algorithm.evaluate, []

    def spy(critic: Any, features: Any, action: dict[str, torch.Tensor]) -> torch.Tensor:
        found.append(action)
        return evaluate(critic, features, action)

    algorithm.evaluate = spy
    return found


@pytest.mark.parametrize("std", [0.0, 0.5])
def test_only_numbers_of_next_actions_have_noise_and_it_is_clipped(std: float):
    """TD3: tanh of the output plus noise of standard deviation 0.5 within 0.3, in targets but not in actors' losses."""
    algorithm, collector = make("continuous", critic="joint", rnn="gru", target_noise=std, target_noise_clip=0.3)
    batch, _ = batch_of(algorithm, collector)
    evaluated = spy_on_actions(algorithm)
    algorithm.generator.manual_seed(7)
    algorithm.targets(batch)
    noise = draw_block_noise(algorithm.policy.blocks, (12, 4), torch.Generator().manual_seed(7), CPU)["guard"]
    with torch.no_grad():
        timesteps = batch.timesteps
        outputs, _ = algorithm.target_policy.module(timesteps.obs, timesteps.first, batch.hidden_state)
        numbers = (outputs["guard"][1:].tanh() + (noise * std).clamp(-0.3, 0.3)).clamp(-1, 1)
    alive = timesteps.alive[1:, :, :2, None]
    torch.testing.assert_close(evaluated[0]["guard"], torch.where(alive, numbers, 0.0))
    assert ((noise * 0.5).abs() > 0.3).any()
    outputs, action = algorithm.sample_joint_action(batch)
    numbers = torch.where(timesteps.alive[:-1, :, :2, None], outputs["guard"].tanh(), 0.0)
    torch.testing.assert_close(action[..., :4], numbers.flatten(-2))
