"""Last actions against literal numbers."""

import pytest
import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.nets.joint_actions import pad_by_agent
from coterie.nets.last_actions import last_actions, unpad_by_role


def two_roles():
    """Two guards with three choices, a scout with two numbers."""
    box = spaces.Box(-1, 1, (1,))
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), box, spaces.Discrete(3)),
        RoleSpec("scout", "all", ("scout_0",), box, spaces.Box(-1.0, 1.0, (2,))),
    )
    return EnvSpec("two", roles, {}).default_teams()[0]


@pytest.mark.parametrize("timesteps", [3, 2])
def test_last_actions_are_shifted_and_zero_for_new_agents(timesteps):
    """Two timesteps of one environment and the final one; guard_1 is new at timestep 1, all agents at timestep 2."""
    vectors = {
        "guard": torch.tensor([[[[1.0], [2.0]]], [[[3.0], [4.0]]]]),
        "scout": torch.tensor([[[[5.0]]], [[[6.0]]]]),
    }
    before = {"guard": torch.tensor([[[7.0], [8.0]]]), "scout": torch.tensor([[[9.0]]])}
    first = torch.tensor([[[False, False, False]], [[False, True, False]], [[True, True, True]]])
    last = last_actions(vectors, first[:timesteps], before)
    assert last["guard"].squeeze(-1).squeeze(1).tolist() == [[7, 8], [1, 0], [0, 0]][:timesteps]
    assert last["scout"].flatten().tolist() == [9, 5, 0][:timesteps]


def test_padding_by_agent_is_inverted():
    vectors = {"guard": torch.rand(4, 2, 3), "scout": torch.rand(4, 1, 2)}
    padded = pad_by_agent(vectors)
    assert padded.shape == (4, 3, 3)
    assert padded[:, 2, 2].tolist() == [0] * 4
    back = unpad_by_role(two_roles(), padded)
    assert all(torch.equal(back[name], vector) for name, vector in vectors.items())


def test_last_actions_of_a_batch_belong_to_their_agents():
    """Three timesteps of two environments; scout_0 is new in environment 1 at timestep 2."""
    guards, scout = torch.arange(3 * 2 * 2 * 3.0).view(3, 2, 2, 3) + 1, torch.arange(12.0).view(3, 2, 1, 2) + 100
    before = {"guard": -torch.ones(2, 2, 3), "scout": -torch.ones(2, 1, 2)}
    first = torch.zeros(3, 2, 3, dtype=torch.bool)
    first[2, 1, 2] = True
    last = last_actions({"guard": guards, "scout": scout}, first, before)
    assert last["guard"].equal(torch.cat([before["guard"][None], guards[:2]]))
    expected = torch.cat([before["scout"][None], scout[:2]])
    expected[2, 1] = 0
    assert last["scout"].equal(expected)


def test_vectors_of_a_single_role_are_not_padded():
    team = two_roles()
    role = RoleSpec("guard", "all", ("guard_0", "guard_1"), team.roles[0].observation_space, spaces.Discrete(3))
    single = EnvSpec("one", (role,), {}).default_teams()[0]
    padded = torch.rand(4, 2, 3)
    assert unpad_by_role(single, padded)["guard"].equal(padded)
