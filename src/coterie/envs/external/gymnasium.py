"""Gymnasium environments, `gym/<ID>`: one agent.

Equivalent to Gymnasium's own loop: equal seeds and actions give equal observations and rewards. The time limit and the
call order check of its wrappers are implemented here once per environment; its passive checker is omitted. Environments
that implement the interface without subclassing it are wrapped.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast, final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from pydantic import BaseModel, Field

from coterie.config.user_code import require_importable
from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError, as_user_error, message_of, nearest
from coterie.core.installation import install_extra
from coterie.core.specs import ActionSpec, EnvSpec, RoleSpec, declared_parts
from coterie.envs.contract.closing import close_reported
from coterie.envs.external.agents import Choices, Part
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.constructor_settings import typed_keys
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout
from coterie.envs.external.hosting.numpy_state import as_tensor, from_tensor, rng_state, set_rng_state
from coterie.envs.external.mask_sources import (
    MASK,
    MaskSource,
    find_masks,
    late_mask,
    similar_note,
    source_note,
    without_mask,
)
from coterie.envs.external.returned import (
    call_reset,
    first_reset,
    from_reset,
    from_step,
    require_space,
    to_flag,
    to_number,
)
from coterie.envs.external.spaces import Actuator, Observer
from coterie.envs.external.spaces_fit import UNLIKE, KeyCheck, misfit

ROLE = "agent"

_EXTRAS = {"toy_text": "toy-text", "phys2d": "jax", "tabular": "jax"}
"""Extras of Gymnasium by the package of an environment."""
_OWN_EXTRAS = {"classic_control": "gym", "box2d": "box2d", "mujoco": "mujoco"}
"""Extras of Coterie by the package of an environment."""
_NAMESPACES = {"ALE": ("ale_py", "ale-py")}
"""Modules that register an ID namespace when imported, and the packages that provide them."""
_SAVED = {
    "CartPoleEnv": ("state", "steps_beyond_terminated"),
    "PendulumEnv": ("state", "last_u"),
    "AcrobotEnv": ("state",),
    "MountainCarEnv": ("state",),
    "Continuous_MountainCarEnv": ("state",),
}
"""Attributes that hold the complete state of a classic-control environment besides its random generator."""


class GymConfig(ExternalEnvConfig):
    """Settings of every Gymnasium environment; the parameters of its constructor are settings as well."""

    episode_limit: int | None = Field(None, ge=1, le=10**9)
    """Maximum number of steps before truncation; by default the registered limit of the environment."""


_CONFIGS: dict[str, tuple[GymSpec, type[GymConfig]]] = {}


class Gymnasium(Adapter):
    """The environments of one ID in Gymnasium's registry; `package:ID` imports the package first."""

    def __init__(self, env_id: str):
        self.name, self._id = f"gym/{env_id}", env_id
        self._registered = registered(env_id)
        known = _CONFIGS.get(env_id)
        if known is None or known[0] is not self._registered:  # equal configurations must have the same class
            known = _CONFIGS[env_id] = (self._registered, _config(self._registered, self.name))
        self.Config = known[1]
        self._known: tuple[BaseModel, SingleLayout] | None = None

    def layout(self, config: BaseModel) -> Layout:
        return self._single_layout(config).layout

    def instance(self, config: BaseModel) -> Instance:
        return GymInstance(self._one(config), self._single_layout(config))

    def _single_layout(self, config: BaseModel) -> SingleLayout:
        if self._known is None or self._known[0] != config:
            env = self._one(config)
            limit = None if env.spec is None else env.spec.max_episode_steps
            with user_errors(self.name, self._registered):
                self._known = config, single_layout(self.name, env, limit)
        return self._known[1]

    def _one(self, config: BaseModel) -> gymnasium.Env:
        assert isinstance(config, GymConfig)
        params = {key: value for key, value in config.model_dump().items() if key not in GymConfig.model_fields}
        with user_errors(self.name, self._registered), _quiet_models(self._registered):
            return gymnasium.make(self._id, max_episode_steps=config.episode_limit, disable_env_checker=True, **params)


