"""Off-policy learners: their gradient steps on samples, their state, and the construction of their replay buffer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.base_config import BATCH_SIZE, OffPolicyConfig
from coterie.algos.graphed import Step
from coterie.algos.optimizer import Optimizer, TargetNetwork, scheduled
from coterie.algos.other_teams import OtherTeamsReader
from coterie.algos.replay.buffer import ReplayBuffer, ReplaySample
from coterie.algos.replay.checkpoint import ReplayCheckpoint
from coterie.algos.replay.memory import describe
from coterie.algos.replay.spec import ReplaySpec
from coterie.algos.scaled_rewards import ScaledRewardLearner
from coterie.core.seeds import restore
from coterie.core.specs import RoleSpec
from coterie.core.types import HiddenState
from coterie.functional.statistics import (
    root_mean_square,
)


class OffPolicyLearner(ScaledRewardLearner):
    """A learner with a replay buffer, and its state in checkpoints.

    Attributes:
        buffer: The replay buffer.
        generator: Draws the noise of updates; None for updates without noise.
    """

    buffer: ReplayBuffer
    generator: torch.Generator | None = None

    def __init__(self, config: OffPolicyConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        assert config.gradient_steps is not None  # derived
        assert config.batch_size is not None
        self._gradient_steps, self._batch_size = config.gradient_steps, config.batch_size
        self._learning_starts, self._priority_beta = config.learning_starts, config.priority_beta
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
        self.notes = (size, *config.skipped_timesteps(self.team, self.rollout_length))

    def _create_step(
        self,
        step: Step,
        optimizers: Sequence[Optimizer],
        modules: Sequence[nn.Module],
        targets: Sequence[TargetNetwork],
        *,
        others: OtherTeamsReader | None = None,
    ) -> None:
        """Makes `_learn` take this gradient step: as a CUDA graph or as a trace if these are used.

        It is neither if it reads other teams, whose policies need not act by tensors only.

        Args:
            step: The gradient step.
            optimizers: Optimizers that take it.
            modules: Modules that it evaluates or changes, besides target networks.
            targets: Target networks that it reads and updates.
            others: The other teams that it reads; None for none.
        """
        if others is not None and others.roles:
            self._step_function = step
            if self.cuda_graphs:
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
            reads=self._reward_tensors,
            generators=() if self.generator is None else (self.generator,),
        )

    def _reward_tensors(self) -> list[Tensor]:
        return list((self.reward_moments or {}).values())

    def _samples(self, progress: float) -> Iterator[ReplaySample]:
        """Yields the samples of the gradient steps of an update, none while steps or stored sequences are too few."""
        if self._steps >= self._learning_starts and self.buffer.num_sequences >= self._batch_size:
            self.buffer.priority_beta = scheduled("linear", self._priority_beta, 1.0, progress)
            yield from self.buffer.samples(self._batch_size, self._gradient_steps)

    def _learn(self, sample: ReplaySample, lr: dict[str, float], *flags: bool) -> tuple[Tensor, ...]:
        """Takes a gradient step on a sample, and updates its priorities. Returns the step's reports.

        Args:
            sample: The sample.
            lr: Learning rates by module.
            flags: Further arguments of the step.
        """
        reports, error = self._step_function(sample, lr, *flags)
        if error is not None:
            self.buffer.update_priorities(sample.index, error)
        self._updates += 1
        return reports

    def _replay_metrics(self) -> dict[str, float]:
        """Returns size and age of the replay buffer, and the number of gradient steps, without reading the device."""
        return {
            "replay/sequences": float(self.buffer.num_sequences),
            "replay/age": self.buffer.mean_age,
            "replay/updates": float(self._updates),
        }

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
    start = config.sequences_start(context.team, rollout_length)
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
