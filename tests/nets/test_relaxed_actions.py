"""Straight-through choices and target policy smoothing against literal numbers."""

import math

import pytest
import torch

from coterie.nets.relaxed_actions import draw_block_noise, relaxed_actions, smoothing_noise, straight_through
from coterie.nets.team import team_blocks
from policy_cases import CPU, draw, make_team


def test_smoothing_noise_is_clipped():
    found = smoothing_noise(torch.tensor([-9.0, -1.0, 0.0, 2.0, 9.0]), std=0.2, clip=0.5)
    torch.testing.assert_close(found, torch.tensor([-0.5, -0.2, 0.0, 0.4, 0.5]))


def test_straight_through_is_one_hot_with_the_gradient_of_the_relaxed_choice():
    """y = softmax([0.5, 1.0, -0.5] / 0.5); the gradient of w y is y (w - w y) / 0.5."""
    logits = torch.tensor([0.25, 0.5, 0.0], requires_grad=True)
    noise, weight = torch.tensor([0.25, 0.5, -0.5]), torch.tensor([3.0, -1.0, 2.0])
    hard = straight_through(logits, None, noise, 0.5)
    assert hard.tolist() == [0.0, 1.0, 0.0]
    (hard * weight).sum().backward()
    y = [math.exp(1.0), math.exp(2.0), math.exp(-1.0)]
    y = [part / sum(y) for part in y]
    mean = 3 * y[0] - y[1] + 2 * y[2]
    expected = [y[0] * (3 - mean) / 0.5, y[1] * (-1 - mean) / 0.5, y[2] * (2 - mean) / 0.5]
    torch.testing.assert_close(logits.grad, torch.tensor(expected))


def test_masked_choices_are_never_sampled_and_get_no_gradient():
    logits = torch.tensor([0.0, 50.0, 0.0], requires_grad=True)
    mask = torch.tensor([True, False, True])
    for noise in (torch.tensor([0.0, 9.0, 1.0]), torch.tensor([2.0, 90.0, 0.0])):
        hard = straight_through(logits, mask, noise, 0.1)
        assert hard[1] == 0
        assert hard.sum() == 1
        (grad,) = torch.autograd.grad((hard * torch.tensor([1.0, 2.0, 3.0])).sum(), logits)
        assert grad[1] == 0
        assert grad.isfinite().all()
        assert straight_through(logits, None, noise, 0.1)[1] == 1  # the control: without the mask


def test_noise_of_a_block_is_gumbel_for_choices_and_normal_for_numbers():
    """The same draws by hand: -log(-log(u)) of uniform numbers."""
    blocks = team_blocks(make_team("hybrid"), "role")
    noise, by_hand = draw_block_noise(blocks, (5, 3), draw(7), CPU), draw(7)
    for block in blocks:
        uniform = torch.rand(5, 3, block.n, 4, generator=by_hand)
        numbers = torch.randn(5, 3, block.n, 2, generator=by_hand)
        torch.testing.assert_close(noise[block.name], torch.cat([-(-uniform.log()).log(), numbers], -1))
    assert draw_block_noise(team_blocks(make_team("discrete"), "role"), (5,), draw(), CPU)["scout"].shape == (5, 1, 4)
    assert draw_block_noise(team_blocks(make_team("continuous"), "role"), (5,), draw(), CPU)["guard"].shape == (5, 2, 2)


@pytest.mark.parametrize("smoothing", [None, (0.5, 0.2)])
@pytest.mark.parametrize("kind", ["discrete", "continuous", "hybrid"])
def test_relaxed_actions_of_a_batch_are_those_of_its_entries(kind, smoothing):
    """Five timesteps of three environments; choices are one-hot, numbers tanh of the outputs plus clipped noise."""
    blocks = team_blocks(make_team(kind), "role")
    choices, numbers = {"discrete": (4, 0), "continuous": (0, 2), "hybrid": (4, 2)}[kind]
    size = choices + numbers
    outputs = {block.name: torch.randn(5, 3, block.n, size, generator=draw(1)) for block in blocks}
    noise = {block.name: torch.randn(5, 3, block.n, size, generator=draw(2)) for block in blocks}
    mask = {"guard": torch.tensor([True, False, True, True]).expand(5, 3, 2, 4)} if choices else {}
    found = relaxed_actions(blocks, outputs, mask, noise, temperature=0.7, smoothing=smoothing)
    for block in blocks:
        expected = torch.zeros(5, 3, block.n, size)
        for place in ((t, b, i) for t in range(5) for b in range(3) for i in range(block.n)):
            out, drawn = outputs[block.name][place], noise[block.name][place]
            if choices:
                score = (out[:4] + drawn[:4]).tolist()
                if block.name == "guard":
                    score[1] = -math.inf
                expected[place][score.index(max(score))] = 1
            for c in range(choices, size):
                added = 0.0 if smoothing is None else min(max(0.5 * drawn[c].item(), -0.2), 0.2)
                expected[place][c] = min(max(math.tanh(out[c].item()) + added, -1), 1)
        torch.testing.assert_close(found[block.name], expected)


def test_choices_without_gradients_are_exactly_one_hot():
    """Where a relaxed choice has a gradient, its numbers are one-hot up to rounding."""
    logits, noise = torch.randn(5, 3, 4, generator=draw(1)), torch.randn(5, 3, 4, generator=draw(2))
    hard = straight_through(logits, None, noise, 0.7)
    assert hard.equal(torch.nn.functional.one_hot((logits + noise).argmax(-1), 4).float())
    assert not hard.requires_grad
    assert straight_through(logits.requires_grad_(), None, noise, 0.7).requires_grad
    with torch.no_grad():
        assert straight_through(logits, None, noise, 0.7).equal(hard)
