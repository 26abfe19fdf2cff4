"""Stochastic policies: categorical choices, Gaussian numbers, or both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.math.action_noise import draw_noise
from coterie.math.action_sampling import sample_action
from coterie.math.behavior_cloning import actions_match
from coterie.math.distributions import choice_log_probs, log_prob_and_entropy
from coterie.nets.config import NetworkConfig
from coterie.nets.normalization import ObservationNormalizer
from coterie.nets.stochastic_actor import StochasticActor
from coterie.nets.team import Block, join_blocks
from coterie.policies.base import ActionDistribution, InspectablePolicy, Mode
from coterie.policies.behavior_cloning import CloningOptions, CloningPolicy, DemonstrationBatch


class StochasticPolicy(InspectablePolicy, CloningPolicy):
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
        self.team, self.device = team, device
        self.actor = StochasticActor(
            team, config, generator, state_dependent_std=state_dependent_std, init_std=init_std
        ).to(device)
        self.blocks, self.net = self.actor.blocks, self.actor.net
        self.obs_normalizer = ObservationNormalizer(self.blocks, device) if config.normalize_obs else None
        self.networks = (self.actor, *([self.obs_normalizer.buffers] if self.obs_normalizer else []))

    # ------------------------------------------------------------------------------------------------------- acting

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        return self.net.initial_hidden_state(num_envs, self.device)

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        by_block = {}
        for block in self.blocks:
            shape = (steps, num_envs, block.n)
            by_block[block.name] = draw_noise(block.action_spec, shape, generator, self.device).unbind(0)
        return [{name: noise[t] for name, noise in by_block.items()} for t in range(steps)]

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
                block.action_spec, params, log_std=log_std, mask=mask, noise=block_noise
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
        return self.net(self.normalize(timestep.obs), timestep.first, hidden_state)

    def _acting_params(
        self, block: Block, output: Tensor, mask: Tensor | None, mode: Mode
    ) -> tuple[Tensor, Tensor | None]:
        """Parameters of the distribution that actions are sampled from."""
        return self.actor.params(block, output)

    # ----------------------------------------------------------------------------------------------------- learning

    def normalize(self, obs: dict[str, Tree]) -> dict[str, Tree]:
        """Returns observations as the networks read them."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs)

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        outputs = self._demonstration_outputs(batch)
        losses, matches = {}, {}
        for block in self.blocks:
            spec, mask = block.action_spec, block.join_masks(batch.action_mask)
            params, log_std = self.actor.params(block, outputs[block.name])
            if log_std is not None and not options.fit_std:
                log_std = log_std.detach()
            demonstrated = block.join_actions(batch.action)
            log_prob, _ = log_prob_and_entropy(spec, params, demonstrated, log_std=log_std, mask=mask)
            losses[block.name] = -log_prob
            with torch.no_grad():
                greedy, _ = sample_action(spec, params, log_std=log_std, mask=mask, noise=None)
                matches[block.name] = actions_match(greedy, demonstrated)
        return join_blocks(losses, self.blocks, -1), join_blocks(matches, self.blocks, -1)

    def _demonstration_outputs(self, batch: DemonstrationBatch) -> dict[str, Tensor]:
        """Outputs of the network by block on demonstrations."""
        hidden_state = self.net.initial_hidden_state(batch.valid.shape[1], self.device)
        return self.net(self.normalize(batch.obs), batch.first if hidden_state else None, hidden_state)[0]

    def unroll(self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState) -> HiddenState:
        """Returns the network's hidden state after sequences of normalized observations [L, M, n, D]."""
        return self.net(obs, first, hidden_state)[1]

    def state_dict(self) -> dict[str, Any]:
        moments = {} if self.obs_normalizer is None else self.obs_normalizer.state_dict()
        return {"module": self.actor.state_dict(), "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["module"])
        if self.obs_normalizer is not None:
            self.obs_normalizer.load_state_dict(state["moments"])
