"""Finished episodes of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from coterie.ranks.ranks import Ranks
from coterie.training.episodes import FinishedEpisodes
from coterie.training.rank_states import pack, unpack


def episodes_of_first_rank(play: Callable[[], FinishedEpisodes], ranks: Ranks) -> FinishedEpisodes:
    """Returns the episodes that rank 0 plays, on all ranks. They decide what all ranks do next.

    Not every environment repeats its episodes exactly, even with the same seed and policies.
    """
    if ranks.size == 1:
        return play()
    content = ranks.broadcast(pack(vars(play())) if ranks.is_first else None)
    return FinishedEpisodes(**unpack(content))


def episodes_of_all_ranks(
    own: FinishedEpisodes, metrics: Sequence[str], *, num_envs: int, ranks: Ranks, counts: Sequence[int]
) -> FinishedEpisodes:
    """Returns the episodes that ended on any rank, in the order of a single process.

    Args:
        own: Episodes of this rank.
        metrics: Names of the environment's metrics.
        num_envs: Environments per rank.
        ranks: The ranks.
        counts: Number of episodes that ended on each rank.
    """
    count, labels = len(own), tuple(own.labels)
    empty = torch.zeros(count, device=own.length.device)
    columns = [own.length, own.truncated, own.env_index + ranks.rank * num_envs]
    columns += [own.metrics.get(name, empty) for name in metrics]
    columns += [own.labels[team] for team in labels]
    table = torch.cat([own.returns, own.group_returns, *(x.unsqueeze(1).double() for x in columns)], 1)
    padded = table.new_zeros(max(counts), table.shape[1])
    padded[:count] = table
    if max(counts):
        parts = zip(ranks.gather(padded), counts, strict=True)
        table = torch.cat([part[:length] for part, length in parts])
    agents, groups = own.returns.shape[1], own.group_returns.shape[1]
    returns, group_returns, rest = table.split([agents, groups, len(columns)], 1)
    return FinishedEpisodes(
        returns=returns,
        group_returns=group_returns,
        length=rest[:, 0].long(),
        truncated=rest[:, 1].bool(),
        env_index=rest[:, 2].long(),
        metrics={name: rest[:, 3 + i].float() for i, name in enumerate(metrics)} if len(table) else {},
        labels={team: rest[:, 3 + len(metrics) + i].long() for i, team in enumerate(labels)},
    )
