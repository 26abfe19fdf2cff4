"""HASAC: soft actor-critic for a team whose agents improve one after the other, each against the newest policies.

Critics know the actions of the whole team. At each gradient step, agents have turns in a new random order. An agent
maximizes the smaller Q of its own action together with its entropy, given actions of its teammates: those of agents
before it are sampled from their new policies, those of agents after it from the policies that they still have.

Source: Liu et al. 2024.
Differences: choices are not sampled by the Gumbel-softmax, whose gradient is biased: as in MASAC the critic has an
output per choice of an agent, so that the expectation over them is exact; agents of a role share the critics' network,
which reads their own observation and id; the target entropy of choices is a fraction of the largest one, where the
authors' code has 0; targets have one step by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities
from coterie.algos.sac import SAC, SACConfig, actor_loss
from coterie.algos.sequential import (
    Agent,
    create_agents,
    in_random_order,
    load_optimizer_states,
    optimizer_states,
    require_own_body,
    require_own_networks,
)
from coterie.config.needs import SEVERAL
from coterie.core.errors import UserError
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import Action, Rollout
from coterie.nets.config import BodyKind, ModuleFactory, NetworkConfig, ShareParams
from coterie.nets.single_agent import SingleAgentNetwork, alone
from coterie.nets.squashed_actions import PolicySample
from coterie.nets.team import Block
from coterie.policies.squashed import SquashedPolicy


class HASACConfig(SACConfig):
    """Settings of HASAC."""

    critic: Literal["joint", "state", "joint_state", "global"] = "joint"
    """Input of the critics besides the agent's own observation and the actions of the team: the joint observation
    (joint), the environment's state (state), or both (joint_state), or observations and actions of all teams (global).
    """
    share_params: Annotated[ShareParams, SEVERAL] = "none"
    """Agents have networks of their own (none), since the update of one must leave the others' policies unchanged."""
    common_reward: Annotated[bool, SEVERAL] = True
    """Agents learn from the mean reward of the team, for which improvement is guaranteed; false: from their own."""
    critic_agent_id: Annotated[bool | None, SEVERAL] = None
    """Append the agent's one-hot id to the input of the critics, whose network the agents of a role share; null: true.
    """
    learn_temperature: bool = True
    """Adjust the temperature so that the entropy of the policy reaches its target, separately for each agent."""

    # Networks of one agent read no ids, and the others' actions are those of their current policies.
    obs_agent_id: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    other_actions: ClassVar[str] = "current"  # pyright: ignore[reportIncompatibleVariableOverride]

    def network_config(self, team: TeamSpec) -> NetworkConfig:
        """Raises UserError if agents are to share parameters."""
        require_own_networks(self.share_params, instead="masac")
        return super().network_config(team)

    def critic_network_config(self, team: TeamSpec, *, per_agent: bool = True) -> NetworkConfig:
        network = super().critic_network_config(team, per_agent=per_agent)
        ids = team.n > 1 if self.critic_agent_id is None else self.critic_agent_id
        return replace(network, share_params="role", obs_agent_id=ids)

    def _body(self, name: str | None, setting: str) -> ModuleFactory | BodyKind | None:
        body = super(HASACConfig, self.model_copy(update={"share_params": "role"}))._body(name, setting)
        if setting == "algo.network":
            require_own_body(body, name, instead="masac")
        return body

    def temperature_sizes(self, blocks: tuple[Block, ...]) -> list[int]:
        """Returns how many consecutive agents share each temperature: one."""
        return [1] * sum(block.n for block in blocks)


def team_entropy_bonus(policy_entropy: Tensor, temperature: Tensor) -> Tensor:
    """Returns what the entropy of a team adds to the return of every agent [.., N].

        b = sum_i alpha_i H(pi_i)

    Args:
        policy_entropy: H(pi_i), 0 for dead agents [.., N].
        temperature: alpha_i [N].

    Source: Liu et al. 2024.
    """
    return (temperature * policy_entropy).sum(-1, keepdim=True).expand_as(policy_entropy)


