"""One copy of an environment in which policies and people act, row by row, with what policies weigh up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.algos.algorithm import Judging
from coterie.collect import act, due, seen
from coterie.envs.vector import VectorEnv, advance
from coterie.envs.vector import begin as begin_in
from coterie.nets.joint import beside, encoded
from coterie.nets.memory import Carry
from coterie.playing.recording import rounded
from coterie.playing.seats import Choice, Seat
from coterie.policy import Inspectable, Mode, Policy, Thought
from coterie.seeds import generator
from coterie.types import Action, ActionSpec, EnvSpec, RoleSpec, Row, Step, TeamSpec


@dataclass(frozen=True)
class Cast:
    """Who acts: policies, how they pick, and critics that have something to say, by team."""

    policies: dict[str, Policy]
    modes: dict[str, Mode]
    critics: dict[str, Judging] = field(default_factory=dict)
    algos: dict[str, str] = field(default_factory=dict)

    @property
    def teams(self) -> dict[str, TeamSpec]:
        return {name: policy.team for name, policy in self.policies.items()}


@dataclass(frozen=True)
class Moment:
    """A row as plain words (`RowRecord`, but for the number of its episode), and its picture, uint8 [H, W, 3]."""

    row: dict[str, Any]
    frame: np.ndarray


class Game:
    """Plays in an environment of one copy; seats' agents do what their players want, all others what policies draw.

    Without seats the episodes of a seed are those that `coterie play --video` records. Nothing is differentiated: call
    it within `torch.inference_mode`.
    """

    def __init__(self, env: VectorEnv, cast: Cast, seats: list[Seat], seed: int, size: int):
        self.env, self.cast, self.seats, self.seed, self._size = env, cast, seats, seed, size
        self._noises = {name: generator(seed, "noise", name, device=env.device) for name in cast.policies}
        self._team_of = {agent: team.name for team in cast.teams.values() for agent in team.agents}
        self._agents = [(role, i) for role in env.spec.roles for i in range(role.n)]
        self._slices = env.spec.role_slices()
        self._begun = False

    # ------------------------------------------------------------------------------------------------------ playing

    def begin(self) -> Moment:
        """A new episode: the seed's first one at first, and then the next."""
        with torch.inference_mode():
            self._row = begin_in(self.env, None if self._begun else self.seed)
            self._begun = True
            self._carry = {name: policy.start(1) for name, policy in self.cast.policies.items()}
            self._memory = {name: critic.start_judging(1) for name, critic in self.cast.critics.items()}
            self._restart()
            return self._moment(None, {})

    @property
    def over(self) -> bool:
        """The episode has ended; the next step begins another."""
        return not bool(self._row.acted[0])

    def mask(self, seat: Seat) -> list[bool] | None:
        """What a seat can choose in this row."""
        mask = self._row.action_mask.get(seat.role.name)
        return None if mask is None or self.over else mask[0, seat.place].tolist()

    def alive(self, seat: Seat) -> bool:
        """Whether a seat's agent exists in this row and can act."""
        return bool(self._row.alive[0, seat.agent]) and not self.over

    def waits(self) -> list[str]:
        """Who has to choose before the next step."""
        return [s.name for s in self.seats if self.alive(s) and s.decide(self.mask(s))[0] is None]

    @property
    def forced(self) -> bool:
        """No player has anything to decide in this row, and some could if it were their turn."""
        there = [seat for seat in self.seats if self.alive(seat)]
        return bool(there) and all(seat.forced(self.mask(seat)) for seat in there)

    def step(self) -> tuple[Moment, str]:
        """The next row, and what was not done as it was wished. Nobody may be waited for."""
        with torch.inference_mode():
            row, refused = self._row, ""
            if self.over:  # a closing row asks for no action
                _, self._row = advance(self.env, self._actions)
                for seat in self.seats:
                    seat.stepped()
                self._restart()
                return self._moment(None, {}), refused
            noise = {name: p.noise(1, 1, self._noises[name])[0] for name, p in self.cast.policies.items()}
            actions, _, self._carry = act(self.cast.policies, row, self._carry, noise, self.cast.modes)
            for seat in self.seats:
                if self.alive(seat):
                    choice, said = seat.decide(self.mask(seat))
                    assert choice is not None
                    actions[seat.role.name] = _done(actions[seat.role.name], seat, choice)
                    refused = said or refused
                seat.stepped()
            self._remember(actions)
            self._actions = actions
            step, self._row = advance(self.env, actions)
            self._count(step, row)
            return self._moment(step, actions), refused

    def _remember(self, actions: dict[str, Action]) -> None:
        """Policies that read what was done in the row before read what was done indeed."""
        for team in {self._team_of[seat.name] for seat in self.seats}:
            carry: Carry = self._carry[team]
            if "last" in carry:
                spec = self.cast.policies[team].team
                done = beside({role.name: encoded(role.action, actions[role.name]) for role in spec.roles})
                there = self._row.alive[:, spec.start : spec.stop, None]
                self._carry[team] = carry | {"last": torch.where(there, done, 0.0)}

    # -------------------------------------------------------------------------------------------------- what is told

    def header(self, title: str, frame: np.ndarray) -> dict[str, Any]:
        """What a recording says of itself, and a page begins with: fields of `Header`."""
        spec = self.env.spec
        return {
            "title": title,
            "env": spec.name,
            "algos": self.cast.algos,
            "seed": self.seed,
            "agents": [_agent(role, role.agents[i], self._team_of[role.agents[i]]) for role, i in self._agents],
            "groups": {g: [a for role in spec.roles if role.group == g for a in role.agents] for g in spec.groups},
            "width": frame.shape[1],
            "height": frame.shape[0],
        }

    def _restart(self) -> None:
        spec: EnvSpec = self.env.spec
        self._number = 0
        self._totals = torch.zeros(spec.n, dtype=torch.float64)
        self._groups = torch.zeros(len(spec.groups), dtype=torch.float64)

    def _count(self, step: Step, row: Row) -> None:
        self._number += 1
        self._totals += due(step.reward, row.acted, row.alive)[0].cpu().double()
        self._groups += due(step.group_reward, row.acted)[0].cpu().double()

    def _moment(self, step: Step | None, actions: dict[str, Action]) -> Moment:
        """The present row in words; step, actions: what led to it, None and {} in an episode's first row."""
        row, spec = self._row, self.env.spec
        thoughts, values = self._thoughts()
        agents = []
        for k, (role, i) in enumerate(self._agents):
            alive = bool(row.alive[0, k])
            told: dict[str, Any] = {"alive": alive, "total": rounded([float(self._totals[k])])[0]}
            mask = row.action_mask.get(role.name)
            if alive and not self.over:
                told["mask"] = None if mask is None else mask[0, i].tolist()
                told |= _weighed(role.action, thoughts.get(role.name), i)
                told["value"] = rounded([float(values[k])])[0] if k in values else None
            if step is not None:
                told["reward"] = rounded([float(step.reward[0, k])])[0]
                told["did"] = _did(role.action, actions[role.name], i)
            agents.append(told)
        words = {"row": self._number, "closing": self.over, "agents": agents, "returns": self._returns()}
        if step is not None:
            words["group_reward"] = dict(zip(spec.groups, rounded(step.group_reward[0].tolist()), strict=True))
            if self.over:
                words["ended"] = "terminated" if bool(step.episode_terminated[0]) else "truncated"
                words["metrics"] = {name: rounded([float(x[0])])[0] for name, x in step.metrics.items()}
        return Moment(words, self.env.render(0, self._size))

    def _returns(self) -> dict[str, float | None]:
        found = {}
        for name, team in self.cast.teams.items():
            paid = float(self._totals[team.start : team.stop].sum()) + float(self._groups[list(team.groups)].sum())
            found[name] = rounded([paid])[0]
        return found

    def _thoughts(self) -> tuple[dict[str, Thought], dict[int, Tensor]]:
        """What policies weigh up in this row by role, and what critics expect by agent."""
        thoughts: dict[str, Thought] = {}
        values: dict[int, Tensor] = {}
        for name, policy in self.cast.policies.items():
            part = seen(policy.team, self._row)
            if isinstance(policy, Inspectable) and not self.over:
                thoughts |= policy.inspect(part, self._carry[name], self.cast.modes[name])
            if name in self.cast.critics:
                value, self._memory[name] = self.cast.critics[name].judge(part, self._memory[name])
                values |= {policy.team.start + i: x for i, x in enumerate(value[0].cpu())}
        return thoughts, values


