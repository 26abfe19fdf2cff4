"""VMAS, the Vectorized Multi-Agent Simulator, `vmas/<scenario>`: PyTorch steps all environments at once on any device.

Differences from VMAS's own loop: step limits are enforced here, so they truncate; every batch has its own random stream
(in VMAS all environments of a process share one generator); finished environments reset on the next step. VMAS is
licensed under the GPL and not part of Coterie; it is imported only when requested.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, final

import numpy as np
import torch
from gymnasium import spaces
from PIL import Image, ImageDraw
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.errors import UserError, as_user_error, nearest
from coterie.core.installation import install_extra
from coterie.core.seeds import seed_of
from coterie.core.specs import EnvSpec, RoleSpec, to_bounds
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.base_adapter import BatchAdapter

_FINE = 3  # supersampling factor


def top_view(env: Any, env_index: int, size: int) -> np.ndarray:
    """Renders one VMAS environment as uint8 [H, W, 3] with the longer side of `size` pixels.

    Draws spheres, boxes and lines in their colors, landmarks below agents. The view is as wide as the scenario's and
    wider if agents are farther out. Additional drawings of scenarios (paths, sensor ranges) are omitted.
    """
    width, height = (float(side) for side in env.scenario.viewer_size)
    entities = [*env.world.landmarks, *env.world.agents]
    center = [float(x) for x in env.scenario.render_origin]
    zoom = float(env.scenario.viewer_zoom)
    reach = zoom * _farthest_distance(env.world.agents, env_index, center, zoom)
    across, up = (reach * max(1.0, width / height), reach * max(1.0, height / width))
    scale = size * _FINE / (2 * max(across, up))
    shape = [max(1, round(2 * side * scale / _FINE)) for side in (across, up)]
    image = Image.new("RGB", (shape[0] * _FINE, shape[1] * _FINE), "white")
    draw = ImageDraw.Draw(image)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return (x - center[0] + across) * scale, (center[1] + up - y) * scale

    for entity in entities:
        if bool(entity.is_rendering[env_index]):
            _draw(draw, entity, env_index, to_pixels=to_pixels, scale=scale)
    return np.asarray(image.resize((shape[0], shape[1]), Image.Resampling.BOX)).copy()


def _farthest_distance(agents: list[Any], env_index: int, center: list[float], zoom: float) -> float:
    """Zoom factor that makes all agents visible."""
    farthest = 1.0
    for agent in agents:
        x, y = agent.state.pos[env_index].tolist()
        out = max(abs(x - center[0]), abs(y - center[1])) + 2 * agent.shape.circumscribed_radius()
        farthest = max(farthest, out / zoom)
    return farthest


def _draw(draw: ImageDraw.ImageDraw, entity: Any, env_index: int, *, to_pixels: Any, scale: float) -> None:
    x, y = entity.state.pos[env_index].tolist()
    color = tuple(round(255 * min(max(float(part), 0.0), 1.0)) for part in entity.color[:3])
    shape = entity.shape
    if hasattr(shape, "radius"):
        (u, v), r = to_pixels(x, y), shape.radius * scale
        draw.ellipse((u - r, v - r, u + r, v + r), fill=color)
        return
    turn = float(entity.state.rot[env_index])
    along, aside = (math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))
    half = shape.length / 2
    # Line width is in pixels.
    thick = shape.width / 2 if type(shape).__name__ == "Box" else shape.width / 2 * _FINE / scale
    corners = [
        to_pixels(x + a * half * along[0] + b * thick * aside[0], y + a * half * along[1] + b * thick * aside[1])
        for a, b in ((1, 1), (1, -1), (-1, -1), (-1, 1))
    ]
    draw.polygon(corners, fill=color)


class VMASConfig(BaseModel):
    """Settings of every scenario; the scenario's own parameters are settings as well: `env.n_agents=3`."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True, protected_namespaces=())

    actions: Literal["continuous", "discrete", "multi_discrete"] = "continuous"
    """Action type: forces (and messages) as continuous values, one discrete action for all combinations, or one per
    component.
    """
    episode_limit: int | None = Field(100, ge=1, le=10**9)
    """Maximum number of steps before truncation; null leaves it to the scenario, and many never end."""


