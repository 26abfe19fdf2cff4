"""StarCraft II by the packages of its challenge, `smac/MAP` and `smacv2/RACE_N_vs_M`, and `smaclite/MAP` without it.

Sources: Samvelyan et al. 2019 (SMAC); Ellis et al. 2023 (SMACv2); Michalski et al. 2023 (SMAClite).
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Annotated, Any, Literal, final

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from pydantic import BaseModel, BeforeValidator, Field

from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.multiagent import NAMES, Squad, SquadInstance, squad_of
from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.skirmish import ROSTERS
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError, nearest

ROLE, GROUP = "ally", "allies"
"""As in `skirmish`, so that what is trained there and here is called the same."""

_SOURCES = {
    "smac": "git+https://github.com/oxwhirl/smac.git",
    "smacv2": "git+https://github.com/oxwhirl/smacv2.git",
    "smaclite": "git+https://github.com/uoe-agents/smaclite.git",
}
"""None of them is in a package index; the `smac` that is there tunes hyperparameters."""

_LONGEST = 400
"""Steps, as on SMAC's longest maps."""

_OURS = {"relaunch", "state", "wrappers", "episode_limit"}
"""Keys that no constructor is given."""


class BattleConfig(HostedConfig):
    """Keys of every battle."""

    model_config = HostedConfig.model_config | {"extra": "allow"}

    state: bool | None = None
    """Whether critics are shown the state; by default where that is at most 10,000 numbers."""
    episode_limit: int | None = Field(default=None, ge=1)
    """Steps after which an episode is cut, if that is sooner than the map's own limit."""


class SmacConfig(BattleConfig):
    """Keys of SMAC and SMACv2; further parameters of the package's `StarCraft2Env` are keys as well."""

    difficulty: Annotated[Literal["1", "2", "3", "4", "5", "6", "7", "8", "9", "A"], BeforeValidator(str)] = "7"
    """How strong the game's own player is: 1 very easy, 7 very hard, as published, 8 to A with cheats."""
    game_version: str | None = None
    """StarCraft II's version, such as 4.10.0; null for the newest there is. Results of two versions do not compare."""
    continuing_episode: bool = True
    """Whether the limit of steps is told apart from an end, so that values are bootstrapped across it. The package's
    own default is false: a limit then counts as a lost battle does."""
    reward_sparse: bool = False
    """Whether the team is paid 1 for a won battle and -1 for a lost one, and nothing else."""
    reward_only_positive: bool = True
    """Whether the team's own losses cost nothing."""
    obs_last_action: bool = False
    """Whether agents see the last actions of those in sight."""
    state_last_action: bool = True
    """Whether the state holds everybody's last action."""
    replay_dir: str = ""
    """Folder that replays are saved to by default; empty for the game's own."""
    replay_prefix: str = ""
    """What names of replays begin with; empty for the map's name."""
    relaunch: bool = False
    """Whether the game is started anew wherever an episode begins with a seed of its own, as every evaluation does:
    the same battles each time, for some ten seconds a copy. Otherwise the game is seeded when it starts, and draws on.
    """


class Smacv2Config(SmacConfig):
    """Keys of SMACv2: teams and places are drawn anew for every battle."""

    obs_own_pos: bool = True
    """Whether agents see where they stand."""
    use_unit_ranges: bool = True
    """Whether every unit's own range decides whom it can choose, in place of 6 for all."""
    min_attack_range: int | float = Field(default=2, ge=0)
    """From how far away units that fight at arm's length can choose a target."""
    conic_fov: bool = False
    """Whether agents see a cone, which they turn by further actions."""
    step_mul: int = Field(default=8, ge=1)
    """Steps of the game that a step is."""


class SmacliteConfig(BattleConfig):
    """Keys of SMAClite, which leaves the limit open: it is SMAC's for the map. Further parameters of its environment
    are keys as well.
    """

    use_cpp_rvo2: bool = False
    """Whether units walk around each other by the compiled library that SMAClite offers."""


# ------------------------------------------------------------------------------------------------------------ adapters


