"""Probes with several agents: agent identity, additive values, credit assignment, death, joint actions."""

from __future__ import annotations

from typing import final

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.device_constants import constant
from coterie.envs.worlds.probe.probe import (
    ProbeAction,
    ProbeConfig,
    ProbeOutcome,
    ProbeSpec,
    ProbeWorld,
    Reference,
    StatelessProbe,
    continuous_action,
    discrete_action,
    feature_space,
    filled,
)
from coterie.envs.worlds.world import State


class RolesConfig(ProbeConfig):
    """Settings of probe/roles."""

    agents: int = Field(2, ge=2, le=1000)
    """Number of agents, and of choices of each."""


@final
class RolesProbe(StatelessProbe):
    """All agents have equal observations; agent i receives 1 for choice i and 0 for others."""

    Config = RolesConfig

    def __init__(self, config: RolesConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Agents with equal observations act differently, by their identity.",
            negative_control="With algo.obs_agent_id=false and shared parameters all agents have one policy, which is "
            "right for one of them only.",
            best_return=float(config.agents),
            random_return=1.0,
            control_return=1.0,
        )
        probe = ProbeSpec(
            name="roles",
            reference=reference,
            observation_space=feature_space(1),
            action_space=spaces.Discrete(config.agents),
            agents=config.agents,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        agent = torch.arange(self.config.agents, device=action.discrete.device)
        return ProbeOutcome(reward=(action.discrete[..., 0] == agent).float())

    def best_action(self, state: State) -> ProbeAction:
        agent = torch.arange(self.config.agents, device=state["step"].device)
        return discrete_action(agent.expand(len(state["step"]), -1))


class AdditiveConfig(ProbeConfig):
    """Settings of probe/additive."""


@final
class AdditiveProbe(StatelessProbe):
    """The group receives the sum of the values of both agents' choices: 0, 1, 2 for agent 0 and 3, 0, 1 for agent 1.

    Agents observe their identity.
    """

    Config = AdditiveConfig
    VALUES = ((0.0, 1.0, 2.0), (3.0, 0.0, 1.0))
    """Value of each agent's choices."""

    def __init__(self, config: AdditiveConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Decompose the reward: a sum of individual values is exact for all nine joint actions, and "
            "each agent finds its best choice.",
            negative_control="For matrix/monotonic, the best sum of individual values has a large error.",
            best_return=5.0,
            random_return=7 / 3,
        )
        probe = ProbeSpec(
            name="additive",
            reference=reference,
            observation_space=feature_space(2),
            action_space=spaces.Discrete(3),
            agents=2,
            has_group_reward=True,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        values = constant(self.VALUES, action.discrete.device, torch.float32).expand(len(action.discrete), -1, -1)
        return ProbeOutcome(group_reward=values.gather(2, action.discrete).sum((1, 2)))

    def observation(self, state: State) -> Tensor:
        return _agent_ids(state, 2)

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(torch.tensor([2, 0], device=state["step"].device).expand(len(state["step"]), -1))


class IrrelevantConfig(ProbeConfig):
    """Settings of probe/irrelevant."""


@final
class IrrelevantProbe(StatelessProbe):
    """The group receives 1 for agent 0's choice 1 and -1 for its other choice. Agent 1's choices have no effect."""

    Config = IrrelevantConfig

    def __init__(self, config: IrrelevantConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Assign credit: the counterfactual advantage of agent 1 is 0 for every choice.",
            negative_control="The reward minus its mean, used as advantage, changes agent 1's policy at random.",
            best_return=1.0,
            random_return=0.0,
        )
        probe = ProbeSpec(
            name="irrelevant",
            reference=reference,
            observation_space=feature_space(2),
            action_space=spaces.Discrete(2),
            agents=2,
            has_group_reward=True,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(group_reward=2.0 * action.discrete[:, 0, 0] - 1)

    def observation(self, state: State) -> Tensor:
        return _agent_ids(state, 2)

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(torch.tensor([1, 0], device=state["step"].device).expand(len(state["step"]), -1))


class SacrificeConfig(ProbeConfig):
    """Settings of probe/sacrifice."""

    length: int = Field(4, ge=2, le=10**6)
    """Steps per episode; the group is rewarded in the last one."""
    lure: float = Field(0.5, ge=0, lt=1)
    """Immediate reward of agent 0 for staying."""


@final
class SacrificeProbe(ProbeWorld):
    """In the first step, agent 0 stays (choice 0) and receives the lure, or dies (choice 1).

    If it dies, the group receives 1 at the end. Later choices, and those of agent 1, have no effect. Observation:
    identity (two features), elapsed fraction of the episode, and 1 if agent 0 has died.
    """

    Config = SacrificeConfig

    def __init__(self, config: SacrificeConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="An agent terminates early so that its team is rewarded after its death.",
            negative_control="Without bootstrapping past the agent's own death, staying looks better and the team gets "
            "the lure.",
            best_return=1.0,
            random_return=(1 + config.lure) / 2,
            control_return=config.lure,
        )
        probe = ProbeSpec(
            name="sacrifice",
            reference=reference,
            observation_space=feature_space(4),
            action_space=spaces.Discrete(2),
            agents=2,
            episode_length=config.length,
            has_group_reward=True,
            agents_can_die=True,
            alive=_alive,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        return {"dead": torch.zeros(len(noise), dtype=torch.bool, device=noise.device)}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        first, last = state["step"] == 0, state["step"] == self.config.length - 1
        dies = first & (action.discrete[:, 0, 0] == 1)
        never = torch.zeros_like(dies)
        return ProbeOutcome(
            reward=torch.stack((self.config.lure * (first & ~dies).float(), never.float()), dim=1),
            group_reward=(last & state["dead"]).float(),
            state_changes={"dead": state["dead"] | dies},
            agent_terminated=torch.stack((dies, never), dim=1),
        )

    def observation(self, state: State) -> Tensor:
        progress = torch.stack((state["step"] / self.config.length, state["dead"].float()), dim=-1)
        return torch.cat((_agent_ids(state, 2), progress[:, None].expand(-1, 2, -1)), dim=-1)

    def best_action(self, state: State) -> ProbeAction:
        dies = (state["step"] == 0).long()
        return discrete_action(torch.stack((dies, torch.zeros_like(dies)), dim=1))

    def best_value(self, state: State, gamma: float) -> Tensor:
        """Staying is better if gamma^(length - 1) is less than the lure."""
        group_reward = filled(state, gamma) ** (self.config.length - 1 - state["step"])
        return torch.where(state["step"] == 0, group_reward.clamp(min=self.config.lure), group_reward * state["dead"])


def _alive(state: State) -> Tensor:
    return torch.stack((~state["dead"], torch.ones_like(state["dead"])), dim=1)


class SumConfig(ProbeConfig):
    """Settings of probe/sum."""

    agents: int = Field(2, ge=2, le=1000)
    """Number of agents."""


@final
class SumProbe(StatelessProbe):
    """Each agent chooses a number in [-1, 1]; the group reward is minus the squared distance of their sum from 1."""

    Config = SumConfig

    def __init__(self, config: SumConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Coordinate continuous actions so that they add up to 1.",
            negative_control="If every agent chooses 1 on its own, the return is -(agents - 1)^2.",
            best_return=0.0,
            random_return=-(config.agents / 3 + 1),
            control_return=-float((config.agents - 1) ** 2),
        )
        probe = ProbeSpec(
            name="sum",
            reference=reference,
            observation_space=feature_space(config.agents),
            action_space=spaces.Box(-1.0, 1.0, (1,)),
            agents=config.agents,
            has_group_reward=True,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(group_reward=-(action.continuous.sum((1, 2)) - 1).square())

    def observation(self, state: State) -> Tensor:
        return _agent_ids(state, self.config.agents)

    def best_action(self, state: State) -> ProbeAction:
        share = filled(state, 1 / self.config.agents)
        return continuous_action(share[:, None, None].expand(-1, self.config.agents, -1))


def _agent_ids(state: State, agents: int) -> Tensor:
    """Returns the agents' identities as one-hot vectors: [B, N, N]."""
    agent = torch.arange(agents, device=state["step"].device)
    return one_hot(agent, agents).float().expand(len(state["step"]), -1, -1)
