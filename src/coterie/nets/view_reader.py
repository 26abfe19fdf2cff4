"""Observations as networks that see the team or entities read them: a `TeamView`, and statistics by kind of entity."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.core.errors import UserError
from coterie.core.specs import Entities, TeamSpec
from coterie.core.tree import Tree
from coterie.functional.statistics import Reduction, initial_moments, mean_and_std, update_moments
from coterie.kernels import switch
from coterie.nets.config import NetworkConfig
from coterie.nets.entities import entities_present, entity_features, require_entities
from coterie.nets.team import Block, ObservationNormalizer, RunningScale
from coterie.nets.team_view import TeamView


class ViewReader:
    """Makes the `TeamView` of timesteps.

    Args:
        team: The team.
        blocks: Blocks of the networks that read it.
        config: Edges between agents, and whether networks read entities.

    Raises:
        UserError: If a role does not declare the part of its observation that is needed.
    """

    def __init__(self, team: TeamSpec, blocks: tuple[Block, ...], config: NetworkConfig):
        self._team, self._edges, self._radius = team, config.edges, config.radius
        self._entities: dict[str, tuple[Block, tuple[Entities, ...]]] = {}
        if config.view == "entities":
            for block in blocks:
                others = [part for part in require_entities(block.roles) if part.kind != "own" and part.count]
                if any(part.absent is not None for part in others):
                    self._entities[block.name] = (block, tuple(others))
        if self._edges != "full":
            self._require_edges()

    def _require_edges(self) -> None:
        part = "position" if self._edges == "radius" else "neighbors"
        sizes = {role.name: len(getattr(role.parts, part)) for role in self._team.roles}
        wanted = max(sizes.values()) if part == "position" else self._team.n
        for role, size in sizes.items():
            if not size or size != wanted:
                found = f"declares {size or 'no'} indices" if size else "declares no index"
                needed = f"{wanted} indices" if wanted else "the indices"
                raise UserError(
                    f"algo.network_edges={self._edges}: role '{role}' {found} of its {part}. Declare {needed} in "
                    f"ObservationParts({part}=...), or set algo.network_edges=full."
                )
        if part == "position" and self._radius is None:
            raise UserError(
                "algo.network_edges=radius: there is no radius. Set algo.network_radius, in the unit of the positions "
                "that agents observe."
            )

    def __call__(self, obs: dict[str, Tree], alive: Tensor | None) -> TeamView:
        """Returns the view of timesteps.

        Args:
            obs: By role [.., n, ..], as the environment returns them.
            alive: [.., N] bool; None: all agents are alive.

        Raises:
            ValueError: If `alive` is None and agents can die.
        """
        if alive is None:
            if self._team.agents_can_die:
                raise ValueError("networks that see the team need to know who is alive: obs_normalizer(obs, alive)")
            some = obs[self._team.roles[0].name]
            while isinstance(some, dict):
                some = next(iter(some.values()))
            shape = self._team.roles[0].observation_space.shape or ()
            lead = some.shape[: some.ndim - 1 - len(shape)]
            alive = torch.ones(*lead, self._team.n, dtype=torch.bool, device=some.device)
        present = {name: _present(block.join_obs(obs), parts) for name, (block, parts) in self._entities.items()}
        return TeamView(alive, self._heard(obs), present)

    def _heard(self, obs: dict[str, Tree]) -> Tensor | None:
        """Edges between agents [.., N, N]."""
        if self._edges == "full":
            return None
        if self._edges == "given":
            return torch.cat([_select(obs[role.name], role.parts.neighbors) > 0 for role in self._team.roles], -2)
        position = torch.cat([_select(obs[role.name], role.parts.position) for role in self._team.roles], -2)
        apart = position.unsqueeze(-2) - position.unsqueeze(-3)
        assert self._radius is not None
        return apart.square().sum(-1) <= self._radius**2


def _select(obs: Tensor, indices: tuple[int, ...]) -> Tensor:
    """Some numbers of observations [.., D], as floats."""
    return obs[..., constant(indices, obs.device, torch.int64)].float()


def _present(obs: Tensor, parts: tuple[Entities, ...]) -> Tensor:
    """True where an entity is seen [.., n, E]."""
    return torch.cat([entities_present(entity_features(obs, part), part) for part in parts], -1)


class EntityNormalizer(ObservationNormalizer):
    """Normalizes observations by statistics of each kind of entity, which do not depend on the number of entities.

    Numbers of the observation that belong to no entity are left unchanged. Absent entities are not counted.
    """

    def __init__(
        self, blocks: tuple[Block, ...], device: torch.device, clip: float = 10.0, *, view: ViewReader | None = None
    ):
        super().__init__(blocks, device, clip, view=view)
        self._parts = {
            block.name: tuple(part for part in require_entities(block.roles) if part.count) for block in self._blocks
        }
        self._moments = {
            _of_kind(name, part): initial_moments(part.size, device)
            for name, parts in self._parts.items()
            for part in parts
        }

    def update(self, obs: dict[str, Tree], valid: Tensor, reduction: Reduction | None = None) -> None:
        for block in self._blocks:
            joined, block_valid = block.join_obs(obs), valid[..., block.start : block.stop]
            for part in self._parts[block.name]:
                name, features = _of_kind(block.name, part), entity_features(joined, part)
                seen = entities_present(features, part) & block_valid.unsqueeze(-1)
                self._moments[name] = update_moments(self._moments[name], features, seen, reduction, kernels=switch.on)
        self._set_scales()

    def _set_scales(self) -> None:
        for block in self._blocks:
            scale: RunningScale = self.scales[block.name]
            for part in self._parts[block.name]:
                indices = constant(part.features, self._device, torch.int64).flatten()
                moments = mean_and_std(self._moments[_of_kind(block.name, part)])
                for name, value in zip(("mean", "std"), moments, strict=True):
                    scale.get_buffer(name).index_copy_(0, indices, value.repeat(part.count))


def _of_kind(block: str, part: Entities) -> str:
    """Name of the statistics of a kind of entities."""
    return f"{block} {part.kind}"


def obs_shape(block: Block) -> tuple[int, ...]:
    """Returns the shape of an agent's observation; () if it is not one array."""
    return block.roles[0].observation_space.shape or ()
