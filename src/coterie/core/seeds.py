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
