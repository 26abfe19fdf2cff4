"""Updates of PPO, MAPPO and MA-POCA in short: losses, learning rates, masks, hidden states, statistics, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything, Probe, env_of, observe_age, unit_reward
from coterie.algos import poca, ppo
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.clipped_learner import joint_mask
from coterie.algos.reward_streams import RewardStream
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves
from coterie.kernels import switch
from learners import collect_rollout, poca_learner, ppo_learner, targets_of
from policy_cases import CPU

LEARNERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ippo": (ppo_learner, ppo, {}),
    "mappo": (ppo_learner, ppo, {"critic": "joint_state"}),
    "poca": (poca_learner, poca, {"embedding_size": 8}),
}
EACH = pytest.mark.parametrize("name", LEARNERS)


def make(name: str, world: Any = None, num_envs: int = 4, **settings: Any) -> tuple[Any, Any]:
    """Returns a learner and its collector. The rewards of IPPO are the agents' own, whose returns end with them."""
    build, _, defaults = LEARNERS[name]
    small = {"hidden_sizes": (8,), "rnn_size": 4, "num_minibatches": 1, "epochs": 1}
    return build(world or Everything(dead=0.0, groups=name != "ippo"), num_envs, **small | defaults | settings)


def spy_on_losses(monkeypatch: pytest.MonkeyPatch, name: str, change: Any = None) -> list[tuple[tuple, dict, Any]]:
    """Records arguments, options and terms of each loss; `change` replaces the terms."""
    module, found = LEARNERS[name][1], []
    of_loss = f"{module.__name__.rpartition('.')[2]}_loss"
    loss = getattr(module, of_loss)

    def spy(*arguments: Any, **options: Any) -> Any:
        terms = loss(*arguments, **options)
        terms = terms if change is None else change(len(found), terms)
        found.append((arguments, options, terms))
        return terms

    monkeypatch.setattr(module, of_loss, spy)
    return found