class HASAC(SAC):
    """HASAC, see the module's description. The loop over agents is sequential by nature."""

    Config: ClassVar = HASACConfig
    base: ClassVar = "hasac"
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, off_policy=True, eval_mode="greedy")

    def __init__(self, config: HASACConfig, context: AlgorithmContext) -> None:
        if type(self).actor_losses is not SAC.actor_losses:
            raise UserError(
                f"{type(self).__name__}.actor_losses: has no effect in a class derived from HASAC, whose agents have "
                "losses of their own. Override agent_loss."
            )
        super().__init__(config, context)
        self._order = generator(context.seed, "agents")
        actors = [(block, self._single_agent(block)) for block in self.policy.blocks]
        self._agents: list[Agent[SingleAgentNetwork]] = create_agents(actors, config, ranks=self.ranks)

    def _single_agent(self, block: Block) -> SingleAgentNetwork:
        """Creates the network that the agents of a role use in turn."""
        config = replace(self.config.network_config(self.team), view="none")  # which only critics can read
        policy = SquashedPolicy(alone(self.team, block), config, torch.Generator(), self.device)
        return SingleAgentNetwork(policy.net, self.policy.net, block)

    @torch.no_grad()
    def sample_actions(self, rollout: Rollout) -> PolicySample:
        return super().sample_actions(rollout)

    def entropy_bonus(self, policy_entropy: Tensor, temperature: Tensor) -> Tensor:
        return team_entropy_bonus(policy_entropy, temperature)

    def _update_actor(
        self, rollout: Rollout, draw: PolicySample, temperature: Tensor, lr: Mapping[str, float | Tensor]
    ) -> Tensor:
        critics, valid = self.nets.critics, self.valid_mask(rollout, of_critic=False)
        loss_t, mean_entropy = self.temperature_terms(draw, valid)
        critics.requires_grad_(False)
        obs, state, first, alive = self.critic_inputs(rollout, slice(0, -1))
        features = critics.encode(obs, state, first)
        action = tree_map(lambda x: x[:-1], draw.action) | self._others_taken(rollout)
        # Agents in a new order
        reports, order = [], in_random_order(self._agents, self._order)
        for agent in order:
            own, noise = part_of(agent, rollout), tree_map(lambda x: x[:-1], agent.of_role(draw.noise, 2))
            with agent.actor.of(agent.inside) as net:
                proposal = self.sample_with_noise(net, own, noise)
                q = critics.of_agent(agent.index, features, replaced(action, agent, proposal.action), alive).amin(0)
                loss = self.agent_loss(q, proposal, agent.of_team(temperature, 0), agent.of_team(valid, 2))
                grad_norm = agent.optimizer.step(loss, lr)[0]
                reports.append(torch.stack([loss.detach(), grad_norm]))
                if agent is not order[-1]:
                    with torch.no_grad():
                        action = replaced(action, agent, self.sample_with_noise(net, own, noise).action)
        critics.requires_grad_(True)
        # Temperature
        if self.config.learn_temperature:
            self.nets.temperature_optimizer.step(loss_t, lr)
        loss, grad_norm = torch.stack(reports).mean(0)
        return torch.stack([loss, loss_t.detach(), mean_entropy, temperature.mean(), grad_norm])

    def agent_loss(self, q: Tensor, proposal: PolicySample, temperature: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss of an agent [], see `actor_loss`; for subclasses to override.

        Args:
            q: The smaller Q of the two critics for each of its choices [L, S, 1, A], given the actions of the others.
            proposal: Its policy and the action that it would take.
            temperature: Its temperature [1].
            valid: [L, S, 1] bool, entries that it learns from.
        """
        return actor_loss(q, proposal.prob, proposal.entropy, temperature, valid, reduction=self.reduction)

    def state_dict(self) -> dict[str, Any]:
        optimizers = {"agents": optimizer_states(self._agents, self.team)}
        return super().state_dict() | {"policy_optimizer": optimizers, "order": self._order.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"policy_optimizer": {"policy": {}}})
        load_optimizer_states(self._agents, self.team, state["policy_optimizer"]["agents"])
        restore(self._order, state["order"])


def part_of(agent: Agent, rollout: Rollout) -> Rollout:
    """Returns a rollout with what the policy of one agent reads at the timesteps that it learns from [L, S, 1, ..]."""
    obs, action_mask, first = tree_map(lambda x: x[:-1], (rollout.obs, rollout.action_mask, rollout.first))
    return replace(
        rollout,
        obs=agent.of_role(obs, 2),
        action_mask=agent.of_role(action_mask, 2),
        first=agent.of_team(first, 2),
        hidden_state=agent.of_team(rollout.hidden_state, 1),
    )


def replaced(action: dict[str, Action], agent: Agent, own: dict[str, Action]) -> dict[str, Action]:
    """Returns actions by role [.., n, ..] with those of one agent replaced by its `own` [.., 1, ..]."""
    role, k = agent.block.name, agent.inside

    def with_own(x: Tensor, new: Tensor) -> Tensor:
        return torch.cat([x[..., :k, :], new, x[..., k + 1 :, :]], -2)

    return action | {role: tree_map(with_own, action[role], own[role])}
