"""COMA's policy: stochastic choices mixed with uniform ones, optionally with last actions as input."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from coterie.core.device_constants import DeviceNumber
from coterie.core.specs import ActionSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional.choices import mask_logits
from coterie.functional.policy_gradient import choice_log_probs, component_log_probs
from coterie.nets.config import NetworkConfig
from coterie.nets.joint_actions import JointAction, action_size, last_actions, pad_by_agent, unpad_by_role
from coterie.nets.team import Block, join_by_block, join_choices
from coterie.policies.base import Mode
from coterie.policies.network_policy import DemonstrationBatch
from coterie.policies.stochastic import StochasticPolicy

_LAST = "last"
"""Name of the agents' last actions [B, N, P] in the hidden state."""


class EpsilonSoftPolicy(StochasticPolicy):
    """A stochastic policy whose choices are uniform with probability `epsilon` in mode `explore`.

    Args:
        team: The team.
        config: Architecture and inputs; with `obs_last_action` the network reads each agent's last action.
        generator: Source of the initial weights.
        device: Where the networks are stored.
        stores_last_action: The hidden state holds last actions even if the network does not read them.
    """

    own_state = (_LAST,)

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        device: torch.device,
        *,
        stores_last_action: bool = False,
    ):
        super().__init__(team, config, generator, device)
        self._epsilon = DeviceNumber(0.0, device)
        self.reads_last_action = config.obs_last_action
        self.stores_last_action = stores_last_action or config.obs_last_action
        self._joint = JointAction(team, device)

    @property
    def epsilon(self) -> float:
        """Probability of a uniform choice, which the learner sets between rollouts."""
        return self._epsilon.value

    @epsilon.setter
    def epsilon(self, epsilon: float) -> None:
        self._epsilon.value = epsilon

    @property
    def constants(self) -> Hashable:
        """True if choices are mixed with uniform ones, which changes what `act` and `log_probs` compute."""
        return self.epsilon > 0

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        hidden_state = super().initial_hidden_state(num_envs)
        if self.stores_last_action:
            width = max(action_size(role.action) for role in self.team.roles)
            hidden_state[_LAST] = torch.zeros(num_envs, self.team.n, width, device=self.device)
        return hidden_state

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        actions, hidden_state, extras = super().act(timestep, hidden_state, noise, mode)
        if self.stores_last_action:
            last = pad_by_agent(self._joint.encode(actions))
            if self.team.agents_can_die:
                last = torch.where((timestep.alive & timestep.acted.unsqueeze(-1)).unsqueeze(-1), last, 0.0)
            hidden_state = hidden_state | {_LAST: last}
        return actions, hidden_state, extras

    def log_probs(
        self,
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        first: Tensor | None,
        hidden_state: HiddenState,
        last: dict[str, Tensor] | None,
    ) -> Tensor:
        """Returns log-probabilities of every discrete choice [.., N, A], mixed with uniform choices by `epsilon`.

        Entries of masked choices and padding are the lowest finite number.

        Args:
            obs, action_mask, first, hidden_state: As in `StochasticActor.evaluate`.
            last: Last actions by role [.., n, P], if the network reads them.
        """
        outputs, _ = self.net(obs, first, self.network_state(hidden_state), self._extra(last))
        by_block = {}
        for block in self.blocks:
            mask = block.join_masks(action_mask)
            # Mixed log-probabilities are normalized already, so log_softmax does not change them.
            params = self._mixed(block, outputs[block.name], mask)
            by_block[block.name] = choice_log_probs(block.action_spec, params, mask)
        return join_choices(by_block, self.blocks, torch.finfo(torch.float32).min)

    def unroll(
        self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState, last: dict[str, Tensor] | None = None
    ) -> HiddenState:
        """Returns the network's hidden state after sequences of normalized observations; `last` as in `log_probs`."""
        return self.net(obs, first, self.network_state(hidden_state), self._extra(last))[1]

    def _forward(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[dict[str, Tensor], HiddenState]:
        last = None
        if self.reads_last_action:
            last = unpad_by_role(self.team, hidden_state[_LAST].masked_fill(timestep.first.unsqueeze(-1), 0.0))
        obs = self.obs_normalizer(timestep.obs, timestep.alive)
        return self.net(obs, timestep.first, self.network_state(hidden_state), self._extra(last))

    def _acting_params(
        self, block: Block, output: Tensor, mask: Tensor | None, mode: Mode
    ) -> tuple[Tensor, Tensor | None]:
        params, log_std = self.actor.params(block, output)
        if mode == "explore":
            params = self._mixed(block, params, mask)
        return params, log_std

    def _mixed(self, block: Block, params: Tensor, mask: Tensor | None) -> Tensor:
        """Parameters of a block's choices, mixed with uniform ones by `epsilon`."""
        if self.epsilon == 0:
            return params
        return mix_with_uniform(block.action_spec, params, mask, self._epsilon.operand)

    def _demonstration_outputs(
        self, batch: DemonstrationBatch, extra: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        last = None
        if self.reads_last_action:
            last = last_actions(self._joint.encode(batch.action), batch.first, self._joint.encode(batch.last_action))
        return super()._demonstration_outputs(batch, self._extra(last))

    def _extra(self, last: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Last actions by block; None if the network does not read them."""
        if not self.reads_last_action:
            return None
        assert last is not None
        return join_by_block(last, self.blocks)


def mix_with_uniform(spec: ActionSpec, params: Tensor, mask: Tensor | None, epsilon: float | Tensor) -> Tensor:
    """Mixes the choices of a policy with uniform choices among those available, in every component.

        pi'(a) = (1 - eps) pi(a) + eps / |available|;  0 where masked

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C].
        mask: [.., sum A] bool; None: all choices are available.
        epsilon: In (0, 1], a number or a tensor [].

    Returns:
        Parameters of the same shape, with log pi' in place of the logits.

    Source: Foerster et al. 2018, section 5.
    """
    if not spec.choices:
        return params
    parts, start = [], 0
    for log_p in component_log_probs(spec, params, mask):
        width = log_p.shape[-1]
        if mask is None:
            p = log_p.exp()
            if not torch.is_grad_enabled():  # acting: the same without new tensors
                mixed = p.mul_(1 - epsilon).add_(epsilon / width).log_()
            else:
                mixed = ((1 - epsilon) * p + epsilon / width).log()
        else:
            available = mask[..., start : start + width]
            mixed = (1 - epsilon) * log_p.exp() + available.sum(-1, keepdim=True).reciprocal() * epsilon
            # log(0) would have an infinite gradient, which 0 x inf turns into NaN.
            mixed = mask_logits(torch.where(available, mixed, 1.0).log(), available)
        parts.append(mixed)
        start += width
    if spec.continuous:
        parts.append(params[..., start:])
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
