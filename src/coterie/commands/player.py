"""Trained policies on NumPy arrays: observations of one environment in, native actions out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor

from coterie.assembly.learners import EvalMode, eval_modes, load_run
from coterie.commands.saved_run import SavedRun
from coterie.core.errors import UserError, nearest
from coterie.core.markup import Markup, element, join, paragraphs
from coterie.core.seeds import generator
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.teams import roles_table
from coterie.core.tree import tree_map
from coterie.core.types import Action, HiddenState, Timestep
from coterie.envs.external.mask_sources import MaskForm, as_mask
from coterie.envs.external.spaces import Actuator
from coterie.export.portable.checked_numbers import axes_of, checked_numbers
from coterie.export.portable.observation_reader import ObservationReader
from coterie.export.portable.policy_files import PolicyError
from coterie.export.subject import nested, observation_entry
from coterie.policies.base import Mode, Policy
from coterie.runs.folder import RunFolder

Obs = Mapping[str, Any] | ArrayLike

_MASK, _OBSERVATION = "action_mask", "observation"


def split_masks(
    obs: Obs, action_mask: Obs | None, readers: Mapping[str, ObservationReader] | None = None
) -> tuple[Obs, Obs | None]:
    """Splits dicts with an action mask into observations and masks.

    Args:
        obs: Observations by agent or role, or of a single agent. Each may be {"observation": array, "action_mask":
            array}, or a dict of sensors and the mask.
        action_mask: Masks in the same form, for observations without a mask of their own; None for none.
        readers: Readers of the roles by the names of the roles and of their agents.

    Returns:
        Observations, as arrays or by sensor, and the masks, None if there are none.

    Raises:
        UserError: If a mask is given twice, or such a dict has other keys.
    """
    if not isinstance(obs, Mapping):
        return obs, action_mask
    readers = readers or {}
    if is_single(obs, readers):
        observation, mask = _split("obs", obs, next(iter(readers.values()), None))
        if mask is not None and action_mask is not None:
            raise UserError("action_mask: given twice, also in obs. Remove one of them.")
        return observation, action_mask if mask is None else mask
    arrays: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    for name, value in obs.items():
        arrays[name] = value
        if isinstance(value, Mapping) and (name in readers or not readers):
            arrays[name], mask = _split(f"obs of '{name}'", value, readers.get(name))
            if mask is not None:
                masks[name] = mask
    if not masks:
        return arrays, action_mask
    if action_mask is not None and not isinstance(action_mask, Mapping):
        raise UserError("action_mask: one array, but the observations have masks by agent. Remove it.")
    twice = next((name for name in action_mask or {} if name in masks), None)
    if twice is not None:
        raise UserError(f"action_mask of '{twice}': given twice, also in its observation. Remove one of them.")
    return arrays, masks | dict(action_mask or {})


def is_single(obs: Any, readers: Mapping[str, ObservationReader]) -> bool:
    """True if a dict is the observation of a single agent, not a dict by agent or role."""
    if not isinstance(obs, Mapping):
        return True
    only = next(iter(readers.values()), None)
    if only is None or len(only.agents) != 1 or any(reader is not only for reader in readers.values()):
        return _OBSERVATION in obs and not isinstance(obs[_OBSERVATION], Mapping)
    names = set(map(str, obs))
    named = [name for name in obs if name in readers]
    if only.keys and names - {_MASK} <= only.keys and not any(isinstance(obs[name], Mapping) for name in named):
        return True
    return not named and (_OBSERVATION in obs or _MASK in obs or bool(only.keys & names))


def _split(what: str, given: Mapping[str, Any], reader: ObservationReader | None) -> tuple[Any, Any]:
    """Returns observation and mask. UserError for other keys or a missing observation."""
    keys = set() if reader is None else reader.keys
    if _MASK in keys:
        return given, None
    rest = {name: part for name, part in given.items() if name != _MASK}
    if len(rest) == 1 and not keys & set(map(str, rest)) and (_MASK in given or _OBSERVATION in rest):
        return next(iter(rest.values())), given.get(_MASK)
    if keys:
        return rest, given.get(_MASK)
    raise UserError(
        f"{what}: a dict with {', '.join(map(str, given)) or 'no keys'}. Pass an array, or a dict with "
        "observation and action_mask."
    )


class Loaded(SavedRun):
    """The policies of a run's checkpoint, ready to act.

    Its methods for evaluations and videos use this checkpoint by default. `act` and `reset` are those of a player of
    all teams. `player` creates others, each with its own hidden states.

    Args:
        run: Folder of the run.
        checkpoint: auto, best, best:TEAM, last or a number of steps.
        device: Device of the networks.

    Attributes:
        path: Folder of the run.
        config: Configuration of the run.
        steps: Environment steps when the checkpoint was written.
        checkpoint: The checkpoint, its step and how it was chosen, as in the output of `coterie evaluate --json`.
        policies: Policies by team.
    """

    def __init__(self, run: str | Path, checkpoint: str = "auto", device: str | torch.device = "cpu"):
        folder = RunFolder.open(run)
        self.path = self.run = folder.path
        trained = load_run(folder.path, checkpoint, torch.device(device), announce=False)
        assert trained.choice is not None
        self.config, learners = trained.config, trained.algorithms
        self.steps, self.checkpoint = trained.choice.found.steps, trained.choice.report()
        self.chosen_checkpoint = str(self.steps)
        self.policies: dict[str, Policy] = {name: learner.policy for name, learner in learners.items()}
        self._published = eval_modes("auto", learners)
        self._player = self.player()

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the checkpoint and the roles of the teams."""
        title = f"{self.config.algo.name} on {self.config.env.name}, step {self.steps:,}"
        roles = [role for team in self.teams.values() for role in team.roles]
        folder = paragraphs([join(("run: ", element("code", self.path)))])
        return join((element("p", element("b", title)), roles_table(roles), folder))

    @property
    def teams(self) -> dict[str, TeamSpec]:
        """Teams by name, with their roles, agents and spaces."""
        return {name: policy.team for name, policy in self.policies.items()}

    def player(self, team: str | None = None, mode: EvalMode = "auto", seed: int = 0) -> Player:
        """Creates a player.

        Args:
            team: The team to act for; None for all teams.
            mode: Action selection: greedy, sample, or auto for that of the algorithm's publication.
            seed: Seed of sampled actions.

        Raises:
            UserError: If the run has no such team.
        """
        if team is not None and team not in self.policies:
            raise UserError(f"the run {self.path} has no team '{team}'. {nearest(team, self.policies)}")
        if mode not in ("auto", "greedy", "sample"):
            raise UserError(f"mode='{mode}'. {nearest(str(mode), ('auto', 'greedy', 'sample'))}")
        chosen = {name: policy for name, policy in self.policies.items() if team in (None, name)}
        modes: dict[str, Mode] = self._published if mode == "auto" else dict.fromkeys(chosen, mode)
        ignored_roles = [role for name, p in self.policies.items() if name not in chosen for role in p.team.roles]
        return Player(chosen, modes, seed, ignored_roles)

    def act(self, obs: Obs, action_mask: Obs | None = None) -> Any:
        """Acts for all teams, see `Player.act`."""
        return self._player.act(obs, action_mask)

    def reset(self, seed: int | None = None) -> None:
        """Starts a new episode, see `Player.reset`."""
        self._player.reset(seed)


