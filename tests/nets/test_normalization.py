"""Normalization of observations against literal numbers."""

from __future__ import annotations

import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.nets.team import Block, ObservationNormalizer, obs_shape, team_blocks

CPU = torch.device("cpu")


def blocks() -> tuple[Block, ...]:
    """Two guards with two numbers, a scout with one, and a camera with an image."""
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), spaces.Box(-9, 9, (2,)), spaces.Discrete(2)),
        RoleSpec("scout", "all", ("scout_0",), spaces.Box(-9, 9, (1,)), spaces.Discrete(2)),
        RoleSpec("camera", "all", ("camera_0",), spaces.Box(0, 255, (8, 8, 3)), spaces.Discrete(2)),
    )
    return team_blocks(EnvSpec("three", roles, {}).default_teams()[0], "role")


def observations() -> dict:
    """Two environments. Guards: (0, 0), (2, 10); (4, 20), invalid. The scout: 1 and 5."""
    guard = torch.tensor([[[0.0, 0.0], [2.0, 10.0]], [[4.0, 20.0], [9e9, 9e9]]])
    return {"guard": guard, "scout": torch.tensor([[[1.0]], [[5.0]]]), "camera": torch.full((2, 1, 8, 8, 3), 7.0)}


VALID = torch.tensor([[True, True, True, True], [True, False, True, True]])


def test_blocks_have_statistics_of_their_own_over_valid_entries():
    """The guards' first number has mean 2 and variance 8/3, the scout's mean 3 and variance 4."""
    normalizer = ObservationNormalizer(blocks(), CPU)
    obs = observations()
    before = normalizer(obs)
    assert before["scout"].equal(obs["scout"]), "mean 0 and standard deviation 1 without data"
    normalizer.update(obs, VALID)
    found = normalizer(obs)
    std = (8 / 3) ** 0.5
    torch.testing.assert_close(found["guard"][0], torch.tensor([[-2 / std, -2 / std], [0.0, 0.0]]))
    torch.testing.assert_close(found["guard"][1, 0], torch.tensor([2 / std, 2 / std]))
    assert found["guard"][1, 1].tolist() == [10, 10], "clipped"
    torch.testing.assert_close(found["scout"], torch.tensor([[[-1.0]], [[1.0]]]))
    assert found["camera"] is obs["camera"]
    assert set(dict(normalizer.scales.named_buffers())) == {"guard.mean", "guard.std", "scout.mean", "scout.std"}
    assert obs["scout"].flatten().tolist() == [1, 5], "the input stays as it is"


def test_normalized_observations_are_clipped_on_both_sides():
    normalizer = ObservationNormalizer(blocks(), CPU, clip=0.5)
    normalizer.update(observations(), VALID)
    assert normalizer(observations())["scout"].flatten().tolist() == [-0.5, 0.5]


def test_a_restored_normalizer_continues_with_the_same_statistics():
    one, other = ObservationNormalizer(blocks(), CPU), ObservationNormalizer(blocks(), CPU)
    one.update(observations(), VALID)
    other.load_state_dict(one.state_dict())
    assert other(observations())["guard"].equal(one(observations())["guard"])
    for normalizer in (one, other):
        normalizer.update(observations(), ~VALID)
    assert other(observations())["guard"].equal(one(observations())["guard"])


def test_shapes_of_observations():
    camera = blocks()[2]
    assert [obs_shape(block) for block in blocks()] == [(2,), (1,), (8, 8, 3)]
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,))})
    role = RoleSpec("many", "all", ("many_0",), space, spaces.Discrete(2))
    assert obs_shape(Block("many", (role,), 0, 1)) == ()
    assert ObservationNormalizer((camera,), CPU)({"camera": 3}) == {"camera": 3}
