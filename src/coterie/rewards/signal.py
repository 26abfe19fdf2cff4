"""Base class and shared functions of reward signals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.on_policy import own_parts
from coterie.algos.optimizer import Optimizer
from coterie.config.rewards import TrainedConfig
from coterie.core.errors import UserError
from coterie.core.metrics import Metric
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.types import Rollout
from coterie.functional.intrinsic_rewards import running_return
from coterie.functional.statistics import initial_moments, mean_and_std, update_moments
from coterie.nets.config import ShareParams
from coterie.nets.encoders import can_share_network
from coterie.nets.team import Block, ObservationNormalizer
from coterie.ranks.ranks import ONE, Ranks

_MIN_VARIANCE = 1e-12
"""Variance below which rewards count as constant."""


class RewardScale:
    """Divides rewards by the running standard deviation of their discounted returns.

    A weight thus keeps its meaning throughout a run. Rewards are not shifted, so that their sign is kept. Before the
    first observation they are unchanged.

    Args:
        enabled: False to leave rewards unchanged.
        num_envs: Number of environments.
        num_agents: Number of agents.
        gamma: Discount factor of the returns. None: 0.99.
        device: Device of the rewards.
        ranks: Ranks that train the team together.
    """

    def __init__(
        self,
        *,
        enabled: bool,
        num_envs: int,
        num_agents: int,
        gamma: float | None,
        device: torch.device,
        ranks: Ranks = ONE,
    ):
        self._enabled, self._gamma, self._ranks = enabled, 0.99 if gamma is None else gamma, ranks
        self._returns = torch.zeros(num_envs, num_agents, device=device)
        self._moments = initial_moments(1, device)

    def __call__(self, reward: Tensor) -> Tensor:
        """Scales rewards [T, B, N]."""
        return reward / mean_and_std(self._moments, _MIN_VARIANCE)[1] if self._enabled else reward

    def observe(self, reward: Tensor, valid: Tensor) -> None:
        """Updates the statistics.

        Args:
            reward: Rewards before scaling, [T, B, N].
            valid: True where rewards count, [T, B, N] bool.
        """
        if self._enabled:
            returns = running_return(reward, valid, self._returns, self._gamma)
            self._returns = returns[-1].clone()
            self._moments = update_moments(self._moments, returns.unsqueeze(-1), valid, self._ranks.reduction)

    def state_dict(self) -> dict[str, Any]:
        """Returns the running returns and their moments."""
        return {"returns": self._returns, "moments": self._moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self._returns = state["returns"].to(self._returns.device)
        self._moments = {name: x.to(self._returns.device) for name, x in state["moments"].items()}


OBS_CLIP = 5.0
"""Standard deviations from the mean to which observations are clipped. Source: Burda et al. 2018, section 2.4."""


class RewardSignal(ABC):
    """A reward signal of one team with its networks, optimizer and normalizers.

    For every rollout, `reward` is called first and `update` second.

    Args:
        config: Settings of the signal.
        context: Team, number of environments and device; `seed` is the signal's own.
    """

    @abstractmethod
    def __init__(self, config: Any, context: AlgorithmContext) -> None: ...

    @abstractmethod
    def reward(self, rollout: Rollout) -> Tensor:
        """Returns rewards before weighting [T, B, N], without gradient; 0 where an agent did not act."""

    @abstractmethod
    def update(self, rollout: Rollout) -> dict[str, float]:
        """Trains the networks on the rollout that `reward` was called with. Returns metrics."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns everything needed to resume."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""


C = TypeVar("C", bound=TrainedConfig)


