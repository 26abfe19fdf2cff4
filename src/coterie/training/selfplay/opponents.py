"""Policy of a team that plays as several opponents: one snapshot of a pool per episode, all in one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, Timestep
from coterie.nets.recurrent import vmapped
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.training.selfplay.pool import PolicyModule, SnapshotPool

_SLOT, _EPISODE_ENDED = "opponent_slot", "opponent_episode_ended"
"""Names in the hidden state: slot of the opponent in each environment [B], and whether the last timestep was the final
one of its episode [B]."""


class OpponentPolicy(Policy):
    """Samples one entry of a pool per episode in every environment and acts with it until the episode ends.

    Environments that play against the same entry are grouped, and all groups are computed in one batched call. The
    extras contain `label` [B, N], the number of the snapshot that acts; -1 for the current policy.

    Args:
        pool: Pool of snapshots.
        policy: Acts for the team with the networks that the pool holds snapshots of.
        current_only: True if only slot 0, the current policy, is ever played.
    """

    def __init__(self, pool: SnapshotPool, policy: RemappedPolicy, current_only: bool = False):
        self.team, self.policy = policy.team, policy
        self._pool, self._current_only = pool, current_only
        self._module = PolicyModule(policy)
        self.probabilities = torch.ones(1, device=pool.device)
        """Probability of each slot [slots], to be set between rollouts."""

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        device = self._pool.device
        return self.policy.initial_hidden_state(num_envs) | {
            _SLOT: torch.zeros(num_envs, dtype=torch.int64, device=device),
            _EPISODE_ENDED: torch.ones(num_envs, dtype=torch.bool, device=device),
        }

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        """Draws the noise of the policy, and per environment a number that selects the opponent of a new episode."""
        drawn = torch.rand(steps, num_envs, generator=generator, device=self._pool.device).unbind(0)
        inner = self.policy.draw_noise(steps, num_envs, generator)
        return [{"act": own, "opponent": number} for own, number in zip(inner, drawn, strict=True)]

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        edges = self.probabilities.cumsum(0)[:-1]
        slot = torch.where(
            hidden_state[_EPISODE_ENDED],
            torch.searchsorted(edges, noise["opponent"], right=True),
            hidden_state[_SLOT],
        )
        inputs = {
            "obs": timestep.obs,
            "action_mask": timestep.action_mask,
            "alive": timestep.alive,
            "first": timestep.first,
            "acted": timestep.acted,
            "hidden_state": {n: x for n, x in hidden_state.items() if n not in (_SLOT, _EPISODE_ENDED)},
            "noise": noise["act"],
        }
        with torch.no_grad():
            if self._current_only or len(self._pool.numbers) == 1:
                first_slot = {name: x[0] for name, x in self._pool.stacked.items()}
                action, hidden_state = self._act_as(first_slot, inputs)
            else:
                action, hidden_state = self._act_in_groups(slot, inputs)
        extras = {"label": self._pool.label[slot].unsqueeze(1).expand(-1, self.team.n)}
        actions = {role: Action(**parts) for role, parts in action.items()}
        return actions, hidden_state | {_SLOT: slot, _EPISODE_ENDED: ~timestep.acted}, extras

    def _act_in_groups(self, slot: Tensor, inputs: dict[str, Tree]) -> tuple[Tree, HiddenState]:
        """Sorts environments [B] by slot, pads them to equal groups [slots, C], acts, and restores their order.

        Transfers the size of the largest group to the host, once per timestep.
        """
        slots, num_envs = len(self._pool.numbers), len(slot)
        order = slot.argsort(stable=True)
        counts = torch.bincount(slot, minlength=slots)
        largest = int(counts.max())
        rank = torch.arange(num_envs, device=slot.device) - (counts.cumsum(0) - counts)[slot[order]]
        position = slot[order] * largest + rank
        take = torch.zeros(slots * largest, dtype=torch.int64, device=slot.device)
        take[position] = order
        inverse = torch.empty_like(order)
        inverse[order] = position
        grouped = tree_map(lambda x: x[take].unflatten(0, (slots, largest)), inputs)
        token = vmapped.set(True)
        try:
            out = torch.vmap(self._act_as)(self._pool.stacked, grouped)
        finally:
            vmapped.reset(token)
        return tree_map(lambda x: x.flatten(0, 1)[inverse], out)

    def _act_as(self, tensors: dict[str, Tensor], inputs: dict[str, Tree]) -> tuple[Tree, HiddenState]:
        """Acts with the parameters of one slot. Returns plain dictionaries, which `vmap` can stack."""
        timestep = Timestep(
            obs=inputs["obs"],
            action_mask=inputs["action_mask"],
            state={},
            alive=inputs["alive"],
            first=inputs["first"],
            acted=inputs["acted"],
        )
        arguments = (timestep, inputs["hidden_state"], inputs["noise"], "sample")
        action, hidden_state, _ = functional_call(self._module, tensors, arguments)
        plain = {role: {name: x for name, x in vars(a).items() if x is not None} for role, a in action.items()}
        return plain, hidden_state

    def is_playing(self, slot: int, hidden_state: HiddenState) -> bool:
        """Returns True if an environment is within an episode against the slot.

        Args:
            slot: Slot of the pool.
            hidden_state: This policy's hidden state of all environments.
        """
        return bool(((hidden_state[_SLOT] == slot) & ~hidden_state[_EPISODE_ENDED]).any())

    def state_dict(self) -> dict[str, Any]:
        """Returns {}: the parameters are part of the pool's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
