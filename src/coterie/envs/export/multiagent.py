"""One copy of any environment with one team behind PyMARL's interface `MultiAgentEnv`, for code written for that.

Sources: Samvelyan et al. 2019 (PyMARL), whose calls and words these are; Papoudakis et al. 2021 (seeds at a reset).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from coterie.envs.adapters.multiagent import LIMIT, NAMES
from coterie.envs.make import make
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError
from coterie.types import Action, Row, tree_leaves

_WORDS = {ours: theirs for theirs, ours in NAMES.items()}


@final
class MultiAgentWorld:
    """A MultiAgentEnv: `reset()`, then `step(actions)` until `terminated`.

    n_agents, n_actions, episode_limit: as in `get_env_info()`; replay_dir, replay_prefix: where `save_replay` writes.
    Where roles differ, short observations end in zeros and short lists of choices in ones that cannot be chosen. The
    dead see zeros and have action 0 alone. The reward is the team's: its agents' own, added up, and its group's.
    """

    def __init__(self, name: str, seed: int = 0, replay_dir: str = "", replay_prefix: str = "", **params: Any):
        self._made = (name, dict(params))
        self._env: VectorEnv = make(name, params, 1, seed, with_state=True)
        self._spec = spec = self._env.spec
        if len(spec.groups) > 1:
            teams = ", ".join(spec.groups)
            raise UserError(f"{name} has the teams {teams}, and PyMARL's interface has one: choose another environment")
        for role in spec.roles:
            if role.action.kind != "discrete":
                said = f"{role.action_space} of role {role.name}"
                raise UserError(f"{name}: PyMARL's interface has one discrete choice an agent, this is {said}")
        if spec.episode_limit is None:
            raise UserError(f"{name} has no limit of steps, which PyMARL's buffers need: give episode_limit=")
        self.n_agents, self.episode_limit = spec.n, spec.episode_limit
        self.n_actions = max(role.action.mask_size for role in spec.roles)
        self.replay_dir, self.replay_prefix = replay_dir, replay_prefix
        self._seed, self._next_seed = seed, None if seed is None else int(seed)
        self._row: Row | None = None
        self._over = True
        self._battles = {"battles_won": 0, "battles_game": 0, "timeouts": 0}
        self._begun: dict[str, Any] = {}
        self._played: list[list[int]] = []
        self._paid: list[float] = []
        self._show(self._env.reset(seed))  # sizes are read off a first row; `reset` begins with the same one

    # ------------------------------------------------------------------------------------------------------ episodes

    def reset(self, seed: int | None = None) -> tuple[list[np.ndarray], np.ndarray]:
        """Begins an episode; returns everybody's observations and the state. seed: draws on without one."""
        seed, self._next_seed = self._next_seed if seed is None else seed, None
        self._seed = self._seed if seed is None else seed
        if self._spec.exact_resume:
            self._begun = self._env.state_dict() if seed is None else {"seed": seed}
        self._played, self._paid, self._over = [], [], False
        self._show(self._env.reset(seed))
        return self.get_obs(), self.get_state()

    def step(self, actions: Any) -> tuple[float, bool, dict[str, Any]]:
        """Takes one choice an agent; returns reward, whether the episode is over, and info.

        info: `episode_limit` True where a limit alone ended it, and the environment's metrics, which are those of the
        episode when it is over and zero before. ValueError for a choice that is not available; RuntimeError after the
        end.
        """
        if self._over:
            raise RuntimeError("the episode is over: call reset()")
        picks = [int(action) for action in actions]
        if len(picks) != self.n_agents:
            raise ValueError(f"{len(picks)} actions for {self.n_agents} agents")
        for i, pick in enumerate(picks):
            if not (0 <= pick < self.n_actions and self._available[i, pick]):
                open_to = np.flatnonzero(self._available[i]).tolist()
                raise ValueError(f"agent {i} cannot take action {pick}: it has {open_to}")
        step, row = self._env.step(self._actions(picks))
        paid = torch.cat((step.reward[0].where(self._shown().alive[0], 0), step.group_reward[0]))
        reward, ended, cut = float(paid.sum()), bool(step.episode_terminated), bool(step.episode_truncated)
        info: dict[str, Any] = {_WORDS.get(name, name): float(value) for name, value in step.metrics.items()}
        if "battle_won" in info:
            info["battle_won"] = bool(info["battle_won"])
        self._show(row)
        self._played.append(picks)
        self._paid.append(reward)
        if ended or cut:
            self._over = True
            self._battles["battles_game"] += 1
            self._battles["battles_won"] += int(info.get("battle_won", False))
            self._battles["timeouts"] += int(cut)
        if cut:
            info[LIMIT] = True
        return reward, ended or cut, info

    def _actions(self, picks: list[int]) -> dict[str, Action]:
        slices = self._spec.role_slices()
        return {role: Action(torch.tensor(picks[where])[None, :, None]) for role, where in slices.items()}

    def _shown(self) -> Row:
        assert self._row is not None
        return self._row

    def _show(self, row: Row) -> None:
        """Takes in a row: what everybody sees and may do, padded to the same size."""
        self._row, seen, masks = row, [], []
        for name, where in self._spec.role_slices().items():
            role = next(role for role in self._spec.roles if role.name == name)
            parts = [leaf[0].reshape(role.n, -1).float() for leaf in tree_leaves(row.obs[name])]
            seen += list(torch.cat(parts, 1).cpu().numpy())
            every = torch.ones(1, role.n, role.action.mask_size, dtype=torch.bool)
            masks += list(row.action_mask.get(name, every)[0].cpu().numpy())
            assert len(seen) == where.stop
        size, alive = max(len(own) for own in seen), row.alive[0].cpu().numpy()
        self._obs = np.zeros((self.n_agents, size), np.float32)
        self._available = np.zeros((self.n_agents, self.n_actions), np.int64)
        for i, (own, mask) in enumerate(zip(seen, masks, strict=True)):
            if alive[i]:
                self._obs[i, : len(own)], self._available[i, : len(mask)] = own, mask
            else:
                self._available[i, 0] = 1

    # ------------------------------------------------------------------------------------------------- what is shown

    def get_obs(self) -> list[np.ndarray]:
        """Everybody's observation, float32 [D]."""
        return list(self._obs.copy())

    def get_obs_agent(self, agent_id: int) -> np.ndarray:
        """float32 [D]."""
        return self._obs[agent_id].copy()

    def get_obs_size(self) -> int:
        """D."""
        return self._obs.shape[1]

    def get_state(self) -> np.ndarray:
        """The environment's own state, or all observations one after the other where it has none: float32 [S]."""
        own = self._shown().state.get("global")
        return self._obs.reshape(-1).copy() if own is None else own[0].cpu().numpy().copy()

    def get_state_size(self) -> int:
        """S."""
        return len(self.get_state())

    def get_avail_actions(self) -> list[list[int]]:
        """For everybody 1 for each action that can be chosen, and 0 for the others."""
        return self._available.tolist()

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        """The same for one agent."""
        return self._available[agent_id].tolist()

    def get_total_actions(self) -> int:
        """How many actions there are."""
        return self.n_actions

    def get_env_info(self) -> dict[str, Any]:
        """Sizes, under PyMARL's keys."""
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.n_actions,
            "n_agents": self.n_agents,
            LIMIT: self.episode_limit,
        }

    def get_stats(self) -> dict[str, float]:
        """SMAC's counts of battles so far; {} where nothing can be won."""
        if "won" not in self._spec.metrics:
            return {}
        won, played, timeouts = (self._battles[key] for key in ("battles_won", "battles_game", "timeouts"))
        rate = won / played if played else 0.0
        return {
            "battles_won": won, "battles_game": played, "battles_draw": timeouts, "win_rate": rate,
            "timeouts": timeouts, "restarts": 0,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- the rest

    def seed(self, seed: int | None = None) -> int:
        """The seed; given one, the next `reset` begins with it."""
        if seed is not None:
            self._seed = self._next_seed = int(seed)
        return self._seed

    def render(self, mode: str = "rgb_array", size: int = 480) -> np.ndarray:
        """A picture of what is there, uint8 [H, W, 3]."""
        if mode != "rgb_array":
            raise UserError(f"render(mode={mode!r}): expected 'rgb_array', a picture as an array; there is no window")
        return self._env.render(0, size)

    def save_replay(self) -> Path:
        """Writes the episode so far, and returns the file: `PREFIX_NUMBER.json` in `replay_dir`, its actions, rewards
        and how it began, and beside it a `.gif`, if the environment can take up a state.
        """
        folder = Path(self.replay_dir or "replays")
        folder.mkdir(parents=True, exist_ok=True)
        name, params = self._made
        prefix = self.replay_prefix or name.replace("/", "-").replace(":", "-")
        paths = (folder / f"{prefix}_{k:04d}.json" for k in itertools.count())
        path = next(path for path in paths if not path.exists())
        told = {"env": name, "params": params, "actions": self._played, "rewards": self._paid}
        path.write_text(json.dumps(told | ({"seed": self._begun["seed"]} if "seed" in self._begun else {})) + "\n")
        if self._begun:
            from coterie.video import write_video

            write_video(path.with_suffix(".gif"), self._frames(self._begun))
        return path

    def _frames(self, begun: Mapping[str, Any]) -> Iterator[np.ndarray]:
        """Pictures of the episode so far, played anew."""
        name, params = self._made
        env = make(name, params, 1, self._seed, with_state=True)
        if "seed" in begun:
            env.reset(begun["seed"])
        else:
            env.reset()
            env.load_state_dict(dict(begun))
            env.reset()
        yield env.render(0, 320)
        for picks in self._played:
            env.step(self._actions(picks))
            yield env.render(0, 320)
        env.close()

    def close(self) -> None:
        """Gives back what the environment holds. May be called twice."""
        self._env.close()