class TrainedSignal(RewardSignal, Generic[C]):
    """A reward signal whose networks learn from minibatches of each rollout.

    Args:
        name: Name of the signal.
        config: Settings of the signal.
        context: Team, number of environments and device; `seed` is the signal's own.
        networks: All networks by name; the last one learns.
        blocks: Agents with the same inputs, whose observations are normalized together.
    """

    def __init__(
        self,
        name: str,
        config: C,
        context: AlgorithmContext,
        *,
        networks: Mapping[str, nn.Module],
        blocks: tuple[Block, ...],
    ) -> None:
        self.name, self.config, self._networks, self._ranks = name, config, networks, context.ranks
        trained = list(networks.values())[-1]
        self._optimizer = Optimizer({name: trained}, 1e-8, 0.0, config.max_grad_norm, ranks=context.ranks)
        self._shuffle = generator(context.seed, "minibatches", device=context.device)
        self.obs_normalizer = ObservationNormalizer(blocks if config.normalize_obs else (), context.device, OBS_CLIP)
        self._reward_scale = RewardScale(
            enabled=config.normalize,
            num_envs=context.num_envs,
            num_agents=context.team.n,
            gamma=config.gamma,
            device=context.device,
            ranks=context.ranks,
        )
        self._updates = 0
        self._unscaled = torch.zeros(())  # rewards of the current rollout before scaling

    def _scaled(self, reward: Tensor, valid: Tensor) -> Tensor:
        """Returns the rewards of a rollout [T, B, N] after scaling; `_fit` updates the scale with them."""
        self._unscaled = torch.where(valid, reward, 0.0)
        return self._reward_scale(self._unscaled)

    def _fit(
        self, valid: Tensor, loss_of: Callable[[Tensor], tuple[Tensor, Tensor]], metrics: Sequence[str]
    ) -> dict[str, float]:
        """Takes a gradient step on each minibatch of a rollout, then updates the scale of the rewards.

        Args:
            valid: True where agents count, [T, B, N] bool.
            loss_of: Maps the indices of a minibatch, see `minibatches`, to its loss, and to its metrics [K].
            metrics: Names of the metrics.

        Returns:
            Mean metrics over the minibatches; zeros without any.
        """
        config, reports = self.config, []
        for index in minibatches(
            valid,
            epochs=config.epochs,
            num_minibatches=config.num_minibatches,
            generator=self._shuffle,
            ranks=self._ranks,
        ):
            loss, report = loss_of(index)
            self._optimizer.step(loss, {self.name: config.lr})
            reports.append(report.detach())
        self._reward_scale.observe(self._unscaled, valid)
        self._updates += 1
        means = torch.stack(reports).mean(0) if reports else torch.zeros(len(metrics))
        return dict(zip(metrics, means.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: network.state_dict() for name, network in self._networks.items()},
            "optimizer": self._optimizer.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "obs_normalizer": self.obs_normalizer.state_dict(),
            "reward_scale": self._reward_scale.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, network in self._networks.items():
            network.load_state_dict(state[name])
        self._optimizer.load_state_dict(state["optimizer"])
        restore(self._shuffle, state["shuffle"])
        self.obs_normalizer.load_state_dict(state["obs_normalizer"])
        self._reward_scale.load_state_dict(state["reward_scale"])
        self._updates = state["updates"]


def reward_metrics(name: str, description: str) -> tuple[Metric, ...]:
    """Returns the metrics of the reward `name`, e.g. `icm`."""
    found = (
        Metric(
            f"reward/{name}_mean",
            "",
            f"{description} before weighting, mean over agents and steps",
            better=None,
            combine="mean",
        ),
        Metric(
            f"reward/{name}_std", "", f"{description} before weighting, standard deviation", better=None, combine="mean"
        ),
        Metric(f"reward/{name}_weight", "", f"weight of {description} among the rewards", better=None, combine="last"),
    )
    if name == "extrinsic":  # `value/estimate` and `value/baseline`
        return found
    return (
        *found,
        Metric(
            f"value/{name}_estimate",
            "reward",
            f"mean value of {description}, before the update, of MA-POCA's critic",
            better=None,
            combine="mean",
        ),
        Metric(
            f"value/{name}_baseline",
            "reward",
            f"mean baseline of {description}, before the update, of MA-POCA's critic",
            better=None,
            combine="mean",
        ),
    )


def observed_outcome(rollout: Rollout) -> Tensor:
    """Returns where an agent acted and observed the next timestep, [T, B, N] bool."""
    return rollout.alive[:-1] & rollout.alive[1:] & ~rollout.first[1:] & rollout.acted[:-1, :, None]


def minibatches(
    valid: Tensor, *, epochs: int, num_minibatches: int, generator: torch.Generator, ranks: Ranks = ONE
) -> Iterator[Tensor]:
    """Yields shuffled minibatches of the timesteps in which any agent counts, none of them empty.

    Several ranks draw the same minibatches of all timesteps, and each yields its own part, which may be empty.

    Args:
        valid: True where agents count, [T, B, N] bool.
        epochs: Passes over the timesteps.
        num_minibatches: Minibatches per pass.
        generator: Shuffles the timesteps.
        ranks: Ranks that train the team together.

    Yields:
        Indices t * B + b, [M] int64.
    """
    num_envs = valid.shape[1]
    timesteps = ranks.all_envs(valid.any(-1), 1).flatten().nonzero().squeeze(-1)
    for _ in range(epochs if len(timesteps) else 0):
        order = timesteps[torch.randperm(len(timesteps), generator=generator, device=generator.device)]
        yield from own_parts(order.chunk(num_minibatches), num_envs, ranks)


def mask_signal(reward: Tensor, valid: Tensor, updates: int) -> Tensor:
    """Zeroes rewards [T, B, N] where an agent did not act, and all of them before the first update."""
    return torch.where(valid, reward, 0.0) if updates else torch.zeros_like(reward)


def require_equal_spaces(name: str, team: TeamSpec, share: ShareParams) -> None:
    """Raises UserError if all agents are to share the signal's networks but their roles' spaces differ."""
    if share == "all" and not can_share_network(team.roles):
        raise UserError(
            f"rewards.{name}.share_params=all needs equal spaces, but the roles of team '{team.name}' differ. Use "
            f"rewards.{name}.share_params=role."
        )
