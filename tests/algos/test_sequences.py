"""Sequences of a rollout: their order, resets of critics, and hidden states before each, against plain loops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from algo_worlds import Everything
from coterie.algos import sequences
from coterie.core.tree import tree_map
from coterie.core.types import TIME_LEFT, Timestep
from coterie.envs.worlds.traffic.junction import Easy
from learners import collect_rollout, poca_learner, ppo_learner, targets_of
from policy_cases import draw


def flags(alive, first, acted):
    """Returns the flags of T + 1 timesteps of one environment."""
    alive, first = (torch.tensor(x, dtype=torch.bool).unsqueeze(1) for x in (alive, first))
    return SimpleNamespace(alive=alive, first=first, acted=torch.tensor(acted, dtype=torch.bool).view(-1, 1), state={})


def test_a_single_new_agent_does_not_reset_the_critic_of_the_team():
    """The last of the other agents leaves at the timestep at which it enters."""
    rollout: Any = flags([[1, 0], [1, 0], [0, 1], [0, 1]], [[1, 0], [0, 0], [0, 1], [0, 0]], [1, 1, 1, 1])
    assert sequences.critic_first(rollout, True).flatten().tolist() == [True, False, False, False]
    assert sequences.critic_first(rollout, False).squeeze(1).tolist() == rollout.first.squeeze(1).tolist()


def test_the_critic_is_reset_after_each_final_timestep():
    rollout: Any = flags([[1, 1], [1, 0], [1, 1], [0, 0]], [[0, 0], [0, 0], [1, 1], [0, 0]], [1, 0, 0, 1])
    assert sequences.critic_first(rollout, True).flatten().tolist() == [False, False, True, True]


def test_the_first_timestep_of_a_rollout_begins_an_episode_if_all_agents_alive_are_new():
    """Both alive and new; one of two new; one alive and new; nobody alive."""
    first, alive = torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0]]).bool(), torch.tensor([[1, 1], [1, 1], [0, 1], [0, 0]])
    timestep = Timestep({}, {}, {}, alive.bool().unsqueeze(0), first.unsqueeze(0), torch.ones(1, 4, dtype=torch.bool))
    found = sequences.timestep_critic_first(timestep, True)
    assert found.shape == (1, 4, 1)
    assert found.flatten().tolist() == [True, False, True, False]
    assert torch.equal(sequences.timestep_critic_first(timestep, False), timestep.first)
    rollout: Any = SimpleNamespace(
        first=timestep.first.expand(3, -1, -1), alive=timestep.alive.expand(3, -1, -1),
        acted=torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]]).bool(), state={},
    )  # fmt: skip
    found = sequences.critic_first(rollout, True)
    assert found.squeeze(-1).int().tolist() == [[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]]


def test_with_a_step_limit_the_first_timestep_begins_an_episode_if_all_the_time_is_left():
    """A start with nobody alive; one of two; newcomers that replace all others; nobody alive."""
    alive = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0]]).bool().unsqueeze(0)
    left = torch.tensor([1.0, 1.0, 0.9, 0.9]).view(1, 4, 1)
    timestep = Timestep({}, {}, {TIME_LEFT: left}, alive, alive, torch.ones(1, 4, dtype=torch.bool))
    assert sequences.timestep_critic_first(timestep, True).flatten().tolist() == [True, True, False, False]
    rollout: Any = SimpleNamespace(
        first=alive.expand(3, -1, -1), alive=alive.expand(3, -1, -1), state={TIME_LEFT: left.expand(3, -1, -1)},
        acted=torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]]).bool(),
    )  # fmt: skip
    found = sequences.critic_first(rollout, True)
    assert found.squeeze(-1).int().tolist() == [[1, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]


@pytest.mark.parametrize("build", [ppo_learner, poca_learner])
def test_the_hidden_state_of_a_critic_ends_with_the_episode_if_the_next_one_starts_with_nobody(build):
    """Each rollout is an episode of 20 steps with its last timestep, of a junction to which the cars come later."""
    settings = {"critic": "joint"} if build is ppo_learner else {}
    learner, collector = build(Easy(Easy.Config()), 4, rnn="gru", rnn_size=4, rollout_length=21, **settings)
    collect_rollout(learner, collector)
    before = learner.value_moments, learner._critic_state
    rollout = collect_rollout(learner, collector)
    assert not rollout.alive[0].any()
    found = []
    for value in (0.0, 5.0):
        hidden_state = tree_map(lambda x, value=value: torch.full_like(x, value), before[1])
        learner.value_moments, learner._critic_state = before[0], hidden_state
        found.append(targets_of(learner, rollout).batch.value)
    assert torch.equal(*found)


def test_sequences_are_ordered_by_time_and_then_by_environment():
    """Six timesteps of two environments, as sequences of three: entry 10 t + b."""
    x = 10 * torch.arange(6).unsqueeze(1) + torch.arange(2)
    found = sequences.split_into_sequences({"x": x}, 3)
    assert isinstance(found, dict)
    assert found["x"].T.tolist() == [[0, 10, 20], [1, 11, 21], [30, 40, 50], [31, 41, 51]]


def rollout_of(rnn: str = "gru") -> tuple[Any, Any]:
    """A learner with hidden states, and a rollout of six timesteps of two environments."""
    algorithm, collector = ppo_learner(Everything("hybrid", dead=0.0), 2, rnn=rnn, rnn_size=4, rollout_length=6)
    collect_rollout(algorithm, collector)
    return algorithm, collect_rollout(algorithm, collector)


def test_a_rollout_of_sequences_has_the_timestep_after_each():
    _, rollout = rollout_of()
    states = {"h": torch.arange(6.0).view(6, 1, 1)}
    found = sequences.as_sequences(rollout, 2, states)
    assert (found.rollout_length, found.num_envs) == (2, 6)
    assert found.hidden_state is states
    for k, b in ((k, b) for k in range(3) for b in range(2)):
        index, start = 2 * k + b, 2 * k

        def same(whole: Tensor, part: Tensor, count: int, index: int = index, start: int = start, b: int = b) -> None:
            assert torch.equal(part[:, index], whole[start : start + count, b])

        for name in ("alive", "first", "acted", "obs", "action_mask", "state"):
            tree_map(lambda x, y: same(x, y, 3), getattr(rollout, name), getattr(found, name))
        for name in ("reward", "group_reward", "terminated", "truncated", "episode_terminated", "extras", "action"):
            tree_map(lambda x, y: same(x, y, 2), getattr(rollout, name), getattr(found, name))


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_hidden_states_before_sequences_are_those_of_single_steps(rnn: str):
    """With the present weights, which have changed since the rollout."""
    algorithm, rollout = rollout_of(rnn)
    policy = algorithm.policy
    with torch.no_grad():
        for p in policy.actor.parameters():
            p += 0.1 * torch.randn(p.shape, generator=draw(5))
        found = sequences.actor_states(policy, rollout.obs, rollout, 2)
        state, expected = rollout.hidden_state, []
        for t in range(6):
            if t % 2 == 0:
                expected.append(state)
            state = policy.net({k: x[t] for k, x in rollout.obs.items()}, rollout.first[t], state)[1]
    assert set(found) == set(rollout.hidden_state)
    for name in found:
        torch.testing.assert_close(found[name], torch.cat([part[name] for part in expected]))


class Sum(torch.nn.Module):
    """A critic whose hidden state is the sum of inputs since the last reset, and whose value is that sum."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, obs: Tensor, state: Tensor | None, first: Tensor, hidden_state: Any) -> tuple[Tensor, Any]:
        self.calls.append(len(obs))
        total, values = hidden_state["h"], []
        for t in range(len(obs)):
            total = torch.where(first[t], 0.0, total) + obs[t] + (0 if state is None else state[t])
            values.append(total)
        return torch.stack(values), {"h": total}


@pytest.mark.parametrize("with_state", [False, True])
def test_values_of_a_recurrent_critic_and_its_hidden_states(with_state: bool):
    """Inputs 1 to 7 of one environment after a sum of 10, with a reset at the fourth timestep."""
    critic, first = Sum(), torch.zeros(7, 1, dtype=torch.bool)
    first[3] = True
    obs = torch.arange(1.0, 8.0).unsqueeze(-1)
    state = torch.full((7, 1), 100.0) if with_state else None
    values, before, after = sequences.critic_values(critic, (obs, state), first, {"h": torch.tensor([10.0])}, 2)
    extra = 100 * with_state
    expected = [11 + extra, 13 + 2 * extra, 16 + 3 * extra, 4 + extra, 9 + 2 * extra, 15 + 3 * extra, 22 + 4 * extra]
    assert values.flatten().tolist() == expected
    assert before["h"].tolist() == [10, expected[1], expected[3]]
    assert after["h"].tolist() == [expected[5]], "before the last timestep, which the next rollout reads again"
    assert critic.calls == [2, 2, 2, 1]
