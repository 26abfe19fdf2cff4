"""MA-POCA: invariants, and probe environments with expected solutions and negative controls."""

import copy
from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything, Probe, observe_zeros
from coterie.algos import poca
from coterie.algos.poca import group_rewards
from coterie.algos.reward_streams import RewardStream
from coterie.functional.returns import bootstrap_masks
from groups import Crowd, Sacrifice, Shifts
from learners import collect_rollout, targets_of
from learners import poca_learner as learner
from learners import train_poca as train


def values_and_baselines(algorithm, rollout):
    """Returns V [T, B] and baselines [T, B, N] of the environment's reward, denormalized."""
    with torch.no_grad():
        batch = targets_of(algorithm, rollout).batch
        mean, scale = algorithm.value_scale()
    values = (batch.value * scale + mean)[..., 0]
    return values[..., 0], values[..., 1:]


# -------------------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("rnn", ["none", "lstm"])
def test_sequences_start_with_the_hidden_states_of_the_whole_rollout(rnn):
    """Then the value loss before the first step is the loss of the old values."""
    settings = {"rnn": rnn, "rnn_size": 8, "sequence_length": 4 if rnn != "none" else None, "epochs": 1}
    algorithm, collector = learner(Everything(), bootstrap_at_limit=True, value_time_left=True, **settings)
    for _ in range(2):
        rollout = collect_rollout(algorithm, collector)
        state = copy.deepcopy(algorithm.state_dict())
        with torch.no_grad():
            batch = targets_of(algorithm, rollout).batch
        algorithm.load_state_dict(state)
        loss = (batch.value - batch.target).square()[..., 0] / 2
        metrics = algorithm.update(rollout, 0.0)
        assert metrics["loss/value"] == pytest.approx(loss[..., 0][batch.valid.any(-1)].mean().item(), rel=1e-4)
        assert metrics["loss/baseline"] == pytest.approx(loss[..., 1:][batch.valid].mean().item(), rel=1e-4)


# ------------------------------------------------------------------------------------------ group rewards and deaths


def test_the_reward_of_the_group_includes_individual_rewards():
    algorithm, collector = learner(Everything(dead=0.0))
    rollout = collect_rollout(algorithm, collector)
    own, group = rollout.reward, rollout.group_reward[..., 0]
    torch.testing.assert_close(group_rewards(rollout)[..., 0], own[..., 0] + own[..., 1] + own[..., 2] + group)


def end_with_the_first_agent(rollout, agents_can_die):
    """The mistake: returns of the group end with an agent."""
    return tuple(mask[..., 0] for mask in bootstrap_masks(rollout, False, agents_can_die))


@pytest.mark.parametrize("with_mistake", [False, True])
def test_the_target_of_a_dying_agent_bootstraps_from_the_value_of_the_group(with_mistake, monkeypatch):
    """No reward, a next value of 0.8 and gamma 0.99 result in 0.792. With the mistake it is 0."""
    algorithm, collector = learner(Sacrifice(), td_lambda=0.0, normalize_value=False)
    rollout = collect_rollout(algorithm, collector)
    if with_mistake:
        monkeypatch.setattr(poca, "team_bootstrap_masks", end_with_the_first_agent)
    algorithm.critic = lambda obs, state, action, present, first, hidden_state: (
        torch.full((*obs["agent"].shape[:2], 1 if action is None else 3, 1), 0.8),
        hidden_state,
    )
    target = targets_of(algorithm, rollout).batch.target[:, :, 0, 0]
    died = rollout.terminated[..., 0] & ~rollout.episode_terminated
    assert died.sum() > 10
    torch.testing.assert_close(target[died], torch.full_like(target[died], 0.0 if with_mistake else 0.792))
    last = rollout.episode_terminated & (rollout.alive[:-1, :, 0] | (not with_mistake))
    torch.testing.assert_close(target[last], rollout.group_reward[..., 0][last])  # no bootstrapping at termination


@pytest.mark.parametrize("member_end", ["group", "member"])
def test_the_trace_of_a_member_that_ends_continues_with_its_group_or_ends_and_bootstraps(member_end: str):
    """Lambda is 1, the discount 0.5, all values 0.8. With the group, returns count its later reward of 1; with the
    member, the last step of a member has half the next value and nothing else.
    """
    algorithm, collector = learner(
        Sacrifice(), td_lambda=1.0, gamma=0.5, normalize_value=False, normalize_advantage=False, member_end=member_end
    )
    rollout = collect_rollout(algorithm, collector)
    algorithm.critic = lambda obs, state, action, present, first, hidden_state: (
        torch.full((*obs["agent"].shape[:2], 1 if action is None else 3, 1), 0.8),
        hidden_state,
    )
    found = targets_of(algorithm, rollout).batch.advantage + 0.8  # the return: all baselines are 0.8
    ended = (rollout.terminated | rollout.truncated) & ~rollout.episode_terminated.unsqueeze(-1)
    ended &= ~rollout.episode_truncated.unsqueeze(-1)
    reward = group_rewards(rollout).expand(ended.shape)
    assert ended[:-3].sum() > 10
    alone = torch.isclose(found, reward + 0.5 * 0.8)
    if member_end == "member":
        assert alone[ended].all()
    else:
        assert not alone[:-3][ended[:-3]].any()


@pytest.mark.slow
def test_probe_an_early_sacrifice_is_learned():
    algorithm, collector = train(Sacrifice(), 25, rollout_length=16)
    rollout = collect_rollout(algorithm, collector)
    starts = (rollout.obs["agent"][:-1, :, 1, 0] == 0) & rollout.acted[:-1]
    leaving = rollout.action["agent"].discrete[:, :, 0, 0][starts].float().mean().item()
    assert leaving > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("counts", [True, False])
