"""Generalised advantages against literal numbers."""

import pytest
import torch

from coterie.math.returns import gae

NO, YES = False, True


def column(*values):
    """[T] as [T, 1, 1]."""
    return torch.tensor(values).view(-1, 1, 1)


def advantages(reward, value, last, terminated, boundary, gamma, gae_lambda):
    """Advantages [T] of one stream whose last successor is worth `last`."""
    value = [float(v) for v in value]
    stream = column(*value)
    successor = column(*value[1:], float(last))
    reward = column(*[float(r) for r in reward])
    return gae(reward, stream, successor, column(*terminated), column(*boundary), gamma, gae_lambda).flatten()


def expect(found, numbers):
    torch.testing.assert_close(found, torch.tensor(numbers), atol=1e-5, rtol=0)


def test_gae_of_a_terminated_episode():
    found = advantages([1, 2, 3], [0.5, 1, 1.5], 9.0, [NO, NO, YES], [NO, NO, YES], 0.9, 0.8)
    expect(found, [3.8696, 3.43, 1.5])


def test_gae_bootstraps_at_a_time_limit():
    found = advantages([1, 2, 3], [0.5, 1, 1.5], 2.0, [NO, NO, NO], [NO, NO, YES], 0.9, 0.8)
    expect(found, [4.80272, 4.726, 3.3])


def test_lambda_returns_are_advantages_plus_values():
    value = [0.5, 0.6, 0.7]
    ended = advantages([0, 0, 1], value, 5.0, [NO, NO, YES], [NO, NO, YES], 0.99, 0.95) + torch.tensor(value)
    expect(ended, [0.946829, 0.97515, 1.0])
    cut = advantages([0, 0, 1], value, 0.8, [NO, NO, NO], [NO, NO, YES], 0.99, 0.95) + torch.tensor(value)
    expect(cut, [1.647384, 1.720026, 1.792])


def test_td_lambda_over_a_limit_does_not_run_into_padding():
    value = [1.0, 2.0, 3.0]
    found = advantages([1, 1, 1], value, 4.0, [NO, NO, NO], [NO, NO, YES], 0.9, 0.8) + torch.tensor(value)
    expect(found, [4.85344, 4.852, 4.6])


def test_advantages_do_not_leak_from_one_episode_into_the_one_before():
    quiet = advantages([1, 0, 0, 0], [0, 0, 0, 0], 0.0, [YES, NO, NO, NO], [YES, NO, NO, NO], 0.9, 0.8)
    loud = advantages([1, 0, 99, 99], [0, 0, 0, 0], 7.0, [YES, NO, NO, NO], [YES, NO, NO, NO], 0.9, 0.8)
    assert quiet[0] == loud[0] == 1.0
    assert quiet[2] != loud[2]


@pytest.mark.parametrize("cut", [False, True])
def test_an_endless_reward_under_a_limit_is_worth_ten_only_if_the_limit_is_no_end(cut):
    value = torch.zeros(5, 1, 1)
    flags = column(NO, NO, NO, NO, YES)
    for _ in range(400):  # values regressed onto lambda-returns, as an exact critic would
        # The successor of the last step is worth what the first is: the state never changes.
        successor = torch.cat([value[1:], value[:1]])
        value = value + gae(torch.ones(5, 1, 1), value, successor, flags & cut, flags, 0.9, 0.95)
    if cut:
        assert value.max() < 4.2  # 1 + .9 + .9^2 + .9^3 + .9^4 at the most
    else:
        torch.testing.assert_close(value, torch.full((5, 1, 1), 10.0), atol=1e-3, rtol=0)


def test_lambda_one_is_monte_carlo_and_lambda_zero_is_one_step():
    generator = torch.Generator().manual_seed(0)
    reward = torch.rand(6, 2, 3, generator=generator)
    value = torch.rand(7, 2, 3, generator=generator)
    no = torch.zeros(6, 2, 3, dtype=torch.bool)
    monte_carlo = gae(reward, value[:-1], value[1:], no, no, 0.9, 1.0) + value[:-1]
    discounts = 0.9 ** torch.arange(7.0).view(7, 1, 1)
    torch.testing.assert_close(monte_carlo[0], (reward * discounts[:6]).sum(0) + discounts[6] * value[6])
    one_step = gae(reward, value[:-1], value[1:], no, no, 0.9, 0.0)
    torch.testing.assert_close(one_step, reward + 0.9 * value[1:] - value[:-1])


def test_every_reward_signal_has_its_own_discount():
    reward = torch.ones(3, 1, 1, 2)
    value = torch.zeros(3, 1, 1, 2)
    flags = column(NO, NO, YES).unsqueeze(-1)
    found = gae(reward, value, value, flags, flags, torch.tensor([0.5, 1.0]), 1.0)
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([1.75, 3.0]))
