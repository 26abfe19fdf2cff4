"""One match as a copy of an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from coterie.envs.football import sight
from coterie.envs.football.render import draw
from coterie.envs.football.rewards import CHECKPOINT, Checkpoints, ball_value
from coterie.envs.football.tasks import Task
from coterie.envs.hosting.instance import Instance, Place
from coterie.envs.hosting.saved import set_words, words

METRICS = ("goal_difference", "won")
SIDES = ("left", "right")

_SEEDS = 2_000_000_000  # as many as the package draws from


@dataclass(frozen=True)
class Terms:
    """What is played for.

    players: controlled ones on the left and the right; limit: steps after which an episode is cut; scoring,
    checkpoints: whether goals and checkpoints pay; shaping: what a well lying ball pays a step, at most.
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
        """The sides with controlled players, 0 for the left."""
        return tuple(side for side in (0, 1) if self.players[side])


@final
class Match(Instance):
    """A match of the package's engine, which never ends by itself but is begun anew.

    config: the package's, of this match alone; core: makes the match of it.
    """

    def __init__(self, config: Any, core: Callable[[Any], Any], terms: Terms):
        self._config, self._core, self._terms = config, core(config), terms
        self._generator = np.random.default_rng(0)
        self._episode = self._seed = self._steps = 0
        self._checkpoints = {side: Checkpoints(terms.players[side]) for side in terms.sides}
        self._closed = False

    def attach(self, place: Place) -> None:
        self._place = place
        place.alive[:] = True
        left, right = self._terms.players
        self._own = {0: place.reward[:left], 1: place.reward[left : left + right]}
        self._state = place.state.get("global")

    def reset(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
            self._episode = int(self._generator.integers(2))
        # Scenarios let the sides take turns by the number of the episode; which one begins is the seed's matter.
        self._episode += 1
        self._seed = int(self._generator.integers(_SEEDS))
        self._begin()
        self._show(self._core.observation())

    def _begin(self) -> None:
        """Kicks off the present episode."""
        self._config["episode_number"] = self._episode
        self._config["game_engine_random_seed"] = self._seed
        self._config.serialize().pop("reverse_team_processing", None)  # else that of the first seed stays for ever
        self._core.reset(inc=0)
        self._steps, self._mode, self._owner, self._score = 0, -1, -1, (0, 0)
        for checkpoints in self._checkpoints.values():
            checkpoints.reset()

    def step(self, actions: list[Any]) -> None:
        left, right = self._terms.players
        told = [int(action) for action in actions[:left]]
        told += [sight.MIRRORED[action] for action in actions[left : left + right]]
        raw, _, done, _ = self._core.step(told)
        self._steps += 1
        self._pay(raw)
        self._end(raw, done)
        self._show(raw)

    def _pay(self, raw: sight.Raw) -> None:
        """Writes rewards and metrics: goals once a side, the rest to each player."""
        left, right = int(raw["score"][0]), int(raw["score"][1])
        gained = (left - self._score[0]) - (right - self._score[1])
        self._score = left, right
        for group, side in enumerate(self._terms.sides):
            sign = 1 if side == 0 else -1
            if self._terms.scoring:
                self._place.group_reward[group] = sign * gained
            ball = sight.ball_of(raw, side)
            if self._terms.checkpoints:
                new = self._checkpoints[side].step(
                    sign * gained == 1,
                    sight.owner_of(raw, side) == 0,
                    int(raw["ball_owned_player"]),
                    sight.controlled(raw, side),
                    ball,
                )
                self._own[side][:] = [CHECKPOINT * count for count in new]
            if self._terms.shaping:
                self._own[side][:] += self._terms.shaping * ball_value(*ball)
        ahead = left - right if self._terms.players[0] else right - left
        self._place.metrics[:] = ahead, ahead > 0

    def _end(self, raw: sight.Raw, done: bool) -> None:
        """Writes whether the episode is over: by what happened on the field, or cut by the number of frames."""
        task, mode, owner = self._terms.task, int(raw["game_mode"]), int(raw["ball_owned_team"])
        over = task.on_score and any(self._score)
        over |= task.on_out and mode != 0 and self._mode == 0
        over |= task.on_loss and owner != -1 and self._owner not in (-1, owner)
        self._mode = mode
        if owner != -1:
            self._owner = owner
        if over:
            self._place.terminated[:] = self._place.ended[0] = True
        elif done or self._steps >= self._terms.limit:
            self._place.truncated[:] = self._place.ended[1] = True

    def _show(self, raw: sight.Raw) -> None:
        self._raw = raw
        for side in self._terms.sides:
            sight.see(raw, side, self._place.obs[SIDES[side]][""])
        if self._state is not None:
            sight.overview(raw, self._terms.task.frames, self._state)

    def render(self) -> np.ndarray:
        return draw(self._raw, self._terms.name)

    def state_dict(self) -> dict[str, Any]:
        # The engine's bytes alone: the package's own way puts pickled objects into them.
        engine = np.frombuffer(self._core._env.get_state(b""), np.uint8).copy()
        return {
            "engine": torch.from_numpy(engine),
            "generator": words(self._generator),
            "episode": self._episode,
            "seed": self._seed,
            "steps": self._steps,
            "mode": self._mode,
            "owner": self._owner,
            "score": list(self._score),
            "collected": [list(checkpoints.collected) for checkpoints in self._checkpoints.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_words(self._generator, state["generator"])
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
