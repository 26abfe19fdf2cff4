"""Advantages, returns and their masks against literal numbers."""

from dataclasses import replace

import pytest
import torch

from coterie.core.types import TIME_LEFT, Rollout
from coterie.functional.policy_gradient import gae
from coterie.functional.returns import (
    agent_rewards,
    bootstrap_masks,
    bootstrap_step,
    lambda_return,
    n_step_return,
    present_agents,
    team_bootstrap_masks,
    terminate_at_limit,
    valid_mask,
)

NO, YES = False, True


def column(*values):
    """[T] as [T, 1, 1]."""
    return torch.tensor(values).view(-1, 1, 1)


def advantages(reward, value, last, terminated, boundary, gamma, gae_lambda):
    """Advantages [T] of one signal; `last` is the value of the last successor."""
    value = [float(v) for v in value]
    stream = column(*value)
    successor = column(*value[1:], float(last))
    reward = column(*[float(r) for r in reward])
    return gae(
        reward,
        stream,
        successor,
        terminated=column(*terminated),
        boundary=column(*boundary),
        gamma=gamma,
        gae_lambda=gae_lambda,
    ).flatten()


def expect(found, numbers):
    torch.testing.assert_close(found, torch.tensor(numbers), atol=1e-5, rtol=0)


def test_gae_of_a_terminated_episode():
    found = advantages([1, 2, 3], [0.5, 1, 1.5], 9.0, [NO, NO, YES], [NO, NO, YES], 0.9, 0.8)
    expect(found, [3.8696, 3.43, 1.5])


def test_gae_bootstraps_at_a_time_limit():
    found = advantages([1, 2, 3], [0.5, 1, 1.5], 2.0, [NO, NO, NO], [NO, NO, YES], 0.9, 0.8)
    expect(found, [4.80272, 4.726, 3.3])


def test_advantages_do_not_leak_into_the_previous_episode():
    quiet = advantages([1, 0, 0, 0], [0, 0, 0, 0], 0.0, [YES, NO, NO, NO], [YES, NO, NO, NO], 0.9, 0.8)
    loud = advantages([1, 0, 99, 99], [0, 0, 0, 0], 7.0, [YES, NO, NO, NO], [YES, NO, NO, NO], 0.9, 0.8)
    assert quiet[0] == loud[0] == 1.0
    assert quiet[2] != loud[2]


def test_every_reward_signal_has_its_own_discount():
    reward = torch.ones(3, 1, 1, 2)
    value = torch.zeros(3, 1, 1, 2)
    flags = column(NO, NO, YES).unsqueeze(-1)
    found = gae(reward, value, value, terminated=flags, boundary=flags, gamma=torch.tensor([0.5, 1.0]), gae_lambda=1.0)
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([1.75, 3.0]))


# ------------------------------------------------------------------------------------ lambda-returns, n-step returns


def returns(function, reward, next_value, terminated, boundary, gamma, last):
    """Returns [T] of one signal by `lambda_return` or `n_step_return`; next_value: V of the successors."""
    reward, next_value = (column(*[float(x) for x in values]) for values in (reward, next_value))
    name = "td_lambda" if function is lambda_return else "n"
    flags = {"terminated": column(*terminated), "boundary": column(*boundary)}
    return function(reward, next_value, **flags, gamma=gamma, **{name: last}).flatten()


THREE = [NO, NO, NO]
THIRD = [NO, NO, YES]


@pytest.mark.parametrize("padding", [9.0, float("nan")])
def test_lambda_return_reads_no_value_after_termination(padding):
    found = returns(lambda_return, [0, 0, 1], [0.6, 0.7, padding], THIRD, THIRD, 0.99, 0.95)
    expect(found, [0.946829, 0.97515, 1.0])


