"""ONNX graphs, run with onnxruntime, act as the policies that they were made from."""

import pytest
import torch
from export.test_export import ENVS, INPUTS, STEPS, network_policy

from algo_worlds import Everything, env_of
from coterie.core.errors import UserError
from coterie.export.subject import subject_of
from coterie.export.weights import require_own_layers
from exports import assert_same_rollouts, exported, noise_by_role, scramble
from preset_learners import ImageAndVector, preset_learner

# PyTorch takes seconds for a graph, the more the more roles it has. A graph depends on the policy's class, its action
# spaces, its layers and its roles, and not on the algorithm that trains it: `test_export.py` exports all of them.
CASES = [
    ("coma", "multi_discrete", "none", False),  # EpsilonSoftPolicy
    ("iql", "multi_discrete", "gru", True),  # EpsilonGreedyPolicy, whose noise has the width of the widest role
    ("maddpg", "hybrid", "none", False),  # DeterministicPolicy
    ("sac", "hybrid", "none", False),  # SquashedPolicy; StochasticPolicy is below
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn", "scouts"), CASES)
def test_onnx_exports_of_all_policies_act_alike(name, kind, rnn, scouts, tmp_path):
    env = env_of(Everything(kind, dead=0.0, scouts=scouts), ENVS)
    policy = preset_learner(name, env, rnn).policy
    scramble(policy, env)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "world"),
    [
        ("separate_lstm", Everything("hybrid", dead=0.0, scouts=False)),  # weights in sets, a pair of hidden states
        ("normalized", ImageAndVector()),  # dictionaries, convolutions, statistics of observations, agents' numbers
    ],
)
def test_onnx_exports_of_all_inputs_and_layers_act_alike(settings, world, tmp_path):
    env = env_of(world, 20)
    policy = network_policy("stochastic", INPUTS[settings] | {"layer_norm": True, "obs_last_action": False}, env)
    scramble(policy, env, 0.3 if settings == "separate_lstm" else 0.05)
    assert assert_same_rollouts(policy, exported(policy, tmp_path, "onnx"), env, STEPS, ("greedy", "sample")) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("mat", "hybrid"), ("ff_sable", "discrete")])
def test_onnx_exports_of_agents_that_decide_one_after_another_act_alike(name, kind, tmp_path):
    """With deaths. A choice may differ where two scores are equal but for rounding, and with it those after it."""
    env = env_of(Everything(kind, dead=0.0, scouts=False), 200)
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
        for part, taken in vars(action["guard"]).items():
            if taken is not None:
                expected = taken.clamp(-1, 1) if part == "continuous" else taken
                apart = abs(found["guard"][part] - expected.numpy())[timestep.alive.numpy()]
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
