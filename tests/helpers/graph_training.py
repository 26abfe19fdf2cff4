"""Training with and without CUDA graphs, on a GPU or a stand-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.graphed import GraphedStep
from coterie.algos.reward_streams import EXTRINSIC, RewardStream
from coterie.core.tree import tree_leaves, tree_map
from coterie.envs.make import make
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from learners import collect_rollout
from preset_learners import preset_learner
from two_teams import TwoSides

LEARNERS = [
    ("ippo", "none"),
    ("mappo", "gru"),
    ("ppo", "lstm"),
    ("maa2c", "none"),
    ("ippo", "gru"),
    ("poca", "none"),
    ("poca", "gru"),
]
"""Names of algorithms and their recurrent layers."""
HARD, SOFT = {"target_update_interval": 4}, {"target_update_interval": "null"}
LAST = {"obs_last_action": "true"}
SCALED_OBS = {"normalize_obs": "true"}
SCALED = {"reward_scale": "standardize"} | SCALED_OBS
PRIORITIZED = {"priority_alpha": 0.6}
OFF_POLICY: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "double DQN": ("ddqn", "none", "multi_discrete", PRIORITIZED | {"n_step": 3} | HARD),
    "independent Q": ("iql", "none", "discrete", SCALED | {"huber_delta": 0.5} | SOFT),
    "VDN": ("vdn", "lstm", "discrete", PRIORITIZED | {"td_lambda": 0.6, "tau": 1.0} | SOFT),
    "QMIX": ("qmix", "gru", "discrete", PRIORITIZED | SCALED | HARD),
    "QMIX without recurrence": ("qmix", "none", "discrete", SOFT),
    "QMIX with burn-in": ("qmix", "gru", "discrete", {"burn_in": 4, "sequence_start": "rollout"} | SOFT),
    "QPLEX": ("qplex", "gru", "discrete", SOFT),
    "QFIX": ("qfix", "gru", "discrete", SOFT),
    "weighted QMIX": ("wqmix", "gru", "discrete", PRIORITIZED | {"weighting": "central"} | HARD),
    "DDPG": ("ddpg", "none", "continuous", PRIORITIZED | {"normalize_obs": "true"}),
    "DDPG, choices": ("ddpg", "gru", "discrete", HARD),
    "MADDPG": ("maddpg", "gru", "hybrid", PRIORITIZED | {"burn_in": 4}),
    "MADDPG, current actions": ("maddpg", "none", "discrete", {"other_actions": "current"}),
    "TD3": ("td3", "none", "continuous", PRIORITIZED),
    "MATD3": ("matd3", "gru", "continuous", HARD),
    "SAC": ("sac", "none", "continuous", PRIORITIZED | SCALED),
    "SAC, choices": ("sac", "gru", "multi_discrete", HARD),
    "MASAC": ("masac", "gru", "hybrid", PRIORITIZED | {"burn_in": 4}),
    "MASAC, fixed temperature": ("masac", "none", "discrete", {"learn_temperature": "false", "reward_scale": "rms"}),
}
"""Off-policy learners: name, recurrent layer, kind of actions, and settings."""


COMA: dict[str, tuple[str, str, dict[str, Any]]] = {
    "hard updates": ("none", "discrete", HARD | {"critic_time_chunks": 3} | LAST),
    "soft updates, components": ("gru", "multi_discrete", SOFT | {"sequence_length": 4, "num_minibatches": 5}),
    "batches of a size": ("lstm", "discrete", HARD | SCALED_OBS | {"batch_size": 3, "critic_last_action": "true"}),
    "no exploration": ("none", "discrete", SOFT | {"epsilon_start": 0.0, "epsilon_end": 0.0}),
    "XuanCe's": (
        *("none", "discrete"),
        HARD
        | {"updated_advantages": "true", "critic_loss_mask": "agent", "max_grad_value": 1e-3, "critic": "own"}
        | {"batch_size": 3},
    ),
}
"""COMA: recurrent layer, kind of actions, and settings."""


STREAMS = (
    EXTRINSIC,
    RewardStream(name="curiosity", weight=0.5, gamma=0.9, schedule="linear", end=0.1),
    RewardStream(name="novelty", weight=0.3, episodic=False),
)
"""Reward signals: one whose weight changes during the run, and one whose returns continue over episode ends."""
NORMALIZED = {"normalize_value": "true", "normalize_advantage": "true"}
RAW = {"normalize_value": "false", "normalize_advantage": "false"}
WHOLE = {"sequence_length": "null", "num_minibatches": 1}
PARTS = {"sequence_length": 4, "num_minibatches": 3}
ENDLESS = "particle/simple_spread", {"episode_limit": None}
MORTAL = Everything(dead=0.0)
ON_POLICY: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "IPPO": ("ippo", "none", MORTAL, SCALED_OBS),
    "IPPO, several signals": ("ippo", "none", MORTAL, {"streams": STREAMS}),
    "IPPO, recurrent, raw": ("ippo", "gru", MORTAL, RAW | PARTS),
    "IPPO, recurrent, several signals": ("ippo", "lstm", MORTAL, PARTS | SCALED_OBS | {"streams": STREAMS}),
    "MAPPO": ("mappo", "none", MORTAL, {}),
    "MAPPO, raw": ("mappo", "none", MORTAL, RAW),
    "MAPPO, recurrent": ("mappo", "gru", MORTAL, PARTS),
    "MAPPO, recurrent, several signals": ("mappo", "gru", MORTAL, PARTS | RAW | {"streams": STREAMS}),
    "MAPPO, one episode": ("mappo", "none", ENDLESS, {"num_minibatches": 3}),
    "MAPPO, recurrent, one episode": ("mappo", "gru", ENDLESS, PARTS),
    "MA-POCA": ("poca", "none", MORTAL, SCALED_OBS | {"num_minibatches": 3}),
    "MA-POCA, several signals": ("poca", "none", MORTAL, {"streams": STREAMS}),
    "MA-POCA, recurrent": ("poca", "gru", MORTAL, PARTS),
    "MA-POCA, recurrent, several signals": ("poca", "lstm", MORTAL, PARTS | RAW | {"streams": STREAMS}),
}
"""Learners with a clipped policy gradient: name, recurrent layer, world, and settings."""


ORIGINAL: dict[str, tuple[str, dict[str, Any], int]] = {
    "parts": ("discrete", PARTS | SCALED_OBS | NORMALIZED | {"critic_time_chunks": 2}, 1),
    "parts of two sizes": ("hybrid", {"sequence_length": 4, "num_minibatches": 5, "critic_time_chunks": 4}, 2),
    "batches of a size, several signals": ("discrete", PARTS | {"batch_size": 5, "streams": STREAMS} | NORMALIZED, 1),
    "whole rollouts, raw": ("continuous", RAW | WHOLE | {"huber_delta": "null"}, 1),
    "raw, several signals": ("multi_discrete", RAW | PARTS | {"streams": STREAMS}, 1),
    "own critics": ("discrete", PARTS | {"critic": "own", "critic_lr": 0.01, "share_params": "none"}, 1),
}
"""`mappo/original`: kind of actions, settings, and the number of captures, one for each size of minibatches."""


class Training:
    """A learner of two roles with masks, deaths and group rewards, or of another world, and its rollouts."""

    def __init__(self, name, rnn, device, kind="discrete", *, world=None, streams=(), cuda_graphs="off", **settings):
        if isinstance(world, tuple):
            env = make(*world, num_envs=4, seed=0, device=torch.device(device))
        else:
            env = env_of(world or Everything(kind, dead=0.0), 4, device=device)
        on = cuda_graphs == "on"
        self.learner = preset_learner(name, env, rnn, streams=streams, cuda_graphs=on, **settings)
        policies = {env.spec.default_teams()[0].name: self.learner.policy}
        self._collector = Collector(env, policies, seed=0, cuda_graphs=on)
        self._signals = [stream.name for stream in streams[1:]]
        self._draw = torch.Generator(device).manual_seed(5)

    def collect(self):
        rollout = collect_rollout(self.learner, self._collector)
        shape, options = rollout.reward.shape, {"generator": self._draw, "device": rollout.reward.device}
        return replace(rollout, streams={name: torch.rand(shape, **options) for name in self._signals})

    @property
    def rollout_captures(self):
        """Number of captures of rollouts since the policy last explored in another way."""
        return self._collector._collect.captures

    def update(self, progress):
        return self.learner.update(self.collect(), progress)

    def counts(self):
        """Returns the numbers of the learner's state, such as steps that target networks have counted."""
        return [x for x in tree_leaves(self.learner.state_dict()) if not isinstance(x, torch.Tensor)]

    def tensors(self):
        return copied_tensors(self.learner)


