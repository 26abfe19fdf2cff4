"""Gymnasium's vector environments, `gymvec/<ID>`: one environment that is many copies, by its `vector_entry_point`.

Such an environment begins a copy's next episode by itself, on the next step or on the very step that ended the last, or
leaves it to whoever steps it (`metadata["autoreset_mode"]`). Here every copy shows the last observation of an episode
in a closing row, and the next row begins the next one, whatever the mode:

- NEXT_STEP is just that.
- DISABLED: copies that ended are begun anew with `reset(options={"reset_mask": ...})`, before the step that has to be
  made with all, since a copy that ended must not be stepped, and again after it, so that nobody misses the first row.
- SAME_STEP: the closing row is `final_obs` of the infos. The next episode has begun by then and cannot wait: its first
  step is made with the first choice (numbers: the middle of their bounds), and neither shown nor paid.

A copy that reaches a limit which its environment does not count is cut here, and begun anew by the mask.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
from typing import Any, Literal, final

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.envs.adapters.batched import BatchAdapter
from coterie.envs.adapters.batches import BatchActuator, BatchObserver, on_host
from coterie.envs.adapters.gymnasium import ROLE, registered, told
from coterie.envs.adapters.keys import typed_keys
from coterie.envs.hosting.saved import as_tensor, from_tensor, set_words, words
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError
from coterie.seeds import seed_of
from coterie.types import Action, EnvSpec, RoleSpec, Row, Step

_SAVED = {"gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": ("state", "steps", "prev_done")}
"""Attributes that are all the memory of a vector environment, besides its generator."""
_LIMIT, _MODE = "max_episode_steps", "autoreset_mode"


class GymVecConfig(BaseModel):
    """Keys of every vector environment; the parameters of its constructor are keys as well."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    episode_limit: int | None = Field(None, ge=1)
    """Steps after which an episode is cut; by default what the environment was registered with, or what its
    constructor's `max_episode_steps` says."""
    autoreset: Literal["next_step", "same_step", "disabled"] | None = None
    """What the environment does with copies that ended; by default what its `metadata["autoreset_mode"]` says."""


_CONFIGS: dict[str, tuple[GymSpec, type[GymVecConfig]]] = {}


class GymVec(BatchAdapter):
    """The vector environment of one id that gymnasium's registry holds; `package:ID` imports the package first."""

    def __init__(self, env_id: str):
        self.name = f"gymvec/{env_id}"
        self._registered = registered(env_id, "gymvec")
        entry: Any = self._registered.vector_entry_point
        if entry is None:
            raise UserError(
                f"environment '{self.name}' has no vector environment of its own: gym/{env_id} steps single ones"
            )
        with told(self.name, self._registered), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            creator = load_env_creator(entry) if isinstance(entry, str) else entry
        self._maker = functools.partial(creator, **self._registered.kwargs)
        known = _CONFIGS.get(env_id)
        if known is None or known[0] is not self._registered:  # equal configurations have to be of one class
            left_out = ("num_envs", "render_mode", _LIMIT, _MODE)
            config = typed_keys(GymVecConfig, [self._maker], left_out, f"gymnasium's {self._registered.id}")
            known = _CONFIGS[env_id] = (self._registered, config)
        self.Config = known[1]

    def spec(self, config: BaseModel) -> EnvSpec:
        env = self.batch(config, 1, 0, torch.device("cpu"))
        env.close()
        return env.spec

    def batch(self, config: BaseModel, copies: int, seed: int, device: torch.device) -> VectorEnv:
        assert isinstance(config, GymVecConfig)
        given, limit = self._given(config)
        source = copy.deepcopy(self._registered)
        source.max_episode_steps = None  # given above, if it is taken
        with told(self.name, self._registered):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*(missing AutoresetMode|autoreset_mode).*")  # told below
                env = gymnasium.make_vec(source, copies, "vector_entry_point", **given)
            if env.num_envs != copies:
                raise ValueError(f"it was asked for {copies} copies and has {env.num_envs}")
            return Batch(self.name, env, _mode(self.name, env, config.autoreset), limit, seed, device)

    def _given(self, config: GymVecConfig) -> tuple[dict[str, Any], int | None]:
        """What the constructor is given, and after how many steps episodes are cut."""
        given = {key: value for key, value in config.model_dump().items() if key not in GymVecConfig.model_fields}
        try:
            taken = inspect.signature(self._maker).parameters
        except (TypeError, ValueError):  # compiled ones may not tell
            taken = {}
        limit = config.episode_limit or self._registered.max_episode_steps
        default = taken[_LIMIT].default if _LIMIT in taken else None
        counts = isinstance(default, int) and default > 0  # 0 and the like stand for none
        if config.episode_limit is None and counts and (limit is None or _LIMIT in self._registered.kwargs):
            limit = default
        if limit is not None and (_LIMIT in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values())):
            given[_LIMIT] = limit
        if _MODE in taken and _MODE not in self._registered.kwargs:
            given[_MODE] = AutoresetMode.NEXT_STEP  # the one that misses nothing
        return given, limit


