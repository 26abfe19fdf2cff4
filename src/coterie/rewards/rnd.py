"""RND, random network distillation: rewards observations that were rarely seen.

A network with fixed random weights maps an observation to features, and a predictor learns to match them. The error of
the predictor is large for observations unlike those that it was trained on:

    reward_t = mean((predictor(obs_{t+1}) - target(obs_{t+1}))^2)

Source: Burda et al. 2018.
Differences: statistics of observations and rewards change only at the end of an update, and rewards are zero before the
first update, which replaces the source's initial random steps.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.config.rewards import RndConfig
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Rollout
from coterie.functional.statistics import masked_mean
from coterie.nets.config import NetworkConfig
from coterie.nets.team import TeamNetwork, join_blocks
from coterie.rewards.signal import (
    TrainedSignal,
    mask_signal,
    observed_outcome,
    require_equal_spaces,
    reward_metrics,
)

declare(
    *reward_metrics("rnd", "novelty (RND)"),
    Metric("loss/rnd", "", "mean squared error of the predictor's features", better="down", combine="mean"),
)


class RND(TrainedSignal[RndConfig]):
    """Random network distillation, see the module."""

    Config: ClassVar = RndConfig

    def __init__(self, config: RndConfig, context: AlgorithmContext) -> None:
        team, seed, device = context.team, context.seed, context.device
        require_equal_spaces("rnd", team, config.share_params)
        self.target = _net(team, config, config.hidden_sizes, generator(seed, "target")).to(device)
        self.target.requires_grad_(False)
        # One layer more than the target, as in the source.
        deeper = (*config.hidden_sizes, config.hidden_sizes[-1])
        self.predictor = _net(team, config, deeper, generator(seed, "predictor")).to(device)
        networks = {"target": self.target, "predictor": self.predictor}
        super().__init__("rnd", config, context, networks=networks, blocks=self.target.blocks)

    def reward(self, rollout: Rollout) -> Tensor:
        next_obs, valid = self.obs_normalizer(tree_map(lambda x: x[1:], rollout.obs)), observed_outcome(rollout)
        with torch.no_grad():
            error = self._error(next_obs)
        return mask_signal(self._scaled(error, valid), valid, self._updates)

    def update(self, rollout: Rollout) -> dict[str, float]:
        valid = observed_outcome(rollout)
        next_obs = tree_map(lambda x: x[1:], rollout.obs)
        scaled_obs = tree_map(lambda x: x.flatten(0, 1), self.obs_normalizer(next_obs))
        flat_valid = valid.flatten(0, 1)

        def loss_of(index: Tensor) -> tuple[Tensor, Tensor]:
            error = self._error(tree_map(lambda x: x.index_select(0, index), scaled_obs))
            loss = masked_mean(error, flat_valid[index], self._ranks.reduction)
            return loss, loss.view(1)

        report = self._fit(valid, loss_of, ("loss/rnd",))
        self.obs_normalizer.update(next_obs, valid, self._ranks.reduction)
        return report

    def _error(self, obs: dict[str, Tree]) -> Tensor:
        """Returns the mean squared errors of the predictor, [.., N]."""
        predicted, target = self.predictor(obs, None, {})[0], self.target(obs, None, {})[0]
        blocks = self.target.blocks
        return join_blocks({b.name: (predicted[b.name] - target[b.name]).square().mean(-1) for b in blocks}, blocks, -1)


def _net(team: TeamSpec, config: RndConfig, hidden_sizes: tuple[int, ...], weights: torch.Generator) -> TeamNetwork:
    network = NetworkConfig(hidden_sizes, config.activation, share_params=config.share_params)
    return TeamNetwork(team, {role.name: config.features for role in team.roles}, network, weights)
