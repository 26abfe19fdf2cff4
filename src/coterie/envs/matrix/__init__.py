"""Matrix games: repeated or one-shot games of a payoff table, and the two-step game."""

from __future__ import annotations

SCENARIOS: dict[str, str] = {}
"""World to `module:Class`; the class bears its configuration as `Config`."""
