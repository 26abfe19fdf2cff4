"""Probes: tiny environments with exactly known answers, each of which isolates one mistake in a learner.

They are ordered by what they require. A learner that solves `constant` but not `delayed` has an error in its discount,
and so on. The `reference` of every world holds its requirement, its negative control and the team's exact returns
(also `best_return()` and `random_return()`). `best_action` plays it optimally, and `best_value` is its value function.
The two-step game is `matrix/two_step`.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.probe"

SCENARIOS: dict[str, str] = {
    "constant": f"{_HERE}.single_agent:ConstantProbe",
    "observation": f"{_HERE}.single_agent:ObservationProbe",
    "delayed": f"{_HERE}.single_agent:DelayedProbe",
    "action": f"{_HERE}.single_agent:ActionProbe",
    "both": f"{_HERE}.single_agent:BothProbe",
    "endless": f"{_HERE}.single_agent:EndlessProbe",
    "masked": f"{_HERE}.single_agent:MaskedProbe",
    "memory": f"{_HERE}.single_agent:MemoryProbe",
    "roles": f"{_HERE}.team_probes:RolesProbe",
    "additive": f"{_HERE}.team_probes:AdditiveProbe",
    "irrelevant": f"{_HERE}.team_probes:IrrelevantProbe",
    "sacrifice": f"{_HERE}.team_probes:SacrificeProbe",
    "sum": f"{_HERE}.team_probes:SumProbe",
    "continuous": f"{_HERE}.space_kinds:ContinuousProbe",
    "flat": f"{_HERE}.space_kinds:FlatProbe",
    "multi_discrete": f"{_HERE}.space_kinds:MultiDiscreteProbe",
    "hybrid": f"{_HERE}.space_kinds:HybridProbe",
    "image": f"{_HERE}.space_kinds:ImageProbe",
}
"""World to `module:Class`, in order of difficulty. The class has its settings as `Config`."""