class Player:
    """Acts in one environment, step by step, and keeps the hidden states of recurrent policies.

    Args:
        policies: Policies by team.
        modes: Action selection by team.
        seed: Seed of sampled actions.
        ignored_roles: Roles of other teams, whose observations are ignored.
    """

    def __init__(
        self, policies: Mapping[str, Policy], modes: Mapping[str, Mode], seed: int, ignored_roles: list[RoleSpec]
    ):
        self._policies, self._modes = dict(policies), modes
        self._teams = {name: policy.team for name, policy in policies.items()}
        self._roles = [role for team in self._teams.values() for role in team.roles]
        self._owner = {agent: role for role in self._roles for agent in role.agents}
        self._ignored = {name for role in ignored_roles for name in (role.name, *role.agents)}
        self._named_roles = {role.name: role for role in self._roles} | self._owner
        self._readers = {role.name: ObservationReader(observation_entry(role)) for role in self._roles}
        self._named_readers = {name: self._readers[role.name] for name, role in self._named_roles.items()}
        self._seed = seed
        self.reset(seed)

    def reset(self, seed: int | None = None) -> None:
        """Starts a new episode with zero hidden states.

        Args:
            seed: Seed of sampled actions; None to continue the current random stream.
        """
        if seed is not None:
            self._noise = {
                name: generator(seed, "player", name, device=_device(p)) for name, p in self._policies.items()
            }
        self._frames: dict[str, dict[str, np.ndarray]] = {}
        self._hidden_state: dict[str, HiddenState] = {
            name: policy.initial_hidden_state(1) for name, policy in self._policies.items()
        }
        self._alive = {name: torch.zeros(1, team.n, dtype=torch.bool) for name, team in self._teams.items()}

    def act(self, obs: Obs, action_mask: Obs | None = None) -> Any:
        """Returns actions for observations, in the same form.

        Args:
            obs: Observations as the environment returns them: {agent: observation}, where missing agents are dead, or
                that of a single agent. A team whose agents act by what others observe needs those of all agents at
                once. Also {role: array [n, ...]} with the agents of a role stacked, arrays as the policy reads them,
                such as one-hot vectors of discrete values and {"outer.inner": array} for sensors, and {"observation":
                observation, "action_mask": array}, as PettingZoo has it.
            action_mask: Available choices in the same form, arrays [sum A]. Agents without one can choose everything.

        Returns:
            For every agent an action of the environment's space: an int (Discrete), an int array (MultiDiscrete,
            MultiBinary), an array within the bounds (Box), or a tuple or dict of these; for a role such arrays
            [n, ...] or a list of tuples or dicts.

        Raises:
            UserError: For unknown names, wrong shapes, and values that are not numbers of the space.
        """
        names = {str(name): name for name in obs} if isinstance(obs, Mapping) else {}
        obs, action_mask = split_masks(_named_by_text(obs), _named_by_text(action_mask), self._named_readers)
        given_obs = self._arrays(obs)
        masks = {} if action_mask is None else self._masks_by_agent(action_mask)
        self._frames = {
            agent: {name: parts[name] for name in self._reader(agent).stacks} for agent, parts in given_obs.items()
        }
        taken: dict[str, Any] = {}
        for name, policy in self._policies.items():
            team = self._teams[name]
            timestep = self._timestep(name, team, given_obs, masks)
            if not bool(timestep.alive.any()):
                continue
            if policy.communicates and not team.agents_can_die:
                _require_all(name, team, given_obs)
            timestep = tree_map(lambda x, policy=policy: x.to(_device(policy)), timestep)
            noise = policy.draw_noise(1, 1, self._noise[name])[0]
            with torch.inference_mode():
                action, self._hidden_state[name], _ = policy.act(
                    timestep, self._hidden_state[name], noise, self._modes[name]
                )
            for role in team.roles:
                native = to_native(action[role.name], role.action_space)
                taken |= dict(zip(role.agents, native, strict=True))
        shaped = self._like(obs, taken)
        return shaped if self._is_single(obs, "obs") else {names[name]: action for name, action in shaped.items()}

    # ------------------------------------------------------------------------------------------------ input formats

    def _arrays(self, given: Obs) -> dict[str, dict[str, np.ndarray]]:
        """Returns the observations by agent and sensor. UserError for those that are not in their space."""
        with _as_user_errors():
            return {
                agent: self._reader(agent).read(value, f"obs of '{agent}'", self._frames.get(agent))
                for agent, value in self._by_agent(given, "obs").items()
            }

    def _reader(self, agent: str) -> ObservationReader:
        return self._readers[self._owner[agent].name]

    def _by_agent(self, given: Obs, what: str) -> dict[str, Any]:
        """Returns what was given, by agent. UserError or PolicyError for unknown names and numbers of agents."""
        if self._is_single(given, what):
            if len(self._owner) != 1:
                raise UserError(
                    f"{what}: got one array for {len(self._owner)} agents. Pass a dict by agent "
                    f"({', '.join(self._owner)}) or by role ({', '.join(role.name for role in self._roles)})"
                )
            given = {next(iter(self._owner)): given}
        assert isinstance(given, Mapping)
        found: dict[str, Any] = {}
        for name, value in given.items():
            role = self._named(name, value, what)
            if role is not None:
                place = f"{what} of role '{name}'"
                if what == "obs":
                    rows = self._readers[role.name].split_agents(value, place)
                else:
                    rows = checked_numbers(value, (role.n, role.action.mask_size), place, booleans=True)
                found |= dict(zip(role.agents, rows, strict=True))
            elif name in self._owner:
                found[name] = value
        return found

    def _masks_by_agent(self, given: Obs) -> dict[str, np.ndarray]:
        """Returns the masks by agent. UserError for other values than 0 and 1, and for masks that leave no choice."""
        roles = self._named_roles
        if not isinstance(given, Mapping) or (len(self._owner) == 1 and not roles.keys() & given.keys()):
            if len(self._owner) != 1:
                self._by_agent(given, "action_mask")  # which raises
            given = {next(iter(self._owner)): given}
        flat = {}
        for name, mask in given.items():
            with _place(f"action_mask of '{name}'"):
                flat[name] = _flat_mask(mask, roles[name]) if name in roles else mask
        with _as_user_errors():
            masks = {
                agent: checked_numbers(
                    mask, (self._owner[agent].action.mask_size,), f"action_mask of '{agent}'", booleans=True
                )
                for agent, mask in self._by_agent(flat, "action_mask").items()
            }
        for agent, mask in masks.items():
            with _place(f"action_mask of '{agent}'"):
                as_mask(mask)
            parts = np.split(mask, np.cumsum(self._owner[agent].action.choices)[:-1])
            if not all(part.any() for part in parts):
                raise UserError(f"action_mask of '{agent}' leaves no choice: {mask.astype(int).tolist()}")
        return masks

    def _is_single(self, given: Obs, what: str) -> bool:
        """True for one array, or one dict of sensors, instead of a dict by agent or role."""
        return not isinstance(given, Mapping) or (what == "obs" and is_single(given, self._named_readers))

    def _named(self, name: str, value: Any, what: str) -> RoleSpec | None:
        """Returns the role named `name`; None for an agent or an ignored role."""
        role = next((role for role in self._roles if role.name == name), None)
        if role is not None and (name not in self._owner or self._has_agents(value, role, what)):
            return role
        if name not in self._owner and name not in self._ignored:
            known = [*self._owner, *(role.name for role in self._roles)]
            raise UserError(f"{what}: the run has no agent or role '{name}'. {nearest(name, known)}")
        return None

    def _has_agents(self, value: Any, role: RoleSpec, what: str) -> bool:
        """True if the arrays have an axis of agents."""
        return axes_of(value) == 2 if what == "action_mask" else self._readers[role.name].has_agents(value)

    def _timestep(
        self, name: str, team: TeamSpec, given_obs: dict[str, dict[str, np.ndarray]], masks: dict[str, np.ndarray]
    ) -> Timestep:
        """Returns the team's timestep. Agents without observation are dead; agents that were dead before are new."""
        alive = torch.tensor([[agent in given_obs for agent in team.agents]])
        obs, action_mask = {}, {}
        for role in team.roles:
            sensors = self._readers[role.name].sensors
            zeros = {name: np.zeros(sensor["shape"], np.float32) for name, sensor in sensors.items()}
            own_obs = [given_obs.get(agent, zeros) for agent in role.agents]
            stacked = {
                name: _stacked([one[name] for one in own_obs], torch.uint8 if dtype == "uint8" else torch.float32)
                for name, dtype in ((name, sensor["dtype"]) for name, sensor in sensors.items())
            }
            obs[role.name] = nested(stacked, role.observation_space)
            if any(agent in masks for agent in role.agents):
                everything = np.ones(role.action.mask_size, bool)
                able = [masks[agent] if agent in masks and agent in given_obs else everything for agent in role.agents]
                action_mask[role.name] = _stacked(able, torch.bool)
        first = alive & ~self._alive[name]
        self._alive[name] = alive
        return Timestep(
            obs=obs,
            action_mask=action_mask,
            state={},
            alive=alive,
            first=first,
            acted=torch.ones(1, dtype=torch.bool),
        )

    def _like(self, given: Obs, taken: dict[str, Any]) -> Any:
        """Returns actions by agent in the form of the observations."""
        if self._is_single(given, "obs"):
            return next(iter(taken.values()))
        assert isinstance(given, Mapping)
        shaped: dict[str, Any] = {}
        for name, value in given.items():
            role = self._named(name, value, "obs")
            if role is not None:
                actions = [taken[agent] for agent in role.agents]
                shaped[name] = actions if isinstance(actions[0], tuple | dict) else np.stack(actions)
            elif name in self._owner:
                shaped[name] = taken[name]
        return shaped


