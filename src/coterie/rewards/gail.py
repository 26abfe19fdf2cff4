"""GAIL, generative adversarial imitation learning: rewards acting as in demonstrations.

A discriminator D learns to distinguish demonstrated pairs of observation and action from the team's own. The reward of
a step increases with D, the probability of being demonstrated.

Sources: Ho and Ermon 2016; Gulrajani et al. 2017 for the gradient penalty, as in Kostrikov et al. 2019.
Differences: D is the probability of a demonstration, not of the policy; the reward has three forms (`reward`); rewards
are zero before the first update.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext
from coterie.config.rewards import GailConfig
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Rollout
from coterie.functional.adversarial_imitation import (
    bounded_reward,
    discriminator_loss,
    gradient_penalty,
    negative_reward,
    positive_reward,
)
from coterie.functional.returns import valid_mask
from coterie.functional.statistics import masked_mean
from coterie.imitation.demo_batches import DemoBatches, load_demos, require_same_demos
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import NetworkConfig
from coterie.nets.joint_actions import action_size, encode_actions
from coterie.nets.team import AgentNetwork, join_blocks, obs_shape, team_blocks
from coterie.rewards.signal import (
    TrainedSignal,
    mask_signal,
    require_equal_spaces,
    reward_metrics,
)

declare(
    *reward_metrics("gail", "similarity to demonstrations (GAIL)"),
    Metric(
        "loss/gail", "nat", "cross-entropy of the discriminator with its gradient penalty", better=None, combine="mean"
    ),
    Metric(
        "gail/demo_prob", "share", "the discriminator's mean output for demonstrations", better=None, combine="mean"
    ),
    Metric(
        "gail/policy_prob",
        "share",
        "the discriminator's mean output for the team's own actions",
        better="up",
        combine="mean",
    ),
)

_REWARDS = {"positive": positive_reward, "negative": negative_reward, "bounded": bounded_reward}


class GAIL(TrainedSignal[GailConfig]):
    """Generative adversarial imitation learning, see the module.

    Raises:
        UserError: Without demonstrations, for demonstrations with other spaces, or if an observation is not a vector.
    """

    Config: ClassVar = GailConfig

    def __init__(self, config: GailConfig, context: AlgorithmContext) -> None:
        team, seed, device = context.team, context.seed, context.device
        require_equal_spaces("gail", team, config.share_params)
        _require_vectors(team)
        if config.demos is None:
            raise UserError("rewards.gail has no demonstrations. Set rewards.gail.demos=FILE (see coterie record).")
        self.blocks = team_blocks(team, config.share_params)
        demos = load_demos(config.demos, "rewards.gail.demos", None, team)
        self._digest = demos.digest
        self._demos = DemoBatches(demos, team, recurrent=False, timesteps=1, seed=seed, device=device)
        self.nets = self._build(config, generator(seed, "weights")).to(device)
        super().__init__("gail", config, context, networks={"nets": self.nets}, blocks=self.blocks)
        self._interpolation = generator(seed, "penalty", device=device)
        self.obs_normalizer.update(self._demos.obs, self._demos.valid)

    def _build(self, config: GailConfig, weights: torch.Generator) -> ModulesByName:
        network = NetworkConfig(config.hidden_sizes, config.activation, share_params=config.share_params)
        nets = {}
        for block in self.blocks:
            inputs = obs_shape(block)[0] + (action_size(block.action_spec) if config.actions else 0)
            sets = block.n if config.share_params == "none" else None
            nets[block.name] = AgentNetwork(inputs, 1, network, weights, sets=sets)
        return ModulesByName(nets)

    def reward(self, rollout: Rollout) -> Tensor:
        valid = valid_mask(rollout)
        with torch.no_grad():
            inputs = self.inputs(tree_map(lambda x: x[:-1], rollout.obs), rollout.action)
            reward = _REWARDS[self.config.reward](self._logits(inputs))
        return mask_signal(self._scaled(reward, valid), valid, self._updates)

    def update(self, rollout: Rollout) -> dict[str, float]:
        valid = valid_mask(rollout)
        obs = tree_map(lambda x: x[:-1], rollout.obs)
        inputs = tree_map(lambda x: x.flatten(0, 1), self.inputs(obs, rollout.action))
        flat_valid = valid.flatten(0, 1)

        def loss_of(index: Tensor) -> tuple[Tensor, Tensor]:
            policy_inputs = tree_map(lambda x: x.index_select(0, index), inputs)
            loss, mean_probs = self._loss(policy_inputs, flat_valid[index])
            return loss, torch.cat([loss.detach().view(1), mean_probs])

        report = self._fit(valid, loss_of, ("loss/gail", "gail/demo_prob", "gail/policy_prob"))
        self.obs_normalizer.update(obs, valid, self._ranks.reduction)
        return report

    def _loss(self, policy_inputs: dict[str, Tensor], valid: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the discriminator's loss on a minibatch and as many demonstrations, and its mean outputs.

        Args:
            policy_inputs: The team's own observations and actions by block, [M, n, D].
            valid: True where they count, [M, N] bool.

        Returns:
            The loss [], and the mean probabilities of being demonstrated, of demonstrations and of the team's own [2].
        """
        batch = self._demos.sequences(self._ranks.draw(self._demos.places, len(valid), 0))
        demo_inputs = {name: x[0] for name, x in self.inputs(batch.obs, batch.action).items()}
        demo_valid, reduction = batch.valid[0], self._ranks.reduction
        demo_logits, policy_logits = self._logits(demo_inputs), self._logits(policy_inputs)
        demo_loss, policy_loss = discriminator_loss(demo_logits, policy_logits)
        loss = masked_mean(demo_loss, demo_valid, reduction) + masked_mean(policy_loss, valid, reduction)
        if self.config.penalty:
            gradients = self.interpolated_gradients(demo_inputs, policy_inputs)
            penalty = masked_mean(gradient_penalty(gradients), demo_valid & valid, reduction)
            loss = loss + self.config.penalty * penalty
        with torch.no_grad():
            probs = [
                masked_mean(torch.sigmoid(demo_logits), demo_valid, reduction),
                masked_mean(torch.sigmoid(policy_logits), valid, reduction),
            ]
        return loss, torch.stack(probs)

    def interpolated_gradients(self, demo_inputs: dict[str, Tensor], policy_inputs: dict[str, Tensor]) -> Tensor:
        """Returns the discriminator's gradients at points between demonstrations and play, [M, N, widest D]."""
        interpolated = {}
        for name, x in demo_inputs.items():
            weight = self._weights(x)
            interpolated[name] = (weight * x + (1 - weight) * policy_inputs[name]).requires_grad_()
        logits = self._logits(interpolated).sum()
        found = torch.autograd.grad(logits, list(interpolated.values()), create_graph=True)
        width = max(x.shape[-1] for x in found)
        gradients = {
            name: nn.functional.pad(x, (0, width - x.shape[-1])) for name, x in zip(interpolated, found, strict=True)
        }
        return join_blocks(gradients, self.blocks, -2)

    def _weights(self, x: Tensor) -> Tensor:
        """Draws a weight for each row of a minibatch's inputs [M, n, D]: [M, n, 1]."""

        def draw(count: int) -> Tensor:
            return torch.rand((count, *x.shape[1:-1], 1), generator=self._interpolation, device=x.device)

        return self._ranks.draw(draw, len(x), 0)

    def inputs(self, obs: dict[str, Tree], action: dict[str, Action]) -> dict[str, Tensor]:
        """Returns the discriminator's inputs by block, [.., n, D]."""
        scaled, found = self.obs_normalizer(obs), {}
        for block in self.blocks:
            inputs = block.join_obs(scaled).float()
            if self.config.actions:
                taken = encode_actions(block.action_spec, block.join_actions(action))
                inputs = torch.cat([inputs, taken.clamp(-1, 1)], -1)
            found[block.name] = inputs
        return found

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the logits of being demonstrated, [.., N]."""
        logits = {b.name: self.nets[b.name](inputs[b.name], None, {})[0][..., 0] for b in self.blocks}
        return join_blocks(logits, self.blocks, -1)

    def state_dict(self) -> dict[str, Any]:
        own = {
            "demos": self._demos.state_dict(),
            "digest": self._digest,
            "interpolation": self._interpolation.get_state(),
        }
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`.

        Raises:
            UserError: If the demonstrations are not those that the run was started with.
        """
        require_same_demos(self.config.demos, state["digest"], self._digest)
        super().load_state_dict(state)
        self._demos.load_state_dict(state["demos"])
        restore(self._interpolation, state["interpolation"])


def _require_vectors(team: TeamSpec) -> None:
    for role in team.roles:
        if len(role.observation_space.shape or ()) != 1:
            raise UserError(
                f"rewards.gail reads vectors, but role '{role.name}' observes {role.observation_space}. Flatten the "
                "observation to one axis, or use imitation.demos instead."
            )
