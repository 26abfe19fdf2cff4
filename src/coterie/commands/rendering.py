"""Rendering of episodes: as images, or as a replay that the environment's library writes; and their returns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from coterie.assembly.environment import make_environment
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.terminal import message_stream, print_line
from coterie.core.types import Step, Timestep
from coterie.envs.contract.vector import VectorEnv, close_env, render_env, reset_env, step_env
from coterie.envs.external.replays import with_replays
from coterie.functional.intervals import standard_error
from coterie.policies.base import Mode, Policy
from coterie.training.episodes import EpisodeTracker
from coterie.training.rollout_builder import mask_rewards
from coterie.training.trajectory import act


def show(frames: Iterable[np.ndarray], title: str, fps: int = 10) -> None:
    """Shows images until the window is closed, also with Escape or q. The last image stays.

    Args:
        frames: Images, uint8 [H, W, 3].
        title: Title of the window.
        fps: Images per second.

    Raises:
        UserError: If no window can be opened.
    """
    try:
        import tkinter

        window = tkinter.Tk()
    except (ImportError, RuntimeError) as error:  # Python without Tk
        raise _no_window(error) from error
    except Exception as error:
        if type(error).__name__ != "TclError":
            raise
        raise _no_window(error) from error
    from PIL import Image, ImageTk

    window.title(title)
    window.resizable(False, False)
    for key in ("<Escape>", "q"):
        window.bind(key, lambda _: window.destroy())
    label = tkinter.Label(window, borderwidth=0)
    label.pack()
    remaining = iter(frames)
    images: list[ImageTk.PhotoImage] = []

    def draw_next() -> None:
        started = time.perf_counter()
        frame = next(remaining, None)
        if frame is None:
            return
        image = ImageTk.PhotoImage(Image.fromarray(frame), master=window)
        label.configure(image=image)
        images[:] = [image]  # Tk holds no reference to the image that it shows
        elapsed = time.perf_counter() - started
        window.after(max(1, round(1000 * (1 / fps - elapsed))), draw_next)

    window.after(0, draw_next)
    window.mainloop()


def _no_window(error: Exception) -> UserError:
    return UserError(f"cannot open a window ({error}). Record the episode instead: --video FILE, e.g. --video out.gif")


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
        print_line(f"wrote {path}", message_stream())
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


class ReturnCounter:
    """Adds up the rewards of one environment.

    Args:
        env: A single environment.
        teams: Teams by name.

    Attributes:
        returns: Return of each finished episode by team.
    """

    def __init__(self, env: VectorEnv, teams: dict[str, TeamSpec]):
        self._teams, self._agents_can_die = teams, env.spec.agents_can_die
        self._tracker = EpisodeTracker(env.spec, 1, env.device)
        self.returns: dict[str, list[float]] = {name: [] for name in teams}

    def add(self, timestep: Timestep, step: Step) -> None:
        """Adds a step from a timestep, which may be the last one of an episode."""
        acted = timestep.acted.unsqueeze(0)
        alive = timestep.alive.unsqueeze(0) if self._agents_can_die else None
        finished = self._tracker.add(
            reward=mask_rewards(step.reward.unsqueeze(0), acted, alive),
            group_reward=mask_rewards(step.group_reward.unsqueeze(0), acted),
            acted=acted,
            episode_end=(step.episode_terminated | step.episode_truncated).unsqueeze(0),
            episode_truncated=step.episode_truncated.unsqueeze(0),
            metrics=[step.metrics],
        )
        for name, team in self._teams.items():
            self.returns[name] += finished.team_return(team).tolist()


def print_returns(returns: dict[str, list[float]]) -> None:
    """Prints the mean return of each team on stdout, with its standard error after several episodes."""
    for team, values in returns.items():
        if len(values) == 1:
            print_line(f"team return of {team}: {values[0]:.4g}")
        elif values:
            mean, error = sum(values) / len(values), standard_error(torch.tensor(values))
            print_line(
                f"team return of {team}: {mean:.4g} ± {error:.2g} (mean and standard error, {len(values)} episodes)"
            )
