"""Collection by a guider whose decisions another policy, the learner, is trained to imitate."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Rollout, Timestep
from coterie.policies.autoregressive import AutoregressivePolicy
from coterie.policies.base import Mode, Policy
from coterie.policies.stochastic import StochasticPolicy


class GuidedPolicy(Policy):
    """Acts by the guider, and unrolls a recurrent learner along the same trajectory, without its actions.

    Both policies read observations that the learner's statistics normalize. Names of their hidden states differ.

    Args:
        guider: Acts. It reads the observations of the whole team.
        learner: Reads what the agents observe while the guider acts.
    """

    cuda_graphs = True
    communicates = True

    def __init__(self, guider: AutoregressivePolicy, learner: StochasticPolicy):
        guider.obs_normalizer = learner.obs_normalizer
        self.team, self.guider, self.learner = guider.team, guider, learner
        self.networks = (guider.networks[0], *learner.networks)
        self._of_guider = frozenset(guider.initial_hidden_state(1))

    @property
    def constants(self) -> Hashable:
        return self.guider.constants

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        return self.guider.initial_hidden_state(num_envs) | self.learner.initial_hidden_state(num_envs)

    def hidden_states(self, hidden_state: HiddenState) -> tuple[HiddenState, HiddenState]:
        """Returns the parts of a hidden state that belong to the guider and to the learner."""
        guider = {name: x for name, x in hidden_state.items() if name in self._of_guider}
        return guider, {name: x for name, x in hidden_state.items() if name not in self._of_guider}

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return self.guider.draw_noise(steps, num_envs, generator)

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        of_guider, of_learner = self.hidden_states(hidden_state)
        actions, of_guider, extras = self.guider.act(timestep, of_guider, noise, mode)
        if of_learner:
            obs = self.learner.obs_normalizer(timestep.obs, timestep.alive)
            _, of_learner = self.learner.net(obs, timestep.first, of_learner)
        return actions, of_guider | of_learner, extras

    def obs_of_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        """Returns the observations of a rollout [T + 1, B, n, ..] as both read them, with the guider's order."""
        return self.guider.obs_of_rollout(rollout)

    def unroll(
        self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState, action: dict[str, Action]
    ) -> HiddenState:
        """Returns the hidden state of both after sequences of observations [L, M, n, ..] as they read them."""
        of_guider, of_learner = self.hidden_states(hidden_state)
        of_guider = self.guider.unroll(obs, first, of_guider, action)
        return of_guider | self.learner.unroll(obs, first, of_learner, action)

    def state_dict(self) -> dict[str, Any]:
        return {"guider": self.guider.state_dict(), "learner": self.learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.guider.load_state_dict(state["guider"])
        self.learner.load_state_dict(state["learner"])
