"""Observation encoders against plain convolutions, and the spaces that one network can read."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces

from coterie.core.specs import RoleSpec
from coterie.nets.encoders import (
    CNN,
    DictEncoder,
    ImageEncoder,
    build_encoder,
    can_share_network,
    concatenate_observations,
    observation_layout,
)
from policy_cases import draw

VECTOR, IMAGE = spaces.Box(-9, 9, (4,)), spaces.Box(0, 255, (8, 9, 3), dtype="uint8")
BOTH = spaces.Dict({"camera": IMAGE, "speed": VECTOR})


def convolved(images: torch.Tensor, weights: list, biases: list, strides: list[int]) -> torch.Tensor:
    """Features [M, D] of images [M, H, W, C]."""
    x = images.permute(0, 3, 1, 2)
    for weight, bias, stride in zip(weights, biases, strides, strict=True):
        x = torch.nn.functional.conv2d(x, weight, bias, stride).relu()
    return x.flatten(1)


@pytest.mark.parametrize(
    ("side", "channels", "kernels", "strides", "features"),
    [
        ((1, 4), (32,), (1,), [1], 32 * 1 * 4),
        ((9, 4), (32,), (1,), [1], 32 * 9 * 4),
        ((5, 5), (16, 32), (3, 3), [1, 2], 32),
        ((8, 9), (16, 32), (3, 3), [1, 2], 32 * 2 * 3),
        ((35, 36), (16, 32), (3, 3), [1, 2], 32 * 16 * 16),
        ((36, 44), (32, 64, 64), (8, 4, 3), [4, 2, 1], 64 * 1 * 2),
    ],
)
def test_images_pass_convolutions_that_depend_on_their_size(side, channels, kernels, strides, features):
    """From 36 x 36 pixels on those of Mnih et al. 2015."""
    cnn, images = CNN((*side, 3), None, draw()), torch.rand(2, *side, 3, generator=draw(1))
    widths = (3, *channels)
    shapes = [(b, a, k, k) for a, b, k in zip(widths, channels, kernels, strict=False)]
    assert [tuple(weight.shape) for weight in cnn.weights] == shapes
    assert cnn.features == features
    for weight in cnn.weights:
        gain = torch.linalg.svdvals(weight.flatten(1))
        torch.testing.assert_close(gain, torch.full_like(gain, 2**0.5))
    for bias in cnn.biases:
        assert bias.equal(torch.zeros_like(bias))
        torch.nn.init.normal_(bias, generator=draw(2))
    found = cnn(images)
    assert found.shape == (2, features)
    torch.testing.assert_close(found, convolved(images, list(cnn.weights), list(cnn.biases), strides))


def test_bytes_are_divided_by_255():
    cnn = CNN((8, 9, 3), None, draw())
    images = torch.randint(256, (2, 8, 9, 3), dtype=torch.uint8, generator=draw(1))
    torch.testing.assert_close(cnn(images), cnn(images.float() / 255))
    assert not torch.allclose(cnn(images), cnn(images.float()))


@pytest.mark.parametrize("sets", [None, 2])
def test_images_of_a_batch_are_encoded_agent_by_agent(sets):
    """Three timesteps of four environments with two agents, each with weights of its own if there are sets."""
    encoder, images = ImageEncoder((8, 9, 3), sets, draw()), torch.rand(3, 4, 2, 8, 9, 3, generator=draw(1))
    for bias in encoder.cnn.biases:
        torch.nn.init.normal_(bias, generator=draw(2))
    found = encoder(images)
    assert found.shape == (3, 4, 2, encoder.features)
    for t, i in ((t, i) for t in range(3) for i in range(2)):
        groups, g = (1, 0) if sets is None else (sets, i)
        weights, biases = ([p.chunk(groups)[g] for p in part] for part in (encoder.cnn.weights, encoder.cnn.biases))
        torch.testing.assert_close(found[t, :, i], convolved(images[t, :, i], weights, biases, [1, 2]))
    torch.testing.assert_close(encoder(images[0]), found[0])


def test_sensors_of_a_dictionary_are_concatenated_in_its_order():
    encoder = build_encoder(BOTH, None, draw())
    assert isinstance(encoder, DictEncoder)
    obs = {"speed": torch.randn(3, 2, 4), "camera": torch.rand(3, 2, 8, 9, 3)}
    found = encoder(obs)
    assert encoder.features == found.shape[-1] == 32 * 2 * 3 + 4
    assert found[..., -4:].equal(obs["speed"])
    assert found[..., :-4].equal(encoder.sensors["camera"](obs["camera"]))


def test_layouts_of_spaces():
    assert observation_layout(VECTOR) == (4,)
    assert observation_layout(IMAGE) == (8, 9, 3)
    assert observation_layout(BOTH) == (("camera", (8, 9, 3)), ("speed", (4,)))
    for space in (spaces.Box(-1, 1, (2, 2)), spaces.Discrete(3), spaces.Dict({"a": VECTOR, "b": spaces.Discrete(2)})):
        assert observation_layout(space) is None


def test_roles_share_a_network_if_observations_and_actions_are_equal():
    def role(space: spaces.Space, action: spaces.Space) -> RoleSpec:
        return RoleSpec("some", "all", ("some_0",), space, action)

    same = role(VECTOR, spaces.Discrete(3))
    assert can_share_network([same, role(spaces.Box(0, 1, (4,)), spaces.Discrete(3))])
    assert not can_share_network([same, role(spaces.Box(0, 1, (5,)), spaces.Discrete(3))])
    assert not can_share_network([same, same, role(VECTOR, spaces.Discrete(4))])


def test_observations_are_concatenated_along_the_agents():
    parts = [{"camera": torch.rand(5, n, 8, 9, 3), "speed": torch.randn(5, n, 4)} for n in (2, 3)]
    found = concatenate_observations(parts, BOTH)
    assert isinstance(found, dict)
    for name in ("camera", "speed"):
        assert found[name].shape[:2] == (5, 5)
        assert found[name][:, :2].equal(parts[0][name])
        assert found[name][:, 2:].equal(parts[1][name])
