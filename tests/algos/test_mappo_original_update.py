"""Updates of the original MAPPO in short: losses and advantages by loops, rates, metrics, statistics, checkpoints."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos import mappo_original
from coterie.algos.mappo_original import MAPPOOriginal, MAPPOOriginalConfig
from coterie.algos.reward_streams import EXTRINSIC, RewardStream
from coterie.core.types import TIME_LEFT
from learners import collect_rollout, learner_of

SMALL: dict[str, Any] = {
    "hidden_sizes": (8,), "critic_hidden_sizes": (8,), "rollout_length": 8, "sequence_length": 4, "epochs": 1,
    "critic_time_chunks": 2, "num_minibatches": 1, "lr": 1e-3,
}  # fmt: skip


def make(streams: tuple[RewardStream, ...] = (), seed: int = 0, **settings: Any) -> tuple[Any, Any]:
    """Four environments, eight sequences of four timesteps."""
    config = MAPPOOriginalConfig(**SMALL | settings)
    return learner_of(
        MAPPOOriginal, config, env_of(Everything("discrete", dead=0.0), 4), seed=seed, streams=streams
    )  # fmt: skip


class Spies:
    """Results of the parts of an update, in the order of the calls."""

    def __init__(self, algorithm: Any, monkeypatch: pytest.MonkeyPatch):
        self.batches, self.extras, self.values, self.losses, self.entropies = [], [], [], [], []
        self.steps: dict[str, list[Any]] = {"actor": [], "critic": []}

        def targets(*arguments: Any, original: Any = algorithm.targets, **options: Any) -> Any:
            found = original(*arguments, **options)
            _, std = algorithm.value_scale(found.value_state.moments)
            self.batches.append((found.batch, torch.as_tensor(std)))
            self.extras.append(found.metrics)
            return found

        def loss(*arguments: Any, original: Any = mappo_original.clipped_policy_loss, **options: Any) -> Any:
            self.losses.append((arguments, original(*arguments, **options)))
            return self.losses[-1][1]

        def evaluate(*arguments: Any, original: Any = algorithm.policy.actor.evaluate, **options: Any) -> Any:
            found = original(*arguments, **options)
            self.entropies.append(found[1].detach())
            return found

        def keep_values(module: Any, arguments: Any, out: Any) -> None:
            if out[0].requires_grad:
                self.values.append(out[0].detach().clone())

        monkeypatch.setattr(algorithm, "targets", targets)
        monkeypatch.setattr(mappo_original, "clipped_policy_loss", loss)
        monkeypatch.setattr(algorithm.policy.actor, "evaluate", evaluate)
        algorithm.critic.register_forward_hook(keep_values)
        for name, optimizer in (("actor", algorithm._actor_optimizer), ("critic", algorithm._critic_optimizer)):
            monkeypatch.setattr(optimizer, "step", self._spy_on_step(name, optimizer.step))

    def _spy_on_step(self, name: str, step: Any) -> Any:
        def call(loss: torch.Tensor, lrs: dict[str, float]) -> torch.Tensor:
            value = loss.item()
            norm = step(loss, lrs)
            self.steps[name].append((value, lrs, norm.item()))
            return norm

        return call

    def raw_advantages(self, minibatch: int) -> torch.Tensor:
        """Targets minus values before the steps on them, two chunks from the last to the first [4, S, N, K]."""
        batch, std = self.batches[minibatch]
        late, early = self.values[2 * minibatch : 2 * minibatch + 2]
        return (batch.target - torch.cat([early, late])) * std


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(("critic_lr", "value_lr", "normalize"), [(4e-3, 2.2e-3, True), (None, 0.55e-3, False)])
def test_steps_descend_their_losses_at_scheduled_rates(
    critic_lr: float | None, value_lr: float, normalize: bool, monkeypatch: pytest.MonkeyPatch
):
    """Half of the run is done: rates are 0.55 of the initial ones, the entropy bonus 0.75. Two passes of two parts."""
    algorithm, collector = make(
        critic_lr=critic_lr, lr_schedule="linear", lr_end=0.1, entropy_coef=0.02, entropy_schedule="linear",
        entropy_end=0.5, value_coef=0.7, epochs=2, num_minibatches=2, normalize_advantage=normalize,
        normalize_value=True, huber_delta=None,
    )  # fmt: skip
    algorithm.update(collect_rollout(algorithm, collector), 0.5)
    spies = Spies(algorithm, monkeypatch)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.5)
    rates = {"policy": pytest.approx(0.55e-3), "value": pytest.approx(value_lr), "entropy": pytest.approx(0.015)}
    assert [len(spies.steps[name]) for name in ("actor", "critic")] == [4, 8]
    assert all(lrs == rates for steps in spies.steps.values() for _, lrs, _ in steps)
    errors, means = [], []
    for i, (batch, std) in enumerate(spies.batches):
        assert std != 1
        for chunk, time in enumerate((slice(2, 4), slice(0, 2))):
            value, target = spies.values[2 * i + chunk], batch.target[time]
            valid = [tuple(at) for at in batch.critic_valid[time].nonzero().tolist()]
            errors.append(statistics.fmean(0.5 * (value[at] - target[at]).item() ** 2 for at in valid))
            assert spies.steps["critic"][2 * i + chunk][0] == pytest.approx(0.7 * errors[-1], rel=1e-4)
        raw = spies.raw_advantages(i)[..., 0]
        entries = raw[batch.valid].tolist()
        means.append(statistics.fmean(entries))
        if normalize:
            raw = (raw - means[-1]) / statistics.pstdev(entries)
        (_, old_log_prob, advantage, valid), (policy, _, _) = spies.losses[i]
        assert old_log_prob is batch.log_prob
        assert valid.equal(batch.valid)
        torch.testing.assert_close(advantage[valid], raw[valid], rtol=1e-4, atol=1e-5)
        entropy = statistics.fmean(spies.entropies[i][batch.valid].tolist())
        assert spies.steps["actor"][i][0] == pytest.approx(policy.item() - 0.015 * entropy, rel=1e-4)
    mean = statistics.fmean
    entropies = [x[batch.valid].mean().item() for x, (batch, _) in zip(spies.entropies, spies.batches, strict=True)]
    expected = {
        "loss/policy": mean(found[0].item() for _, found in spies.losses),
        "policy/kl": mean(found[1].item() for _, found in spies.losses),
        "policy/clip_fraction": mean(found[2].item() for _, found in spies.losses),
        "policy/entropy": mean(entropies),
        "policy/grad_norm": mean(norm for *_, norm in spies.steps["actor"]),
        "loss/value": mean(errors),
        "value/grad_norm": mean(norm for *_, norm in spies.steps["critic"]),
        "policy/advantage": mean(means),
        "value/explained_variance": mean(extra["value/explained_variance"].item() for extra in spies.extras),
        "value/estimate": mean(extra["value/estimate"].item() for extra in spies.extras),
        "policy/lr": 0.55e-3, "policy/entropy_coef": 0.015, "policy/epochs": 2,
    }  # fmt: skip
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.usefixtures("plain_steps")
def test_advantages_of_several_signals_are_weighted(monkeypatch: pytest.MonkeyPatch):
    """At half of the run, the second weight is half of 0.5."""
    bonus = RewardStream(name="bonus", weight=0.5, gamma=0.5, schedule="linear", end=0.0)
    algorithm, collector = make((EXTRINSIC, bonus), normalize_advantage=False, normalize_value=True)
    rollout = collect_rollout(algorithm, collector)
    signal = torch.rand(rollout.reward.shape, generator=torch.Generator().manual_seed(0))
    spies = Spies(algorithm, monkeypatch)
    algorithm.update(replace(rollout, streams={"bonus": signal}), 0.5)
    ((_, _, advantage, valid), _), = spies.losses  # fmt: skip
    raw = spies.raw_advantages(0)
    assert raw.shape[-1] == 2
    torch.testing.assert_close(advantage[valid], (raw[..., 0] + 0.25 * raw[..., 1])[valid])
    assert not advantage[~valid].any()


def test_passes_end_after_the_one_that_exceeds_the_target_kl(monkeypatch: pytest.MonkeyPatch):
    """The divergence is that of a pass's last part. A divergence equal to the target does not end them."""
    found = iter([9.0, 0.1, 9.0, 0.2, 9.0, 0.3, 9.0, 9.0])
    original = mappo_original.clipped_policy_loss

    def with_kl(*arguments: Any, **options: Any) -> Any:
        loss, _, clip_fraction = original(*arguments, **options)
        return loss, torch.tensor(next(found)), clip_fraction

    monkeypatch.setattr(mappo_original, "clipped_policy_loss", with_kl)
    target = torch.tensor(0.2).item()
    algorithm, collector = make(epochs=4, num_minibatches=2, target_kl=target)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert metrics["policy/epochs"] == 3
    assert metrics["policy/kl"] == pytest.approx((3 * 9.0 + 0.6) / 6)


def test_values_critics_and_cloning_are_those_of_ppo():
    algorithm, collector = make(critic="joint")
    fresh, _ = make(critic="joint", seed=5)
    assert algorithm.start_value_estimation(3) == {}
    timestep = replace(collector.env.reset(), state={TIME_LEFT: torch.ones(4, 1)})
    value, hidden_state = algorithm.estimate_value(timestep, {})
    assert hidden_state == {}
    assert value.equal(algorithm.estimate_value(timestep, {})[0])
    assert not fresh.estimate_value(timestep, {})[0].equal(value)
    fresh.load_critic(algorithm.state_dict())
    assert fresh.estimate_value(timestep, {})[0].equal(value)
    assert set(algorithm.cloning_optimizer().optimizer.flat) == {"policy"}
