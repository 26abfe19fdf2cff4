"""Interface of policies, action distributions for displays, and the random policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.functional.exploration import choice_probs

Mode = Literal["greedy", "sample", "explore"]


class Policy(ABC):
    """Acts for one team, as a pure function of timestep, hidden state and noise.

    Attributes:
        team: The team.
        networks: Modules whose parameters and buffers are all that learning changes about `act`; () for fixed policies.
        cuda_graphs: True if `act` can be captured as part of a CUDA graph and, on a CPU, traced: it depends on its
            arguments, on `constants`, and on tensors that are changed in place only, such as those of `networks`,
            neither reads tensors on the host nor copies any to the device, and takes the same branches in all calls.
        communicates: True if an agent's actions depend on the observations of other agents, so that acting needs those
            of the whole team in one place.
    """

    team: TeamSpec
    networks: tuple[nn.Module, ...] = ()
    cuda_graphs: bool = False
    communicates: bool = False

    @property
    def constants(self) -> Hashable:
        """Python values that `act` depends on and that may change between rollouts, compared by `==`."""
        return ()

    @abstractmethod
    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        """Returns the hidden state before the first timestep, by name [B, N, H]; {} for feed-forward policies."""

    @abstractmethod
    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        """Returns noise for `act` at each of `steps` timesteps."""

    @abstractmethod
    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        """Chooses the actions of a timestep.

        Args:
            timestep: The team's part of a timestep.
            hidden_state: By name [B, N, H].
            noise: One entry of `draw_noise`; not used in mode `greedy`.
            mode: `greedy` takes the most likely action, `sample` samples the policy, `explore` samples the policy that
                the algorithm collects experience with.

        Returns:
            Actions by role, the next hidden state, and extras by name [B, N] (e.g. `log_prob`). The extra `label` is
            the index of the policy that acted, for a policy that consists of several.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns everything that acting needs."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""


@register_pytree
@dataclass(frozen=True)
class ActionDistribution:
    """Distribution of the actions of a role's agents; None for parts that do not apply.

    Attributes:
        probability: [B, n, sum A], probability of every choice; 0 where masked, summing to 1 per component. Stochastic
            policies give the same in mode `greedy`.
        q: [B, n, sum A], action values, of masked choices as well.
        mean: [B, n, C] in [-1, 1], mean of the continuous actions.
        std: [B, n, C], standard deviation of continuous actions that are normally distributed.
    """

    probability: Tensor | None = None
    q: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None


class InspectablePolicy(Policy):
    """A policy that can report the distribution of its actions."""

    @abstractmethod
    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        """Returns the distributions, by role, that `act` with the same arguments samples from."""


class RandomPolicy(InspectablePolicy):
    """Samples uniformly from the available choices, and from [-1, 1]."""

    cuda_graphs = True

    def __init__(self, team: TeamSpec, device: torch.device):
        self.team, self.device = team, device

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        return {}

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        by_role: dict[str, tuple[Tensor, ...]] = {}
        for role in self.team.roles:
            size = role.action.mask_size + role.action.continuous
            shape = (steps, num_envs, role.n, size)
            by_role[role.name] = torch.rand(shape, generator=generator, device=self.device).unbind(0)
        return [{name: noise[t] for name, noise in by_role.items()} for t in range(steps)]

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        actions = {}
        for role in self.team.roles:
            spec, uniform = role.action, noise[role.name]
            mask = timestep.action_mask.get(role.name)
            chosen = []
            if spec.choices:
                score = uniform[..., : spec.mask_size]
                score = score if mask is None else torch.where(mask, score, -1.0)
                chosen = [part.argmax(-1, keepdim=True) for part in score.split(spec.choices, -1)]
            actions[role.name] = Action(
                torch.cat(chosen, -1) if chosen else None,
                uniform[..., spec.mask_size :] * 2 - 1 if spec.continuous else None,
            )
        return actions, hidden_state, {}

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        distributions = {}
        for role in self.team.roles:
            spec, mask = role.action, timestep.action_mask.get(role.name)
            shape = (len(timestep.acted), role.n)
            logits = torch.zeros(*shape, spec.mask_size, device=self.device)
            distributions[role.name] = ActionDistribution(
                choice_probs(logits, spec.choices, mask) if spec.choices else None,
                mean=torch.zeros(*shape, spec.continuous, device=self.device) if spec.continuous else None,
            )
        return distributions

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
