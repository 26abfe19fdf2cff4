"""Cooperative worlds in which members come and go, and what is earned is paid to the group.

Small rooms of squares, for methods that give credit beyond an agent's own end: in `escape` one member has to fall so
that the others get out, in `baton` runners leave and others enter, in `pushblock` heavy blocks want several at once.
Tasks of this kind were introduced with MA-POCA (Cohen et al. 2022); rooms, rules and sizes are this project's own.
"""

from __future__ import annotations

_HERE = "coterie.envs.coop"

SCENARIOS: dict[str, str] = {
    "baton": f"{_HERE}.baton:Baton",
    "escape": f"{_HERE}.escape:Escape",
    "pushblock": f"{_HERE}.pushblock:PushBlock",
}
"""World to `module:Class`; the class bears its configuration as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "baton": {"baton_by_turns": (f"{_HERE}.scripts:runners", ("agent",))},
    "escape": {"escape_by_one": (f"{_HERE}.scripts:escapers", ("agent",))},
}
"""World to its scripts: name to `module:make` and the roles that it plays. See `coterie.envs.scripts`."""
