"""Retention: numbers computed by hand, equal forms with resets, linear memory, and blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.nets.retention import (
    carried,
    decay_masks,
    retention,
    retention_decays,
    retention_parallel,
    retention_recurrent,
)


def inputs(
    agents: int = 3,
    steps: int = 12,
    heads: int = 3,
    size: int = 4,
    samples: int = 2,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value, episode starts in the middle of chunks, decays of their own, and a state."""
    draw = torch.Generator().manual_seed(agents * steps + heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=dtype)

    query, key, value = (normal(samples, steps, agents, heads, size) for _ in range(3))
    first = torch.rand(samples, steps, generator=draw) < 0.2
    first[0, steps // 2 + 1] = True
    decay = torch.linspace(0.3, 0.9, heads, dtype=dtype)
    return query, key / size**0.5, value, first, decay, normal(samples, heads, size, size)


def scalars(*values: float) -> Tensor:
    """One environment, one agent per timestep, one head of one feature."""
    return torch.tensor(values, dtype=torch.float64)[None, :, None, None, None]


def test_decays_of_heads_are_those_of_the_publication():
    assert retention_decays(1, 1.0).tolist() == pytest.approx([1 - 1 / 32])
    assert retention_decays(2, 0.8).tolist() == pytest.approx([0.8 * 31 / 32, 0.8 * 511 / 512])
    assert retention_decays(3, 1.0).tolist() == pytest.approx([1 - 1 / 32, 1 - 1 / 128, 1 - 1 / 512])


def test_literal_numbers_of_one_agent_over_time():
    first = torch.tensor([[False, False, True, False]])
    state = torch.full((1, 1, 1, 1), 8.0, dtype=torch.float64)
    decay = torch.tensor([0.5], dtype=torch.float64)
    # S: 4 + 1*2 = 6;  3 + 2*1 = 5;  reset, 3*1 = 3;  1.5 + 1*4 = 5.5
    for form in (retention_recurrent, retention_parallel, retention):
        out, after = form(
            scalars(1, 2, 1, 2), scalars(1, 2, 3, 1), scalars(2, 1, 1, 4), first, decay, state, causal=True
        )
        assert out.flatten().tolist() == [6, 10, 3, 11]
        assert after.item() == 5.5


def test_literal_numbers_of_three_agents_at_one_timestep():
    query, key, value = (scalars(*x).transpose(1, 2) for x in ((1, 1, 2), (1, 2, 1), (1, 3, 5)))
    first, decay = torch.tensor([[False]]), torch.tensor([0.5], dtype=torch.float64)
    state = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64)
    # k v: 1, 6, 5; the state decays once per timestep, not per agent
    for form in (retention_recurrent, retention_parallel, retention):
        causal, after = form(query, key, value, first, decay, state, causal=True)
        full, also_after = form(query, key, value, first, decay, state, causal=False)
        assert causal.flatten().tolist() == [3, 9, 28]
        assert full.flatten().tolist() == [14, 14, 28]
        assert after.item() == also_after.item() == 14


def test_literal_decay_masks():
    masks, since_state = decay_masks(torch.tensor([[False, False, True, False]]), torch.tensor([0.5]))
    assert masks[0, 0].tolist() == [[1, 0, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 1]]
    assert since_state[0, 0].tolist() == [0.5, 0.25, 0, 0]


def test_a_state_decays_and_is_reset_where_an_episode_starts():
    state = carried(torch.full((2, 1, 1, 1), 4.0), torch.tensor([False, True]), torch.tensor([0.5]))
    assert state.flatten().tolist() == [2, 0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("agents", "chunk"), [(1, 5), (3, 1), (3, 12), (3, 7), (7, 2), (7, 36), (7, 1000)])
def test_chunks_of_any_size_equal_the_recurrent_form(agents: int, chunk: int, causal: bool):
    arguments = inputs(agents)
    expected, expected_state = retention_recurrent(*arguments, causal=causal)
    out, state = retention(*arguments, causal=causal, chunk=chunk)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [2, 9, 1000])
def test_gradients_of_chunks_equal_those_of_the_recurrent_form(chunk: int, causal: bool):
    def gradients(form: object, **options: int) -> list[Tensor]:
        arguments = inputs()
        leaves = [x.requires_grad_() for x in (*arguments[:3], arguments[5])]
        out, state = form(*arguments, causal=causal, **options)  # pyright: ignore[reportCallIssue]
        return list(torch.autograd.grad(out.square().sum() + state.square().sum(), leaves))

    for own, expected in zip(gradients(retention, chunk=chunk), gradients(retention_recurrent), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_two_halves_of_a_sequence_continue_each_other(causal: bool):
    query, key, value, first, decay, state = inputs()
    whole, after = retention(query, key, value, first, decay, state, causal=causal)
    outs = []
    for part in (slice(5), slice(5, None)):
        out, state = retention(*(x[:, part] for x in (query, key, value, first)), decay, state, causal=causal, chunk=6)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole)
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize("agents", [3, 7])
def test_without_decay_nothing_is_kept_over_time(agents: int):
    query, key, value, first, _, state = inputs(agents)
    decay = torch.zeros(3, dtype=torch.float64)
    for causal in (False, True):
        out, _ = retention(query, key, value, first, decay, state, causal=causal, chunk=5)
        for t in range(query.shape[1]):
            q, k, v = (x[:, t].transpose(1, 2) for x in (query, key, value))
            score = q @ k.transpose(-1, -2)
            expected = ((score.tril() if causal else score) @ v).transpose(1, 2)
            torch.testing.assert_close(out[:, t], expected)


class _Largest(TorchDispatchMode):
    """Counts the numbers of the largest tensor, and of all tensors, that operations return."""

    largest = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, list | tuple) else (out,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.numel())
                self.total += x.numel() if func.is_view is False else 0
        return out


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_number_of_agents(causal: bool):
    def numbers(agents: int, form: object) -> tuple[int, int]:
        arguments = inputs(agents, steps=4, heads=1, size=8, samples=1)
        for x in arguments[:3]:
            x.requires_grad_()
        with _Largest() as counted:
            out, _ = form(*arguments, causal=causal)  # pyright: ignore[reportCallIssue]
            out.sum().backward()
        return counted.largest, counted.total

    found = [numbers(agents, retention) for agents in (25, 50, 100)]
    for (largest, total), (twice_largest, twice_total) in pairwise(found):
        assert twice_largest <= 2.1 * largest
        assert twice_total <= 2.3 * total
    square = [numbers(agents, retention_parallel)[0] for agents in (50, 100)]
    assert square[1] == 4 * square[0]  # the count can fail
