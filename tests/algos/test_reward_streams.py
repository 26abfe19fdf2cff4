"""Advantages and returns of several reward signals against plain loops over literal numbers."""

import pytest
import torch

from coterie.algos.reward_streams import RewardStream, RewardStreams, weighted_streams
from coterie.core.types import Rollout
from coterie.functional.policy_gradient import combined, gae

LAMBDA = 0.8
STREAMS = (
    RewardStream(name="extrinsic", weight=2.0),
    RewardStream(name="bonus", weight=3.0, gamma=0.5, schedule="linear", end=0.0),
    RewardStream(name="novelty", weight=0.5, gamma=0.7, episodic=False),
)
REWARD = ((1.0, 2.0, 3.0), (0.5, 0.0, 4.0), (0.2, 0.4, 0.8))
"""Rewards of each signal. The second step ends an episode, the first and the third do not."""
VALUE = ((0.5, 1.0, 1.5, 2.0), (0.1, 0.2, 0.3, 0.4), (1.0, 2.0, 3.0, 4.0))
"""Values of each signal."""
TERMINATED = (False, True, False)


def column(rows):
    """[T, 1, 1, K] of K rows."""
    return torch.tensor(rows).T[:, None, None, :]


def lambda_returns(reward, value, gamma, terminated):
    returns, later = [], value[-1]
    for t in (2, 1, 0):
        successor = (1 - LAMBDA) * value[t + 1] + LAMBDA * later
        later = reward[t] + gamma * (0.0 if terminated[t] else successor)
        returns.insert(0, later)
    return torch.tensor(returns)


def expected_returns(k, gamma):
    """Returns of signal k [T]; those of a signal that continues do not end with the episode."""
    ends = TERMINATED if STREAMS[k].episodic else (False, False, False)
    return lambda_returns(REWARD[k], VALUE[k], gamma, ends)


