"""Base class of the particle worlds: actions, observations, episodes and rendering."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import pad

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.drawing import PALETTE
from coterie.envs.worlds.particle.physics import DAMPING, DT, Body, PairDistances, Physics, StateLayout, Variant
from coterie.envs.worlds.particle.render import Disc, Message, Scene, draw_scene
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.step_kernel import StepKernel
from coterie.envs.worlds.world import Advanced, Observation, Outcome, SeveralSteps, State, World

COMMON_PARAMETERS: dict[str, Parameter] = {
    "speed": Parameter(1.0, 0.05, 10.0, "factor on thrust and speed limit of all moving bodies"),
    "damping": Parameter(DAMPING, 0.0, 1.0, "fraction of its velocity that a body loses per step"),
    "spread": Parameter(1.0, 0.0, 3.0, "factor on the initial distance of all bodies from the center"),
}


def scale_positions(
    with_parts: Callable[..., State], layout: StateLayout, state: State, position_parts: tuple[str, ...]
) -> State:
    """Multiplies all positions of an initial state by its entry `spread`, if it has one.

    Args:
        with_parts: replaces parts of a state.
        layout: layout of the flat state.
        state: the initial state.
        position_parts: parts, besides the bodies, that are positions.
    """
    if "spread" not in state:
        return state
    parts = layout.split(state["flat"].T.contiguous())
    scaled: dict[str, Any] = {name: parts[name] * state["spread"] for name in ("moving", "rest", *position_parts)}
    return with_parts(state, **scaled)


Actions = Literal["discrete", "continuous"]

SIGNS = {"mpe2": (-1, 1, -1, 1), "openai": (1, -1, 1, -1)}
"""Directions of moves 1 to 4 by variant: the first two along x, the others along y."""

MOVES = 5
"""Number of moves, of which the first is none."""


def action_tables(
    role: Role, body: Body, variant: Variant, kind: Actions, *, like: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the change of velocity [2, A] and the one-hot symbol [C, A] of every choice, move + 5 * symbol.

    Args:
        role: the role.
        body: the body of each of its agents.
        variant: convention of motion.
        kind: for continuous actions, A is the number of moves, and of symbols.
        like: device and precision.
    """
    continuous, symbols = kind == "continuous", max(role.symbols, 1)
    move = speech = None
    if body.moves:
        signs = SIGNS[variant]
        move = torch.zeros(2, MOVES, dtype=torch.float64)
        move[0, 1:3] = torch.tensor(signs[:2]) * (-1 if role.mirrored else 1)
        move[1, 3:5] = torch.tensor(signs[2:])
        move = (move * (body.thrust * DT / body.mass)).repeat(1, 1 if continuous else symbols).to(like)
    if role.symbols and not continuous:
        speech = torch.eye(role.symbols).repeat_interleave(MOVES if body.moves else 1, dim=1).to(like)
    elif role.symbols:
        speech = torch.eye(role.symbols).to(like)
    return move, speech


def action_names(role: Role, moves: int, variant: Variant, kind: Actions) -> dict[str, Any]:
    """Returns the names of the choices, or of the continuous components, of a role's actions."""
    signs = SIGNS[variant]
    signs = (-signs[0], -signs[1], *signs[2:]) if role.mirrored else signs
    sides = [("left", "right")[signs[0] > 0], ("left", "right")[signs[1] > 0]]
    steps = ["stay", *sides, ("down", "up")[signs[2] > 0], ("down", "up")[signs[3] > 0]][:moves]
    symbols = [f"say {chr(ord('A') + i)}" for i in range(role.symbols)]
    if kind == "continuous":
        return {"number_names": (*steps, *symbols)}
    both = [f"{step}, {symbol}" for symbol in symbols for step in steps]
    return {"choice_names": (tuple(both or steps or symbols or ["stay"]),)}


DiscOverrides = Mapping[str, Mapping[str, Any]]
"""Fields of `Disc` that differ from the body's, by name of the body."""

_FUSED = frozenset(["flat", "coasting_velocity", "returns"])
"""Entries of the state that the kernel computes."""


