"""Epsilon-greedy policies over action values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.device_constants import DeviceNumber
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional.behavior_cloning import actions_match, large_margin_loss
from coterie.functional.choices import mask_logits
from coterie.functional.exploration import epsilon_greedy
from coterie.nets.config import NetworkConfig
from coterie.nets.joint_actions import JointAction, action_size, last_actions, pad_by_agent, unpad_by_role
from coterie.nets.team import Block, TeamNetwork, join_blocks, join_by_block
from coterie.policies.base import ActionDistribution, Mode
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch, NetworkPolicy

LAST = "last"
"""Name of the agents' last actions [B, N, A] in the hidden state."""


class EpsilonGreedyPolicy(NetworkPolicy):
    """Takes the choices of the highest Q, and with probability `epsilon` uniform ones, per agent and timestep.

    The Q of several discrete components is the sum of their Q. With `config.obs_last_action` networks read each agent's
    last action.

    Args:
        team: The team.
        config: Architecture and inputs of the networks.
        generator: Source of the initial weights.
        device: Device of the networks.
        output_gain: Gain of the orthogonal initialization of the output layer.
    """

    cuda_graphs = True
    own_state = (LAST,)
    cloning_options = ("margin",)
    network_key = "net"

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        device: torch.device,
        output_gain: float = 1.0,
    ):
        num_choices = {role.name: role.action.mask_size for role in team.roles}
        self.reads_last_action = config.obs_last_action
        extra_sizes = {role.name: action_size(role.action) for role in team.roles} if self.reads_last_action else None
        net = TeamNetwork(team, num_choices, config, generator, head_gain=output_gain, extra_sizes=extra_sizes)
        super().__init__(team, config, net, device)
        self._epsilon = DeviceNumber(1.0, device)
        self._max_choices = max(num_choices.values())
        self._joint = JointAction(team, device)

    @property
    def epsilon(self) -> float:
        """Probability of a uniform choice, which the learner sets between rollouts."""
        return self._epsilon.value

    @epsilon.setter
    def epsilon(self, epsilon: float) -> None:
        self._epsilon.value = epsilon

    # ------------------------------------------------------------------------------------------------------- acting

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        hidden_state = super().initial_hidden_state(num_envs)
        if self.reads_last_action:
            hidden_state[LAST] = torch.zeros(num_envs, self.team.n, self._max_choices, device=self.device)
        return hidden_state

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        """Returns per agent one number that decides if it explores, and one per choice that ranks random choices."""
        shape = (steps, num_envs, self.team.n, 1 + self._max_choices)
        return list(torch.rand(shape, generator=generator, device=self.device).unbind(0))

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        q, next_state = self._forward(timestep, hidden_state)
        actions = {}
        for block in self.blocks:
            block_noise = None if mode == "greedy" else self._noise_of(block, noise)
            mask = block.join_masks(timestep.action_mask)
            actions.update(block.split_by_role(self._choose(block, q[block.name], mask, block_noise)))
        if self.reads_last_action:
            next_state = next_state | {LAST: self.encode_last(actions)}
        return actions, next_state, {}

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        q, _ = self._forward(timestep, hidden_state)
        epsilon = 0.0 if mode == "greedy" else self.epsilon
        distributions: dict[str, ActionDistribution] = {}
        for block in self.blocks:
            block_q, mask = q[block.name], block.join_masks(timestep.action_mask)
            probability = epsilon_greedy(block_q, block.action_spec.choices, mask, epsilon)
            distributions |= block.split_by_role(ActionDistribution(probability, block_q))
        return distributions

    def _forward(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[dict[str, Tensor], HiddenState]:
        """Q by block at a timestep, and the network's next hidden state."""
        extra = None
        if self.reads_last_action:
            last = torch.where(timestep.first.unsqueeze(-1), 0.0, hidden_state[LAST])
            extra = join_by_block(unpad_by_role(self.team, last), self.blocks)
        obs = self.obs_normalizer(timestep.obs, timestep.alive)
        return self.net(obs, timestep.first, self.network_state(hidden_state), extra)

    def _noise_of(self, block: Block, noise: Tensor) -> Tensor:
        """The block's part of the noise [B, N, 1 + A]."""
        return noise if len(self.blocks) == 1 else noise[:, block.start : block.stop]

    def _choose(self, block: Block, q: Tensor, mask: Tensor | None, noise: Tensor | None) -> Action:
        """Greedy choices [B, n, K], or uniform ones where an agent explores."""
        choices = block.action_spec.choices
        greedy = _argmax(mask_logits(q, mask), choices)
        if noise is None:
            return Action(greedy)
        score = noise[..., 1 : 1 + q.shape[-1]]
        uniform = _argmax(score if mask is None else torch.where(mask, score, -1.0), choices)
        return Action(torch.where(noise[..., :1] < self._epsilon.operand, uniform, greedy))

    # ----------------------------------------------------------------------------------------------------- learning

    def network_inputs(
        self,
        obs: dict[str, Tree],
        action: dict[str, Action],
        first: Tensor,
        hidden_state: HiddenState,
        alive: Tensor | None = None,
    ) -> tuple[dict[str, Tree], Tensor | None, HiddenState, dict[str, Tensor] | None]:
        """Returns the network's arguments for sequences [R, B, ..] with actions at all but the last timestep.

        Args:
            obs: By role [R, B, n, ..].
            action: By role [R - 1, B, n, ..].
            first: [R, B, N] bool.
            hidden_state: The policy's hidden state before the first timestep.
            alive: [R, B, N] bool; None: all are alive.
        """
        network_state = self.network_state(hidden_state)
        extra = None
        if self.reads_last_action:
            before = unpad_by_role(self.team, hidden_state[LAST])
            extra = join_by_block(last_actions(self._joint.encode(action), first, before), self.blocks)
        return self.obs_normalizer(obs, alive), first if network_state else None, network_state, extra

    def encode_last(self, action: dict[str, Action]) -> Tensor:
        """Returns actions by role as the hidden state stores the last ones [.., N, A]."""
        return pad_by_agent(self._joint.encode(action))

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        hidden_state = self.net.initial_hidden_state(batch.valid.shape[1], self.device)
        if self.reads_last_action:
            hidden_state[LAST] = self.encode_last(batch.last_action)
        q, _ = self.net(*self.network_inputs(batch.obs, batch.action, batch.first, hidden_state, batch.valid))
        losses, matches = {}, {}
        for block in self.blocks:
            mask, demonstrated = block.join_masks(batch.action_mask), block.join_actions(batch.action)
            assert demonstrated.discrete is not None
            losses[block.name] = large_margin_loss(
                q[block.name], demonstrated.discrete, mask, choices=block.action_spec.choices, margin=options.margin
            )
            with torch.no_grad():
                matches[block.name] = actions_match(self._choose(block, q[block.name], mask, None), demonstrated)
        return join_blocks(losses, self.blocks, -1), join_blocks(matches, self.blocks, -1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"epsilon": self.epsilon}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.epsilon = state["epsilon"]


def _argmax(score: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Index of the highest score [.., sum A] of every component [.., K]."""
    if len(choices) == 1:
        return score.argmax(-1, keepdim=True)
    return torch.cat([part.argmax(-1, keepdim=True) for part in score.split(choices, -1)], -1)
