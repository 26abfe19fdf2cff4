"""VMAS, the Vectorized Multi-Agent Simulator, `vmas/<scenario>`: PyTorch steps all copies at once, on any device.

Differs from VMAS's own loop: limits are counted here, so that they are cuts and not ends; every batch has random
numbers of its own (in VMAS all environments of a process share one generator); a copy that ended begins anew on the
next step.
VMAS is licensed under the GPL and is no part of Coterie: it is imported here, when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.envs.adapters.batched import BatchAdapter
from coterie.envs.adapters.topview import top_view
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError, nearest
from coterie.seeds import seed_of
from coterie.types import Action, EnvSpec, RoleSpec, Row, Step, to_bounds

_INSTALL = 'pip install "coterie[vmas]"'


class VMASConfig(BaseModel):
    """Keys of every scenario; the scenario's own are keys as well: `env.n_agents=3`."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True, protected_namespaces=())

    actions: Literal["continuous", "discrete", "multi_discrete"] = "continuous"
    """What agents choose: forces (and messages) as numbers, one of all their combinations, or one choice a part."""
    episode_limit: int | None = Field(100, ge=1)
    """Steps after which an episode is cut; null leaves it to the scenario, and many never end."""


class VMAS(BatchAdapter):
    """The scenario of one name, VMAS's own or those of MPE that it holds."""

    Config = VMASConfig

    def __init__(self, scenario: str):
        self.name, self._scenario = f"vmas/{scenario}", scenario
        self._vmas = _imported(self.name)
        known = [*self._vmas.scenarios, *self._vmas.mpe_scenarios, *self._vmas.debug_scenarios]
        if scenario not in known:
            mend = nearest(self.name, [f"vmas/{other}" for other in known])
            raise UserError(f"there is no environment '{self.name}': {mend}")

    def spec(self, config: BaseModel) -> EnvSpec:
        return self.batch(config, 1, 0, torch.device("cpu")).spec

    def batch(self, config: BaseModel, copies: int, seed: int, device: torch.device) -> VectorEnv:
        assert isinstance(config, VMASConfig)
        keys = {
            "continuous_actions": config.actions == "continuous",
            "multidiscrete_actions": config.actions == "multi_discrete",
            "clamp_actions": True,  # rounding may leave the bounds
            **(config.model_extra or {}),
        }

        def make() -> Any:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Scenario kwargs")
                return self._vmas.make_env(self._scenario, num_envs=copies, device=device, **keys)

        return Batch(self.name, self._vmas, make, config.episode_limit, seed)


