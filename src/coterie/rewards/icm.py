"""ICM, the intrinsic curiosity module: rewards steps whose outcome is hard to predict.

An encoder phi maps observations to features. The inverse model predicts the action from the features of two consecutive
observations; the forward model predicts the next features from the current ones and the action, and its error is the
reward. Features that no action influences help neither model, so noise that agents cannot control is not rewarded for
long.

    reward_t = eta / 2 ||forward(phi(obs_t), action_t) - phi(obs_{t+1})||^2
    loss = beta * forward error + (1 - beta) * inverse error

Source: Pathak et al. 2017.
Differences: rewards are zero before the first update, when all errors are random; a reward is at most 1 / weight, so
that it is at most 1 after weighting.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext
from coterie.config.rewards import IcmConfig
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Rollout
from coterie.functional.intrinsic_rewards import action_error, curiosity_reward, squared_error
from coterie.functional.statistics import masked_mean
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import NetworkConfig
from coterie.nets.joint_actions import action_size, encode_actions
from coterie.nets.team import AgentNetwork, Block, TeamNetwork, join_blocks, team_blocks
from coterie.rewards.signal import (
    TrainedSignal,
    mask_signal,
    observed_outcome,
    require_equal_spaces,
    reward_metrics,
)

declare(
    *reward_metrics("icm", "curiosity (ICM)"),
    Metric(
        "loss/icm_forward", "", "half the squared error of the forward model's features", better="down", combine="mean"
    ),
    Metric("loss/icm_inverse", "nat", "loss of the inverse model's action prediction", better="down", combine="mean"),
)


class CuriosityModels(nn.Module):
    """Encoder, inverse model and forward model of every block of agents."""

    def __init__(self, team: TeamSpec, config: IcmConfig, weights: torch.Generator):
        super().__init__()
        self.blocks = team_blocks(team, config.share_params)
        network = NetworkConfig(config.hidden_sizes, config.activation, share_params=config.share_params)
        width = config.features
        features = {b.name: width for b in self.blocks}
        self.encoder = TeamNetwork(team, features, network, weights)
        actions = {b.name: action_size(b.action_spec) for b in self.blocks}

        def heads(inputs: dict[str, int], outputs: dict[str, int]) -> ModulesByName:
            nets = {}
            for block in self.blocks:
                sets = block.n if config.share_params == "none" else None
                nets[block.name] = AgentNetwork(inputs[block.name], outputs[block.name], network, weights, sets=sets)
            return ModulesByName(nets)

        self.inverse_model = heads({b.name: 2 * width for b in self.blocks}, actions)
        self.forward_model = heads({name: width + size for name, size in actions.items()}, features)

    def encode(self, obs: dict[str, Tree]) -> dict[str, Tensor]:
        """Returns features by block, [.., n, F]."""
        return self.encoder(obs, None, {})[0]

    def predict_features(self, block: Block, features: Tensor, action: Action) -> Tensor:
        """Returns the forward model's prediction of the next features, [.., n, F]."""
        encoded_action = encode_actions(block.action_spec, action)
        return self.forward_model[block.name](torch.cat([features, encoded_action], -1), None, {})[0]

    def predict_action(self, block: Block, features: Tensor, next_features: Tensor) -> Tensor:
        """Returns the inverse model's prediction of the action, [.., n, sum A + C]."""
        return self.inverse_model[block.name](torch.cat([features, next_features], -1), None, {})[0]


class ICM(TrainedSignal[IcmConfig]):
    """Intrinsic curiosity module, see the module."""

    Config: ClassVar = IcmConfig

    def __init__(self, config: IcmConfig, context: AlgorithmContext) -> None:
        require_equal_spaces("icm", context.team, config.share_params)
        models = CuriosityModels(context.team, config, generator(context.seed, "weights")).to(context.device)
        self.models = models
        super().__init__("icm", config, context, networks={"models": models}, blocks=models.blocks)

    def reward(self, rollout: Rollout) -> Tensor:
        obs = self.obs_normalizer(rollout.obs)
        with torch.no_grad():
            features = self.models.encode(obs)
            errors = {}
            for block in self.models.blocks:
                current, following = features[block.name][:-1], features[block.name][1:]
                predicted = self.models.predict_features(block, current, block.join_actions(rollout.action))
                errors[block.name] = squared_error(predicted, following)
            error = join_blocks(errors, self.models.blocks, -1)
        valid = observed_outcome(rollout)
        reward = curiosity_reward(self._scaled(error, valid), self.config.eta, self.config.weight)
        return mask_signal(reward, valid, self._updates)

    def update(self, rollout: Rollout) -> dict[str, float]:
        valid = observed_outcome(rollout)
        obs = tree_map(lambda x: x.flatten(0, 1), self.obs_normalizer(rollout.obs))
        action = tree_map(lambda x: x.flatten(0, 1), rollout.action)
        action_mask = {name: x[:-1].flatten(0, 1) for name, x in rollout.action_mask.items()}
        flat_valid = valid.flatten(0, 1)

        def loss_of(index: Tensor) -> tuple[Tensor, Tensor]:
            batch = tree_map(lambda x: x.index_select(0, index), (obs, action, action_mask))
            next_obs = tree_map(lambda x: x.index_select(0, index + rollout.num_envs), obs)
            errors = self._errors(batch[0], next_obs, batch[1], batch[2])
            losses = torch.stack([masked_mean(x, flat_valid[index], self._ranks.reduction) for x in errors])
            return self.config.beta * losses[0] + (1 - self.config.beta) * losses[1], losses

        report = self._fit(valid, loss_of, ("loss/icm_forward", "loss/icm_inverse"))
        self.obs_normalizer.update(tree_map(lambda x: x[:-1], rollout.obs), valid, self._ranks.reduction)
        return report

    def _errors(
        self,
        obs: dict[str, Tree],
        next_obs: dict[str, Tree],
        action: dict[str, Action],
        action_mask: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Returns the errors of the forward and the inverse model, [M, N] each."""
        features, next_features = self.models.encode(obs), self.models.encode(next_obs)
        forward, inverse = {}, {}
        for block in self.models.blocks:
            current, following, taken = features[block.name], next_features[block.name], block.join_actions(action)
            forward[block.name] = squared_error(self.models.predict_features(block, current, taken), following)
            predicted = self.models.predict_action(block, current, following)
            inverse[block.name] = action_error(block.action_spec, predicted, block.join_masks(action_mask), taken)
        return join_blocks(forward, self.models.blocks, -1), join_blocks(inverse, self.models.blocks, -1)