@final
class Smac(Adapter):
    """`smac/MAP` for SMAC's maps, such as `smac/3m`."""

    Config = SmacConfig

    def __init__(self, name: str):
        self.name, self._map = f"smac/{name}", name

    def layout(self, config: BaseModel) -> Layout:
        return self._squad(config).layout()

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, SmacConfig)
        squad = self._squad(config)
        return SquadInstance(lambda seed: self._one(config, seed), squad, config.episode_limit, config.relaunch)

    def _squad(self, config: BaseModel) -> Squad:
        assert isinstance(config, SmacConfig)
        env = self._one(config, None)  # the game starts with the first episode only
        return battle_squad(env, self.name, config, starcraft(self.name, "smac", self._map, config))

    def _one(self, config: SmacConfig, seed: int | None) -> Any:
        made = package(self.name, "smac", "smac.env", "StarCraft2Env")
        with told(self.name):
            return made(map_name=self._map, seed=seed, **config.model_dump(exclude=_OURS))


_RACES = {
    "terran": (("marine", "marauder", "medivac"), (0.45, 0.45, 0.1), ("medivac",)),
    "protoss": (("stalker", "zealot", "colossus"), (0.45, 0.45, 0.1), ()),
    "zerg": (("zergling", "baneling", "hydralisk"), (0.45, 0.1, 0.45), ("baneling",)),
}
"""Kinds of unit, how often each is drawn, and of which a team is never made alone; as published."""


@final
class Smacv2(Adapter):
    """`smacv2/RACE_N_vs_M`, such as `smacv2/terran_5_vs_5`: N units against M of drawn kinds, at drawn places."""

    Config = Smacv2Config

    def __init__(self, name: str):
        self.name = f"smacv2/{name}"
        found = re.fullmatch(r"(\w+?)_(\d+)_vs_(\d+)", name)
        if found is None or found[1] not in _RACES or not 0 < int(found[2]) <= int(found[3]):
            known = [f"smacv2/{race}_{sides}" for race in _RACES for sides in ("5_vs_5", "10_vs_10", "10_vs_11")]
            mend = "expected terran, protoss or zerg, and sides such as 5_vs_5 or 10_vs_11, the enemy's no smaller"
            raise UserError(f"there is no environment '{self.name}': {nearest(self.name, known)} ({mend})")
        self._race, self._units, self._enemies = found[1], int(found[2]), int(found[3])

    def layout(self, config: BaseModel) -> Layout:
        return self._squad(config).layout()

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, Smacv2Config)
        squad = self._squad(config)
        return SquadInstance(lambda seed: self._one(config, seed), squad, config.episode_limit, config.relaunch)

    def _squad(self, config: BaseModel) -> Squad:
        assert isinstance(config, Smacv2Config)
        facts = starcraft(self.name, "smacv2", f"10gen_{self._race}", config)
        return battle_squad(self._one(config, None), self.name, config, facts)

    def _one(self, config: Smacv2Config, seed: int | None) -> Any:
        wrapper = package(self.name, "smacv2", "smacv2.env.starcraft2.wrapper", "StarCraftCapabilityEnvWrapper")
        params = {"capability_config": self._capabilities(), **config.model_dump(exclude=_OURS)}
        with told(self.name):
            return wrapper(map_name=f"10gen_{self._race}", seed=seed, **params)

    def _capabilities(self) -> dict[str, Any]:
        """What is drawn for every battle; made anew, since the package writes into it."""
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
        return self._squad(config).layout()

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, SmacliteConfig)
        squad = self._squad(config)
        return SquadInstance(lambda seed: self._one(config, seed), squad, squad.limit)

    def _squad(self, config: BaseModel) -> Squad:
        assert isinstance(config, SmacliteConfig)
        limits = {name.lower(): roster.limit for name, roster in ROSTERS.items()}
        limit = min(config.episode_limit or _LONGEST, limits.get(self._map.lower()) or _LONGEST)
        env = self._one(config, None)
        facts = {"map": self._map, "smaclite": _version("smaclite")}
        return battle_squad(env, self.name, config.model_copy(update={"episode_limit": limit}), facts)

    def _one(self, config: SmacliteConfig, seed: int | None) -> Any:
        package(self.name, "smaclite", "smaclite", None)
        known = {key.lower(): key for key in gymnasium.registry if key.startswith("smaclite/")}
        found = known.get(f"smaclite/{self._map}-v0".lower())
        if found is None:
            names = [key.removesuffix("-v0") for key in known.values()]
            raise UserError(f"there is no environment '{self.name}': {nearest(self.name, names)}")
        params = config.model_dump(exclude=_OURS)
        entry: Any = gymnasium.registry[found].entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        if seed is not None and "seed" in inspect.signature(creator).parameters:  # beside the one at every reset
            params["seed"] = seed
        with told(self.name):
            made: Any = gymnasium.make(found, disable_env_checker=True, **params).unwrapped
        return Lite(made)


