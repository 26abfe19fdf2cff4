"""What the particle scenarios share: roles, actions, observations, restarts; a scenario says what is seen and paid."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import pad

from coterie.envs.particle.physics import DT, Physics, Variant
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.render import PALETTE, Disc, Message, Scene, draw
from coterie.envs.particle.varied import EVERYWHERE, spread
from coterie.envs.world import Outcome, State, View, World
from coterie.types import Action, EnvSpec, RoleSpec

Actions = Literal["discrete", "continuous"]
Looks = Mapping[str, Mapping[str, Any]]

# Index order of the four moves: the signs of x, x, y, y.
SIGNS = {"mpe2": (-1, 1, -1, 1), "openai": (1, -1, 1, -1)}
_MOVES = 5


class ParticleConfig(BaseModel):
    """What all particle worlds can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    actions: Actions = "discrete"
    """Kind of the action spaces."""
    episode_limit: int | None = Field(25, ge=1)
    """Steps after which an episode is cut; None: never."""
    limit_ends: bool = False
    """The limit counts as an end of the task (terminated), not as a cut (truncated)."""
    dynamic_rescaling: bool = True
    """Pictures zoom out to hold everything."""


class ParticleWorld(World):
    """Physics, actions and views of every scenario; a scenario fills in `start`, `observe`, `pay` and `looks`."""

    def __init__(
        self,
        plan: Plan,
        config: ParticleConfig,
        with_state: bool,
        variant: Variant = "mpe2",
    ):
        self.plan = plan
        self.limit_ends = config.limit_ends
        self.parameters = {**plan.parameters, **plan.optional, **EVERYWHERE}
        if plan.walls is not None:  # what stands in a field with walls stays where it is
            del self.parameters["spread"]
        self.adjusted = lambda state: spread(self.arranged, self.physics.rows, state, plan.places)
        self._rescale = config.dynamic_rescaling
        self._continuous = config.actions == "continuous"
        self._roles = tuple(plan.roles)
        symbols = max((role.symbols for role in plan.roles), default=0)
        speakers = sum(len(role.bodies) for role in plan.roles if role.symbols)
        self.physics = Physics(plan.bodies, plan.measured, (symbols, speakers), plan.memory, variant)
        self._count = sum(len(role.bodies) for role in plan.roles)
        self._symbols = {role.name: role.symbols for role in plan.roles}
        self._moves = {role.name: plan.bodies[role.bodies[0]].moves for role in plan.roles}
        self._tables: dict[tuple[str, torch.device, torch.dtype], Any] = {}
        draws = Draws(torch.zeros(4096, 1))
        self.start(draws)
        self.restart_noise, self.step_noise = draws.used, plan.step_noise
        self._state_rows = self._known_rows() if with_state else {}
        self.spec = self._make_spec(config.episode_limit)
        self._sizes = [(role.name, role.n, math.prod(role.observation_space.shape or ())) for role in self.spec.roles]

    # ------------------------------------------------------------------------------------- for the scenarios

    @abstractmethod
    def start(self, draws: Draws) -> dict[str, Tensor]:
        """The parts of a new episode, [*shape, B] each: `moving`, `rest` and the memory; others begin at zero."""

    @abstractmethod
    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        """What every role sees, [n, D, B]; pos: [2, bodies, B]."""

    @abstractmethod
    def pay(self, now: Now) -> Pay:
        """What the step that led to `now` earned."""

    @abstractmethod
    def looks(self, parts: dict[str, Tensor]) -> Looks:
        """How bodies of a single copy, [.., 1], look different from their `Body`: by name, fields of a Disc."""

    # ----------------------------------------------------------------------------------------- the contract

    def restart(self, noise: Tensor) -> State:
        flat = self.physics.rows.join(self.start(Draws(noise.T.contiguous())))
        score = noise.new_zeros(self._count, len(noise))
        parameters = {name: noise.new_full((len(noise),), p.value) for name, p in self.plan.parameters.items()}
        return {"rows": flat.T, "coast": self._coast(flat), "score": score.T, **parameters}

    def arranged(self, state: State, **parts: Tensor) -> State:
        """The state with those parts, [*shape, B], in place of its own: to start where one likes."""
        rows = self.physics.rows
        flat = rows.join(rows.split(state["rows"].T.contiguous()) | parts)
        return {**state, "rows": flat.T, "coast": self._coast(flat)}

    def _coast(self, flat: Tensor) -> Tensor:
        vel = self.physics.rows.part(flat, "vel")
        return self.physics.coast(vel, self.physics.measure(flat)).permute(2, 0, 1)

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        # Both are views of [.., B] memory except after loading; the same layout gives the same bits.
        flat, coast = state["rows"].T.contiguous(), state["coast"].permute(1, 2, 0).contiguous()
        thrust, comm = self._act(action, flat)
        moving, vel = self.physics.move(flat, coast, thrust, self.physics.scale(state))
        if self.plan.walls is not None:
            moving, vel = self._within(moving, vel)
        kept = flat[self.physics.rows.slices["rest"].start :]
        flat = torch.cat((_flat(moving), _flat(vel), *comm, kept))
        if self.plan.events is not None and noise is not None:
            parts = self.physics.rows.split(flat)
            flat = self.physics.rows.join(parts | self.plan.events(parts, noise.T))
        gaps = self.physics.measure(flat)
        pay = self.pay(Now(flat, gaps, state, self.physics))
        coast = self.physics.coast(vel, gaps, state.get("damping"))
        reward = pay.reward.T
        score = state["score"] + reward
        return (
            {**state, "rows": flat.T, "coast": coast.permute(2, 0, 1), "score": score},
            Outcome(reward=reward, ended=pay.ended, metrics=lambda: pay.metrics(score.T)),
        )

    def view(self, state: State) -> View:
        rows = state["rows"]
        known = {
            name: rows
            if places is None
            else rows[:, self._table(f"state {name}", rows, lambda like, places=places: places.to(like.device))]
            for name, places in self._state_rows.items()
        }
        if not self.plan.linear:
            parts = self.physics.rows.split(rows.T.contiguous())
            seen = self.observe(parts, self.physics.positions(parts))
            return View({role.name: seen[role.name].permute(2, 0, 1) for role in self._roles}, state=known)
        weight, bias = self._table("observation", rows, self._observation_table)
        seen = torch.mm(rows, weight) if bias is None else torch.addmm(bias, rows, weight)
        copies = len(rows)
        if len(self._sizes) == 1:
            ((name, n, size),) = self._sizes
            return View({name: seen.view(copies, n, size)}, state=known)
        blocks = seen.split([n * size for _, n, size in self._sizes], dim=1)
        obs = {name: block.view(copies, n, size) for (name, n, size), block in zip(self._sizes, blocks, strict=True)}
        return View(obs, state=known)

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size, self._rescale)

    def scene(self, state: State) -> Scene:
        """The picture of the single copy that `state` holds."""
        parts = self.physics.rows.split(state["rows"].T.contiguous())
        pos, vel = self.physics.positions(parts)[..., 0].tolist(), parts["vel"][..., 0].tolist()
        looks, discs = self.looks(parts), []
        agents = {i for role in self._roles for i in role.bodies}
        for i, body in enumerate(self.plan.bodies):
            disc = Disc(
                pos[0][i],
                pos[1][i],
                body.size,
                PALETTE[body.color],
                label=body.name if i in agents else "",
                kind=body.kind,
                heading=(vel[0][i], vel[1][i]) if body.moves else None,
            )
            discs.append(replace(disc, **looks.get(body.name, {})))
        said = parts["comm"][..., 0].T.tolist()
        speakers = [agent for role in self.spec.roles if self._symbols[role.name] for agent in role.agents]
        messages = [Message(name, _words(symbols)) for name, symbols in zip(speakers, said, strict=True)]
        places = self.spec.role_slices()
        score = {name: float(state["score"][0, place].mean()) for name, place in places.items()}
        return Scene(self.plan.name, tuple(discs), tuple(messages), score=score)

    # --------------------------------------------------------------------------------------------- workings

    def _act(self, action: dict[str, Action], like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The movers' thrust [2, M, B], as a change of velocity, and what is said: a list with [C S, B], or empty."""
        thrust, said = [], []
        for role in self._roles:
            move, speech = self._table(role.name, like, lambda like, role=role: self._action_tables(role, like))
            taken = action[role.name]
            if taken.discrete is not None:
                chosen = taken.discrete.squeeze(-1).T
                if move is not None:
                    thrust.append(move[:, chosen])
                if speech is not None:
                    said.append(speech[:, chosen])
            elif taken.continuous is not None:
                # [-1, 1] to the bounds of every continuous space here, 0 and 1.
                numbers = ((taken.continuous.to(like.dtype).clamp(-1, 1) + 1) * 0.5).permute(2, 1, 0)
                if move is not None:
                    thrust.append(torch.tensordot(move, numbers[:_MOVES], dims=1))
                if speech is not None:
                    said.append(numbers[-role.symbols :])
        moved = thrust[0] if len(thrust) == 1 else torch.cat(thrust, dim=1) if thrust else like.new_zeros(2, 0, 1)
        if thrust and moved.shape[1] < self.physics.movers:
            moved = pad(moved, (0, 0, 0, self.physics.movers - moved.shape[1]))
        spoken = torch.cat(said, dim=1) if len(said) > 1 else said[0] if said else None
        return moved, [] if spoken is None else [_flat(spoken)]

    def _within(self, moving: Tensor, vel: Tensor) -> tuple[Tensor, Tensor]:
        """Places and velocities [2, M, B] with those who reached a wall turned round at it."""
        far, bounce = self._table("walls", vel, lambda like: like.new_tensor(self.plan.walls).unsqueeze(-1))
        inside = moving.clamp(-far, far)
        return inside, torch.where((moving != inside) & (moving * vel > 0), -bounce * vel, vel)

    def _action_tables(self, role: Role, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """By choice: the change of velocity [2, A] and the symbol said [C, A]; a choice is move + 5 x symbol."""
        body = self.plan.bodies[role.bodies[0]]
        symbols = max(role.symbols, 1)
        continuous = self._continuous
        move = speech = None
        if body.moves:
            signs = SIGNS[self.physics.variant]
            move = torch.zeros(2, _MOVES, dtype=torch.float64)
            move[0, 1:3] = torch.tensor(signs[:2]) * (-1 if role.mirrored else 1)
            move[1, 3:5] = torch.tensor(signs[2:])
            move = (move * (body.thrust * DT / body.mass)).repeat(1, 1 if continuous else symbols).to(like)
        if role.symbols and not continuous:
            speech = torch.eye(role.symbols).repeat_interleave(_MOVES if body.moves else 1, dim=1).to(like)
        elif role.symbols:
            speech = torch.eye(role.symbols).to(like)
        return move, speech

    def _table(self, name: str, like: Tensor, make: Callable[[Tensor], Any]) -> Any:
        key = (name, like.device, like.dtype)
        if key not in self._tables:
            self._tables[key] = make(like)
        return self._tables[key]

    def _observation_table(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """The affine map from rows to all observations, read off `observe` at the unit vectors and at zero."""

        def flat_view(flat: Tensor) -> Tensor:
            parts = self.physics.rows.split(flat)
            seen = self.observe(parts, self.physics.positions(parts))
            return torch.cat([_flat(seen[role.name]) for role in self._roles]).T

        bias = flat_view(torch.zeros(self.physics.rows.size, 1, dtype=torch.float64))
        weight = flat_view(torch.eye(self.physics.rows.size, dtype=torch.float64)) - bias
        return weight.contiguous().to(like), bias[0].to(like) if bool(bias.any()) else None

    def _known_rows(self) -> dict[str, Tensor | None]:
        """By state: the rows that it shows; None for all."""
        known: dict[str, Tensor | None] = {"global": None}
        for group, hidden in self.plan.hidden.items():
            names = [name for name in self.physics.rows.shapes if name not in hidden]
            known[group] = torch.cat([torch.arange(self.physics.rows.size)[self.physics.rows.slices[n]] for n in names])
        return known

    def _make_spec(self, episode_limit: int | None) -> EnvSpec:
        rows = self.physics.rows
        parts = rows.split(torch.rand(rows.size, 1, generator=torch.Generator().manual_seed(0)))
        seen = self.observe(parts, self.physics.positions(parts))
        roles = []
        for role in self._roles:
            moves = _MOVES if self._moves[role.name] else 0
            if self._continuous:
                action_space = spaces.Box(0.0, 1.0, (moves + role.symbols,))
            else:
                action_space = spaces.Discrete(max(moves, 1) * max(role.symbols, 1))
            roles.append(
                RoleSpec(
                    name=role.name,
                    group=role.group,
                    agents=tuple(self.plan.bodies[i].name for i in role.bodies),
                    observation_space=spaces.Box(-np.inf, np.inf, (seen[role.name].shape[1],), np.float32),
                    action_space=action_space,
                    **self._names(moves, role),
                )
            )
        return EnvSpec(
            name=f"particle/{self.plan.name}",
            roles=tuple(roles),
            state_sizes={
                name: rows.size if places is None else len(places) for name, places in self._state_rows.items()
            },
            metrics=self.plan.metrics,
            episode_limit=episode_limit,
            equal_sides=self.plan.equal_sides,
        )

    def _names(self, moves: int, role: Role) -> dict[str, Any]:
        """What choices or numbers of a role with so many moves are called."""
        signs = SIGNS[self.physics.variant]
        signs = (-signs[0], -signs[1], *signs[2:]) if role.mirrored else signs
        sides = [("left", "right")[signs[0] > 0], ("left", "right")[signs[1] > 0]]
        steps = ["stay", *sides, ("down", "up")[signs[2] > 0], ("down", "up")[signs[3] > 0]][:moves]
        says = [f"say {chr(ord('A') + i)}" for i in range(role.symbols)]
        if self._continuous:
            return {"number_names": (*steps, *says)}
        both = [f"{step}, {said}" for said in says for step in steps]
        return {"choice_names": (tuple(both or steps or says or ["stay"]),)}


def _flat(part: Tensor) -> Tensor:
    """[.., B] as [rows, B]."""
    return part.flatten(0, -2)


def _words(symbols: list[float]) -> str:
    """What was said: a letter for one symbol, nothing for silence, else the numbers."""
    if not any(symbols):
        return "_"
    if sorted(symbols)[-2:] == [0.0, 1.0] or symbols == [1.0]:
        return chr(ord("A") + symbols.index(1.0))
    return " ".join(f"{number:.2f}" for number in symbols)


def chosen(value: Tensor, one_hot: Tensor) -> Tensor:
    """The value [.., K, B] at the one that `one_hot` [.., K, B] marks: [.., B]."""
    return (value * one_hot).sum(-2)


def goal_looks(goal: Tensor) -> Looks:
    """The landmark that `goal` [landmarks, 1] marks, drawn as the goal."""
    return {f"landmark_{int(goal[:, 0].argmax())}": {"color": PALETTE["green"], "kind": "goal"}}
