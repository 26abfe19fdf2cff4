"""A run's policies on plain numpy: one environment's observations in, native actions out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor

from coterie.build import AskedMode, eval_modes, find_checkpoint, load_learners
from coterie.envs.adapters.spaces import Actuator
from coterie.errors import UserError, nearest
from coterie.nets.memory import Carry
from coterie.policy import Mode, Policy
from coterie.rundir import RunDir
from coterie.schema import RunConfig
from coterie.seeds import generator
from coterie.types import Action, RoleSpec, Row, TeamSpec, tree_map

Obs = Mapping[str, Any] | ArrayLike


class Loaded:
    """What a run learned, ready to act.

    path: the run's folder; config: its configuration; steps: when the checkpoint was written; policies: by team.
    `act` and `reset` are those of a player of all teams; `player` makes others, each with a memory of its own.
    """

    def __init__(self, run: str | Path, checkpoint: str = "best", device: str | torch.device = "cpu"):
        folder = RunDir.open(run)
        self.path = folder.path
        self.config: RunConfig
        self.config, learners = load_learners(folder.path, checkpoint, torch.device(device))
        self.steps = find_checkpoint(folder, checkpoint).steps
        self.policies: dict[str, Policy] = {name: learner.policy for name, learner in learners.items()}
        self._published = eval_modes("auto", learners)
        self._player = self.player()

    @property
    def teams(self) -> dict[str, TeamSpec]:
        """The run's teams by name, with their roles, agents and spaces."""
        return {name: policy.team for name, policy in self.policies.items()}

    def player(self, team: str | None = None, mode: AskedMode = "auto", seed: int = 0) -> Player:
        """One who acts for all teams, or for one; mode: greedy, sample, or auto, as the algorithm was published.

        UserError for a team that the run does not have.
        """
        if team is not None and team not in self.policies:
            raise UserError(f"the run {self.path} has no team '{team}': {nearest(team, self.policies)}")
        if mode not in ("auto", "greedy", "sample"):
            raise UserError(f"mode='{mode}': {nearest(str(mode), ('auto', 'greedy', 'sample'))}")
        chosen = {name: policy for name, policy in self.policies.items() if team in (None, name)}
        modes: dict[str, Mode] = self._published if mode == "auto" else dict.fromkeys(chosen, mode)
        bystanders = [role for name, p in self.policies.items() if name not in chosen for role in p.team.roles]
        return Player(chosen, modes, seed, bystanders)

    def act(self, obs: Obs, action_mask: Obs | None = None) -> Any:
        """See `Player.act`."""
        return self._player.act(obs, action_mask)

    def reset(self, seed: int | None = None) -> None:
        """See `Player.reset`."""
        self._player.reset(seed)


