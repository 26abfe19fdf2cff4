"""MAPPO as in the original 2020 trainer: the order of its gradient steps, and the settings of its presets."""

import pytest
import torch

from algo_worlds import Everything, Probe, env_of, observe_age, observe_x
from coterie.algos import mappo_original
from coterie.algos.mappo_original import MAPPOOriginal, MAPPOOriginalConfig
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves
from learners import collect_rollout, learner_of

PLAIN = {"normalize_value": False, "normalize_advantage": False, "value_clip_eps": None, "huber_delta": None}


def reward_choice(x, age, discrete, continuous):
    return discrete.float()


def episodes(length=4):
    """Returns a world with observations of the age, a reward for choice 1, and termination after `length` steps."""
    return Probe(observe_age, reward_choice, length=length)


def learner(world, num_envs=16, **settings):
    quick = {
        "hidden_sizes": (16, 16),
        "rollout_length": 10,
        "sequence_length": 5,
        "epochs": 1,
        "critic_time_chunks": 2,
        "gamma": 0.9,
        "num_minibatches": 1,
        "normalize_obs": False,
    }
    return learner_of(MAPPOOriginal, MAPPOOriginalConfig(**PLAIN | quick | settings), env_of(world, num_envs))


def weights(algorithm):
    return [x.clone() for x in tree_leaves([algorithm.policy.actor.state_dict(), algorithm.critic.state_dict()])]


def steps(algorithm):
    """Returns the gradient steps of policy and critic."""
    return [int(algorithm.state_dict()["optimizer"][name]["step"]) for name in ("policy", "value")]


def record_calls(monkeypatch, owner, name):
    """Records the arguments and results of later calls."""
    calls, original = [], getattr(owner, name)

    def spy(*args, **kwargs):
        result = original(*args, **kwargs)
        calls.append((args, result))
        return result

    monkeypatch.setattr(owner, name, spy)
    return calls


def critic_calls(algorithm):
    """Records observations and values of later calls of the critic that have a gradient."""
    calls = []

    def record(module, args, out):
        if out[0].requires_grad:
            calls.append((args[0]["agent"], out[0].detach().clone()))

    algorithm.critic.register_forward_hook(record)
    return calls


# -------------------------------------------------------------------------------------------------------- time chunks


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(
    ("chunks", "ages"), [(1, [[0, 1, 2, 3, 4]]), (2, [[2, 3, 4], [0, 1]]), (99, [[4], [3], [2], [1], [0]])]
)
def test_each_minibatch_trains_the_critic_backward_in_time_and_then_the_policy_once(chunks, ages):
    algorithm, collector = learner(episodes(), critic_time_chunks=chunks, num_minibatches=3, batch_size=7)
    calls = critic_calls(algorithm)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert [obs[:, 0, 0, 0].tolist() for obs, _ in calls] == ages * 3
    assert {obs.shape[1] for obs, _ in calls} == {7}
    assert steps(algorithm) == [3, 3 * len(ages)]


def test_log_probabilities_of_final_timesteps_do_not_change_weights():
    """Those of other timesteps, the control, do."""
    found = []
    for place, shift in (("final", 0.0), ("final", 1e6), ("acted", 0.1)):
        algorithm, collector = learner(episodes())
        rollout = collect_rollout(algorithm, collector)
        final = ~rollout.acted[:-1]
        assert final.sum() == 16 * 2
        rollout.extras["log_prob"][final if place == "final" else ~final] -= shift
        algorithm.update(rollout, 0.0)
        found.append(torch.cat([x.flatten() for x in weights(algorithm)]))
    unchanged, final, acted = found
    assert torch.equal(unchanged, final)
    assert not torch.equal(unchanged, acted)


def test_advantages_are_targets_minus_values_before_each_step(monkeypatch):
    algorithm, collector = learner(episodes(), critic_time_chunks=5, lr=0.01)
    losses, calls = record_calls(monkeypatch, mappo_original, "clipped_policy_loss"), critic_calls(algorithm)
    targets = record_calls(monkeypatch, algorithm, "targets")
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    ((_, _, advantage, valid), _), = losses  # fmt: skip
    ((_, (batch, *_)),) = targets
    before = torch.cat([value for _, value in calls[::-1]])
    assert torch.equal(advantage, torch.where(valid, (batch.target - before)[..., 0], 0.0))
    with torch.no_grad():
        after, _ = algorithm.critic(batch.obs, None, None, {})
    # The controls: values after the steps, and those before all steps, differ.
    assert not torch.allclose(before, after, atol=1e-3)
    assert not torch.allclose(before[:-1], batch.value[:-1], atol=1e-4)
    assert torch.equal(before[-1], batch.value[-1])


