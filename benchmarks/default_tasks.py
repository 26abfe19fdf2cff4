"""Tasks of `defaults.py`: those on which defaults are chosen, and others on which they are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Task:
    """A task on which algorithms train with their defaults, without presets for the task.

    Attributes:
        env: Name of the environment.
        team: Team that learns and whose return is the score; other teams act at random.
        actions: Kind of the actions, which not every algorithm supports.
        steps: Environment steps of a run.
        settings: Settings of the environment.
        others: The other teams.
    """

    env: str
    team: str
    actions: Literal["discrete", "continuous"] = "discrete"
    steps: int = 300_000
    settings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in tables: the environment and its settings."""
        return " ".join((self.env, *(setting.removeprefix("env.") for setting in self.settings)))


CHOICE = (
    Task("particle/simple_reference", "agent"),
    Task("particle/simple_crypto", "team", others=("eve",)),
    Task("particle/simple_world_comm", "adversary", others=("agent",)),
    Task("particle/simple_spread", "agent"),
    Task("particle/simple_spread", "agent", "continuous", settings=("env.actions=continuous",)),
    Task("foraging/7x7-3p-2f", "team"),
    Task("foraging/6x6-2p-1f", "team"),
    Task("skirmish/3s_vs_4z", "allies"),
    Task("warehouse/tiny-4ag-easy", "team"),
    Task("coop/pushblock", "team"),
    Task("matrix/penalty", "agent", steps=50_000),
    Task("overcooked/cramped_room", "team"),
    Task("gym/CartPole-v1", "agent", steps=100_000),
    Task("gym/Pendulum-v1", "agent", "continuous", steps=100_000),
)
"""Tasks that settings are chosen on, with seeds from 1000."""

REPORT = (
    Task("particle/simple_adversary", "agent", others=("adversary",)),
    Task("particle/simple_push", "agent", others=("adversary",)),
    Task("particle/simple_tag", "adversary", others=("agent",)),
    Task("particle/simple_tag", "adversary", "continuous", settings=("env.actions=continuous",), others=("agent",)),
    Task("particle/simple_speaker_listener", "team"),
    Task("particle/simple_line", "agent"),
    Task("particle/simple_formation", "agent", "continuous", settings=("env.actions=continuous",)),
    Task("foraging/8x8-2p-2f", "team"),
    Task("foraging/10x10-3p-3f", "team"),
    Task("skirmish/2s3z", "allies"),
    Task("skirmish/3m", "allies"),
    Task("warehouse/tiny-2ag-easy", "team"),
    Task("coop/escape", "team"),
    Task("coop/baton", "team"),
    Task("matrix/climbing", "agent", steps=50_000),
    Task("overcooked/coordination_ring", "team"),
    Task("board/tictactoe", "cross", others=("nought",)),
    Task("gym/Acrobot-v1", "agent", steps=100_000),
    Task("gym/MountainCarContinuous-v0", "agent", "continuous", steps=100_000),
    Task("pettingzoo/sisl.pursuit_v5", "pursuer", steps=100_000),
)
"""Tasks that no setting is chosen on; reported once, with seeds 0 to 4."""