class VMAS(BatchAdapter):
    """The scenario of one name, from VMAS or its MPE collection."""

    Config = VMASConfig

    def __init__(self, scenario: str):
        self.name, self._scenario = f"vmas/{scenario}", scenario
        self._vmas = import_vmas(self.name)
        known = [*self._vmas.scenarios, *self._vmas.mpe_scenarios, *self._vmas.debug_scenarios]
        if scenario not in known:
            hint = nearest(self.name, [f"vmas/{other}" for other in known])
            raise UserError(f"no such environment: '{self.name}'. {hint}")

    def spec(self, config: BaseModel) -> EnvSpec:
        return self.batch(config, 1, 0, torch.device("cpu")).spec

    def batch(self, config: BaseModel, num_envs: int, seed: int, device: torch.device) -> VectorEnv:
        assert isinstance(config, VMASConfig)
        keys = {
            "continuous_actions": config.actions == "continuous",
            "multidiscrete_actions": config.actions == "multi_discrete",
            "clamp_actions": True,  # rounding may exceed the bounds
            **(config.model_extra or {}),
        }

        def make() -> Any:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Scenario kwargs")
                return self._vmas.make_env(self._scenario, num_envs=num_envs, device=device, **keys)

        return VMASBatch(self.name, self._vmas, make, limit=config.episode_limit, seed=seed)


@final
class VMASBatch(VectorEnv):
    """One VMAS environment, which is a batch.

    VMAS can only reset finished environments one at a time; observations are computed once afterwards. If all finish
    together, a single reset is used.

    Args:
        make: Returns VMAS's environment.
        limit: Maximum number of steps before truncation.
    """

    def __init__(self, name: str, vmas: Any, make: Callable[[], Any], *, limit: int | None, seed: int):
        self._random = _RandomStream(vmas.simulator.environment.Environment.vmas_random_state)
        expected = UserWarning, TypeError, ValueError, AssertionError, KeyError
        with (
            as_user_error(f"environment '{name}'", *expected),
            self._random.own(seed_of(seed, "env", name, "made") >> 32),
        ):
            self._env = make()
            infos = self._probe()
        env = self._env
        self.num_envs, self.device = int(env.num_envs), torch.device(env.device)
        self._agents_by_role = _agents_by_role(env)  # indices into VMAS's list of agents by role
        roles = [self._role(group, name, places) for (group, name), places in self._agents_by_role.items()]
        metrics = sorted({str(key) for info in infos for key, value in info.items() if isinstance(value, Tensor)})
        self.spec = EnvSpec(name, tuple(roles), {}, metrics=tuple(metrics), episode_limit=limit, exact_resume=False)
        self._order = [place for places in self._agents_by_role.values() for place in places]
        self._seed: int | None = seed  # seed of the first reset
        self._limit = float("inf") if limit is None else limit
        self._age = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._final = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._alive = torch.ones(self.num_envs, self.spec.n, dtype=torch.bool, device=self.device)
        self._no_group_reward = torch.zeros(self.num_envs, len(self.spec.groups), device=self.device)

    @property
    def native(self) -> Any:
        """The VMAS environment."""
        return self._env

    def _probe(self) -> list[dict[str, Any]]:
        """Info entries of the agents; many scenarios provide them only after a step."""
        return self._env.step([torch.zeros_like(action) for action in self._env.get_random_actions()])[3]

    def _role(self, group: str, name: str, places: list[int]) -> RoleSpec:
        agents, observes, acts = self._env.agents, self._env.observation_space, self._env.action_space
        names = tuple(agents[place].name for place in places)
        return RoleSpec(
            name=name,
            group=group,
            agents=names,
            observation_space=_space(observes[places[0]]),
            action_space=_space(acts[places[0]]),
        )

    # --------------------------------------------------------------------------------------------------------- episodes

    def reset(self, seed: int | None = None) -> Timestep:
        seed, self._seed = self._seed if seed is None else seed, None
        own = None if seed is None else seed_of(seed, "env", self.spec.name) >> 32  # 31 bits, as accepted by NumPy
        with self._random.own(own):
            seen = self._env.reset()
        self._age.zero_()
        self._final = torch.zeros_like(self._final)
        return self._timestep(seen, torch.ones_like(self._final))

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        fresh, closed = self._final, self._final.nonzero().flatten().tolist()
        with self._random.own(None):
            if len(closed) == self.num_envs:
                return self._reset_all(fresh)
            seen, rewards, terminated, infos = self._env.step(self._native(action))
            if closed:
                for index in closed:
                    self._env.reset_at(index, return_observations=False)
                seen = self._env.get_from_scenario(True, get_rewards=False, get_infos=False, get_dones=False)[0]
        self._age = torch.where(fresh, 0, self._age + 1)
        terminated = terminated & ~fresh
        truncated = (self._age >= self._limit) & ~fresh & ~terminated
        self._final = terminated | truncated
        reward = torch.stack([rewards[place] for place in self._order], -1).float().masked_fill(fresh[:, None], 0)
        metrics = {name: _mean(infos, name).masked_fill(fresh, 0) for name in self.spec.metrics}
        return self._step(reward, terminated, truncated, metrics), self._timestep(seen, fresh)

    def _reset_all(self, fresh: Tensor) -> tuple[Step, Timestep]:
        """Starts a new episode in all environments."""
        seen = self._env.reset()
        nothing = torch.zeros(self.num_envs, device=self.device)
        self._age.zero_()
        self._final = torch.zeros_like(fresh)
        reward = torch.zeros(self.num_envs, self.spec.n, device=self.device)
        step = self._step(reward, self._final, self._final, dict.fromkeys(self.spec.metrics, nothing))
        return step, self._timestep(seen, fresh)

    def _native(self, action: dict[str, Action]) -> list[Tensor]:
        """Actions of all agents in VMAS's order."""
        native: list[Any] = [None] * len(self._order)
        for role, places in zip(self.spec.roles, self._agents_by_role.values(), strict=True):
            own = action[role.name]
            values = own.discrete if own.continuous is None else to_bounds(own.continuous, role.action)
            assert values is not None
            for k, place in enumerate(places):
                native[place] = values[:, k].to(self.device)
        return native

    def _step(
        self, reward: Tensor, episode_terminated: Tensor, episode_truncated: Tensor, metrics: dict[str, Tensor]
    ) -> Step:
        terminated, truncated = (
            flags[:, None].repeat(1, self.spec.n) for flags in (episode_terminated, episode_truncated)
        )
        return Step(
            reward=reward,
            group_reward=self._no_group_reward.clone(),
            terminated=terminated,
            truncated=truncated,
            episode_terminated=episode_terminated,
            episode_truncated=episode_truncated,
            metrics=metrics,
        )

    def _timestep(self, seen: list[Any], fresh: Tensor) -> Timestep:
        obs = {
            role.name: _stacked([seen[place] for place in places])
            for role, places in zip(self.spec.roles, self._agents_by_role.values(), strict=True)
        }
        return Timestep(
            obs=obs,
            action_mask={},
            state={},
            alive=self._alive.clone(),
            first=fresh[:, None].repeat(1, self.spec.n),
            acted=~self._final,
        )

    # ----------------------------------------------------------------------------------------------------------- others

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise UserError(f"{self.spec.name}: its state cannot be restored. Start new episodes with reset(seed).")

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        return top_view(self._env, env_index, size)

    def close(self) -> None:
        pass


