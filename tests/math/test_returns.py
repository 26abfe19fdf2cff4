"""Advantages and returns against literal numbers."""

import pytest
import torch

from coterie.math.returns import endless_return, gae, lambda_return, n_step_return

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


# ------------------------------------------------------------------------------------ lambda-returns, n-step returns


def returns(function, reward, following, terminated, boundary, gamma, last):
    """Returns [T] of one stream by `lambda_return` or `n_step_return`; following: V of the successors."""
    reward, following = (column(*[float(x) for x in values]) for values in (reward, following))
    return function(reward, following, column(*terminated), column(*boundary), gamma, last).flatten()


THREE = [NO, NO, NO]
THIRD = [NO, NO, YES]


@pytest.mark.parametrize("padding", [9.0, float("nan")])
def test_a_lambda_return_of_a_terminated_episode_reads_no_value_behind_its_end(padding):
    found = returns(lambda_return, [0, 0, 1], [0.6, 0.7, padding], THIRD, THIRD, 0.99, 0.95)
    expect(found, [0.946829, 0.97515, 1.0])


def test_a_lambda_return_bootstraps_at_a_time_limit_and_in_the_last_row():
    limit = returns(lambda_return, [0, 0, 1], [0.6, 0.7, 0.8], THREE, THIRD, 0.99, 0.95)
    expect(limit, [1.647384, 1.720026, 1.792])
    expect(returns(lambda_return, [0, 0, 1], [0.6, 0.7, 0.8], THREE, THREE, 0.99, 0.95), limit.tolist())


def test_every_step_of_a_lambda_return_may_have_its_own_discount():
    gamma = column(0.5, 0.9, 1.0, 0.5, 0.8)
    no = [NO] * 5
    found = returns(lambda_return, [1, 0, -1, 0, 1], [3, 1, 5, -5, 3], no, no, gamma, 0.75)
    expect(found, [1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4])


def test_a_lambda_return_over_a_limit_does_not_run_into_padding():
    """The control forgets the limit: what stands in the row behind it shows."""
    rows = [1, 1, 1, 77], [2, 3, 4, 66], [NO] * 4
    found = returns(lambda_return, *rows, [NO, NO, YES, YES], 0.9, 0.8)
    expect(found[:3], [4.85344, 4.852, 4.6])
    assert returns(lambda_return, *rows, [NO] * 4, 0.9, 0.8)[0] > 10


def test_lambda_returns_are_generalised_advantages_plus_values():
    draw = torch.Generator().manual_seed(3)
    reward, value = torch.rand(9, 4, 2, generator=draw), torch.rand(10, 4, 2, generator=draw)
    terminated = torch.rand(9, 4, 2, generator=draw) < 0.2
    boundary = terminated | (torch.rand(9, 4, 2, generator=draw) < 0.2)
    found = lambda_return(reward, value[1:], terminated, boundary, 0.9, 0.8)
    torch.testing.assert_close(found, gae(reward, value[:-1], value[1:], terminated, boundary, 0.9, 0.8) + value[:-1])


def test_an_n_step_return_never_reads_behind_an_end():
    found = returns(n_step_return, [1, 1, 1], [5, 6, 10], THIRD, THIRD, 0.9, 5)
    expect(found, [2.71, 1.9, 1.0])
    flags = [*THIRD, NO, NO]
    found = returns(n_step_return, [1, 1, 1, 9, 9], [5, 6, 10, 3, 3], flags, flags, 0.9, 5)
    expect(found[:3], [2.71, 1.9, 1.0])


def test_an_n_step_return_bootstraps_n_steps_on_or_at_the_limit_before_that():
    rows = [1, 2, 3, 4], [10, 20, 30, 40], [NO] * 4
    expect(returns(n_step_return, *rows, [NO] * 4, 0.5, 1), [6.0, 12, 18, 24])
    expect(returns(n_step_return, *rows, [NO] * 4, 0.5, 2), [1 + 1 + 5, 2 + 1.5 + 7.5, 3 + 2 + 10, 24])
    expect(returns(n_step_return, *rows, [NO, YES, NO, NO], 0.5, 3), [1 + 1 + 5.0, 12, 3 + 2 + 10, 24])


