"""Deterministic policies: continuous actions in [-1, 1] directly from the network, choices sampled from its logits."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.device_constants import DeviceNumber
from coterie.core.specs import ActionSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional import exploration
from coterie.functional.behavior_cloning import actions_match, deterministic_loss
from coterie.nets.config import NetworkConfig
from coterie.nets.relaxed_actions import draw_block_noise
from coterie.nets.team import Block, TeamNetwork, join_blocks, team_blocks
from coterie.policies.base import ActionDistribution, Mode
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch, NetworkPolicy, by_timestep

NoiseKind = Literal["gaussian", "ornstein_uhlenbeck"]

_OU_STATE = "ou_noise"
"""Name of the state of the Ornstein-Uhlenbeck noise [B, N, C of the widest role] in the hidden state."""


class DeterministicPolicy(NetworkPolicy):
    """Continuous actions are tanh of the network's outputs; choices are sampled from the softmax of its logits.

    Mode `greedy` takes the most likely choices, `sample` samples them, and `explore` also adds noise to the continuous
    actions, or samples everything uniformly while `uniform` is set. The learner sets `noise_std` and `uniform` between
    rollouts.

    Args:
        team: The team.
        config: Architecture and inputs.
        generator: Source of the initial weights.
        device: Where the networks are stored.
        noise: Exploration noise.
        theta: Mean reversion of the Ornstein-Uhlenbeck noise, whose state is part of the hidden state.
    """

    cuda_graphs = True
    own_state = (_OU_STATE,)
    cloning_options = ()

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        device: torch.device,
        *,
        noise: NoiseKind = "gaussian",
        theta: float = 0.15,
    ):
        specs = {block.name: block.action_spec for block in team_blocks(team, config.share_params)}
        outputs = {name: spec.mask_size + spec.continuous for name, spec in specs.items()}
        net = TeamNetwork(team, outputs, config, generator, head_gain=0.01)
        super().__init__(team, config, net, device)
        width = max(role.action.continuous for role in team.roles)
        self._ou_size = width if noise == "ornstein_uhlenbeck" else 0
        self._theta = theta
        self._noise_std = DeviceNumber(0.0, device)
        self.uniform = False

    @property
    def noise_std(self) -> float:
        """Scale of the noise on continuous actions."""
        return self._noise_std.value

    @noise_std.setter
    def noise_std(self, noise_std: float) -> None:
        self._noise_std.value = noise_std

    @property
    def constants(self) -> Hashable:
        """`uniform`, by which `act` computes something else."""
        return self.uniform

    # ------------------------------------------------------------------------------------------------------- acting

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        hidden_state = super().initial_hidden_state(num_envs)
        if self._ou_size:
            hidden_state[_OU_STATE] = torch.zeros(num_envs, self.team.n, self._ou_size, device=self.device)
        return hidden_state

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return by_timestep(draw_block_noise(self.blocks, (steps, num_envs), generator, self.device))

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        obs = self.obs_normalizer(timestep.obs, timestep.alive)
        outputs, next_state = self.net(obs, timestep.first, self.network_state(hidden_state))
        explores, ou_state, ou_parts = mode == "explore", hidden_state.get(_OU_STATE), []
        actions = {}
        for block in self.blocks:
            spec, params = block.action_spec, outputs[block.name]
            block_noise = None if mode == "greedy" else noise[block.name]
            discrete = continuous = None
            if spec.choices:
                logits = params[..., : spec.mask_size] if spec.continuous else params
                logits = torch.zeros_like(logits) if explores and self.uniform else logits
                discrete = _sample_choices(spec, logits, block.join_masks(timestep.action_mask), block_noise)
            if spec.continuous:
                continuous = torch.tanh(params[..., spec.mask_size :])
            if explores and (spec.continuous or ou_state is not None):
                normal = added = noise[block.name][..., spec.mask_size :]
                if ou_state is not None:
                    ou_parts.append(self._next_ou_state(block, ou_state, timestep.first, normal))
                    added = ou_parts[-1][..., : spec.continuous]
                if continuous is not None:
                    continuous = self._explore(continuous, normal, added)
            actions.update(block.split_by_role(Action(discrete, continuous)))
        if ou_state is not None:
            next_state = next_state | {_OU_STATE: torch.cat(ou_parts, -2) if ou_parts else ou_state}
        return actions, next_state, {}

    def _explore(self, continuous: Tensor, normal: Tensor, added: Tensor) -> Tensor:
        """Uniform actions from normal noise while `uniform` is set, else actions with `noise_std` times `added`."""
        if self.uniform:
            return exploration.normal_to_uniform(normal)
        return exploration.add_noise(continuous, added * self._noise_std.operand)

    def _next_ou_state(self, block: Block, ou_state: Tensor, first: Tensor, normal: Tensor) -> Tensor:
        """The block's next state of the Ornstein-Uhlenbeck noise [B, n, C of the widest role]."""
        agents = slice(block.start, block.stop)
        state = ou_state[:, agents].masked_fill(first[:, agents].unsqueeze(-1), 0)
        noise = functional.pad(normal, (0, self._ou_size - normal.shape[-1]))
        return exploration.ornstein_uhlenbeck(state, noise, self._theta)

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        obs = self.obs_normalizer(timestep.obs, timestep.alive)
        outputs, _ = self.net(obs, timestep.first, self.network_state(hidden_state))
        distributions: dict[str, ActionDistribution] = {}
        for block in self.blocks:
            spec, params, probability, mean = block.action_spec, outputs[block.name], None, None
            if mode == "explore" and self.uniform:
                params = torch.zeros_like(params)
            if spec.choices:
                mask = block.join_masks(timestep.action_mask)
                probability = exploration.choice_probs(params[..., : spec.mask_size], spec.choices, mask)
            if spec.continuous:
                mean = torch.tanh(params[..., spec.mask_size :])
            distributions |= block.split_by_role(ActionDistribution(probability, mean=mean))
        return distributions

    def with_network(self, net: nn.Module) -> DeterministicPolicy:
        """Returns this policy with other weights and without exploration noise; statistics are shared."""
        other = copy.copy(self)
        other.net, other.networks, other._ou_size = cast(TeamNetwork, net), (net, *self.networks[1:]), 0
        return other

    # ----------------------------------------------------------------------------------------------------- learning

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        outputs = self._demonstration_outputs(batch)
        losses, matches = {}, {}
        for block in self.blocks:
            spec, mask = block.action_spec, block.join_masks(batch.action_mask)
            demonstrated, params = block.join_actions(batch.action), outputs[block.name]
            losses[block.name] = deterministic_loss(spec, params, mask, demonstrated)
            with torch.no_grad():
                logits, numbers = params[..., : spec.mask_size], params[..., spec.mask_size :]
                greedy = Action(
                    _sample_choices(spec, logits, mask, None) if spec.choices else None,
                    torch.tanh(numbers) if spec.continuous else None,
                )
                matches[block.name] = actions_match(greedy, demonstrated)
        return join_blocks(losses, self.blocks, -1), join_blocks(matches, self.blocks, -1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"noise_std": self.noise_std, "uniform": self.uniform}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.noise_std, self.uniform = state["noise_std"], state["uniform"]


def _sample_choices(spec: ActionSpec, logits: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
    """Choices of every component [.., K], the most likely ones without noise."""
    if len(spec.choices) == 1:
        return exploration.sample_choice(
            logits, mask, None if noise is None else noise[..., : spec.mask_size]
        ).unsqueeze(-1)
    chosen, start = [], 0
    for choices in spec.choices:
        part = slice(start, start + choices)
        available, part_noise = (None if x is None else x[..., part] for x in (mask, noise))
        chosen.append(exploration.sample_choice(logits[..., part], available, part_noise))
        start += choices
    return torch.stack(chosen, -1)
