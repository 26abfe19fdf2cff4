"""Minibatches of a rollout."""

import pytest
import torch

from coterie.algos.minibatches import backward_in_time, minibatch_indices, minibatches, select_envs
from coterie.core.types import Rollout


@pytest.mark.parametrize(("num_samples", "sizes"), [(16, [2] * 7 + [1] * 2), (18, [2] * 9), (9, [1] * 9), (4, [1] * 4)])
def test_samples_are_partitioned_into_the_requested_number_of_minibatches(num_samples, sizes):
    """Chunks of equal size would split 16 samples into 8 minibatches instead of 9."""
    batch, shuffle = {"x": torch.arange(float(num_samples))}, torch.Generator().manual_seed(0)
    parts = [part["x"] for part, _ in minibatches(batch, None, torch.arange(num_samples), 9, shuffle=shuffle)]
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(num_samples))
    partition = [part for part in minibatch_indices(num_samples, 9, None, shuffle) if part is not None]
    assert [len(part) for part in partition] == sizes


def test_minibatches_of_sequences_keep_time_and_take_the_hidden_states_of_their_sequences():
    """Four timesteps of six sequences, of which three are candidates; the entry of t and s is 10 t + s."""
    batch = {"x": 10 * torch.arange(4)[:, None] + torch.arange(6)}
    hidden, candidates = {"h": torch.arange(6) * 100}, torch.tensor([1, 2, 5])
    parts = [*minibatches(batch, hidden, candidates, 2, shuffle=torch.Generator().manual_seed(0))]
    assert [tuple(part["x"].shape) for part, _ in parts] == [(4, 2), (4, 1)]
    chosen = torch.cat([part["x"][0] for part, _ in parts])
    assert sorted(chosen.tolist()) == [1, 2, 5]
    for part, states in parts:
        assert part["x"].equal(part["x"][0] + 10 * torch.arange(4)[:, None])
        assert states["h"].equal(part["x"][0] * 100)
    assert [states for _, states in minibatches(batch, None, torch.arange(4), 2, shuffle=torch.Generator())] == [{}, {}]


def test_each_pass_has_a_new_order():
    shuffle = torch.Generator().manual_seed(0)
    one, other = (
        torch.cat([part for part, _ in minibatches(torch.arange(9), None, torch.arange(9), 3, shuffle=shuffle)])
        for _ in range(2)
    )
    assert sorted(one.tolist()) == sorted(other.tolist()) == [*range(9)]
    assert not one.equal(other)


def test_minibatches_of_a_given_size_are_drawn_without_replacement():
    drawn = minibatch_indices(5, 4, 3, torch.Generator().manual_seed(0))
    assert all(part is not None and len(part.unique()) == 3 and part.max() < 5 for part in drawn)
    assert len(drawn) == 4
    assert len({tuple(part.tolist()) for part in drawn if part is not None}) > 1
    assert minibatch_indices(5, 1, None, torch.Generator()) == [None]
    assert len(minibatch_indices(5, 2, None, torch.Generator())) == 2


def test_selected_environments_keep_their_order_and_their_hidden_states():
    rows = {"reward": 0, "group_reward": 0, "terminated": 0, "truncated": 0, "alive": 1, "first": 1}
    values = {name: torch.arange(4.0).view(1, 4, 1).expand(2 + extra, 4, 3) for name, extra in rows.items()}
    ends = dict.fromkeys(("episode_terminated", "episode_truncated"), torch.arange(4).expand(2, 4))
    rollout = Rollout(
        obs={"a": torch.arange(4.0).view(1, 4, 1).expand(3, 4, 2)}, action_mask={}, state={}, action={}, extras={},
        hidden_state={"h": torch.arange(4.0).view(4, 1).expand(4, 5)}, acted=torch.arange(4).expand(3, 4),
        **values, **ends,
    )  # fmt: skip
    found = select_envs(rollout, torch.tensor([2, 0]))
    assert found.hidden_state["h"].tolist() == [[2] * 5, [0] * 5]
    assert found.obs["a"][:, :, 0].tolist() == [[2, 0]] * 3
    assert found.reward[:, :, 0].tolist() == [[2, 0]] * 2
    assert found.episode_terminated.tolist() == [[2, 0]] * 2


@pytest.mark.parametrize(
    ("length", "num_chunks", "chunks"),
    [(7, 3, [(4, 7), (2, 4), (0, 2)]), (3, 5, [(2, 3), (1, 2), (0, 1)]), (4, 1, [(0, 4)])],
)
def test_chunks_of_time_go_backward_and_the_latest_have_the_surplus(length, num_chunks, chunks):
    seen = []

    def step(time: slice) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((time.start, time.stop))
        return torch.arange(length)[time], torch.tensor([float(len(seen)), 8.0])

    values, report = backward_in_time(length, num_chunks, step)
    assert seen == chunks
    assert values.tolist() == [*range(length)]
    assert report.tolist() == [(len(chunks) + 1) / 2, 8.0]