def copied(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def copied_tensors(learner):
    """Returns the tensors of the learner's state, copied to the CPU."""
    return [x.cpu().clone() for x in tree_leaves(learner.state_dict()) if isinstance(x, torch.Tensor)]


def trained(name, rnn, setting, device):
    """Returns the metrics of two updates with schedules and minibatches of several sizes, and the training."""
    training = Training(name, rnn, device, cuda_graphs=setting)
    config = training.learner.config
    schedules = {"lr_schedule": "linear", "lr_end": 0.1, "entropy_schedule": "linear", "entropy_end": 0.5}
    if "entropy_decay" in type(config).model_fields:
        schedules["entropy_decay"] = None
    training.learner.config = config.model_copy(update=schedules | {"num_minibatches": 3})
    return [training.update(k / 2) for k in range(2)], training


def assert_updates_are_those_without_graphs(name, rnn, device, *, rtol, atol):
    """Compares metrics and states of two updates. With graphs, there is one capture."""
    expected, eager = trained(name, rnn, "off", device)
    found, training = trained(name, rnn, "on", device)
    assert training.learner._graphs.graphed.captures == training.learner._compute_samples.captures == 1
    assert_same(expected, eager, found, training, rtol=rtol, atol=atol)


def on_policy(case, setting, device):
    """Returns the training of a case, with schedules."""
    name, rnn, world, settings = ON_POLICY[case]
    schedules = {"lr_schedule": "linear", "lr_end": 0.1, "entropy_schedule": "linear", "entropy_end": 0.5}
    if name != "poca":
        schedules["entropy_decay"] = "null"
    return Training(name, rnn, device, world=world, cuda_graphs=setting, **schedules | settings)


def assert_targets_are_those_without_graphs(case, device, *, rtol, atol):
    """Compares samples, metrics and value states of two rollouts, between which all weights and moments change.

    There is one capture. The learner without graphs has all the updates.
    """
    eager, training = (on_policy(case, setting, device) for setting in ("off", "on"))
    for k in range(2):
        rollout = eager.collect()
        training.learner.load_state_dict(tree_map(copied, eager.learner.state_dict()))
        found = []
        for learner in (eager.learner, training.learner):
            state = tree_map(copied, learner.state_dict())
            samples = tree_map(copied, learner._samples(rollout, k / 2))
            found.append((samples, copied_tensors(learner)))
            learner.load_state_dict(state)
        for x, y in zip(*(tree_leaves(one) for one in found), strict=True):
            torch.testing.assert_close(x, y, rtol=rtol, atol=atol)
        eager.learner.update(rollout, k / 2)
    assert training.learner._compute_samples.captures == 1


def assert_training_is_that_without_graphs(case, device, *, rtol, atol):
    """Compares metrics and states of two updates. With graphs, there is one capture of targets and one of steps."""
    eager, training = (on_policy(case, setting, device) for setting in ("off", "on"))
    expected, found = ([x.update(k / 2) for k in range(2)] for x in (eager, training))
    assert training.learner._compute_samples.captures == training.learner._graphs.graphed.captures == 1
    assert_same(expected, found=found, eager=eager, training=training, rtol=rtol, atol=atol)


def original(case, setting, device):
    """Returns the training of a case of `mappo/original`, with schedules."""
    kind, settings, _ = ORIGINAL[case]
    schedules = {"lr_schedule": "linear", "lr_end": 0.1, "entropy_decay": 0.5, "entropy_coef": 0.1}
    given = schedules | {"batch_size": "null"} | settings
    return Training("mappo/original", "none", device, kind, cuda_graphs=setting, **given)


def assert_original_is_that_without_graphs(case, device, *, rtol, atol):
    """Compares metrics and states of two updates. Returns both trainings."""
    eager, training = (original(case, setting, device) for setting in ("off", "on"))
    expected, found = ([x.update(k / 2) for k in range(2)] for x in (eager, training))
    assert training.learner._step_function.captures == ORIGINAL[case][2]
    assert_same(expected, found=found, eager=eager, training=training, rtol=rtol, atol=atol)
    assert training.counts() == eager.counts()
    return eager, training


def coma(case, setting, device):
    """Returns the training of a case, with schedules and minibatches of two sizes."""
    rnn, kind, settings = COMA[case]
    schedule = {"lr_schedule": "linear", "lr_end": 0.1, "entropy_coef": 0.1, "entropy_schedule": "linear"}
    schedule |= {"num_minibatches": 3, "batch_size": "null"}
    return Training("coma", rnn, device, kind, cuda_graphs=setting, **schedule | settings)


def assert_coma_is_that_without_graphs(case, device, *, rtol, atol):
    """Compares metrics and states of two updates. There is one capture for each size of minibatches.

    Returns the training with graphs.
    """
    eager, training = (coma(case, setting, device) for setting in ("off", "on"))
    expected, found = ([x.update(k / 2) for k in range(2)] for x in (eager, training))
    assert training.learner._step_function.captures == (1 if "batch_size" in COMA[case][2] else 2)
    assert training.rollout_captures == 1
    assert_same(expected, found=found, eager=eager, training=training, rtol=rtol, atol=atol)
    assert training.counts() == eager.counts()
    return training


def off_policy(case, setting, device):
    """Returns the training of a case, with a schedule and two gradient steps per update."""
    name, rnn, kind, settings = OFF_POLICY[case]
    schedule = {"lr_schedule": "linear", "lr_end": 0.1, "gradient_steps": 2}
    return Training(name, rnn, device, kind, cuda_graphs=setting, **schedule | settings)


def assert_gradient_steps_are_those_without_graphs(case, device, *, rtol, atol):
    """Compares metrics and states of two updates. There is one capture, or with a delayed actor one of each step.

    Returns the training with graphs.
    """
    eager, training = (off_policy(case, setting, device) for setting in ("off", "on"))
    expected, found = ([x.update(k / 2) for k in range(2)] for x in (eager, training))
    assert training.learner._step_function.captures == (2 if case in ("TD3", "MATD3") else 1)
    assert training.rollout_captures == 1
    assert_same(expected, found=found, eager=eager, training=training, rtol=rtol, atol=atol)
    assert training.counts() == eager.counts()
    return training


def assert_same(expected, eager, found, training, *, rtol, atol):
    """Compares the metrics of updates, and the states of the learners after them."""
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, rel=rtol, abs=atol)
    for x, y in zip(eager.tensors(), training.tensors(), strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)


