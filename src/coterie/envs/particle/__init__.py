"""The particle worlds, batched: the twelve scenarios of mpe2 1.1, the original convention of five of them, and
simple_ball, a game of two equal sides that is this project's own.

Names and order of the agents are mpe2's; a group is a side, called `team` where one side has several roles. Settings
bear mpe2's names but for `agents` (N), `good`, `adversaries`, `obstacles`, `food`, `forests`, `collectors`, `deposits`,
`treasures` (num_...), `episode_limit` (max_cycles) and `actions` (continuous_actions). Two things differ on purpose: an
episode that succeeds in its last step is terminated, where mpe2 calls it truncated; and the stage of a curriculum
counts, where mpe2 1.1.1 stays at stage 0 whatever it is told.

`variant="openai"` is the original convention: agents accelerate before they move, the moves are ordered +x, -x, +y, -y,
all agents of a collaborative task receive the sum of all rewards, in simple_spread each counts a collision with itself,
and the adversary of simple_adversary pays the square of its distance. Source: Lowe et al. 2017.
"""

from __future__ import annotations

_HERE = "coterie.envs.particle"

SCENARIOS: dict[str, str] = {
    "collect_treasure": f"{_HERE}.treasure:CollectTreasure",
    "simple": f"{_HERE}.simple:Simple",
    "simple_adversary": f"{_HERE}.adversary:SimpleAdversary",
    "simple_ball": f"{_HERE}.ball:SimpleBall",
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

_SCRIPTS = f"{_HERE}.scripts"

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "simple_ball": {"push_ball": (f"{_SCRIPTS}:ball_players", ("left", "right"))},
    "simple_speaker_listener": {"follow_speaker": (f"{_SCRIPTS}:speaker_and_listener", ("speaker", "listener"))},
    "simple_spread": {"spread_greedily": (f"{_SCRIPTS}:spreaders", ("agent",))},
    "simple_tag": {
        "pursue": (f"{_SCRIPTS}:pursuers", ("adversary",)),
        "flee": (f"{_SCRIPTS}:prey", ("agent",)),
    },
}
"""Scenario to its scripts: name to `module:make` and the roles that it plays. See `coterie.envs.scripts`."""
