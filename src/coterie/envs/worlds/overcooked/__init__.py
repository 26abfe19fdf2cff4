"""Overcooked, step by step equal to the package `overcooked_ai` and batched.

Two cooks share a kitchen. They put onions into pots, wait until the soup is cooked, put it on a dish and serve it.
Sources: Carroll et al. 2019, who introduced the task and the five layouts; their package `overcooked_ai`.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.overcooked"

LAYOUTS: dict[str, tuple[str, ...]] = {
    "cramped_room": ("XXPXX", "O  2O", "X1  X", "XDXSX"),
    "asymmetric_advantages": ("XXXXXXXXX", "O XSXOX S", "X   P 1 X", "X2  P   X", "XXXDXDXXX"),
    "coordination_ring": ("XXXPX", "X 1 P", "D2X X", "O   X", "XOSXX"),
    "forced_coordination": ("XXXPX", "O X1P", "O2X X", "D X X", "XXXSX"),
    "counter_circuit_o_1order": ("XXXPPXXX", "X  2   X", "D XXXX S", "X  1   X", "XXXOOXXX"),
}
"""Rows of each layout: `X` counter, `O` onions, `D` dishes, `P` pot, `S` serving window, `1`, `2` starts of agents."""

SCENARIOS: dict[str, str] = {name: f"{_HERE}.overcooked:{name}" for name in LAYOUTS}
"""Layout name to `module:maker`; the maker holds its configuration model as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {"*": {"cook": (f"{_HERE}.scripts:cook", ("agent",))}}
"""Scripts of all names: script name to `module:make` and the roles it can play. See `coterie.envs.script_registry`."""
