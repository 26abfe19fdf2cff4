"""Action vectors against literal numbers."""

import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.nets.joint_actions import JointAction
from coterie.nets.layers import encode_actions


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
