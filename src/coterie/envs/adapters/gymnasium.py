"""Gymnasium's environments, `gym/<ID>`: one agent, copies stepped one after the other in this process.

Gymnasium's own loop is kept to the letter: the same seeds and actions give the same observations and rewards. What its
wrappers for the time limit and for the order of calls do is done here, once a copy; its passive checker is left out.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, create_model
from torch import Tensor

from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.spaces import Actuator, Observer
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError, nearest
from coterie.seeds import seed_of
from coterie.types import Action, EnvSpec, RoleSpec, Row, Step, Tree

ROLE = "agent"

_EXTRAS = {"classic_control": "classic-control", "toy_text": "toy-text"}
_SAVED = {
    "CartPoleEnv": ("state", "steps_beyond_terminated"),
    "PendulumEnv": ("state", "last_u"),
    "AcrobotEnv": ("state",),
    "MountainCarEnv": ("state",),
    "Continuous_MountainCarEnv": ("state",),
}
"""Attributes that are all the memory of an environment of classic control, besides its generator."""


class GymConfig(BaseModel):
    """Keys of every gymnasium environment; the parameters of its constructor are keys as well."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    episode_limit: int | None = Field(None, ge=1)
    """Steps after which an episode is cut; by default what the environment was registered with."""


_CONFIGS: dict[str, tuple[GymSpec, type[BaseModel]]] = {}


class Gymnasium(Adapter):
    """The environments of one id that gymnasium's registry holds; `package:ID` imports the package first."""

    def __init__(self, env_id: str):
        self.name, self._id = f"gym/{env_id}", env_id
        self._registered = _registered(env_id)
        known = _CONFIGS.get(env_id)
        if known is None or known[0] is not self._registered:  # equal configurations have to be of one class
            known = _CONFIGS[env_id] = (self._registered, _config(self._registered, self.name))
        self.Config = known[1]

    def spec(self, config: BaseModel) -> EnvSpec:
        env = self._one(config)
        env.close()
        return self._spec(env)

    def make(self, config: BaseModel, copies: int, seed: int, device: torch.device | str) -> VectorEnv:
        envs = [self._one(config) for _ in range(copies)]
        return GymnasiumEnv(self._spec(envs[0]), envs, seed, device)

    def _one(self, config: BaseModel) -> gymnasium.Env:
        params = config.model_dump()
        limit = params.pop("episode_limit")
        with _told(self.name, self._registered):
            return gymnasium.make(self._id, max_episode_steps=limit, disable_env_checker=True, **params)

    def _spec(self, env: gymnasium.Env) -> EnvSpec:
        with _told(self.name, self._registered):
            Actuator(env.action_space)
            role = RoleSpec(ROLE, ROLE, (ROLE,), Observer(env.observation_space).space, env.action_space)
        limit = None if env.spec is None else env.spec.max_episode_steps
        return EnvSpec(self.name, (role,), {}, episode_limit=limit, exact_resume=Copy(env).exact)


