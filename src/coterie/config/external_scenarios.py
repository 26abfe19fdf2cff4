"""Names of environments of external libraries that have a preset. This module imports no library.

Names have the form `family/name`, where `name` is the library's own: `gym/CartPole-v1`. The library determines which
names exist, so that a family has many more than those listed here, which appear in `coterie list envs` and the tests.
"""

from __future__ import annotations

SCENARIOS: dict[str, tuple[str, ...]] = {
    "gym": (
        *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
        *("BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3", "LunarLander-v3"),
        "LunarLanderContinuous-v3",
        *("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"),
    ),
    "gymvec": ("CartPole-v1",),
    "pettingzoo": (
        *("butterfly.knights_archers_zombies_v11", "classic.connect_four_v3", "classic.tictactoe_v3"),
        *("mpe2.simple_spread_v3", "sisl.multiwalker_v9", "sisl.pursuit_v5"),
    ),
    "lbforaging": (
        *("Foraging-8x8-2p-2f-coop-v3", "Foraging-10x10-3p-3f-v3"),
        *("Foraging-2s-8x8-2p-2f-coop-v3", "Foraging-2s-10x10-3p-3f-v3"),
    ),
    "rware": ("rware-tiny-2ag-v2", "rware-tiny-4ag-v2", "rware-small-4ag-v2"),
    "football": (
        *("academy_empty_goal_close", "academy_empty_goal", "academy_run_to_score"),
        *("academy_run_to_score_with_keeper", "academy_single_goal_versus_lazy", "academy_3_vs_1_with_keeper"),
        *("1_vs_1_easy", "3_vs_3_custom", "5_vs_5", "11_vs_11_stochastic", "test_example_multiagent"),
    ),
    "smac": ("3m", "8m", "2s3z", "3s5z", "5m_vs_6m", "3s_vs_5z", "MMM", "MMM2", "corridor", "6h_vs_8z"),
    "smacv2": (
        *("terran_5_vs_5", "protoss_5_vs_5", "zerg_5_vs_5"),
        *("terran_10_vs_10", "protoss_10_vs_10", "zerg_10_vs_10"),
    ),
    "smaclite": ("2s3z", "3s5z", "MMM2"),
}
"""Names with a preset, by family."""
