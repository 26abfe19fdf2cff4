"""Probes: tiny worlds with exactly known answers, each of which one mistake of a learner fails."""

from __future__ import annotations

SCENARIOS: dict[str, str] = {}
"""World to `module:Class`; the class bears its configuration as `Config`."""
