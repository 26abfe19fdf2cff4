"""Operators refuse arguments that their C functions would read as something else."""

import pytest
import torch

import kernel_arguments
from coterie.kernels.adam import adam_step
from coterie.kernels.mlp import mlp
from coterie.kernels.policy_gradient import categorical, sample_categorical
from coterie.kernels.recurrent import gru

LOGITS = torch.zeros(4, 5)
ACTION = torch.zeros(4, 2, dtype=torch.int64)


def test_random_arguments_give_the_results_of_pytorch_or_an_error():
    outcomes = {kernel_arguments.call_once(seed) for seed in range(400)}
    assert len({name for name, outcome in outcomes if outcome == "refused"}) == 18


@pytest.mark.parametrize("wrong", [10**12, 3, -1, -(2**63), 2**63 - 1])
def test_an_action_that_is_not_a_choice_is_named(wrong):
    action = ACTION.clone()
    action[2, 1] = wrong
    message = rf"categorical: action\[2, 1\] is {wrong}, which is not one of the 3 choices 0 to 2"
    with pytest.raises(IndexError, match=message):
        categorical(LOGITS, None, action, (2, 3))
    with pytest.raises(IndexError, match="categorical_backward: action"):
        torch.ops.coterie.categorical_backward(torch.ones(4), torch.ones(4), LOGITS, None, action, (2, 3))


@pytest.mark.parametrize("choices", [(2, 2), (5, 1), (), (0, 5), (-1, 6), (10**12,)])
def test_choices_that_do_not_fit_the_logits_are_named(choices):
    action = torch.zeros(4, len(choices), dtype=torch.int64)
    with pytest.raises(ValueError, match=r"choices=\[.*\] do not fit logits \[4, 5\]"):
        categorical(LOGITS, None, action, choices)
    with torch.no_grad(), pytest.raises(ValueError, match="do not fit logits"):
        sample_categorical(LOGITS, None, None, choices)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool])
def test_actions_are_int64(dtype):
    with pytest.raises(TypeError, match=f"action is {dtype}"):
        categorical(LOGITS, None, ACTION.to(dtype), (2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_masks_are_bool(dtype):
    with pytest.raises(TypeError, match=f"mask is {dtype}"):
        categorical(LOGITS, torch.ones(4, 5, dtype=dtype), ACTION, (2, 3))


def test_parameters_of_another_shape_are_named():
    x, weight, bias = torch.zeros(3, 2), [torch.zeros(2, 4), torch.zeros(4, 1)], [torch.zeros(4), torch.zeros(1)]
    with pytest.raises(ValueError, match=r"mlp: biases\[0\] is torch.float32 \[3\].*expected torch.float32 \[4\]"):
        mlp(x, weight, [torch.zeros(3), bias[1]], activated=1)
    with pytest.raises(TypeError, match=r"weights\[1\] is torch.float64"):
        mlp(x, [weight[0], weight[1].double()], bias, activated=1)
    with pytest.raises(ValueError, match=r"gru: recurrent is torch.float32 \[4, 9\]"):
        gru(torch.zeros(2, 3, 2), torch.zeros(2, 3, dtype=torch.bool), torch.zeros(3, 4),
            (torch.zeros(2, 12), torch.zeros(4, 9)), torch.zeros(12), torch.zeros(4))  # fmt: skip


def test_normalizations_that_are_not_contiguous_are_read_right():
    x, weight, bias = torch.randn(3, 2), [torch.randn(2, 4)], [torch.randn(4)]
    norms = [(torch.randn(width, 2)[:, 0], torch.randn(width, 2)[:, 1]) for width in (2, 4)]
    found, right = (
        mlp(x, weight, bias, norms=pairs, activated=1)
        for pairs in (norms, [(scale.contiguous(), shift.contiguous()) for scale, shift in norms])
    )
    assert torch.equal(found, right)


def test_adam_changes_contiguous_parameters_only():
    state = {"step": torch.zeros(()), "exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    rate = torch.full((), 0.1, dtype=torch.float64)
    settings = {"lr": rate, "weight_decay": 0.0, "eps": 1e-5}
    with torch.no_grad(), pytest.raises(ValueError, match="parameter is changed in place and has to be contiguous"):
        adam_step(torch.zeros(3, 2)[:, 0], torch.ones(3), state, None, **settings)
    with torch.no_grad(), pytest.raises(ValueError, match=r"average is torch.float32 \[3\]"):
        adam_step(torch.zeros(4), torch.ones(4), state, None, **settings)
    for wrong, message in ((rate.float(), "lr is torch.float32"), (rate.expand(1), r"lr is torch.float64 \[1\]")):
        with torch.no_grad(), pytest.raises((TypeError, ValueError), match=message):
            adam_step(torch.zeros(3), torch.ones(3), state, None, **settings | {"lr": wrong})
