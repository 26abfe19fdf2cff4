"""RND, random network distillation: rewards observations that were rarely seen.

A network with fixed random weights maps an observation to features, and a predictor learns to match them. The error of
the predictor is large for observations unlike those that it was trained on:

    reward_t = mean((predictor(obs_{t+1}) - target(obs_{t+1}))^2)

Source: Burda et al. 2018.
Differences: statistics of observations and rewards change only at the end of an update, and rewards are zero before the
first update, which replaces the source's initial random steps.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.optimizer import Optimizer
from coterie.config.rewards import RndConfig
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Rollout
from coterie.functional.statistics import masked_mean
from coterie.nets.config import NetworkConfig
from coterie.nets.team import ObservationNormalizer, TeamNetwork, join_blocks
from coterie.rewards.signal import (
    OBS_CLIP,
    RewardScale,
    RewardSignal,
    mask_signal,
    minibatches,
    observed_outcome,
    require_equal_spaces,
    reward_metrics,
)

declare(
    *reward_metrics("rnd", "novelty (RND)"),
    Metric("loss/rnd", "", "mean squared error of the predictor's features", better="down", combine="mean"),
)


class RND(RewardSignal):
    """Random network distillation, see the module."""

    Config: ClassVar = RndConfig

    def __init__(self, config: RndConfig, context: AlgorithmContext) -> None:
        team, seed, device = context.team, context.seed, context.device
        require_equal_spaces("rnd", team, config.share_params)
        self.config, self._ranks = config, context.ranks
        self.target = self._net(team, config.hidden_sizes, generator(seed, "target")).to(device).requires_grad_(False)
        # One layer more than the target, as in the source.
        deeper = (*config.hidden_sizes, config.hidden_sizes[-1])
        self.predictor = self._net(team, deeper, generator(seed, "predictor")).to(device)
        self._optimizer = Optimizer({"rnd": self.predictor}, 1e-8, 0.0, config.max_grad_norm, ranks=context.ranks)
        self._shuffle = generator(seed, "minibatches", device=device)
        self.obs_normalizer = ObservationNormalizer(
            self.target.blocks if config.normalize_obs else (), device, OBS_CLIP
        )
        self._reward_scale = RewardScale(
            enabled=config.normalize,
            num_envs=context.num_envs,
            num_agents=team.n,
            gamma=config.gamma,
            device=device,
            ranks=context.ranks,
        )
        self._updates = 0
        self._unscaled = torch.zeros(())  # rewards of the current rollout before scaling

    def _net(self, team: TeamSpec, hidden_sizes: tuple[int, ...], weights: torch.Generator) -> TeamNetwork:
        config = self.config
        network = NetworkConfig(hidden_sizes, config.activation, share_params=config.share_params)
        outputs = {role.name: config.features for role in team.roles}
        return TeamNetwork(team, outputs, network, weights)

    def reward(self, rollout: Rollout) -> Tensor:
        next_obs, valid = self.obs_normalizer(tree_map(lambda x: x[1:], rollout.obs)), observed_outcome(rollout)
        with torch.no_grad():
            self._unscaled = torch.where(valid, self._error(next_obs), 0.0)
        return mask_signal(self._reward_scale(self._unscaled), valid, self._updates)

    def update(self, rollout: Rollout) -> dict[str, float]:
        config, valid = self.config, observed_outcome(rollout)
        next_obs = tree_map(lambda x: x[1:], rollout.obs)
        scaled_obs = tree_map(lambda x: x.flatten(0, 1), self.obs_normalizer(next_obs))
        flat_valid, losses = valid.flatten(0, 1), []
        for index in minibatches(
            valid,
            epochs=config.epochs,
            num_minibatches=config.num_minibatches,
            generator=self._shuffle,
            ranks=self._ranks,
        ):
            error = self._error(tree_map(lambda x, index=index: x.index_select(0, index), scaled_obs))
            loss = masked_mean(error, flat_valid[index], self._ranks.reduction)
            self._optimizer.step(loss, {"rnd": config.lr})
            losses.append(loss.detach())
        self.obs_normalizer.update(next_obs, valid, self._ranks.reduction)
        self._reward_scale.observe(self._unscaled, valid)
        self._updates += 1
        return {"loss/rnd": float(torch.stack(losses).mean()) if losses else 0.0}

    def _error(self, obs: dict[str, Tree]) -> Tensor:
        """Returns the mean squared errors of the predictor, [.., N]."""
        predicted, target = self.predictor(obs, None, {})[0], self.target(obs, None, {})[0]
        blocks = self.target.blocks
        return join_blocks({b.name: (predicted[b.name] - target[b.name]).square().mean(-1) for b in blocks}, blocks, -1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.state_dict(),
            "predictor": self.predictor.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "obs_normalizer": self.obs_normalizer.state_dict(),
            "reward_scale": self._reward_scale.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self._optimizer.load_state_dict(state["optimizer"])
        restore(self._shuffle, state["shuffle"])
        self.obs_normalizer.load_state_dict(state["obs_normalizer"])
        self._reward_scale.load_state_dict(state["reward_scale"])
        self._updates = state["updates"]
