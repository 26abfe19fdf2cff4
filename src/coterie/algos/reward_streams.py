"""Reward signals of a team, each with a discount and a value of its own.

The first signal is the environment's reward. The others are computed from the rollout and stored in its `streams`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.algos.optimizer import Schedule, scheduled
from coterie.core.types import Rollout
from coterie.functional.intrinsic_rewards import non_episodic_return
from coterie.functional.policy_gradient import gae
from coterie.functional.returns import lambda_return, valid_mask


@dataclass(frozen=True, kw_only=True)
class RewardStream:
    """One reward signal.

    Attributes:
        name: Its name in `Rollout.streams`.
        weight: Initial weight in the advantage.
        gamma: Discount factor per step; None for the algorithm's.
        episodic: True if its returns end with episodes and lives; False if they continue in the next.
        schedule: Schedule of the weight.
        end: Final weight as a fraction of the initial weight.
    """

    name: str
    weight: float = 1.0
    gamma: float | None = None
    episodic: bool = True
    schedule: Schedule = "constant"
    end: float = 1.0

    def weight_at(self, progress: float) -> float:
        """Returns the weight at `progress` in [0, 1] of the run."""
        return self.weight * scheduled(self.schedule, 1.0, self.end, progress)


EXTRINSIC = RewardStream(name="extrinsic")


class RewardStreams:
    """The K reward signals of a learner.

    Args:
        streams: The signals, the environment's first.
        gamma: Discount factor of the algorithm.
        device: Device of rollouts.
    """

    def __init__(self, streams: tuple[RewardStream, ...], gamma: float, device: torch.device):
        self.streams = streams
        self._device = device
        gammas = [gamma if stream.gamma is None else stream.gamma for stream in streams]
        self.gamma: float | Tensor = gammas[0] if len(gammas) == 1 else torch.tensor(gammas, device=device)
        """Discount factors [K], or the only one."""
        self._continuing = torch.tensor([not stream.episodic for stream in streams], device=device)
        self._any_continuing = not all(stream.episodic for stream in streams)

    def __len__(self) -> int:
        return len(self.streams)

    def weights(self, progress: float) -> Tensor:
        """Returns the weights [K] at `progress` in [0, 1] of the run."""
        return torch.tensor([stream.weight_at(progress) for stream in self.streams], device=self._device)

    def rewards(self, rollout: Rollout, extrinsic: Tensor) -> Tensor:
        """Returns the rewards [T, B, N, K]; `extrinsic` is the environment's [T, B, N]."""
        intrinsic = [rollout.streams[stream.name] for stream in self.streams[1:]]
        return torch.stack([extrinsic, *intrinsic], -1)

    def advantages(
        self, reward: Tensor, value: Tensor, terminated: Tensor, boundary: Tensor, *, valid: Tensor, gae_lambda: float
    ) -> tuple[Tensor, Tensor]:
        """Returns generalized advantages and lambda-returns of each signal [T, B, N, K].

        Args:
            reward: [T, B, N, K].
            value: [T + 1, B, N, K].
            terminated: [T, B, N] bool, see `bootstrap_masks`.
            boundary: [T, B, N] bool, see `bootstrap_masks`.
            valid: [T, B, N] bool, see `valid_mask`.
            gae_lambda: Lambda of generalized advantage estimation.
        """
        advantage = gae(
            reward=reward,
            value=value[:-1],
            next_value=value[1:],
            terminated=terminated.unsqueeze(-1),
            boundary=boundary.unsqueeze(-1),
            gamma=self.gamma,
            gae_lambda=gae_lambda,
        )
        target = self.with_continuing(advantage + value[:-1], reward, value, valid=valid, td_lambda=gae_lambda)
        return advantage if len(self) == 1 else target - value[:-1], target

    def group_returns(
        self,
        rollout: Rollout,
        reward: Tensor,
        value: Tensor,
        *,
        terminated: Tensor,
        boundary: Tensor,
        td_lambda: float,
        summed: bool,
    ) -> Tensor:
        """Returns the lambda-returns of a group [T, B, 1, K], or of each of its members [T, B, N, K].

        Args:
            rollout: Experience of the team.
            reward: The environment's reward of the group [T, B, 1].
            value: Values of the group [T + 1, B, 1, K].
            terminated: Bool [T, B, 1, 1] of the group, or [T, B, N, K] of its members, see `team_bootstrap_masks`.
            boundary: Bool [T, B, 1, 1], or [T, B, N, 1 or K], see `team_bootstrap_masks`.
            td_lambda: Lambda of the returns.
            summed: True to sum the other signals' rewards over the members; False for returns of each member's own.
        """
        valid = valid_mask(rollout)
        if summed:
            streams = {name: x.sum(-1, keepdim=True) for name, x in rollout.streams.items()}
            rollout, valid = replace(rollout, streams=streams), valid.any(-1, keepdim=True)
        rewards = self.rewards(rollout, reward.expand(*reward.shape[:2], valid.shape[-1]))
        values = value.expand(-1, -1, valid.shape[-1], -1)
        returns = lambda_return(
            rewards, values[1:], terminated=terminated, boundary=boundary, gamma=self.gamma, td_lambda=td_lambda
        )
        return self.with_continuing(returns, rewards, values, valid=valid, td_lambda=td_lambda)

    def with_continuing(
        self, returns: Tensor, reward: Tensor, value: Tensor, *, valid: Tensor, td_lambda: float
    ) -> Tensor:
        """Returns `returns` with those of signals that continue over episode ends computed so.

        Args:
            returns: Episodic lambda-returns [T, B, N, K].
            reward: [T, B, N, K].
            value: [T + 1, B, N, K].
            valid: [T, B, N] bool, see `valid_mask`.
            td_lambda: Lambda of the returns.
        """
        if not self._any_continuing:
            return returns
        continuing = non_episodic_return(reward, value, valid.unsqueeze(-1), gamma=self.gamma, td_lambda=td_lambda)
        return torch.where(self._continuing, continuing, returns)


def weighted_streams(streams: tuple[RewardStream, ...], extrinsic_weight: float) -> tuple[RewardStream, ...]:
    """Returns the reward signals with the weight of the environment's reward multiplied."""
    return tuple(replace(s, weight=s.weight * extrinsic_weight) if i == 0 else s for i, s in enumerate(streams))
