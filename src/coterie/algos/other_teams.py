"""Other teams as a global critic reads them: their observations, their actions, and their next actions in targets.

The critics of Lowe et al. 2017 (MADDPG) read observations and actions of all agents of a mixed or competitive game. An
update therefore needs what the other teams observed and did, which the rollout has (`Rollout.others`), and for targets
that bootstrap from Q what they would do next. These next actions come from

- the other team's target policy, if its learner has one (DDPG and its variants), as in Lowe et al. 2017;
- else its current policy, if the team learns;
- else the rollout: the actions that the team chose at the next timestep. These are exact samples of a policy that does
  not learn. They are also used for recurrent policies, whose hidden state is not stored, and in self-play, where
  snapshots act.

No gradient flows into other teams, and nothing of theirs is changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import Algorithm, central_inputs
from coterie.core.seeds import generator, restore
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, OtherTeams, Timestep
from coterie.nets.joint_actions import encode_actions, mask_by_role
from coterie.nets.team import Block, ObservationNormalizer
from coterie.policies.base import Policy
from coterie.ranks.ranks import ONE, Ranks


class OtherTeamsReader:
    """Prepares other teams for the global critic of one team.

    All methods return empty results for a critic that does not read other teams, and if there are none.

    Args:
        critic: Setting `algo.critic`.
        team: The team of the critic.
        device: Device of the networks.
        normalize_obs: Normalize the other teams' observations by statistics of their own.
        seed: Seed of the team.
        target_policies: Next actions come from target policies where there are some; False: from current policies.
        ranks: Ranks that train the team together.

    Attributes:
        roles: Roles that the critic reads.
        policies: Policies that choose next actions; teams without one use those of the rollout.
    """

    def __init__(
        self,
        critic: str,
        team: TeamSpec,
        device: torch.device,
        *,
        normalize_obs: bool,
        seed: int,
        target_policies: bool = True,
        ranks: Ranks = ONE,
    ):
        self.roles = central_inputs(critic, team, 0).other_roles
        self.policies: tuple[Policy, ...] = ()
        self._target_policies, self._ranks = target_policies, ranks
        self._normalizer = ObservationNormalizer(_blocks(self.roles) if normalize_obs else (), device)
        self._slices = {block.name: slice(block.start, block.stop) for block in _blocks(self.roles)}
        self._noise = generator(seed, "other teams", device=device)

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """Modules whose buffers `obs` reads."""
        return (self._normalizer.scales,)

    def connect(self, algorithms: Sequence[Algorithm]) -> None:
        """Makes next actions come from the policies of these teams, where they can be evaluated at any timestep."""
        policies = [next_action_policy(algorithm, target=self._target_policies) for algorithm in algorithms]
        self.policies = tuple(policy for policy in policies if policy is not None)

    def obs(self, others: OtherTeams | None) -> dict[str, Tree]:
        """Returns observations by role [.., n, ..] as the critic reads them."""
        if not self.roles:
            return {}
        assert others is not None, "the collector does not record other teams for this learner"
        return self._normalizer(others.obs)

    def actions(self, others: OtherTeams | None) -> dict[str, Action]:
        """Returns the actions of the rollout by role [.., n, ..]."""
        return {} if others is None or not self.roles else others.action

    @torch.no_grad()
    def next_actions(self, others: OtherTeams | None) -> dict[str, Action]:
        """Returns actions by role [.., n, ..] for targets, see the module."""
        actions = dict(self.actions(others))
        for policy in self.policies:
            assert others is not None
            actions |= self._act(policy, others)
        return actions

    def _act(self, policy: Policy, others: OtherTeams) -> dict[str, Action]:
        """Samples actions of a team at any number of timesteps [.., B, ..]."""
        lead = others.alive.shape[:-1]
        flat = tree_map(lambda x: x.flatten(0, len(lead) - 1), others)
        names = [role.name for role in policy.team.roles]
        alive = torch.cat([flat.alive[:, self._slices[name]] for name in names], -1)
        timestep = Timestep(
            obs={name: flat.obs[name] for name in names},
            action_mask={name: flat.action_mask[name] for name in names if name in flat.action_mask},
            state={},
            alive=alive,
            first=torch.zeros_like(alive),
            acted=torch.ones_like(alive[:, 0]),
        )
        count = len(alive)
        noise = self._ranks.draw(
            lambda n: tree_map(
                lambda x: x.unflatten(0, (-1, n)), policy.draw_noise(1, count // lead[-1] * n, self._noise)[0]
            ),
            own=lead[-1],
            axis=1,
        )
        noise = tree_map(lambda x: x.flatten(0, 1), noise)
        action, _, _ = policy.act(timestep, policy.initial_hidden_state(count), noise, "sample")
        return tree_map(lambda x: x.unflatten(0, lead), action)

    def encode(self, actions: dict[str, Action], others: OtherTeams | None) -> dict[str, Tensor]:
        """Returns actions by role as vectors [.., n, P], zero for agents that are not alive."""
        if others is None or not self.roles:
            return {}
        vectors = {role.name: encode_actions(role.action, actions[role.name]) for role in self.roles}
        return mask_by_role(vectors, self.roles, others.alive)

    def with_alive(self, alive: Tensor, others: OtherTeams | None) -> Tensor:
        """Appends the agents of other teams to `alive` [.., N]: [.., N + M]."""
        return alive if others is None or not self.roles else torch.cat([alive, others.alive], -1)

    def update(self, others: OtherTeams | None, acted: Tensor) -> None:
        """Updates the statistics of observations with a rollout [T + 1, B, ..] where `acted` [T + 1, B]."""
        if others is not None:
            obs, alive = tree_map(lambda x: x[:-1], (others.obs, others.alive))
            self._normalizer.update(obs, alive & acted[:-1].unsqueeze(-1), self._ranks.reduction)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as an entry of the learner's; {} if no other teams are read."""
        if not self.roles:
            return {}
        return {"other_teams": {"noise": self._noise.get_state(), "moments": self._normalizer.state_dict()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the entry of a learner's state."""
        if not self.roles:
            return
        own = state["other_teams"]
        restore(self._noise, own["noise"])
        self._normalizer.load_state_dict(own["moments"])


class GlobalCriticLearner(ABC):
    """An algorithm whose critic can read other teams.

    Attributes:
        others: The other teams as its critic reads them.
    """

    others: OtherTeamsReader


class TargetPolicyLearner(ABC):
    """An algorithm with a target policy."""

    @abstractmethod
    def policy_of_targets(self, *, target: bool) -> Policy:
        """Returns a policy without exploration that acts with the present target networks, or the online networks."""


def next_action_policy(algorithm: Algorithm, *, target: bool) -> Policy | None:
    """Returns the policy that chooses a team's next actions in the targets of other teams.

    None for a team that does not learn, and for a policy with a hidden state.
    """
    if not algorithm.capabilities.learns:
        return None
    policy = algorithm.policy
    if isinstance(algorithm, TargetPolicyLearner):
        policy = algorithm.policy_of_targets(target=target)
    return None if policy.initial_hidden_state(1) else policy


def _blocks(roles: tuple[RoleSpec, ...]) -> tuple[Block, ...]:
    """One block per role, whose agents follow one another."""
    blocks, start = [], 0
    for role in roles:
        blocks.append(Block(role.name, (role,), start, start + role.n))
        start += role.n
    return tuple(blocks)
