"""Particle worlds: the twelve scenarios of mpe2 1.1, the original variant of five of them, and `simple_ball`, a
symmetric two-team game.

Agents have the names and the order of mpe2. Opposing sides are groups; a group with several roles is called `team`.
Settings have the names of mpe2 except for `agents` (N), `good`, `adversaries`, `obstacles`, `food`, `forests`,
`collectors`, `deposits`, `treasures` (num_...), `episode_limit` (max_cycles) and `actions` (continuous_actions).

There are two deliberate differences. An episode that succeeds in its last step is terminated, where mpe2 truncates it.
The curriculum stage takes effect, where mpe2 1.1.1 always remains at stage 0.

`variant="openai"` follows the original implementation: agents accelerate before they move, moves are ordered +x, -x,
+y, -y, all agents of a collaborative task receive the sum of all rewards, each agent of simple_spread counts a
collision with itself, and the adversary of simple_adversary is penalized by its squared distance. Source: Lowe et al.
2017.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.particle"

SCENARIOS: dict[str, str] = {
    "collect_treasure": f"{_HERE}.treasure:CollectTreasure",
    "simple": f"{_HERE}.targets:Simple",
    "simple_adversary": f"{_HERE}.targets:SimpleAdversary",
    "simple_ball": f"{_HERE}.ball:SimpleBall",
    "simple_crypto": f"{_HERE}.communication:SimpleCrypto",
    "simple_formation": f"{_HERE}.formations:SimpleFormation",
    "simple_line": f"{_HERE}.formations:SimpleLine",
    "simple_push": f"{_HERE}.targets:SimplePush",
    "simple_reference": f"{_HERE}.communication:SimpleReference",
    "simple_speaker_listener": f"{_HERE}.communication:SimpleSpeakerListener",
    "simple_spread": f"{_HERE}.spread:SimpleSpread",
    "simple_tag": f"{_HERE}.tag:SimpleTag",
    "simple_world_comm": f"{_HERE}.tag:SimpleWorldComm",
}
"""Scenario to `module:Class`. The class has its settings as `Config`."""

_SCRIPTS = f"{_HERE}.scripts"

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "simple_ball": {"push_ball": (f"{_SCRIPTS}:make_push_ball", ("left", "right"))},
    "simple_speaker_listener": {"follow_speaker": (f"{_SCRIPTS}:make_follow_speaker", ("speaker", "listener"))},
    "simple_spread": {"spread_greedily": (f"{_SCRIPTS}:make_spread_greedily", ("agent",))},
    "simple_tag": {
        "pursue": (f"{_SCRIPTS}:make_pursue", ("adversary",)),
        "flee": (f"{_SCRIPTS}:make_flee", ("agent",)),
    },
}
"""Scenario to its scripts: name to `module:make` and the roles it controls. See `coterie.envs.script_registry`."""
