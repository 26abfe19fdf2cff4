"""Stochastic policies: categorical choices, Gaussian numbers, or both."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional.behavior_cloning import actions_match
from coterie.functional.policy_gradient import choice_log_probs, log_prob_and_entropy, sample_action
from coterie.kernels import switch
from coterie.nets.config import NetworkConfig
from coterie.nets.squashed_actions import draw_block_noise
from coterie.nets.stochastic_actor import StochasticActor
from coterie.nets.team import Block, join_blocks
from coterie.policies.base import ActionDistribution, Mode
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch, NetworkPolicy, by_timestep


class StochasticPolicy(NetworkPolicy):
    """A stochastic actor of PPO and its relatives.

    Args:
        team: The team.
        config: Architecture and inputs.
        generator: Source of the initial weights.
        device: Where the networks are stored.
        state_dependent_std: The standard deviation is an output of the network instead of a parameter.
        init_std: Initial standard deviation.
    """

    cuda_graphs = True
    cloning_options = ("fit_std",)

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        device: torch.device,
        *,
        state_dependent_std: bool = False,
        init_std: float = 1.0,
    ):
        self.actor = StochasticActor(
            team, config, generator, state_dependent_std=state_dependent_std, init_std=init_std
        )
        super().__init__(team, config, self.actor.net, device, module=self.actor)

    # ------------------------------------------------------------------------------------------------------- acting

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return by_timestep(draw_block_noise(self.blocks, (steps, num_envs), generator, self.device))

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        outputs, hidden_state = self._forward(timestep, hidden_state)
        actions, log_probs = {}, {}
        for block in self.blocks:
            mask = block.join_masks(timestep.action_mask)
            params, log_std = self._acting_params(block, outputs[block.name], mask, mode)
            block_noise = None if mode == "greedy" else noise[block.name]
            action, log_probs[block.name] = sample_action(
                block.action_spec, params, log_std=log_std, mask=mask, noise=block_noise, kernels=switch.on
            )
            actions.update(block.split_by_role(action))
        return actions, hidden_state, {"log_prob": join_blocks(log_probs, self.blocks, -1)}

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        outputs, _ = self._forward(timestep, hidden_state)
        distributions: dict[str, ActionDistribution] = {}
        for block in self.blocks:
            spec, mask = block.action_spec, block.join_masks(timestep.action_mask)
            params, log_std = self._acting_params(block, outputs[block.name], mask, mode)
            mean = params[..., spec.mask_size :]
            distribution = ActionDistribution(
                choice_log_probs(spec, params, mask).exp() if spec.choices else None,
                mean=mean if spec.continuous else None,
                std=None if log_std is None else log_std.exp().expand_as(mean),
            )
            distributions |= block.split_by_role(distribution)
        return distributions

    def _forward(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[dict[str, Tensor], HiddenState]:
        """Outputs of the network by block at a timestep, and its next hidden state."""
        return self.net(self.obs_normalizer(timestep.obs, timestep.alive), timestep.first, hidden_state)

    def _acting_params(
        self, block: Block, output: Tensor, mask: Tensor | None, mode: Mode
    ) -> tuple[Tensor, Tensor | None]:
        """Parameters of the distribution that actions are sampled from."""
        return self.actor.params(block, output)

    # ----------------------------------------------------------------------------------------------------- learning

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        outputs = self._demonstration_outputs(batch)
        losses, matches = {}, {}
        for block in self.blocks:
            params, log_std = self.actor.params(block, outputs[block.name])
            losses[block.name], matches[block.name] = imitation_loss(block, params, log_std, batch, options)
        return join_blocks(losses, self.blocks, -1), join_blocks(matches, self.blocks, -1)

    def unroll(
        self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState, action: dict[str, Action]
    ) -> HiddenState:
        """Returns the network's hidden state after sequences of normalized observations [L, M, n, D]; it does not read
        actions.
        """
        return self.net(obs, first, hidden_state)[1]


def imitation_loss(
    block: Block, params: Tensor, log_std: Tensor | None, batch: DemonstrationBatch, options: CloningOptions
) -> tuple[Tensor, Tensor]:
    """Returns -log pi of the demonstrated actions of a block's agents, and True where they are the greedy ones, [.., n]
    each. Parameters of the distribution are as in `ActionParameters.params`.
    """
    spec, mask = block.action_spec, block.join_masks(batch.action_mask)
    if log_std is not None and not options.fit_std:
        log_std = log_std.detach()
    demonstrated = block.join_actions(batch.action)
    log_prob, _ = log_prob_and_entropy(spec, params, demonstrated, log_std=log_std, mask=mask, kernels=switch.on)
    with torch.no_grad():
        greedy, _ = sample_action(spec, params, log_std=log_std, mask=mask, noise=None, kernels=switch.on)
        matches = actions_match(greedy, demonstrated)
    return -log_prob, matches
