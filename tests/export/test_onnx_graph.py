"""ONNX graphs, run with onnxruntime, act as the policies that they were made from."""

import functools

import pytest
from export.test_export import CASES, CASES_OF_ALL_PARTS, ENVS, INPUTS, STEPS, network_policy

from algo_worlds import Everything, env_of
from coterie.envs.make import make
from coterie.export.subject import subject_of
from coterie.export.weights import NetworkDescription
from exports import assert_same_rollouts, exported, scramble
from preset_learners import LEARNERS, ImageAndVector, preset_learner

TWO_ROLES = {("ippo", "gru"), ("coma", "lstm"), ("qmix", "gru"), ("maddpg", "gru"), ("sac", "none")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn"), CASES_OF_ALL_PARTS)
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
def test_every_algorithm_is_exported_with_every_part_of_its_networks():
    """Not every combination is exported; every part of it is, and so is every algorithm."""
    covered = set().union(*(parts(*case) for case in CASES_OF_ALL_PARTS))
    assert {name for name, _, _ in CASES_OF_ALL_PARTS} == set(LEARNERS)
    assert [case for case in CASES if not parts(*case) <= covered] == []


@pytest.mark.slow
def test_onnx_exports_of_communication_act_alike(tmp_path):
    env = make("particle/simple_reference", {}, ENVS, 0)
    policy = preset_learner("mappo", env, "gru").policy
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.slow
def test_onnx_exports_of_convolutions_act_alike(tmp_path):
    env = env_of(ImageAndVector(), 100)
    policy = preset_learner("ippo", env, "gru").policy
    scramble(policy, env, 0.05)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy",)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["separate", "normalized"])
def test_onnx_exports_of_all_inputs_act_alike(settings, tmp_path):
    env = env_of(Everything("hybrid", dead=0.0), 20)
    policy = network_policy("stochastic", INPUTS[settings], env)
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0
