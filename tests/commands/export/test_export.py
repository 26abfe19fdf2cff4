"""Exported policies of every algorithm act as the policies that they were made from."""

import itertools

import pytest

from algo_worlds import Everything, env_of
from exports import assert_same_rollouts, exported, scramble
from preset_learners import LEARNERS, preset_learner, supports_actions, supports_rnn

ENVS, STEPS = 1000, 9  # 1,000 rollouts, with deaths, the end of an episode and the start of the next


def everything(kind):
    return env_of(Everything(kind), ENVS)


def supported(name, kind, rnn):
    return supports_rnn(name, rnn) and supports_actions(name, kind) and supports_actions(name, "discrete")


CASES = [
    (name, kind, rnn)
    for name, kind, rnn in itertools.product(LEARNERS, Everything.KINDS, ("none", "gru", "lstm"))
    if supported(name, kind, rnn)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn"), CASES)
def test_numpy_exports_of_all_algorithms_act_alike(name, kind, rnn, tmp_path):
    env = everything(kind)
    policy = preset_learner(name, env, rnn).policy
    scramble(policy, env)
    copy = exported(policy, tmp_path, "numpy")
    assert assert_same_rollouts(policy, copy, env, STEPS, ("greedy", "sample")) > 0


ONNX_CASES = [  # every head and every recurrent layer; writing a graph takes seconds
    ("ippo", "hybrid", "none"),
    ("mappo", "multi_discrete", "lstm"),
    ("coma", "discrete", "gru"),
    ("qmix", "discrete", "gru"),
    ("maddpg", "hybrid", "none"),
    ("masac", "hybrid", "none"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn"), ONNX_CASES)
def test_onnx_exports_act_alike(name, kind, rnn, tmp_path):
    assert (name, kind, rnn) in CASES
    env = everything(kind)
    policy = preset_learner(name, env, rnn).policy
    scramble(policy, env)
    copy = exported(policy, tmp_path, "onnx")
    assert assert_same_rollouts(policy, copy, env, STEPS, ("greedy", "sample")) > 0
