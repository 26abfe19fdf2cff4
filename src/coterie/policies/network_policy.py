"""Base class of policies with networks that read observations. They can be trained by behavior cloning."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree
from coterie.core.types import Action, HiddenState, Rollout
from coterie.nets.config import NetworkConfig
from coterie.nets.team import ObservationNormalizer, TeamNetwork
from coterie.nets.view_reader import EntityNormalizer, ViewReader
from coterie.policies.base import InspectablePolicy


@register_pytree
@dataclass(frozen=True)
class DemonstrationBatch:
    """M demonstrated sequences of L timesteps; L is 1 for feed-forward policies.

    Attributes:
        obs, action_mask, action: By role [L, M, n, ..].
        last_action: Actions at the timestep before the first, by role [M, n, ..]; undefined where an agent is new.
        valid: [L, M, N] bool, True where the action counts.
        first: [L, M, N] bool, True at the first timestep of an agent.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    action: dict[str, Action]
    last_action: dict[str, Action]
    valid: Tensor
    first: Tensor


@dataclass(frozen=True)
class CloningOptions:
    """Options of the loss: see the fields of `coterie.config.imitation.ImitationConfig`."""

    margin: float = 0.8
    fit_std: bool = False


class NetworkPolicy(InspectablePolicy):
    """A policy with networks that read observations, and with a behavior-cloning loss, which their gradient minimizes.

    Args:
        team: The team.
        config: Architecture and inputs.
        net: Maps observations to the parameters of actions.
        device: Where the networks are stored.
        module: The module that contains `net` and further parameters; by default `net` itself.

    Attributes:
        reads_entities: True if the networks read observations as entities, of any number.
    """

    own_state: ClassVar[tuple[str, ...]] = ()
    """Names of hidden states that do not belong to `net`."""
    cloning_options: ClassVar[tuple[str, ...]] = ("margin", "fit_std")
    """Fields of `CloningOptions` that `cloning_loss` reads."""
    hidden_layers: ClassVar[bool] = True
    """True if the networks have hidden layers that settings describe."""
    network_key: ClassVar[str] = "module"
    """Name of the networks in `state_dict`."""

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        net: TeamNetwork,
        device: torch.device,
        module: nn.Module | None = None,
    ):
        self.team, self.device, self.net, self.blocks = team, device, net, net.blocks
        module = (net if module is None else module).to(device)
        view = None if config.view == "none" else ViewReader(team, self.blocks, config)
        normalizer = EntityNormalizer if config.reads_entities else ObservationNormalizer
        self.obs_normalizer = normalizer(self.blocks if config.normalize_obs else (), device, view=view)
        """Observations pass through it before the networks read them."""
        self.communicates, self.reads_entities = config.sees_team, config.reads_entities
        self.networks = (module, self.obs_normalizer.scales)

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        return self.net.initial_hidden_state(num_envs, self.device)

    def obs_of_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        """Returns the observations of a rollout [T + 1, B, n, ..] as the networks read them."""
        return self.obs_normalizer.of_rollout(rollout)

    def network_state(self, hidden_state: HiddenState) -> HiddenState:
        """Returns the part of the policy's hidden state that belongs to its network."""
        return {name: value for name, value in hidden_state.items() if name not in self.own_state}

    @abstractmethod
    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        """Returns the loss, and True where the greedy action is the demonstrated one, [L, M, N] each.

        Hidden states are zero before the first timestep. Entries that are not valid are undefined.
        """

    def _demonstration_outputs(
        self, batch: DemonstrationBatch, extra: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Outputs of the network by block on demonstrations; `extra` as in `TeamNetwork`."""
        hidden_state = self.net.initial_hidden_state(batch.valid.shape[1], self.device)
        obs = self.obs_normalizer(batch.obs, batch.valid)
        return self.net(obs, batch.first if hidden_state else None, hidden_state, extra)[0]

    def state_dict(self) -> dict[str, Any]:
        return {self.network_key: self.networks[0].state_dict(), "moments": self.obs_normalizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks[0].load_state_dict(state[self.network_key])
        self.obs_normalizer.load_state_dict(state["moments"])


def by_timestep(noise: dict[str, Tensor]) -> list[Tree]:
    """Returns noise by name [T, ..] as noise at each timestep."""
    parts = [x.unbind(0) for x in noise.values()]
    return [dict(zip(noise, step, strict=True)) for step in zip(*parts, strict=True)]
