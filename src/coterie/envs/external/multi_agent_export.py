"""Exposes any single-team environment through PyMARL's `MultiAgentEnv` interface.

Sources: Samvelyan et al. 2019 (PyMARL), whose methods and keys are used; Papoudakis et al. 2021 (seeds at reset).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from coterie.core.errors import UserError
from coterie.core.markup import Markup
from coterie.core.tree import tree_leaves
from coterie.core.types import Action, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.multi_agent_env import LIMIT, NAMES
from coterie.envs.make import make

_SMAC_KEYS = {ours: theirs for theirs, ours in NAMES.items()}


@final
class MultiAgentWorld:
    """A MultiAgentEnv: `reset()`, then `step(actions)` until `terminated`.

    If roles differ, observations are padded with zeros and action masks with unavailable actions. Dead agents observe
    zeros and have action 0 only. The reward is the team's: the sum of its agents' rewards plus the group reward.

    Attributes:
        n_agents, n_actions, episode_limit: As in `get_env_info()`.
        replay_dir, replay_prefix: Destination of `save_replay`.
    """

    def __init__(self, name: str, seed: int = 0, replay_dir: str = "", replay_prefix: str = "", **params: Any):
        self._arguments = (name, dict(params))
        self._env: VectorEnv = make(name, params, num_envs=1, seed=seed, with_state=True)
        self._spec = spec = self._env.spec
        if len(spec.groups) > 1:
            teams = ", ".join(spec.groups)
            raise UserError(
                f"{name} has the teams {teams}, but PyMARL's interface has one team. Choose another environment."
            )
        for role in spec.roles:
            if role.action.kind != "discrete":
                said = f"{role.action_space} of role {role.name}"
                raise UserError(
                    f"{name}: PyMARL's interface needs one discrete action per agent, not {said}. "
                    "Choose another environment."
                )
        if spec.episode_limit is None:
            raise UserError(f"{name} has no step limit, which PyMARL's buffers need. Set episode_limit.")
        self.n_agents, self.episode_limit = spec.n, spec.episode_limit
        self.n_actions = max(role.action.mask_size for role in spec.roles)
        self.replay_dir, self.replay_prefix = replay_dir, replay_prefix
        self._seed, self._next_seed = seed, None if seed is None else int(seed)
        self._timestep: Timestep | None = None
        self._over = True
        self._battles = {"battles_won": 0, "battles_game": 0, "timeouts": 0}
        self._start: dict[str, Any] = {}
        self._played: list[list[int]] = []
        self._rewards: list[float] = []
        self._store(self._env.reset(seed))  # sizes are read from a first timestep; `reset` starts from the same one

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the roles with their agents and spaces."""
        return self._env._repr_html_()

    # --------------------------------------------------------------------------------------------------------- episodes

    def reset(self, seed: int | None = None) -> tuple[list[np.ndarray], np.ndarray]:
        """Starts an episode and returns the observations and the state. Without a seed the random stream continues."""
        seed, self._next_seed = self._next_seed if seed is None else seed, None
        self._seed = self._seed if seed is None else seed
        if self._spec.exact_resume:
            self._start = self._env.state_dict() if seed is None else {"seed": seed}
        self._played, self._rewards, self._over = [], [], False
        self._store(self._env.reset(seed))
        return self.get_obs(), self.get_state()

    def step(self, actions: Any) -> tuple[float, bool, dict[str, Any]]:
        """Steps with one action per agent and returns reward, terminated, and info.

        The info holds `episode_limit` (True if the episode was truncated) and the environment's metrics, which are zero
        until the episode ends.

        Raises:
            ValueError: For an unavailable action.
            RuntimeError: After the end of the episode.
        """
        if self._over:
            raise RuntimeError("the episode is over. Call reset().")
        picks = [int(action) for action in actions]
        if len(picks) != self.n_agents:
            raise ValueError(f"{len(picks)} actions for {self.n_agents} agents")
        for i, pick in enumerate(picks):
            if not (0 <= pick < self.n_actions and self._available[i, pick]):
                legal = np.flatnonzero(self._available[i]).tolist()
                raise ValueError(f"agent {i} cannot take action {pick}. Choose from {legal}.")
        step, timestep = self._env.step(self._actions(picks))
        rewards = torch.cat((step.reward[0].where(self._current().alive[0], 0), step.group_reward[0]))
        reward, terminated, truncated = (
            float(rewards.sum()),
            bool(step.episode_terminated),
            bool(step.episode_truncated),
        )
        info: dict[str, Any] = {_SMAC_KEYS.get(name, name): float(value) for name, value in step.metrics.items()}
        if "battle_won" in info:
            info["battle_won"] = bool(info["battle_won"])
        self._store(timestep)
        self._played.append(picks)
        self._rewards.append(reward)
        if terminated or truncated:
            self._over = True
            self._battles["battles_game"] += 1
            self._battles["battles_won"] += int(info.get("battle_won", False))
            self._battles["timeouts"] += int(truncated)
        if truncated:
            info[LIMIT] = True
        return reward, terminated or truncated, info

    def _actions(self, picks: list[int]) -> dict[str, Action]:
        slices = self._spec.role_slices()
        return {role: Action(torch.tensor(picks[where])[None, :, None]) for role, where in slices.items()}

    def _current(self) -> Timestep:
        assert self._timestep is not None
        return self._timestep

    def _store(self, timestep: Timestep) -> None:
        """Stores a timestep: observations and masks, padded to equal sizes."""
        self._timestep, seen, masks = timestep, [], []
        for name, where in self._spec.role_slices().items():
            role = next(role for role in self._spec.roles if role.name == name)
            parts = [leaf[0].reshape(role.n, -1).float() for leaf in tree_leaves(timestep.obs[name])]
            seen += list(torch.cat(parts, 1).cpu().numpy())
            every = torch.ones(1, role.n, role.action.mask_size, dtype=torch.bool)
            masks += list(timestep.action_mask.get(name, every)[0].cpu().numpy())
            assert len(seen) == where.stop
        size, alive = max(len(own) for own in seen), timestep.alive[0].cpu().numpy()
        self._obs = np.zeros((self.n_agents, size), np.float32)
        self._available = np.zeros((self.n_agents, self.n_actions), np.int64)
        for i, (own, mask) in enumerate(zip(seen, masks, strict=True)):
            if alive[i]:
                self._obs[i, : len(own)], self._available[i, : len(mask)] = own, mask
            else:
                self._available[i, 0] = 1

    # ----------------------------------------------------------------------------------------------------- observations

    def get_obs(self) -> list[np.ndarray]:
        """Observations of all agents, float32 [D]."""
        return list(self._obs.copy())

    def get_obs_agent(self, agent_id: int) -> np.ndarray:
        """float32 [D]."""
        return self._obs[agent_id].copy()

    def get_obs_size(self) -> int:
        """D."""
        return self._obs.shape[1]

    def get_state(self) -> np.ndarray:
        """State of the environment, or the concatenated observations if it has none: float32 [S]."""
        own = self._current().state.get("global")
        return self._obs.reshape(-1).copy() if own is None else own[0].cpu().numpy().copy()

    def get_state_size(self) -> int:
        """S."""
        return len(self.get_state())

    def get_avail_actions(self) -> list[list[int]]:
        """Action masks of all agents: 1 for available actions, 0 for others."""
        return self._available.tolist()

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        """Action mask of one agent."""
        return self._available[agent_id].tolist()

    def get_total_actions(self) -> int:
        """Number of actions."""
        return self.n_actions

    def get_env_info(self) -> dict[str, Any]:
        """Sizes under PyMARL's keys."""
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.n_actions,
            "n_agents": self.n_agents,
            LIMIT: self.episode_limit,
        }

    def get_stats(self) -> dict[str, float]:
        """SMAC's battle statistics so far; {} if the environment has no `won` metric."""
        if "won" not in self._spec.metrics:
            return {}
        won, played, timeouts = (self._battles[key] for key in ("battles_won", "battles_game", "timeouts"))
        rate = won / played if played else 0.0
        return {
            "battles_won": won, "battles_game": played, "battles_draw": timeouts, "win_rate": rate,
            "timeouts": timeouts, "restarts": 0,
        }  # fmt: skip

    # ---------------------------------------------------------------------------------------------------- other methods

    def seed(self, seed: int | None = None) -> int:
        """Returns the seed; a given seed is used by the next `reset`."""
        if seed is not None:
            self._seed = self._next_seed = int(seed)
        return self._seed

    def render(self, mode: str = "rgb_array", size: int = 480) -> np.ndarray:
        """Renders the current timestep as uint8 [H, W, 3]."""
        if mode != "rgb_array":
            raise UserError(f"render(mode={mode!r}): only 'rgb_array' is supported; there is no window")
        return self._env.render(0, size)

    def save_replay(self) -> Path:
        """Writes the episode so far to `PREFIX_NUMBER.json` in `replay_dir` (seed, actions, rewards) and returns the
        file; adds a `.gif` if the environment can restore states.
        """
        folder = Path(self.replay_dir or "replays")
        folder.mkdir(parents=True, exist_ok=True)
        name, params = self._arguments
        prefix = self.replay_prefix or name.replace("/", "-").replace(":", "-")
        paths = (folder / f"{prefix}_{k:04d}.json" for k in itertools.count())
        path = next(path for path in paths if not path.exists())
        record = {"env": name, "params": params, "actions": self._played, "rewards": self._rewards}
        path.write_text(json.dumps(record | ({"seed": self._start["seed"]} if "seed" in self._start else {})) + "\n")
        if self._start:
            from coterie.envs.video import write_video

            write_video(path.with_suffix(".gif"), self._frames(self._start))
        return path

    def _frames(self, start: Mapping[str, Any]) -> Iterator[np.ndarray]:
        """Images of the episode so far, replayed from its start."""
        name, params = self._arguments
        env = make(name, params, num_envs=1, seed=self._seed, with_state=True)
        if "seed" in start:
            env.reset(start["seed"])
        else:
            env.reset()
            env.load_state_dict(dict(start))
            env.reset()
        yield env.render(0, 320)
        for picks in self._played:
            env.step(self._actions(picks))
            yield env.render(0, 320)
        env.close()

    def close(self) -> None:
        """Releases the environment's resources. May be called twice."""
        self._env.close()
