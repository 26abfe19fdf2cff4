"""The memory that a rollout needs, compared with that of the machine before anything large is allocated."""

from __future__ import annotations

import torch

from coterie.commands.environment import make_environment
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.free_memory import format_bytes, free_bytes
from coterie.core.process_ranks import local_size
from coterie.core.tree import tree_leaves
from coterie.envs.contract.vector import closed

_FEWEST = 2000
"""Number of environments from which the memory is estimated, which needs one more environment for a moment."""


def require_memory(config: RunConfig, device: torch.device) -> None:
    """Raises UserError if the timesteps of one rollout alone exceed the free memory of `device`.

    On the CPU, the ranks of this machine share its memory. Each has a GPU of its own.
    """
    if config.num_envs < _FEWEST:
        return
    sharing = min(local_size(), config.ranks) if device.type == "cpu" else 1
    num_envs = config.num_envs // config.ranks * sharing
    free = free_bytes("device", device)
    with closed(make_environment(config, "load", num_envs=1, device=device)) as env:
        nbytes = sum(leaf.nbytes for leaf in tree_leaves(env.reset(seed=0)))
    length = _rollout_length(config)
    needed = nbytes * (length + 1) * num_envs
    if free is not None and needed > free:
        most = max(1, free // (2 * nbytes * (length + 1))) * config.ranks // sharing
        raise UserError(
            f"num_envs={config.num_envs}: the observations of a rollout of {length:,} steps alone need "
            f"{format_bytes(needed)} of memory, and {format_bytes(free)} are free. "
            f"Use about num_envs={most}, or a smaller rollout_length."
        )


def _rollout_length(config: RunConfig) -> int:
    """Returns the length of the longest rollout of any team; 1 if no team collects rollouts."""
    if config.rollout_length is not None:
        return config.rollout_length
    choices = [config.algo, *(team.algo for team in config.teams.values())]
    return max(int(getattr(choice.params, "rollout_length", None) or 1) for choice in choices)
