"""Action vectors against literal numbers."""

import pytest
import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.nets.joint_actions import (
    JointAction,
    encode_actions,
    last_actions,
    mask_by_role,
    pad_by_agent,
    unpad_by_role,
)


def two_roles():
    """Two guards with three choices, a scout with two numbers."""
    box = spaces.Box(-1, 1, (1,))
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), box, spaces.Discrete(3)),
        RoleSpec("scout", "all", ("scout_0",), box, spaces.Box(-1.0, 1.0, (2,))),
    )
    return EnvSpec("two", roles, {}).default_teams()[0]


def test_choices_are_one_hot_and_numbers_unchanged():
    spec = RoleSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), spaces.MultiDiscrete([2, 3])).action
    vector = encode_actions(spec, Action(torch.tensor([[[1, 2]]])))
    assert vector.tolist() == [[[0, 1, 0, 0, 1]]]
    vectors = JointAction(two_roles(), torch.device("cpu")).encode(
        {"guard": Action(torch.tensor([[0], [2]])), "scout": Action(None, torch.tensor([[0.5, -0.5]]))}
    )
    assert vectors["guard"].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert vectors["scout"].tolist() == [[0.5, -0.5]]


def test_others_actions_have_zeros_at_the_agents_own_entries():
    joint = JointAction(two_roles(), torch.device("cpu"))
    others = joint.others(torch.arange(1.0, 9.0))
    assert joint.size == 8
    assert others.tolist() == [[0, 0, 0, 4, 5, 6, 7, 8], [1, 2, 3, 0, 0, 0, 7, 8], [1, 2, 3, 4, 5, 6, 0, 0]]
    replaced = joint.with_own(torch.zeros(8), torch.ones(8))
    assert replaced.tolist() == joint.is_own.float().tolist()


def test_joint_actions_of_a_batch_are_joined_split_and_masked():
    """Five timesteps of four environments, guards 3 + 3 numbers and a scout 2."""
    joint, batch = JointAction(two_roles(), torch.device("cpu")), torch.arange(5 * 4 * 8.0).view(5, 4, 8) + 1
    parts = joint.split(batch)
    assert (parts["guard"].shape, parts["scout"].shape) == ((5, 4, 2, 3), (5, 4, 1, 2))
    assert parts["guard"][1, 2, 1].tolist() == batch[1, 2, 3:6].tolist()
    assert parts["scout"][1, 2, 0].tolist() == batch[1, 2, 6:].tolist()
    assert joint.join(parts).equal(batch)
    alive = torch.ones(5, 4, 3, dtype=torch.bool)
    alive[1, 2, 1] = alive[0, 3, 2] = False
    expected = batch.clone()
    expected[1, 2, 3:6] = expected[0, 3, 6:] = 0
    assert joint.mask_absent(batch, alive).equal(expected)
    others, own = joint.others(batch), joint.with_own(batch, -batch)
    assert others.shape == own.shape == (5, 4, 3, 8)
    for agent, entries in enumerate((slice(0, 3), slice(3, 6), slice(6, 8))):
        without, replaced = batch.clone(), batch.clone()
        without[..., entries] = 0
        replaced[..., entries] *= -1
        assert others[..., agent, :].equal(without)
        assert own[..., agent, :].equal(replaced)


def test_actions_of_other_teams_follow_those_of_the_team():
    """Guards 3 + 3 numbers, a scout 2, and two agents of another team with two choices each."""
    other = RoleSpec("far", "far", ("far_0", "far_1"), spaces.Box(-1, 1, (1,)), spaces.Discrete(2))
    joint = JointAction(two_roles(), torch.device("cpu"), (other,))
    assert joint.size == 12
    assert joint.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert joint.is_own.shape == (3, 12)
    assert joint.is_own.any(0).tolist() == [True] * 8 + [False] * 4
    numbers = torch.arange(1.0, 13.0)
    assert joint.join(joint.split(numbers)).equal(numbers)
    assert joint.split(numbers)["far"].tolist() == [[9, 10], [11, 12]]
    assert joint.others(numbers)[1].tolist() == [1, 2, 3, 0, 0, 0, 7, 8, 9, 10, 11, 12]
    alive = torch.tensor([False, True, True, False, True])
    assert joint.mask_absent(numbers, alive).tolist() == [0, 0, 0, 4, 5, 6, 7, 8, 0, 0, 11, 12]
    mask = torch.tensor([True, False, True])
    assert joint.mask_team(numbers, mask).tolist() == [1, 2, 3, 0, 0, 0, 7, 8, 0, 0, 0, 0]
    alone = JointAction(two_roles(), torch.device("cpu"))
    assert alone.mask_team(numbers[:8], mask).tolist() == [1, 2, 3, 0, 0, 0, 7, 8]


def test_vectors_of_masked_agents_are_zeros():
    """Of three timesteps of four environments, in which each agent is masked once."""
    vectors = {"guard": torch.ones(3, 4, 2, 3), "scout": torch.full((3, 4, 1, 2), 2.0)}
    mask = torch.ones(3, 4, 3, dtype=torch.bool)
    mask[0, 3, 0] = mask[1, 2, 1] = mask[2, 0, 2] = False
    found = mask_by_role(vectors, two_roles().roles, mask)
    guard, scout = vectors["guard"].clone(), vectors["scout"].clone()
    guard[0, 3, 0] = guard[1, 2, 1] = 0
    scout[2, 0, 0] = 0
    assert found["guard"].equal(guard)
    assert found["scout"].equal(scout)


def test_vectors_of_agents_are_padded_with_zeros_at_their_ends():
    guards, scout = torch.ones(5, 4, 2, 3), torch.full((5, 4, 1, 2), 2.0)
    padded = pad_by_agent({"guard": guards, "scout": scout})
    assert padded.shape == (5, 4, 3, 3)
    assert padded[3, 1].tolist() == [[1, 1, 1], [1, 1, 1], [2, 2, 0]]
    assert pad_by_agent({"guard": guards}).equal(guards)


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
