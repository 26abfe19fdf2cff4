"""State-value critics: decentralized (IPPO) and centralized (MAPPO)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.team import AgentNetwork, CentralEncoder, TeamNetwork, join_blocks, team_blocks


class DecentralizedCritic(nn.Module):
    """Values V(o_i) of each agent's own observation, [.., N, K] for K reward signals.

    They may also read `state_size` features of a state, the same for all agents, such as the time left.
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        state_size: int = 0,
    ):
        super().__init__()
        outputs = {block.name: num_signals for block in team_blocks(team, config.share_params)}
        sizes = dict.fromkeys(outputs, state_size) if state_size else None
        self.network = TeamNetwork(team, outputs, config, generator, extra_sizes=sizes)

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values and the next hidden state; arguments as in `TeamNetwork`. `state` is [.., S] or None."""
        extra = None
        if state is not None:
            rows = state.unsqueeze(-2)
            extra = {block.name: rows.expand(*state.shape[:-1], block.n, -1) for block in self.network.blocks}
        values, hidden_state = self.network(obs, first, hidden_state, extra)
        return join_blocks(values, self.network.blocks, -2), hidden_state


class CentralizedCritic(nn.Module):
    """Values V_i(s) of the joint observation, the environment state, or both: [.., N, K] for K reward signals.

    A global critic also reads the observations of other teams.

    The input is the same for all agents, so the network runs once per environment and has an output per agent. With a
    recurrent layer, `first` is [T, M, 1] and the hidden state [M, 1, H].
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        inputs: CentralInputs,
    ):
        super().__init__()
        self.encoder = CentralEncoder(team, inputs, generator)
        self.network = AgentNetwork(self.encoder.features, team.n * num_signals, config, generator)
        self.num_agents = team.n

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values and the next hidden state.

        Args:
            obs: By role [.., n, ..], with those of other teams in a global critic.
            state: [.., S], None if the critic does not read it.
            first: [T, M, 1] bool, needed by recurrent critics.
            hidden_state: By name [M, 1, H]; {} for feed-forward critics.
        """
        values, hidden_state = self.network(self.encoder(obs, state).unsqueeze(-2), first, hidden_state)
        return values.squeeze(-2).unflatten(-1, (self.num_agents, -1)), hidden_state
