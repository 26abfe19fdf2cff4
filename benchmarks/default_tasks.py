"""Tasks of `defaults.py`: those on which defaults are chosen, and others on which they are reported."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        episodes: Episodes of an evaluation.
        algos: Algorithms that train on the task; (): all with such actions.
        threshold: Return at which the task counts as solved, as published; None if there is none.
        agents: Agents among which the published return is divided.
    """

    env: str
    team: str
    actions: Literal["discrete", "continuous"] = "discrete"
    steps: int = 300_000
    settings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    episodes: int = 100
    algos: tuple[str, ...] = ()
    threshold: float | None = None
    agents: int = 1

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
    Task("particle/simple_adversary", "agent", steps=200_000, others=("adversary",)),
    Task("particle/simple_tag", "adversary", steps=200_000, others=("agent",)),
    Task("particle/simple_speaker_listener", "team", steps=200_000),
    Task("foraging/8x8-2p-2f", "team", steps=200_000),
    Task("skirmish/3m", "allies", steps=200_000),
    Task("warehouse/tiny-2ag-easy", "team", steps=200_000),
    Task("coop/escape", "team", steps=200_000),
    Task("matrix/climbing", "agent", steps=50_000),
    Task("board/tictactoe", "cross", steps=200_000, others=("nought",)),
    Task("gym/Acrobot-v1", "agent", steps=100_000, threshold=-100),
    Task("pettingzoo/mpe2.simple_push_v3", "agent", steps=60_000, others=("adversary",)),
    Task(
        "particle/simple_tag",
        "adversary",
        "continuous",
        steps=200_000,
        settings=("env.actions=continuous",),
        others=("agent",),
    ),
    Task("particle/simple_formation", "agent", "continuous", steps=200_000, settings=("env.actions=continuous",)),
    Task("gym/MountainCarContinuous-v0", "agent", "continuous", steps=100_000, threshold=90),
)
"""Tasks that no setting is chosen on, with seeds 0 to 4; docs/benchmarks/defaults.md says what changed meanwhile."""

SPREAD = (
    Task(
        "particle/simple_spread",
        "agent",
        steps=1_000_000,
        settings=("env.variant=openai",),
        episodes=1000,
        algos=("mappo", "ippo", "poca", "qmix", "vdn", "iql", "maddpg", "masac", "coma"),
        agents=3,
    ),
)
"""The task of the results in README.md, with seeds 100 to 109. Its mpe2 variant is among the tasks for choices."""

SIZES = tuple(
    Task(
        "particle/simple_spread",
        "agent",
        steps=500_000,
        settings=("env.variant=openai", f"env.agents={agents}"),
        algos=("mappo", "happo", "mat", "sable", "magpo"),
        agents=agents,
    )
    for agents in (3, 5, 10)
)
"""Teams of several sizes, which have as many landmarks, with seeds 100 to 102."""

TIME = tuple(
    replace(task, steps=steps, algos=algos)
    for task in REPORT
    if task.actions == "discrete" and not task.env.startswith(("foraging/", "warehouse/"))
    for steps, algos in ((task.steps, ("vdn", "qmix")), (2 * task.steps, ("pqn_vdn", "pqn_qmix")))
)
"""Tasks for value decomposition with and without replay in about the same time, with seeds 0 to 2: twice the steps
without it. On those of `REPORT` that are left out, none of the four was above random."""

GYMNASIUM = (
    Task("gym/CartPole-v1", "agent", steps=100_000, algos=("ppo",), threshold=475),
    Task("gym/Acrobot-v1", "agent", steps=200_000, algos=("ppo",), threshold=-100),
    Task("gym/MountainCar-v0", "agent", steps=300_000, algos=("ppo", "ddqn"), threshold=-110),
    Task("gym/LunarLander-v3", "agent", steps=1_000_000, algos=("ppo",), threshold=200),
    Task("gym/Pendulum-v1", "agent", "continuous", steps=50_000, algos=("sac",), threshold=-200),
    Task("gym/MountainCarContinuous-v0", "agent", "continuous", steps=100_000, algos=("ppo", "sac"), threshold=90),
    Task("gym/LunarLanderContinuous-v3", "agent", "continuous", steps=1_000_000, algos=("ppo",), threshold=200),
    Task("gym/BipedalWalker-v3", "agent", "continuous", steps=2_000_000, algos=("ppo",), threshold=300),
    Task("gym/BipedalWalkerHardcore-v3", "agent", "continuous", steps=10_000_000, algos=("ppo",), threshold=300),
    Task("gym/CarRacing-v3", "agent", "continuous", steps=2_000_000, algos=("ppo",), threshold=900, episodes=10),
)
"""Tasks of Gymnasium, with the thresholds of its registry, and -200 for Pendulum, which has none; seeds 100 to 104."""

SMALL = (
    Task("particle/simple_crypto", "team", steps=30_000, others=("eve",)),
    Task("matrix/penalty", "agent", steps=20_000),
    Task("gym/CartPole-v1", "agent", steps=20_000, episodes=40),
    Task("particle/simple", "agent", "continuous", steps=20_000, settings=("env.actions=continuous",)),
)
"""Short runs of choice tasks, after which every algorithm is above random; the last for those of continuous actions."""