def _done(action: Action, seat: Seat, choice: Choice) -> Action:
    """The role's action with the seat's own in its place."""
    spec, place = seat.role.action, seat.place
    if action.discrete is not None:
        discrete = action.discrete.clone()
        discrete[0, place] = torch.tensor(choice.discrete, device=discrete.device)
        action = replace(action, discrete=discrete)
    if action.continuous is not None:
        continuous = action.continuous.clone()
        bounds = zip(choice.numbers, spec.low, spec.high, strict=True)
        inner = [2 * (x - low) / (high - low) - 1 if high > low else 0.0 for x, low, high in bounds]
        continuous[0, place] = torch.tensor(inner, device=continuous.device)
        action = replace(action, continuous=continuous)
    return action


def _agent(role: RoleSpec, name: str, team: str) -> dict[str, Any]:
    """Fields of `AgentHeader`; names only where they fit."""
    spec = role.action
    fit = tuple(map(len, role.choice_names)) == spec.choices
    return {
        "name": name,
        "team": team,
        "role": role.name,
        "choices": spec.choices,
        "choice_names": role.choice_names if fit else (),
        "low": spec.low,
        "high": spec.high,
        "number_names": role.number_names if len(role.number_names) == spec.continuous else (),
    }


def _weighed(spec: ActionSpec, thought: Thought | None, i: int) -> dict[str, Any]:
    """What an agent weighs up, its numbers within their bounds."""
    if thought is None:
        return {}
    told: dict[str, Any] = {
        name: rounded(x[0, i].tolist())
        for name, x in (("probability", thought.probability), ("q", thought.q))
        if x is not None
    }
    if thought.mean is not None:
        told["mean"] = rounded(_within(spec, thought.mean[0, i].tolist()))
    if thought.spread is not None:
        widths = zip(thought.spread[0, i].tolist(), spec.low, spec.high, strict=True)
        told["spread"] = rounded([x * (high - low) / 2 for x, low, high in widths])
    return told


def _did(spec: ActionSpec, action: Action, i: int) -> dict[str, Any]:
    """Fields of `Did`."""
    discrete = [] if action.discrete is None else action.discrete[0, i].tolist()
    numbers = [] if action.continuous is None else action.continuous[0, i].tolist()
    return {"discrete": discrete, "continuous": rounded(_within(spec, numbers))}


def _within(spec: ActionSpec, numbers: list[float]) -> list[float]:
    """Numbers in [-1, 1], cut to it, within their bounds."""
    bounds = zip(numbers, spec.low, spec.high, strict=True)
    return [low + (min(max(x, -1.0), 1.0) + 1) / 2 * (high - low) for x, low, high in bounds]
