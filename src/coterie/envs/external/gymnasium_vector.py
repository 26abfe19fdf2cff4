"""Gymnasium vector environments, `gymvec/<ID>`: a batch in one environment, created by its `vector_entry_point`.

Such an environment resets a finished episode on the next step, in the same step, or leaves the reset to the caller
(`metadata["autoreset_mode"]`). Coterie uses next-step autoreset: the last observation of an episode is shown in a final
timestep, and the next timestep starts the next episode. The modes are mapped as follows:

- NEXT_STEP is the same convention.
- DISABLED: finished environments are reset with `reset(options={"reset_mask": ...})` before the step, which has
  to include all environments (finished ones must not be stepped), and again after it, so that no first observation is
  missed.
- SAME_STEP: the final timestep is `final_obs` from the infos. The next episode has already started by then and cannot
  wait, so its first step uses the first action (continuous: the middle of the bounds), and is neither shown nor
  rewarded.

If the environment does not enforce a configured step limit, episodes are truncated here and reset by mask.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.errors import UserError, message_of, one_line
from coterie.core.seeds import seed_of
from coterie.core.specs import EnvSpec, RoleSpec, declared_parts
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv, close_env
from coterie.envs.external.agents import Part
from coterie.envs.external.base_adapter import BatchAdapter
from coterie.envs.external.batched_spaces import BatchActuator, BatchMasks, BatchObserver, find_batched_masks
from coterie.envs.external.constructor_settings import typed_keys
from coterie.envs.external.gymnasium import ROLE, registered, user_errors
from coterie.envs.external.hosting.numpy_state import as_tensor, from_tensor, rng_state, set_rng_state
from coterie.envs.external.mask_sources import MASK, late_mask, similar_note, source_note, without_mask
from coterie.envs.external.returned import call_reset, first_reset, from_reset, from_step, to_flags, to_numbers
from coterie.envs.external.spaces import ObservationError, Observer

_SAVED = {"gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": ("state", "steps", "prev_done")}
"""Attributes that hold the complete state of a vector environment besides its random generator."""
_LIMIT, _MODE = "max_episode_steps", "autoreset_mode"


class GymnasiumVectorConfig(BaseModel):
    """Settings of every vector environment; the parameters of its constructor are settings as well."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    episode_limit: int | None = Field(None, ge=1, le=10**9)
    """Maximum number of steps before truncation; by default the registered limit, or the default of the constructor's
    `max_episode_steps`.
    """
    autoreset: Literal["next_step", "same_step", "disabled"] | None = None
    """Autoreset mode of the environment; by default its `metadata["autoreset_mode"]`."""


_CONFIGS: dict[str, tuple[GymSpec, type[GymnasiumVectorConfig]]] = {}


