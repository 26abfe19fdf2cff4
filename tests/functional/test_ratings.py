"""Elo ratings and probabilities of opponents."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.functional.ratings import elo, pfsp_probs, recency_probs, uniform_probs


def expected_score(rating: torch.Tensor) -> torch.Tensor:
    """Returns [P, P], the expected fraction of games that i wins against j; 400 points are odds of ten to one."""
    return 1 / (1 + 10 ** ((rating[None, :] - rating[:, None]) / 400))


def test_odds_of_ten_to_one_are_four_hundred_points():
    score = torch.tensor([[0.0, 1000.0], [10000.0, 0.0]])
    rating, error = elo(score, prior_std=1e6)
    assert rating.tolist() == pytest.approx([0, 400], abs=1e-6)
    # The information of a game with probability p is p (1 - p) in units of 400 / ln 10 points.
    expected = 400 / math.log(10) / math.sqrt(11000 * (10 / 11) * (1 / 11))
    assert error.tolist() == pytest.approx([0, expected], rel=1e-6)


def test_draws_count_half_for_each_player():
    drawn = torch.tensor([[0.0, 5.0], [5.0, 0.0]])
    assert elo(drawn)[0].tolist() == pytest.approx([0, 0])


def test_ratings_are_recovered_from_expected_scores():
    """Negative control: other results give other ratings."""
    true = torch.tensor([0.0, 120.0, -60.0, 300.0], dtype=torch.float64)
    score = 500 * expected_score(true)
    score.fill_diagonal_(0)
    assert elo(score, prior_std=1e6)[0].tolist() == pytest.approx(true.tolist(), abs=1e-3)
    score[1, 3], score[3, 1] = score[3, 1].clone(), score[1, 3].clone()
    assert elo(score, prior_std=1e6)[0].tolist() != pytest.approx(true.tolist(), abs=30)


def test_rating_after_winning_every_game_is_finite_and_uncertain():
    rating, error = elo(torch.tensor([[0.0, 0.0], [20.0, 0.0]]))
    assert 400 < rating[1] < 2000
    assert error[1] > 200
    assert elo(torch.tensor([[0.0, 0.0], [200.0, 0.0]]))[0][1] > rating[1]


def test_player_without_games_has_the_standard_deviation_of_the_prior():
    score = torch.zeros(3, 3)
    score[0, 1] = score[1, 0] = 8
    rating, error = elo(score, prior_std=700.0)
    assert rating[2] == 0
    assert error[2] == pytest.approx(700)
    assert error[1] < 200


def test_more_games_reduce_the_standard_error():
    few, many = (elo(torch.tensor([[0.0, n], [n, 0.0]]))[1][1] for n in (10.0, 1000.0))
    assert many < few / 5


def test_opponent_probabilities_have_literal_values():
    assert uniform_probs(4).tolist() == [0.25] * 4
    assert recency_probs(4).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert pfsp_probs(torch.tensor([0.5, 0.9, 1.0]), 2.0).tolist() == pytest.approx([25 / 26, 1 / 26, 0.0])
    assert pfsp_probs(torch.tensor([0.5, 0.9, 1.0]), 1.0).tolist() == pytest.approx([5 / 6, 1 / 6, 0.0])
    assert pfsp_probs(torch.tensor([1.0, 1.0]), 2.0).tolist() == [0.5, 0.5]


def test_the_prior_has_a_standard_deviation_of_a_thousand_points():
    assert elo(torch.zeros(2, 2))[1].tolist() == pytest.approx([0, 1000])


def test_ratings_are_relative_to_the_anchor():
    true = torch.tensor([0.0, 120.0, -60.0], dtype=torch.float64)
    score = (500 * expected_score(true)).fill_diagonal_(0)
    rating, error = elo(score, prior_std=1e6, anchor=1)
    assert rating.tolist() == pytest.approx([-120, 0, -180], abs=1e-3)
    assert error[1] == 0
    assert (error[[0, 2]] > 0).all()


def test_ratings_maximize_the_posterior():
    """The gradient of log-likelihood and prior is zero, with the prior's share: w = (173.7 / 300)^2."""
    score = torch.tensor([[0.0, 3.0], [9.0, 0.0]])
    rating = elo(score, prior_std=300.0)[0][1].item() / (400 / math.log(10))
    weight = (400 / math.log(10) / 300) ** 2
    assert 9 - 12 / (1 + math.exp(-rating)) == pytest.approx(weight * rating, abs=1e-9)


def test_a_single_player_has_rating_zero():
    assert [x.tolist() for x in elo(torch.zeros(1, 1))] == [[0.0], [0.0]]


def test_a_win_rate_that_rounding_raised_above_one_counts_as_one():
    assert pfsp_probs(torch.tensor([0.5, 1 + 1e-6]), 0.5).tolist() == [1.0, 0.0]
