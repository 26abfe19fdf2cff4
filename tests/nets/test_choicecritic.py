"""The critic of choices: what it reads and, above all, what it does not."""

import itertools

import pytest
import torch
from gymnasium import spaces

from coterie.nets.critics import ChoiceCritic
from coterie.nets.joint import JointAction
from coterie.nets.team import Shape
from coterie.types import Action, EnvSpec, RoleSpec

CPU = torch.device("cpu")
BODY = Shape((16,), "tanh", False, "none", 1)


def team(alike=False):
    """Two guards with 3 + 2 choices, a scout with 4 (or a third guard by another name)."""
    guards = RoleSpec("guard", "all", ("g0", "g1"), spaces.Box(-9, 9, (5,)), spaces.MultiDiscrete([3, 2]))
    scout = RoleSpec("scout", "all", ("s0",), spaces.Box(-9, 9, (3,)), spaces.Discrete(4))
    if alike:
        scout = RoleSpec("scout", "all", ("s0",), guards.observation_space, guards.action_space)
    return EnvSpec("some", (guards, scout), {"global": 6}).default_teams()[0]


def critic(spec, joint=True, state=0, last=False, share="role", agent_id=True):
    return ChoiceCritic(spec, joint, state, last, BODY, share, agent_id, torch.Generator().manual_seed(0), CPU)


def seen(spec, rows=4):
    generator = torch.Generator().manual_seed(1)
    sizes = {role.name: role.observation_space.shape[0] for role in spec.roles}
    return {role.name: torch.randn(rows, role.n, sizes[role.name], generator=generator) for role in spec.roles}


def joint_of(spec, guards, scout):
    actions = {"guard": Action(torch.tensor([guards])), "scout": Action(torch.tensor([scout]))}
    coder = JointAction(spec, CPU)
    return coder.join(coder.vectors(actions))


def test_an_agents_values_do_not_depend_on_its_own_action():
    """All of its actions, the others' fixed; the control: its values do depend on theirs."""
    spec = team()
    net, obs = critic(spec), seen(spec, 1)
    others = joint_of(spec, [[0, 1], [2, 0]], [[3]])
    base = net(obs, None, others, None, None, {})[0]
    for own in itertools.product(range(3), range(2)):
        q = net(obs, None, joint_of(spec, [list(own), [2, 0]], [[3]]), None, None, {})[0]
        assert torch.equal(q[:, 0], base[:, 0])
        if own != (0, 1):
            assert (q[:, 1] != base[:, 1]).any()
            assert (q[:, 2, :4] != base[:, 2, :4]).any()
    for own in range(4):
        q = net(obs, None, joint_of(spec, [[0, 1], [2, 0]], [[own]]), None, None, {})[0]
        assert torch.equal(q[:, 2], base[:, 2])


def test_choices_that_an_agent_does_not_have_are_zero():
    spec = team()
    q, _ = critic(spec)(seen(spec), None, torch.zeros(4, 14), None, None, {})
    assert q.shape == (4, 3, 5)
    assert (q[:, 2, 4:] == 0).all()
    assert (q[:, :2] != 0).all()


@pytest.mark.parametrize(("joint", "state"), [(True, 0), (False, 6), (True, 6)])
@pytest.mark.parametrize("last", [False, True])
def test_it_reads_what_it_is_told_to(joint, state, last):
    spec = team()
    net, obs = critic(spec, joint, state, last), seen(spec)
    shown, before = torch.randn(4, 6), torch.randn(4, 14)
    action = torch.zeros(4, 14)

    def q(obs, shown, before):
        return net(obs, shown if state else None, action, before if last else None, None, {})[0]

    base = q(obs, shown, before)
    moved = {"guard": obs["guard"], "scout": obs["scout"] + 1}
    assert (q(moved, shown, before)[:, 0] != base[:, 0]).any() == joint  # another's observation
    assert (q(moved, shown, before)[:, 2, :4] != base[:, 2, :4]).any()  # its own, always
    assert (q(obs, shown + 1, before) != base).any() == (state > 0)
    assert (q(obs, shown, before + 1) != base).any() == last


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("agent_id", [True, False])
def test_agents_that_see_the_same_are_told_apart_by_their_id_or_their_own_parameters(share, agent_id):
    spec = team(alike=True)
    net = critic(spec, share=share, agent_id=agent_id)
    obs = {"guard": torch.ones(1, 2, 5), "scout": torch.ones(1, 1, 5)}
    q, _ = net(obs, None, torch.zeros(1, 15), None, None, {})
    assert (q[:, 0] != q[:, 1]).any() == (agent_id or share == "none")


def test_sequences_are_read_like_rows():
    spec = team()
    net, obs = critic(spec, last=True), seen(spec, 6)
    joint, last = torch.rand(6, 14), torch.rand(6, 14)
    rows, carry = net(obs, None, joint, last, None, {})
    folded = {name: x.unflatten(0, (2, 3)) for name, x in obs.items()}
    sequences, _ = net(folded, None, joint.unflatten(0, (2, 3)), last.unflatten(0, (2, 3)), None, {})
    assert carry == {}
    torch.testing.assert_close(sequences.flatten(0, 1), rows)