class GymnasiumVector(BatchAdapter):
    """The vector environment of one ID in Gymnasium's registry; `package:ID` imports the package first."""

    def __init__(self, env_id: str):
        self.name = f"gymvec/{env_id}"
        self._registered = registered(env_id, "gymvec")
        entry: Any = self._registered.vector_entry_point
        if entry is None:
            raise UserError(f"environment '{self.name}' has no vector implementation. Use gym/{env_id} instead.")
        with user_errors(self.name, self._registered), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            creator = load_env_creator(entry) if isinstance(entry, str) else entry
        self._maker = functools.partial(creator, **self._registered.kwargs)
        known = _CONFIGS.get(env_id)
        if known is None or known[0] is not self._registered:  # equal configurations must have the same class
            left_out = ("num_envs", "render_mode", _LIMIT, _MODE)
            config = typed_keys(GymnasiumVectorConfig, [self._maker], left_out, f"gymnasium's {self._registered.id}")
            known = _CONFIGS[env_id] = (self._registered, config)
        self.Config = known[1]

    def spec(self, config: BaseModel) -> EnvSpec:
        env = self.batch(config, 1, 0, torch.device("cpu"))
        close_env(env)
        return env.spec

    def batch(self, config: BaseModel, num_envs: int, seed: int, device: torch.device) -> VectorEnv:
        assert isinstance(config, GymnasiumVectorConfig)
        given, limit = self._given(config)
        source = copy.deepcopy(self._registered)
        source.max_episode_steps = None  # passed above if accepted
        with user_errors(self.name, self._registered):
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message=".*(missing AutoresetMode|autoreset_mode).*"
                )  # reported below
                env = gymnasium.make_vec(source, num_envs, "vector_entry_point", **given)
            if env.num_envs != num_envs:
                raise ValueError(f"requested {num_envs} environments, got {env.num_envs}")
            mode = _mode(self.name, env, config.autoreset)
            return GymnasiumBatch(self.name, env, mode=mode, limit=limit, seed=seed, device=device)

    def _given(self, config: GymnasiumVectorConfig) -> tuple[dict[str, Any], int | None]:
        """Constructor arguments and the step limit."""
        given = {
            key: value for key, value in config.model_dump().items() if key not in GymnasiumVectorConfig.model_fields
        }
        try:
            taken = inspect.signature(self._maker).parameters
        except (TypeError, ValueError):  # compiled functions may have no signature
            taken = {}
        limit = config.episode_limit or self._registered.max_episode_steps
        default = taken[_LIMIT].default if _LIMIT in taken else None
        counts = isinstance(default, int) and default > 0  # 0 and similar values mean no limit
        if config.episode_limit is None and counts and (limit is None or _LIMIT in self._registered.kwargs):
            limit = default
        if limit is not None and (_LIMIT in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values())):
            given[_LIMIT] = limit
        if _MODE in taken and _MODE not in self._registered.kwargs:
            given[_MODE] = AutoresetMode.NEXT_STEP  # the mode that loses no step
        return given, limit


