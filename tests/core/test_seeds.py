"""States of random generators, restored on the same kind of device and on another."""

import pytest
import torch

from coterie.core.seeds import generator, restore


def numbers(draw: torch.Generator) -> list[float]:
    return torch.rand(3, generator=draw).tolist()


def test_a_restored_generator_continues():
    first, second = generator(0, "a"), generator(1, "b")
    numbers(first)
    restore(second, first.get_state())
    assert numbers(second) == numbers(first)


def test_the_state_of_a_gpu_seeds_a_generator_on_the_cpu():
    """16 bytes: seed and offset. The same state gives the same numbers, another state gives others."""
    state, other = torch.arange(16, dtype=torch.uint8), torch.arange(1, 17, dtype=torch.uint8)
    found = []
    for saved in (state, state, other):
        draw = generator(0, "a")
        restore(draw, saved)
        found.append(numbers(draw))
    assert found[0] == found[1] != found[2]
    assert numbers(generator(0, "a")) not in found


def test_a_state_of_neither_is_refused():
    with pytest.raises(RuntimeError):
        restore(generator(0, "a"), torch.zeros(17, dtype=torch.uint8))
