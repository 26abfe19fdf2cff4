"""ONNX graphs, run with onnxruntime, act as the policies that they were made from."""

import functools

import pytest
import torch
from export.test_export import CASES, CASES_OF_ALL_PARTS, ENVS, GRAPH_ONLY, INPUTS, STEPS, network_policy

from algo_worlds import Everything, env_of
from coterie.core.errors import UserError
from coterie.envs.make import make
from coterie.export.subject import subject_of
from coterie.export.weights import NetworkDescription, require_own_layers
from exports import assert_same_rollouts, exported, noise_by_role, scramble
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
    assert {name for name, _, _ in CASES_OF_ALL_PARTS} == set(LEARNERS) - GRAPH_ONLY
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("mat", "hybrid"), ("ff_sable", "multi_discrete")])
def test_onnx_exports_of_agents_that_decide_one_after_another_act_alike(name, kind, tmp_path):
    """With deaths. A choice may differ where two scores are equal but for rounding, and with it those after it."""
    env = env_of(Everything(kind, dead=0.0), 200)
    policy = preset_learner(name, env, "none").policy
    scramble(policy, env)
    copy = exported(policy, tmp_path, "onnx")
    timestep, noises = env.reset(3), policy.draw_noise(STEPS, 200, torch.Generator().manual_seed(1))
    assert copy.info["centralized"]
    dead = 0
    for step, noise in enumerate(noises):
        mode = ("greedy", "sample")[step % 2]
        with torch.no_grad():
            action, _, _ = policy.act(timestep, {}, noise, mode)
        masks = {name: x.numpy() for name, x in timestep.action_mask.items()}
        obs = {name: x.numpy() for name, x in timestep.obs.items()}
        own = noise_by_role(policy, noise)
        found, _ = copy.step(obs, {}, mode=mode, mask=masks, alive=timestep.alive.numpy(), noise=own)
        for role, at in (("guard", slice(0, 2)), ("scout", slice(2, 3))):
            live = timestep.alive[:, at].numpy()
            for part, taken in vars(action[role]).items():
                if taken is not None:
                    expected = taken.clamp(-1, 1) if part == "continuous" else taken
                    apart = abs(found[role][part] - expected.numpy())[live]
                    assert (apart > 1e-4).mean() < 0.01
        dead += (~timestep.alive).sum().item()
        timestep = env.step(action)[1]
    assert dead


def test_a_memory_of_the_whole_team_is_not_exported():
    policy = preset_learner("sable", env_of(Everything(dead=0.0), 2), "none").policy
    with pytest.raises(UserError, match="its memory is that of the whole team, and exports hold one vector per agent"):
        subject_of(policy.team, policy, "sample")


def test_agents_that_decide_one_after_another_have_no_export_in_layers():
    policy = preset_learner("mat", env_of(Everything(dead=0.0), 2), "none").policy
    with pytest.raises(UserError, match="its agents decide one after another, which only a graph can hold"):
        require_own_layers(subject_of(policy.team, policy, "sample"))
