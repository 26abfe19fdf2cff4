"""One football match as an environment: tasks, observations, images, rewards.

The static properties of the tasks are needed before the engine is loaded. Their values are those of the package's
scenarios and are verified by the engine's test. `3_vs_3_custom` is Coterie's own, see `football.build_scenario`.

Player observations are the 115 features of the package's `simple115v2`, as pure functions of its raw observation:

| index | content |
|---|---|
| 0-21, 22-43 | own side: positions x, y of eleven players, then their velocities; -1 for missing players |
| 44-65, 66-87 | the other side, in the same format |
| 88-90, 91-93 | ball: position x, y, z, then its velocity |
| 94-96 | ball possession, one-hot: nobody, own side, other side |
| 97-107 | index of the observing player, one-hot |
| 108-114 | game mode, one-hot: normal, kick-off, goal kick, free kick, corner, throw-in, penalty |

The field is [-1, 1] x [-0.42, 0.42]; each side observes itself playing from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from PIL import Image

from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.hosting.numpy_state import rng_state, set_rng_state
from coterie.envs.worlds.drawing import INK, PALETTE, WHITE, Color, Pen, layout_header, mix


@dataclass(frozen=True)
class Task:
    """A scenario.

    Attributes:
        left, right: Controllable players per side.
        controlled: Default number of controlled players per side.
        frames: Maximum number of steps before truncation.
        on_score, on_out, on_loss: A goal, the ball out of play, or losing the ball ends the episode.
    """

    left: int
    right: int
    frames: int
    controlled: tuple[int, int]
    on_score: bool = True
    on_out: bool = True
    on_loss: bool = True


TASKS: dict[str, Task] = {
    "academy_empty_goal_close": Task(2, 1, 400, (1, 1)),
    "academy_empty_goal": Task(2, 1, 400, (1, 1)),
    "academy_run_to_score": Task(2, 6, 400, (1, 5)),
    "academy_run_to_score_with_keeper": Task(2, 6, 400, (1, 5)),
    "academy_single_goal_versus_lazy": Task(11, 11, 3000, (11, 11)),
    "academy_3_vs_1_with_keeper": Task(4, 2, 400, (3, 1)),
    "1_vs_1_easy": Task(1, 1, 500, (1, 1), on_score=False, on_out=False, on_loss=False),
    "3_vs_3_custom": Task(3, 3, 500, (3, 3), on_score=False, on_out=False, on_loss=False),
    "5_vs_5": Task(4, 4, 3000, (4, 4), on_score=False, on_out=False, on_loss=False),
    "11_vs_11_stochastic": Task(11, 11, 3000, (11, 11), on_score=False, on_out=False, on_loss=False),
    "test_example_multiagent": Task(4, 2, 100, (3, 1)),
}
"""Tasks by name. On sides of fewer than eleven, the goalkeeper is played by the engine by default if there are other
players.
"""


OBS_SIZE = 115
STATE_SIZE = OBS_SIZE + 11 + 1
_TEAM = ("left_team", "left_team_direction", "right_team", "right_team_direction")
_OWNER, _ACTIVE, _MODE = 94, 97, 108

CHOICES = (
    *("idle", "left", "top_left", "top", "top_right", "right", "bottom_right", "bottom", "bottom_left"),
    *("long_pass", "high_pass", "short_pass", "shot", "sprint", "release_direction", "release_sprint", "sliding"),
    *("dribble", "release_dribble"),
)
"""Action names by index: the package's default action set."""

MIRRORED = (0, 5, 6, 7, 8, 1, 2, 3, 4, *range(9, 19))
"""Indices of the right side's actions as seen from the left: directions rotated by 180 degrees."""

Raw = Mapping[str, Any]
"""Raw observation of the package from the left side, with `left_agent_controlled_player` and the right side's."""


def write_shared(raw: Raw, side: int, out: np.ndarray) -> None:
    """Writes the features shared by all players of a side (0 left, 1 right) to out [115]; the player index is zero."""
    sign = 1.0 if side == 0 else -1.0
    names = _TEAM if side == 0 else (*_TEAM[2:], *_TEAM[:2])
    for k, name in enumerate(names):
        numbers = np.asarray(raw[name]).reshape(-1)
        at = 22 * k + len(numbers)
        np.multiply(numbers, sign, out=out[22 * k : at], casting="same_kind")
        out[at : 22 * k + 22] = -1.0
    for at, name in ((88, "ball"), (91, "ball_direction")):
        x, y, z = raw[name]
        out[at], out[at + 1], out[at + 2] = sign * x, sign * y, z
    out[_OWNER:] = 0.0
    out[_OWNER + 1 + owner_of(raw, side)] = 1.0
    out[_MODE + raw["game_mode"]] = 1.0


