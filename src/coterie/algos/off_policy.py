"""Off-policy learners: their settings, the construction of their replay buffer, and their state in checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext, group_membership, learns_common_reward
from coterie.algos.base_config import Derived, LearnerConfig, RunFacts, Units
from coterie.algos.graphed import Step
from coterie.algos.learner import Learner
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.algos.other_teams import OtherTeamsReader
from coterie.algos.replay.buffer import ReplayBuffer
from coterie.algos.replay.checkpoint import ReplayCheckpoint
from coterie.algos.replay.memory import describe
from coterie.algos.replay.spec import ReplaySpec, SequenceStart, Storage
from coterie.config.needs import SEVERAL, Needs
from coterie.config.schema import Count
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import restore
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.types import HiddenState
from coterie.functional.statistics import (
    Moments,
    initial_moments,
    mean_and_std,
    root_mean_square,
    update_moments,
)

declare(
    Metric("replay/sequences", "", "sequences in the replay buffer", better=None, combine="sum"),
    Metric("replay/age", "step", "mean age of the steps in the replay buffer", better=None, combine="mean"),
    Metric("replay/updates", "", "gradient steps since the start of the run", better=None, combine="max"),
    Metric(
        "replay/reward_scale",
        "reward",
        "root mean square of rewards, by which they are divided: values in rewards are this times the logged ones",
        better=None,
        combine="mean",
    ),
    Metric("loss/td", "", "temporal-difference loss", better="down", combine="mean"),
    Metric("loss/critic", "", "temporal-difference loss of the critics", better="down", combine="mean"),
    Metric("loss/temperature", "", "loss of the logarithm of the temperature", better=None, combine="mean"),
    Metric("policy/temperature", "", "coefficient of the entropy in the return", better=None, combine="mean"),
    Metric(
        "policy/noise_std",
        "",
        "standard deviation of the exploration noise; actions are in [-1, 1]",
        better=None,
        combine="last",
    ),
)


MOST_STEPS, LEAST_STEPS = 64, 16
"""Environment steps per gradient step in long and in short runs."""
GRADIENT_STEPS = 5_000
"""Gradient steps of a run of a length between them."""
BATCH_SIZE, RECURRENT_BATCH_SIZE = 256, 32
"""Sequences per gradient step by default."""


class OffPolicyConfig(LearnerConfig):
    """Settings that off-policy learners share."""

    rollout_length: int = Field(32, ge=1, le=10**6)
    hidden_sizes: tuple[Units, ...] = Field((128, 128), min_length=1)
    gradient_steps: int | None = Field(None, ge=1, le=100_000)
    """Gradient steps after each rollout; null: one per 64 environment steps of the rollout, or up to one per 16 in runs
    that would otherwise take fewer than 5,000; at least one.
    """
    batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Sequences per gradient step; a feed-forward network of Q-learning or DDPG learns from the first timestep of each.
    null: 256, or 32 for recurrent networks.
    """
    buffer_size: Count = Field(100_000, ge=1, le=10**12)
    """Capacity of the replay buffer in environment steps."""
    buffer_storage: Storage = "device"
    """Location of the replay buffer: the networks' device, the host's memory (cpu), or memory-mapped files (disk)."""
    learning_starts: Count = Field(1_000, ge=0, le=10**15)
    """Environment steps before the first update."""
    priority_alpha: float = Field(0.0, ge=0, le=1)
    """Exponent of the priorities by which sequences are sampled; 0 samples uniformly."""
    priority_beta: Annotated[float, Needs("priority_alpha!=0")] = Field(0.4, ge=0, le=1)
    """Initial exponent of the importance weights; it increases linearly to 1 over the run."""
    tau: Annotated[float, Needs("target_update_interval=null")] = Field(0.01, gt=0, le=1)
    """Fraction of the online network in each soft update of the target networks."""
    target_update_interval: int | None = Field(None, ge=1, le=10**12)
    """Gradient steps between hard updates of the target networks; null: a soft update after each gradient step."""
    burn_in: Annotated[int, Needs("rnn!=none")] = Field(0, ge=0, le=100_000)
    """Timesteps before the training sequence that only warm up the hidden state of a recurrent network."""
    sequence_start: Annotated[Literal["auto", "episode", "rollout"], Needs("rnn!=none")] = "auto"
    """First timestep of training sequences of recurrent networks: that of an episode, with a zero hidden state, or that
    of a rollout, with the hidden state of the policy that collected it. auto: episode if no episode is longer than a
    sequence, else rollout.
    """
    common_reward: Annotated[bool, SEVERAL] = False
    """Each agent receives the mean of its team's rewards."""
    reward_scale: Literal["none", "rms", "standardize"] = "rms"
    """Divide rewards by their running root mean square (rms), or subtract their running mean and divide by their
    standard deviation (standardize), which changes the optimal policy where episodes differ in length.
    """

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.gradient_steps is None:
            found["gradient_steps"] = _gradient_steps(run)
        if self.batch_size is None and self.recurrent:
            found["batch_size"] = Derived(RECURRENT_BATCH_SIZE, "networks are recurrent")
        elif self.batch_size is None:
            found["batch_size"] = Derived(BATCH_SIZE, "networks are not recurrent")
        return found


