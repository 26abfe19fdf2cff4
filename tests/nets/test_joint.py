"""Actions as vectors: literal numbers."""

import pytest
import torch
from gymnasium import spaces

from coterie.nets.joint import JointAction, beside, by_role, encoded, last_actions
from coterie.types import Action, EnvSpec, RoleSpec


def two_roles():
    """Two guards with three choices, a scout with two numbers."""
    box = spaces.Box(-1, 1, (1,))
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), box, spaces.Discrete(3)),
        RoleSpec("scout", "all", ("scout_0",), box, spaces.Box(-1.0, 1.0, (2,))),
    )
    return EnvSpec("two", roles, {}).default_teams()[0]


def test_choices_are_one_hot_and_numbers_stay():
    spec = RoleSpec("a", "a", ("a",), spaces.Box(-1, 1, (1,)), spaces.MultiDiscrete([2, 3])).action
    vector = encoded(spec, Action(torch.tensor([[[1, 2]]])))
    assert vector.tolist() == [[[0, 1, 0, 0, 1]]]
    vectors = JointAction(two_roles(), torch.device("cpu")).vectors(
        {"guard": Action(torch.tensor([[0], [2]])), "scout": Action(None, torch.tensor([[0.5, -0.5]]))}
    )
    assert vectors["guard"].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert vectors["scout"].tolist() == [[0.5, -0.5]]


def test_every_agent_sees_the_others_with_its_own_place_empty():
    joint = JointAction(two_roles(), torch.device("cpu"))
    others = joint.others(torch.arange(1.0, 9.0))
    assert joint.size == 8
    assert others.tolist() == [[0, 0, 0, 4, 5, 6, 7, 8], [1, 2, 3, 0, 0, 0, 7, 8], [1, 2, 3, 4, 5, 6, 0, 0]]
    fresh = joint.replaced(torch.zeros(8), torch.ones(8))
    assert fresh.tolist() == joint.own.float().tolist()


@pytest.mark.parametrize("rows", [3, 2])
def test_last_actions_lag_by_a_row_and_are_zero_where_a_life_begins(rows):
    """Two rows of one copy and the one to look ahead; guard_1 begins in row 1, all in row 2."""
    vectors = {
        "guard": torch.tensor([[[[1.0], [2.0]]], [[[3.0], [4.0]]]]),
        "scout": torch.tensor([[[[5.0]]], [[[6.0]]]]),
    }
    before = {"guard": torch.tensor([[[7.0], [8.0]]]), "scout": torch.tensor([[[9.0]]])}
    first = torch.tensor([[[False, False, False]], [[False, True, False]], [[True, True, True]]])
    last = last_actions(vectors, first[:rows], before)
    assert last["guard"].squeeze(-1).squeeze(1).tolist() == [[7, 8], [1, 0], [0, 0]][:rows]
    assert last["scout"].flatten().tolist() == [9, 5, 0][:rows]


def test_vectors_of_all_roles_lie_side_by_side_and_come_back():
    vectors = {"guard": torch.rand(4, 2, 3), "scout": torch.rand(4, 1, 2)}
    carried = beside(vectors)
    assert carried.shape == (4, 3, 3)
    assert carried[:, 2, 2].tolist() == [0] * 4
    back = by_role(two_roles(), carried)
    assert all(torch.equal(back[name], vector) for name, vector in vectors.items())
