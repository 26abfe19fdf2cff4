"""The operators of categorical choices against PyTorch."""

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.policy_gradient import log_prob_and_entropy, sample_action
from coterie.kernels.policy_gradient import categorical, sample_categorical


def batch(choices, rows, *, masked, dtype=torch.float64, seed=0):
    """Returns random logits, masks with at least one choice per component, available actions, and noise."""
    draw = torch.Generator().manual_seed(seed)
    size = (rows, sum(choices))
    logits = 3 * torch.randn(size, generator=draw, dtype=dtype)
    action = torch.stack([torch.randint(a, (rows,), generator=draw) for a in choices], -1)
    mask = None
    if masked:
        parts = (torch.rand(size, generator=draw) < 0.5).split(choices, -1)
        mask = torch.cat(
            [p.scatter(-1, a.unsqueeze(-1), True) for p, a in zip(parts, action.unbind(-1), strict=True)], -1
        )
    noise = -torch.empty(size, dtype=dtype).exponential_(generator=draw).log()
    return logits, mask, action, noise


@pytest.mark.parametrize(
    ("choices", "masked", "rows"),
    [
        *(((5,), False, 130), ((5,), True, 0), ((1,), True, 1), ((1,), False, 0)),
        *(((2, 3), False, 1), ((2, 3), True, 130), ((4, 1, 20), False, 130), ((4, 1, 20), True, 1)),
    ],
)
def test_values_and_gradients_are_those_of_pytorch(choices, masked, rows):
    logits, mask, action, _ = batch(choices, rows, masked=masked)
    spec = ActionSpec(choices=choices)
    expected = log_prob_and_entropy(spec, logits, Action(action), log_std=None, mask=mask)
    for found, right in zip(categorical(logits, mask, action, choices), expected, strict=True):
        torch.testing.assert_close(found, right)
    if rows:
        some = slice(0, 20)
        inputs = (logits[some].requires_grad_(), None if mask is None else mask[some], action[some], choices)
        assert torch.autograd.gradcheck(categorical, inputs)


@pytest.mark.parametrize(
    ("choices", "masked", "greedy"),
    [
        *(((5,), False, True), ((5,), True, False), ((1,), True, True), ((1,), False, False)),
        *(((2, 3), True, True), ((2, 3), False, False), ((4, 1, 20), True, False), ((4, 1, 20), False, True)),
    ],
)
def test_samples_are_those_of_pytorch(choices, masked, greedy):
    logits, mask, _, noise = batch(choices, 500, masked=masked)
    noise = None if greedy else noise
    with torch.no_grad():
        action, log_prob = sample_categorical(logits, mask, noise, choices)
    right, right_log_prob = sample_action(ActionSpec(choices=choices), logits, log_std=None, mask=mask, noise=noise)
    assert torch.equal(action, right.discrete)
    torch.testing.assert_close(log_prob, right_log_prob)


def test_a_masked_choice_has_no_probability_and_no_gradient():
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[False, True, True]])
    log_prob, entropy = categorical(logits, mask, torch.tensor([[0]]), (3,))
    assert log_prob.item() == torch.finfo(torch.float32).min
    (log_prob + entropy).sum().backward()
    assert logits.grad[0, 0].item() == 0
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_logits_give_nan_in_their_row_only(bad):
    logits, _, action, _ = batch((5,), 9, masked=False, dtype=torch.float32)
    logits[4, 2] = bad
    for x in categorical(logits, None, action, (5,)):
        assert x.isnan().tolist() == [i == 4 for i in range(9)]


def test_the_number_of_threads_does_not_change_a_bit(threads):
    logits, mask, action, _ = batch((5,), 5000, masked=True, dtype=torch.float32)
    found = []
    for count in (1, 2, 3):
        with threads(count):
            x = logits.clone().requires_grad_()
            log_prob, entropy = categorical(x, mask, action, (5,))
            (log_prob + entropy).sum().backward()
            found.append((log_prob, entropy, x.grad))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_other_shapes_have_no_kernel():
    logits, mask, action, noise = batch((2, 3), 4, masked=True)
    assert categorical(logits, mask[:1], action, (2, 3)) is None
    assert categorical(logits, mask, action[:, :1], (2, 3)) is None
    with torch.no_grad():
        assert sample_categorical(logits, mask[:1], noise, (2, 3)) is None
        assert sample_categorical(logits, mask, noise[:1], (2, 3)) is None
