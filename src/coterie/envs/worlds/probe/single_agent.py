"""Probes with one agent: values, discounting, actions, observations, limits, masks, memory."""

from __future__ import annotations

from typing import final

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.worlds.probe.probe import (
    BlindConfig,
    ProbeAction,
    ProbeConfig,
    ProbeOutcome,
    ProbeSpec,
    ProbeWorld,
    Reference,
    SignProbe,
    StatelessProbe,
    discrete_action,
    feature_space,
    filled,
    first_choice,
    random_label,
)
from coterie.envs.worlds.world import State


class ConstantConfig(ProbeConfig):
    """Settings of probe/constant."""

    reward: float = Field(default=1.0, ge=-(10**6), le=10**6)
    """Reward of the only step."""


@final
class ConstantProbe(StatelessProbe):
    """One step, one observation, one reward."""

    Config = ConstantConfig

    def __init__(self, config: ConstantConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Learn that the value of the only timestep is the reward.",
            negative_control="Bootstrapping past the end of the episode gives values other than the reward.",
            best_return=config.reward,
            random_return=config.reward,
        )
        super().__init__(ProbeSpec("constant", reference, feature_space(1), spaces.Discrete(2)), with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=filled(state, self.config.reward)[:, None])

    def best_action(self, state: State) -> ProbeAction:
        return first_choice(state)


class ObservationConfig(BlindConfig):
    """Settings of probe/observation."""


@final
class ObservationProbe(SignProbe):
    """One step; the reward equals the observation, -1 or 1."""

    Config = ObservationConfig

    def __init__(self, config: ObservationConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Learn a value that depends on the observation: -1 or 1.",
            negative_control="With env.blind=true every value is 0, an error of 1 in every timestep.",
            best_return=0.0,
            random_return=0.0,
        )
        probe = ProbeSpec("observation", reference, feature_space(1, -1.0), spaces.Discrete(2), reset_noise_size=1)
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=state["x"][:, None])

    def best_action(self, state: State) -> ProbeAction:
        return first_choice(state)

    def best_value(self, state: State, gamma: float) -> Tensor:
        return state["x"] * (not self.config.blind)


class DelayedConfig(ProbeConfig):
    """Settings of probe/delayed."""

    length: int = Field(2, ge=2, le=10**6)
    """Steps per episode; the last one gives a reward of 1."""


@final
class DelayedProbe(StatelessProbe):
    """The last step gives a reward of 1. The agent observes the number of the step."""

    Config = DelayedConfig

    def __init__(self, config: DelayedConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Discount: the value falls by a factor of gamma for every step before the reward.",
            negative_control="With gamma=1, or a target without gamma, the first value is 1.",
            best_return=1.0,
            random_return=1.0,
        )
        probe = ProbeSpec(
            name="delayed",
            reference=reference,
            observation_space=feature_space(config.length),
            action_space=spaces.Discrete(2),
            episode_length=config.length,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=(state["step"] == self.config.length - 1).float()[:, None])

    def observation(self, state: State) -> Tensor:
        last = self.config.length - 1  # the final timestep looks like the one before
        return one_hot(state["step"].clamp(max=last), self.config.length).float()[:, None]

    def best_action(self, state: State) -> ProbeAction:
        return first_choice(state)

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, gamma) ** (self.config.length - 1 - state["step"])


class ActionConfig(ProbeConfig):
    """Settings of probe/action."""

    choices: int = Field(2, ge=2, le=1000)
    """Number of choices."""
    good: int = Field(1, ge=0, le=1000)
    """Choice with a reward of 1; the others give -1."""


@final
class ActionProbe(StatelessProbe):
    """One step, one observation; one choice gives a reward of 1, the others -1."""

    Config = ActionConfig

    def __init__(self, config: ActionConfig, with_state: bool = False):
        self.config = config
        if config.good >= config.choices:
            raise ValueError(f"env.good={config.good}: no such choice. Expected 0 to {config.choices - 1}.")
        reference = Reference(
            requirement="Select the rewarded choice.",
            negative_control="An update with the wrong sign selects another choice.",
            best_return=1.0,
            random_return=2 / config.choices - 1,
            control_return=-1.0,
        )
        super().__init__(ProbeSpec("action", reference, feature_space(1), spaces.Discrete(config.choices)), with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=torch.where(action.discrete[..., 0] == self.config.good, 1.0, -1.0))

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(torch.full_like(state["step"], self.config.good)[:, None])


class BothConfig(BlindConfig):
    """Settings of probe/both."""