@final
@dataclass(frozen=True)
class SingleLayout:
    """Static properties of an environment with one agent.

    Attributes:
        part: Its only role.
        masks: Place of its action masks, None if it has none.
        layout: Roles and spaces.
    """

    part: Part
    masks: MaskSource | None
    layout: Layout


def single_layout(name: str, env: gymnasium.Env, limit: int | None) -> SingleLayout:
    """Determines the properties of an environment, which is reset if it may have action masks, and closed.

    Args:
        name: Name of the environment.
        env: An instance.
        limit: Its episode limit.

    Raises:
        TypeError: For unsupported spaces.
        UserError: For a reset that does not return an observation and an info.
        EnvironmentFailedError: If the reset raises anything else.
    """
    try:
        observes, acts = env.observation_space, env.action_space
        for what, space in (("observation_space", observes), ("action_space", acts)):
            require_space(f"environment '{name}': {what}", space)
        Actuator(acts)
        if ActionSpec.of(acts).choices:
            info = first_reset(name, env, by_agent=False)[1]
            masks = find_masks(env, observes, acts, info)
        else:
            info, masks = {}, None
        reads = masks is not None and masks.kind == "observation"
        observer = Observer(without_mask(observes) if reads else observes)
        role = RoleSpec(
            name=ROLE,
            group=ROLE,
            agents=(ROLE,),
            observation_space=observer.space,
            action_space=acts,
            native=observer.native,
            parts=declared_parts(without_mask(observes) if reads else observes, acts, ROLE),
        )
        exact = _saved_attributes(env) is not None
        keys = observes.spaces if isinstance(observes, spaces.Dict) else ()
        notes = similar_note(keys, info) if masks is None else (source_note(masks),)
        spec = EnvSpec(name, (role,), {}, episode_limit=limit, exact_resume=exact, notes=tuple(notes))
    finally:
        close_reported(name, env.close)
    layout = Layout(spec, {ROLE: observer}, (ROLE,) if masks is not None else ())
    return SingleLayout(Part(role, observes, acts, observer=observer, turns=False), masks, layout)


