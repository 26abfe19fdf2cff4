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