class _RandomStream:
    """Random stream of one batch. VMAS samples from the global generators and swaps in a state shared by all its
    environments; here every batch has its own.
    """

    def __init__(self, shared: list[Any]):
        self._shared, self._own = shared, list(shared)
        self._cuda: Tensor | None = None

    @contextlib.contextmanager
    def own(self, seed: int | None) -> Iterator[None]:
        """Context in which VMAS samples from this batch's stream, reseeded if a seed is given."""
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
    return np.random.RandomState(seed).get_state()  # generators that VMAS samples from


# ---------------------------------------------------------------------------------------------------- agents and spaces

_NUMBER = re.compile(r"[\W_]*\d+$")


def _agents_by_role(env: Any) -> dict[tuple[str, str], list[int]]:
    """Agent indices by group (name without its number) and role (pair of spaces)."""
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
    """Converts a space of the older gym package used by VMAS to gymnasium."""
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
    """Mean [B] of an info entry over the agents that provide it."""
    values = [info[name].float().reshape(len(info[name]), -1).mean(1) for info in infos if name in info]
    return torch.stack(values).mean(0)


def import_vmas(name: str) -> Any:
    """Imports the package. UserError if it or a dependency is missing."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # the older gym emits a deprecation notice on import
            vmas = importlib.import_module("vmas")
            importlib.import_module("vmas.simulator.environment.environment")
    except ImportError as error:
        what = "vmas" if error.name == "vmas" else f"'{error.name}' in addition to vmas"
        raise UserError(
            f"environment '{name}' needs {what}, which is not installed. Install it with: {install_extra('vmas')}"
        ) from error
    return vmas
