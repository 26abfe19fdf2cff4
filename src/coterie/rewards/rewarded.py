"""A learner whose team is rewarded by signals beside its environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie import registry
from coterie.algos.algorithm import Algorithm
from coterie.algos.onpolicy import group_members, live, paid
from coterie.algos.streams import EXTRINSIC, Stream
from coterie.errors import UserError
from coterie.math.losses import masked_moments
from coterie.metrics import declare
from coterie.policy import Policy
from coterie.rewards.config import RewardsConfig, SignalConfig
from coterie.rewards.signal import RewardSignal, reward_metrics
from coterie.seeds import seed_of
from coterie.types import TeamSpec, Window

declare(*reward_metrics("extrinsic", "what the environment pays"))


def streams_of(config: RewardsConfig) -> tuple[Stream, ...]:
    """What a team is rewarded for, what the environment pays first."""
    parts = {EXTRINSIC.name: config.extrinsic} | config.signals
    return tuple(
        Stream(
            name,
            part.strength,
            part.gamma,
            part.episodic if isinstance(part, SignalConfig) else True,
            part.strength_schedule,
            part.strength_end,
        )
        for name, part in parts.items()
    )


def compose(
    cls: Any, algo: str, team: TeamSpec, params: Any, config: RewardsConfig, copies: int, horizon: int | None,
    seed: int, device: torch.device, rewarded: bool = True,
) -> Algorithm:  # fmt: skip
    """The learner of a team that is rewarded so; `algo` names its class in messages. Without its signals if not
    `rewarded`: for acting and judging.

    UserError where the team learns nothing, and for what the algorithm cannot do.
    """
    if not cls.capabilities.learns:
        raise UserError(
            f"team '{team.name}' is given rewards, and algo={algo} learns nothing: leave out rewards.* and "
            f"teams.{team.name}.rewards.*, or choose an algorithm that learns"
        )
    streams = streams_of(config)
    if cls.capabilities.streams:
        learner = cls(team, params, copies, horizon, seed, device, streams=streams)
    else:
        require_one_discount(team.name, algo, params.gamma, streams)
        learner = cls(team, params, copies, horizon, seed, device)
    if not rewarded:
        return learner
    signals = {
        name: registry.signal(name)(team, part, copies, seed_of(seed, "reward", name), device)
        for name, part in config.signals.items()
    }
    return Rewarded(learner, signals, streams)


def require_one_discount(team: str, algo: str, gamma: float, streams: tuple[Stream, ...]) -> None:
    """UserError for another discount than the algorithm's `gamma`, which it has for all rewards."""
    for stream in streams:
        if stream.gamma is not None and stream.gamma != gamma:
            raise UserError(
                f"rewards.{stream.name}.gamma={stream.gamma} of team '{team}' wants a value for each reward, and "
                f"algo={algo} learns from their sum with algo.gamma={gamma}: leave it out, or use ppo, ippo, mappo or "
                "poca"
            )


def mixed(window: Window, weights: dict[str, float], earned: dict[str, Tensor]) -> Window:
    """The window as an algorithm with one value gets it: agents earn the weighted sum, groups their weighted own.

    weights: by name, `extrinsic` among them; earned: by name [T, B, N].
    """
    reward = window.reward * weights["extrinsic"]
    for name, own in earned.items():
        reward = reward + weights[name] * own
    return replace(window, reward=reward, group_reward=window.group_reward * weights["extrinsic"])


class Rewarded(Algorithm):
    """Rewards every window by the team's signals, hands it to the learner, and lets the signals learn from it.

    A learner with streams gets each signal's rewards beside the environment's; another gets their weighted sum in the
    place of it, which its replay stores. Evaluation and `rollout/return_mean` never see them.
    """

    def __init__(self, learner: Algorithm, signals: dict[str, RewardSignal], streams: tuple[Stream, ...]):
        self.learner, self.signals, self.streams = learner, signals, streams
        self.capabilities = learner.capabilities  # pyright: ignore[reportAttributeAccessIssue]
        self.horizon, self.notes = learner.horizon, learner.notes
        self._team = learner.policy.team
        if signals and not learner.capabilities.streams:
            self.notes += (
                f"{' and '.join(signals)}: added to what the environment pays, with its discount and its ends: the "
                "algorithm has one value for all rewards",
            )
        self._members: Tensor | None = None

    @property
    def policy(self) -> Policy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The learner's."""
        return self.learner.policy

    def update(self, window: Window, progress: float) -> dict[str, float]:
        earned = {name: signal.reward(window) for name, signal in self.signals.items()}
        weights = {stream.name: stream.weight(progress) for stream in self.streams}
        if self.learner.capabilities.streams:
            given = replace(window, streams=earned)
        else:
            given = mixed(window, weights, earned)
        metrics = self.learner.update(given, progress)
        for signal in self.signals.values():
            metrics |= signal.update(window)
        return metrics | self._statistics(window, earned) | {f"reward/{k}_strength": w for k, w in weights.items()}

    def _statistics(self, window: Window, earned: dict[str, Tensor]) -> dict[str, float]:
        """Mean and spread of every reward over the steps of those who acted. One read by the host."""
        if self._members is None:
            self._members = group_members(self._team).to(window.reward.device)
        rewards = {"extrinsic": paid(window, self._members, self._team.paid_by_group, False)} | earned
        acted = live(window)
        found = torch.stack([torch.stack(masked_moments(reward, acted)) for reward in rewards.values()]).tolist()
        metrics = {}
        for name, (mean, variance) in zip(rewards, found, strict=True):
            metrics |= {f"reward/{name}_mean": mean, f"reward/{name}_std": variance**0.5}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict() | {"rewards": {name: s.state_dict() for name, s in self.signals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        for name, signal in self.signals.items():
            signal.load_state_dict(state["rewards"][name])