class GymnasiumEnv(VectorEnv):
    """Copies of a gymnasium environment, each with a seed of its own."""

    def __init__(self, spec: EnvSpec, envs: list[gymnasium.Env], seed: int, device: torch.device | str):
        self.spec, self.copies, self.device = spec, len(envs), torch.device(device)
        self._all = [Copy(env) for env in envs]
        self._observer = Observer(envs[0].observation_space)
        self._actuator = Actuator(envs[0].action_space)
        self._seed: int | None = seed  # of the first reset
        self._alive = torch.ones(self.copies, 1, dtype=torch.bool, device=self.device)
        self._nobody = torch.zeros_like(self._alive)
        self._all_copies, self._no_copy = self._alive[:, 0], self._nobody[:, 0]
        self._no_group_reward = torch.zeros(self.copies, 1, device=self.device)

    def reset(self, seed: int | None = None) -> Row:
        seed, self._seed = self._seed if seed is None else seed, None
        shown = []
        for b, copy in enumerate(self._all):
            # 31 bits, which every library that environments draw from takes.
            shown.append(copy.reset(None if seed is None else seed_of(seed, "env", self.spec.name, b) >> 32))
        return Row({ROLE: self._obs(shown)}, {}, {}, self._alive, self._alive, self._all_copies)

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        given = action[ROLE]
        actions = self._actuator(_only_agent(given.discrete), _only_agent(given.continuous))
        first = [copy.closing for copy in self._all]
        brought = [copy.step(own) for copy, own in zip(self._all, actions, strict=True)]
        shown, paid, ended, cut = zip(*brought, strict=True)
        reward = self._tensor(np.array(paid, dtype=np.float32)[:, None])
        obs = {ROLE: self._obs(shown)}
        if not (any(ended) or any(cut) or any(first)):  # mostly; nothing new has to be built then
            nobody, no_copy = self._nobody, self._no_copy
            step = Step(reward, self._no_group_reward, nobody, nobody, no_copy, no_copy, {})
            return step, Row(obs, {}, {}, self._alive, nobody, self._all_copies)
        flags = np.array([ended, cut, first], dtype=bool)
        terminated, truncated, begins = self._tensor(flags).unbind()
        step = Step(
            reward=reward,
            group_reward=self._no_group_reward,
            terminated=terminated[:, None],
            truncated=truncated[:, None],
            episode_terminated=terminated,
            episode_truncated=truncated,
            metrics={},
        )
        return step, Row(obs, {}, {}, self._alive, begins[:, None], ~(terminated | truncated))

    def _obs(self, shown: Sequence[Any]) -> Tree:
        return self._observer.tree(self._observer.arrays(shown), self.device)

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        if not self.spec.exact_resume:
            return {}
        begun = [] if self._seed is not None else [copy.state_dict() for copy in self._all]
        return {"seed": self._seed, "copies": begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.spec.exact_resume:
            raise UserError(f"{self.spec.name} cannot save its state: begin new episodes with reset(seed)")
        self._seed = state["seed"]
        for copy, own in zip(self._all, state["copies"], strict=self._seed is None):
            copy.load_state_dict(own)

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        with _told(self.spec.name, self._all[copy].env.spec):
            picture = self._all[copy].render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise UserError(f"{self.spec.name} draws no pictures: it has no render mode rgb_array")
        scale = size / max(picture.shape[:2])
        height, width = (max(1, round(scale * side)) for side in picture.shape[:2])
        image = Image.fromarray(np.ascontiguousarray(picture, dtype=np.uint8))
        return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS)).copy()

    def close(self) -> None:
        for copy in self._all:
            copy.close()


