"""One environment in which policies and people act, with the policy outputs of every timestep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.algos.algorithm import ValueEstimator
from coterie.core.seeds import generator
from coterie.core.specs import ActionSpec, EnvSpec, RoleSpec, TeamSpec
from coterie.core.types import TIME_LEFT, Action, HiddenState, Step, Timestep
from coterie.envs.contract.vector import VectorEnv, render_env, reset_env, step_env
from coterie.nets.joint_actions import encode_actions, pad_by_agent
from coterie.playing.episode_recording import round_all
from coterie.playing.seats import Choice, Seat
from coterie.policies.base import ActionDistribution, InspectablePolicy, Mode, Policy
from coterie.training.other_teams import other_teams
from coterie.training.rollout_builder import mask_rewards
from coterie.training.trajectory import act, team_view


@dataclass(frozen=True)
class Players:
    """Policies, action modes and value estimators by team."""

    policies: dict[str, Policy]
    modes: dict[str, Mode]
    critics: dict[str, ValueEstimator] = field(default_factory=dict)
    algos: dict[str, str] = field(default_factory=dict)

    @property
    def teams(self) -> dict[str, TeamSpec]:
        return {name: policy.team for name, policy in self.policies.items()}


@dataclass(frozen=True)
class Moment:
    """A timestep as a `TimestepRecord` without its episode index, and its image, uint8 [H, W, 3]."""

    timestep: dict[str, Any]
    frame: np.ndarray


class Game:
    """Plays in a single environment; agents with a seat follow their players, all others follow their policies.

    Without seats, the episodes of a seed are those recorded by `coterie play --video`. Call it within
    `torch.inference_mode`.
    """

    def __init__(self, env: VectorEnv, players: Players, seats: list[Seat], *, seed: int, size: int):
        self.env, self.players, self.seats, self.seed, self._size = env, players, seats, seed, size
        self._noises = {name: generator(seed, "noise", name, device=env.device) for name in players.policies}
        self._team_of = {agent: team.name for team in players.teams.values() for agent in team.agents}
        self._agents = [(role, i) for role in env.spec.roles for i in range(role.n)]
        self._slices = env.spec.role_slices()
        # Roles whose agents' own returns are shown: with group rewards, those that have had one.
        self._rewarded = set() if env.spec.has_group_reward else set(self._slices)
        self._begun = False

    # ---------------------------------------------------------------------------------------------------------- playing

    def begin(self) -> Moment:
        """Starts a new episode: the first one with the seed, later ones continue the random stream."""
        with torch.inference_mode():
            self._timestep = reset_env(self.env, None if self._begun else self.seed)
            self._begun = True
            self._hidden_state = {
                name: policy.initial_hidden_state(1) for name, policy in self.players.policies.items()
            }
            self._critic_states = {
                name: critic.start_value_estimation(1) for name, critic in self.players.critics.items()
            }
            self._reset_totals()
            return self._moment(None, {})

    @property
    def timestep(self) -> Timestep:
        """Current timestep of the environment."""
        return self._timestep

    @property
    def hidden_state(self) -> dict[str, HiddenState]:
        """Hidden state of each team's policy."""
        return self._hidden_state

    @property
    def over(self) -> bool:
        """True if the episode has ended; the next step starts another."""
        return not bool(self._timestep.acted[0])

    def mask(self, seat: Seat) -> list[bool] | None:
        """Action mask of a seat."""
        mask = self._timestep.action_mask.get(seat.role.name)
        return None if mask is None or self.over else mask[0, seat.place].tolist()

    def alive(self, seat: Seat) -> bool:
        """True if the agent of a seat exists and can act."""
        return bool(self._timestep.alive[0, seat.agent]) and not self.over

    def pending(self) -> list[str]:
        """Agents whose players have to choose before the next step."""
        return [s.name for s in self.seats if self.alive(s) and s.decide(self.mask(s))[0] is None]

    @property
    def forced(self) -> bool:
        """True if no player has a decision at this timestep but some could have one in another player's turn."""
        active = [seat for seat in self.seats if self.alive(seat)]
        return bool(active) and all(seat.forced(self.mask(seat)) for seat in active)

    def step(self) -> tuple[Moment, str]:
        """Takes a step. Returns the next timestep and a note on requested actions that were not taken. No player may be
        pending.
        """
        with torch.inference_mode():
            timestep, refused = self._timestep, ""
            if self.over:  # a final timestep needs no action
                _, self._timestep = step_env(self.env, self._actions)
                for seat in self.seats:
                    seat.stepped()
                self._reset_totals()
                return self._moment(None, {}), refused
            noise = {name: p.draw_noise(1, 1, self._noises[name])[0] for name, p in self.players.policies.items()}
            actions, _, self._hidden_state = act(
                self.players.policies, timestep, self._hidden_state, noise=noise, modes=self.players.modes
            )
            for seat in self.seats:
                if self.alive(seat):
                    choice, note = seat.decide(self.mask(seat))
                    assert choice is not None
                    actions[seat.role.name] = _with_choice(actions[seat.role.name], seat, choice)
                    refused = note or refused
                seat.stepped()
            self._store_last_actions(actions)
            self._actions = actions
            step, self._timestep = step_env(self.env, actions)
            self._add_rewards(step, timestep)
            return self._moment(step, actions), refused

    def _store_last_actions(self, actions: dict[str, Action]) -> None:
        """Passes the actual previous actions to policies that observe them."""
        for team in {self._team_of[seat.name] for seat in self.seats}:
            hidden_state: HiddenState = self._hidden_state[team]
            if "last" in hidden_state:
                spec = self.players.policies[team].team
                last = pad_by_agent({role.name: encode_actions(role.action, actions[role.name]) for role in spec.roles})
                alive = self._timestep.alive[:, spec.start : spec.stop, None]
                self._hidden_state[team] = hidden_state | {"last": torch.where(alive, last, 0.0)}

    # ---------------------------------------------------------------------------------------------------------- records

    def header(self, title: str, frame: np.ndarray) -> dict[str, Any]:
        """Fields of `Header` for recordings and pages."""
        spec = self.env.spec
        return {
            "title": title,
            "env": spec.name,
            "algos": self.players.algos,
            "seed": self.seed,
            "agents": [_agent(role, role.agents[i], self._team_of[role.agents[i]]) for role, i in self._agents],
            "groups": {g: [a for role in spec.roles if role.group == g for a in role.agents] for g in spec.groups},
            "width": frame.shape[1],
            "height": frame.shape[0],
        }

    def _reset_totals(self) -> None:
        spec: EnvSpec = self.env.spec
        self._number = 0
        self._totals = torch.zeros(spec.n, dtype=torch.float64)
        self._groups = torch.zeros(len(spec.groups), dtype=torch.float64)

    def _add_rewards(self, step: Step, timestep: Timestep) -> None:
        self._number += 1
        self._totals += mask_rewards(step.reward, timestep.acted, timestep.alive)[0].cpu().double()
        self._groups += mask_rewards(step.group_reward, timestep.acted)[0].cpu().double()
        self._rewarded |= {role.name for k, (role, _) in enumerate(self._agents) if self._totals[k]}

    def _moment(self, step: Step | None, actions: dict[str, Action]) -> Moment:
        """The current timestep; `step` and `actions` are the transition to it, None and {} at the first one."""
        timestep, spec = self._timestep, self.env.spec
        distributions, values = self._policy_outputs()
        agents = []
        for k, (role, i) in enumerate(self._agents):
            alive = bool(timestep.alive[0, k])
            total = round_all([float(self._totals[k])])[0] if role.name in self._rewarded else None
            fields: dict[str, Any] = {"alive": alive, "total": total}
            mask = timestep.action_mask.get(role.name)
            if alive and not self.over:
                fields["mask"] = None if mask is None else mask[0, i].tolist()
                fields |= _outputs_of(role.action, distributions.get(role.name), i)
                fields["value"] = round_all([float(values[k])])[0] if k in values else None
            if step is not None:
                fields["reward"] = round_all([float(step.reward[0, k])])[0]
                fields["action"] = _recorded_action(role.action, actions[role.name], i)
            agents.append(fields)
        fields = {"timestep": self._number, "final": self.over, "agents": agents, "returns": self._returns()}
        if step is not None:
            fields["group_reward"] = dict(zip(spec.groups, round_all(step.group_reward[0].tolist()), strict=True))
            if self.over:
                fields["ended"] = "terminated" if bool(step.episode_terminated[0]) else "truncated"
                fields["metrics"] = {name: round_all([float(x[0])])[0] for name, x in step.metrics.items()}
        return Moment(fields, render_env(self.env, 0, self._size))

    def _returns(self) -> dict[str, float | None]:
        found = {}
        for name, team in self.players.teams.items():
            total = float(self._totals[team.start : team.stop].sum()) + float(self._groups[list(team.groups)].sum())
            found[name] = round_all([total])[0]
        return found

    def _time_left(self) -> dict[str, Tensor]:
        limit = self.env.spec.episode_limit
        left = 0.0 if limit is None else 1 - self._number / limit
        return {TIME_LEFT: torch.full((1, 1), left, device=self.env.device)}

    def _policy_outputs(self) -> tuple[dict[str, ActionDistribution], dict[int, Tensor]]:
        """Action distributions by role and value estimates by agent."""
        distributions: dict[str, ActionDistribution] = {}
        values: dict[int, Tensor] = {}
        for name, policy in self.players.policies.items():
            part = team_view(policy.team, self._timestep)
            if isinstance(policy, InspectablePolicy) and not self.over:
                distributions |= policy.action_distribution(part, self._hidden_state[name], self.players.modes[name])
            if name in self.players.critics:
                others = other_teams(policy.team, self._timestep, self.env.spec)
                part = replace(part, others=others, state=part.state | self._time_left())
                value, self._critic_states[name] = self.players.critics[name].estimate_value(
                    part, self._critic_states[name]
                )
                values |= {policy.team.start + i: x for i, x in enumerate(value[0].cpu())}
        return distributions, values


