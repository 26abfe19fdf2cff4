"""One football match as an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from coterie.envs.external.football import observations
from coterie.envs.external.football.render import draw
from coterie.envs.external.football.shaping import CHECKPOINT, Checkpoints, ball_value
from coterie.envs.external.football.tasks import Task
from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.hosting.numpy_state import rng_state, set_rng_state

METRICS = ("goal_difference", "won")
SIDES = ("left", "right")

_SEEDS = 2_000_000_000  # the range that the package samples from


@dataclass(frozen=True)
class MatchSettings:
    """Match settings.

    Attributes:
        players: Controlled players on the left and right.
        limit: Maximum number of steps before truncation.
        scoring, checkpoints: Reward goals, checkpoints.
        shaping: Maximum shaping reward per step.
    """

    name: str
    task: Task
    players: tuple[int, int]
    limit: int
    scoring: bool
    checkpoints: bool
    shaping: float

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides with controlled players, 0 for left."""
        return tuple(side for side in (0, 1) if self.players[side])


@final
class Match(Instance):
    """A match of the package's engine, which never ends by itself but is restarted.

    Args:
        config: Package configuration of this match.
        core: Creates the match from it.
    """

    def __init__(self, config: Any, core: Callable[[Any], Any], settings: MatchSettings):
        self._config, self._core, self._settings = config, core(config), settings
        self._generator = np.random.default_rng(0)
        self._episode = self._seed = self._steps = 0
        self._checkpoints = {side: Checkpoints(settings.players[side]) for side in settings.sides}
        self._closed = False

    @property
    def episode(self) -> tuple[int, int]:
        """Number and seed of the current episode."""
        return self._episode, self._seed

    def attach(self, buffers: EnvBuffers) -> None:
        self._buffers = buffers
        buffers.alive[:] = True
        left, right = self._settings.players
        self._own = {0: buffers.reward[:left], 1: buffers.reward[left : left + right]}
        self._state = buffers.state.get("global")

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
            self._episode = int(self._generator.integers(2))
        # Scenarios alternate sides by episode number; the seed determines which side starts.
        self._episode += 1
        self._seed = int(self._generator.integers(_SEEDS))
        self._begin()
        self._show(self._core.observation())

    def _begin(self) -> None:
        """Starts the current episode."""
        self._config["episode_number"] = self._episode
        self._config["game_engine_random_seed"] = self._seed
        self._config.serialize().pop("reverse_team_processing", None)  # otherwise the first seed stays in effect
        self._core.reset(inc=0)
        self._steps, self._mode, self._owner, self._score = 0, -1, -1, (0, 0)
        for checkpoints in self._checkpoints.values():
            checkpoints.reset()

    def step(self, actions: list[Any]) -> None:
        left, right = self._settings.players
        choices = [int(action) for action in actions[:left]]
        choices += [observations.MIRRORED[action] for action in actions[left : left + right]]
        raw, _, done, _ = self._core.step(choices)
        self._steps += 1
        self._write_rewards(raw)
        self._end(raw, done)
        self._show(raw)

    def _write_rewards(self, raw: observations.Raw) -> None:
        """Writes rewards and metrics: goals once per side, the rest per player."""
        left, right = int(raw["score"][0]), int(raw["score"][1])
        gained = (left - self._score[0]) - (right - self._score[1])
        self._score = left, right
        for group, side in enumerate(self._settings.sides):
            sign = 1 if side == 0 else -1
            if self._settings.scoring:
                self._buffers.group_reward[group] = sign * gained
            ball = observations.ball_of(raw, side)
            if self._settings.checkpoints:
                new = self._checkpoints[side].step(
                    scored=sign * gained == 1,
                    owns=observations.owner_of(raw, side) == 0,
                    owner=int(raw["ball_owned_player"]),
                    active=observations.controlled(raw, side),
                    ball=ball,
                )
                self._own[side][:] = [CHECKPOINT * count for count in new]
            if self._settings.shaping:
                self._own[side][:] += self._settings.shaping * ball_value(*ball)
        ahead = left - right if self._settings.players[0] else right - left
        self._buffers.metrics[:] = ahead, ahead > 0

    def _end(self, raw: observations.Raw, done: bool) -> None:
        """Writes termination and truncation flags."""
        task, mode, owner = self._settings.task, int(raw["game_mode"]), int(raw["ball_owned_team"])
        over = task.on_score and any(self._score)
        over |= task.on_out and mode != 0 and self._mode == 0
        over |= task.on_loss and owner != -1 and self._owner not in (-1, owner)
        self._mode = mode
        if owner != -1:
            self._owner = owner
        if over:
            self._buffers.terminated[:] = self._buffers.episode_end[0] = True
        elif done or self._steps >= self._settings.limit:
            self._buffers.truncated[:] = self._buffers.episode_end[1] = True

    def _show(self, raw: observations.Raw) -> None:
        self._raw = raw
        for side in self._settings.sides:
            observations.write_observations(raw, side, self._buffers.obs[SIDES[side]][""])
        if self._state is not None:
            observations.write_state(raw, self._settings.task.frames, self._state)

    def render(self) -> np.ndarray:
        return draw(self._raw, self._settings.name)

    def state_dict(self) -> dict[str, Any]:
        # Only the engine's bytes; the package's own format contains pickled objects.
        engine = np.frombuffer(self._core._env.get_state(b""), np.uint8).copy()
        return {
            "engine": torch.from_numpy(engine),
            "generator": rng_state(self._generator),
            "episode": self._episode,
            "seed": self._seed,
            "steps": self._steps,
            "mode": self._mode,
            "owner": self._owner,
            "score": list(self._score),
            "collected": [list(checkpoints.collected) for checkpoints in self._checkpoints.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_rng_state(self._generator, state["generator"])
        self._episode, self._seed = state["episode"], state["seed"]
        self._begin()
        self._steps, self._mode, self._owner = state["steps"], state["mode"], state["owner"]
        self._score = (state["score"][0], state["score"][1])
        for checkpoints, collected in zip(self._checkpoints.values(), state["collected"], strict=True):
            checkpoints.collected = list(collected)
        core = self._core
        core._env.set_state(state["engine"].cpu().numpy().tobytes())
        core._state.previous_score_diff = self._score[0] - self._score[1]
        core._state.previous_game_mode, core._state.prev_ball_owned_team = self._mode, self._owner
        core._step_count = self._steps
        core._retrieve_observation()
        self._show(core.observation())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._core.close()
