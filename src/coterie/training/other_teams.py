"""Recording of other teams in the rollouts of teams whose global critics read them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.seeds import generator, restore
from coterie.core.specs import EnvSpec, TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, OtherTeams, Rollout, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.policies.base import Mode, Policy
from coterie.ranks.ranks import ONE, Ranks
from coterie.training.rollout_builder import zero_roles_obs
from coterie.training.trajectory import act, inference_context


class OtherTeamsRecorder:
    """Adds what other teams observed and chose to the rollouts of some teams.

    What a team chooses at the last timestep of a rollout is not known yet, so its policy chooses once more. The next
    rollout starts with the action that is taken there, which replaces this one in replay buffers.

    Args:
        spec: The environment.
        readers: Teams whose rollouts include other teams.
        seed: Seed of the noise at the last timestep.
        device: Device of rollouts.
        ranks: Ranks that collect together.
    """

    def __init__(self, spec: EnvSpec, readers: Collection[str], seed: int, device: torch.device, ranks: Ranks = ONE):
        self._ranks = ranks
        self.spec, self.readers = spec, frozenset(readers)
        self._noise = generator(seed, "other teams", device=device)

    def last_actions(
        self, env: VectorEnv, policies: dict[str, Policy], timestep: Timestep, hidden_state: dict[str, HiddenState]
    ) -> dict[str, Action]:
        """Returns actions of all teams by role [B, n, ..] at a timestep without taking them; {} without readers."""
        if not self.readers:
            return {}
        total = env.num_envs * self._ranks.size
        noise = {
            name: self._ranks.own_envs(policy.draw_noise(1, total, self._noise)[0], total)
            for name, policy in policies.items()
        }
        modes: dict[str, Mode] = dict.fromkeys(policies, "explore")
        with inference_context(env, policies.values()):
            actions, _, _ = act(policies, timestep, hidden_state, noise=noise, modes=modes)
        return actions

    def add(
        self, rollouts: dict[str, Rollout], policies: dict[str, Policy], observed: Timestep, visible: Tensor,
        actions: dict[str, Action], last: dict[str, Action],
    ) -> dict[str, Rollout]:  # fmt: skip
        """Returns the rollouts with the other teams of those teams that read them.

        Args:
            rollouts: Rollouts by team.
            policies: Policies by team.
            observed: All agents' timesteps [T + 1, B, ..].
            visible: [T + 1, B, agents] bool, whose observations count.
            actions: By role [T, B, n, ..].
            last: By role [B, n, ..], see `last_actions`.
        """
        if not self.readers:
            return rollouts
        chosen: Tree = tree_map(lambda x, y: torch.cat([x, y.unsqueeze(0)]), actions, last)
        seen = replace(observed, obs=zero_roles_obs(observed.obs, visible, self.spec))
        return {
            name: replace(rollout, others=other_teams(policies[name].team, seen, self.spec, chosen))
            if name in self.readers
            else rollout
            for name, rollout in rollouts.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the noise as an entry of the collector's state; {} without readers."""
        return {"other_teams": self._noise.get_state()} if self.readers else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the entry of the collector's state."""
        if self.readers:
            restore(self._noise, state["other_teams"])


def other_teams(
    team: TeamSpec, timestep: Timestep, spec: EnvSpec, actions: dict[str, Action] | None = None
) -> OtherTeams | None:
    """Returns the other teams' part of all agents' timestep [.., B, ..]; None if there are none."""
    if not team.other_roles:
        return None
    slices, names = spec.role_slices(), [role.name for role in team.other_roles]
    return OtherTeams(
        obs={name: timestep.obs[name] for name in names},
        action_mask={name: timestep.action_mask[name] for name in names if name in timestep.action_mask},
        alive=torch.cat([timestep.alive[..., slices[name]] for name in names], -1),
        action={} if actions is None else {name: actions[name] for name in names},
    )