class Copy:
    """One environment of gymnasium that begins a new episode on the step after its last.

    env: as `gymnasium.make` returns it; closing: the observation that came last ends an episode; exact: `state_dict`
    holds all that going on needs.
    """

    def __init__(self, env: gymnasium.Env):
        self._limit: float = math.inf
        if type(env) is TimeLimit:  # counted here: a call less a step, and a number to be saved
            self._limit = env._max_episode_steps
            env = env.env
        if type(env) is OrderEnforcing:
            env = env.env
        self.env, self.closing, self._elapsed, self._closed = env, False, 0, False
        kind = type(env)
        known = kind.__module__.startswith("gymnasium.envs.classic_control.")
        self._saved = _SAVED.get(kind.__name__) if known else None
        self.exact = self._saved is not None

    def reset(self, seed: int | None) -> Any:
        """The first observation of a new episode; seed: None draws on."""
        self.closing, self._elapsed = False, 0
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Observation, reward, terminated, truncated. From a closing row a new episode begins, the action is unread."""
        if self.closing:
            return self.reset(None), 0.0, False, False
        observation, reward, terminated, truncated, _ = self.env.step(action)
        self._elapsed += 1
        if terminated:
            truncated = False
        elif self._elapsed >= self._limit:
            truncated = True
        self.closing = bool(terminated or truncated)
        return observation, float(reward), terminated, truncated

    def state_dict(self) -> dict[str, Any]:
        assert self._saved is not None
        memory = {name: _as_tensor(getattr(self.env, name, None)) for name in self._saved}
        generator = _words(self.env.np_random)
        return {"memory": memory, "generator": generator, "elapsed": self._elapsed, "closing": self.closing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["memory"].items():
            setattr(self.env, name, None if value is None else value.cpu().numpy().copy()[()])
        _set_words(self.env.np_random, state["generator"])
        self._elapsed, self.closing = state["elapsed"], state["closing"]

    def render(self) -> Any:
        """What the environment draws as rgb_array; None if it cannot."""
        inner: Any = self.env.unwrapped
        if "rgb_array" not in (self.env.metadata.get("render_modes") or ()):
            return None
        inner.render_mode = "rgb_array"  # environments look at it when they draw; nothing is set up before
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays want no window, and there may be no screen
        return self.env.render()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()


def _only_agent(component: Tensor | None) -> np.ndarray | None:
    """[B, 1, ..] of the one agent as [B, ..]."""
    return None if component is None else component.cpu().numpy()[:, 0]


# --------------------------------------------------------------------------------------------------------- saved state


def _as_tensor(value: Any) -> Tensor | None:
    """Numbers with the very dtype that they have: some environments count on in float32."""
    return None if value is None else torch.from_numpy(np.array(value))


_WORD = 2**64 - 1


def _words(generator: np.random.Generator) -> Tensor:
    """The state of a PCG64 generator as int64 [6]."""
    state: Any = generator.bit_generator.state
    inner = state["state"]
    words = [inner["state"] >> 64, inner["state"] & _WORD, inner["inc"] >> 64, inner["inc"] & _WORD]
    return torch.from_numpy(np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64).view(np.int64))


def _set_words(generator: np.random.Generator, words: Tensor) -> None:
    high, low, inc_high, inc_low, has_uint32, uinteger = words.cpu().numpy().view(np.uint64).tolist()
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


# ------------------------------------------------------------------------------------------------- what the library has


def _registered(env_id: str) -> GymSpec:
    """The registry's entry. UserError for an id that is not there, with the nearest that are."""
    package, colon, name = env_id.rpartition(":")
    if colon:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise UserError(f"environment 'gym/{env_id}': there is no module '{error.name}'") from error
    known = gymnasium.registry
    if name not in known:
        versions = [other for other in known if other.partition("-v")[0] == name.partition("-v")[0]]
        mend = nearest(f"gym/{name}", (f"gym/{other}" for other in versions or known))
        if mend.startswith("choose"):
            mend = "gymnasium.pprint_registry() prints all there are"
        raise UserError(f"there is no environment 'gym/{env_id}': {mend} (another package's: gym/PACKAGE:ID)")
    return known[name]


def _config(registered: GymSpec, name: str) -> type[BaseModel]:
    """The typed keys of an environment: the plain parameters of its constructor, with their defaults."""
    with _told(name, registered):
        entry: Any = registered.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        if creator is None:
            raise ValueError("it can only be made as a vector environment")
    try:
        parameters = dict(inspect.signature(creator).parameters)
    except ValueError:  # compiled ones may not tell
        parameters = {}
    fields: dict[str, Any] = {}
    free = not parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key, parameter in parameters.items():
        if parameter.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            continue
        default = registered.kwargs.get(key, parameter.default)
        if key == "render_mode" or key in GymConfig.model_fields:
            continue
        if not _plain(default) or hasattr(BaseModel, key):
            free = True  # may be given, and is not shown
        else:
            fields[key] = (_kind(default), Field(default, description=f"`{key}` of gymnasium's {registered.id}."))
    config = create_model("GymConfig", __base__=GymConfig, **fields)
    if free:
        config.model_config["extra"] = "allow"
        config.model_rebuild(force=True)
    return config


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)


def _kind(default: Any) -> Any:
    """The type of a key from its default value."""
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, int | float):
        return float if isinstance(default, float) else int | float  # g=10 may be meant as 10.0
    return tuple[Any, ...] if isinstance(default, tuple) else Any


@contextmanager
def _told(name: str, registered: GymSpec | None) -> Iterator[None]:
    """Turns what gymnasium and the environment refuse into one line that says the mend."""
    try:
        yield
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        said = " ".join(str(error).split())
        if "pip install" not in said:
            said += f": pip install {_package(registered, error)}"
        raise UserError(f"environment '{name}': {said}") from error
    except (gymnasium.error.Error, TypeError, ValueError, AssertionError, OSError) as error:
        raise UserError(f"environment '{name}': {' '.join(str(error).split())}") from error


def _package(registered: GymSpec | None, error: Exception) -> str:
    entry = str(registered.entry_point) if registered is not None else ""
    found = re.match(r"gymnasium\.envs\.(\w+)", entry)
    if found:
        return f'"gymnasium[{_EXTRAS.get(found[1], found[1])}]"'
    return str(getattr(error, "name", None) or "it")
