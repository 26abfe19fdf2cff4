"""Exported policies of every algorithm act as the policies that they were made from."""

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.envs.make import make
from coterie.export.subject import subject_of
from coterie.export.weights import require_own_layers
from coterie.nets.config import NetworkConfig
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.stochastic import StochasticPolicy
from exports import assert_same_rollouts, exported, scramble
from preset_learners import LEARNERS, ImageAndVector, preset_learner

ENVS, STEPS = 200, 9  # 200 rollouts, with deaths, the end of an episode and the start of the next


def everything(kind):
    return env_of(Everything(kind, dead=0.0), ENVS)


CASES = [
    ("ippo", "hybrid", "gru"),
    ("mappo", "multi_discrete", "lstm"),
    ("happo", "continuous", "none"),
    ("mat_dec", "discrete", "none"),
    ("coma", "discrete", "gru"),
    ("coma", "multi_discrete", "lstm"),
    ("iql", "multi_discrete", "gru"),
    ("qmix", "discrete", "none"),
    ("pqn_vdn", "discrete", "lstm"),
    ("ddpg", "continuous", "none"),
    ("maddpg", "hybrid", "gru"),
    ("matd3", "multi_discrete", "lstm"),
    ("sac", "hybrid", "none"),
    ("masac", "multi_discrete", "gru"),
    ("hasac", "continuous", "lstm"),
]
"""For each kind of policy every action space and every recurrent layer."""


def test_every_algorithm_has_a_policy_that_is_exported():
    env = env_of(Everything("discrete"), 8)
    for name in set(LEARNERS) - {"mat", "sable", "ff_sable"}:  # their agents decide one after another
        policy = preset_learner(name, env, "none").policy
        assert require_own_layers(subject_of(policy.team, policy, "greedy")) is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn"), CASES)
def test_numpy_exports_of_all_algorithms_act_alike(name, kind, rnn, tmp_path):
    env = everything(kind)
    policy = preset_learner(name, env, rnn).policy
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "numpy"), env, STEPS, ("greedy", "sample")) > 0


TORCH_CASES = [  # every head and every recurrent layer
    ("ippo", "hybrid", "none"),
    ("mappo", "multi_discrete", "lstm"),
    ("coma", "discrete", "gru"),
    ("qmix", "discrete", "gru"),
    ("maddpg", "hybrid", "none"),
    ("masac", "hybrid", "none"),
]


@pytest.mark.parametrize(("name", "kind", "rnn"), TORCH_CASES)
def test_torch_exports_act_alike(name, kind, rnn, tmp_path):
    env = everything(kind)
    policy = preset_learner(name, env, rnn).policy
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "torch"), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.parametrize(
    ("form", "share", "world"),
    [
        ("numpy", "role", "image"),
        ("numpy", "none", "image_and_vector"),
        ("torch", "none", "image"),
        ("torch", "role", "image_and_vector"),
    ],
)
def test_images_and_dictionaries_act_alike(form, share, world, tmp_path):
    env = make("probe/image", {}, 100, 0) if world == "image" else env_of(ImageAndVector(), 100)
    policy = network_policy("stochastic", {"share_params": share}, env)
    scramble(policy, env, 0.05)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, form), env, STEPS, ("greedy", "sample")) > 0


INPUTS = {
    "before activations": {"share_params": "role", "layer_norm": "hidden", "activation": "relu"},
    "separate": {"share_params": "none", "layer_norm": True, "activation": "gelu", "rnn": "gru"},
    "separate_lstm": {"share_params": "none", "activation": "elu", "rnn": "lstm", "obs_last_action": True},
    "shared": {"share_params": "all", "obs_agent_id": True, "activation": "silu", "layer_norm": True},
    "normalized": {"normalize_obs": True, "obs_agent_id": True, "activation": "tanh"},
}


def network_policy(kind, settings, env):
    (team,) = env.spec.default_teams()
    config = NetworkConfig((32, 24), rnn_size=16, **settings)
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    if kind == "q":
        return EpsilonGreedyPolicy(team, config, generator, cpu)
    return StochasticPolicy(team, config, generator, cpu, state_dependent_std=kind == "state_dependent_std")


KINDS = ("q", "stochastic", "state_dependent_std")


@pytest.mark.parametrize(
    ("form", "kind", "settings"),
    [(form, KINDS[(i + j) % 3], name) for i, form in enumerate(("numpy", "torch")) for j, name in enumerate(INPUTS)],
)
def test_all_inputs_and_layers_act_alike(form, kind, settings, tmp_path):
    spaces = "discrete" if kind == "q" else "hybrid"
    # Among more environments are observations of three almost equal numbers, which layer normalization divides by
    # almost zero: there, float32 has fewer than five digits.
    env = env_of(Everything(spaces, dead=0.0, equal_roles=settings == "shared"), 20)
    options = {k: v for k, v in INPUTS[settings].items() if kind == "q" or k != "obs_last_action"}
    policy = network_policy(kind, options, env)
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, form), env, STEPS, ("greedy", "sample")) > 0