@final
class GymInstance(Instance):
    """One Gymnasium environment.

    Args:
        env: As returned by `gymnasium.make`.
        single: Its properties.
    """

    def __init__(self, env: gymnasium.Env, single: SingleLayout):
        self._limit: float = math.inf
        if type(env) is TimeLimit:  # counted here to save a call per step and to be part of the state
            self._limit = env._max_episode_steps
            env = env.env
        if type(env) is OrderEnforcing:
            env = env.env
        self.env, self._elapsed, self._closed = env, 0, False
        self._part, self._masks = single.part, single.masks
        in_observation = single.masks is not None and single.masks.kind == "observation"
        self._extract = single.part.extract_observation() if in_observation else None
        self._check_keys = KeyCheck.of(single.part.observes)
        self._masks_may_follow = single.masks is None and bool(single.part.role.action.choices)
        self._saved = _saved_attributes(env)

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers, self._reward = buffers, buffers.reward
        self._writes = [(sensor.write, buffers.obs[ROLE][sensor.name][0]) for sensor in self._part.observer.sensors]
        if self._masks is not None:
            self._choices, self._mask = Choices(self._part), buffers.action_mask[ROLE][0]
            self._read_mask = self._masks.reader(self.env)
        buffers.alive[0] = True

    def reset(self, seed: int | None) -> None:
        self._elapsed = 0
        self._show(*from_reset(call_reset(self.env, seed), by_agent=False, space=self._part.observes))

    def step(self, actions: list[Any]) -> None:
        returned = self.env.step(actions[0])
        if type(returned) is not tuple or len(returned) != 5 or type(returned[4]) is not dict:
            returned = from_step(returned, by_agent=False)
        observation, reward, terminated, truncated, info = returned
        self._reward[0] = to_number(reward, "the reward")
        self._show(observation, info)
        self._elapsed += 1
        if to_flag(terminated, "terminated"):
            self._buffers.terminated[0] = self._buffers.episode_end[0] = True
        elif to_flag(truncated, "truncated") or self._elapsed >= self._limit:
            self._buffers.truncated[0] = self._buffers.episode_end[1] = True

    def _show(self, observation: Any, info: Any) -> None:
        try:
            shown = observation
            if self._check_keys is not None:
                self._check_keys(observation)
                shown = observation if self._extract is None else self._extract(observation)
            for write, array in self._writes:
                write(array, shown)
        except UNLIKE as error:
            raise misfit(self._part.observes, observation, error) from error
        if self._masks is not None:
            self._choices.write(self._mask, self._read_mask(observation, info))
        elif self._masks_may_follow and MASK in info:
            raise late_mask("info")

    def state_dict(self) -> dict[str, Any]:
        assert self._saved is not None
        memory = {name: as_tensor(getattr(self.env, name, None)) for name in self._saved}
        return {"memory": memory, "generator": rng_state(self.env.np_random), "elapsed": self._elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["memory"].items():
            setattr(self.env, name, from_tensor(value))
        set_rng_state(self.env.np_random, state["generator"])
        self._elapsed = state["elapsed"]

    def render(self) -> np.ndarray | None:
        inner: Any = self.env.unwrapped
        if "rgb_array" not in (self.env.metadata.get("render_modes") or ()):
            return None
        inner.render_mode = "rgb_array"  # environments read it when they render; nothing is set up before
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays need no window, and there may be no screen
        if not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
        name = f"gym/{self.env.spec.id}" if self.env.spec else "gym"
        try:
            with user_errors(name, self.env.spec):
                drawn: Any = self.env.render()
        except Exception as error:
            if not type(inner).__module__.startswith("gymnasium.envs.mujoco."):
                raise
            said = message_of(error)
            hint = "MuJoCo renders with OpenGL. Set MUJOCO_GL=egl, osmesa or glfw."
            raise UserError(f"{name}: rendering failed ({said}). {hint}") from error
        return drawn

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.env.close()


def _saved_attributes(env: gymnasium.Env) -> tuple[str, ...] | None:
    """Attributes that hold the complete state of an environment besides its random generator; None if unknown."""
    while type(env) in (TimeLimit, OrderEnforcing):
        env = cast("gymnasium.Wrapper", env).env
    kind = type(env)
    return _SAVED.get(kind.__name__) if kind.__module__.startswith("gymnasium.envs.classic_control.") else None


# ------------------------------------------------------------------------------------------------- what the library has


def registered(env_id: str, family: str = "gym") -> GymSpec:
    """Entry of Gymnasium's registry. UserError with similar IDs if there is none."""
    package, colon, name = env_id.rpartition(":")
    if colon:
        require_importable(package, f"environment '{family}/{env_id}'")
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            hint = ". Install the package that provides it, or run from its folder." if error.name == package else ""
            raise UserError(f"environment '{family}/{env_id}': no module named '{error.name}'{hint}") from error
    elif name.partition("/")[0] in _NAMESPACES:
        _import_namespace(name, family)
    known = gymnasium.registry
    if name not in known:
        _require_namespace(name, family)
        versions = [other for other in known if other.partition("-v")[0] == name.partition("-v")[0]]
        hint = nearest(f"{family}/{name}", (f"{family}/{other}" for other in versions or known))
        if hint.startswith("Choose"):
            hint = "gymnasium.pprint_registry() lists all of them."
        raise UserError(f"no such environment: '{family}/{env_id}'. {hint} In another package: {family}/PACKAGE:ID.")
    return known[name]


def _import_namespace(name: str, family: str) -> None:
    """Imports the module that registers the ID's namespace. UserError if it is not installed."""
    module, package = _NAMESPACES[name.partition("/")[0]]
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"environment '{family}/{name}': {package} is not installed. Install it with: pip install {package}"
        ) from error


