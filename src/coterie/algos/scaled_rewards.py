"""Rewards that values are learned from, on a scale of their own that follows the rewards seen."""

from __future__ import annotations

from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext, group_membership, learns_common_reward
from coterie.algos.base_config import ScaledRewardConfig
from coterie.algos.learner import Learner
from coterie.functional.statistics import Moments, initial_moments, mean_and_std, root_mean_square, update_moments


class ScaledRewardLearner(Learner):
    """A learner that scales rewards.

    Attributes:
        reward_moments: Moments of all rewards; None if rewards are not scaled. They are changed in place, since CUDA
            graphs read them where they are.
    """

    reward_moments: Moments | None = None

    def __init__(self, config: ScaledRewardConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        self._membership = group_membership(context.team).to(context.device)
        self._common_reward = learns_common_reward(config, context.team)
        self._reward_scale = config.reward_scale
        if config.reward_scale != "none":
            self.reward_moments = initial_moments(1, context.device)

    def _scaled(self, reward: Tensor) -> Tensor:
        """Returns rewards [..] on the scale that values are learned on."""
        if self._reward_scale == "none" or self.reward_moments is None:
            return reward
        if self._reward_scale == "standardize":
            mean, std = mean_and_std(self.reward_moments)
            return (reward - mean) / std
        return reward / root_mean_square(self.reward_moments)

    def _add_rewards(self, reward: Tensor, valid: Tensor) -> None:
        """Adds rewards [..] to their statistics where `valid` [..] is True, once per reward, when it is collected."""
        if self.reward_moments is None:
            return
        found = update_moments(self.reward_moments, reward.unsqueeze(-1), valid, self.reduction, kernels=self.kernels)
        for name, value in found.items():
            self.reward_moments[name].copy_(value)
