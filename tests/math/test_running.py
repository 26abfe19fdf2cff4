"""Running statistics and schedules."""

import pytest
import torch

from coterie.math.running import count_scale, count_start, count_update, ema_scale, ema_start, ema_update
from coterie.math.schedules import scheduled


def moments_of(x):
    return x.double().mean().view(1), x.double().square().mean().view(1)


def test_after_one_update_the_value_scale_is_that_of_the_batch():
    x = torch.tensor([1.0, 5.0, 9.0])
    mean, scale = ema_scale(ema_update(ema_start(1), *moments_of(x), beta=0.99999))
    assert mean.item() == pytest.approx(5.0)
    assert scale.item() ** 2 == pytest.approx(x.var(correction=0).item(), rel=1e-4)


def test_the_variance_is_at_least_a_hundredth():
    x = torch.full((4,), 3.0)
    _, scale = ema_scale(ema_update(ema_start(1), *moments_of(x), beta=0.99999))
    assert scale.item() == pytest.approx(0.1)


def test_statistics_that_have_seen_nothing_change_nothing():
    for mean, scale in (ema_scale(ema_start(2)), count_scale(count_start(2))):
        assert (mean.tolist(), scale.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_exact_moments_in_parts_equal_those_of_the_whole():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 4 + 2
    moments = count_start(3)
    for part in x.split([1, 20, 29]):
        moments = count_update(moments, part, None)
    mean, scale = count_scale(moments)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(scale, x.std(0, correction=0))


def test_masked_samples_are_not_counted():
    x = torch.tensor([[1.0], [float("nan")], [3.0]])
    moments = count_update(count_start(1), x, torch.tensor([True, False, True]))
    assert (moments["count"].item(), moments["mean"].item()) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("shape", "progress", "value"),
    [
        ("constant", 0.7, 1.0),
        ("linear", 0.0, 1.0),
        ("linear", 0.5, 0.505),
        ("linear", 1.0, 0.01),
        ("exponential", 0.5, 0.1),
        ("exponential", 2.0, 0.01),
    ],
)
def test_schedules_at_their_points(shape, progress, value):
    assert scheduled(shape, 1.0, 0.01, progress) == pytest.approx(value)