def assert_a_resumed_learner_continues_exactly(train):
    """With and without graphs, and where it has captured before its state is loaded: its graphs write to other moments.

    Args:
        train: Returns a training with `cuda_graphs` on or off.
    """
    first, used = train("on"), train("on")
    rollouts = [first.collect() for _ in range(3)]
    used.learner.update(rollouts[2], 0.0)
    first.learner.update(rollouts[0], 0.0)
    before = used.learner._step_function.captures
    resumed = [used, train("on"), train("off")]
    assert [isinstance(x.learner._step_function, GraphedStep) for x in resumed] == [True, True, False]
    saved = tree_map(copied, first.learner.state_dict())
    for other in resumed:
        other.learner.load_state_dict(tree_map(copied, saved))
    expected = [first.learner.update(rollouts[1], 0.5)]
    for other in resumed:
        assert_same(expected, first, [other.learner.update(rollouts[1], 0.5)], other, rtol=0, atol=0)
        assert other.counts() == first.counts()
    assert used.learner._step_function.captures > before


def transfers_of_an_update(cuda, training):
    """Returns the reads by the host and the copies of another update, on the stand-in."""
    rollout = training.collect()
    cuda.reads.clear()
    cuda.copies.clear()
    training.learner.update(rollout, 0.5)
    return dict(cuda.reads), dict(cuda.copies)


