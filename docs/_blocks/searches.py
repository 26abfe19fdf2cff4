"""Generated blocks about `coterie tune`."""

from __future__ import annotations

from coterie.sweeps.tuning.space import DEFAULT_KEYS, RANGES


def ranges() -> str:
    """Table of the ranges that settings of algorithms have themselves."""
    lines = ["| setting | searched by default | range |", "|---|---|---|"]
    for name, (low, high, log) in RANGES.items():
        scale = ", logarithmic" if log else ""
        lines.append(f"| `algo.{name}` | {'yes' if name in DEFAULT_KEYS else 'no'} | {low:g} to {high:g}{scale} |")
    return "\n".join(lines)