class Player:
    """Acts in one environment, step by step, and remembers between steps what recurrent policies remember.

    policies, modes: by team; seed: of sampled actions; bystanders: roles of other teams, whom it ignores.
    """

    def __init__(
        self, policies: Mapping[str, Policy], modes: Mapping[str, Mode], seed: int, bystanders: list[RoleSpec]
    ):
        self._policies, self._modes = dict(policies), modes
        self._teams = {name: policy.team for name, policy in policies.items()}
        self._roles = [role for team in self._teams.values() for role in team.roles]
        self._owner = {agent: role for role in self._roles for agent in role.agents}
        self._ignored = {name for role in bystanders for name in (role.name, *role.agents)}
        self._seed = seed
        self.reset(seed)

    def reset(self, seed: int | None = None) -> None:
        """Begins a new episode: memory is zeroed. seed: draws sampled actions from there; None draws on."""
        if seed is not None:
            self._noise = {
                name: generator(seed, "player", name, device=_device(p)) for name, p in self._policies.items()
            }
        self._carry: dict[str, Carry] = {name: policy.start(1) for name, policy in self._policies.items()}
        self._alive = {name: torch.zeros(1, team.n, dtype=torch.bool) for name, team in self._teams.items()}

    def act(self, obs: Obs, action_mask: Obs | None = None) -> Any:
        """What everybody does on one observation each, in the form that the observations have.

        obs: {agent: array}, an agent that is missing is dead; or {role: array [n, ...]}; or the one array of a single
        agent. action_mask: in the same form, arrays [sum A] of what can be chosen; whoever is missing can do all.
        Returns for every agent an int (Discrete), an int array (MultiDiscrete), a float array within the space's bounds
        (Box), or a tuple of these; for a role, such arrays [n, ...] or a list of tuples. UserError for names that the
        run does not know, and for other shapes.
        """
        shown = self._by_agent(obs, "obs")
        masks = {} if action_mask is None else self._by_agent(action_mask, "action_mask")
        for agent, mask in masks.items():
            parts = np.split(mask, np.cumsum(self._owner[agent].action.choices)[:-1])
            if not all(part.any() for part in parts):
                raise UserError(f"action_mask of '{agent}' leaves nothing to choose: {mask.astype(int).tolist()}")
        taken: dict[str, Any] = {}
        for name, policy in self._policies.items():
            team = self._teams[name]
            row = self._row(name, team, shown, masks)
            if not bool(row.alive.any()):
                continue
            row = tree_map(lambda x, policy=policy: x.to(_device(policy)), row)
            noise = policy.noise(1, 1, self._noise[name])[0]
            with torch.inference_mode():
                action, self._carry[name], _ = policy.act(row, self._carry[name], noise, self._modes[name])
            for role in team.roles:
                native = to_native(action[role.name], role.action_space)
                taken |= dict(zip(role.agents, native, strict=True))
        return self._like(obs, taken)

    # ------------------------------------------------------------------------------------------------ forms of input

    def _by_agent(self, given: Obs, what: str) -> dict[str, np.ndarray]:
        """The arrays by agent. UserError for names that are not there and for wrong shapes."""
        if not isinstance(given, Mapping):
            if len(self._owner) != 1:
                raise UserError(
                    f"{what}: one array came for {len(self._owner)} agents; expected a dict by agent "
                    f"({', '.join(self._owner)}) or by role ({', '.join(role.name for role in self._roles)})"
                )
            given = {next(iter(self._owner)): given}
        arrays: dict[str, np.ndarray] = {}
        for name, value in given.items():
            role = self._named(name, value, what)
            if role is not None:
                stacked = _checked(value, (role.n, *_shape(role, what)), f"{what} of role '{name}'")
                arrays |= dict(zip(role.agents, stacked, strict=True))
            elif name in self._owner:
                arrays[name] = _checked(value, _shape(self._owner[name], what), f"{what} of '{name}'")
        return arrays

    def _named(self, name: str, value: Any, what: str) -> RoleSpec | None:
        """The role that `name` stands for, None for an agent or a bystander."""
        role = next((role for role in self._roles if role.name == name), None)
        if role is not None and (name not in self._owner or np.ndim(value) == 1 + len(_shape(role, what))):
            return role
        if name not in self._owner and name not in self._ignored:
            known = [*self._owner, *(role.name for role in self._roles)]
            raise UserError(f"{what}: there is no agent or role '{name}' in this run: {nearest(name, known)}")
        return None

    def _row(self, name: str, team: TeamSpec, shown: dict[str, np.ndarray], masks: dict[str, np.ndarray]) -> Row:
        """The team's row of one copy; who shows nothing is dead, and who was dead before begins a life."""
        alive = torch.tensor([[agent in shown for agent in team.agents]])
        obs, action_mask = {}, {}
        for role in team.roles:
            nothing = np.zeros(_shape(role, "obs"), np.float32)
            picture = role.observation_space.dtype == np.uint8  # which networks scale
            seen = [shown.get(agent, nothing) for agent in role.agents]
            obs[role.name] = _stacked(seen, torch.uint8 if picture else torch.float32)
            if any(agent in masks for agent in role.agents):
                everything = np.ones(role.action.mask_size, bool)
                able = [masks[agent] if agent in masks and agent in shown else everything for agent in role.agents]
                action_mask[role.name] = _stacked(able, torch.bool)
        first = alive & ~self._alive[name]
        self._alive[name] = alive
        return Row(obs, action_mask, {}, alive, first, torch.ones(1, dtype=torch.bool))

    def _like(self, given: Obs, taken: dict[str, Any]) -> Any:
        """Actions by agent in the form that the observations had."""
        if not isinstance(given, Mapping):
            return next(iter(taken.values()))
        shaped: dict[str, Any] = {}
        for name, value in given.items():
            role = self._named(name, value, "obs")
            if role is not None:
                actions = [taken[agent] for agent in role.agents]
                shaped[name] = actions if isinstance(actions[0], tuple) else np.stack(actions)
            elif name in self._owner:
                shaped[name] = taken[name]
        return shaped


def to_native(action: Action, space: spaces.Space) -> list[Any]:
    """Actions of a role [1, n, ..] as its n agents' own space has them."""
    discrete, continuous = (None if x is None else x[0].cpu().numpy() for x in (action.discrete, action.continuous))
    return [_plain(native) for native in Actuator(space)(discrete, continuous)]


def _plain(native: Any) -> Any:
    """Choices as plain ints."""
    if isinstance(native, tuple):
        return tuple(_plain(part) for part in native)
    return int(native) if isinstance(native, np.integer) else native


def _shape(role: RoleSpec, what: str) -> tuple[int, ...]:
    """The shape of one agent's observation or mask."""
    return (role.action.mask_size,) if what == "action_mask" else tuple(role.observation_space.shape or ())


def _checked(value: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """The array of a value. UserError unless it has the shape and finite numbers; for a mask, something to choose."""
    try:
        array = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is a {type(value).__name__}: expected numbers of shape {list(shape)}") from error
    if array.shape != shape:
        raise UserError(f"{what} has shape {list(array.shape)}: expected {list(shape)}")
    if not np.isfinite(array).all():
        raise UserError(f"{what} is NaN or infinite at index {np.argwhere(~np.isfinite(array))[0].tolist()}")
    return array


def _stacked(arrays: list[np.ndarray], dtype: torch.dtype) -> Tensor:
    """Arrays of a role's agents as one tensor [1, n, ...]."""
    return torch.from_numpy(np.stack(arrays)).to(dtype).unsqueeze(0)


def _device(policy: Policy) -> torch.device:
    return getattr(policy, "device", torch.device("cpu"))
