"""What networks that see the team read besides observations: who is alive, who hears whom, which entities are seen."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tree import Tree, register_pytree

VIEW = "\0team"
"""Key of the `TeamView` in observations as networks read them. No role has this name."""


@register_pytree
@dataclass(frozen=True)
class TeamView:
    """Facts of timesteps that networks read together with observations.

    Attributes:
        alive: [.., N] bool, True where the agent exists.
        edges: [.., N, N] bool, True where the first agent hears the second; None: all hear each other.
        present: By block [.., n, E] bool, True where an entity other than the agent itself is seen; blocks without an
            entry see all.
        place: [.., N] int64, the place of each agent in the order in which agents decide; None: the team's order.
    """

    alive: Tensor
    edges: Tensor | None
    present: dict[str, Tensor]
    place: Tensor | None = None


def view_of(obs: dict[str, Tree]) -> TeamView:
    """Returns the view in observations as networks read them. UserError if an algorithm passes others."""
    if VIEW not in obs:
        raise UserError(
            "algo.network: networks that see entities or the team read more than observations by role. In algorithms "
            "of your own, pass what policy.obs_normalizer.of_rollout(rollout) returns."
        )
    return obs[VIEW]
