"""The network of a stochastic policy, with the log-probabilities and entropies that policy gradients need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.specs import ActionSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState
from coterie.functional.policy_gradient import log_prob_and_entropy
from coterie.kernels import switch
from coterie.nets.by_name import ParametersByName
from coterie.nets.config import NetworkConfig
from coterie.nets.joint_actions import action_size
from coterie.nets.team import Block, TeamNetwork, join_blocks, team_blocks


class ActionParameters(nn.Module):
    """Base of networks whose outputs are parameters of stochastic actions; standard deviations may be parameters.

    Args:
        state_dependent_std: The standard deviation is an output of the network instead of a parameter.
        init_std: Initial standard deviation.
    """

    def __init__(self, *, state_dependent_std: bool, init_std: float):
        super().__init__()
        self._state_dependent_std, self._init_std = state_dependent_std, init_std
        self._init_log_std = torch.tensor(init_std).log().item()

    def num_outputs(self, spec: ActionSpec) -> int:
        """Returns the number of outputs of the network per agent."""
        return spec.mask_size + spec.continuous * (2 if self._state_dependent_std else 1)

    def create_std(self, blocks: tuple[Block, ...], *, per_agent: bool) -> None:
        """Creates the parameters of standard deviations, one set per block or per agent."""
        self.log_std = ParametersByName()
        for block in blocks:
            if block.action_spec.continuous and not self._state_dependent_std:
                shape = (block.n if per_agent else 1, block.action_spec.continuous)
                self.log_std[block.name] = nn.Parameter(torch.full(shape, self._init_log_std))

    def params(self, block: Block, output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Parameters of a block's distribution [.., n, sum A + C], and log standard deviation [.., n, C] or [n, C]."""
        spec = block.action_spec
        if not spec.continuous:
            return output, None
        if not self._state_dependent_std:
            return output, self.log_std[block.name].clamp(-5, 2)
        params, log_std = output.split([spec.mask_size + spec.continuous, spec.continuous], -1)
        return params, (log_std + self._init_log_std).clamp(-5, 2)


class StochasticActor(ActionParameters):
    """Logits of choices, means of Gaussian numbers, and their standard deviations.

    Args:
        team: The team.
        config: Architecture and inputs.
        generator: Source of the initial weights.
        state_dependent_std: The standard deviation is an output of the network instead of a parameter.
        init_std: Initial standard deviation.
    """

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        state_dependent_std: bool,
        init_std: float,
    ):
        super().__init__(state_dependent_std=state_dependent_std, init_std=init_std)
        self.blocks = team_blocks(team, config.share_params)
        specs = {block.name: block.action_spec for block in self.blocks}
        outputs = {name: self.num_outputs(spec) for name, spec in specs.items()}
        extra_sizes = {name: action_size(spec) for name, spec in specs.items()} if config.obs_last_action else None
        self.net = TeamNetwork(team, outputs, config, generator, head_gain=0.01, extra_sizes=extra_sizes)
        self.create_std(self.blocks, per_agent=config.share_params == "none")

    def for_team(self, team: TeamSpec, generator: torch.Generator) -> StochasticActor:
        """Returns another actor of this architecture for a team."""
        return StochasticActor(
            team,
            self.net.config,
            generator,
            state_dependent_std=self._state_dependent_std,
            init_std=self._init_std,
        )

    def forward(
        self, obs: dict[str, Tree], first: Tensor | None, hidden_state: HiddenState
    ) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Returns the parameters of the distributions of actions by block, see `params`; arguments as in `evaluate`."""
        outputs, _ = self.net(obs, first, hidden_state)
        return {block.name: self.params(block, outputs[block.name]) for block in self.blocks}

    def evaluate(
        self,
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        action: dict[str, Action],
        first: Tensor | None,
        hidden_state: HiddenState,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities of actions and entropies, [.., N] each.

        Args:
            obs: Normalized observations by role [M, n, D], or sequences [L, M, n, D].
            action_mask: By role [.., n, sum A].
            action: By role [.., n, ..].
            first: [L, M, N] bool, needed by recurrent policies.
            hidden_state: Before the first timestep, by name [M, N, H]; {} for feed-forward policies.
        """
        log_probs, entropies = {}, {}
        distributions = self.forward(obs, first, hidden_state)
        for block in self.blocks:
            params, log_std = distributions[block.name]
            mask, block_action = block.join_masks(action_mask), block.join_actions(action)
            log_probs[block.name], entropies[block.name] = log_prob_and_entropy(
                block.action_spec, params, block_action, log_std=log_std, mask=mask, kernels=switch.on
            )
        return join_blocks(log_probs, self.blocks, -1), join_blocks(entropies, self.blocks, -1)
