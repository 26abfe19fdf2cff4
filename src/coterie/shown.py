"""Episodes that are looked at: as pictures, or as the replay that the environment's library writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from coterie.build import environment
from coterie.collect import act
from coterie.envs.replays import with_replays
from coterie.envs.vector import VectorEnv, advance, begin
from coterie.policy import Mode, Policy
from coterie.schema import RunConfig
from coterie.seeds import generator


def frames(
    config: RunConfig,
    policies: dict[str, Policy],
    modes: dict[str, Mode],
    episodes: int,
    seed: int,
    size: int,
    lesson: int | None = None,
) -> Iterator[np.ndarray]:
    """Pictures [H, W, 3] of so many episodes, closing rows included; lesson: see `build.environment`."""
    env = environment(config, 1, "play", _device_of(policies), lesson)
    try:
        for _ in _rows(env, policies, modes, episodes, seed):
            yield env.render(0, size)
    finally:
        env.close()


def save_replay(
    config: RunConfig, policies: dict[str, Policy], modes: dict[str, Mode], episodes: int, seed: int, folder: Path
) -> Path:
    """Has the environment's library write a replay of so many episodes to the folder, and says what came."""
    env, save = with_replays(config.env.name, config.env.params, _device_of(policies))
    try:
        for _ in _rows(env, policies, modes, episodes, seed):
            pass
        written = save(folder)
    finally:
        env.close()
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    return folder


def _device_of(policies: dict[str, Policy]) -> torch.device:
    return getattr(next(iter(policies.values()), None), "device", torch.device("cpu"))


def _rows(
    env: VectorEnv, policies: dict[str, Policy], modes: dict[str, Mode], episodes: int, seed: int
) -> Iterator[None]:
    """Stands at every row of so many episodes of one copy, closing ones included."""
    noises = {name: generator(seed, "noise", name, device=env.device) for name in policies}
    with torch.inference_mode():
        row = begin(env, seed)
        carry = {name: policy.start(1) for name, policy in policies.items()}
        while episodes:
            yield
            noise = {name: policy.noise(1, 1, noises[name])[0] for name, policy in policies.items()}
            actions, _, carry = act(policies, row, carry, noise, modes)
            step, row = advance(env, actions)
            if bool(step.episode_terminated | step.episode_truncated):
                yield
                episodes -= 1
                if episodes:
                    _, row = advance(env, actions)  # from the closing row, which asks for no action
