"""StarCraft II environments of the SMAC packages, `smac/MAP` and `smacv2/RACE_N_vs_M`, and `smaclite/MAP` without the
game.

Sources: Samvelyan et al. 2019 (SMAC); Ellis et al. 2023 (SMACv2); Michalski et al. 2023 (SMAClite).
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Annotated, Any, Literal, final

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from pydantic import BaseModel, BeforeValidator, Field

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError, as_user_error, message_of, nearest
from coterie.envs.contract.closing import close_reported
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.multi_agent_env import NAMES, MultiAgentInstance, TeamLayout, team_layout_of
from coterie.envs.worlds.skirmish import ROSTERS

ROLE, GROUP = "ally", "allies"
"""Equal to the names in `skirmish`, so that policies can be transferred."""

_SOURCES = {
    "smac": "git+https://github.com/oxwhirl/smac.git",
    "smacv2": "git+https://github.com/oxwhirl/smacv2.git",
    "smaclite": "git+https://github.com/uoe-agents/smaclite.git",
}
"""None of them is on PyPI; the PyPI package `smac` is a hyperparameter optimizer."""

_LONGEST = 400
"""Steps of the longest maps of SMAC."""

_COTERIE_SETTINGS = {"relaunch", "state", "wrappers", "episode_limit"}
"""Settings that are not constructor arguments."""


class BattleConfig(ExternalEnvConfig):
    """Settings of every battle."""

    model_config = ExternalEnvConfig.model_config | {"extra": "allow"}

    state: bool | None = None
    """Pass the state to critics; by default if it has at most 10,000 elements."""
    episode_limit: int | None = Field(default=None, ge=1, le=10**9)
    """Maximum number of steps before truncation, if smaller than the limit of the map."""


class SmacConfig(BattleConfig):
    """Settings of SMAC and SMACv2; further parameters of the package's `StarCraft2Env` are settings as well."""

    difficulty: Annotated[Literal["1", "2", "3", "4", "5", "6", "7", "8", "9", "A"], BeforeValidator(str)] = "7"
    """Strength of the built-in opponent: 1 very easy, 7 very hard (as published), 8 to A cheating."""
    game_version: str | None = None
    """StarCraft II version, such as 4.10.0; null: the newest installed. Results of different versions are not
    comparable.
    """
    continuing_episode: bool = True
    """Report the step limit as truncation, so that values are bootstrapped. The package's default is false, which
    treats the limit as a lost battle.
    """
    reward_sparse: bool = False
    """Reward of 1 for a won battle, -1 for a lost one, and 0 otherwise."""
    reward_only_positive: bool = True
    """Do not penalize the team's own losses."""
    obs_last_action: bool = False
    """Agents observe the last actions of visible teammates."""
    state_last_action: bool = True
    """The state contains the last actions."""
    replay_dir: str = ""
    """Default folder for replays; empty: the folder of the game."""
    replay_prefix: str = ""
    """Prefix of replay file names; empty: the map name."""
    relaunch: bool = False
    """Restart the game whenever an episode has its own seed, as in every evaluation. Battles are then reproducible, at
    about ten seconds per environment. Otherwise the game is seeded once when it starts.
    """


class Smacv2Config(SmacConfig):
    """Settings of SMACv2: teams and positions are sampled for every battle."""

    obs_own_pos: bool = True
    """Agents observe their own position."""
    use_unit_ranges: bool = True
    """Available targets depend on the range of each unit instead of 6 for all."""
    min_attack_range: int | float = Field(default=2, ge=0, le=10**6)
    """Minimum distance at which melee units can choose a target."""
    conic_fov: bool = False
    """Agents have a cone-shaped field of view, which they turn by additional actions."""
    step_mul: int = Field(default=8, ge=1, le=1000)
    """Game steps per environment step."""


class SmacliteConfig(BattleConfig):
    """Settings of SMAClite; the step limit is SMAC's for the map. Further parameters of its environment are settings as
    well.
    """

    use_cpp_rvo2: bool = False
    """Use SMAClite's compiled collision avoidance library."""


# ------------------------------------------------------------------------------------------------------------- adapters


@final
class Smac(Adapter):
    """`smac/MAP` for the maps of SMAC, for example `smac/3m`."""

    Config = SmacConfig

    def __init__(self, name: str):
        self.name, self._map = f"smac/{name}", name

    def layout(self, config: BaseModel) -> Layout:
        return self._team_layout(config).layout()

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, SmacConfig)
        layout = self._team_layout(config)
        return MultiAgentInstance(lambda seed: self._one(config, seed), layout, config.episode_limit, config.relaunch)

    def _team_layout(self, config: BaseModel) -> TeamLayout:
        assert isinstance(config, SmacConfig)
        env = self._one(config, None)  # the game starts with the first episode
        return battle_layout(env, self.name, config, starcraft(self.name, "smac", self._map, config))

    def _one(self, config: SmacConfig, seed: int | None) -> Any:
        made = package(self.name, "smac", "smac.env", "StarCraft2Env")
        with user_errors(self.name):
            return made(map_name=self._map, seed=seed, **config.model_dump(exclude=_COTERIE_SETTINGS))


