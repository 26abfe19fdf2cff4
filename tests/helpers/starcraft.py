"""Stand-ins for the packages `smac`, `smacv2`, `smaclite` and `pysc2`: their calls, without the game.

Modeled after the published sources: constructors, return values, attributes and assertions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

LAUNCHED: list[dict[str, Any]] = []
"""Constructor arguments of every game that was launched."""


class StarCraft2Env:
    """Three allies against two enemies; every attack hits. From step 3 on one ally dies per step. The game crashes in
    step `crash_at`. Unknown keyword arguments raise a TypeError.
    """

    crash_at = 0

    def __init__(
        self, map_name: str = "8m", difficulty: str = "7", game_version: str | None = None, seed: int | None = None,
        continuing_episode: bool = False, obs_last_action: bool = False, state_last_action: bool = True,
        reward_sparse: bool = False, reward_only_positive: bool = True, replay_dir: str = "", replay_prefix: str = "",
        **more: Any,
    ):  # fmt: skip
        known = {"reward_win", "obs_own_pos", "use_unit_ranges", "min_attack_range", "conic_fov", "step_mul"}
        if unknown := set(more) - known - {"capability_config"}:
            raise TypeError(f"StarCraft2Env.__init__() got an unexpected keyword argument '{unknown.pop()}'")
        self.made = dict(
            map_name=map_name, difficulty=difficulty, seed=seed, continuing_episode=continuing_episode, **more
        )
        self.continuing_episode, self.map_name = continuing_episode, map_name
        self.n_agents, self.n_enemies, self.n_actions, self.episode_limit = 3, 2, 8, 12
        self.replay_dir, self.replay_prefix = replay_dir, replay_prefix
        self.force_restarts, self._launched, self._seed = 0, False, seed
        self.death_tracker_ally, self.death_tracker_enemy = np.zeros(3), np.zeros(2)

    def get_env_info(self) -> dict[str, Any]:
        return {
            "state_shape": 4, "obs_shape": 5, "n_actions": 8, "n_agents": 3, "episode_limit": self.episode_limit,
        }  # fmt: skip

    def reset(self) -> tuple[Any, Any]:
        if not self._launched:
            self._launched = True
            LAUNCHED.append(self.made)
        self.steps, self.health, self.enemies = 0, np.ones(3), np.full(2, 3.0)
        return self.get_obs(), self.get_state()

    def step(self, actions: list[int]) -> tuple[float, bool, dict[str, Any]]:
        assert self._launched
        actions = [int(a) for a in actions]
        available = self.get_avail_actions()
        for i, action in enumerate(actions):
            assert available[i][action] == 1, f"Agent {i} cannot perform action {action}"
            if action == 0:
                assert self.health[i] == 0, "No-op only available for dead agents."
            if action >= 6:
                self.enemies[action - 6] = max(0, self.enemies[action - 6] - 1)
        self.steps += 1
        if self.steps == self.crash_at:
            self.force_restarts += 1
            return 0, True, {}
        if self.steps >= 3 and any(a >= 2 for a in actions):
            self.health[np.argmax(self.health)] = 0
        info: dict[str, Any] = {"battle_won": False}
        self.death_tracker_ally, self.death_tracker_enemy = 1 - self.health, np.where(self.enemies > 0, 0.0, 1.0)
        over = not self.health.any() or not self.enemies.any()
        info["battle_won"] = not self.enemies.any()
        if not over and self.steps >= self.episode_limit:
            over = True
            if self.continuing_episode:
                info["episode_limit"] = True
        return 0.1 * self.steps, over, info

    def get_obs(self) -> list[np.ndarray]:
        return [self.get_obs_agent(i) for i in range(3)]

    def get_obs_agent(self, i: int) -> np.ndarray:
        # Dead agents observe the step number as well, as with obs_timestep_number.
        own = np.array([i + 1, *self.enemies, self.health.sum()]) * self.health[i]
        return np.append(own, self.steps / self.episode_limit).astype(np.float32)

    def get_state(self) -> np.ndarray:
        return np.append(self.health, self.steps).astype(np.float32)

    def get_avail_actions(self) -> list[list[int]]:
        return [self.get_avail_agent_actions(i) for i in range(3)]

    def get_avail_agent_actions(self, i: int) -> list[int]:
        if self.health[i] == 0:
            return [1, 0, 0, 0, 0, 0, 0, 0]
        return [0, 1, 1, 0, 1, 1, *(int(x > 0) for x in self.enemies)]

    def seed(self) -> int | None:
        return self._seed

    def save_replay(self) -> None:
        name = f"{self.replay_prefix or self.map_name}_2026.SC2Replay"
        (Path(self.replay_dir) / name).write_bytes(b"played")

    def render(self, mode: str = "human") -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._launched = False


class StarCraftCapabilityEnvWrapper:
    """Like SMACv2's wrapper, which forwards unknown attributes."""

    def __init__(self, **kwargs: Any):
        self.distribution_config = kwargs["capability_config"]
        self.env = StarCraft2Env(**kwargs)

    def reset(self) -> Any:
        return self.env.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def get_env_info(self) -> Any:
        return self.env.get_env_info()

    def get_obs(self) -> Any:
        return self.env.get_obs()

    def get_avail_actions(self) -> Any:
        return self.env.get_avail_actions()

    def step(self, actions: list[int]) -> Any:
        return self.env.step(actions)

    def save_replay(self) -> None:
        self.env.save_replay()


