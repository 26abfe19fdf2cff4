"""On-policy learners: their settings, their metrics, and the loop over the samples of a rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.base_config import CriticConfig, Derived, RunFacts, Units
from coterie.algos.learner import Learner
from coterie.algos.minibatches import minibatch_indices, select_envs
from coterie.algos.optimizer import Schedule
from coterie.config.needs import CONTINUOUS, Needs
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.types import Rollout
from coterie.nets.config import Activation
from coterie.policies.stochastic import StochasticPolicy

NUM_MINIBATCHES = 4
"""Minibatches per pass, unless they are set or a rollout has fewer samples."""

METRICS = (
    Metric(
        "loss/value", "", "value loss on the scale that is learned, mean over the update", better="down", combine="mean"
    ),
    Metric(
        "policy/kl",
        "nat",
        "estimated KL divergence from the policy that collected the rollout",
        better=None,
        combine="mean",
    ),
    Metric(
        "policy/clip_fraction",
        "share",
        "samples whose policy ratio is outside the clip range",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/explained_variance",
        "share",
        "variance of the returns that the values explain; 1 is all",
        better="up",
        combine="mean",
    ),
    Metric(
        "policy/advantage",
        "",
        "mean advantage of the actions taken, before normalization",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/estimate",
        "reward",
        "mean value of the rollout's timesteps before the update, of the environment's reward",
        better=None,
        combine="mean",
    ),
    Metric("policy/entropy_coef", "", "weight of the entropy bonus", better=None, combine="last"),
    Metric(
        "policy/epochs",
        "",
        "passes over the rollout before the KL divergence ended the update",
        better=None,
        combine="mean",
    ),
)
declare(*METRICS)


class OnPolicyConfig(CriticConfig):
    """Settings shared by on-policy learners."""

    critic_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the critic; null: `lr`."""
    epochs: int = Field(5, ge=1, le=1000)
    """Passes over each rollout."""
    num_minibatches: int | None = Field(None, ge=1, le=10_000)
    """Minibatches per pass. Each is one gradient step, or one of the actor if the critic has steps of its own. null: 4,
    or one per sequence if a rollout has fewer.
    """
    entropy_coef: float = Field(0.01, ge=0, le=10**6)
    """Initial weight of the entropy bonus."""
    entropy_schedule: Annotated[Schedule, Needs("entropy_coef!=0")] = "constant"
    """Schedule of the entropy bonus, from its initial weight to `entropy_end` times that weight over the run."""
    entropy_end: Annotated[float, Needs("entropy_coef!=0"), Needs("entropy_schedule!=constant")] = Field(
        0.1, gt=0, le=1
    )
    """Final weight of the entropy bonus as a fraction of the initial weight."""
    normalize_advantage: bool = True
    """Normalize advantages over all valid entries that they are computed for, a rollout or a batch of sequences."""
    hidden_sizes: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the actor's hidden layers."""
    activation: Activation = "tanh"

    @property
    def learns_from_sequences(self) -> bool:
        """True if minibatches consist of sequences; false: of timesteps."""
        return self.recurrent

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.num_minibatches is None:
            samples, unit = run.rollout_steps, "timesteps"
            if self.learns_from_sequences:
                samples, unit = run.rollout_steps // (self.sequence_length or run.rollout_length), "sequences"
            number = max(1, min(NUM_MINIBATCHES, samples))
            found["num_minibatches"] = Derived(number, f"a rollout has {samples:,} {unit}")
        return found


class ClippedConfig(OnPolicyConfig):
    """Settings shared by learners that clip the policy ratio and the value."""

    clip_eps: float = Field(0.2, gt=0, lt=1)
    """Clip range of the policy ratio."""
    value_coef: float = Field(1.0, gt=0, le=10**6)
    """Weight of the value loss."""
    value_clip_eps: float | None = Field(0.2, gt=0, le=10**12)
    """Clip range of the value around its old value, on the normalized scale; null: no clipping."""
    huber_delta: float | None = Field(10.0, gt=0, le=10**12)
    """Error above which the value loss is linear (Huber loss); null: squared error."""
    normalize_value: bool = True
    """Learn values that are normalized by the moving mean and standard deviation of the returns."""
    value_norm_decay: Annotated[float, Needs("normalize_value=true")] = Field(0.99999, gt=0, lt=1)
    """Decay of the moving return statistics."""
    state_dependent_std: Annotated[bool, CONTINUOUS] = False
    """The standard deviation of continuous actions is an output of the actor; false: a learned parameter."""
    init_std: Annotated[float, CONTINUOUS] = Field(0.6, gt=0, le=10)
    """Initial standard deviation of continuous actions, whose range has length 2."""
    rollout_length: int = Field(32, ge=1, le=100_000)
    lr: float = Field(1e-3, gt=0, lt=1)
    obs_agent_id: bool | None = None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""

    def reads_agent_id(self, team: TeamSpec) -> bool:
        """Returns True if inputs include the agent's id: as configured, by default only with share_params=all."""
        return self.share_params == "all" if self.obs_agent_id is None else self.obs_agent_id