@final
class Batch(VectorEnv):
    """One environment of VMAS, which is many copies.

    make: returns VMAS's environment; limit: steps after which an episode is cut. Copies that ended are reset one by
    one, as VMAS offers no other way, and observed once afterwards; where all ended together, one reset does it.
    """

    def __init__(self, name: str, vmas: Any, make: Callable[[], Any], limit: int | None, seed: int):
        self._chance = _Chance(vmas.simulator.environment.Environment.vmas_random_state)
        try:
            with self._chance.own(seed_of(seed, "env", name, "made") >> 32):
                self._env = make()
                infos = self._probe()
        except (UserWarning, TypeError, ValueError, AssertionError, KeyError) as error:
            raise UserError(f"environment '{name}': {' '.join(str(error).split())}") from error
        env = self._env
        self.copies, self.device = int(env.num_envs), torch.device(env.device)
        self._seats = _seats(env)  # by role, places in VMAS's own list of agents
        roles = [self._role(group, name, places) for (group, name), places in self._seats.items()]
        metrics = sorted({str(key) for info in infos for key, value in info.items() if isinstance(value, Tensor)})
        self.spec = EnvSpec(name, tuple(roles), {}, metrics=tuple(metrics), episode_limit=limit, exact_resume=False)
        self._order = [place for places in self._seats.values() for place in places]
        self._seed: int | None = seed  # of the first reset
        self._limit = float("inf") if limit is None else limit
        self._age = torch.zeros(self.copies, dtype=torch.int64, device=self.device)
        self._closing = torch.zeros(self.copies, dtype=torch.bool, device=self.device)
        self._alive = torch.ones(self.copies, self.spec.n, dtype=torch.bool, device=self.device)
        self._no_group_reward = torch.zeros(self.copies, len(self.spec.groups), device=self.device)

    def _probe(self) -> list[dict[str, Any]]:
        """What agents tell beside rewards; many scenarios know it only after a step."""
        return self._env.step([torch.zeros_like(action) for action in self._env.get_random_actions()])[3]

    def _role(self, group: str, name: str, places: list[int]) -> RoleSpec:
        agents, observes, acts = self._env.agents, self._env.observation_space, self._env.action_space
        names = tuple(agents[place].name for place in places)
        return RoleSpec(name, group, names, _space(observes[places[0]]), _space(acts[places[0]]))

    # ------------------------------------------------------------------------------------------------------ episodes

    def reset(self, seed: int | None = None) -> Row:
        seed, self._seed = self._seed if seed is None else seed, None
        own = None if seed is None else seed_of(seed, "env", self.spec.name) >> 32  # 31 bits, as numpy takes them
        with self._chance.own(own):
            seen = self._env.reset()
        self._age.zero_()
        self._closing = torch.zeros_like(self._closing)
        return self._row(seen, torch.ones_like(self._closing))

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        fresh, closed = self._closing, self._closing.nonzero().flatten().tolist()
        with self._chance.own(None):
            if len(closed) == self.copies:
                return self._restarted(fresh)
            seen, rewards, ended, infos = self._env.step(self._native(action))
            if closed:
                for copy in closed:
                    self._env.reset_at(copy, return_observations=False)
                seen = self._env.get_from_scenario(True, get_rewards=False, get_infos=False, get_dones=False)[0]
        self._age = torch.where(fresh, 0, self._age + 1)
        ended = ended & ~fresh
        cut = (self._age >= self._limit) & ~fresh & ~ended
        self._closing = ended | cut
        reward = torch.stack([rewards[place] for place in self._order], -1).float().masked_fill(fresh[:, None], 0)
        metrics = {name: _mean(infos, name).masked_fill(fresh, 0) for name in self.spec.metrics}
        return self._step(reward, ended, cut, metrics), self._row(seen, fresh)

    def _restarted(self, fresh: Tensor) -> tuple[Step, Row]:
        """A new episode everywhere: nothing that a step did would be seen."""
        seen = self._env.reset()
        nothing = torch.zeros(self.copies, device=self.device)
        self._age.zero_()
        self._closing = torch.zeros_like(fresh)
        reward = torch.zeros(self.copies, self.spec.n, device=self.device)
        step = self._step(reward, self._closing, self._closing, dict.fromkeys(self.spec.metrics, nothing))
        return step, self._row(seen, fresh)

    def _native(self, action: dict[str, Action]) -> list[Tensor]:
        """Actions of all agents in VMAS's order."""
        native: list[Any] = [None] * len(self._order)
        for role, places in zip(self.spec.roles, self._seats.values(), strict=True):
            own = action[role.name]
            values = own.discrete if own.continuous is None else to_bounds(own.continuous, role.action)
            assert values is not None
            for k, place in enumerate(places):
                native[place] = values[:, k].to(self.device)
        return native

    def _step(self, reward: Tensor, ended: Tensor, cut: Tensor, metrics: dict[str, Tensor]) -> Step:
        terminated, truncated = (flags[:, None].repeat(1, self.spec.n) for flags in (ended, cut))
        return Step(reward, self._no_group_reward.clone(), terminated, truncated, ended, cut, metrics)

    def _row(self, seen: list[Any], fresh: Tensor) -> Row:
        obs = {
            role.name: _stacked([seen[place] for place in places])
            for role, places in zip(self.spec.roles, self._seats.values(), strict=True)
        }
        return Row(obs, {}, {}, self._alive.clone(), fresh[:, None].repeat(1, self.spec.n), ~self._closing)

    # --------------------------------------------------------------------------------------------------------- others

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise UserError(f"{self.spec.name} cannot save its state: begin new episodes with reset(seed)")

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        return top_view(self._env, copy, size)

    def close(self) -> None:
        pass


