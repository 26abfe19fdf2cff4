"""Policies of soft actor-critics: categorical choices, tanh-squashed Gaussian numbers, or both."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional.behavior_cloning import actions_match, squashed_log_prob
from coterie.functional.choices import taken
from coterie.nets.config import NetworkConfig
from coterie.nets.squashed_actions import choice_distribution, draw_block_noise, mean_and_log_std, sample_choices
from coterie.nets.team import Block, TeamNetwork, join_blocks, team_blocks
from coterie.policies.base import ActionDistribution, Mode
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch, NetworkPolicy, by_timestep


class SquashedPolicy(NetworkPolicy):
    """A stochastic actor whose numbers are tanh of Gaussians with a state-dependent standard deviation.

    Mode `greedy` takes the most likely choice and tanh of the mean. While `uniform` is set, mode `explore` samples
    uniformly.
    """

    cuda_graphs = True
    cloning_options = ("fit_std",)

    def __init__(self, team: TeamSpec, config: NetworkConfig, generator: torch.Generator, device: torch.device):
        specs = {block.name: block.action_spec for block in team_blocks(team, config.share_params)}
        outputs = {name: spec.mask_size + 2 * spec.continuous for name, spec in specs.items()}
        super().__init__(team, config, TeamNetwork(team, outputs, config, generator, head_gain=0.01), device)
        self.uniform = False

    @property
    def constants(self) -> Hashable:
        """`uniform`, by which `act` computes something else."""
        return self.uniform

    # ------------------------------------------------------------------------------------------------------- acting

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return by_timestep(draw_block_noise(self.blocks, (steps, num_envs), generator, self.device))

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        obs = self.obs_normalizer(timestep.obs, timestep.alive)
        outputs, hidden_state = self.net(obs, timestep.first, hidden_state)
        actions: dict[str, Action] = {}
        for block in self.blocks:
            mask = block.join_masks(timestep.action_mask)
            if mode == "explore" and self.uniform:
                action = _uniform_action(block, noise[block.name], mask)
            else:
                block_noise = None if mode == "greedy" else noise[block.name]
                action = _sample_action(block, outputs[block.name], block_noise, mask)
            actions.update(block.split_by_role(action))
        return actions, hidden_state, {}

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        obs = self.obs_normalizer(timestep.obs, timestep.alive)
        outputs, _ = self.net(obs, timestep.first, hidden_state)
        distributions: dict[str, ActionDistribution] = {}
        for block in self.blocks:
            spec, params, probability, mean = block.action_spec, outputs[block.name], None, None
            if mode == "explore" and self.uniform:
                params = torch.zeros_like(params)
            if spec.choices:
                logits, mask = params[..., : spec.mask_size], block.join_masks(timestep.action_mask)
                probability, _ = choice_distribution(spec.choices, logits, mask)
            if spec.continuous:
                mean = torch.tanh(mean_and_log_std(block, params)[0])
            distributions |= block.split_by_role(ActionDistribution(probability, mean=mean))
        return distributions

    # ----------------------------------------------------------------------------------------------------- learning

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        outputs = self._demonstration_outputs(batch)
        losses, matches = {}, {}
        for block in self.blocks:
            spec, mask = block.action_spec, block.join_masks(batch.action_mask)
            demonstrated = block.join_actions(batch.action)
            params, log_prob = outputs[block.name], 0.0
            if demonstrated.discrete is not None:
                _, choice_log_probs = choice_distribution(spec.choices, params[..., : spec.mask_size], mask)
                log_prob = log_prob + taken(choice_log_probs, demonstrated.discrete, spec.choices)
            if demonstrated.continuous is not None:
                mean, log_std = mean_and_log_std(block, params)
                log_std = log_std if options.fit_std else log_std.detach()
                log_prob = log_prob + squashed_log_prob(mean, log_std, demonstrated.continuous)
            losses[block.name] = -torch.as_tensor(log_prob)
            with torch.no_grad():
                matches[block.name] = actions_match(_sample_action(block, params, None, mask), demonstrated)
        return join_blocks(losses, self.blocks, -1), join_blocks(matches, self.blocks, -1)


def _sample_action(block: Block, params: Tensor, noise: Tensor | None, mask: Tensor | None) -> Action:
    """A block's sampled action, the most likely one without noise."""
    spec = block.action_spec
    numbers = None
    if spec.continuous:
        mean, log_std = mean_and_log_std(block, params)
        numbers = torch.tanh(mean if noise is None else mean + noise[..., spec.mask_size :] * log_std.exp())
    return Action(sample_choices(block, params, noise, mask), numbers)


def _uniform_action(block: Block, noise: Tensor, mask: Tensor | None) -> Action:
    """Uniform choices and numbers from the noise of a Gaussian policy."""
    spec = block.action_spec
    numbers = torch.erf(noise[..., spec.mask_size :] / math.sqrt(2)) if spec.continuous else None
    return Action(sample_choices(block, torch.zeros_like(noise), noise, mask), numbers)
