"""COMA's critic: which inputs its values depend on."""

import itertools

import pytest
import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.counterfactual_critic import CounterfactualCritic
from coterie.nets.joint_actions import JointAction

CPU = torch.device("cpu")


def team(equal_roles=False):
    """Two guards with 3 + 2 choices, a scout with 4 (or a third guard by another name)."""
    guards = RoleSpec("guard", "all", ("g0", "g1"), spaces.Box(-9, 9, (5,)), spaces.MultiDiscrete([3, 2]))
    scout = RoleSpec("scout", "all", ("s0",), spaces.Box(-9, 9, (3,)), spaces.Discrete(4))
    if equal_roles:
        scout = RoleSpec("scout", "all", ("s0",), guards.observation_space, guards.action_space)
    return EnvSpec("some", (guards, scout), {"global": 6}).default_teams()[0]


def critic(spec, joint=True, state=0, last=False, share="role", agent_id=True):
    config = NetworkConfig((16,), "tanh", share_params=share, obs_agent_id=agent_id)
    generator = torch.Generator().manual_seed(0)
    inputs = CentralInputs(joint, state)
    return CounterfactualCritic(spec, config, generator, CPU, inputs=inputs, reads_last_action=last)


def observations(spec, batch=4):
    generator = torch.Generator().manual_seed(1)
    sizes = {role.name: role.observation_space.shape[0] for role in spec.roles}
    return {role.name: torch.randn(batch, role.n, sizes[role.name], generator=generator) for role in spec.roles}


def joint_action(spec, guards, scout):
    actions = {"guard": Action(torch.tensor([guards])), "scout": Action(torch.tensor([scout]))}
    coder = JointAction(spec, CPU)
    return coder.join(coder.encode(actions))


def test_an_agents_values_do_not_depend_on_its_own_action():
    """Negative control: its values depend on the others' actions."""
    spec = team()
    net, obs = critic(spec), observations(spec, 1)
    others = joint_action(spec, [[0, 1], [2, 0]], [[3]])
    base = net(obs, None, others, None)
    for own in itertools.product(range(3), range(2)):
        q = net(obs, None, joint_action(spec, [list(own), [2, 0]], [[3]]), None)
        assert torch.equal(q[:, 0], base[:, 0])
        if own != (0, 1):
            assert (q[:, 1] != base[:, 1]).any()
            assert (q[:, 2, :4] != base[:, 2, :4]).any()
    for own in range(4):
        q = net(obs, None, joint_action(spec, [[0, 1], [2, 0]], [[own]]), None)
        assert torch.equal(q[:, 2], base[:, 2])


def test_padding_of_missing_choices_is_zero():
    spec = team()
    q = critic(spec)(observations(spec), None, torch.zeros(4, 14), None)
    assert q.shape == (4, 3, 5)
    assert (q[:, 2, 4:] == 0).all()
    assert (q[:, :2] != 0).all()


@pytest.mark.parametrize(("joint", "state"), [(True, 0), (False, 6), (True, 6)])
@pytest.mark.parametrize("last", [False, True])
def test_values_depend_on_the_configured_inputs(joint, state, last):
    spec = team()
    net, obs = critic(spec, joint, state, last), observations(spec)
    state_input, before = torch.randn(4, 6), torch.randn(4, 14)
    action = torch.zeros(4, 14)

    def q(obs, state_input, before):
        return net(obs, state_input if state else None, action, before if last else None)

    base = q(obs, state_input, before)
    moved = {"guard": obs["guard"], "scout": obs["scout"] + 1}
    assert (q(moved, state_input, before)[:, 0] != base[:, 0]).any() == joint  # another agent's observation
    assert (q(moved, state_input, before)[:, 2, :4] != base[:, 2, :4]).any()  # always its own
    assert (q(obs, state_input + 1, before) != base).any() == (state > 0)
    assert (q(obs, state_input, before + 1) != base).any() == last


@pytest.mark.parametrize("last", [False, True])
def test_without_central_inputs_values_depend_on_own_observations_and_the_others_actions(last):
    spec = team()
    net, obs = critic(spec, joint=False, last=last), observations(spec)
    action, before = torch.randn(4, 14), torch.randn(4, 14)
    found = net(obs, None, action, before if last else None)
    others, central = net.joint.others(action)[:, 2:], before.unsqueeze(1)[..., : 14 * last]
    x = torch.cat([obs["scout"], central, others, torch.ones(4, 1, 1)], -1)
    torch.testing.assert_close(found[:, 2:, :4], net.networks["scout"](x, None, {})[0])


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("agent_id", [True, False])
def test_agents_with_equal_observations_differ_by_id_or_parameters(share, agent_id):
    spec = team(equal_roles=True)
    net = critic(spec, share=share, agent_id=agent_id)
    obs = {"guard": torch.ones(1, 2, 5), "scout": torch.ones(1, 1, 5)}
    q = net(obs, None, torch.zeros(1, 15), None)
    assert (q[:, 0] != q[:, 1]).any() == (agent_id or share == "none")


def test_sequences_match_single_timesteps():
    spec = team()
    net, obs = critic(spec, last=True), observations(spec, 6)
    joint, last = torch.rand(6, 14), torch.rand(6, 14)
    timesteps = net(obs, None, joint, last)
    folded = {name: x.unflatten(0, (2, 3)) for name, x in obs.items()}
    sequences = net(folded, None, joint.unflatten(0, (2, 3)), last.unflatten(0, (2, 3)))
    torch.testing.assert_close(sequences.flatten(0, 1), timesteps)