def write_observations(raw: Raw, side: int, out: np.ndarray) -> None:
    """Writes the observations of all controlled players of a side to out [n, 115]."""
    write_shared(raw, side, out[0])
    out[1:] = out[0]
    for i, active in enumerate(controlled(raw, side)):
        if active >= 0:  # no player while the ball is out of play
            out[i, _ACTIVE + active] = 1.0


def write_state(raw: Raw, frames: int, out: np.ndarray) -> None:
    """Writes the critic state to out [127]: the left side's features with all its controlled players marked, the
    controlled players of the right side (11), and the remaining fraction of the episode.
    """
    write_shared(raw, 0, out[:OBS_SIZE])
    out[OBS_SIZE:] = 0.0
    for side, at in ((0, _ACTIVE), (1, OBS_SIZE)):
        for active in controlled(raw, side):
            if active >= 0:
                out[at + active] = 1.0
    out[-1] = raw["steps_left"] / frames


def controlled(raw: Raw, side: int) -> list[int]:
    """Indices of the controlled players within their side; -1 for slots without a player at the moment."""
    return raw["left_agent_controlled_player" if side == 0 else "right_agent_controlled_player"]


def owner_of(raw: Raw, side: int) -> int:
    """Ball possession relative to a side: -1 nobody, 0 own, 1 other."""
    owner = int(raw["ball_owned_team"])
    return owner if side == 0 or owner < 0 else 1 - owner


def ball_of(raw: Raw, side: int) -> tuple[float, float]:
    """Ball position along and across the field relative to a side."""
    sign = 1.0 if side == 0 else -1.0
    return sign * float(raw["ball"][0]), sign * float(raw["ball"][1])


_GRASS: tuple[Color, Color] = ((84, 140, 82), (90, 148, 88))
_LINE: Color = (226, 238, 224)
_SIDES: tuple[Color, Color] = (PALETTE["blue"], PALETTE["red"])
_HALF = 0.42  # half the field width, in units of half its length
_EDGE = 0.1  # margin around the field
_GOAL = 0.044  # half the goal width
_SMOOTH = 3
_REACH = 0.028  # player radius


def draw(raw: Raw, title: str, width: int = 640) -> np.ndarray:
    """Draws a match as uint8 [H, width, 3]. Blue plays to the right; controlled players have a yellow rim, lines show
    velocities, and the player with the ball has a white disc.
    """
    score = {"left": float(raw["score"][0]), "right": float(raw["score"][1]), "to go": float(raw["steps_left"])}
    header = layout_header(title.rpartition("/")[2], score, width)
    tall = round(width * (_HALF + _EDGE) / (1 + _EDGE))
    canvas = Image.new("RGB", (width * _SMOOTH, tall * _SMOOTH), _GRASS[0])
    pen = Pen(canvas, width * _SMOOTH / (2 * (1 + _EDGE))).at(width * _SMOOTH / 2, tall * _SMOOTH / 2)
    _field(pen)
    for side in (0, 1):
        _team(pen, raw, side)
    _ball(pen, raw)
    image = Image.new("RGB", (width, tall + header.height), WHITE)
    image.paste(canvas.reduce(_SMOOTH), (0, header.height))
    header.write(image)
    return np.array(image)


def _field(pen: Pen) -> None:
    for k in range(-5, 5):
        if k % 2:
            pen.box(k / 5, -_HALF, (k + 1) / 5, _HALF, fill=_GRASS[1])
    pen.line([(-1, -_HALF), (1, -_HALF), (1, _HALF), (-1, _HALF), (-1, -_HALF)], _LINE, 0.006)
    pen.line([(0, -_HALF), (0, _HALF)], _LINE, 0.006)
    pen.disc(0, 0, 0.17, None, rim=_LINE, width=0.006)
    pen.disc(0, 0, 0.01, _LINE)
    for end in (-1, 1):
        for deep, half in ((0.3, 0.24), (0.1, 0.11)):
            inner = end * (1 - deep)
            pen.line([(end, -half), (inner, -half), (inner, half), (end, half)], _LINE, 0.006)
        low, high = sorted((end, end * 1.05))
        pen.box(low, -_GOAL, high, _GOAL, fill=(*WHITE, 150), rim=_LINE)


