"""Pareto-AC: actor-critic whose agents assume that the others respond best to their action, for no-conflict games.

Where an action is good only if the others play along, agents that explore learn to avoid it, and settle for an
equilibrium that is safe. In games in which all agents prefer the same joint actions, the others will play along. Each
agent has a critic of its own choices given the actions of the others, and the advantage of a choice is its value with
those actions of the others that are best for it.

Source: Christianos et al. 2023, Pareto Actor-Critic for Equilibrium Selection in Multi-Agent Reinforcement Learning.
Differences: among responses of nearly equal value, agents expect those that the others are likely to choose, without
which nothing makes them agree on one of several optima; truncated episodes and the end of a rollout are bootstrapped,
the latter by the average over the agent's choices; the gradient of the policy is that of PPO, which is the actor-critic
gradient in a single step per rollout. All joint actions of the others are evaluated, at most MAX_RESPONSES of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import one_hot

from coterie.algos.algorithm import AlgorithmContext, Capabilities, central_inputs
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.algos.ppo import PPO, Batch, PPOConfig
from coterie.config.needs import Needs
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import HiddenState, Rollout
from coterie.functional.policy_gradient import choice_log_probs
from coterie.functional.returns import agent_rewards, bootstrap_masks, lambda_return, n_step_return, present_agents
from coterie.functional.statistics import Reduction, masked_mean
from coterie.nets.choice_critics import CounterfactualCritic
from coterie.nets.config import ShareParams
from coterie.nets.joint_actions import JointAction, pad_by_agent, unpad_by_role
from coterie.nets.team import join_choices

MAX_RESPONSES = 4_096
"""Joint actions of the other agents that are evaluated per timestep and agent, at most."""
LEAST = 1e-8
"""Least probability of a choice in the comparison of responses."""
ROWS = 2**18
"""Rows of the joint-action critic that are evaluated at once."""


class PACConfig(PPOConfig):
    """Settings of Pareto-AC."""

    critic: Literal["joint", "state", "joint_state"] = "joint"
    """Input of the critics: the joint observation of the team, the environment's state, or both."""
    share_params: ShareParams = "none"
    return_steps: int | None = Field(10, ge=1, le=10_000)
    """Rewards per target before it bootstraps; null: lambda-returns, see `gae_lambda`."""
    gae_lambda: Annotated[float, Needs("return_steps=null")] = Field(0.95, ge=0, le=1)
    """Lambda of the targets of both critics."""
    tau: Annotated[float, Needs("target_update_interval=null")] = Field(0.01, gt=0, le=1)
    """Fraction of the soft update of the target critic."""
    target_update_interval: int | None = Field(None, ge=1, le=10**12)
    """Gradient steps between hard updates of the target critic; null: a soft update after each step."""
    tie_break: float = Field(0.05, ge=0, le=10**6)
    """Weight of the log-probability of the others' actions in the choice of their best response, in standard deviations
    of returns where values are normalized: among nearly equal ones, likely responses are expected. 0: as published.
    """
    entropy_fraction: Annotated[float, Needs("entropy_coef!=0"), Needs("entropy_schedule!=constant")] = Field(
        0.8, gt=0, le=1
    )
    """Fraction of the run at which the entropy bonus reaches its final weight."""


def best_response_values(q: Tensor, legal: Tensor) -> Tensor:
    """Value of every choice if the other agents respond best to it.

        Q*_i(s, a) = max_{u_-i} Q_i(s, a, u_-i)    over the actions u_-i that are available

    Args:
        q: Q_i for joint actions of the others [E, .., N, A].
        legal: [E, .., N] bool, True where all others can take the joint action; in at least one of E.

    Returns:
        [.., N, A].

    Source: Christianos et al. 2023, eq. 5.
    """
    return q.masked_fill(~legal.unsqueeze(-1), float("-inf")).amax(0)


def joint_critic_loss(
    q: Tensor, taken: Tensor, target: Tensor, valid: Tensor | None, reduction: Reduction | None = None
) -> Tensor:
    """Loss of the joint-action critic.

        L = mean (Q_i(s, u_i, u_-i) - G_i)^2 / 2    over valid entries

    Args:
        q: Q_i of every choice given the actions of the others [.., N, A].
        taken: [.., N, A], 1 at the choice taken, else 0.
        target: G [.., N], without gradient.
        valid: [.., N] bool; None: everywhere.
        reduction: Processes whose entries the mean is over; None for this one's.
    """
    return masked_mean(0.5 * ((q * taken).sum(-1) - target).square(), valid, reduction)