@pytest.mark.usefixtures("plain_steps")
def test_targets_are_recomputed_for_each_minibatch_with_the_present_critic(monkeypatch):
    algorithm, collector = learner(episodes(), critic_time_chunks=1, num_minibatches=2, epochs=2, lr=0.01)
    targets, calls = record_calls(monkeypatch, algorithm, "targets"), critic_calls(algorithm)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert len(calls) == len(targets) == 4
    first, *_, last = [found.batch for _, found in targets]
    for (_, value), (_, found) in zip(calls, targets, strict=True):
        assert torch.equal(found.batch.value, value)
    assert (first.target[:3].mean() - last.target[:3].mean()).abs() > 0.01


@pytest.mark.usefixtures("plain_steps")
def test_minibatches_contain_whole_episodes():
    algorithm, collector = learner(episodes(), num_minibatches=25, batch_size=10)
    calls = critic_calls(algorithm)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert len(calls) == 2 * 25
    for (late, _), (early, _) in zip(calls[::2], calls[1::2], strict=True):
        ages = torch.cat([early, late])[..., 0, 0]
        assert torch.equal(ages, torch.arange(5.0).unsqueeze(-1).expand(5, 10))


# ---------------------------------------------------------------------------------------------------------- invariants


def test_the_ratio_is_one_in_the_first_minibatch():
    algorithm, collector = learner(Everything("hybrid"), critic="joint")
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/clip_fraction"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rnn": "gru"}, r"algo.rnn: gru is not supported with .* \(algo.critic_time_chunks=2\)"),
        ({"batch_size": 33}, "algo.batch_size: 33 is more than the 32 sequences of a rollout"),
        ({"num_minibatches": 33}, "algo.num_minibatches: 33 is more than the 32 sequences of a rollout"),
        ({"sequence_length": 4}, "algo.sequence_length: 4 does not divide the rollout length of 10"),
    ],
)
def test_incompatible_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        learner(episodes(), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_probe_the_action_depends_on_the_observation():
    """The observation names the rewarded choice."""
    reward = lambda x, age, d, c: (d[:, :1] == x.view(-1, 1)).float() * 2 - 1  # noqa: E731
    world = Probe(observe_x, reward, length=4)
    algorithm, collector = learner(
        world, 32, num_minibatches=8, batch_size=20, lr=0.01, critic_time_chunks=2, entropy_coef=0.05, entropy_decay=0.9
    )
    for _ in range(15):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    rollout = collect_rollout(algorithm, collector)
    earned = rollout.reward[rollout.acted[:-1]].mean().item()
    assert earned > 0.9


# ------------------------------------------------------------------------------------------------------------- presets

ORIGINAL = {
    "critic": "joint", "share_params": "none", "common_reward": True, "rnn": "none", "normalize_obs": False,
    "rollout_length": 4 * 51, "sequence_length": 51, "epochs": 1, "num_minibatches": 25, "batch_size": 10,
    "critic_time_chunks": 10,
    "hidden_sizes": (256, 256), "critic_hidden_sizes": (256, 512, 512), "activation": "relu", "layer_norm": False,
    "lr": 1e-4, "critic_lr": None, "lr_schedule": "constant", "weight_decay": 1e-6, "adam_eps": 1e-8,
    "max_grad_norm": 0.5, "gamma": 0.998, "gae_lambda": 0.95, "clip_eps": 0.1, "target_kl": None,
    "entropy_coef": 0.1, "entropy_decay": 0.9, "entropy_end": 0.01, "value_coef": 2.0, **PLAIN,
}  # fmt: skip


def test_the_preset_has_the_settings_of_the_original_trainer():
    config = resolve(["algo=mappo/original"]).config
    found = config.algo.params
    assert {key: getattr(found, key) for key in ORIGINAL} == ORIGINAL
    assert (config.num_envs, config.env.name) == (16, "particle/simple_spread")
    env = config.env.params
    assert (env.variant, env.episode_limit, env.terminate_at_limit) == ("openai", 50, True)
    assert config.num_envs * found.rollout_length / 51 == 64
