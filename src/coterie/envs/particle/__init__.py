"""The particle worlds, batched: the twelve scenarios of mpe2 1.1, and the original convention of five of them."""

from __future__ import annotations

_HERE = "coterie.envs.particle"

SCENARIOS: dict[str, str] = {
    "collect_treasure": f"{_HERE}.treasure:CollectTreasure",
    "simple": f"{_HERE}.simple:Simple",
    "simple_adversary": f"{_HERE}.adversary:SimpleAdversary",
    "simple_crypto": f"{_HERE}.crypto:SimpleCrypto",
    "simple_formation": f"{_HERE}.formation:SimpleFormation",
    "simple_line": f"{_HERE}.line:SimpleLine",
    "simple_push": f"{_HERE}.push:SimplePush",
    "simple_reference": f"{_HERE}.reference:SimpleReference",
    "simple_speaker_listener": f"{_HERE}.speaker_listener:SimpleSpeakerListener",
    "simple_spread": f"{_HERE}.spread:SimpleSpread",
    "simple_tag": f"{_HERE}.tag:SimpleTag",
    "simple_world_comm": f"{_HERE}.world_comm:SimpleWorldComm",
}
"""Scenario to `module:Class`; the class bears its configuration as `Config`."""
