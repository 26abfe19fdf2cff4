"""Randomness has names: a component's generator is seeded by the run's seed, its name and its rank."""

from __future__ import annotations

import hashlib

import torch


def seed_of(seed: int, *names: str | int) -> int:
    """A 63-bit seed, the hash of the run's seed and the component's names."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` of its own, seeded by `seed_of(seed, *names)`."""
    return torch.Generator(device=device).manual_seed(seed_of(seed, *names))