def spy_on_steps(algorithm: Any) -> list[tuple[float, dict[str, float]]]:
    """Records loss and learning rates of each gradient step."""
    step, found = algorithm.optimizer.step, []

    def spy(loss: torch.Tensor, lr: dict[str, float]) -> torch.Tensor:
        found.append((loss.item(), dict(lr)))
        return step(loss, lr)

    algorithm.optimizer.step = spy
    return found


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(
    ("name", "critic_lr", "value_lr"),
    [("ippo", 4e-3, 2.2e-3), ("mappo", None, 0.55e-3), ("poca", 4e-3, 2.2e-3), ("poca", None, 0.55e-3)],
)
def test_steps_descend_the_weighted_terms_at_scheduled_rates(
    name: str, critic_lr: float | None, value_lr: float, monkeypatch: pytest.MonkeyPatch
):
    """Half of the run is done: rates are 0.55 of the initial ones, the entropy bonus 0.75, a clip range of 0.2 0.15."""
    settings: dict[str, Any] = (
        {"baseline_coef": 0.3, "clip_schedule": "linear", "clip_end": 0.5} if name == "poca" else {}
    )
    algorithm, collector = make(
        name, lr=1e-3, critic_lr=critic_lr, lr_schedule="linear", lr_end=0.1, entropy_coef=0.02,
        entropy_schedule="linear", entropy_end=0.5, value_coef=0.7, epochs=2, num_minibatches=3, **settings,
    )  # fmt: skip
    losses, steps = spy_on_losses(monkeypatch, name), spy_on_steps(algorithm)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.5)
    assert len(losses) == len(steps) == 6
    for (_, options, terms), (loss, lr) in zip(losses, steps, strict=True):
        value = terms.value + 0.3 * terms.baseline if name == "poca" else terms.value
        assert loss == pytest.approx((terms.policy - 0.015 * terms.entropy + 0.7 * value).item(), rel=1e-5)
        assert {module: lr[module] for module in ("policy", "value")} == pytest.approx(
            {"policy": 0.55e-3, "value": value_lr}
        )
        clip_eps = 0.15 if name == "poca" else 0.2
        assert options.pop("reduction") is None  # there is one rank
        assert options.pop("kernels") == switch.on
        assert options == pytest.approx({"clip_eps": clip_eps, "value_clip_eps": 0.2, "huber_delta": 10.0})
    expected = {"policy/lr": 0.55e-3, "policy/entropy_coef": 0.015}
    expected |= {"policy/clip_eps": 0.15} if name == "poca" else {"policy/epochs": 2}
    names = {"policy": "loss/policy", "value": "loss/value", "entropy": "policy/entropy", "kl": "policy/kl"}
    names |= {"clip_fraction": "policy/clip_fraction"} | ({"baseline": "loss/baseline"} if name == "poca" else {})
    for term, metric in names.items():
        expected[metric] = sum(getattr(terms, term).item() for _, _, terms in losses) / 6
    others = {"policy/grad_norm", "value/grad_norm", "value/explained_variance", "policy/advantage", "value/estimate"}
    others |= {"value/baseline", "value/group_return"} if name == "poca" else set()
    assert set(metrics) == {*expected, *others}
    assert {metric: metrics[metric] for metric in expected} == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert metrics["policy/grad_norm"] > 0
    assert metrics["value/grad_norm"] > 0


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(("name", "rnn"), [("ippo", "none"), ("mappo", "gru"), ("poca", "none"), ("poca", "gru")])
def test_values_in_the_first_epoch_are_those_before_the_update(name: str, rnn: str, monkeypatch: pytest.MonkeyPatch):
    """In sequences shorter than the rollout as well, and with the hidden state after the rollout before."""
    sequences = {"sequence_length": 4} if rnn == "gru" else {}
    algorithm, collector = make(name, rnn=rnn, num_minibatches=2, normalize_obs=True, **sequences)
    losses = spy_on_losses(monkeypatch, name)
    for _ in range(2):
        losses.clear()
        algorithm.optimizer.step = lambda loss, lr: torch.zeros(2)
        rollout = collect_rollout(algorithm, collector)
        algorithm.update(rollout, 0.0)
        entries, samples = 0, 0
        for (log_prob, _, value, batch), _, _ in losses:
            same = (value - batch.value).abs().amax(-1)
            valid = batch.valid if name == "poca" else batch.critic_valid
            ratio = (log_prob - batch.log_prob).abs()[batch.valid]
            assert same[..., -valid.shape[-1] :][valid].max() < 1e-6
            assert ratio.max() < 1e-5
            entries, samples = entries + int(batch.valid.sum()), samples + valid[..., 0].numel()
        valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
        assert entries == valid.sum()
        assert samples == (rollout.acted[:-1].sum() if rnn == "none" else valid[..., 0].numel())
        state = algorithm.state_dict()["hidden_state"]
        assert set(state) == ({"h"} if rnn == "gru" else set())
        assert rnn == "none" or state["h"].abs().sum() > 0


@pytest.mark.parametrize("name", ["ippo", "poca"])
def test_masks_are_left_out_where_all_entries_count(name: str):
    """Final timesteps are removed from timesteps and masked in sequences."""
    for rnn, world in (("none", Probe(observe_age, unit_reward, length=3)), ("none", None), ("gru", None)):
        algorithm, collector = make(name, world, rnn=rnn)
        rollout = collect_rollout(algorithm, collector)
        batch = targets_of(algorithm, rollout).batch
        masked = world is None or rnn == "gru"
        valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
        found = [batch.valid] if name == "poca" else [batch.valid, batch.critic_valid]
        assert all((mask is not None) == masked for mask in found)
        assert not masked or all(torch.equal(mask, valid) for mask in found)
        if name == "poca":
            assert (batch.present is not None) == (world is None)
        assert (batch.first is None) == (batch.critic_first is None) == (rnn == "none")
        assert torch.equal(batch.log_prob, rollout.extras["log_prob"])
        assert all(leaf.shape[0] == 12 for leaf in tree_leaves(batch) if leaf is not None)


@EACH
def test_reported_means_of_a_rollout_are_those_over_its_valid_entries(name: str):
    """A critic of the team counts timesteps at which any agent acts. Means are those of denormalized values."""
    algorithm, collector = make(name, normalize_value=True, normalize_advantage=True, gamma=0.9)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    mean, std = (x.clone() for x in algorithm.value_scale())
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        batch, _, found, _ = targets_of(algorithm, rollout)
    valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    of_team = valid.any(-1, keepdim=True)
    value = (batch.value * std + mean)[..., 0]
    later_mean, later_std = algorithm.value_scale()
    target = (batch.target * later_std + later_mean)[..., 0]  # scaled by the statistics that include them
    if name == "poca":
        value, baseline = value[..., :1], value[..., 1:]
        valid_of_critic, advantage = of_team, target - baseline
        others = {"value/baseline": baseline[valid].mean(), "value/group_return": target[of_team].mean()}
    else:
        valid_of_critic, advantage = valid if name == "ippo" else of_team.expand_as(valid), target - value
        others = {}
    residual, total = (target - value)[valid_of_critic].double(), target[valid_of_critic].double()
    expected = others | {
        "value/estimate": value[valid_of_critic].mean(),
        "value/explained_variance": 1 - residual.var(correction=0) / total.var(correction=0),
        "policy/advantage": advantage[valid].mean(),
    }
    assert set(found) == set(expected)
    for metric, number in expected.items():
        assert found[metric].item() == pytest.approx(number.item(), rel=1e-4), metric
    assert mean.abs() > 0.1


