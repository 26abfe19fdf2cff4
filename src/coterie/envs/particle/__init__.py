"""The particle worlds, batched: the twelve scenarios of mpe2 1.1, and the original convention of five of them."""

from __future__ import annotations

SCENARIOS: dict[str, str] = {
    "simple_spread": "coterie.envs.particle.spread:SimpleSpread",
    "simple_tag": "coterie.envs.particle.tag:SimpleTag",
}
"""Scenario to `module:Class`; the class bears its configuration as `Config`."""