def test_probe_the_critic_knows_the_number_of_members(counts):
    """The control removes the count from its input. All members have equal observations."""

    def remove_count(algorithm):
        algorithm.critic.head.register_forward_pre_hook(lambda _, x: torch.cat([x[0][:, :-1], x[0][:, -1:] * 0], -1))

    algorithm, collector = train(Crowd(), 40 if counts else 10, prepare=None if counts else remove_count)
    rollout = collect_rollout(algorithm, collector)
    value, _ = values_and_baselines(algorithm, rollout)
    members = rollout.alive[:-1].sum(-1).float()[rollout.acted[:-1]]
    error = (value[rollout.acted[:-1]] - members).abs().mean().item()
    assert error < 0.15 if counts else error > 0.4


# ----------------------------------------------------------------------------------------------------- reward signals


def with_bonus(rollout):
    """Returns the rollout with a reward stream of one for every choice of 1."""
    chosen = rollout.action["agent"].discrete[..., 0].float()
    return replace(rollout, streams={"bonus": torch.where(rollout.acted[:-1, :, None], chosen, 0.0)})


def test_signals_have_values_discounts_and_weights_of_their_own():
    streams = (RewardStream(name="extrinsic"), RewardStream(name="bonus", weight=3.0, gamma=0.0))
    world = Probe(observe_zeros, lambda x, age, d, c: torch.ones(len(x), 1), length=2)
    algorithm, collector = learner(
        world, streams=streams, td_lambda=1.0, gamma=0.5, extrinsic_weight=2.0, normalize_value=False,
        normalize_advantage=False,
    )  # fmt: skip
    rollout = with_bonus(collect_rollout(algorithm, collector))
    batch = targets_of(algorithm, rollout).batch
    assert batch.target.shape == (12, 16, 1, 2)
    assert batch.value.shape == (12, 16, 2, 2)
    acted = rollout.acted[:-1]
    torch.testing.assert_close(batch.target[0, :, 0, 0], torch.full((16,), 1.5))  # 1 + 0.5, then termination
    torch.testing.assert_close(batch.target[..., 0, 1][acted], rollout.streams["bonus"][..., 0][acted])
    difference = batch.target[:, :, 0] - batch.value[:, :, 1]
    torch.testing.assert_close(batch.advantage[..., 0], 2.0 * difference[..., 0] + 3.0 * difference[..., 1])


def test_a_members_own_signal_ends_before_the_next_life_in_its_slot():
    """One per step, added up without discount: the second slot has three lives. The return of the group's own signal,
    its reward, has no such end.
    """
    streams = (RewardStream(name="extrinsic"), RewardStream(name="ones", gamma=1.0))
    algorithm, collector = learner(
        Shifts(), 2, streams, td_lambda=1.0, gamma=1.0, rollout_length=8, normalize_value=False,
        normalize_advantage=False,
    )  # fmt: skip
    rollout = collect_rollout(algorithm, collector)
    valid = (rollout.alive[:-1] & rollout.acted[:-1, :, None]).float()
    values = torch.zeros(9, 2, 1, 2)
    no = torch.zeros(8, 2, 1, 1, dtype=torch.bool)
    found = algorithm.returns(replace(rollout, streams={"ones": valid}), values, no, no)
    assert found[:7, 0, :, 1].T.tolist() == [[7.0, 6, 5, 4, 3, 2, 1], [2.0, 1, 0, 2, 1, 2, 1]]
    assert found[:7, 0, :, 0].T.tolist() == [[76.0, 65, 54, 44, 33, 22, 11]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_probe_a_second_signal_is_learned_from_by_its_weight(weight):
    streams = (RewardStream(name="extrinsic"), RewardStream(name="bonus", weight=weight, gamma=0.9))
    world = Probe(observe_zeros, lambda x, age, d, c: torch.zeros(len(x), 1))
    algorithm, collector = train(world, 12, streams=streams, add_streams=with_bonus)
    rollout = with_bonus(collect_rollout(algorithm, collector))
    chosen = rollout.streams["bonus"][rollout.acted[:-1]].mean().item()
    assert chosen > 0.95 if weight else chosen < 0.9
    mean, scale = algorithm.value_scale()
    with torch.no_grad():
        value = (targets_of(algorithm, rollout).batch.value * scale + mean)[..., 0, :][rollout.acted[:-1]].mean(0)
    assert value[0].item() == pytest.approx(0.0, abs=0.1)
    assert value[1].item() == pytest.approx(chosen, abs=0.2)


# ------------------------------------------------------------------------------------------------------------ probes


@pytest.mark.slow
@pytest.mark.parametrize("others_matter", [False, True])
def test_probe_an_irrelevant_teammate_has_no_advantage(others_matter):
    """Only the first agent's choice has a reward, which the other agent's baseline knows. In the control both choices
    have rewards.
    """
    reward = lambda x, age, d, c: (d[:, :1] + others_matter * d[:, 1:]).float()  # noqa: E731
    world = Probe(lambda x, age: torch.eye(2).expand(len(x), 2, 2), reward, n=2, size=2)
    algorithm, collector = train(world, 10 if others_matter else 40, lr=1e-6, critic_lr=1e-2, normalize_advantage=False)
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        advantage = targets_of(algorithm, rollout).batch.advantage[rollout.acted[:-1]]
    own, other = advantage.square().mean(0).sqrt().tolist()
    assert own > 0.8  # the reward of both agents is the first one's choice: half of 2
    assert other > 0.8 if others_matter else other < 0.1 * own
