"""Sums and steps of episodes by the kernel are those of PyTorch, bit for bit."""

import pytest
import torch

from coterie.kernels import episodes as kernel
from coterie.training import episodes, rollout_builder


def drawn(steps, envs, share, dtype=torch.float32):
    draw = torch.Generator().manual_seed(steps + envs)
    ended = torch.rand(steps, envs, generator=draw) < share
    reward, group = (torch.randn(steps, envs, n, generator=draw, dtype=dtype) for n in (3, 2))
    before = torch.randn(envs, 6, generator=draw, dtype=torch.float64)
    return reward, group, torch.rand(steps, envs, generator=draw) < 0.9, ended, before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("steps", "envs", "share"), [(1, 1, 1.0), (9, 4, 0.0), (9, 4, 0.3), (16, 33, 1.0), (40, 7, 0.1)]
)
def test_sums_of_episodes(steps, envs, share, dtype):
    arguments = drawn(steps, envs, share, dtype)
    arguments = tuple(x.transpose(0, 1).contiguous().transpose(0, 1) for x in arguments)  # any memory layout
    count = int(arguments[3].sum())
    found, expected = kernel.sum_episodes(*arguments), episodes._sum_episodes(*arguments, count)
    assert found is not None
    assert len(found.env) == count
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)
        assert x.dtype is y.dtype


def test_sums_without_groups_and_agents():
    reward, group, acted, ended, before = drawn(8, 3, 0.4)
    for own, groups, kept in ((reward, group[..., :0], [0, 1, 2, 5]), (reward[..., :0], group, [3, 4, 5])):
        arguments = (own, groups, acted, ended, before[:, kept])
        assert all(map(torch.equal, kernel.sum_episodes(*arguments), episodes._sum_episodes(*arguments, None)))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_steps_of_episodes(share, monkeypatch):
    monkeypatch.setattr(rollout_builder.switch, "on", False)
    acted = torch.rand(13, 5, generator=torch.Generator().manual_seed(1)) >= share
    before = torch.arange(5)
    expected = torch.stack([before, *(torch.zeros(5, dtype=torch.int64) for _ in acted[:-1])])
    for t, flags in enumerate(acted[:-1]):
        expected[t + 1] = torch.where(flags, expected[t] + 1, 0)
    assert torch.equal(rollout_builder.steps_done(acted, before), expected)
    monkeypatch.setattr(rollout_builder.switch, "on", True)
    assert torch.equal(rollout_builder.steps_done(acted, before), expected)


def test_what_the_kernel_would_read_as_something_else_is_refused():
    reward, group, acted, ended, before = drawn(8, 3, 0.4)
    assert kernel.sum_episodes(reward, group.double(), acted, ended, before) is None
    with pytest.raises(ValueError, match=r"^sum_episodes: acted is torch.bool \[7, 3\]"):
        kernel.sum_episodes(reward, group, acted[:-1], ended, before)
    with pytest.raises(TypeError, match=r"^sum_episodes: before is torch.float32"):
        kernel.sum_episodes(reward, group, acted, ended, before.float())
    with pytest.raises(TypeError, match=r"^steps_done: before is torch.int32"):
        kernel.steps_done(acted, torch.zeros(3, dtype=torch.int32))
