"""An algorithm whose team receives reward signals in addition to the environment's rewards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.algos import registry
from coterie.algos.algorithm import Algorithm, AlgorithmContext, group_membership
from coterie.algos.base_config import LearnerConfig
from coterie.algos.optimizer import averaged_metrics
from coterie.algos.reward_streams import EXTRINSIC, RewardStream
from coterie.config.rewards import RewardsConfig, SignalConfig
from coterie.config.schema import Choice
from coterie.core.errors import UserError
from coterie.core.metrics import declare
from coterie.core.seeds import seed_of
from coterie.core.types import Rollout
from coterie.functional.returns import agent_rewards, valid_mask
from coterie.functional.statistics import masked_moments
from coterie.policies.base import Policy
from coterie.ranks.ranks import ONE, Ranks
from coterie.rewards.gail import GAIL
from coterie.rewards.icm import ICM
from coterie.rewards.rnd import RND
from coterie.rewards.signal import RewardSignal, reward_metrics

declare(*reward_metrics("extrinsic", "the environment's reward"))

SIGNALS: dict[str, Any] = {"icm": ICM, "rnd": RND, "gail": GAIL}
"""Class of each reward signal, by its key in the section `rewards`."""


def make_reward_streams(config: RewardsConfig) -> tuple[RewardStream, ...]:
    """Returns the reward streams of a team, the environment's first."""
    parts = {EXTRINSIC.name: config.extrinsic} | config.signals
    return tuple(
        RewardStream(
            name=name,
            weight=part.weight,
            gamma=part.gamma,
            episodic=part.episodic if isinstance(part, SignalConfig) else True,
            schedule=part.weight_schedule,
            end=part.weight_end,
        )
        for name, part in parts.items()
    )


def make_rewarded(
    choice: Choice, config: RewardsConfig, context: AlgorithmContext, *, with_signals: bool = True
) -> Algorithm:
    """Creates the algorithm of a team that has reward signals.

    Args:
        choice: The algorithm and its settings.
        config: The reward signals and their weights.
        context: Everything else that the algorithm needs.
        with_signals: False to leave out the signals, which acting does not need.

    Raises:
        UserError: If the algorithm does not learn or does not support the signals' settings.
    """
    cls, team = registry.algorithm(choice.name), context.team
    if not cls.capabilities.learns:
        raise UserError(
            f"team '{team.name}' has reward settings, but algo={choice.name} does not learn. Remove rewards.* and "
            f"teams.{team.name}.rewards.*, or choose an algorithm that learns."
        )
    streams = make_reward_streams(config)
    if cls.capabilities.reward_streams:
        algorithm = cls(choice.params, replace(context, reward_streams=streams))
    else:
        params: Any = choice.params
        if isinstance(params, LearnerConfig):
            params = context.with_derived(params)
        require_one_discount(team.name, choice.name, vars(params).get("gamma"), streams)
        algorithm = cls(params, context)
    if not with_signals:
        return algorithm
    signals = {
        name: SIGNALS[name](part, replace(context, seed=seed_of(context.seed, "reward", name)))
        for name, part in config.signals.items()
    }
    return RewardedAlgorithm(algorithm, signals, streams, context.ranks)


def require_one_discount(team: str, algo: str, gamma: float | None, streams: tuple[RewardStream, ...]) -> None:
    """Raises UserError for a stream whose discount differs from `gamma`, which applies to all rewards."""
    for stream in streams:
        if stream.gamma is not None and stream.gamma != gamma:
            raise UserError(
                f"rewards.{stream.name}.gamma={stream.gamma} of team '{team}' needs one value function per reward, but "
                f"algo={algo} learns from the sum of rewards with algo.gamma={gamma}. Remove the setting, or "
                "use ppo, ippo, mappo or poca."
            )


def add_weighted_rewards(rollout: Rollout, weights: dict[str, float], rewards: dict[str, Tensor]) -> Rollout:
    """Returns a rollout whose rewards are the weighted sum of the environment's and the signals'.

    Args:
        rollout: The rollout.
        weights: Weights by name, `extrinsic` included.
        rewards: Rewards of the signals by name, [T, B, N] each.
    """
    reward = rollout.reward * weights["extrinsic"]
    for name, own in rewards.items():
        reward = reward + weights[name] * own
    return replace(rollout, reward=reward, group_reward=rollout.group_reward * weights["extrinsic"])


class RewardedAlgorithm(Algorithm):
    """Computes the rewards of a team's signals for every rollout, updates the algorithm, then updates the signals.

    An algorithm with reward streams gets the rewards of each signal separately. Others get the weighted sum in place of
    the environment's rewards, which is also what their replay buffer stores. Evaluations and `rollout/return_mean` use
    the environment's rewards only.

    Args:
        algorithm: The algorithm to wrap.
        signals: Reward signals by name.
        streams: Reward streams, the environment's first.
        ranks: Ranks that train the team together.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        signals: dict[str, RewardSignal],
        streams: tuple[RewardStream, ...],
        ranks: Ranks = ONE,
    ):
        self.algorithm, self.signals, self.streams, self._ranks = algorithm, signals, streams, ranks
        self.capabilities = algorithm.capabilities  # pyright: ignore[reportAttributeAccessIssue]
        self.rollout_length, self.notes = algorithm.rollout_length, algorithm.notes
        self._team = algorithm.policy.team
        if signals and not algorithm.capabilities.reward_streams:
            self.notes += (
                f"{' and '.join(signals)}: added to the environment's reward with the same discount, because the "
                "algorithm has one value function for all rewards",
            )
        self._membership: Tensor | None = None

    @property
    def policy(self) -> Policy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The algorithm's policy."""
        return self.algorithm.policy

    @property
    def behavior_policy(self) -> Policy:
        return self.algorithm.behavior_policy

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        rewards = {name: signal.reward(rollout) for name, signal in self.signals.items()}
        weights = {stream.name: stream.weight_at(progress) for stream in self.streams}
        if self.algorithm.capabilities.reward_streams:
            rewarded = replace(rollout, streams=rewards)
        else:
            rewarded = add_weighted_rewards(rollout, weights, rewards)
        metrics = self.algorithm.update(rewarded, progress)
        for signal in self.signals.values():
            metrics |= averaged_metrics(signal.update(rollout), self._ranks)
        metrics |= self._reward_statistics(rollout, rewards)
        return metrics | {f"reward/{name}_weight": weight for name, weight in weights.items()}

    def _reward_statistics(self, rollout: Rollout, rewards: dict[str, Tensor]) -> dict[str, float]:
        """Returns mean and standard deviation of every reward over agents that acted. One transfer to the host."""
        if self._membership is None:
            self._membership = group_membership(self._team).to(rollout.reward.device)
        extrinsic = agent_rewards(rollout, self._membership, self._team.has_group_reward, False)
        rewards, valid = {"extrinsic": extrinsic} | rewards, valid_mask(rollout)
        reduction = self._ranks.reduction
        moments = [torch.stack(masked_moments(reward, valid, reduction)) for reward in rewards.values()]
        metrics = {}
        for name, (mean, variance) in zip(rewards, torch.stack(moments).tolist(), strict=True):
            metrics |= {f"reward/{name}_mean": mean, f"reward/{name}_std": variance**0.5}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return self.algorithm.state_dict() | {"rewards": {name: s.state_dict() for name, s in self.signals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.load_state_dict(state)
        for name, signal in self.signals.items():
            signal.load_state_dict(state["rewards"][name])