@final
class GymnasiumBatch(VectorEnv):
    """One Gymnasium vector environment. TypeError for unsupported spaces.

    Args:
        mode: Autoreset mode.
        limit: Step limit, enforced by the environment or else here.
    """

    def __init__(self, name: str, env: Any, *, mode: AutoresetMode, limit: int | None, seed: int, device: torch.device):
        self._name, self._env, self._mode, self._closed = name, env, mode, False
        self.num_envs, self.device, self._here = int(env.num_envs), device, device.type == "cpu"
        self._actuator = BatchActuator(env.single_action_space)
        kind = type(env)
        self._saved = _SAVED.get(f"{kind.__module__}.{kind.__qualname__}")
        self._masks: BatchMasks | None = None
        self._mask = np.ones((self.num_envs, self._actuator.spec.mask_size), np.bool_)
        role, notes = self._read_spaces(env)
        exact = self._saved is not None
        self.spec = EnvSpec(name, (role,), {}, episode_limit=limit, exact_resume=exact, notes=notes)
        self._seed: int | None = seed  # seed of the first reset
        self._limit = np.iinfo(np.int64).max if limit is None else limit
        self._age = np.zeros(self.num_envs, np.int64)
        self._final = np.zeros(self.num_envs, np.bool_)
        self._reset_here = self._final  # finished environments that do not reset themselves
        self._empty = np.zeros((self.num_envs, 0))
        self._all = torch.ones(self.num_envs, 1, dtype=torch.bool, device=device)
        self._none = torch.zeros_like(self._all)
        self._no_group_reward = torch.zeros(self.num_envs, 1, device=device)

    def _read_spaces(self, env: Any) -> tuple[RoleSpec, tuple[str, ...]]:
        """Returns the role, and sentences on its masks. An environment that may have masks is reset to find them."""
        observes, acts = env.single_observation_space, env.single_action_space
        may_have_masks = bool(self._actuator.spec.choices) and self._saved is None
        infos = first_reset(self._name, env, by_agent=False)[1] if may_have_masks else {}
        source = find_batched_masks(env, infos) if may_have_masks else None
        in_observation = source is not None and source.kind == "observation"
        shown = without_mask(observes) if in_observation else observes
        self._observer = BatchObserver(shown)
        role = RoleSpec(
            name=ROLE,
            group=ROLE,
            agents=(ROLE,),
            observation_space=self._observer.space,
            action_space=acts,
            native=self._observer.native,
            parts=declared_parts(shown, acts, ROLE),
        )
        part = Part(role, observes, acts, observer=Observer(shown), turns=False)
        self._extract = part.extract_observation() if in_observation else None
        self._masks_may_follow = may_have_masks and source is None
        if source is None:
            keys = observes.spaces if isinstance(observes, spaces.Dict) else ()
            return role, tuple(similar_note(keys, infos))
        self._masks = BatchMasks(env, part, source)
        return role, (source_note(source),)

    @property
    def native(self) -> Any:
        """The Gymnasium vector environment."""
        return self._env

    # --------------------------------------------------------------------------------------------------------- episodes

    def reset(self, seed: int | None = None) -> Timestep:
        seed, self._seed = self._seed if seed is None else seed, None
        own = (
            None if seed is None else seed_of(seed, "env", self.spec.name) >> 32
        )  # 31 bits, which every library accepts
        seen, self._mask = self._shown(*self._read(from_reset, call_reset(self._env, own)))
        self._age = np.zeros_like(self._age)
        self._final = self._reset_here = np.zeros_like(self._final)
        return self._timestep(seen, np.ones_like(self._final))

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        fresh, ours = self._final, self._reset_here
        some = bool(fresh.any())
        if some and ours.all():  # the result of the step would not be shown
            seen, self._mask = self._reset_some(ours, None)
            self._age, self._final = np.zeros_like(self._age), np.zeros_like(fresh)
            self._reset_here = self._final
            return self._step(np.zeros(self.num_envs, np.float32), self._final, self._final), self._timestep(
                seen, fresh
            )
        restarts = some and bool(ours.any())
        if restarts and self._mode is AutoresetMode.DISABLED:
            self._mask = self._reset_some(ours, None)[1]
        returned = self._env.step(self._native(action[ROLE], fresh, some))
        observations, reward, terminated, truncated, infos = self._read(from_step, returned)
        seen, self._mask = self._shown(observations, infos)
        if restarts:
            seen, self._mask = self._reset_some(ours, seen)
        reward = self._read(lambda x, _: to_numbers(x, "the rewards", self.num_envs), reward)
        terminated = self._read(lambda x, _: to_flags(x, "the terminations", self.num_envs), terminated)
        truncated = self._read(lambda x, _: to_flags(x, "the truncations", self.num_envs), truncated) & ~terminated
        self._age += 1
        if some:
            if self._mode is AutoresetMode.NEXT_STEP and ((terminated | truncated) & fresh & ~ours).any():
                raise UserError(
                    f"{self.spec.name} ended an episode in the step that resets it. Is metadata"
                    "['autoreset_mode'] correct? NEXT_STEP ignores the action after an episode ends and returns the "
                    "first observation of the next episode."
                )
            for array in (reward, terminated, truncated, self._age):
                array[fresh] = 0
        ended = terminated | truncated
        at_limit = (self._age >= self._limit) & ~ended
        self._final = ended | at_limit
        self._reset_here = self._final if self._mode is AutoresetMode.DISABLED else at_limit
        mask = self._mask
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            mask = self._restore_last_observations(seen, ended, infos)
        timestep = self._timestep(seen, fresh if some else None, mask)
        return self._step(reward, terminated, truncated | at_limit), timestep

    def _read(self, read: Callable[[Any, bool], Any], returned: Any) -> Any:
        """Parts of what the environment returned. UserError for another structure."""
        try:
            return read(returned, False)
        except UserError as error:
            raise UserError(f"{self._name}: {error}") from error

    def _shown(self, observation: Any, info: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Observations by sensor, and masks."""
        return self._by_sensor(observation, self.num_envs), self._masks_of(observation, info)

    def _by_sensor(self, observation: Any, num_envs: int) -> dict[str, np.ndarray]:
        """Observations by sensor. UserError for others than those of the space."""
        try:
            shown = observation if self._extract is None else self._extract(observation)
            return self._observer(shown, num_envs)
        except (KeyError, IndexError, TypeError) as error:
            kind, space = type(observation).__name__, self._env.single_observation_space
            said = ObservationError(f"type {kind} ({one_line(error)})", f"a batch of {space}")
            raise UserError(f"{self._name}: {said}") from error
        except UserError as error:
            raise UserError(f"{self._name}: {error}") from error

    def _masks_of(self, observation: Any, info: Any, num_envs: int | None = None) -> np.ndarray:
        """The masks, all True if there are none."""
        if self._masks_may_follow and MASK in info:
            raise UserError(f"{self._name}: {late_mask('info')}")
        try:
            return self._mask if self._masks is None else self._masks(observation, info, num_envs or self.num_envs)
        except UserError as error:
            raise UserError(f"{self._name}: {error}") from error

    def _native(self, action: Action, fresh: np.ndarray, some: bool) -> Any:
        """Native actions; environments at the start of an episode get a fixed action, the first legal one."""
        given = []
        first = self._masks.first_actions(self._mask) if some and self._masks is not None else 0
        for chosen, fixed in ((action.discrete, first), (action.continuous, 0)):
            own = self._empty if chosen is None else chosen[:, 0].cpu().numpy()
            given.append(np.where(fresh[:, None], fixed, own).astype(own.dtype) if some and own.size else own)
        return self._actuator(*given)

    def _reset_some(
        self, who: np.ndarray, seen: dict[str, np.ndarray] | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Resets some environments and returns all observations and masks. UserError if those of others changed."""
        begun, mask = self._shown(*self._read(from_reset, self._env.reset(options={"reset_mask": who.copy()})))
        mask = np.where(who[:, None], mask, self._mask)
        if seen is None:
            return begun, mask
        if any(not np.array_equal(begun[name][~who], old[~who], equal_nan=True) for name, old in seen.items()):
            raise UserError(
                f"{self.spec.name}: reset(options={{'reset_mask': mask}}) changed observations of environments "
                "outside of the mask. Reset only those inside and return the others unchanged, or "
                "accept max_episode_steps in the constructor and enforce it there."
            )
        return begun, mask

    def _restore_last_observations(self, seen: dict[str, np.ndarray], ended: np.ndarray, infos: Any) -> np.ndarray:
        """Replaces the first observations of new episodes by the last ones of the finished episodes.

        Returns:
            The masks with those of the last observations.
        """
        final = infos.get("final_obs")
        if final is None:
            raise UserError(
                f"{self.spec.name} ended episodes, but its infos lack 'final_obs', the last observations, which "
                "AutoresetMode.SAME_STEP must return. Otherwise learners would mistake the first "
                "observation of the next episode for the last one."
            )
        if (
            isinstance(final, np.ndarray) and final.dtype == object
        ):  # a list of observations, None where no episode ended
            space, own = self._env.single_observation_space, [x for x, now in zip(final, ended, strict=True) if now]
            if any(x is None for x in own):
                raise UserError(f"{self.spec.name}: infos['final_obs'] lacks an environment whose episode ended")
            batch = concatenate(space, own, create_empty_array(space, len(own)))
            shown = self._by_sensor(batch, len(own))
        else:
            batch, own = final, None
            shown = {name: array[ended] for name, array in self._by_sensor(final, self.num_envs).items()}
        for name, array in seen.items():
            array[ended] = shown[name]
        if self._masks is None:
            return self._mask
        masks, info = self._mask.copy(), infos.get("final_info")
        if self._masks.by_method:  # the method returns those of the next episode
            masks[ended] = True
        elif own is None or not self._masks.in_observation:
            masks[ended] = self._masks_of(batch, info if isinstance(info, Mapping) else {})[ended]
        else:
            masks[ended] = self._masks_of(batch, {}, len(own))
        return masks

    def _step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> Step:
        own = self._tensor(reward)[:, None]
        agent_terminated, agent_truncated = (
            self._tensor(flags.copy())[:, None] if flags.any() else self._none for flags in (terminated, truncated)
        )
        return Step(
            reward=own,
            group_reward=self._no_group_reward,
            terminated=agent_terminated,
            truncated=agent_truncated,
            episode_terminated=agent_terminated[:, 0],
            episode_truncated=agent_truncated[:, 0],
            metrics={},
        )

    def _timestep(
        self, seen: dict[str, np.ndarray], fresh: np.ndarray | None, mask: np.ndarray | None = None
    ) -> Timestep:
        obs = {name: self._tensor(array)[:, None] for name, array in seen.items()}
        first = self._none if fresh is None else self._tensor(fresh.copy())[:, None]
        acted = self._tensor(~self._final) if self._final.any() else self._all[:, 0]
        return Timestep(
            obs={ROLE: obs.get("", obs)},
            action_mask={}
            if self._masks is None
            else {ROLE: self._tensor(self._mask if mask is None else mask)[:, None]},
            state={},
            alive=self._all,
            first=first,
            acted=acted,
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._here else tensor.to(self.device)

    # ----------------------------------------------------------------------------------------------------------- others

    def state_dict(self) -> dict[str, Any]:
        if self._saved is None:
            return {}
        if self._seed is not None:
            return {"seed": self._seed}
        own = {"age": self._age, "final": self._final, "reset_here": self._reset_here}
        memory = {name: as_tensor(getattr(self._env, name)) for name in self._saved}
        counted = {name: as_tensor(array) for name, array in own.items()}
        return {"seed": None, "memory": memory, "generator": rng_state(self._env.np_random), **counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._saved is None:
            raise UserError(f"{self.spec.name}: its state cannot be restored. Start new episodes with reset(seed).")
        self._seed = state["seed"]
        if self._seed is not None:
            return
        for name, value in state["memory"].items():
            setattr(self._env, name, from_tensor(value))
        set_rng_state(self._env.np_random, state["generator"])
        self._age, self._final, self._reset_here = (from_tensor(state[name]) for name in ("age", "final", "reset_here"))

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        self._env.unwrapped.render_mode = "rgb_array"  # environments read it when they render
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays need no window, and there may be no screen
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some expect the render mode where they were created
            try:
                drawn = self._env.render()
            except NotImplementedError:
                drawn = None
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # behavior of environments created without a render mode
                said = f"{type(error).__name__}: {message_of(error)}"
                raise UserError(f"{self.spec.name}: rendering failed ({said})") from error
        if isinstance(drawn, np.ndarray) and drawn.ndim == 3:
            drawn = [drawn]  # all environments in one image
        if drawn is None or len(drawn) not in (1, self.num_envs) or any(one is None for one in drawn):
            raise UserError(f"{self.spec.name} does not support rendering, because it has no render mode rgb_array")
        picture = np.ascontiguousarray(drawn[env_index if len(drawn) == self.num_envs else 0], dtype=np.uint8)
        scale = size / max(picture.shape[:2])
        height, width = (max(1, round(scale * side)) for side in picture.shape[:2])
        return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)).copy()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()


def _mode(name: str, env: Any, given: str | None) -> AutoresetMode:
    """Autoreset mode of the environment. UserError if it is not declared."""
    if given is not None:
        return AutoresetMode[given.upper()]
    said = (env.metadata or {}).get(_MODE)
    try:
        return AutoresetMode(said)
    except ValueError as error:
        raise UserError(
            f"environment '{name}': metadata['{_MODE}'] is {said!r}, expected the handling of finished environments. "
            "Set env.autoreset=next_step, same_step or disabled."
        ) from error
