"""Global critics of a run: which teams have one, and where they take the other teams' next actions from."""

from __future__ import annotations

from coterie.algos.algorithm import Algorithm
from coterie.algos.other_teams import GlobalCriticLearner
from coterie.config.schema import Choice, RunConfig
from coterie.core.errors import UserError
from coterie.rewards.rewarded import RewardedAlgorithm

CENTRALIZED = {"ppo": "mappo", "ippo": "mappo", "ia2c": "maa2c", "ddpg": "maddpg", "td3": "matd3", "sac": "masac"}
"""Methods with independent critics, and the same methods with centralized ones."""


def connect_global_critics(config: RunConfig, algorithms: dict[str, Algorithm]) -> frozenset[str]:
    """Lets global critics read the other teams' policies. Returns the teams that have a global critic.

    In self-play the other team acts as snapshots, so that its policy is not the one that acts.
    """
    learners = {name: _learner(algorithm) for name, algorithm in algorithms.items()}
    readers = {name: x for name, x in learners.items() if isinstance(x, GlobalCriticLearner) and x.others.roles}
    for name, learner in readers.items():
        others = [] if config.selfplay.enabled else [other for team, other in learners.items() if team != name]
        learner.others.connect(others)
    return frozenset(readers)


def require_centralized(choice: Choice, setting: str) -> None:
    """Raises UserError if a method with independent critics is given a global one.

    Args:
        choice: The algorithm and its settings.
        setting: Key of the configuration that selects the algorithm.
    """
    name = choice.name.partition("/")[0]
    if name in CENTRALIZED and vars(choice.params).get("critic") == "global":
        raise UserError(
            f"{setting}.critic: global does not fit {name}, whose agents learn independently. "
            f"Use {setting}={CENTRALIZED[name]}, or {setting}.critic=own."
        )


def _learner(algorithm: Algorithm) -> Algorithm:
    return algorithm.algorithm if isinstance(algorithm, RewardedAlgorithm) else algorithm