def _with_choice(action: Action, seat: Seat, choice: Choice) -> Action:
    """The action of the role with the seat's own action inserted."""
    spec, place = seat.role.action, seat.place
    if action.discrete is not None:
        discrete = action.discrete.clone()
        discrete[0, place] = torch.tensor(choice.discrete, device=discrete.device)
        action = replace(action, discrete=discrete)
    if action.continuous is not None:
        continuous = action.continuous.clone()
        inner = [spec.from_number(x, c) for c, x in enumerate(choice.numbers)]
        continuous[0, place] = torch.tensor(inner, device=continuous.device)
        action = replace(action, continuous=continuous)
    return action


def _agent(role: RoleSpec, name: str, team: str) -> dict[str, Any]:
    """Fields of `AgentHeader`; names only if they match the action space."""
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


def _outputs_of(spec: ActionSpec, distribution: ActionDistribution | None, i: int) -> dict[str, Any]:
    """Policy outputs of an agent, continuous values within their bounds."""
    if distribution is None:
        return {}
    fields: dict[str, Any] = {
        name: round_all(x[0, i].tolist())
        for name, x in (("probability", distribution.probability), ("q", distribution.q))
        if x is not None
    }
    if distribution.mean is not None:
        fields["mean"] = round_all(_within(spec, distribution.mean[0, i].tolist()))
    if distribution.std is not None:
        fields["std"] = round_all([x * spec.width(c) / 2 for c, x in enumerate(distribution.std[0, i].tolist())])
    return fields


def _recorded_action(spec: ActionSpec, action: Action, i: int) -> dict[str, Any]:
    """Fields of `RecordedAction`."""
    discrete = [] if action.discrete is None else action.discrete[0, i].tolist()
    numbers = [] if action.continuous is None else action.continuous[0, i].tolist()
    return {"discrete": discrete, "continuous": round_all(_within(spec, numbers))}


def _within(spec: ActionSpec, numbers: list[float]) -> list[float]:
    """Maps values in [-1, 1] (clipped) to their bounds."""
    return [spec.to_number(x, c) for c, x in enumerate(numbers)]