def assert_a_global_critic_reads_as_without_graphs(algo, rnn, device, *, critic_of, captures_of, **settings):
    """Trains with another team, whose observations are normalized by statistics that each update changes.

    Args:
        algo: Name of the algorithm.
        rnn: Its recurrent layer.
        device: Device.
        critic_of: Returns the critic of a learner.
        captures_of: Returns how often a learner has captured, which has to be once.
        settings: Further settings.
    """
    results = []
    for setting in ("off", "on"):
        graphs = {"cuda_graphs": setting == "on"}
        env = env_of(TwoSides(dead=0.0), 4, device=device)
        team, other = env.spec.default_teams()
        learner = preset_learner(algo, env, rnn, team, critic="global", normalize_obs="true", **graphs, **settings)
        policies = {team.name: learner.policy, other.name: RandomPolicy(other, env.device)}
        collector = Collector(env, policies, seed=0, readers=[team.name], **graphs)
        metrics = [learner.update(collector.advance(12)[0][team.name], k / 2) for k in range(2)]
        results.append((metrics, [x.detach().cpu() for x in critic_of(learner).parameters()]))
    assert captures_of(learner) == 1
    assert results[0][0] == results[1][0]
    assert all(torch.equal(x, y) for x, y in zip(results[0][1], results[1][1], strict=True))
