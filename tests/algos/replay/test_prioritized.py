"""Priorities of positions and errors of sequences against literal numbers."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces

from coterie.algos.replay.prioritized import PrioritizedPositions, sequence_error
from coterie.algos.replay.spec import ReplaySpec
from coterie.core.specs import EnvSpec, RoleSpec

CPU = torch.device("cpu")


def positions_of(alpha: float = 1.0, rollout_length: int = 2, rollouts: int = 2) -> PrioritizedPositions:
    """Of a buffer with rollouts of two environments and one more timestep, which is being written."""
    role = RoleSpec("agent", "agent", ("agent_0",), spaces.Box(-9, 9, (3,)), spaces.Discrete(5))
    team = EnvSpec("one", (role,), {}).default_teams()[0]
    spec = ReplaySpec(
        team=team, num_envs=2, rollout_length=rollout_length, capacity=2 * rollouts * rollout_length, sequence_length=1,
        sequence_start="timestep", seed=0, device=CPU, priority_alpha=alpha,
    )  # fmt: skip
    return PrioritizedPositions(spec)


def priorities(positions: PrioritizedPositions, start: int = 0, stop: int = 5) -> list:
    return positions.state_dict(start, stop)["priority"].tolist()


def flat(positions: PrioritizedPositions) -> list:
    """Priorities of all places, timestep by timestep."""
    return positions.state_dict(0, 5)["priority"].flatten().tolist()


STARTS = torch.tensor([[True, True], [False, True]])
EVERYWHERE = torch.ones(2, 2, dtype=torch.bool)


def test_new_positions_have_the_highest_priority_so_far():
    """1 at first, then 9 to the power of one half; positions that start no sequence have none."""
    positions = positions_of(alpha=0.5)
    positions.insert(0, STARTS, 3)
    assert priorities(positions) == [[1, 1], [0, 1], [0, 0], [0, 0], [0, 0]]
    positions.update_priorities(torch.tensor([1, 3]), torch.tensor([9.0, 4.0]))
    assert flat(positions) == pytest.approx([1, 3, 0, 2, 0, 0, 0, 0, 0, 0], abs=1e-5)
    positions.insert(2, EVERYWHERE, 4)
    assert flat(positions) == pytest.approx([1, 3, 0, 2, 3, 3, 3, 3, 0, 0], abs=1e-5)


def test_a_sequence_without_error_keeps_a_priority_of_a_millionth():
    positions = positions_of()
    positions.insert(0, EVERYWHERE, 4)
    positions.update_priorities(torch.tensor([2]), torch.tensor([0.0]))
    assert priorities(positions)[1][0] == pytest.approx(1e-6)


def test_positions_wrap_around_the_end_of_the_ring():
    """Timesteps 4 and 5 of five are stored at places 4 and 0."""
    positions = positions_of()
    positions.insert(4, STARTS, 3)
    assert priorities(positions) == [[0, 1], [0, 0], [0, 0], [0, 0], [1, 1]]
    assert priorities(positions, 4, 6) == [[1, 1], [0, 1]]
    positions.remove(5, 1, 1, 6)
    assert priorities(positions) == [[0, 0], [0, 0], [0, 0], [0, 0], [1, 1]]


def test_errors_of_removed_positions_are_ignored():
    """Position 1 is of timestep 0, which was removed; it shares its place with position 11."""
    positions = positions_of()
    positions.insert(0, EVERYWHERE, 4)
    positions.remove(0, 1, 2, 1)
    positions.update_priorities(torch.tensor([1, 2]), torch.tensor([50.0, 4.0]))
    assert flat(positions) == pytest.approx([0, 0, 4, 1, 0, 0, 0, 0, 0, 0], abs=1e-5)
    positions.insert(5, STARTS, 3)
    assert priorities(positions)[0] == pytest.approx([4, 4], abs=1e-5), "the highest error so far was 4"


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_samples_are_proportional_to_priorities_with_importance_weights(beta):
    """Priorities 1, 2, 3 and 4 of ten samples; w = (4 p)^-beta, divided by that of the rarest one drawn."""
    positions = positions_of()
    positions.insert(2, EVERYWHERE, 4)
    positions.remove(0, 2, 0, 2)
    positions.update_priorities(torch.tensor([4, 5, 6, 7]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    found, weight = positions.sample(10, 4, beta, torch.Generator().manual_seed(0))
    assert found.tolist() == [4] + [5] * 2 + [6] * 3 + [7] * 4
    expected = torch.tensor([(0.4 * p) ** -beta for p in (1, 2, 2, 3, 3, 3, 4, 4, 4, 4)]) / 0.4**-beta
    torch.testing.assert_close(weight, expected, atol=1e-5, rtol=0)
    assert weight.dtype == torch.float32


def test_positions_after_a_wrap_are_those_of_the_stream():
    """Timesteps 4 to 7: places 4, 0, 1 and 2, positions 8 to 15."""
    positions = positions_of()
    positions.insert(4, EVERYWHERE, 4)
    positions.insert(6, EVERYWHERE, 8)
    positions.remove(0, 0, 0, 4)
    assert positions.sample(8, 8, 1.0, torch.Generator().manual_seed(0))[0].tolist() == [
        *(10, 11, 12, 13, 14, 15),  # in the order of the places
        *(8, 9),
    ]


def test_restored_priorities_are_the_same():
    one, other = positions_of(0.5), positions_of(0.5)
    one.insert(3, STARTS, 3)
    one.update_priorities(torch.tensor([6]), torch.tensor([16.0]))
    other.load_state_dict(3, one.state_dict(3, 5))
    assert priorities(other) == priorities(one)
    for positions in (one, other):
        positions.insert(5, STARTS, 6)
    assert priorities(other) == priorities(one)
    assert priorities(other)[0] == pytest.approx([4, 4], abs=1e-5)


def test_error_of_a_sequence_is_mostly_its_largest():
    """0.9 x 4 + 0.1 x 2.5 over valid entries, 0 without any. Errors of two agents, 1, 4 and 2, 3, count together."""
    error = torch.tensor([[1.0, 9.0], [4.0, 9.0], [99.0, 9.0]])
    valid = torch.tensor([[True, False], [True, False], [False, False]])
    assert sequence_error(error, valid).tolist() == pytest.approx([0.9 * 4 + 0.1 * 2.5, 0.0])
    error = torch.tensor([[[1.0, 2.0], [5.0, 5.0]], [[4.0, 3.0], [5.0, 99.0]]])
    valid = torch.tensor([[[True, True], [True, True]], [[True, True], [True, False]]])
    assert sequence_error(error, valid).tolist() == pytest.approx([0.9 * 4 + 0.1 * 2.5, 5.0])


@pytest.mark.parametrize("rollouts", [1, 2])
def test_the_ring_has_one_more_timestep_than_the_rollouts_held(rollouts):
    """The last of its places is followed by the first."""
    positions = positions_of(rollout_length=3, rollouts=rollouts)
    last = 3 * rollouts
    positions.insert(last, STARTS, 3)
    found = positions.state_dict(0, last + 1)["priority"]
    assert found.nonzero().tolist() == [[0, 1], [last, 0], [last, 1]]
