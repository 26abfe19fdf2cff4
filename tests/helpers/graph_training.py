"""Training with and without CUDA graphs, on a GPU or a stand-in."""

from __future__ import annotations

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.core import cuda_graphs
from coterie.core.tree import tree_leaves
from coterie.training.collector import Collector
from learners import collect_rollout
from preset_learners import preset_learner

LEARNERS = [("ippo", "none"), ("mappo", "gru"), ("ppo", "lstm"), ("maa2c", "none"), ("ippo", "gru")]
"""Names of algorithms and their recurrent layers."""


class Training:
    """A learner of two roles with masks, deaths and group rewards, and its rollouts."""

    def __init__(self, name, rnn, device, **settings):
        env = env_of(Everything(dead=0.0), 4, device=device)
        self.learner = preset_learner(name, env, rnn, **settings)
        self._collector = Collector(env, {env.spec.default_teams()[0].name: self.learner.policy}, seed=0)

    def collect(self):
        return collect_rollout(self.learner, self._collector)

    def update(self, progress):
        return self.learner.update(self.collect(), progress)

    def tensors(self):
        leaves = tree_leaves(self.learner.state_dict())
        return [x.cpu() for x in leaves if isinstance(x, torch.Tensor)]


def trained(name, rnn, setting, device):
    """Returns the metrics of three updates with schedules and minibatches of several sizes, and the training."""
    cuda_graphs.configure(setting)
    training = Training(name, rnn, device)
    config = training.learner.config
    schedules = {"lr_schedule": "linear", "lr_end": 0.1, "entropy_schedule": "linear", "entropy_end": 0.5}
    training.learner.config = config.model_copy(update=schedules | {"entropy_decay": None, "num_minibatches": 3})
    return [training.update(k / 3) for k in range(3)], training


def assert_updates_are_those_without_graphs(name, rnn, device, *, rtol, atol):
    """Compares metrics and states of three updates. With graphs, there is one capture."""
    expected, eager = trained(name, rnn, "off", device)
    found, training = trained(name, rnn, "on", device)
    assert training.learner._graphs.graphed.captures == 1
    assert_same(expected, eager, found, training, rtol=rtol, atol=atol)


def assert_same(expected, eager, found, training, *, rtol, atol):
    """Compares the metrics of updates, and the states of the learners after them."""
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, rel=rtol, abs=atol)
    for x, y in zip(eager.tensors(), training.tensors(), strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)