class Responses:
    """All joint actions that the other agents of each agent can respond with, E per agent.

    Args:
        team: The team; all agents have one discrete choice.
        device: Device of the networks.

    Raises:
        UserError: If an agent's others have more than MAX_RESPONSES joint actions.
    """

    def __init__(self, team: TeamSpec, device: torch.device):
        self.joint = JointAction(team, device)
        sizes = [role.action.mask_size for role in team.roles for _ in role.agents]
        counts = [prod(sizes) // size for size in sizes]
        if max(counts) > MAX_RESPONSES:
            raise UserError(
                f"algo=pac: evaluates all joint actions of the other agents, and team '{team.name}' has "
                f"{max(counts):,} of them, more than {MAX_RESPONSES:,}. Use fewer agents or choices, or algo=maa2c."
            )
        tables = []
        for agent in range(team.n):
            choices = [torch.arange(1 if j == agent else size) for j, size in enumerate(sizes)]
            combined = torch.cartesian_prod(*choices).reshape(-1, team.n)
            parts = [
                one_hot(column, size) * (j != agent)
                for j, (column, size) in enumerate(zip(combined.T, sizes, strict=True))
            ]
            table = torch.cat(parts, -1).float()
            tables.append(table[torch.arange(max(counts)).remainder(len(table))])  # repetitions change no maximum
        self.table = torch.stack(tables, 1).to(device)
        """[E, N, J], the agent's own entries zero."""

    @torch.no_grad()
    def best(
        self,
        critic: CounterfactualCritic,
        obs: dict[str, Tree],
        state: Tensor | None,
        mask: Tensor,
        alive: Tensor,
        bonus: Tensor | None = None,
    ) -> Tensor:
        """Returns the value of every choice with the best response [.., N, A], see `best_response_values`.

        Args:
            critic: The joint-action critic.
            obs: Observations by role [.., n, ..], as networks read them.
            state: [.., S], or None.
            mask: Available choices of all agents one after the other [.., J] bool.
            alive: [.., N] bool; the actions of dead agents are zeros.
            bonus: What choices of all agents [.., J] add to the values of the responses that they are part of.
        """
        present, found = alive[..., self.joint.owner].unsqueeze(-2), None
        for part in self.table.split(max(1, ROWS // alive.numel())):  # bounds memory
            table = part.reshape(len(part), *(1,) * (alive.ndim - 1), *part.shape[1:])  # [E, .., N, J]
            legal = ~((table > 0) & ~mask.unsqueeze(-2)).any(-1)
            others = torch.where(present, table, 0.0)
            q = critic.given_others(obs, state, others)
            if bonus is not None:
                q = q + (others * bonus.unsqueeze(-2)).sum(-1, keepdim=True)
            best = best_response_values(q, legal)
            found = best if found is None else torch.maximum(found, best)
        assert found is not None
        return found


class PAC(PPO):
    """Pareto-AC, see the module's description. `critic` is V_i(s), `joint_critic` Q_i(s, u_-i)."""

    Config: ClassVar = PACConfig
    base: ClassVar = "pac"
    capabilities: ClassVar = Capabilities(actions=frozenset({"discrete"}), images=True)
    reported: ClassVar = (*PPO.reported, "loss/critic")

    def __init__(self, config: PACConfig, context: AlgorithmContext) -> None:
        self.responses = Responses(context.team, context.device)
        super().__init__(config, context)
        self.joint_critic: CounterfactualCritic = self._joint_critic
        self._joint_optimizer = Optimizer({"value": self.joint_critic}, *config.adam_settings, ranks=self.ranks)
        self.target = TargetNetwork(self.joint_critic, config.tau, config.target_update_interval)
        self._create_step(self._joint_optimizer, targets=(self.target,))

    def _build_critic(self, signals: int, weights: torch.Generator) -> nn.Module:
        config, critic = self.config, super()._build_critic(signals, weights)
        inputs = central_inputs(config.critic, self.team, self._state.size)
        network = replace(config.critic_network_config(self.team), rnn="none", joint=True)
        joint = CounterfactualCritic(self.team, network, weights, self.device, inputs=inputs, reads_last_action=False)
        self._joint_critic = joint.to(self.device)
        return critic

    def _coefficients(self, progress: float) -> dict[str, float]:
        config: Any = self.config
        entropy = super()._coefficients(min(1.0, progress / config.entropy_fraction))["entropy"]
        return super()._coefficients(progress) | {"entropy": entropy}

    def advantages(self, rollout: Rollout, value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Returns advantages and targets of both critics.

        G_t = r_t + .. + gamma^n max_{u_-i} Q'_i(s_{t+n}, u_{i,t+n}, u_-i)
        A_t = max_{u_-i} [Q_i(s_t, u_{i,t}, u_-i) + k log pi_-i(u_-i)] - V_i(s_t),    k = `tie_break`

        Returns of an agent continue after its death, so both critics also learn from timesteps in which it is dead and
        others of the team act.
        """
        config: Any = self.config
        team, target_critic = self.team, cast(CounterfactualCritic, self.target.module)
        obs, alive = self.policy.obs_normalizer.of_rollout(rollout), present_agents(rollout)
        state, mask = self._state(rollout.state), self._joint_mask(rollout)
        taken = pad_by_agent(self.responses.joint.encode(rollout.action))  # [T, B, N, A]
        probs = self._probs(rollout, obs)
        mean, std = self.value_scale()
        best = self.responses.best(target_critic, obs, state, mask, alive) * std + mean
        weight = torch.cat([taken, probs[-1:]])  # the last actions are not known
        terminated, boundary = bootstrap_masks(rollout, True, team.agents_can_die)
        ends = {"terminated": terminated, "boundary": boundary, "gamma": config.gamma}
        reward = agent_rewards(rollout, self._membership, team.has_group_reward, self._common_reward)
        following = (best * weight).sum(-1)[1:]
        if config.return_steps is None:
            target = lambda_return(reward, following, **ends, td_lambda=config.gae_lambda)
        else:
            target = n_step_return(reward, following, **ends, n=config.return_steps)
        likely = config.tie_break * self.responses.joint.join(unpad_by_role(team, probs)).clamp_min(LEAST).log()
        now = tree_map(lambda x: x[:-1], (obs, state, mask, alive, likely))
        hoped = self.responses.best(self.joint_critic, *now) * std + mean
        advantage = (hoped * taken).sum(-1) - value[:-1, ..., 0]
        return advantage.unsqueeze(-1), target.unsqueeze(-1)

    def _joint_mask(self, rollout: Rollout) -> Tensor:
        """Available choices of all agents one after the other [T + 1, B, J] bool."""
        parts, lead = [], rollout.alive.shape[:-1]
        for role in self.team.roles:
            mask = rollout.action_mask.get(role.name)
            size = role.n * role.action.mask_size
            parts.append(rollout.alive.new_ones(*lead, size) if mask is None else mask.flatten(-2))
        return torch.cat(parts, -1)

    @torch.no_grad()
    def _probs(self, rollout: Rollout, obs: dict[str, Tree]) -> Tensor:
        """Probabilities of every agent's choices [T + 1, B, N, A]."""
        net, recurrent = self.policy.net, self._recurrent
        outputs, _ = net(obs, rollout.first if recurrent else None, rollout.hidden_state if recurrent else {})
        probs = {}
        for block in net.blocks:
            mask = block.join_masks(rollout.action_mask)
            probs[block.name] = choice_log_probs(block.action_spec, outputs[block.name], mask).exp()
        return join_choices(probs, net.blocks, 0.0)

    def _step(
        self, batch: Batch, hidden_state: dict[str, HiddenState], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        report = super()._step(batch, hidden_state, coefficients)
        # Joint-action critic
        joint = self.responses.joint
        actions = joint.encode(batch.action)
        joint_action = joint.join(actions)
        if batch.valid is not None:
            joint_action = joint.mask_absent(joint_action, batch.valid)
        q = self.joint_critic(batch.obs, batch.state, joint_action, None)
        loss = joint_critic_loss(q, pad_by_agent(actions), batch.target[..., 0], batch.critic_valid, self.reduction)
        self._joint_optimizer.step(loss, {"value": coefficients["value"]})
        self.target.update()
        return torch.cat([report, loss.detach().reshape(1)])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "joint_critic": self.joint_critic.state_dict(),
            "joint_optimizer": self._joint_optimizer.state_dict(),
            "target": self.target.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.joint_critic.load_state_dict(state["joint_critic"])
        self._joint_optimizer.load_state_dict(state["joint_optimizer"])
        self.target.load_state_dict(state["target"])
