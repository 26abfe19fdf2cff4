"""Sizes of replay buffers, and errors about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from coterie.algos.replay.spec import ReplaySpec
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from rank_threads import on_ranks


def team_of(action: spaces.Space) -> TeamSpec:
    role = RoleSpec("agent", "agent", ("agent_0",), spaces.Box(-9, 9, (3,)), action)
    return EnvSpec("one", (role,), {}).default_teams()[0]


def spec_of(**changes: Any) -> ReplaySpec:
    """Rollouts of four timesteps of two environments."""
    settings = {
        "team": team_of(spaces.Discrete(5)), "num_envs": 2, "rollout_length": 4, "capacity": 40, "sequence_length": 3,
        "sequence_start": "timestep", "seed": 0, "device": torch.device("cpu"),
    }  # fmt: skip
    return ReplaySpec(**(settings | changes))


@pytest.mark.parametrize(("capacity", "timesteps", "rollouts"), [(1, 4, 2), (8, 4, 2), (9, 8, 3), (40, 20, 6)])
def test_capacity_is_rounded_up_to_whole_rollouts(capacity, timesteps, rollouts):
    spec = spec_of(capacity=capacity)
    assert (spec.timesteps, spec.max_rollouts) == (timesteps, rollouts)


@pytest.mark.parametrize(("start", "count"), [("timestep", 40), ("rollout", 12), ("episode", 22)])
def test_number_of_sequence_starts(start, count):
    """Of 20 timesteps; at most every second one starts an episode."""
    assert spec_of(sequence_start=start).max_sequences == count


def test_a_buffer_of_all_ranks_has_their_environments_and_steps():
    """Three ranks of two environments and 40 steps each; all else is that of one of them."""
    spec = spec_of()
    assert spec.of_all_ranks == spec
    for rank, every in enumerate(on_ranks(3, lambda ranks: spec_of(ranks=ranks).of_all_ranks)):
        assert (every.num_envs, every.capacity, every.ranks.rank) == (6, 120, rank)
        assert replace(every, num_envs=2, capacity=40, ranks=spec.ranks) == spec
        assert every.timesteps == spec.timesteps


@pytest.mark.parametrize(
    ("choices", "dtype"), [(256, torch.uint8), (257, torch.int16), (1 << 15, torch.int16), ((1 << 15) + 1, torch.int32)]
)
def test_discrete_actions_are_stored_in_the_smallest_type(choices, dtype):
    assert spec_of(team=team_of(spaces.Discrete(choices))).discrete_dtype == dtype
    assert spec_of(team=team_of(spaces.MultiDiscrete([2, choices]))).discrete_dtype == dtype


def test_a_checkpoint_needs_the_same_sizes():
    spec = spec_of()
    assert spec.shape == [20, 2, 4, 3, "timestep"]
    spec.require_shape([20, 2, 4, 3, "timestep"])
    with pytest.raises(UserError, match=r"sequence start \[20, 2, 4, 4, 'timestep'\], this run's \[20, 2, 4, 3, 'time"):
        spec.require_shape([20, 2, 4, 4, "timestep"])


def test_a_buffer_has_room_for_sequences_and_batches():
    spec_of(capacity=8, sequence_length=4, min_sequences=2).require_sequences()
    spec_of(capacity=1, sequence_length=1, min_sequences=8).require_sequences()
    for changes in ({"capacity": 0}, {"sequence_length": 0}):
        with pytest.raises(UserError, match=r"buffer size and sequence length \(\d\) must be at least 1"):
            spec_of(**changes).require_sequences()
    with pytest.raises(UserError, match=r"=8: holds 4 timesteps of 2 environments, less .* 5 steps. Set .*size=10 or"):
        spec_of(capacity=8, sequence_length=5).require_sequences()
    with pytest.raises(
        UserError, match=r"holds at most 2 sequences of 4 steps, less than algo.batch_size=3. Set a larg"
    ):
        spec_of(capacity=8, sequence_length=4, min_sequences=3).require_sequences()
