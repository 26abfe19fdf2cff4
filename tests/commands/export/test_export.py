"""Exported policies of every algorithm act as the policies that they were made from."""

import functools
import itertools

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.commands.export.subject import subject_of
from coterie.commands.export.weights import NetworkDescription
from coterie.envs.make import make
from coterie.nets.config import NetworkConfig
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.stochastic import StochasticPolicy
from exports import assert_same_rollouts, exported, scramble
from preset_learners import LEARNERS, ImageAndVector, preset_learner, supports_actions, supports_rnn

ENVS, STEPS = 1000, 9  # 1,000 rollouts, with deaths, the end of an episode and the start of the next


def everything(kind):
    return env_of(Everything(kind, dead=0.0), ENVS)


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


ONNX_CASES = [  # every algorithm; for each kind of policy every action space and every recurrent layer
    ("ppo", "continuous", "none"),
    ("ippo", "hybrid", "gru"),
    ("mappo", "multi_discrete", "lstm"),
    ("poca", "discrete", "none"),
    ("coma", "discrete", "gru"),
    ("coma", "multi_discrete", "lstm"),
    ("coma", "discrete", "none"),
    ("ddqn", "discrete", "none"),
    ("iql", "multi_discrete", "gru"),
    ("vdn", "discrete", "lstm"),
    ("qmix", "discrete", "gru"),
    ("qplex", "multi_discrete", "none"),
    ("wqmix", "discrete", "gru"),
    ("ddpg", "continuous", "none"),
    ("maddpg", "hybrid", "gru"),
    ("td3", "discrete", "none"),
    ("matd3", "multi_discrete", "lstm"),
    ("sac", "hybrid", "none"),
    ("masac", "continuous", "gru"),
    ("sac", "multi_discrete", "lstm"),
    ("masac", "discrete", "none"),
]
TWO_ROLES = {("ippo", "gru"), ("coma", "lstm"), ("qmix", "gru"), ("maddpg", "gru"), ("sac", "none")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn"), ONNX_CASES)
def test_onnx_exports_of_all_algorithms_act_alike(name, kind, rnn, tmp_path):
    """Writing a graph takes seconds, the more the more roles it has, so that most have one role here."""
    env = env_of(Everything(kind, dead=0.0, scouts=(name, rnn) in TWO_ROLES), ENVS)
    policy = preset_learner(name, env, rnn).policy
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0


@functools.cache
def parts(name, kind, rnn):
    """The parts of a graph: policy with action space, policy with recurrent layer, other layers, and inputs."""
    env = env_of(Everything(kind, dead=0.0), 8)
    policy = preset_learner(name, env, rnn).policy
    subject = subject_of(policy.team, policy, "greedy")
    found, head = set(), (type(policy).__name__, subject.head)
    for block in NetworkDescription(subject).blocks:
        action = {key: value for key, value in block["action"].items() if key in ("kind", "choices", "continuous")}
        std = block["action"].get("log_std") is None
        found |= {(*head, "action", str(action), std), (*head, "rnn", block["rnn"] and block["rnn"]["kind"])}
        found |= {("layer", layer["kind"]) for layer in block["layers"]}
        inputs = {key: bool(block[key]) for key in ("sets", "normalizer", "last_action", "agent_ids")}
        found |= {("input", key, value) for key, value in inputs.items()}
    return found


@pytest.mark.slow
def test_every_algorithm_is_exported_to_onnx_with_every_part_of_its_graphs():
    """Not every combination is exported; every part of it is, and so is every algorithm."""
    covered = set().union(*(parts(*case) for case in ONNX_CASES))
    assert {name for name, _, _ in ONNX_CASES} == set(LEARNERS)
    assert [case for case in CASES if not parts(*case) <= covered] == []


@pytest.mark.slow
def test_onnx_exports_of_communication_act_alike(tmp_path):
    env = make("particle/simple_reference", {}, ENVS, 0)
    policy = preset_learner("mappo", env, "gru").policy
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("share", ["role", "none"])
@pytest.mark.parametrize("world", ["image", "image_and_vector"])
def test_images_and_dictionaries_act_alike(form, share, world, tmp_path):
    env = make("probe/image", {}, 100, 0) if world == "image" else env_of(ImageAndVector(), 100)
    policy = network_policy("stochastic", {"share_params": share}, env)
    scramble(policy, env, 0.05)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, form), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.slow
def test_onnx_exports_of_convolutions_act_alike(tmp_path):
    env = env_of(ImageAndVector(), 100)
    policy = preset_learner("ippo", env, "gru").policy
    scramble(policy, env, 0.05)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy",)) > 0


INPUTS = {
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


@pytest.mark.parametrize("settings", INPUTS)
@pytest.mark.parametrize("kind", ["q", "stochastic", "state_dependent_std"])
@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_all_inputs_and_layers_act_alike(form, kind, settings, tmp_path):
    spaces = "discrete" if kind == "q" else "hybrid"
    # Among more environments are observations of three almost equal numbers, which layer normalization divides by
    # almost zero: there, float32 has fewer than five digits.
    env = env_of(Everything(spaces, dead=0.0, equal_roles=settings == "shared"), 20)
    options = {k: v for k, v in INPUTS[settings].items() if kind == "q" or k != "obs_last_action"}
    policy = network_policy(kind, options, env)
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, form), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["separate", "normalized"])
def test_onnx_exports_of_all_inputs_act_alike(settings, tmp_path):
    env = env_of(Everything("hybrid", dead=0.0), 20)
    policy = network_policy("stochastic", INPUTS[settings], env)
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0