def _team(pen: Pen, raw: Raw, side: int) -> None:
    """The y axis of observations points down."""
    name = ("left_team", "right_team")[side]
    color = _SIDES[side]
    dark = mix(color, INK, 0.5)
    controlled_players = set(controlled(raw, side))
    has_ball = int(raw["ball_owned_player"]) if int(raw["ball_owned_team"]) == side else -1
    for i, ((x, y), (dx, dy)) in enumerate(zip(raw[name], raw[f"{name}_direction"], strict=True)):
        if i == has_ball:
            pen.disc(x, -y, 1.6 * _REACH, (*WHITE, 130))
        pen.line([(x, -y), (x + 8 * dx, -y - 8 * dy)], dark, 0.012)
        pen.disc(x, -y, _REACH, color, rim=PALETTE["yellow"] if i in controlled_players else dark, width=0.01)
        pen.text(x, -y, str(i), height=1.2 * _REACH, color=WHITE)


def _ball(pen: Pen, raw: Raw) -> None:
    x, y, z = (float(at) for at in raw["ball"])
    pen.disc(x, -y, 0.011, (*INK, 90))
    pen.disc(x, -y + 0.03 * z, 0.013, WHITE, rim=INK, width=0.005)


CHECKPOINTS = 10
CHECKPOINT = 0.1


class Checkpoints:
    """Checkpoints collected by each of n players of a side.

    A player with the ball collects a checkpoint worth 0.1 for each of ten distances to the center of the opponent's
    goal, from 0.99 to 0.19, when it gets closer for the first time; when its side scores, it collects the remaining
    ones. Source: Kurach et al. 2020, section 3.3; thresholds as in the package's CheckpointRewardWrapper.
    """

    def __init__(self, n: int):
        self.collected = [0] * n

    def reset(self) -> None:
        self.collected = [0] * len(self.collected)

    def step(
        self, *, scored: bool, owns: bool, owner: int, active: Sequence[int], ball: tuple[float, float]
    ) -> list[int]:
        """Returns the number of checkpoints that each player collects in a step.

        Args:
            scored: The side scored in this step.
            owns: The side has the ball.
            owner: Index of the player with the ball.
            active: Player controlled by each agent.
            ball: Ball position relative to the side.
        """
        distance = ((ball[0] - 1) ** 2 + ball[1] ** 2) ** 0.5  # rounding as in the package
        new = []
        for i, player in enumerate(active):
            had = reached = self.collected[i]
            if scored:
                reached = CHECKPOINTS
            elif owns and player == owner:
                while reached < CHECKPOINTS and distance <= 0.99 - 0.8 / (CHECKPOINTS - 1) * reached:
                    reached += 1
            self.collected[i] = reached
            new.append(reached - had)
        return new


def ball_value(x: float, y: float) -> float:
    """Value of the ball position (x, y) for the side that plays toward positive x, odd in x and between -1 and 1.

    max(x - |y|, x / 2) for x > 0, else min(x + |y|, x / 2)
    """
    return max(x - abs(y), x / 2) if x > 0 else min(x + abs(y), x / 2)


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
        choices += [MIRRORED[action] for action in actions[left : left + right]]
        raw, _, done, _ = self._core.step(choices)
        self._steps += 1
        self._write_rewards(raw)
        self._end(raw, done)
        self._show(raw)

    def _write_rewards(self, raw: Raw) -> None:
        """Writes rewards and metrics: goals once per side, the rest per player."""
        left, right = int(raw["score"][0]), int(raw["score"][1])
        gained = (left - self._score[0]) - (right - self._score[1])
        self._score = left, right
        for group, side in enumerate(self._settings.sides):
            sign = 1 if side == 0 else -1
            if self._settings.scoring:
                self._buffers.group_reward[group] = sign * gained
            ball = ball_of(raw, side)
            if self._settings.checkpoints:
                new = self._checkpoints[side].step(
                    scored=sign * gained == 1,
                    owns=owner_of(raw, side) == 0,
                    owner=int(raw["ball_owned_player"]),
                    active=controlled(raw, side),
                    ball=ball,
                )
                self._own[side][:] = [CHECKPOINT * count for count in new]
            if self._settings.shaping:
                self._own[side][:] += self._settings.shaping * ball_value(*ball)
        ahead = left - right if self._settings.players[0] else right - left
        self._buffers.metrics[:] = ahead, ahead > 0

    def _end(self, raw: Raw, done: bool) -> None:
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

    def _show(self, raw: Raw) -> None:
        self._raw = raw
        for side in self._settings.sides:
            write_observations(raw, side, self._buffers.obs[SIDES[side]][""])
        if self._state is not None:
            write_state(raw, self._settings.task.frames, self._state)

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
