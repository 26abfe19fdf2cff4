"""On-policy learners: passes over the samples of a rollout, and the minibatches of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.base_config import MinibatchConfig
from coterie.algos.learner import Learner
from coterie.core.errors import UserError
from coterie.core.seeds import generator
from coterie.core.tree import Tree, tree_map
from coterie.ranks.ranks import ONE, Ranks

Minibatch = TypeVar("Minibatch")


class OnPolicyLearner(Learner):
    """A learner that makes one or several passes over the samples of each rollout.

    Attributes:
        reported: Names of the metrics that a step on a minibatch reports.
    """

    reported: ClassVar[tuple[str, ...]]

    def __init__(self, config: MinibatchConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        assert config.num_minibatches is not None  # derived
        self._epochs, self._num_minibatches = config.epochs, config.num_minibatches
        self._num_envs = context.num_envs
        self._shuffle = generator(context.seed, "minibatches", device=context.device)

    def _minibatches(
        self, batch: Any, hidden_states: Tree | None, candidates: Tensor, number: int | None = None
    ) -> Iterator[tuple[Any, Tree]]:
        """Yields the minibatches of a pass, see `minibatches`; their number is that of the settings by default."""
        return minibatches(
            batch,
            hidden_states,
            candidates,
            number or self._num_minibatches,
            shuffle=self._shuffle,
            num_envs=self._num_envs,
            ranks=self.ranks,
        )

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


def random_parts(samples: Tensor, count: int, shuffle: torch.Generator) -> tuple[Tensor, ...]:
    """Splits samples [M, ..] in a new random order into `count` parts, none of them empty unless M is smaller."""
    order = samples[torch.randperm(len(samples), generator=shuffle, device=shuffle.device)]
    chunks = order.chunk(count)  # may be fewer than asked for: 16 in 9 parts are 8 of 2
    return chunks if len(chunks) == count or len(order) < count else order.tensor_split(count)


def minibatches(
    batch: Any,
    hidden_states: Tree | None,
    candidates: Tensor,
    num_minibatches: int,
    *,
    shuffle: torch.Generator,
    num_envs: int = 1,
    ranks: Ranks = ONE,
) -> Iterator[tuple[Any, Tree]]:
    """Yields minibatches in a new random order, each with the hidden states before it ({} without).

    Several ranks draw the same minibatches of all samples, and each yields its own part of them, which may be empty.

    Args:
        batch: Tensors [M, ..] of timesteps, or [L, M, ..] of sequences if there are hidden states.
        hidden_states: Tensors [M, ..], the hidden states before each sequence.
        candidates: Indices along M to draw from, those of all ranks, see `acted_candidates`.
        num_minibatches: Number of parts.
        shuffle: Source of the random order.
        num_envs: Environments of this rank. Samples are ordered by time first.
        ranks: Ranks that train together.
    """
    sample_axis = 1 if hidden_states else 0
    parts = random_parts(candidates, num_minibatches, shuffle)
    for chosen in own_parts(parts, num_envs, ranks, never_empty=bool(hidden_states)):
        minibatch = tree_map(lambda x, chosen=chosen: x.index_select(sample_axis, chosen), batch)
        if ranks.stands_in:
            masks = {name: getattr(minibatch, name, None) for name in ("valid", "critic_valid")}
            minibatch = replace(minibatch, **{k: torch.zeros_like(x) for k, x in masks.items() if x is not None})
        yield minibatch, tree_map(lambda x, chosen=chosen: x.index_select(0, chosen), hidden_states or {})