class OffPolicyLearner(Learner):
    """A learner with a replay buffer, and its state in checkpoints.

    Attributes:
        buffer: The replay buffer.
        generator: Draws the noise of updates; None for updates without noise.
        reward_moments: Moments of all rewards; None if rewards are not scaled. They are changed in place, since CUDA
            graphs read them where they are.
    """

    buffer: ReplayBuffer
    generator: torch.Generator | None = None
    reward_moments: Moments | None = None

    def __init__(self, config: OffPolicyConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        assert config.gradient_steps is not None  # derived
        assert config.batch_size is not None
        self._gradient_steps, self._batch_size = config.gradient_steps, config.batch_size
        self._membership = group_membership(context.team).to(context.device)
        self._common_reward = learns_common_reward(config, context.team)
        self._reward_scale = config.reward_scale
        if config.reward_scale != "none":
            self.reward_moments = initial_moments(1, context.device)
        self._steps, self._updates = 0, 0

    def _create_buffer(
        self,
        config: OffPolicyConfig,
        context: AlgorithmContext,
        n_step: int,
        states: tuple[str, ...],
        *,
        others: OtherTeamsReader | None = None,
    ) -> None:
        """Creates the replay buffer, and the user's notes on it.

        It stores the states of these names, and the other teams that `others` reads.
        """
        hidden_state = self.policy.initial_hidden_state(context.num_envs)
        other_roles = () if others is None else others.roles
        self.buffer = make_replay_buffer(
            config, context, n_step=n_step, states=states, hidden_state=hidden_state, other_roles=other_roles
        )
        self._replay_checkpoint = ReplayCheckpoint(self.buffer)
        size = describe(self.buffer.spec, self.buffer.nbytes)
        self.notes = (size, *skipped_timesteps(config, self.team, self.rollout_length))

    def _create_step(
        self,
        step: Step,
        optimizers: Sequence[Optimizer],
        modules: Sequence[nn.Module],
        targets: Sequence[TargetNetwork],
        *,
        others: OtherTeamsReader | None = None,
    ) -> None:
        """Makes `_learn` take this gradient step: as a CUDA graph if these are used.

        It is not captured if it reads other teams, whose policies need not act by tensors only.

        Args:
            step: The gradient step.
            optimizers: Optimizers that take it.
            modules: Modules that it evaluates or changes, besides target networks.
            targets: Target networks that it reads and updates.
            others: The other teams that it reads; None for none.
        """
        if self.cuda_graphs and others is not None and others.roles:
            self._step_function = step
            self.notes += (
                f"cuda_graphs=on: gradient steps of team {self.team.name} are not captured: its critic reads other "
                "teams",
            )
            return
        self._step_function = self._captured(
            step,
            optimizers=optimizers,
            modules=modules,
            targets=targets,
            reads=lambda: list((self.reward_moments or {}).values()),
            generators=() if self.generator is None else (self.generator,),
        )

    def _learn(self, lr: dict[str, float], *flags: bool) -> tuple[Tensor, ...]:
        """Takes a gradient step on a sample, and updates its priorities. Returns the step's reports.

        Args:
            lr: Learning rates by module.
            flags: Further arguments of the step.
        """
        sample = self.buffer.sample(self._batch_size)
        reports, error = self._step_function(sample, lr, *flags)
        if error is not None:
            self.buffer.update_priorities(sample.index, error)
        self._updates += 1
        return reports

    def _scaled(self, reward: Tensor) -> Tensor:
        """Returns rewards [..] on the scale that values are learned on."""
        if self._reward_scale == "none" or self.reward_moments is None:
            return reward
        if self._reward_scale == "standardize":
            mean, std = mean_and_std(self.reward_moments)
            return (reward - mean) / std
        return reward / root_mean_square(self.reward_moments)

    def _add_rewards(self, reward: Tensor, valid: Tensor) -> None:
        """Adds rewards [..] to their statistics where `valid` [..] is True, once per reward, when it is collected."""
        if self.reward_moments is None:
            return
        for name, value in update_moments(self.reward_moments, reward.unsqueeze(-1), valid, self.reduction).items():
            self.reward_moments[name].copy_(value)

    def _replay_metrics(self) -> dict[str, float]:
        """Returns the size and age of the replay buffer, without reading the device."""
        return {"replay/sequences": float(self.buffer.num_sequences), "replay/age": self.buffer.mean_age}

    def _scale_metrics(self) -> dict[str, Tensor]:
        """Returns the number by which rewards are divided [], if they are."""
        if self._reward_scale != "rms" or self.reward_moments is None:
            return {}
        return {"replay/reward_scale": root_mean_square(self.reward_moments)[0]}

    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """Returns the parts with a state of their own besides the replay buffer, by their names in checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        state = {name: part.state_dict() for name, part in self._parts().items()}
        state["buffer"] = self._replay_checkpoint.state_dict()
        if self.reward_moments is not None:
            state["reward_moments"] = {name: x.clone() for name, x in self.reward_moments.items()}
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        return state | {"steps": self._steps, "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self._replay_checkpoint.load_state_dict(state["buffer"])
        if self.reward_moments is not None:
            self.reward_moments = {name: x.to(self.device, copy=True) for name, x in state["reward_moments"].items()}
        if self.generator is not None:
            restore(self.generator, state["generator"])
        self._steps, self._updates = state["steps"], state["updates"]


def _gradient_steps(run: RunFacts) -> Derived:
    """Returns the gradient steps after each rollout."""
    per_step = MOST_STEPS if run.steps is None else min(MOST_STEPS, max(LEAST_STEPS, run.steps / GRADIENT_STEPS))
    return Derived(max(1, round(run.rollout_steps / per_step)), f"one per {per_step:.3g} steps of a rollout")


def make_replay_buffer(
    config: OffPolicyConfig,
    context: AlgorithmContext,
    *,
    n_step: int,
    states: tuple[str, ...],
    hidden_state: HiddenState,
    other_roles: tuple[RoleSpec, ...] = (),
) -> ReplayBuffer:
    """Creates the replay buffer: of sequences of `n_step` steps, or of training sequences for recurrent networks.

    Args:
        config: Settings of the learner.
        context: Team, environments and device.
        n_step: Rewards per target of a feed-forward network.
        states: Names of the environment states to store.
        hidden_state: Hidden state of the policy, by name [B, N, H].
        other_roles: Roles of other teams to store.
    """
    rollout_length = context.rollout_length or config.rollout_length
    start = _sequence_start(config, context.team, rollout_length)
    recurrent_length = config.burn_in + (config.sequence_length or rollout_length)
    return ReplayBuffer(
        ReplaySpec(
            team=context.team,
            num_envs=context.num_envs,
            rollout_length=rollout_length,
            capacity=-(-config.buffer_size // context.ranks.size),
            sequence_length=recurrent_length if config.recurrent else n_step,
            sequence_start=start,
            states=states,
            other_roles=other_roles,
            storage=config.buffer_storage,
            hidden_state=hidden_state if start == "rollout" else {},
            min_sequences=-(-(config.batch_size or BATCH_SIZE) // context.ranks.size),
            priority_alpha=config.priority_alpha,
            priority_beta=config.priority_beta,
            seed=context.seed,
            device=context.device,
            ranks=context.ranks,
        )
    )


def _sequence_start(config: OffPolicyConfig, team: TeamSpec, rollout_length: int) -> SequenceStart:
    if not config.recurrent:
        return "timestep"
    if config.sequence_start != "auto":
        return config.sequence_start
    limit = team.episode_limit
    whole = config.burn_in == 0 and limit is not None and limit <= (config.sequence_length or rollout_length)
    return "episode" if whole else "rollout"


def skipped_timesteps(config: OffPolicyConfig, team: TeamSpec, rollout_length: int) -> tuple[str, ...]:
    """Returns lines for the user on timesteps that are never learned from."""
    if not config.recurrent:
        return ()
    learned, limit, lines = config.sequence_length or rollout_length, team.episode_limit, []
    if _sequence_start(config, team, rollout_length) == "rollout":
        if learned < rollout_length:
            lines.append(
                f"algo.sequence_length={learned}: sequences start with rollouts of {rollout_length} timesteps, and "
                f"only the first {learned} are learned from. Omit it, or set algo.rollout_length={learned}."
            )
        return tuple(lines)
    if limit is not None and limit > learned:
        lines.append(
            f"algo.sequence_length={learned}: episodes have up to {limit} steps, and those after step {learned} are "
            f"never learned from. Set algo.sequence_length={limit} or algo.sequence_start=rollout."
        )
    if config.burn_in:
        lines.append(
            f"algo.burn_in={config.burn_in}: the first {config.burn_in} steps of each episode only warm up the hidden "
            f"state and are never learned from. Set algo.sequence_start=rollout, or omit algo.burn_in."
        )
    return tuple(lines)
