"""Rendering of episodes: as images, or as a replay that the environment's library writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from coterie.commands.environment import make_environment
from coterie.commands.episode_returns import ReturnCounter
from coterie.config.schema import RunConfig
from coterie.core.seeds import generator
from coterie.core.terminal import print_line
from coterie.envs.contract.vector import VectorEnv, close_env, render_env, reset_env, step_env
from coterie.envs.external.replays import with_replays
from coterie.policies.base import Mode, Policy
from coterie.training.trajectory import act


@dataclass(frozen=True)
class Episodes:
    """Episodes to play.

    Attributes:
        policies: Policies by team.
        modes: Action selection by team.
        count: Number of episodes.
        seed: Seed of the environment and of the policies' noise.
        returns: Returns by team, of the episodes that have been played.
    """

    policies: dict[str, Policy]
    modes: dict[str, Mode]
    count: int
    seed: int
    returns: dict[str, list[float]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Device of the policies."""
        return getattr(next(iter(self.policies.values()), None), "device", torch.device("cpu"))


def render_episodes(
    config: RunConfig, episodes: Episodes, *, size: int, lesson: int | None = None
) -> Iterator[np.ndarray]:
    """Yields an image of every timestep, the final ones of episodes included.

    Args:
        config: Configuration of the run.
        episodes: The episodes to play.
        size: Longer side of the images in pixels.
        lesson: Lesson of the curriculum, counted from 0; by default the last one.

    Yields:
        Images, uint8 [H, W, 3].
    """
    for image, _ in render_timesteps(config, episodes, size=size, lesson=lesson):
        yield image


def render_timesteps(
    config: RunConfig, episodes: Episodes, *, size: int, lesson: int | None = None
) -> Iterator[tuple[np.ndarray, bool]]:
    """Yields an image of every timestep, uint8 [H, W, 3], and True if it is the final one of its episode.

    After a final timestep, the episode's return is the last one in `episodes.returns`. The arguments are those of
    `render_episodes`.
    """
    env = make_environment(config, "play", num_envs=1, device=episodes.device, lesson=lesson)
    try:
        for is_final in _play(env, episodes):
            yield render_env(env, 0, size), is_final
    finally:
        close_env(env)


def save_replay(config: RunConfig, episodes: Episodes, folder: Path) -> Path:
    """Plays episodes, has the environment's library write a replay to the folder, and prints the files written."""
    env, save = with_replays(config.env.name, config.env.params, episodes.device)
    try:
        for _ in _play(env, episodes):
            pass
        written = save(folder)
    finally:
        close_env(env)
    for path in written:
        print_line(f"wrote {path}", sys.stderr)
    return folder


def _play(env: VectorEnv, episodes: Episodes) -> Iterator[bool]:
    """Plays episodes in a single environment and yields at every timestep, True at final ones."""
    policies, remaining = episodes.policies, episodes.count
    counter = ReturnCounter(env, {name: policy.team for name, policy in policies.items()})
    noise_generators = {name: generator(episodes.seed, "noise", name, device=env.device) for name in policies}
    with torch.inference_mode():
        timestep = reset_env(env, episodes.seed)
        hidden_state = {name: policy.initial_hidden_state(1) for name, policy in policies.items()}
        while remaining:
            yield False
            noise = {name: policy.draw_noise(1, 1, noise_generators[name])[0] for name, policy in policies.items()}
            actions, _, hidden_state = act(policies, timestep, hidden_state, noise=noise, modes=episodes.modes)
            before = timestep
            step, timestep = step_env(env, actions)
            counter.add(before, step)
            if bool(step.episode_terminated | step.episode_truncated):
                episodes.returns.update(counter.returns)
                yield True
                remaining -= 1
                if remaining:
                    _, timestep = step_env(env, actions)  # the final timestep ignores the action