Minibatch = TypeVar("Minibatch")


class OnPolicyLearner(Learner):
    """A learner that makes one or several passes over the samples of each rollout.

    Attributes:
        reported: Names of the metrics that a step on a minibatch reports.
    """

    reported: ClassVar[tuple[str, ...]]

    def __init__(self, config: OnPolicyConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        assert config.num_minibatches is not None  # derived
        self._epochs, self._num_minibatches = config.epochs, config.num_minibatches
        self._shuffle = generator(context.seed, "minibatches", device=context.device)

    def _train(
        self,
        minibatches: Callable[[], Iterable[Minibatch]],
        step: Callable[[Minibatch], Tensor],
        target_kl: float | None = None,
    ) -> tuple[list[Tensor], int]:
        """Makes `epochs` passes over the samples of a rollout.

        Args:
            minibatches: Returns the minibatches of a pass.
            step: Takes a step on a minibatch and returns its report [reported].
            target_kl: KL divergence in nats that ends the passes if that of the last step of one is above it; None for
                no limit. It is averaged over ranks, so that all of them stop after the same pass.

        Returns:
            The reports of all steps, and the number of passes.
        """
        reports: list[Tensor] = []
        for number in range(1, self._epochs + 1):
            reports += [step(minibatch) for minibatch in minibatches()]
            if target_kl is not None:
                divergence = reports[-1][self.reported.index("policy/kl")]
                if float(self.ranks.mean(divergence)) > target_kl:
                    return reports, number
        return reports, self._epochs

    def _sequence_minibatches(self, sequences: Rollout, batch_size: int | None, num_envs: int) -> Iterator[Rollout]:
        """Yields the minibatches of a pass over sequences, see `minibatch_indices`.

        Args:
            sequences: Sequences of a rollout, as `as_sequences` returns them.
            batch_size: Sequences per minibatch; None: minibatches partition the sequences.
            num_envs: Environments of the rollout.
        """
        for indices in minibatch_indices(
            sequences.num_envs,
            self._num_minibatches,
            batch_size,
            self._shuffle,
            num_envs=num_envs,
            ranks=self.ranks,
        ):
            yield sequences if indices is None else select_envs(sequences, indices, self.ranks)


def build_actor(
    config: ClippedConfig, team: TeamSpec, weights: torch.Generator, device: torch.device
) -> StochasticPolicy:
    """Returns the policy that a clipped policy-gradient method trains; `weights` draws its initial parameters."""
    return StochasticPolicy(
        team,
        config.network_config(team),
        weights,
        device,
        state_dependent_std=config.state_dependent_std,
        init_std=config.init_std,
    )


def sequence_length(length: int | None, rollout_length: int) -> int:
    """Returns the timesteps per training sequence, by default the whole rollout.

    Raises:
        UserError: If the rollout cannot be split into sequences of this length.
    """
    length = length or rollout_length
    if rollout_length % length:
        raise UserError(
            f"algo.sequence_length: {length} does not divide the rollout length of {rollout_length}. Choose a divisor."
        )
    return length


def require_minibatches(num_minibatches: int, length: int | None, rollout_length: int, num_envs: int) -> None:
    """Raises UserError if a rollout has fewer samples than minibatches.

    Args:
        num_minibatches: Minibatches per pass.
        length: Timesteps per sequence; None if samples are single timesteps.
        rollout_length: Timesteps of the rollout.
        num_envs: Environments of the rollout.
    """
    if length is None:
        require_samples("num_minibatches", num_minibatches, rollout_length, num_envs, unit="timesteps")
    else:
        require_samples("num_minibatches", num_minibatches, rollout_length // length, num_envs)


def require_samples(setting: str, wanted: int, per_env: int, num_envs: int, *, unit: str = "sequences") -> None:
    """Raises UserError if `num_envs` environments with `per_env` samples each have fewer than `algo.{setting}`."""
    if wanted > per_env * num_envs:
        raise UserError(
            f"algo.{setting}: {wanted} is more than the {per_env * num_envs} {unit} of a rollout "
            f"({num_envs} environments x {per_env}). Lower it, or raise num_envs or algo.rollout_length."
        )