def _require_namespace(name: str, family: str) -> None:
    """UserError if no ID with this namespace is registered."""
    namespace, slash, _ = name.rpartition("/")
    known = {other.rpartition("/")[0] for other in gymnasium.registry} - {""} | set(_NAMESPACES)
    if slash and namespace not in known:
        raise UserError(
            f"no such environment: '{family}/{name}'. No imported module registers the namespace "
            f"'{namespace}' ({', '.join(sorted(known))} are known). Install the package that does and use "
            f"{family}/PACKAGE:{name}."
        )


def _config(registered: GymSpec, name: str) -> type[GymConfig]:
    """Typed settings of an environment: the plain parameters of its constructor with their defaults."""
    with user_errors(name, registered):
        entry: Any = registered.entry_point
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Box2D's bindings warn while loading, and crash if warnings are errors
            creator = load_env_creator(entry) if isinstance(entry, str) else entry
        if creator is None:
            raise ValueError(f"it is only available as a vector environment: gymvec/{name.partition('/')[2]}")
    maker = functools.partial(creator, **registered.kwargs)
    return typed_keys(GymConfig, [maker], ("render_mode",), f"gymnasium's {registered.id}")


@contextmanager
def user_errors(name: str, registered: GymSpec | None) -> Iterator[None]:
    """Converts errors of Gymnasium and of the environment into a one-line UserError with a fix."""
    expected = gymnasium.error.Error, TypeError, ValueError, AssertionError, OSError
    with as_user_error(f"environment '{name}'", *expected):
        try:
            yield
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            said = message_of(error)
            part = _part_of(registered)
            if part in _OWN_EXTRAS or "pip install" not in said:
                said = re.split(r"\.? Install it|, (?:you can|run) ", said)[0]
                said += f". Install it with: {_install(part, error)}"
            raise UserError(f"environment '{name}': {said}") from error


@contextmanager
def _quiet_models(registered: GymSpec) -> Iterator[None]:
    """Suppresses MuJoCo's notice, on stderr and in a log file, that a model of Gymnasium uses an older format. Warnings
    during steps are reported as usual.
    """
    mujoco: Any = sys.modules.get("mujoco")
    own = str(registered.entry_point).startswith("gymnasium.envs.mujoco")
    if not own or not hasattr(mujoco, "set_mju_user_warning"):
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _part_of(registered: GymSpec | None) -> str:
    """Returns the part of Gymnasium that an environment belongs to, such as `box2d`; "" for other packages."""
    found = re.match(r"gymnasium\.envs\.(\w+)", str(registered.entry_point) if registered is not None else "")
    return found[1] if found else ""


def _install(part: str, error: Exception) -> str:
    """Returns the command that installs what a part of Gymnasium, or another package, needs."""
    if part in _OWN_EXTRAS:
        return install_extra(_OWN_EXTRAS[part])
    package = f'"gymnasium[{_EXTRAS.get(part, part)}]"' if part else getattr(error, "name", None) or "it"
    return f"pip install {package}"


def as_gym(env: Any) -> Any:
    """Wraps the environment as a gymnasium.Env if it has the methods and spaces of one; returns others unchanged."""
    if isinstance(env, gymnasium.Env) or not (callable(getattr(env, "reset", None)) and hasattr(env, "step")):
        return env
    found = (getattr(env, "observation_space", None), getattr(env, "action_space", None))
    return GymLike(env) if all(isinstance(space, spaces.Space) for space in found) else env


@final
class GymLike(gymnasium.Env):
    """Forwards every call to an environment with the same methods."""

    def __init__(self, env: Any):
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", None) or {"render_modes": []}
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def render(self) -> Any:
        self.env.render_mode = self.render_mode
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()