@final
class BothProbe(SignProbe):
    """One step; the observation, -1 or 1, determines which of two choices gives a reward of 1. The other gives -1."""

    Config = BothConfig

    def __init__(self, config: BothConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Select the choice that fits the observation.",
            negative_control="With env.blind=true every policy has a mean return of 0.",
            best_return=1.0,
            random_return=0.0,
            control_return=0.0,
        )
        probe = ProbeSpec("both", reference, feature_space(1, -1.0), spaces.Discrete(2), reset_noise_size=1)
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=state["x"][:, None] * (2 * action.discrete[..., 0] - 1))

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action((state["x"] > 0).long()[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, not self.config.blind)


class EndlessConfig(ProbeConfig):
    """Settings of probe/endless."""

    episode_limit: int = Field(10, ge=1, le=10**9)
    """Steps after which an episode is truncated."""
    terminate_at_limit: bool = False
    """Negative control: report the limit as a termination."""


@final
class EndlessProbe(StatelessProbe):
    """Every step gives a reward of 1 forever. A limit that agents cannot observe truncates episodes."""

    Config = EndlessConfig

    def __init__(self, config: EndlessConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Bootstrap at truncation: the value of every timestep is 1 / (1 - gamma).",
            negative_control="With env.terminate_at_limit=true, or a learner that treats truncation as termination, "
            "the value stays well below.",
            best_return=float(config.episode_limit),
            random_return=float(config.episode_limit),
        )
        probe = ProbeSpec(
            name="endless",
            reference=reference,
            observation_space=feature_space(1),
            action_space=spaces.Discrete(2),
            episode_length=config.episode_limit,
            truncates=not config.terminate_at_limit,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=filled(state, 1)[:, None])

    def best_action(self, state: State) -> ProbeAction:
        return first_choice(state)

    def best_value(self, state: State, gamma: float) -> Tensor:
        """Returns 1 / (1 - gamma), or the remaining discounted reward, given the step, if the limit terminates."""
        if not self.config.terminate_at_limit:
            return filled(state, 1 / (1 - gamma))
        return (1 - filled(state, gamma) ** (self.config.episode_limit - state["step"])) / (1 - gamma)


class MaskedConfig(ProbeConfig):
    """Settings of probe/masked."""

    length: int = Field(2, ge=1, le=10**6)
    """Steps per episode; in each, the best choice is masked with probability 1/2."""


@final
class MaskedProbe(ProbeWorld):
    """Choices give rewards of 0, 0.5 and 1. In half of the timesteps the last one is masked and gives -1 if selected.

    The observation is 1 if it is masked, else 0.
    """

    Config = MaskedConfig

    def __init__(self, config: MaskedConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Select the best legal choice, and estimate successor values over legal choices only.",
            negative_control="A maximum over all choices, including masked ones, overestimates values. Selecting "
            "masked choices gives a mean return of 0.",
            best_return=0.75 * config.length,
            random_return=0.375 * config.length,
            control_return=0.0,
        )
        probe = ProbeSpec(
            name="masked",
            reference=reference,
            observation_space=feature_space(1),
            action_space=spaces.Discrete(3),
            episode_length=config.length,
            reset_noise_size=1,
            step_noise_size=1,
            metrics=("illegal",),
            action_mask=_legal_choices,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        return {"masked": noise[:, 0] < 0.5, "illegal": torch.zeros_like(noise[:, 0])}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        choice = action.discrete[:, 0, 0]
        illegal = state["masked"] & (choice == 2)
        illegal_fraction = state["illegal"] + illegal.float() / self.config.length
        reward = torch.where(illegal, -1.0, 0.5 * choice)
        changes = {"masked": noise[:, 0] < 0.5, "illegal": illegal_fraction}
        return ProbeOutcome(reward=reward[:, None], state_changes=changes)

    def observation(self, state: State) -> Tensor:
        return state["masked"].float()[:, None, None]

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action((2 - state["masked"].long())[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        discounts = torch.tensor([sum(gamma**t for t in range(1, left)) for left in range(self.config.length + 1)])
        remaining = (self.config.length - state["step"]).clamp(min=0)
        return 1 - 0.5 * state["masked"].float() + 0.75 * discounts.to(remaining.device)[remaining]


def _legal_choices(state: State) -> Tensor:
    legal = torch.ones_like(state["masked"])
    return torch.stack((legal, legal, ~state["masked"]), -1)[:, None]


class MemoryConfig(ProbeConfig):
    """Settings of probe/memory."""

    delay: int = Field(1, ge=0, le=10**6)
    """Steps between the cue and the question; with 0 the cue is still visible and no memory is needed."""
    cues: int = Field(2, ge=2, le=1000)
    """Number of cues, and of answers."""


@final
class MemoryProbe(ProbeWorld):
    """The first timestep shows a cue and the last one asks for it: the right answer gives 1, a wrong one -1.

    Observation: the cue as a one-hot vector (zeros after the first timestep), and 1 in the timestep of the question.
    """

    Config = MemoryConfig

    def __init__(self, config: MemoryConfig, with_state: bool = False):
        self.config = config
        guess = 2 / config.cues - 1
        reference = Reference(
            requirement="Remember an earlier observation until it is needed.",
            negative_control="A feedforward policy can only guess.",
            best_return=1.0,
            random_return=guess,
            control_return=guess if config.delay else 1.0,
        )
        probe = ProbeSpec(
            name="memory",
            reference=reference,
            observation_space=feature_space(config.cues + 1),
            action_space=spaces.Discrete(config.cues),
            episode_length=config.delay + 1,
            reset_noise_size=1,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        return {"cue": random_label(noise[:, 0], self.config.cues)}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        answer = torch.where(action.discrete[:, 0, 0] == state["cue"], 1.0, -1.0)
        return ProbeOutcome(reward=torch.where(state["step"] == self.config.delay, answer, 0.0)[:, None])

    def observation(self, state: State) -> Tensor:
        cue = one_hot(state["cue"], self.config.cues).float() * (state["step"] == 0)[:, None]
        question = (state["step"] >= self.config.delay).float()
        return torch.cat((cue, question[:, None]), dim=1)[:, None]

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(state["cue"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, gamma) ** (self.config.delay - state["step"])
