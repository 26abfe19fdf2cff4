"""Probes of action and observation spaces: continuous, multi-discrete and hybrid actions, image observations."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.device_constants import constant
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
    continuous_action,
    discrete_action,
    feature_space,
    filled,
    first_choice,
    random_label,
)
from coterie.envs.worlds.world import State


class ContinuousConfig(ProbeConfig):
    """Settings of probe/continuous."""

    target: float = Field(0.5, gt=-2, lt=2)
    """Best action, within -2 to 2."""
    follow: bool = False
    """Draw the best action from -1 to 1 and show it in the observation, instead of `target`."""


@final
class ContinuousProbe(ProbeWorld):
    """The reward is minus the squared distance of a number in [-2, 2] to the best one, which is inside the interval."""

    Config = ContinuousConfig

    def __init__(self, config: ContinuousConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Converge to the best number, inside the interval.",
            negative_control="A policy that drifts to a bound loses (2 - target)^2 or more.",
            best_return=0.0,
            random_return=-(4 / 3 + (1 / 3 if config.follow else config.target**2)),
            control_return=-13 / 3 if config.follow else -((2 - abs(config.target)) ** 2),
        )
        probe = ProbeSpec(
            name="continuous",
            reference=reference,
            observation_space=feature_space(1, -1.0),
            action_space=spaces.Box(-2.0, 2.0, (1,)),
            reset_noise_size=1,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        drawn = 2 * noise[:, 0] - 1
        return {"target": drawn if self.config.follow else torch.full_like(drawn, self.config.target)}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=-(action.continuous[..., 0] - state["target"][:, None]).square())

    def observation(self, state: State) -> Tensor:
        return (state["target"] if self.config.follow else filled(state, 1))[:, None, None]

    def best_action(self, state: State) -> ProbeAction:
        return continuous_action(state["target"][:, None, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, 0)


class FlatConfig(ProbeConfig):
    """Settings of probe/flat."""

    actions: Literal["discrete", "continuous"] = "discrete"
    """Type of the action: four choices, or a number in [-1, 1]."""
    reward: float = Field(default=1.0, ge=-(10**6), le=10**6)
    """Reward of every action."""


@final
class FlatProbe(StatelessProbe):
    """One step; every action gives the same reward."""

    Config = FlatConfig

    def __init__(self, config: FlatConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Prefer no action: with a learned temperature the entropy reaches its target.",
            negative_control="With a fixed temperature the entropy rises to that of the uniform policy; with a wrong "
            "sign it diverges from the target.",
            best_return=config.reward,
            random_return=config.reward,
        )
        self._continuous = config.actions == "continuous"
        space = spaces.Box(-1.0, 1.0, (1,)) if self._continuous else spaces.Discrete(4)
        super().__init__(ProbeSpec("flat", reference, feature_space(1), space), with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=filled(state, self.config.reward)[:, None])

    def best_action(self, state: State) -> ProbeAction:
        if self._continuous:
            return continuous_action(filled(state, 0)[:, None, None])
        return first_choice(state)


class MultiDiscreteConfig(BlindConfig):
    """Settings of probe/multi_discrete."""


@final
class MultiDiscreteProbe(ProbeWorld):
    """Three simultaneous choices among 3, 2 and 4; the observation shows the right ones.

    The reward is the fraction of right choices.
    """

    Config = MultiDiscreteConfig
    CHOICES = (3, 2, 4)

    def __init__(self, config: MultiDiscreteConfig, with_state: bool = False):
        self.config = config
        random = sum(1 / count for count in self.CHOICES) / len(self.CHOICES)
        reference = Reference(
            requirement="Make all components of an action right simultaneously.",
            negative_control="With env.blind=true all components are guesses. A log-probability of the first component "
            "only leaves the others random.",
            best_return=1.0,
            random_return=random,
            control_return=random,
        )
        probe = ProbeSpec(
            name="multi_discrete",
            reference=reference,
            observation_space=feature_space(9),
            action_space=spaces.MultiDiscrete(list(self.CHOICES)),
            reset_noise_size=3,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        return {"right": random_label(noise, constant(self.CHOICES, noise.device, torch.int64))}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=(action.discrete == state["right"][:, None]).float().mean(-1))

    def observation(self, state: State) -> Tensor:
        parts = [one_hot(x, count) for x, count in zip(state["right"].unbind(1), self.CHOICES, strict=True)]
        return (torch.cat(parts, dim=1).float() * (not self.config.blind))[:, None]

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(state["right"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, self.reference.random_return if self.config.blind else 1)


class HybridConfig(BlindConfig):
    """Settings of probe/hybrid."""


@final
class HybridProbe(SignProbe):
    """A choice of two and a number in [-1, 1]; the observation x is -1 or 1.

    The reward is 1 for the right choice (1 if x > 0, else 0), minus the squared distance of the number to x / 2.
    """

    Config = HybridConfig

    def __init__(self, config: HybridConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Make the choice and the number right simultaneously.",
            negative_control="With env.blind=true the best policy is a guess and the number 0.",
            best_return=1.0,
            random_return=1 / 2 - (1 / 3 + 1 / 4),
            control_return=1 / 2 - 1 / 4,
        )
        probe = ProbeSpec(
            name="hybrid",
            reference=reference,
            observation_space=feature_space(1, -1.0),
            action_space=spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))]),
            reset_noise_size=1,
        )
        super().__init__(probe, with_state)

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        x = state["x"][:, None]
        right = action.discrete[..., 0] == (x > 0)
        return ProbeOutcome(reward=right.float() - (action.continuous[..., 0] - x / 2).square())

    def best_action(self, state: State) -> ProbeAction:
        x = state["x"][:, None, None]
        return ProbeAction((x > 0).long(), x / 2)

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, 0.25 if self.config.blind else 1)


class ImageConfig(BlindConfig):
    """Settings of probe/image."""

    size: int = Field(16, ge=8, le=256)
    """Height and width of the image in pixels."""
    channels: int = Field(1, ge=1, le=4)
    """Number of channels, which are equal."""


@final
class ImageProbe(ProbeWorld):
    """A bright blob is in one quadrant of a gray image; the choice of that quadrant gives 1, others 0.

    Quadrants are 0 upper left, 1 upper right, 2 lower left, 3 lower right. Observation: uint8 [size, size, channels].
    """

    Config = ImageConfig

    def __init__(self, config: ImageConfig, with_state: bool = False):
        self.config = config
        reference = Reference(
            requirement="Act on the position of an object in an image.",
            negative_control="With env.blind=true the image is black and the choice is a guess.",
            best_return=1.0,
            random_return=0.25,
            control_return=0.25,
        )
        probe = ProbeSpec(
            name="image",
            reference=reference,
            observation_space=spaces.Box(0, 255, (config.size, config.size, config.channels), np.uint8),
            action_space=spaces.Discrete(4),
            reset_noise_size=4,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        quadrant = random_label(noise[:, 0], 4)
        corner = torch.stack((quadrant // 2, quadrant % 2), dim=-1) / 2
        # At least a tenth of the image away from the borders of the quadrant.
        position = (corner + 0.1 + 0.3 * noise[:, 1:3]) * self.config.size
        return {"quadrant": quadrant, "position": position, "gray": 80 * noise[:, 3]}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        return ProbeOutcome(reward=(action.discrete[..., 0] == state["quadrant"][:, None]).float())

    def observation(self, state: State) -> Tensor:
        if self.config.blind:
            shape = (len(state["step"]), 1, *self.probe.observation_space.shape)
            return torch.zeros(shape, dtype=torch.uint8, device=state["step"].device)
        pixel = torch.arange(self.config.size, device=state["position"].device) + 0.5
        y, x = ((pixel - position[:, None]).square() for position in state["position"].unbind(1))
        blob = torch.exp(-(y[:, :, None] + x[:, None, :]) / (2 * (0.08 * self.config.size) ** 2))
        gray = state["gray"][:, None, None]
        image = (gray + (255 - gray) * blob).round().to(torch.uint8)
        return image[:, None, :, :, None].expand(-1, -1, -1, -1, self.config.channels)

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(state["quadrant"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, 0.25 if self.config.blind else 1)
