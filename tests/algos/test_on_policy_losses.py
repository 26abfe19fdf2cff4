"""Losses of PPO, MA-POCA and COMA: literal numbers, masks, and gradients."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.algos import poca, ppo
from coterie.algos.poca import poca_loss
from coterie.algos.ppo import ppo_loss
from coterie.assembly.resolve import resolve
from coterie.functional.counterfactual import coma_loss, critic_loss


def batch_of(kind: Any, **given: Any) -> Any:
    """A batch that holds only what a loss reads."""
    return kind(**dict.fromkeys(kind.__dataclass_fields__) | given)


def column(*numbers: float) -> Tensor:
    """Numbers of one agent [M, 1]."""
    return torch.tensor(numbers).unsqueeze(-1)


CLIP = {"clip_eps": 0.2, "value_clip_eps": 0.2, "huber_delta": None}


def ppo_terms(valid: Tensor | None) -> ppo.PPOLoss:
    """Ratios 1.5, 0.5, 1; advantages 1, -1, 2; values 1, 0, 3 that were 0.5, 0, 3; targets 2, 1, 3."""
    batch = batch_of(
        ppo.Batch,
        log_prob=column(0.0, 0.0, 0.0),
        advantage=column(1.0, -1.0, 2.0),
        value=column(0.5, 0.0, 3.0).unsqueeze(-1),
        target=column(2.0, 1.0, 3.0).unsqueeze(-1),
        valid=valid,
        critic_valid=valid,
    )
    log_prob, entropy = column(log(1.5), log(0.5), 0.0), column(0.6, 0.3, 0.9)
    return ppo_loss(log_prob, entropy, column(1.0, 0.0, 3.0).unsqueeze(-1), batch, **CLIP)


def test_ppo_loss_of_literal_numbers():
    terms = ppo_terms(None)
    assert terms.policy.item() == pytest.approx(-(1.2 - 0.8 + 2.0) / 3)
    # Value 1 is clipped to 0.7: the larger error is half of 1.3 squared.
    assert terms.value.item() == pytest.approx((0.5 * 1.3**2 + 0.5 + 0.0) / 3)
    assert terms.entropy.item() == pytest.approx(0.6)
    assert terms.kl.item() == pytest.approx(((0.5 - log(1.5)) + (-0.5 - log(0.5))) / 3, rel=1e-5)
    assert terms.clip_fraction.item() == pytest.approx(2 / 3)


def test_ppo_loss_averages_over_valid_entries():
    terms = ppo_terms(torch.tensor([[False], [True], [True]]))
    assert terms.policy.item() == pytest.approx(-(-0.8 + 2.0) / 2)
    assert terms.value.item() == pytest.approx(0.25)
    assert terms.entropy.item() == pytest.approx(0.6)
    assert terms.clip_fraction.item() == pytest.approx(0.5)


def test_the_first_gradient_step_of_a_rollout_is_that_of_actor_critic():
    """IA2C and MAA2C take one step per rollout."""
    for algo, critic in (("ia2c", "own"), ("maa2c", "joint")):
        settings = resolve([f"algo={algo}"]).config.algo.params
        assert (settings.epochs, settings.num_minibatches, settings.critic) == (1, 1, critic)
        assert settings.value_clip_eps is settings.huber_delta is None
    logits = torch.randn(6, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    log_prob = logits.log_softmax(-1)[..., 2]
    value = logits[..., :1]
    advantage, target = torch.linspace(-2, 3, 18).double().reshape(6, 3), torch.ones(6, 3, 1).double()
    batch = batch_of(
        ppo.Batch,
        log_prob=log_prob.detach(),
        advantage=advantage,
        value=value.detach() - 5,
        target=target,
        valid=None,
        critic_valid=None,
    )
    terms = ppo_loss(log_prob, log_prob, value, batch, clip_eps=0.2, value_clip_eps=None, huber_delta=None)
    (found,) = torch.autograd.grad(terms.policy + terms.value, logits, retain_graph=True)
    expected = -(log_prob * advantage).mean() + 0.5 * (value - target).square().mean()
    torch.testing.assert_close(found, torch.autograd.grad(expected, logits)[0])


def test_poca_loss_of_literal_numbers():
    """Two members, one of them absent from the second timestep. V, b_1 and b_2 are 1, 0 and 2; the return is 2."""
    batch = batch_of(
        poca.Batch,
        log_prob=torch.zeros(2, 2),
        advantage=torch.tensor([[1.0, -1.0], [2.0, 9.0]]),
        value=torch.tensor([[1.0, 0.0, 2.0]] * 2).unsqueeze(-1),
        target=torch.full((2, 1, 1), 2.0),
        valid=torch.tensor([[True, True], [True, False]]),
    )
    log_prob = torch.tensor([[log(1.1), log(0.9)], [0.0, 9.0]])
    terms = poca_loss(log_prob, torch.tensor([[0.2, 0.4], [0.6, 9.0]]), batch.value.clone(), batch, **CLIP)
    assert terms.policy.item() == pytest.approx(-(1.1 - 0.9 + 2.0) / 3)
    assert terms.value.item() == pytest.approx(0.5)
    assert terms.baseline.item() == pytest.approx((2.0 + 0.0 + 2.0) / 3)
    assert terms.entropy.item() == pytest.approx(0.4)
    assert terms.clip_fraction.item() == 0


Q = torch.tensor([[1.0, 3.0, 5.0], [2.0, 2.0, 8.0]])
TAKEN = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_coma_loss_of_literal_numbers():
    """Policies (1/2, 1/4, 1/4) and (1/4, 1/4, 1/2): the expected values are 2.5 and 5, the advantages 0.5 and 3."""
    log_pi = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]).log().requires_grad_()
    terms = coma_loss(log_pi, Q, TAKEN, torch.tensor([True, True]))
    assert terms.advantage.item() == pytest.approx((0.5 + 3.0) / 2)
    assert terms.policy.item() == pytest.approx(-(0.5 * log(0.25) + 3.0 * log(0.5)) / 2)
    assert terms.entropy.item() == pytest.approx(1.5 * log(2))
    assert terms.pi_max.item() == pytest.approx(0.5)
    (gradient,) = torch.autograd.grad(terms.policy, log_pi)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -0.25, 0.0], [0.0, 0.0, -1.5]]))
    only_first = coma_loss(log_pi, Q, TAKEN, torch.tensor([True, False]))
    assert only_first.policy.item() == pytest.approx(-0.5 * log(0.25))


def test_coma_loss_sums_over_components():
    """The choices (1/2, 1/2) and (1/4, 3/4) of two components, of which the first and the last are taken."""
    component = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    log_pi = torch.tensor([[0.5, 0.5, 0.25, 0.75]]).log()
    q, taken = torch.tensor([[3.0, 1.0, 4.0, 8.0]]), torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    terms = coma_loss(log_pi, q, taken, torch.tensor([True]), component)
    assert terms.advantage.item() == pytest.approx((1.0 + 1.0) / 2)
    assert terms.policy.item() == pytest.approx(-(1.0 * log(0.5) + 1.0 * log(0.75)))


def test_coma_critic_loss_of_literal_numbers():
    terms = critic_loss(Q, TAKEN, torch.tensor([1.0, 9.0]), torch.tensor([True, True]))
    assert terms.loss.item() == pytest.approx((4.0 + 1.0) / 2)
    assert terms.td_error_abs.item() == pytest.approx(1.5)
    assert terms.q_taken.item() == pytest.approx(5.5)
    assert terms.target.item() == pytest.approx(5.0)
    masked = critic_loss(Q, TAKEN, torch.tensor([1.0, float("nan")]), torch.tensor([True, False]))
    assert masked.loss.item() == pytest.approx(4.0)
