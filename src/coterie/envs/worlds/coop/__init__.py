"""Cooperative worlds in which group members leave and join, with group rewards.

Small grid rooms for methods that assign credit beyond an agent's own termination: in `escape` one member has to be
sacrificed so that the others escape, in `baton` runners leave and others enter, in `pushblock` heavy blocks need
several agents at once. Tasks of this kind were introduced with MA-POCA (Cohen et al. 2022); rooms, rules and sizes are
Coterie's own.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.coop"

SCENARIOS: dict[str, str] = {
    "baton": f"{_HERE}.baton:Baton",
    "escape": f"{_HERE}.escape:Escape",
    "pushblock": f"{_HERE}.pushblock:PushBlock",
}
"""World name to `module:Class`; the class holds its configuration model as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "baton": {"baton_by_turns": (f"{_HERE}.scripts:runners", ("agent",))},
    "escape": {"escape_by_one": (f"{_HERE}.scripts:escapers", ("agent",))},
}
"""World name to its scripts: script name to `module:make` and the roles it can play. See
`coterie.envs.script_registry`.
"""