def test_n_steps_of_a_whole_window_are_lambda_one_are_monte_carlo():
    draw = torch.Generator().manual_seed(1)
    reward, value = torch.rand(6, 2, 3, generator=draw), torch.rand(6, 2, 3, generator=draw)
    no = torch.zeros(6, 2, 3, dtype=torch.bool)
    discounts = 0.9 ** torch.arange(7.0).view(7, 1, 1)
    monte_carlo = (reward * discounts[:6]).sum(0) + discounts[6] * value[5]
    for found in (n_step_return(reward, value, no, no, 0.9, 6), lambda_return(reward, value, no, no, 0.9, 1.0)):
        torch.testing.assert_close(found[0], monte_carlo)
    terminated = torch.rand(6, 2, 3, generator=draw) < 0.2
    boundary = terminated | (torch.rand(6, 2, 3, generator=draw) < 0.2)
    torch.testing.assert_close(
        n_step_return(reward, value, terminated, boundary, 0.9, 6),
        lambda_return(reward, value, terminated, boundary, 0.9, 1.0),
    )


def test_every_reward_signal_has_its_own_discount_in_a_lambda_return():
    reward, flags = torch.ones(3, 1, 1, 2), column(NO, NO, YES).unsqueeze(-1)
    for found in (
        lambda_return(reward, torch.zeros_like(reward), flags, flags, torch.tensor([0.5, 1.0]), 1.0),
        n_step_return(reward, torch.zeros_like(reward), flags, flags, torch.tensor([0.5, 1.0]), 3),
    ):
        torch.testing.assert_close(found[0, 0, 0], torch.tensor([1.75, 3.0]))


@pytest.mark.parametrize(
    ("function", "known"),
    [
        (gae, [2.310368, 1.7644, 1.02]),
        (lambda_return, [2.810368, 2.3644, 1.72]),
        (n_step_return, [2.467, 2.548, 1.72]),
    ],
)
def test_doubles_are_reckoned_with_to_their_last_digit(function, known):
    """gamma 0.9, lambda 0.8 or two steps, r = 1, V = [.5, .6, .7], and .8 behind. The control's discount went through
    single precision.
    """
    value = torch.tensor([0.5, 0.6, 0.7, 0.8], dtype=torch.float64).view(4, 1, 1)
    values = (value[:-1], value[1:]) if function is gae else (value[1:],)
    no = torch.zeros(3, 1, 1, dtype=torch.bool)
    exact, rounded = (
        function(torch.ones_like(value[1:]), *values, no, no, gamma, 2 if function is n_step_return else 0.8).flatten()
        for gamma in (0.9, torch.tensor(0.9).item())
    )
    wanted = torch.tensor(known, dtype=torch.float64)
    torch.testing.assert_close(exact, wanted, atol=1e-14, rtol=0)
    assert (rounded - wanted).abs().max() > 1e-8


def test_an_endless_return_goes_on_in_the_next_episode():
    """The row that nobody acts in takes no time: with lambda 1 the reward of 4 behind it is one step away."""
    reward = torch.tensor([1.0, 2.0, 0.0, 4.0])
    value = torch.tensor([10.0, 20.0, 99.0, 40.0, 50.0])
    live = torch.tensor([True, True, False, True])
    found = endless_return(reward, value, live, 0.5, 1.0)
    # G_3 = 4 + 0.5 x 50, G_2 = G_3, G_1 = 2 + 0.5 x 29, G_0 = 1 + 0.5 x 16.5
    assert found.tolist() == [9.25, 16.5, 29.0, 29.0]
    one_step = endless_return(reward, value, live, 0.5, 0.0)
    assert one_step.tolist() == [11.0, 22.0, 29.0, 29.0]  # V of the row behind the closing one, not the 99 of its own
    ended = lambda_return(reward, value[1:], ~live | torch.tensor([False, True, False, False]), ~live, 0.5, 1.0)
    assert ended.tolist()[:2] == [2.0, 2.0]  # the control: what is cut off at the end


def test_an_endless_return_without_ends_is_the_lambda_return():
    g = torch.Generator().manual_seed(0)
    reward, value = torch.rand(7, 3, 2, 2, generator=g), torch.rand(8, 3, 2, 2, generator=g)
    never = torch.zeros(7, 3, 2, 1, dtype=torch.bool)
    gamma = torch.tensor([0.9, 0.5])
    found = endless_return(reward, value, ~never, gamma, 0.8)
    torch.testing.assert_close(found, lambda_return(reward, value[1:], never, never, gamma, 0.8))
    assert not torch.allclose(found, lambda_return(reward, value[1:], never, never, 0.9, 0.8))