_RACES = {
    "terran": (("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), ("medivac",)),
    "protoss": (("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1), ()),
    "zerg": (("zergling", "baneling", "hydralisk"), (0.45, 0.1, 0.45), ("baneling",)),
}
"""Unit types, their sampling probabilities, and types that never form a team alone; as published."""


@final
class Smacv2(Adapter):
    """`smacv2/RACE_N_vs_M`, for example `smacv2/terran_5_vs_5`: N against M random units at random places."""

    Config = Smacv2Config

    def __init__(self, name: str):
        self.name = f"smacv2/{name}"
        found = re.fullmatch(r"(\w+?)_(\d+)_vs_(\d+)", name)
        if found is None or found[1] not in _RACES or not 0 < int(found[2]) <= int(found[3]):
            known = [f"smacv2/{race}_{sides}" for race in _RACES for sides in ("5_vs_5", "10_vs_10", "10_vs_11")]
            expected = "expected terran, protoss or zerg and sizes such as 5_vs_5 or 10_vs_11, the enemy not smaller"
            raise UserError(f"no such environment: '{self.name}'. {nearest(self.name, known)} ({expected})")
        self._race, self._units, self._enemies = found[1], int(found[2]), int(found[3])

    def layout(self, config: BaseModel) -> Layout:
        return self._team_layout(config).layout()

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, Smacv2Config)
        layout = self._team_layout(config)
        return MultiAgentInstance(lambda seed: self._one(config, seed), layout, config.episode_limit, config.relaunch)

    def _team_layout(self, config: BaseModel) -> TeamLayout:
        assert isinstance(config, Smacv2Config)
        env_info = starcraft(self.name, "smacv2", f"10gen_{self._race}", config)
        return battle_layout(self._one(config, None), self.name, config, env_info)

    def _one(self, config: Smacv2Config, seed: int | None) -> Any:
        wrapper = package(self.name, "smacv2", "smacv2.env.starcraft2.wrapper", "StarCraftCapabilityEnvWrapper")
        params = {"capability_config": self._capabilities(), **config.model_dump(exclude=_COTERIE_SETTINGS)}
        with user_errors(self.name):
            return wrapper(map_name=f"10gen_{self._race}", seed=seed, **params)

    def _capabilities(self) -> dict[str, Any]:
        """Distribution of battles; created for each environment because the package modifies it."""
        kinds, weights, never_alone = _RACES[self._race]
        team: dict[str, Any] = {"dist_type": "weighted_teams", "unit_types": list(kinds), "weights": list(weights)}
        if never_alone:
            team["exception_unit_types"] = list(never_alone)
        return {
            "n_units": self._units,
            "n_enemies": self._enemies,
            "team_gen": team | {"observe": True},
            "start_positions": {"dist_type": "surrounded_and_reflect", "p": 0.5, "map_x": 32, "map_y": 32},
        }


@final
class Smaclite(Adapter):
    """`smaclite/MAP`: SMAC's battles in Python, without the game."""

    Config = SmacliteConfig

    def __init__(self, name: str):
        self.name, self._map = f"smaclite/{name}", name

    def layout(self, config: BaseModel) -> Layout:
        return self._team_layout(config).layout()

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, SmacliteConfig)
        layout = self._team_layout(config)
        return MultiAgentInstance(lambda seed: self._one(config, seed), layout, layout.limit)

    def _team_layout(self, config: BaseModel) -> TeamLayout:
        assert isinstance(config, SmacliteConfig)
        limits = {name.lower(): roster.limit for name, roster in ROSTERS.items()}
        limit = min(config.episode_limit or _LONGEST, limits.get(self._map.lower()) or _LONGEST)
        env = self._one(config, None)
        env_info = {"map": self._map, "smaclite": _version("smaclite")}
        return battle_layout(env, self.name, config.model_copy(update={"episode_limit": limit}), env_info)

    def _one(self, config: SmacliteConfig, seed: int | None) -> Any:
        package(self.name, "smaclite", "smaclite", None)
        known = {key.lower(): key for key in gymnasium.registry if key.startswith("smaclite/")}
        found = known.get(f"smaclite/{self._map}-v0".lower())
        if found is None:
            names = [key.removesuffix("-v0") for key in known.values()]
            raise UserError(f"no such environment: '{self.name}'. {nearest(self.name, names)}")
        params = config.model_dump(exclude=_COTERIE_SETTINGS)
        entry: Any = gymnasium.registry[found].entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        takes_seed = "seed" in inspect.signature(creator).parameters
        if seed is not None and takes_seed:  # in addition to the one at every reset
            params["seed"] = seed
        with user_errors(self.name):
            made: Any = gymnasium.make(found, disable_env_checker=True, **params).unwrapped
        return SmacliteEnv(made)


@final
class SmacliteEnv:
    """Wraps SMAClite's Gymnasium-like environment as a MultiAgentEnv."""

    def __init__(self, env: Any):
        self._env = env

    def get_env_info(self) -> dict[str, Any]:
        env = self._env
        return {
            "n_agents": env.n_agents,
            "n_actions": env.n_actions,
            "obs_shape": env.obs_size,
            "state_shape": env.state_size,
        }

    def reset(self, seed: int | None = None) -> None:
        self._env.reset(seed=seed)

    def step(self, actions: list[int]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        env = self._env
        observations, reward, terminated, truncated, _ = env.step(actions)
        dead_allies, dead_enemies = env.n_agents - len(env.agents), env.n_enemies - len(env.enemies)
        info = {
            "battle_won": not env.enemies and bool(env.agents),
            "dead_allies": dead_allies,
            "dead_enemies": dead_enemies,
        }
        return observations, float(reward), terminated, truncated, info

    def get_obs(self) -> Any:
        return self._env.get_obs()

    def get_state(self) -> np.ndarray:
        return self._env.get_state()

    def get_avail_actions(self) -> Any:
        return self._env.get_avail_actions()

    def close(self) -> None:
        self._env.close()


# ------------------------------------------------------------------------------------------------- what the library has


def battle_layout(env: Any, name: str, config: BattleConfig, env_info: dict[str, str]) -> TeamLayout:
    """Properties of a battle: dead agents have action 0 only. Closes `env`."""
    try:
        return team_layout_of(
            env,
            name,
            "noop",
            state=config.state,
            limit=config.episode_limit,
            metrics=tuple(NAMES),
            role=ROLE,
            group=GROUP,
            env_info=env_info,
        )
    finally:
        close_reported(name, env.close)


def package(name: str, family: str, module: str, attribute: str | None) -> Any:
    """Imports an object from a package. UserError with installation instructions if the package is missing."""
    source = f'pip install "{_SOURCES[family]}"'
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == family:
            raise UserError(f"environment '{name}' needs {family}. Install it with: {source}") from error
        if error.name is not None and error.name.startswith(f"{family}."):  # the AutoML package has the same name
            said = f"the package '{family}' is a different one of the same name"
            raise UserError(f"environment '{name}': {said}. Run: pip uninstall {family}, then {source}") from error
        said = f"{family} needs '{error.name}', which is not installed"
        raise UserError(f"environment '{name}': {said}. Install it with: pip install {error.name}") from error
    except ImportError as error:
        raise UserError(f"environment '{name}': {message_of(error)}. Install it with: {source}") from error
    return found if attribute is None else getattr(found, attribute)


def starcraft(name: str, family: str, battle: str, config: SmacConfig) -> dict[str, str]:
    """Facts about the game for the manifest. UserError with instructions if the game is not installed."""
    package(name, family, f"{family}.env", None)
    configs, maps = (package(name, family, f"pysc2.{part}", None) for part in ("run_configs", "maps"))
    flags = package(name, family, "absl.flags", "FLAGS")
    if not flags.is_parsed():  # pysc2 reads it to find the game
        flags(["coterie"])
    where = os.environ.get("SC2PATH", "~/StarCraftII")
    hint = f"Unpack StarCraft II there, or set SC2PATH to its folder (now {where})."
    try:
        game = configs.get(version=config.game_version)
        installed = os.path.isdir(game.data_dir)
    except Exception as error:
        if isinstance(error, ValueError | KeyError):  # the requested version is not installed
            raise UserError(f"env.game_version={config.game_version}: {message_of(error)}") from error
        raise UserError(f"environment '{name}': StarCraft II is not installed. {hint}") from error
    if not installed:
        raise UserError(f"environment '{name}': StarCraft II is not installed. {hint}")
    try:
        game.map_data(maps.get(battle).path)
    except Exception as error:
        said = f"'{battle}' is not a map in {os.path.join(game.data_dir, 'Maps')}"
        raise UserError(f"environment '{name}': {said}. Copy the SMAC_Maps of the package {family} there") from error
    build = game.version.build_version
    named = [name for name, known in game.get_versions().items() if known.build_version == build and name != "latest"]
    return {
        "map": battle,
        "difficulty": config.difficulty,
        "game_version": config.game_version or " or ".join(named) or "latest",
        "game_build": str(build),
        family: _version(family),
        "pysc2": _version("pysc2"),
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def user_errors(name: str) -> AbstractContextManager[None]:
    """Converts constructor errors into a one-line UserError."""
    return as_user_error(f"environment '{name}'", TypeError, ValueError, AssertionError, KeyError)