class _Chance:
    """The random numbers of one batch. VMAS draws from the global generators, and puts a state of its own, which all
    its environments share, in their place while it does; here every batch has one.
    """

    def __init__(self, shared: list[Any]):
        self._shared, self._own = shared, list(shared)
        self._cuda: Tensor | None = None

    @contextlib.contextmanager
    def own(self, seed: int | None) -> Iterator[None]:
        """Whatever VMAS draws within comes from this batch's numbers, begun anew from the seed if there is one."""
        if seed is not None:
            self._own = [_torch_state(seed), _numpy_state(seed), random.Random(seed).getstate()]
        before, self._shared[:] = list(self._shared), self._own
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        if cuda is not None:
            if seed is not None or self._cuda is None:
                torch.cuda.manual_seed(0 if seed is None else seed)
            else:
                torch.cuda.set_rng_state(self._cuda)
        try:
            yield
        finally:
            self._own, self._shared[:] = list(self._shared), before
            if cuda is not None:
                self._cuda = torch.cuda.get_rng_state()
                torch.cuda.set_rng_state(cuda)


def _torch_state(seed: int) -> Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def _numpy_state(seed: int) -> Any:
    return np.random.RandomState(seed).get_state()  # what VMAS draws from


# ------------------------------------------------------------------------------------------------- agents and spaces

_NUMBER = re.compile(r"[\W_]*\d+$")


def _seats(env: Any) -> dict[tuple[str, str], list[int]]:
    """Places in the list of agents by group and role: a group a name without its number, a role a pair of spaces."""
    kinds: list[tuple[str, Any, list[int]]] = []
    for place, agent in enumerate(env.agents):
        group = _NUMBER.sub("", agent.name) or "agent"
        has = (env.observation_space[place], env.action_space[place])
        for other, theirs, places in kinds:
            if other == group and theirs == has:
                places.append(place)
                break
        else:
            kinds.append((group, has, [place]))
    order = list(dict.fromkeys(group for group, _, _ in kinds))
    seats: dict[tuple[str, str], list[int]] = {}
    for group in order:
        own = [places for other, _, places in kinds if other == group]
        for k, places in enumerate(own, 1):
            seats[group, group if len(own) == 1 else f"{group}_kind{k}"] = places
    return seats


def _space(space: Any) -> spaces.Space:
    """A space of the older library that VMAS describes its own with, as one of gymnasium."""
    kind = type(space).__name__
    if kind == "Dict":
        return spaces.Dict({name: _space(part) for name, part in space.spaces.items()})
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    return spaces.Box(space.low, space.high, dtype=np.float32)


def _stacked(seen: list[Any]) -> Any:
    if isinstance(seen[0], dict):
        return {name: _stacked([one[name] for one in seen]) for name in seen[0]}
    return torch.stack(seen, 1).float()


def _mean(infos: list[dict[str, Any]], name: str) -> Tensor:
    """What agents tell under one name, [B]: the mean over those who do."""
    told = [info[name].float().reshape(len(info[name]), -1).mean(1) for info in infos if name in info]
    return torch.stack(told).mean(0)


def _imported(name: str) -> Any:
    """The package. UserError where it, or what it needs, is missing."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # the older gym that it needs says on import that it is old
            vmas = importlib.import_module("vmas")
            importlib.import_module("vmas.simulator.environment.environment")
    except ImportError as error:
        what = "vmas" if error.name == "vmas" else f"'{error.name}' beside vmas"
        raise UserError(f"environment '{name}' needs {what}, which is not installed: {_INSTALL}") from error
    return vmas