@final
class Lite:
    """SMAClite's environment, which is of gymnasium's kind, behind the calls of a MultiAgentEnv."""

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
        seen, reward, ended, cut, _ = env.step(actions)
        lost, beaten = env.n_agents - len(env.agents), env.n_enemies - len(env.enemies)
        info = {"battle_won": not env.enemies and bool(env.agents), "dead_allies": lost, "dead_enemies": beaten}
        return seen, float(reward), ended, cut, info

    def get_obs(self) -> Any:
        return self._env.get_obs()

    def get_state(self) -> np.ndarray:
        return self._env.get_state()

    def get_avail_actions(self) -> Any:
        return self._env.get_avail_actions()

    def close(self) -> None:
        self._env.close()


# ------------------------------------------------------------------------------------------------- what the library has


def battle_squad(env: Any, name: str, config: BattleConfig, facts: dict[str, str]) -> Squad:
    """The squad of a battle: whoever has fallen can do nothing but action 0. `env` is closed."""
    more: dict[str, Any] = {"metrics": tuple(NAMES), "role": ROLE, "group": GROUP, "facts": facts}
    try:
        return squad_of(env, name, "noop", config.state, config.episode_limit, **more)
    finally:
        env.close()


def package(name: str, family: str, module: str, wanted: str | None) -> Any:
    """What the module of a package holds. UserError with the install line where the package is not there."""
    source = f'pip install "{_SOURCES[family]}"'
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == family:
            raise UserError(f"environment '{name}' needs {family}: {source}") from error
        if error.name is not None and error.name.startswith(f"{family}."):  # AutoML's package has the same name
            said = f"the package '{family}' that is installed is another of the same name"
            raise UserError(f"environment '{name}': {said}: pip uninstall {family}, then {source}") from error
        said = f"{family} needs '{error.name}', which is not installed"
        raise UserError(f"environment '{name}': {said}: pip install {error.name}") from error
    except ImportError as error:
        raise UserError(f"environment '{name}': {' '.join(str(error).split())}: {source}") from error
    return found if wanted is None else getattr(found, wanted)


def starcraft(name: str, family: str, battle: str, config: SmacConfig) -> dict[str, str]:
    """What a manifest says of the game, which has to be there. UserError with what to do where it is not."""
    package(name, family, f"{family}.env", None)
    configs, maps = (package(name, family, f"pysc2.{part}", None) for part in ("run_configs", "maps"))
    flags = package(name, family, "absl.flags", "FLAGS")
    if not flags.is_parsed():  # what pysc2 reads as it looks for the game
        flags(["coterie"])
    where = os.environ.get("SC2PATH", "~/StarCraftII")
    mend = f"unpack StarCraft II there, or set SC2PATH to its folder (now {where})"
    try:
        game = configs.get(version=config.game_version)
        there = os.path.isdir(game.data_dir)
    except Exception as error:
        if isinstance(error, ValueError | KeyError):  # the version is none of those that are there
            raise UserError(f"env.game_version={config.game_version}: {' '.join(str(error).split())}") from error
        raise UserError(f"environment '{name}': the game is not there: {mend}") from error
    if not there:
        raise UserError(f"environment '{name}': the game is not there: {mend}")
    try:
        game.map_data(maps.get(battle).path)
    except Exception as error:
        said = f"'{battle}' is none of the maps in {os.path.join(game.data_dir, 'Maps')}"
        raise UserError(f"environment '{name}': {said}: copy the SMAC_Maps of the package {family} there") from error
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


@contextmanager
def told(name: str) -> Iterator[None]:
    """Turns what a constructor refuses into one line."""
    try:
        yield
    except (TypeError, ValueError, AssertionError, KeyError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"environment '{name}': {said}") from error
