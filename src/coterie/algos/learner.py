"""Base of the learners of this package, and the states that their central critics and mixers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.algos.algorithm import Algorithm, AlgorithmContext, CloningLearner
from coterie.algos.base_config import LearnerConfig
from coterie.algos.graphed import GraphedStep, Result
from coterie.algos.optimizer import mean_metrics
from coterie.algos.other_teams import GlobalCriticLearner
from coterie.algos.traced import TracedStep
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import TIME_LEFT, Rollout
from coterie.functional.returns import valid_mask
from coterie.functional.statistics import Reduction, initial_moments, update_moments
from coterie.kernels import switch
from coterie.nets.encoders import CNN
from coterie.nets.mat import Attention
from coterie.nets.retention import Retention
from coterie.nets.team import RunningScale
from coterie.nets.team_bodies import TeamBody, TransformerLayer
from coterie.nets.user_body import have_user_modules, is_ours
from coterie.policies.network_policy import NetworkPolicy

_BY_PYTORCH = (Attention, CNN, Retention, TeamBody, TransformerLayer)
"""Modules that multiply matrices, or convolve, by PyTorch although there are kernels."""


class Learner(Algorithm, CloningLearner):
    """An algorithm that trains networks, alone or together with the same learner on other ranks.

    Attributes:
        team: The team.
        device: Device of the networks.
        ranks: Ranks that train the team together.
        reduction: Makes statistics and losses those of the samples of all ranks.
        cuda_graphs: True if targets and gradient steps are captured as CUDA graphs.
    """

    policy: NetworkPolicy
    _state: CentralState
    """State that critics or mixers read."""

    def __init__(self, config: LearnerConfig, context: AlgorithmContext) -> None:
        self.team, self.device = context.team, context.device
        self.rollout_length = context.rollout_length or config.rollout_length
        self.ranks, self.reduction = context.ranks, context.ranks.reduction
        self.cuda_graphs = context.cuda_graphs

    @property
    def kernels(self) -> bool:
        """True if losses are computed by fused kernels where there are some."""
        return switch.on

    def _captured(self, step: Callable[..., Result], **parts: Any) -> Callable[..., Result]:
        """Returns a gradient step as a CUDA graph or as a trace if these are used, else as it is.

        Args:
            step: The step.
            **parts: Arguments of `GraphedStep`.
        """
        if self.cuda_graphs:
            return GraphedStep(step, **parts, what=f"the update of team {self.team.name}")
        return self._traced(step, **parts)

    def _traced(self, step: Callable[..., Result], **parts: Any) -> Callable[..., Result]:
        """Returns a gradient step as a trace, or as it is if it cannot be traced.

        It is traced on the CPU with kernels and without ranks. Algorithms of users are traced if they declare
        capabilities with `cuda_graphs`; those with modules of users are not, since these may depend on Python values.

        Args:
            step: The step.
            **parts: Arguments of `TracedStep`.
        """
        kind = type(self)
        promises = is_ours(kind) or ("capabilities" in vars(kind) and kind.capabilities.cuda_graphs)
        fits = self.kernels and self.device.type == "cpu" and self.ranks.size == 1
        if not fits or not promises or have_user_modules(parts["modules"]):
            return step
        by_kernels = not any(isinstance(x, _BY_PYTORCH) for module in parts["modules"] for x in module.modules())
        return TracedStep(step, **parts, by_kernels=by_kernels)

    def _observe(self, rollout: Rollout) -> None:
        """Adds observations and states of a rollout to the statistics by which they are normalized."""
        obs = tree_map(lambda x: x[:-1], rollout.obs)
        self.policy.obs_normalizer.update(obs, valid_mask(rollout), self.reduction)
        if isinstance(self, GlobalCriticLearner) and self.others.roles:
            self.others.update(rollout.others, rollout.acted)
        self._state.update(rollout, self.reduction)

    def _mean_metrics(
        self, reports: Sequence[Tensor], names: tuple[str, ...], more: dict[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Returns the means of the metrics that steps report [names], and `more` [], see `mean_metrics`."""
        return mean_metrics(torch.stack([*reports]), names, self.team.name, more, ranks=self.ranks)


class CentralState:
    """Reads some of the states of a timestep as one vector.

    Attributes:
        names: Names of the states that are read.
        size: Number of features.

    Args:
        config: Settings of the learner, with derived values.
        team: The team.
        name: Name of the environment's state; None: it is not read.
        device: Device of the networks.

    Raises:
        UserError: If the time left is read, and the environment has no known step limit.
    """

    def __init__(self, config: LearnerConfig, team: TeamSpec, name: str | None, device: torch.device):
        if config.value_time_left and team.episode_limit is None:
            raise UserError(
                "algo.value_time_left=true: the environment has no known step limit. Omit it, or set env.episode_limit."
            )
        self._name = name
        time_left = (TIME_LEFT,) if config.value_time_left else ()
        self.names = (*(() if name is None else (name,)), *time_left)
        size = 0 if name is None else team.state_sizes[name]
        self.size = size + len(time_left)
        self._scale = None
        if name is not None and config.normalize_obs:
            self._scale, self._moments = RunningScale(size, device), initial_moments(size, device)

    def __call__(self, states: Mapping[str, Tensor]) -> Tensor | None:
        """Returns what is read of states by name [.., S]: [.., size]; None if nothing is read."""
        parts = [states[name] for name in self.names]
        if self._scale is not None:
            parts[0] = self._scale(parts[0])
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0] if parts else None

    @property
    def networks(self) -> tuple[RunningScale, ...]:
        """Modules whose buffers are read."""
        return () if self._scale is None else (self._scale,)

    def update(self, rollout: Rollout, reduction: Reduction | None = None) -> None:
        """Adds the states of a rollout to the statistics by which they are normalized."""
        if self._scale is not None and self._name is not None:
            states, acted = rollout.state[self._name][:-1], rollout.acted[:-1]
            self._moments = update_moments(self._moments, states, acted, reduction, kernels=switch.on)
            self._scale.set(self._moments)

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics for checkpoints; {} without normalization."""
        return {} if self._scale is None else {"state_moments": self._moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the statistics from the state of the learner."""
        if self._scale is not None:
            device = self._moments["mean"].device
            self._moments = {name: value.to(device) for name, value in state["state_moments"].items()}
            self._scale.set(self._moments)