def computed(streams):
    """Advantages and returns [T, K] of the first signals."""
    k = len(streams)
    terminated = torch.tensor(TERMINATED).view(3, 1, 1)
    learner = RewardStreams(streams, gamma=0.9, device=torch.device("cpu"))
    advantage, target = learner.advantages(
        column(REWARD[:k]), column(VALUE[:k]), terminated, terminated, valid=torch.ones(3, 1, 1, dtype=torch.bool),
        gae_lambda=LAMBDA,
    )  # fmt: skip
    return learner, advantage[:, 0, 0], target[:, 0, 0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_signal_has_a_discount_and_ends_of_its_own(count):
    """One signal, two that end with episodes, and a third that goes on."""
    _, advantage, target = computed(STREAMS[:count])
    for k, gamma in enumerate((0.9, 0.5, 0.7)[:count]):
        expected = expected_returns(k, gamma)
        torch.testing.assert_close(target[:, k], expected)
        torch.testing.assert_close(advantage[:, k], expected - torch.tensor(VALUE[k][:3]))


def test_a_single_signal_has_the_advantages_that_an_algorithm_without_signals_has():
    """Bit by bit, so its discount is a number as well and not one of float32."""
    draw = torch.Generator().manual_seed(0)
    reward, value = torch.randn(40, 2, 3, 1, generator=draw), torch.randn(41, 2, 3, 1, generator=draw)
    ends, valid = torch.rand(40, 2, 3, generator=draw) < 0.1, torch.ones(40, 2, 3, dtype=torch.bool)
    learner = RewardStreams(STREAMS[:1], gamma=0.9, device=torch.device("cpu"))
    found, _ = learner.advantages(reward, value, ends, ends, valid=valid, gae_lambda=0.95)
    masks = {"terminated": ends[..., None], "boundary": ends[..., None]}
    expected = gae(reward=reward, value=value[:-1], next_value=value[1:], **masks, gamma=0.9, gae_lambda=0.95)
    assert torch.equal(found, expected)


def test_advantages_are_summed_with_scheduled_weights():
    """At a quarter of the run the linear schedule of the second weight has come from 3 to 2.25."""
    learner, advantage, _ = computed(STREAMS)
    assert learner.weights(0.25).tolist() == [2.0, 2.25, 0.5]
    summed = 2.0 * advantage[:, 0] + 2.25 * advantage[:, 1] + 0.5 * advantage[:, 2]
    torch.testing.assert_close(combined(advantage, learner.weights(0.25)), summed)


def group_of_two() -> Rollout:
    """One group, of whose two members the second is dead and gets 0.75 of the literal rewards of the signals."""
    no, share = torch.zeros(3, 1, 2, dtype=torch.bool), torch.tensor([0.25, 0.75])
    return Rollout(
        obs={}, action_mask={}, state={}, action={}, extras={}, hidden_state={},
        alive=torch.tensor([[[True, False]]] * 4), first=torch.zeros(4, 1, 2, dtype=torch.bool),
        acted=torch.ones(4, 1, dtype=torch.bool), reward=torch.zeros(3, 1, 2), group_reward=torch.zeros(3, 1, 1),
        terminated=no, truncated=no, episode_terminated=no[..., 0], episode_truncated=no[..., 0],
        streams={s.name: torch.tensor(REWARD[k]).view(3, 1, 1) * share for k, s in enumerate(STREAMS) if k},
    )  # fmt: skip


def group_returns(*, summed: bool) -> torch.Tensor:
    learner, flags = RewardStreams(STREAMS, gamma=0.9, device=torch.device("cpu")), torch.tensor(TERMINATED)
    flags = flags.view(3, 1, 1, 1)
    return learner.group_returns(
        group_of_two(), torch.tensor(REWARD[0]).view(3, 1, 1), column(VALUE), terminated=flags, boundary=flags,
        td_lambda=LAMBDA, summed=summed,
    )  # fmt: skip


def test_group_returns_sum_each_signal_over_the_members():
    found = group_returns(summed=True)
    assert found.shape == (3, 1, 1, 3)
    for k, gamma in enumerate((0.9, 0.5, 0.7)):
        torch.testing.assert_close(found[:, 0, 0, k], expected_returns(k, gamma))


def test_group_returns_of_a_member_have_its_own_rewards_of_each_signal():
    """The last step has a literal reward plus the value: the difference is the reward that the other member has."""
    members, group = group_returns(summed=False), group_returns(summed=True)
    assert members.shape == (3, 1, 2, 3)
    torch.testing.assert_close(members[..., 0], group[..., 0].expand(3, 1, 2))
    for k in (1, 2):
        torch.testing.assert_close(members[-1, 0, 0, k], group[-1, 0, 0, k] - 0.75 * REWARD[k][-1])


def test_only_the_weight_of_the_environment_s_reward_is_multiplied():
    found = weighted_streams(STREAMS, 0.25)
    assert [stream.weight for stream in found] == [0.5, 3.0, 0.5]
    assert [stream.name for stream in found] == [stream.name for stream in STREAMS]
    assert found[1:] == STREAMS[1:]


def test_advantages_of_a_batch_are_those_of_its_agents():
    """Three timesteps of two environments with two agents, each of which ends at times of its own."""
    draw, learner = torch.Generator().manual_seed(0), RewardStreams(STREAMS, gamma=0.9, device=torch.device("cpu"))
    reward, value = torch.randn(3, 2, 2, 3, generator=draw), torch.randn(4, 2, 2, 3, generator=draw)
    terminated = torch.rand(3, 2, 2, generator=draw) < 0.4
    boundary = terminated | (torch.rand(3, 2, 2, generator=draw) < 0.4)
    valid = torch.rand(3, 2, 2, generator=draw) < 0.7
    found = learner.advantages(reward, value, terminated, boundary, valid=valid, gae_lambda=LAMBDA)
    assert boundary.any()
    assert not terminated.equal(boundary)
    for b, i in ((b, i) for b in range(2) for i in range(2)):
        place = (slice(None), slice(b, b + 1), slice(i, i + 1))
        alone = learner.advantages(
            reward[place], value[place], terminated[place], boundary[place], valid=valid[place], gae_lambda=LAMBDA
        )
        torch.testing.assert_close([x[place] for x in found], [*alone])
        for k, gamma in enumerate((0.9, 0.5)):
            later = torch.tensor(0.0)
            for t in (2, 1, 0):
                at = (t, b, i, k)
                successor = 0.0 if terminated[t, b, i] else value[t + 1, b, i, k]
                later = reward[at] + gamma * successor - value[at] + gamma * LAMBDA * later * ~boundary[t, b, i]
                torch.testing.assert_close(found[0][at], later)


def test_advantages_of_a_single_signal_are_not_rounded_to_the_scale_of_its_values():
    """r = (2^25, 0.5) and V = (2^25, 0, 0): the advantages are 0.8 x 0.5 and 0.5. The first return, 2^25 + 0.4, is
    rounded to 2^25, so that the return minus the value would be 0."""
    reward, value = torch.tensor([2.0**25, 0.5]), torch.tensor([2.0**25, 0.0, 0.0])
    no = torch.zeros(2, 1, 1, dtype=torch.bool)
    learner = RewardStreams(STREAMS[:1], gamma=1.0, device=torch.device("cpu"))
    advantage, target = learner.advantages(
        reward.view(2, 1, 1, 1), value.view(3, 1, 1, 1), no, no, valid=~no, gae_lambda=LAMBDA
    )
    assert advantage.flatten().tolist() == pytest.approx([0.4, 0.5])
    assert target.flatten().tolist() == [2.0**25, 0.5]