def test_lambda_return_bootstraps_at_a_time_limit_and_at_the_last_timestep():
    limit = returns(lambda_return, [0, 0, 1], [0.6, 0.7, 0.8], THREE, THIRD, 0.99, 0.95)
    expect(limit, [1.647384, 1.720026, 1.792])
    expect(returns(lambda_return, [0, 0, 1], [0.6, 0.7, 0.8], THREE, THREE, 0.99, 0.95), limit.tolist())


def test_lambda_return_with_a_discount_per_step():
    gamma = column(0.5, 0.9, 1.0, 0.5, 0.8)
    no = [NO] * 5
    found = returns(lambda_return, [1, 0, -1, 0, 1], [3, 1, 5, -5, 3], no, no, gamma, 0.75)
    expect(found, [1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4])


def test_lambda_return_at_a_time_limit_does_not_read_padding():
    """Negative control: without the boundary, the padding changes the result."""
    signal = [1, 1, 1, 77], [2, 3, 4, 66], [NO] * 4
    found = returns(lambda_return, *signal, [NO, NO, YES, YES], 0.9, 0.8)
    expect(found[:3], [4.85344, 4.852, 4.6])
    assert returns(lambda_return, *signal, [NO] * 4, 0.9, 0.8)[0] > 10


def test_lambda_return_is_gae_plus_value():
    draw = torch.Generator().manual_seed(3)
    reward, value = torch.rand(9, 4, 2, generator=draw), torch.rand(10, 4, 2, generator=draw)
    terminated = torch.rand(9, 4, 2, generator=draw) < 0.2
    boundary = terminated | (torch.rand(9, 4, 2, generator=draw) < 0.2)
    found = lambda_return(reward, value[1:], terminated=terminated, boundary=boundary, gamma=0.9, td_lambda=0.8)
    torch.testing.assert_close(
        found,
        gae(reward, value[:-1], value[1:], terminated=terminated, boundary=boundary, gamma=0.9, gae_lambda=0.8)
        + value[:-1],
    )


def test_n_step_return_reads_nothing_after_termination():
    found = returns(n_step_return, [1, 1, 1], [5, 6, 10], THIRD, THIRD, 0.9, 5)
    expect(found, [2.71, 1.9, 1.0])
    flags = [*THIRD, NO, NO]
    found = returns(n_step_return, [1, 1, 1, 9, 9], [5, 6, 10, 3, 3], flags, flags, 0.9, 5)
    expect(found[:3], [2.71, 1.9, 1.0])


def test_n_step_return_bootstraps_after_n_steps_or_at_a_time_limit():
    signal = [1, 2, 3, 4], [10, 20, 30, 40], [NO] * 4
    expect(returns(n_step_return, *signal, [NO] * 4, 0.5, 1), [6.0, 12, 18, 24])
    expect(returns(n_step_return, *signal, [NO] * 4, 0.5, 2), [1 + 1 + 5, 2 + 1.5 + 7.5, 3 + 2 + 10, 24])
    expect(returns(n_step_return, *signal, [NO, YES, NO, NO], 0.5, 3), [1 + 1 + 5.0, 12, 3 + 2 + 10, 24])


