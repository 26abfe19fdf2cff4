"""Seeds of components: each random generator is seeded by the run's seed and the component's names."""

from __future__ import annotations

import hashlib

import torch


def seed_of(seed: int, *names: str | int) -> int:
    """Returns a 63-bit seed, the hash of the run's seed and the component's names."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns a new generator on `device`, seeded with `seed_of(seed, *names)`."""
    return torch.Generator(device=device).manual_seed(seed_of(seed, *names))


_STATE_BYTES = (5056, 16)
"""Lengths of the states of PyTorch's generators on CPUs and on GPUs."""


def restore(generator: torch.Generator, state: torch.Tensor) -> None:
    """Sets a generator to a state that `get_state` returned [bytes] uint8.

    The state of a generator on the other kind of device seeds this one with its hash: a run that is resumed on another
    device continues with other random numbers, the same each time.
    """
    state = state.cpu()
    if len(state) == len(generator.get_state()) or len(state) not in _STATE_BYTES:
        generator.set_state(state)
    else:
        generator.manual_seed(int.from_bytes(hashlib.sha256(bytes(state.tolist())).digest()[:8], "little") >> 1)
