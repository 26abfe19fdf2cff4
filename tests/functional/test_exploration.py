"""Exploration noise and sampled choices against literal numbers."""

import math

import pytest
import torch
from scipy.stats import norm

from coterie.functional.exploration import (
    add_noise,
    choice_probs,
    epsilon_greedy,
    normal_to_uniform,
    ornstein_uhlenbeck,
    sample_choice,
)


def test_ornstein_uhlenbeck_reverts_to_zero():
    state, found = torch.zeros(2), []
    for n in ([1.0, -2.0], [0.0, 1.0], [0.5, 0.0]):
        state = ornstein_uhlenbeck(state, torch.tensor(n), 0.25)
        found.append(state.tolist())
    assert found == [[1.0, -2.0], [0.75, -0.5], [1.0625, -0.375]]


def test_ornstein_uhlenbeck_has_its_stationary_standard_deviation():
    noise = torch.randn(2000, 500, generator=torch.Generator().manual_seed(0))
    state = torch.zeros(500)
    seen = []
    for n in noise:
        state = ornstein_uhlenbeck(state, n, 0.15)
        seen.append(state)
    late = torch.stack(seen[100:])
    assert late.std().item() == pytest.approx(1 / math.sqrt(0.15 * 1.85), rel=0.02)
    together = (late[1:] * late[:-1]).mean() / late.square().mean()
    assert together.item() == pytest.approx(0.85, abs=0.02)  # white noise would have 0


def test_actions_with_noise_are_clipped():
    found = add_noise(torch.tensor([0.9, -0.9, 0.1]), torch.tensor([0.3, -0.3, 0.2]))
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.3]))


def test_normal_numbers_are_mapped_to_uniform_ones():
    normal = torch.tensor([-1.0, 0.0, 0.5, 2.0])
    torch.testing.assert_close(
        normal_to_uniform(normal), torch.tensor(2 * norm.cdf(normal.numpy()) - 1, dtype=torch.float32)
    )


def test_sampled_choice_maximizes_logit_plus_noise():
    logits, noise = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.0, -2.0, 1.5]])
    assert sample_choice(logits, None, None).tolist() == [1]
    assert sample_choice(logits, None, noise).tolist() == [2]
    assert sample_choice(logits, torch.tensor([[True, True, False]]), noise).tolist() == [0]


def test_choice_frequencies_match_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0])
    noise = -torch.empty(40_000, 3).exponential_(generator=torch.Generator().manual_seed(0)).log()
    often = torch.bincount(sample_choice(logits, None, noise), minlength=3) / 40_000
    torch.testing.assert_close(often, logits.softmax(-1), atol=0.01, rtol=0)


def test_choice_probs_are_a_softmax_per_component_over_available_choices():
    logits = torch.tensor([0.0, 0.0, torch.tensor(3.0).log(), 1.0, 1.0])
    assert torch.allclose(choice_probs(logits, (3, 2), None), torch.tensor([0.2, 0.2, 0.6, 0.5, 0.5]))
    mask = torch.tensor([True, False, True, False, True])
    assert torch.allclose(choice_probs(logits, (3, 2), mask), torch.tensor([0.25, 0.0, 0.75, 0.0, 1.0]))


def test_epsilon_greedy_divides_epsilon_among_available_choices():
    q = torch.tensor([5.0, 1.0, 2.0, -1.0, -3.0])
    assert torch.allclose(epsilon_greedy(q, (3, 2), None, 0.3), torch.tensor([0.8, 0.1, 0.1, 0.85, 0.15]))
    mask = torch.tensor([False, True, True, True, True])
    assert torch.allclose(epsilon_greedy(q, (3, 2), mask, 0.3), torch.tensor([0.0, 0.15, 0.85, 0.85, 0.15]))


def test_probabilities_and_choices_of_a_batch_are_those_of_its_entries():
    draw = torch.Generator().manual_seed(0)
    q, noise = torch.randn(3, 2, 5, generator=draw), torch.randn(3, 2, 5, generator=draw)
    mask = torch.rand(3, 2, 5, generator=draw) < 0.6
    mask[..., 0] = mask[..., 4] = True
    greedy, soft = epsilon_greedy(q, (3, 2), mask, 0.3), choice_probs(q, (3, 2), mask)
    chosen = sample_choice(q, mask, noise)
    assert (greedy.shape, soft.shape, chosen.shape) == ((3, 2, 5), (3, 2, 5), (3, 2))
    for place in ((i, j) for i in range(3) for j in range(2)):
        entry = q[place], mask[place]
        torch.testing.assert_close(greedy[place], epsilon_greedy(entry[0], (3, 2), entry[1], 0.3))
        torch.testing.assert_close(soft[place], choice_probs(entry[0], (3, 2), entry[1]))
        assert chosen[place] == sample_choice(*entry, noise[place])
