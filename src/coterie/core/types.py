"""Data of a rollout: actions, timesteps, step results, and the rollout of a team.

Dimensions in shape comments: T timesteps, B environments, N agents of a team (or of the environment before it is split
into teams), n agents of a role, A choices, D features, S state features, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree

HiddenState = dict[str, Tensor]
"""Hidden state of a recurrent policy by name [B, N, H]: `h`, and `c` for an LSTM; {} for feed-forward policies."""


TIME_LEFT = "time left"
"""Name of a state that collectors add to rollouts where the step limit is known: the fraction of it that is left."""


@register_pytree
@dataclass(frozen=True)
class Action:
    """Actions of the agents of one role.

    Attributes:
        discrete: [.., n, K] int64, the index chosen in each discrete component; None without.
        continuous: [.., n, C] float32 in [-1, 1]; None without.
    """

    discrete: Tensor | None = None
    continuous: Tensor | None = None


@register_pytree
@dataclass(frozen=True)
class OtherTeams:
    """The M agents of the other teams, which global critics read. Their order is that of `TeamSpec.other_roles`.

    Attributes:
        obs: By role [.., n, ..], zero for dead agents.
        action_mask: By role [.., n, sum A] bool, as in `Timestep`.
        alive: [.., M] bool.
        action: By role [.., n, ..], chosen at this timestep; those of a final timestep are ignored by the environment.
            {} before they are chosen.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    alive: Tensor
    action: dict[str, Action]

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries of tensors, which checkpoints can store."""
        return vars(self) | {"action": {role: vars(action) for role, action in self.action.items()}}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> OtherTeams:
        """Returns what `to_dict` was called on."""
        action = {role: Action(**action) for role, action in state["action"].items()}
        return cls(obs=state["obs"], action_mask=state["action_mask"], alive=state["alive"], action=action)


@register_pytree
@dataclass(frozen=True)
class Timestep:
    """Observations of all environments at one time.

    Attributes:
        obs: By role [B, n, ...]; a dictionary of sensors where the observation space is a Dict.
        action_mask: By role [B, n, sum A] bool, True where a choice is available. Roles whose choices are always
            available have no entry.
        state: By name [B, S], `global` or a group's own.
        alive: [B, N] bool, True where the agent exists at this timestep.
        first: [B, N] bool, True at the first timestep of an agent. Recurrent networks reset its hidden state before
            they read the timestep.
        acted: [B] bool, False at the final timestep of an episode, whose action is ignored.
        others: The other teams, in a team's part of a timestep that a global critic reads; else None.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    state: dict[str, Tensor]
    alive: Tensor
    first: Tensor
    acted: Tensor
    others: OtherTeams | None = None

    def team(self, team: TeamSpec) -> Timestep:
        """Returns the team's part: its own roles and agents, and every state."""
        if team.is_entire_env:
            return self
        agents = slice(team.start, team.stop)
        return replace(
            self,
            obs={role.name: self.obs[role.name] for role in team.roles},
            action_mask={
                role.name: self.action_mask[role.name] for role in team.roles if role.name in self.action_mask
            },
            alive=self.alive[:, agents],
            first=self.first[:, agents],
        )


@register_pytree
@dataclass(frozen=True)
class Step:
    """Result of one environment step. Zero and False for environments that were at a final timestep.

    Attributes:
        reward: [B, N], individual rewards.
        group_reward: [B, G], rewards given once to a group.
        terminated: [B, N] bool, True where the agent's episode was ended by the task.
        truncated: [B, N] bool, True where it was ended by a limit; never together with `terminated`.
        episode_terminated: [B] bool, the same for the environment's episode.
        episode_truncated: [B] bool, the same for the environment's episode.
        metrics: By name [B].
        lost: [B] bool, True where the result is unknown because a worker failed: the episode is dropped, and the next
            timestep begins another. None if nothing was lost.
    """

    reward: Tensor
    group_reward: Tensor
    terminated: Tensor
    truncated: Tensor
    episode_terminated: Tensor
    episode_truncated: Tensor
    metrics: dict[str, Tensor]
    lost: Tensor | None = None


@register_pytree
@dataclass(frozen=True)
class Rollout:
    """Experience of one team: `T` timesteps of `B` environments and one more to bootstrap from.

    The true successor of timestep t is timestep t + 1 wherever `acted[t]`.

    Attributes:
        obs, action_mask, state, alive, first, acted: As in `Timestep`, with a leading axis of T + 1 timesteps.
        action: By role [T, B, n, ..].
        extras: Outputs of the policy besides the action, by name [T, B, N], e.g. `log_prob`.
        hidden_state: Hidden state of the policy before the first timestep, by name [B, N, H].
        reward, terminated, truncated: [T, B, N].
        group_reward: [T, B, G], the groups of the team.
        episode_terminated, episode_truncated: [T, B].
        streams: Reward signals that do not come from the environment, by name [T, B, N].
        others: The other teams [T + 1, B, ..], for learners with a global critic; else None. Their actions at the last
            timestep were chosen for it, but not taken yet.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    state: dict[str, Tensor]
    alive: Tensor
    first: Tensor
    acted: Tensor
    action: dict[str, Action]
    extras: dict[str, Tensor]
    hidden_state: dict[str, Tensor]
    reward: Tensor
    group_reward: Tensor
    terminated: Tensor
    truncated: Tensor
    episode_terminated: Tensor
    episode_truncated: Tensor
    streams: dict[str, Tensor] = field(default_factory=dict)
    others: OtherTeams | None = None

    @property
    def rollout_length(self) -> int:
        """Number of timesteps T, without the one to bootstrap from."""
        return self.reward.shape[0]

    @property
    def num_envs(self) -> int:
        """Number of environments B."""
        return self.reward.shape[1]