@EACH
def test_observation_statistics_count_valid_entries_after_the_update(name: str):
    algorithm, collector = make(name, normalize_obs=True)
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    moments = algorithm.policy.obs_normalizer.state_dict()
    assert [x["count"].item() for x in moments.values()] == [valid[..., :2].sum().item(), valid[..., 2:].sum().item()]
    seen = rollout.obs["guard"][:-1][valid[..., :2]]
    torch.testing.assert_close(moments["guard"]["mean"].float(), seen.mean(0))
    algorithm, collector = make(name)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert algorithm.policy.obs_normalizer.state_dict() == {}


@pytest.mark.parametrize("name", ["ippo", "poca"])
def test_a_cloning_optimizer_trains_the_policy_alone(name: str):
    algorithm, collector = make(name)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    before = [p.clone() for p in algorithm.critic.parameters()]
    own = {key: value.clone() for key, value in algorithm.optimizer.state_dict()["policy"].items()}
    cloning = algorithm.cloning_optimizer()
    assert set(cloning.optimizer.flat) == {"policy"}
    weights = [p.clone() for p in algorithm.policy.actor.parameters()]
    parameters = [*algorithm.policy.actor.parameters(), *algorithm.critic.parameters()]
    cloning.step(sum(p.square().sum() for p in parameters), 1e-2)
    assert any((p != q).any() for p, q in zip(weights, algorithm.policy.actor.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(before, algorithm.critic.parameters(), strict=True))
    assert all(torch.equal(own[key], value) for key, value in algorithm.optimizer.state_dict()["policy"].items())


@pytest.mark.parametrize("name", ["ippo", "poca"])
def test_impossible_lengths_and_minibatches_are_refused(name: str):
    with pytest.raises(UserError, match=r"algo.sequence_length: 5 does not divide the rollout length of 12"):
        make(name, rnn="gru", sequence_length=5)
    make(name, sequence_length=5)  # has no effect without recurrence
    with pytest.raises(UserError, match=r"algo.num_minibatches: 49 is more than the 48 timesteps"):
        make(name, num_minibatches=49)
    with pytest.raises(UserError, match=r"algo.num_minibatches: 13 is more than the 12 sequences"):
        make(name, rnn="gru", sequence_length=4, num_minibatches=13)
    with pytest.raises(UserError, match="cannot share parameters"):
        make(name, share_params="all")


@pytest.mark.parametrize("name", ["ippo", "poca"])
def test_each_signal_has_moments_and_values_of_its_own(name: str):
    algorithm, _ = make(name)
    (team,) = env_of(Everything(), 4).spec.default_teams()
    streams = (RewardStream(name="extrinsic"), RewardStream(name="bonus"))
    context = AlgorithmContext(team=team, num_envs=4, seed=0, device=CPU, rollout_length=6, reward_streams=streams)
    several = type(algorithm)(algorithm.config, context)
    assert (several.rollout_length, algorithm.rollout_length) == (6, 12)
    assert (several.value_moments["mean"].shape, algorithm.value_moments["mean"].shape) == ((2,), (1,))
    assert algorithm.reward_streams is None
    assert several.reward_streams is not None
    assert len(several.reward_streams) == 2


def test_both_masks_leave_entries_out_and_none_leaves_out_nothing():
    one, other = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert joint_mask(one, other).tolist() == [True, False, False, False]
    assert joint_mask(None, other) is other


@EACH
def test_graphs_take_the_steps_of_every_epoch(name: str):
    algorithm, collector = make(name, epochs=3)
    taken, rollout = [], collect_rollout(algorithm, collector)

    class Graphs:
        def load(self, *arguments: Any) -> Any:
            self.loaded = arguments
            return self.loaded

        def __call__(self, loaded: Any, chosen: torch.Tensor, size: int) -> Any:
            assert loaded is self.loaded
            batch, hidden_states, coefficients = loaded
            taken.append((sorted(chosen.tolist()), size))
            return algorithm._step(batch, hidden_states, coefficients)

    algorithm._graphs = Graphs()
    algorithm.update(rollout, 0.0)
    acted = rollout.acted[:-1].flatten().nonzero().squeeze(-1).tolist()
    assert taken == [(acted, rollout.acted[:-1].numel())] * 3


# ------------------------------------------------------------------------------------------------------------ PPO alone


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_returns_end_with_the_agent_or_with_the_team(name: str):
    """With lambda 0 and V = 1 they are the reward + 0.9, without the 0.9 where the agent, or all of them, have died."""
    algorithm, collector = make(name, gamma=0.9, gae_lambda=0.0, normalize_value=False)
    rollout = collect_rollout(algorithm, collector)
    algorithm.critic = lambda obs, state, first, hidden_state: (torch.ones(13, 4, 3, 1), hidden_state)
    batch = targets_of(algorithm, rollout).batch
    of_team = rollout.episode_terminated[..., None].expand(12, 4, 3)
    expected = rollout.reward + rollout.group_reward + 0.9 * ~(rollout.terminated if name == "ippo" else of_team)
    torch.testing.assert_close(batch.target[..., 0][batch.critic_valid], expected[batch.critic_valid])
    assert (rollout.terminated & ~of_team).any()
    assert of_team.any()
    assert rollout.episode_truncated.any()


def test_the_entropy_bonus_decays_with_each_update_and_a_restored_learner_continues():
    """0.02, 0.01, 0.005, and then 0.2 of the initial weight."""
    algorithm, collector = make("ippo", entropy_coef=0.02, entropy_decay=0.5, entropy_end=0.2)
    rollout = collect_rollout(algorithm, collector)
    found = [algorithm.update(rollout, 0.5)["policy/entropy_coef"] for _ in range(4)]
    assert found == pytest.approx([0.02, 0.01, 0.005, 0.004])
    other, _ = make("ippo", entropy_coef=0.02, entropy_decay=0.5, entropy_end=0.2)
    other.update(rollout, 0.5)
    state = other.state_dict()
    algorithm.load_state_dict(state)
    assert algorithm.update(rollout, 0.5)["policy/entropy_coef"] == pytest.approx(0.01)


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(("last", "epochs"), [(0.2, 5), (0.201, 2)])
def test_an_update_stops_after_the_epoch_whose_last_divergence_is_above_the_target(
    last: float, epochs: int, monkeypatch: pytest.MonkeyPatch
):
    """Two minibatches per epoch: that of the fourth is `last`, of the third 0.9."""
    sequence = [0.1, 0.1, 0.9, last, *[0.1] * 6]
    losses = spy_on_losses(monkeypatch, "ippo", lambda i, terms: terms._replace(kl=torch.tensor(sequence[i])))
    algorithm, collector = make("ippo", epochs=5, num_minibatches=2, target_kl=0.2000001)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert metrics["policy/epochs"] == epochs
    assert len(losses) == 2 * epochs


# -------------------------------------------------------------------------------------------------------- MA-POCA alone


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [({"num_minibatches": 3}, [4, 4, 4, 1]), ({"num_minibatches": 5}, [3, 3, 3, 3, 1]), ({}, [12, 1]),
     ({"rnn": "gru", "sequence_length": 6}, [6, 6, 1])],
)  # fmt: skip
def test_the_critic_reads_no_more_timesteps_at_once_than_in_training(settings: dict[str, Any], lengths: list[int]):
    """Twelve timesteps in parts of a minibatch or a sequence, and the one after the rollout without actions."""
    algorithm, collector = make("poca", Everything(), **settings)
    rollout, forward, found = collect_rollout(algorithm, collector), algorithm.critic.forward, []

    def spy(obs: Any, state: Any, action: Any, *arguments: Any, **options: Any) -> Any:
        assert len(state) == len(obs["guard"])
        found.append((len(state), action is not None))
        return forward(obs, state, action, *arguments, **options)

    algorithm.critic.forward = spy
    targets_of(algorithm, rollout)
    assert found == [*((length, True) for length in lengths[:-1]), (1, False)]