class SMACliteEnv(gymnasium.Env):
    """Like SMAClite's environment, which has Gymnasium's interface and no step limit."""

    def __init__(self, use_cpp_rvo2: bool = False):
        self.use_cpp_rvo2 = use_cpp_rvo2
        self.n_agents, self.n_enemies, self.n_actions, self.obs_size, self.state_size = 2, 1, 7, 3, 2
        self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(7)] * 2)
        self.observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (3,), np.float32)] * 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.agents, self.enemies, self.at = {0: 1, 1: 1}, {0: 5}, float(self.np_random.random())
        return self.get_obs(), {}

    def step(self, actions: list[int]) -> Any:
        assert all(type(action) is int for action in actions)
        hits = sum(action == 6 for action in actions)
        self.enemies[0] -= hits
        if self.enemies[0] <= 0:
            self.enemies = {}
        elif actions[0] == 2:
            self.agents.pop(1, None)
        return self.get_obs(), float(hits), not self.enemies, False, {}

    def get_obs(self) -> tuple[np.ndarray, ...]:
        return tuple(np.full(3, self.at + i if i in self.agents else 0, np.float32) for i in range(2))

    def get_state(self) -> np.ndarray:
        return np.array([self.at, len(self.agents)], np.float32)

    def get_avail_actions(self) -> list[np.ndarray]:
        alive, dead = np.array([0, 1, 1, 1, 1, 1, 1.0]), np.eye(7)[0]
        return [alive if i in self.agents else dead for i in range(2)]


class SC2LaunchError(Exception):
    pass


def install(patch: pytest.MonkeyPatch, game: Path | None, *packages: str) -> None:
    """Installs the stand-ins as packages; `game` is the folder of StarCraft II, None if it is not installed."""
    LAUNCHED.clear()

    class Config:
        def __init__(self, version: str | None):
            if game is None:
                raise FileNotFoundError(2, "No such file or directory", "~/StarCraftII/Versions")
            if version not in (None, "4.10.0"):
                raise ValueError(f"Unknown game version: {version}. Known versions: ['4.10.0'].")
            self.data_dir = str(game)
            self.version = type("Version", (), {"game_version": "4.10.0", "build_version": 75689})

        def get_versions(self) -> dict[str, Any]:
            return {"4.10.0": self.version, "latest": self.version}

        def map_data(self, path: str) -> bytes:
            file = Path(self.data_dir) / "Maps" / path
            if not file.exists():
                raise ValueError(f"Map {path} not found in {self.data_dir}/Maps.")
            return file.read_bytes()

    def module(name: str, **holds: Any) -> None:
        made = ModuleType(name)
        made.__path__ = []
        vars(made).update(holds)
        patch.setitem(sys.modules, name, made)

    a_map = type("Maps", (), {"get": staticmethod(lambda name: type("M", (), {"path": f"SMAC_Maps/{name}.SC2Map"}))})
    module("pysc2", maps=a_map, run_configs=None)
    module("pysc2.maps", get=a_map.get)
    module("pysc2.run_configs", get=lambda version: Config(version))
    if "smac" in packages:
        module("smac")
        module("smac.env", StarCraft2Env=StarCraft2Env)
    if "smacv2" in packages:
        for name in ("smacv2", "smacv2.env", "smacv2.env.starcraft2"):
            module(name)
        module("smacv2.env.starcraft2.wrapper", StarCraftCapabilityEnvWrapper=StarCraftCapabilityEnvWrapper)
    if "smaclite" in packages:
        module("smaclite")
        for name in ("MMM2", "2s3z"):
            spec = gymnasium.envs.registration.EnvSpec(f"smaclite/{name}-v0", SMACliteEnv)
            patch.setitem(gymnasium.registry, spec.id, spec)


def unpacked(folder: Path, *maps: str) -> Path:
    """Creates a folder like StarCraft II's with some maps."""
    where = folder / "Maps" / "SMAC_Maps"
    where.mkdir(parents=True)
    for name in maps:
        (where / f"{name}.SC2Map").write_bytes(b"map")
    return folder
