"""On-policy learners: their settings and metrics, the loop over the samples of a rollout, and random parts of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.base_config import CriticConfig, Derived, RunFacts, Units
from coterie.algos.learner import Learner
from coterie.algos.optimizer import Schedule
from coterie.config.needs import Needs
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator
from coterie.nets.config import Activation
from coterie.ranks.ranks import Ranks

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


def require_samples(setting: str, wanted: int, per_env: int, num_envs: int, *, unit: str = "sequences") -> None:
    """Raises UserError if `num_envs` environments with `per_env` samples each have fewer than `algo.{setting}`."""
    if wanted > per_env * num_envs:
        raise UserError(
            f"algo.{setting}: {wanted} is more than the {per_env * num_envs} {unit} of a rollout "
            f"({num_envs} environments x {per_env}). Lower it, or raise num_envs or algo.rollout_length."
        )


def own_parts(batches: Sequence[Tensor], num_envs: int, ranks: Ranks, *, never_empty: bool = False) -> Iterator[Tensor]:
    """Yields the indices of this rank's samples in each minibatch of all ranks, and starts the batch.

    With `never_empty`, a minibatch without samples of this rank has the first sample instead, since networks may not
    read empty batches. Its masks must be set to False, see `Ranks.stands_in`.
    """
    if ranks.size == 1:
        yield from batches
        return
    starts = [0, *accumulate(len(chosen) for chosen in batches)]
    own, places = ranks.own_samples(torch.cat([*batches]), num_envs)
    limits = torch.searchsorted(places, torch.tensor(starts, device=places.device)).tolist()
    for chosen, start, part in zip(batches, starts, pairwise(limits), strict=False):
        ranks.start_batch(places[slice(*part)] - start, len(chosen), never_empty=never_empty)
        yield own.new_zeros(1) if ranks.stands_in else own[slice(*part)]
    ranks.start_batch()


def permutation(count: int, shuffle: torch.Generator) -> Tensor:
    """Returns a random order of `count` indices on the generator's device."""
    return torch.randperm(count, generator=shuffle, device=shuffle.device)


def partition(order: Tensor, count: int) -> tuple[Tensor, ...]:
    """Splits indices into `count` parts, none of them empty unless there are fewer indices."""
    chunks = order.chunk(count)  # may be fewer than asked for: 16 in 9 parts are 8 of 2
    return chunks if len(chunks) == count or len(order) < count else order.tensor_split(count)