def _require_all(name: str, team: TeamSpec, given: Mapping[str, Any]) -> None:
    """Raises UserError if an agent of a team that exchanges messages has no observation."""
    missing = [agent for agent in team.agents if agent not in given]
    if missing:
        raise UserError(
            f"obs: {missing[0]} is missing, and the agents of team '{name}' act by what others observe. Pass the "
            f"observations of all of them at once ({', '.join(team.agents)})."
        )


def _named_by_text(given: Any) -> Any:
    """Returns a dict with the texts of its keys, as policies name agents and sensors; other values unchanged."""
    return {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else given


def to_native(action: Action, space: spaces.Space) -> list[Any]:
    """Converts actions of a role [1, n, ..] to its n agents' own space."""
    discrete, continuous = (None if x is None else x[0].cpu().numpy() for x in (action.discrete, action.continuous))
    return [_plain(native) for native in Actuator(space)(discrete, continuous)]


def _plain(native: Any) -> Any:
    """Converts choices to plain ints."""
    if isinstance(native, tuple):
        return tuple(_plain(part) for part in native)
    if isinstance(native, dict):
        return {key: _plain(part) for key, part in native.items()}
    return int(native) if isinstance(native, np.integer) else native


def _flat_mask(mask: Any, role: RoleSpec) -> Any:
    """Returns a mask with the structure of the action space as one array; others are returned unchanged."""
    if not isinstance(mask, Mapping | tuple | list):
        return mask
    try:
        shape = () if isinstance(mask, Mapping) else np.shape(mask)
    except ValueError:  # arrays of several lengths
        shape = ()
    return mask if shape[-1:] == (role.action.mask_size,) else MaskForm(role.action_space).flat(mask)


@contextmanager
def _place(name: str) -> Iterator[None]:
    """Context whose UserErrors begin with a place."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


@contextmanager
def _as_user_errors() -> Iterator[None]:
    """Context whose PolicyErrors are UserErrors."""
    try:
        yield
    except PolicyError as error:
        raise UserError(str(error)) from None


def _stacked(arrays: list[np.ndarray], dtype: torch.dtype) -> Tensor:
    """Stacks the arrays of a role's agents to one tensor [1, n, ...]."""
    return torch.from_numpy(np.stack(arrays)).to(dtype).unsqueeze(0)


def _device(policy: Policy) -> torch.device:
    return getattr(policy, "device", torch.device("cpu"))
