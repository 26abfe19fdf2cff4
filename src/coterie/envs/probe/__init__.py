"""Probes: tiny worlds with exactly known answers, each of which fails where one thing is wrong in a learner.

Start with the first and go on: who learns `constant` and not `delayed` has its discount wrong, and so forth. Every
world has its claim, its negative control and the team's exact returns in `known` (also `best_return`, `random_return`);
`best` plays it, and `best_value` is its value function. The two-step game is `matrix/two_step`.
"""

from __future__ import annotations

_HERE = "coterie.envs.probe"

SCENARIOS: dict[str, str] = {
    "constant": f"{_HERE}.single:Constant",
    "observation": f"{_HERE}.single:Observation",
    "delayed": f"{_HERE}.single:Delayed",
    "action": f"{_HERE}.single:ActionProbe",
    "both": f"{_HERE}.single:Both",
    "endless": f"{_HERE}.single:Endless",
    "masked": f"{_HERE}.single:Masked",
    "memory": f"{_HERE}.recall:Memory",
    "roles": f"{_HERE}.team:Roles",
    "additive": f"{_HERE}.team:Additive",
    "irrelevant": f"{_HERE}.team:Irrelevant",
    "sacrifice": f"{_HERE}.team:Sacrifice",
    "sum": f"{_HERE}.team:Sum",
    "continuous": f"{_HERE}.kinds:Continuous",
    "flat": f"{_HERE}.kinds:Flat",
    "multi_discrete": f"{_HERE}.kinds:MultiDiscrete",
    "hybrid": f"{_HERE}.kinds:Hybrid",
    "image": f"{_HERE}.kinds:Image",
}
"""World to `module:Class`; the class bears its configuration as `Config`. Each asks for more than those before it."""