def test_a_return_of_all_steps_bootstraps_after_the_first_boundary_or_the_last_step():
    boundary = torch.tensor([[0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
    assert bootstrap_step(boundary).tolist() == [2, 0, 1, 2]


def test_n_step_return_of_a_whole_rollout_is_lambda_one_and_monte_carlo():
    draw = torch.Generator().manual_seed(1)
    reward, value = torch.rand(6, 2, 3, generator=draw), torch.rand(6, 2, 3, generator=draw)
    no = torch.zeros(6, 2, 3, dtype=torch.bool)
    discounts = 0.9 ** torch.arange(7.0).view(7, 1, 1)
    monte_carlo = (reward * discounts[:6]).sum(0) + discounts[6] * value[5]
    for found in (
        n_step_return(reward, value, terminated=no, boundary=no, gamma=0.9, n=6),
        lambda_return(reward, value, terminated=no, boundary=no, gamma=0.9, td_lambda=1.0),
    ):
        torch.testing.assert_close(found[0], monte_carlo)
    terminated = torch.rand(6, 2, 3, generator=draw) < 0.2
    boundary = terminated | (torch.rand(6, 2, 3, generator=draw) < 0.2)
    torch.testing.assert_close(
        n_step_return(reward, value, terminated=terminated, boundary=boundary, gamma=0.9, n=6),
        lambda_return(reward, value, terminated=terminated, boundary=boundary, gamma=0.9, td_lambda=1.0),
    )


def test_every_reward_signal_has_its_own_discount_in_a_lambda_return():
    reward, flags = torch.ones(3, 1, 1, 2), column(NO, NO, YES).unsqueeze(-1)
    for found in (
        lambda_return(
            reward,
            torch.zeros_like(reward),
            terminated=flags,
            boundary=flags,
            gamma=torch.tensor([0.5, 1.0]),
            td_lambda=1.0,
        ),
        n_step_return(
            reward, torch.zeros_like(reward), terminated=flags, boundary=flags, gamma=torch.tensor([0.5, 1.0]), n=3
        ),
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
def test_float64_inputs_are_computed_in_full_precision(function, known):
    """gamma 0.9, lambda 0.8 or two steps, r = 1, V = [.5, .6, .7, .8].

    Negative control: a discount rounded to single precision.
    """
    value = torch.tensor([0.5, 0.6, 0.7, 0.8], dtype=torch.float64).view(4, 1, 1)
    values = (value[:-1], value[1:]) if function is gae else (value[1:],)
    no = torch.zeros(3, 1, 1, dtype=torch.bool)
    last = {gae: {"gae_lambda": 0.8}, lambda_return: {"td_lambda": 0.8}, n_step_return: {"n": 2}}[function]
    exact, rounded = (
        function(torch.ones_like(value[1:]), *values, terminated=no, boundary=no, gamma=gamma, **last).flatten()
        for gamma in (0.9, torch.tensor(0.9).item())
    )
    expected = torch.tensor(known, dtype=torch.float64)
    torch.testing.assert_close(exact, expected, atol=1e-14, rtol=0)
    assert (rounded - expected).abs().max() > 1e-8


ENDS = {
    "nobody ends": ("ab", "", "", "ab", "", (NO, NO), "ab"),
    "the episode is truncated": ("ab", "", "ab", "ab", "truncated", (NO, YES), "ab"),
    "the episode terminates": ("ab", "ab", "", "", "terminated", (YES, YES), ""),
    "a dies, b goes on": ("ab", "a", "", "b", "", (NO, NO), "b"),
    "a is truncated, b goes on": ("ab", "", "a", "b", "", (NO, NO), "b"),
    "both are truncated, the episode goes on": ("ab", "", "ab", "", "", (NO, YES), "ab"),
    "a is truncated, the last one": ("a", "", "a", "", "", (NO, YES), "a"),
    "a is truncated while b dies, the last ones": ("ab", "b", "a", "", "", (NO, YES), "a"),
    "a dies, the last one": ("a", "a", "", "", "", (YES, YES), ""),
    "both die": ("ab", "ab", "", "", "", (YES, YES), ""),
    "nobody is left": ("", "", "", "", "", (NO, NO), ""),
    "the episode is truncated while b dies": ("ab", "b", "a", "a", "truncated", (NO, YES), "a"),
    "a dies and lives again": ("ab", "a", "", "Ab", "", (NO, NO), "ab"),
    "a dies, the last one, and lives again": ("a", "a", "", "A", "", (YES, YES), "a"),
    "both die and live again": ("ab", "ab", "", "AB", "", (YES, YES), "ab"),
    "a dies and lives again while b is truncated": ("ab", "a", "b", "A", "", (NO, YES), "a"),
    "a dies, the last one, and b appears": ("a", "a", "", "B", "", (YES, YES), "b"),
    "a is truncated, the last one, and b appears": ("a", "", "a", "B", "", (NO, YES), "b"),
    "b appears while a is there": ("a", "", "", "aB", "", (NO, NO), "ab"),
    "all appear again after a step with nobody": ("", "", "", "AB", "", (NO, NO), "ab"),
}
"""Per case: the agents alive, terminated, truncated and alive afterwards (A: in a new life), the end of the episode;
the team's masks (terminated, boundary), and the agents whose value the successor's includes. Agents' masks are those of
the team, and True where a new life begins."""


def flags(agents):
    return torch.tensor([[["a" in agents.lower(), "b" in agents.lower()]]])


@pytest.mark.parametrize("case", ENDS)
def test_ends_of_a_team_s_return(case):
    alive, terminated, truncated, alive_after, end, masks, present = ENDS[case]
    rollout = Rollout(
        obs={}, action_mask={}, state={}, action={}, extras={}, hidden_state={},
        alive=torch.cat([flags(alive), flags(alive_after)]),
        first=torch.tensor([[[False] * 2], [["A" in alive_after, "B" in alive_after]]]),
        acted=torch.tensor([[True], [not end]]), reward=torch.zeros(1, 1, 2), group_reward=torch.zeros(1, 1, 1),
        terminated=flags(terminated), truncated=flags(truncated),
        episode_terminated=torch.tensor([[end == "terminated"]]),
        episode_truncated=torch.tensor([[end == "truncated"]]),
    )  # fmt: skip
    assert [mask.item() for mask in team_bootstrap_masks(rollout, agents_can_die=True)] == list(masks)
    found = bootstrap_masks(rollout, outlives=True, agents_can_die=True)
    assert [mask.tolist() for mask in found] == [[[[mask or new in alive_after for new in "AB"]]] for mask in masks]
    assert present_agents(rollout).equal(torch.cat([flags(alive), flags(present)]))
    assert valid_mask(rollout, of_team=True).equal(torch.full((1, 1, 2), bool(alive)))
    assert valid_mask(rollout).equal(flags(alive))
    ended, boundary = bootstrap_masks(rollout, outlives=False, agents_can_die=True)  # each agent has its own return
    assert ended.equal(flags(terminated))
    assert boundary.equal(flags(terminated) | flags(truncated))


def random_rollout(timesteps: int, envs: int) -> Rollout:
    """A rollout of two agents with random flags, which need not be consistent."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw) < 0.5

    rows, agents = (timesteps, envs), (timesteps, envs, 2)
    terminated, ended = some(*agents), some(*rows)
    return Rollout(
        obs={}, action_mask={}, state={}, action={}, extras={}, hidden_state={},
        alive=some(timesteps + 1, envs, 2), first=some(timesteps + 1, envs, 2), acted=some(timesteps + 1, envs),
        reward=torch.randn(*agents, generator=draw), group_reward=torch.randn(*rows, 3, generator=draw),
        terminated=terminated, truncated=some(*agents) & ~terminated,
        episode_terminated=ended, episode_truncated=some(*rows) & ~ended,
    )  # fmt: skip


def test_masks_of_a_rollout_are_those_of_its_steps():
    """Five timesteps of three environments, each compared with its formula in plain Python."""
    rollout = random_rollout(5, 3)
    alive, team = valid_mask(rollout), valid_mask(rollout, of_team=True)
    present = present_agents(rollout)
    ends = bootstrap_masks(rollout, outlives=True, agents_can_die=True)
    together = team_bootstrap_masks(rollout, agents_can_die=True)
    own = [bootstrap_masks(rollout, *flags) for flags in ((False, True), (True, False), (False, False))]
    for t, b in ((t, b) for t in range(5) for b in range(3)):
        acted, later = rollout.acted[t, b].item(), rollout.alive[t + 1, b].tolist()
        valid = [agent and acted for agent in rollout.alive[t, b].tolist()]
        truncated, terminated = rollout.truncated[t, b].tolist(), rollout.terminated[t, b].tolist()
        assert (alive[t, b].tolist(), team[t, b].tolist()) == (valid, [any(valid)] * 2)
        seen = [there or (cut and not any(later)) for there, cut in zip(later, truncated, strict=True)]
        assert present[t + 1, b].tolist() == seen
        new, over = rollout.first[t + 1, b].tolist(), [x or y for x, y in zip(terminated, truncated, strict=True)]
        last = any(over) and not any(there and not f for there, f in zip(later, new, strict=True))
        ended = rollout.episode_terminated[t, b].item() or (last and not any(truncated))
        boundary = ended or last or rollout.episode_truncated[t, b].item() or not acted
        assert [mask[t, b].item() for mask in together] == [ended, boundary]
        old = zip(rollout.alive[t, b].tolist(), over, new, strict=True)
        replaced = [acted and f and (end or not there) for there, end, f in old]
        assert [mask[t, b].tolist() for mask in ends] == [[end or r for r in replaced] for end in (ended, boundary)]
        for found, stop in own:
            assert found[t, b].tolist() == terminated
            assert stop[t, b].tolist() == [x or not acted for x in over]
    assert present[0].equal(rollout.alive[0])
    alone = [mask[..., 0] for mask in bootstrap_masks(rollout, True, False)]
    assert all(x.equal(y) for x, y in zip(team_bootstrap_masks(rollout, False), alone, strict=True))


def test_rewards_of_agents_are_their_own_plus_their_group_s_or_the_mean_of_the_team():
    """Of three groups, the first has both agents, the second has agent 1, and the third has none."""
    rollout, membership = random_rollout(4, 3), torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    group = rollout.group_reward
    both = torch.stack([rollout.reward[..., 0] + group[..., 0], rollout.reward[..., 1] + group[..., :2].sum(-1)], -1)
    assert agent_rewards(rollout, membership, False, False).equal(rollout.reward)
    torch.testing.assert_close(agent_rewards(rollout, membership, True, False), both)
    mean = ((both[..., 0] + both[..., 1]) / 2).unsqueeze(-1).expand(-1, -1, 2)
    torch.testing.assert_close(agent_rewards(rollout, membership, True, True), mean)


def test_a_limit_that_counts_as_the_end_ends_returns():
    rollout = random_rollout(5, 3)
    ended = terminate_at_limit(rollout)
    assert ended.terminated.equal(rollout.terminated | rollout.truncated)
    assert ended.episode_terminated.equal(rollout.episode_terminated | rollout.episode_truncated)
    assert not ended.truncated.any()
    assert not ended.episode_truncated.any()
    dropped, boundary = bootstrap_masks(ended, outlives=False, agents_can_die=False)
    assert dropped.equal(ended.terminated)
    assert boundary.equal(bootstrap_masks(rollout, outlives=False, agents_can_die=False)[1])
    assert ended.reward is rollout.reward


def test_truncation_before_a_known_limit_still_bootstraps():
    """The first episode reaches the limit of two steps at its end, the second after one, as by a failure."""
    rollout, left = random_rollout(2, 2), torch.tensor([[1.0, 1.0], [0.5, 0.5], [0.0, 0.0]]).unsqueeze(-1)
    episode = torch.tensor([[False, True], [True, False]])
    agents = torch.stack([episode, torch.zeros_like(episode)], -1)  # the first agent alone
    no = torch.zeros_like(agents)
    state, over = {TIME_LEFT: left}, no[..., 0]
    rollout = replace(rollout, state=state, terminated=no, truncated=agents)
    ended = terminate_at_limit(replace(rollout, episode_terminated=over, episode_truncated=episode))
    assert ended.episode_terminated.tolist() == [[False, False], [True, False]]
    assert ended.episode_truncated.tolist() == [[False, True], [False, False]]
    assert ended.terminated[..., 0].equal(ended.episode_terminated)
    assert ended.truncated[..., 0].equal(ended.episode_truncated)
    assert not (ended.terminated | ended.truncated)[..., 1].any()