@final
class Batch(VectorEnv):
    """One vector environment of gymnasium.

    mode: what it does with copies that ended; limit: steps after which an episode is cut, by the environment or else
    here. TypeError for spaces that the contract has not.
    """

    def __init__(self, name: str, env: Any, mode: AutoresetMode, limit: int | None, seed: int, device: torch.device):
        self._env, self._mode, self._closed = env, mode, False
        self.copies, self.device, self._here = int(env.num_envs), device, device.type == "cpu"
        self._observer = BatchObserver(env.single_observation_space)
        self._actuator = BatchActuator(env.single_action_space)
        role = RoleSpec(ROLE, ROLE, (ROLE,), self._observer.space, env.single_action_space)
        kind = type(env)
        self._saved = _SAVED.get(f"{kind.__module__}.{kind.__qualname__}")
        self.spec = EnvSpec(name, (role,), {}, episode_limit=limit, exact_resume=self._saved is not None)
        self._seed: int | None = seed  # of the first reset
        self._limit = np.iinfo(np.int64).max if limit is None else limit
        self._age = np.zeros(self.copies, np.int64)
        self._closing = np.zeros(self.copies, np.bool_)
        self._ours = self._closing  # closing copies that do not begin anew by themselves
        self._empty = np.zeros((self.copies, 0))
        self._all = torch.ones(self.copies, 1, dtype=torch.bool, device=device)
        self._none = torch.zeros_like(self._all)
        self._no_group_reward = torch.zeros(self.copies, 1, device=device)

    # ------------------------------------------------------------------------------------------------------ episodes

    def reset(self, seed: int | None = None) -> Row:
        seed, self._seed = self._seed if seed is None else seed, None
        own = None if seed is None else seed_of(seed, "env", self.spec.name) >> 32  # 31 bits, which every library takes
        seen = self._observer(self._env.reset(seed=own)[0], self.copies)
        self._age = np.zeros_like(self._age)
        self._closing = self._ours = np.zeros_like(self._closing)
        return self._row(seen, np.ones_like(self._closing))

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        fresh, ours = self._closing, self._ours
        some = bool(fresh.any())
        if some and ours.all():  # nothing that a step did would be seen
            seen = self._begun(ours, None)
            self._age, self._closing = np.zeros_like(self._age), np.zeros_like(fresh)
            self._ours = self._closing
            return self._step(np.zeros(self.copies, np.float32), self._closing, self._closing), self._row(seen, fresh)
        restarts = some and bool(ours.any())
        if restarts and self._mode is AutoresetMode.DISABLED:
            self._begun(ours, None)
        observations, reward, terminated, truncated, infos = self._env.step(self._native(action[ROLE], fresh, some))
        seen = self._observer(observations, self.copies)
        if restarts:
            seen = self._begun(ours, seen)
        reward = self._numbers("rewards", reward, np.float32)
        terminated = self._numbers("terminations", terminated, np.bool_)
        truncated = self._numbers("truncations", truncated, np.bool_) & ~terminated
        self._age += 1
        if some:
            if self._mode is AutoresetMode.NEXT_STEP and ((terminated | truncated) & fresh & ~ours).any():
                raise UserError(
                    f"{self.spec.name} ended an episode in the step that was to begin it: is metadata"
                    "['autoreset_mode'] what it does? NEXT_STEP ignores the action after an end, and returns the next "
                    "episode's first observation"
                )
            for array in (reward, terminated, truncated, self._age):
                array[fresh] = 0
        ended = terminated | truncated
        cut = (self._age >= self._limit) & ~ended
        self._closing = ended | cut
        self._ours = self._closing if self._mode is AutoresetMode.DISABLED else cut
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            self._finish(seen, ended, infos)
        return self._step(reward, terminated, truncated | cut), self._row(seen, fresh if some else None)

    def _native(self, action: Action, fresh: np.ndarray, some: bool) -> Any:
        """What the environment is given: where an episode begins always the same, whatever was chosen."""
        given = []
        for chosen in (action.discrete, action.continuous):
            own = self._empty if chosen is None else chosen[:, 0].cpu().numpy()
            given.append(np.where(fresh[:, None], 0, own).astype(own.dtype) if some and own.size else own)
        return self._actuator(*given)

    def _begun(self, who: np.ndarray, seen: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Begins episodes of some copies. seen: what all see, to be brought up to date; UserError if others changed."""
        observations = self._env.reset(options={"reset_mask": who.copy()})[0]
        begun = self._observer(observations, self.copies)
        if seen is None:
            return begun
        if any(not np.array_equal(begun[name][~who], old[~who], equal_nan=True) for name, old in seen.items()):
            raise UserError(
                f"{self.spec.name}: reset(options={{'reset_mask': mask}}) changed what copies outside of the mask see: "
                "begin only those inside, and show the others as they are, or take max_episode_steps in the "
                "constructor and count it there"
            )
        return begun

    def _finish(self, seen: dict[str, np.ndarray], ended: np.ndarray, infos: dict[str, Any]) -> None:
        """Puts last observations where the first ones of the next episodes stand."""
        final = infos.get("final_obs")
        if final is None:
            raise UserError(
                f"{self.spec.name} ended episodes, and its infos have no 'final_obs', the last observations, which "
                "AutoresetMode.SAME_STEP has to return: learners would take the next episode's first for the last"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:  # observations one by one, None where none ended
            space, own = self._env.single_observation_space, [x for x, now in zip(final, ended, strict=True) if now]
            if any(x is None for x in own):
                raise UserError(f"{self.spec.name}: 'final_obs' of its infos lacks a copy that ended")
            batch = concatenate(space, own, create_empty_array(space, len(own)))
            shown = self._observer(batch, len(own))
        else:
            shown = {name: array[ended] for name, array in self._observer(final, self.copies).items()}
        for name, array in seen.items():
            array[ended] = shown[name]

    def _numbers(self, what: str, value: Any, dtype: Any) -> np.ndarray:
        array = on_host(value)
        if array.shape != (self.copies,):
            raise UserError(f"{self.spec.name}: step() returned {what} of shape {array.shape}, expected one a copy")
        return array.astype(dtype)

    def _step(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> Step:
        own = self._tensor(reward)[:, None]
        ended, cut = (
            self._tensor(flags.copy())[:, None] if flags.any() else self._none for flags in (terminated, truncated)
        )
        return Step(own, self._no_group_reward, ended, cut, ended[:, 0], cut[:, 0], {})

    def _row(self, seen: dict[str, np.ndarray], fresh: np.ndarray | None) -> Row:
        obs = {name: self._tensor(array)[:, None] for name, array in seen.items()}
        first = self._none if fresh is None else self._tensor(fresh.copy())[:, None]
        acted = self._tensor(~self._closing) if self._closing.any() else self._all[:, 0]
        return Row({ROLE: obs.get("", obs)}, {}, {}, self._all, first, acted)

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._here else tensor.to(self.device)

    # --------------------------------------------------------------------------------------------------------- others

    def state_dict(self) -> dict[str, Any]:
        if self._saved is None:
            return {}
        if self._seed is not None:
            return {"seed": self._seed}
        own = {"age": self._age, "closing": self._closing, "ours": self._ours}
        memory = {name: as_tensor(getattr(self._env, name)) for name in self._saved}
        counted = {name: as_tensor(array) for name, array in own.items()}
        return {"seed": None, "memory": memory, "generator": words(self._env.np_random), **counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._saved is None:
            raise UserError(f"{self.spec.name} cannot save its state: begin new episodes with reset(seed)")
        self._seed = state["seed"]
        if self._seed is not None:
            return
        for name, value in state["memory"].items():
            setattr(self._env, name, from_tensor(value))
        set_words(self._env.np_random, state["generator"])
        self._age, self._closing, self._ours = (from_tensor(state[name]) for name in ("age", "closing", "ours"))

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        self._env.unwrapped.render_mode = "rgb_array"  # environments look at it when they draw
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # arrays want no window, and there may be no screen
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some ask for a render mode where they were made
            try:
                drawn = self._env.render()
            except NotImplementedError:
                drawn = None
            except Exception as error:  # what an environment does that was made without a render mode
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise UserError(f"{self.spec.name} could not be drawn ({said})") from error
        if isinstance(drawn, np.ndarray) and drawn.ndim == 3:
            drawn = [drawn]  # of all copies together
        if drawn is None or len(drawn) not in (1, self.copies) or any(one is None for one in drawn):
            raise UserError(f"{self.spec.name} draws no pictures: it has no render mode rgb_array")
        picture = np.ascontiguousarray(drawn[copy if len(drawn) == self.copies else 0], dtype=np.uint8)
        scale = size / max(picture.shape[:2])
        height, width = (max(1, round(scale * side)) for side in picture.shape[:2])
        return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)).copy()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()


def _mode(name: str, env: Any, given: str | None) -> AutoresetMode:
    """What the environment does with copies that ended. UserError where nobody says it."""
    if given is not None:
        return AutoresetMode[given.upper()]
    said = (env.metadata or {}).get(_MODE)
    try:
        return AutoresetMode(said)
    except ValueError as error:
        raise UserError(
            f"environment '{name}': metadata['{_MODE}'] is {said!r}, expected what it does with copies that ended: "
            "say it with env.autoreset=next_step, same_step or disabled"
        ) from error
