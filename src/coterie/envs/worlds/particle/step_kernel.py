"""The kernel that advances a particle world: constants and arguments from its description and state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.worlds.particle.physics import Physics
from coterie.envs.worlds.particle.scenario import Role, ScenarioSpec
from coterie.envs.worlds.world import State
from coterie.kernels import native
from coterie.kernels.particle import (
    ActionTables,
    CoverageReward,
    ObservationMap,
    ParticleConstants,
    StepInputs,
    StepMemory,
    StepOutputs,
    envs_last,
    particle_step,
    several_steps,
)

Tables = Callable[[Role, Tensor], tuple[Tensor | None, Tensor | None]]
"""Returns the change of velocity [2, A] and the message [C, A] of every choice of a role."""
Decoder = Callable[[dict[str, Action], Tensor], tuple[Tensor, list[Tensor]]]
"""Returns the change of velocity [2, M, B] by actions, and a list with the messages [C S, B], or empty."""
AffineMap = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Returns weight [F, D] and bias [D] of the affine map from the state to all observations."""


class StepKernel:
    """Decodes discrete actions, moves bodies, starts episodes, measures distances, observes, and rewards coverage.

    Args:
        scenario: the scenario, without walls and events.
        physics: its physics.
        tables: the effects of discrete actions.
        decoder: the effects of continuous actions.
        observation_map: used if the scenario's observations are linear.
    """

    def __init__(
        self, scenario: ScenarioSpec, physics: Physics, *, tables: Tables, decoder: Decoder, observation_map: AffineMap
    ):
        self._scenario, self._physics = scenario, physics
        self._tables, self._decoder, self._observation_map = tables, decoder, observation_map
        self._roles = tuple(role.name for role in scenario.roles)
        self._constants: dict[tuple[torch.dtype, bool], ParticleConstants] = {}

    def __call__(
        self, state: State, action: dict[str, Action], resetting: Tensor | None, initial: State | None
    ) -> StepOutputs | None:
        """Advances a state by one step, and replaces it by `initial` where `resetting` [B].

        Returns None if there is no kernel for the type or the device.
        """
        flat = state["flat"]
        if type(flat) is not Tensor or not native.is_supported(flat):
            return None
        choices = [action[name].discrete for name in self._roles]
        indices = [x.contiguous() for x in choices if x is not None and x.dtype is torch.int64]
        thrust = messages = None
        if len(indices) < len(choices):
            indices = []
            thrust, spoken = self._decoder(action, flat.T)
            thrust, messages = thrust.contiguous(), spoken[0].contiguous() if spoken else None
        inputs = self._inputs(state)._replace(
            choices=indices,
            thrust=thrust,
            messages=messages,
            resetting=resetting,
            initial=None if initial is None else envs_last(initial["flat"]),
        )
        return particle_step(self._constants_for(flat, thrust is None), inputs)

    @property
    def takes_several(self) -> bool:
        """True if `several` can be called."""
        coverage, linear = self._scenario.coverage, self._scenario.linear_observations
        return len(self._roles) == 1 and linear and coverage is not None and not coverage.terminates

    def several(self, states: Sequence[State], observed: Sequence[Tensor], final: Sequence[bool]) -> StepMemory:
        """Prepares steps with discrete actions.

        Args:
            states: the present state, and initial states of the episodes that begin.
            observed: observations of the initial states [B, n, D].
            final: True at timesteps from which a step leads to the next initial state, see `World.several_steps`.
        """
        constants = self._constants_for(states[0]["flat"], tabled=True)
        return several_steps(constants, [self._inputs(state) for state in states], observed, final)

    def _inputs(self, state: State) -> StepInputs:
        """Returns what a step reads of the state."""
        coverage, scale = self._scenario.coverage, self._physics.scale(state)
        return StepInputs(
            flat=envs_last(state["flat"]),
            coasting=envs_last(state["coasting_velocity"]),
            returns=envs_last(state["returns"]),
            scale=None if scale is None else scale.contiguous(),
            damping=state.get("damping"),
            local_ratio=None if coverage is None else state[coverage.ratio],
            collision_weight=None if coverage is None else coverage.weight(state),
        )

    def _constants_for(self, like: Tensor, tabled: bool) -> ParticleConstants:
        """Returns the constants for a type, and for actions by tables or by thrust."""
        key = (like.dtype, tabled)
        if key not in self._constants:
            with torch.inference_mode(False):
                self._constants[key] = replace(
                    self._physics.kernel_constants(like),
                    actions=self._action_tables(like) if tabled else None,
                    observations=self._make_observation_map(like) if self._scenario.linear_observations else None,
                    reward=self._make_reward(),
                )
        return self._constants[key]

    def _action_tables(self, like: Tensor) -> ActionTables:
        roles, parts, size = self._scenario.roles, [like.new_zeros(0)], 0
        offsets: list[list[int]] = []
        choices: list[int] = []
        for role in roles:
            pair = self._tables(role, like)
            offsets.append([])
            for table in pair:
                offsets[-1].append(-1 if table is None else size)
                if table is not None:
                    parts.append(table.flatten())
                    size += table.numel()
            choices.append(next((table.shape[1] for table in pair if table is not None), 1))
        places = [(r, agent) for r, role in enumerate(roles) for agent in range(len(role.bodies)) if offsets[r][0] >= 0]
        speakers = [(r, agent) for r, role in enumerate(roles) for agent in range(len(role.bodies)) if role.symbols]
        return ActionTables(
            agents=[len(role.bodies) for role in roles],
            choices=choices,
            move=[move for move, _ in offsets],
            speech=[speech for _, speech in offsets],
            movers=places + [(-1, 0)] * (self._physics.movers - len(places)),
            speakers=speakers,
            table=torch.cat(parts),
        )

    def _make_observation_map(self, like: Tensor) -> ObservationMap:
        weight, bias = self._observation_map(like)
        column, source = weight.T.nonzero(as_tuple=True)
        counts = torch.bincount(column, minlength=weight.shape[1])
        terms: Sequence[int] = [0, *counts.cumsum(0).tolist()]
        return ObservationMap(terms, source.tolist(), weight[source, column].contiguous(), bias)

    def _make_reward(self) -> CoverageReward | None:
        coverage = self._scenario.coverage
        if coverage is None:
            return None
        pairs, (agents, landmarks) = self._physics.measured_slices[coverage.pairs]
        return CoverageReward(
            agents=agents,
            landmarks=landmarks,
            first_pair=pairs.start,
            covered=coverage.covered,
            shared=coverage.shared,
            terminates=coverage.terminates,
        )
