"""Choices of soft actor-critics; `tests/policies/test_squashed.py` tests samples of whole teams."""

import math

import pytest
import torch

from coterie.nets.squashed_actions import choice_distribution, max_entropy


def test_masked_choices_have_probability_and_log_prob_zero():
    logits = torch.tensor([1.0, 2.0, 5.0, 3.0, 1.0]).log().requires_grad_()
    mask = torch.tensor([True, True, False, True, True])
    prob, log_prob = choice_distribution((3, 2), logits, mask)
    assert prob.tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0.75, 0.25])
    assert log_prob.tolist() == pytest.approx([math.log(1 / 3), math.log(2 / 3), 0, math.log(0.75), math.log(0.25)])
    (prob * (torch.arange(5.0) - log_prob)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[2] == 0
    assert (logits.grad[[0, 1, 3, 4]] != 0).all()
    free, _ = choice_distribution((3, 2), logits, None)
    assert free.tolist() == pytest.approx([0.125, 0.25, 0.625, 0.75, 0.25])


def test_max_entropy_counts_available_choices():
    mask = torch.tensor([[True] * 5, [True, True, False, True, False], [False, True, False, False, True]])
    assert max_entropy((3, 2), mask).tolist() == pytest.approx([math.log(6), math.log(2), 0])