class ParticleConfig(BaseModel):
    """Settings of all particle worlds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    actions: Actions = "discrete"
    """Type of the action spaces."""
    episode_limit: int | None = Field(25, ge=1, le=10**9)
    """Maximum number of steps per episode; None for no limit."""
    terminate_at_limit: bool = False
    """Terminate episodes at the limit instead of truncating them."""
    dynamic_rescaling: bool = False
    """Zoom each picture out until all bodies are visible. Otherwise the view is fixed, and arrows point to others."""


class ParticleWorld(World):
    """A particle scenario. Subclasses define its initial state, observations, rewards and appearance.

    Args:
        scenario: description of the scenario.
        config: settings.
        with_state: whether timesteps include states.
        variant: convention of motion and actions.
    """

    def __init__(
        self,
        scenario: ScenarioSpec,
        config: ParticleConfig,
        with_state: bool,
        variant: Variant = "mpe2",
    ):
        self.scenario = scenario
        self.terminate_at_limit = config.terminate_at_limit
        self.parameters = {**scenario.parameters, **scenario.optional_parameters, **COMMON_PARAMETERS}
        if scenario.walls is not None:  # the positions of goals are part of the walls
            del self.parameters["spread"]
        self.apply_parameters = lambda state: scale_positions(
            self.with_parts, self.physics.layout, state, scenario.position_parts
        )
        self._zoom_to_fit = config.dynamic_rescaling
        self._actions: Actions = config.actions
        self._roles = tuple(scenario.roles)
        symbols = max((role.symbols for role in scenario.roles), default=0)
        speakers = sum(len(role.bodies) for role in scenario.roles if role.symbols)
        self.physics = Physics(
            scenario.bodies,
            scenario.measured_pairs,
            speech=(symbols, speakers),
            extra_parts=scenario.extra_parts,
            variant=variant,
        )
        self._num_agents = sum(len(role.bodies) for role in scenario.roles)
        self._symbols = {role.name: role.symbols for role in scenario.roles}
        self._moves = {role.name: scenario.bodies[role.bodies[0]].moves for role in scenario.roles}
        self._constants: dict[tuple[str, torch.device, torch.dtype], Any] = {}
        noise = NoiseReader(torch.zeros(4096, 1))
        self.initial_parts(noise)
        self.reset_noise_size, self.step_noise_size = noise.used, scenario.step_noise_size
        self._state_indices = self._make_state_indices() if with_state else {}
        self.spec = self._make_spec(config.episode_limit)
        self._kernel = StepKernel(
            scenario,
            self.physics,
            tables=self._action_tables,
            decoder=self._decode_actions,
            observation_map=self._observation_map,
        )
        if scenario.walls is None and scenario.events is None:
            self.fused_step = self._fused_step
            if self._actions == "discrete" and self._kernel.takes_several:
                self.several_steps = self._several_steps
        self._sizes = [(role.name, role.n, math.prod(role.observation_space.shape or ())) for role in self.spec.roles]

    # ---------------------------------------------------------------------------------------- defined by scenarios

    @abstractmethod
    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        """Returns the initial parts of the state, [*shape, B] each: `moving`, `rest` and the scenario's own.

        Parts that are left out are zero.
        """

    @abstractmethod
    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        """Returns the observations of every role, [n, D, B].

        Args:
            parts: parts of the state, [*shape, B] each.
            pos: positions of all bodies, [2, bodies, B].
        """

    @abstractmethod
    def outcome(self, transition: Transition) -> ScenarioOutcome:
        """Returns rewards, termination and metrics of a step."""

    @abstractmethod
    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        """Returns how bodies of a single environment, parts [.., 1], look different from their `Body`."""

    # ---------------------------------------------------------------------------------------- World

    def reset(self, noise: Tensor) -> State:
        flat = self.physics.layout.join(self.initial_parts(NoiseReader(noise.T.contiguous())))
        returns = noise.new_zeros(self._num_agents, len(noise))
        parameters = {name: noise.new_full((len(noise),), p.value) for name, p in self.scenario.parameters.items()}
        return {
            "flat": flat.T,
            "coasting_velocity": self._coasting_velocity(flat),
            "returns": returns.T,
            **parameters,
        }

    def with_parts(self, state: State, **parts: Tensor) -> State:
        """Returns the state with some parts, [*shape, B] each, replaced."""
        layout = self.physics.layout
        flat = layout.join(layout.split(state["flat"].T.contiguous()) | parts)
        return {**state, "flat": flat.T, "coasting_velocity": self._coasting_velocity(flat)}

    def _coasting_velocity(self, flat: Tensor) -> Tensor:
        vel = self.physics.layout.part(flat, "vel")
        return self.physics.coasting_velocity(vel, self.physics.measure(flat)).permute(2, 0, 1)

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        # Both are transposed views of contiguous [.., B] memory except after loading. Equal layouts give equal bits.
        flat, coasting = state["flat"].T.contiguous(), state["coasting_velocity"].permute(1, 2, 0).contiguous()
        flat, distances, coasting = self._advance(state, flat, coasting, action, noise)
        outcome = self.outcome(Transition(flat, distances, state, self.physics))
        reward = outcome.reward.T
        returns = state["returns"] + reward
        return (
            {**state, "flat": flat.T, "coasting_velocity": coasting.permute(2, 0, 1), "returns": returns},
            Outcome(reward=reward, terminated=outcome.terminated, metrics=lambda: outcome.metrics(returns.T)),
        )

    def _fused_step(
        self, state: State, action: dict[str, Action], resetting: Tensor | None, initial: State | None
    ) -> Advanced | None:
        """Does the work of `step`, of starting episodes, and of `observe` by the kernel; see `World.fused_step`."""
        out = self._kernel(state, action, resetting, initial)
        if out is None:
            return None
        if out.reward is None or out.returns is None:
            assert out.distance is not None
            distances = PairDistances(out.flat[:0], out.distance, out.penetration if self.physics.contacts else None)
            own = self.outcome(Transition(out.flat.T, distances, state, self.physics))
            reward, terminated = own.reward.T, own.terminated
            returns = state["returns"] + reward
            returns = returns if resetting is None else returns.masked_fill(resetting.unsqueeze(-1), 0)
        else:
            own, reward, returns, terminated = None, out.reward, out.returns, out.terminated

        def metrics() -> dict[str, Tensor]:
            if own is not None:
                return own.metrics(returns.T)
            assert self.scenario.coverage is not None
            assert out.counts is not None
            return self.scenario.coverage.metrics(*out.counts)

        after = {**state, "flat": out.flat, "coasting_velocity": out.coasting, "returns": returns}
        if resetting is not None and initial is not None:
            for name in after.keys() - _FUSED:
                after[name] = torch.where(resetting, initial[name], after[name])
        observation = self.observe(after) if out.obs is None else self._observation(out.obs, out.flat)
        return after, Outcome(reward, terminated=terminated, metrics=metrics), observation

    def _several_steps(self, states: Sequence[State], final: Sequence[bool]) -> SeveralSteps:
        """See `World.several_steps`."""
        ((role, agents, size),), coverage = self._sizes, self.scenario.coverage
        assert coverage is not None
        observed = [self.observe(state).obs[role] for state in states[1:]]
        steps = self._kernel.several(states, observed, final)

        def results(obs: dict[str, Tensor]) -> tuple[State, Observation]:
            last = len(final) % 2
            steps.obs[0].copy_(obs[role].view(len(steps.obs[0]), agents * size))
            after = {
                **states[-1],
                "flat": steps.flat[-1].clone().T,  # not in the memory of the rollout
                "coasting_velocity": steps.coasting[last].clone().permute(2, 0, 1),
                "returns": steps.returns[last].clone().T,
            }
            return after, self._observation(steps.obs, steps.flat.transpose(1, 2))

        return SeveralSteps(steps, results, lambda t: coverage.metrics(*steps.counts[t]), final)

    def _advance(
        self, state: State, flat: Tensor, coasting: Tensor, action: dict[str, Action], noise: Tensor | None
    ) -> tuple[Tensor, PairDistances, Tensor]:
        """Returns the next state [F, B], its distances, and its velocity after damping and contact [2, M, B]."""
        thrust, comm = self._decode_actions(action, flat)
        scale, damping = self.physics.scale(state), state.get("damping")
        moving, vel = self.physics.move(flat, coasting, thrust, scale)
        if self.scenario.walls is not None:
            moving, vel = self._bounce_off_walls(moving, vel)
        unchanged = flat[self.physics.layout.slices["rest"].start :]
        flat = torch.cat((_flatten(moving), _flatten(vel), *comm, unchanged))
        if self.scenario.events is not None and noise is not None:
            parts = self.physics.layout.split(flat)
            flat = self.physics.layout.join(parts | self.scenario.events(parts, noise.T))
        distances = self.physics.measure(flat)
        return flat, distances, self.physics.coasting_velocity(vel, distances, damping)

    def observe(self, state: State) -> Observation:
        flat = state["flat"]
        if not self.scenario.linear_observations:
            parts = self.physics.layout.split(flat.T.contiguous())
            obs = self.role_observations(parts, self.physics.positions(parts))
            return Observation(
                {role.name: obs[role.name].permute(2, 0, 1) for role in self._roles}, state=self._states(flat)
            )
        weight, bias = self._constant("observation", flat, self._observation_map)
        return self._observation(torch.mm(flat, weight) if bias is None else torch.addmm(bias, flat, weight), flat)

    def _observation(self, features: Tensor, flat: Tensor) -> Observation:
        """Returns the observation from the numbers that all agents observe [.., B, D], and the state [.., B, F]."""
        shape = flat.shape[:-1]
        if len(self._sizes) == 1:
            ((name, n, size),) = self._sizes
            return Observation({name: features.view(*shape, n, size)}, state=self._states(flat))
        blocks = features.split([n * size for _, n, size in self._sizes], dim=-1)
        obs = {name: block.view(*shape, n, size) for (name, n, size), block in zip(self._sizes, blocks, strict=True)}
        return Observation(obs, state=self._states(flat))

    def _states(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns the states by name [.., B, S] of the flat state [.., B, F]."""
        return {
            name: flat
            if indices is None
            else flat[..., self._constant(f"state {name}", flat, lambda like, indices=indices: indices.to(like.device))]
            for name, indices in self._state_indices.items()
        }

    def render(self, state: State, size: int) -> np.ndarray:
        return draw_scene(self.scene(state), size, zoom_to_fit=self._zoom_to_fit)

    def scene(self, state: State) -> Scene:
        """Returns the picture's content for the state of a single environment."""
        parts = self.physics.layout.split(state["flat"].T.contiguous())
        pos, vel = self.physics.positions(parts)[..., 0].tolist(), parts["vel"][..., 0].tolist()
        overrides, discs = self.disc_overrides(parts), []
        agents = {i for role in self._roles for i in role.bodies}
        for i, body in enumerate(self.scenario.bodies):
            disc = Disc(
                x=pos[0][i],
                y=pos[1][i],
                radius=body.size,
                color=PALETTE[body.color],
                label=body.name if i in agents else "",
                kind=body.kind,
                heading=(vel[0][i], vel[1][i]) if body.moves else None,
            )
            discs.append(replace(disc, **overrides.get(body.name, {})))
        spoken = parts["comm"][..., 0].T.tolist()
        speakers = [agent for role in self.spec.roles if self._symbols[role.name] for agent in role.agents]
        messages = [Message(name, _format_message(symbols)) for name, symbols in zip(speakers, spoken, strict=True)]
        slices, teams = self.spec.role_slices(), [role.group for role in self.spec.roles]
        score: dict[str, float] = {}
        for role in self.spec.roles:  # returns of teams, sums over their agents
            name = f"{role.group} return" if len(set(teams)) > 1 else "team return"
            score[name] = score.get(name, 0.0) + float(state["returns"][0, slices[role.name]].sum())
        return Scene(self.scenario.name, tuple(discs), tuple(messages), score=score)

    # ---------------------------------------------------------------------------------------- actions

    def _decode_actions(self, action: dict[str, Action], like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns the moving bodies' change of velocity [2, M, B], and a list with the messages [C S, B], or empty."""
        thrust, messages = [], []
        for role in self._roles:
            move, speech = self._constant(role.name, like, lambda like, role=role: self._action_tables(role, like))
            role_action = action[role.name]
            if role_action.discrete is not None:
                choice = role_action.discrete.squeeze(-1).T
                if move is not None:
                    thrust.append(move[:, choice])
                if speech is not None:
                    messages.append(speech[:, choice])
            elif role_action.continuous is not None:
                # Map [-1, 1] to the bounds of all continuous spaces, 0 and 1.
                numbers = ((role_action.continuous.to(like.dtype).clamp(-1, 1) + 1) * 0.5).permute(2, 1, 0)
                if move is not None:
                    thrust.append(torch.tensordot(move, numbers[:MOVES], dims=1))
                if speech is not None:
                    messages.append(numbers[-role.symbols :])
        moved = thrust[0] if len(thrust) == 1 else torch.cat(thrust, dim=1) if thrust else like.new_zeros(2, 0, 1)
        if thrust and moved.shape[1] < self.physics.movers:
            moved = pad(moved, (0, 0, 0, self.physics.movers - moved.shape[1]))
        spoken = torch.cat(messages, dim=1) if len(messages) > 1 else messages[0] if messages else None
        return moved, [] if spoken is None else [_flatten(spoken)]

    def _bounce_off_walls(self, moving: Tensor, vel: Tensor) -> tuple[Tensor, Tensor]:
        """Returns positions and velocities [2, M, B] with bodies reflected at the walls."""
        limit, bounce = self._constant("walls", vel, lambda like: like.new_tensor(self.scenario.walls).unsqueeze(-1))
        inside = moving.clamp(-limit, limit)
        return inside, torch.where((moving != inside) & (moving * vel > 0), -bounce * vel, vel)

    def _action_tables(self, role: Role, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Returns the change of velocity [2, A] and the one-hot symbol [C, A] of every choice."""
        body = self.scenario.bodies[role.bodies[0]]
        return action_tables(role, body, self.physics.variant, self._actions, like=like)

    # ---------------------------------------------------------------------------------------- constants and specs

    def _constant(self, name: str, like: Tensor, make: Callable[[Tensor], Any]) -> Any:
        """Returns a constant for the device and precision of `like`, computed once."""
        key = (name, like.device, like.dtype)
        if key not in self._constants:
            self._constants[key] = make(like)
        return self._constants[key]

    def _observation_map(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns weight and bias of the affine map from the state to all observations, evaluated at unit vectors."""

        def all_observations(flat: Tensor) -> Tensor:
            parts = self.physics.layout.split(flat)
            obs = self.role_observations(parts, self.physics.positions(parts))
            return torch.cat([_flatten(obs[role.name]) for role in self._roles]).T

        size = self.physics.layout.size
        bias = all_observations(torch.zeros(size, 1, dtype=torch.float64))
        weight = all_observations(torch.eye(size, dtype=torch.float64)) - bias
        return weight.contiguous().to(like), bias[0].to(like) if bool(bias.any()) else None

    def _make_state_indices(self) -> dict[str, Tensor | None]:
        """Returns the indices of the flat state that make up each state by name, None for all of them."""
        layout = self.physics.layout
        indices: dict[str, Tensor | None] = {"global": None}
        for group, hidden in self.scenario.hidden_parts.items():
            names = [name for name in layout.shapes if name not in hidden]
            indices[group] = torch.cat([torch.arange(layout.size)[layout.slices[name]] for name in names])
        return indices

    def _make_spec(self, episode_limit: int | None) -> EnvSpec:
        layout = self.physics.layout
        parts = layout.split(torch.rand(layout.size, 1, generator=torch.Generator().manual_seed(0)))
        obs = self.role_observations(parts, self.physics.positions(parts))
        roles = []
        for role in self._roles:
            moves = MOVES if self._moves[role.name] else 0
            if self._actions == "continuous":
                action_space = spaces.Box(0.0, 1.0, (moves + role.symbols,))
            else:
                action_space = spaces.Discrete(max(moves, 1) * max(role.symbols, 1))
            roles.append(
                RoleSpec(
                    name=role.name,
                    group=role.group,
                    agents=tuple(self.scenario.bodies[i].name for i in role.bodies),
                    observation_space=spaces.Box(-np.inf, np.inf, (obs[role.name].shape[1],), np.float32),
                    action_space=action_space,
                    parts=role.parts,
                    **action_names(role, moves, self.physics.variant, self._actions),
                )
            )
        state_sizes = {
            name: layout.size if indices is None else len(indices) for name, indices in self._state_indices.items()
        }
        return EnvSpec(
            name=f"particle/{self.scenario.name}",
            roles=tuple(roles),
            state_sizes=state_sizes,
            metrics=self.scenario.metrics,
            episode_limit=episode_limit,
            symmetric=self.scenario.symmetric,
        )


def _flatten(part: Tensor) -> Tensor:
    """Flattens [.., B] to [F, B]."""
    return part.flatten(0, -2)


def _format_message(symbols: list[float]) -> str:
    """Formats a message: a letter for one symbol, an underscore for silence, the numbers otherwise."""
    if not any(symbols):
        return "_"
    if sorted(symbols)[-2:] == [0.0, 1.0] or symbols == [1.0]:
        return chr(ord("A") + symbols.index(1.0))
    return " ".join(f"{number:.2f}" for number in symbols)


def select(value: Tensor, one_hot: Tensor) -> Tensor:
    """Returns the entry of `value` [.., K, B] that the one-hot vectors [.., K, B] mark: [.., B]."""
    return (value * one_hot).sum(-2)


def highlight_goal(goal: Tensor) -> DiscOverrides:
    """Draws the landmark marked by the one-hot vector [landmarks, 1] as the goal."""
    return {f"landmark_{int(goal[:, 0].argmax())}": {"color": PALETTE["green"], "kind": "goal"}}
