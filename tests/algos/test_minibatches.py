"""Minibatches of a rollout."""

from dataclasses import dataclass

import pytest
import torch

from coterie.algos.clipped_learner import acted_candidates
from coterie.algos.on_policy import minibatches, own_parts, random_parts
from coterie.algos.sequences import backward_in_time, minibatch_indices, select_envs
from coterie.core.tree import register_pytree
from coterie.core.types import Rollout
from coterie.ranks.ranks import Ranks
from rank_threads import on_ranks


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


def numbered_rollout() -> Rollout:
    """Two timesteps of four environments, whose numbers are their entries."""
    rows = {"reward": 0, "group_reward": 0, "terminated": 0, "truncated": 0, "alive": 1, "first": 1}
    values = {name: torch.arange(4.0).view(1, 4, 1).expand(2 + extra, 4, 3) for name, extra in rows.items()}
    ends = dict.fromkeys(("episode_terminated", "episode_truncated"), torch.arange(4).expand(2, 4))
    return Rollout(
        obs={"a": torch.arange(4.0).view(1, 4, 1).expand(3, 4, 2)}, action_mask={}, state={}, action={}, extras={},
        hidden_state={"h": torch.arange(4.0).view(4, 1).expand(4, 5)}, acted=torch.arange(4).expand(3, 4),
        **values, **ends,
    )  # fmt: skip


def test_selected_environments_keep_their_order_and_their_hidden_states():
    found = select_envs(numbered_rollout(), torch.tensor([2, 0]))
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


@register_pytree
@dataclass(frozen=True)
class Masked:
    """Sequences [1, M] and their mask."""

    x: torch.Tensor
    valid: torch.Tensor


BATCHES = (torch.tensor([0, 5, 3]), torch.tensor([4, 1]))
"""Samples t * 4 + b of two timesteps and four environments, two of them on each rank."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"never_empty": True},
            [[([0, 3], 4 / 3, [0, 1]), ([2, 1], 2.0, [0, 1])], [([1], 2 / 3, [2]), ([0], 0.0, [0])]],
        ),
        ({}, [[([0, 3], 4 / 3, [0, 1]), ([2, 1], 2.0, [0, 1])], [([1], 2 / 3, [2]), ([], 0.0, [])]]),
    ],
)
def test_each_rank_has_its_own_samples_of_a_minibatch(given, expected):
    """Their indices t * 2 + b on that rank, its share of the samples, and its part of the noise for all of them."""

    def parts(ranks: Ranks) -> list[tuple[list[int], float, list[int]]]:
        found = []
        for own in own_parts(BATCHES, 2, ranks, **given):
            noise = ranks.draw(torch.arange, len(own), 0)
            found.append((own.tolist(), pytest.approx(ranks.scale), noise.tolist()))
        assert ranks.scale == 1.0  # the batch has ended
        return found

    assert on_ranks(2, parts) == expected


def test_a_minibatch_without_samples_of_a_rank_has_one_that_stands_in():
    """One sample per rank: each minibatch has that of one rank, and the other's counts nothing."""

    def parts(ranks: Ranks) -> list[tuple[list[int], bool]]:
        drawn = minibatch_indices(1, 2, None, torch.Generator().manual_seed(0), ranks=ranks)
        return [(part.tolist(), ranks.stands_in) for part in drawn if part is not None]

    first, second = on_ranks(2, parts)
    assert [part for part, _ in (*first, *second)] == [[0]] * 4
    assert sorted(stands_in for _, stands_in in first) == [False, True]
    assert [stands_in for _, stands_in in second] == [not stands_in for _, stands_in in first]


def test_one_rank_has_the_minibatches_themselves():
    def parts(ranks: Ranks) -> bool:
        return all(own is batch for own, batch in zip(own_parts(BATCHES, 4, ranks), BATCHES, strict=True))

    assert on_ranks(1, parts) == [True]


def test_ranks_draw_equal_minibatches_and_a_masked_sample_stands_in_for_none():
    """Two environments per rank act at two timesteps, but those of rank 1 only at the first."""
    acted = (torch.ones(2, 2, dtype=torch.bool), torch.tensor([[True, True], [False, False]]))

    def parts(ranks: Ranks) -> list[tuple[list[float], bool]]:
        x = 10.0 * ranks.rank + torch.arange(4)
        batch = Masked(x[None], torch.ones(1, 4, dtype=torch.bool))
        candidates = acted_candidates(acted[ranks.rank], ranks)
        assert candidates.tolist() == [0, 1, 2, 3, 4, 5]
        drawn = random_parts(candidates, 6, torch.Generator().manual_seed(3))
        assert [len(part) for part in drawn] == [1] * 6
        shuffle = torch.Generator().manual_seed(3)
        found = minibatches(batch, {"h": x}, candidates, 6, shuffle=shuffle, num_envs=2, ranks=ranks)
        return [(states["h"].tolist(), bool(part.valid.any())) for part, states in found]

    first, second = on_ranks(2, parts)
    assert [a[1] + b[1] for a, b in zip(first, second, strict=True)] == [1] * 6  # one has the sample, one stands in
    assert sorted(h for states, valid in first for h in states if valid) == [0, 1, 2, 3]
    assert sorted(h for states, valid in second for h in states if valid) == [10, 11]


def test_environments_of_a_rank_that_stands_in_have_not_acted():
    def acted(ranks: Ranks) -> list[int]:
        ranks.start_batch(torch.arange(1 - ranks.rank), 1, never_empty=True)
        return select_envs(numbered_rollout(), torch.tensor([1]), ranks).acted.flatten().tolist()

    assert on_ranks(2, acted) == [[1] * 3, [0] * 3]
