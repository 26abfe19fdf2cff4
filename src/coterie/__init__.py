"""Coterie trains teams of agents: multi-agent reinforcement learning on PyTorch.

    import coterie

    result = coterie.train(algo="mappo", env="particle/simple_spread", steps=1e6)
    player = coterie.load(result).player()
    actions = player.act({"agent_0": obs_0, "agent_1": obs_1, "agent_2": obs_2})

These functions are the commands of `coterie`, with the same keys. Importing the package imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from coterie.build import AskedMode
    from coterie.envs.export.multiagent import MultiAgentWorld
    from coterie.envs.vector import VectorEnv
    from coterie.errors import NonFiniteError, UserError
    from coterie.imitation.demos import Demos
    from coterie.player import Loaded, Player
    from coterie.response import Gap
    from coterie.run import Result
    from coterie.standings import Standings

    Run = str | os.PathLike[str] | Result | Loaded

    __version__: str

__all__ = [
    "Demos",
    "Loaded",
    "NonFiniteError",
    "Player",
    "Result",
    "UserError",
    "VectorEnv",
    "__version__",
    "as_multiagent_env",
    "evaluate",
    "exploit",
    "league",
    "load",
    "make",
    "play",
    "record",
    "resume",
    "train",
]

_LAZY = {
    "Demos": "coterie.imitation.demos",
    "Loaded": "coterie.player",
    "NonFiniteError": "coterie.errors",
    "Player": "coterie.player",
    "Result": "coterie.run",
    "UserError": "coterie.errors",
    "VectorEnv": "coterie.envs.vector",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("coterie")
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'coterie' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def train(*, config_file: str | os.PathLike[str] | None = None, **settings: Any) -> Result:
    """Trains, as `coterie train` does, and returns the run's folder and summary.

    settings: the keys of the command line, nested or dotted: `algo="ippo"`, `steps=1e6`, `env={"name": ...}`,
    `**{"algo.lr": 5e-4, "teams.adversary.algo": "random"}`; config_file: YAML under them. UserError for whatever is
    wrong with them, before anything is written; NonFiniteError if training meets a NaN or an infinity.
    """
    from pathlib import Path

    from coterie import run as running
    from coterie.config import resolve_kwargs

    return running.train(resolve_kwargs(None if config_file is None else Path(config_file), **settings))


def resume(run: Run, **settings: Any) -> Result:
    """Goes on where a run stopped; settings: what may change, such as `steps`. UserError as `coterie resume`."""
    from coterie import run as running

    return running.resume(_folder(run), _overrides(settings))


def evaluate(
    run: Run | None = None,
    *,
    episodes: int = 100,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What a run's checkpoint earns, or, without a run, an algorithm that needs no training (`algo="random"`).

    episodes: at least so many; mode: greedy, sample or auto, as the algorithm was published; checkpoint: best, last or
    a number of steps; seed: of the episodes. Returns env, algo, episodes, under `metrics` the means of what the
    environment measures (`won`), and under `teams` by name return_mean, return_std, return_by_agent and length_mean.
    UserError for settings beside a run, which brings its own.
    """
    from coterie import run as running

    if run is not None:
        _refuse(settings)
        return running.evaluate_run(_folder(run), episodes, mode, checkpoint, seed)
    return running.evaluate_baseline(_baseline(settings, seed), episodes, mode)


def play(
    run: Run | None = None,
    *,
    video: str | os.PathLike[str] | None = None,
    episodes: int = 1,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int | None = None,
    size: int = 480,
    replay: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Path | None:
    """Records episodes to `video` (.mp4, .gif), or to `record` (.zip) for `coterie view`, and returns the file; or has
    the environment's library write its own replay to the folder `replay`, or shows a window. Else as `evaluate`.
    """
    from pathlib import Path

    from coterie import run as running

    resolved = None
    if run is not None:
        _refuse(settings)
    else:
        resolved = _baseline(settings, seed)
    folder = None if run is None else _folder(run)
    if record is not None:
        from coterie.playing.byhand import record_episodes
        from coterie.playing.cast import Wanted, opened

        with opened(Wanted(folder, resolved, (), mode, checkpoint, seed, size)) as (game, title):
            return record_episodes(game, title, episodes, Path(record))
    file, own = (None if path is None else Path(path) for path in (video, replay))
    return running.play(folder, resolved, file, episodes, mode, checkpoint, seed, size, own)


def record(
    run: Run | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    episodes: int = 20,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int | None = None,
    **settings: Any,
) -> Demos:
    """Writes demonstrations by a run's checkpoint, or by an algorithm that needs no training, and returns them.

    out: the file, by default demos.safetensors in the run's folder, or here; others as in `evaluate`. UserError for
    settings beside a run, which brings its own.
    """
    from pathlib import Path

    from coterie.imitation import run as recording

    target = None if out is None else Path(out)
    if run is not None:
        _refuse(settings)
        return recording.record_run(_folder(run), target, episodes, mode, checkpoint, seed)[1]
    return recording.record_baseline(_baseline(settings, None), target, episodes, mode, seed)[1]


def league(
    members: Mapping[str, Run | str],
    *,
    episodes: int = 200,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int = 0,
    **settings: Any,
) -> Standings:
    """Plays everyone against everyone: `coterie.league({"old": run_a, "new": run_b, "random": "random"})`.

    members: runs by name, or `random`, `scripted`, `scripted:NAME`; episodes: a pair; settings: of the environment
    where no run brings one. UserError for a league without two members, and for members of different environments.
    """
    from coterie.standings import league as played

    named = [f"{name}={what if isinstance(what, str) else _folder(what)}" for name, what in members.items()]
    return played(named, _overrides(settings), episodes, mode, checkpoint, seed)


def exploit(
    run: Run,
    *,
    team: str | None = None,
    steps: float | None = None,
    episodes: int = 400,
    checkpoint: str = "best",
    **settings: Any,
) -> Gap:
    """Trains a best response to one team of a run, by default the second, and tells how much more it earns.

    steps: the response's budget, by default a fifth of the run's; episodes: that the gap is measured over; settings: of
    the response where they are not to be the run's.
    """
    from coterie.response import exploit as respond

    return respond(
        _folder(run), _overrides(settings), team, None if steps is None else int(steps), episodes, checkpoint
    )


def load(run: Run, checkpoint: str = "best", device: str | torch.device = "cpu") -> Loaded:
    """What a run learned: `load(run).act(obs)`, or `load(run).player()` with `reset()` and `act(obs)`, on plain numpy.

    checkpoint: best, last or a number of steps. UserError if there is no such run or checkpoint.
    """
    from coterie.player import Loaded

    return Loaded(_folder(run), checkpoint, device)


def make(
    env: str,
    copies: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
    with_state: bool = False,
    **params: Any,
) -> VectorEnv:
    """A batch of copies of the environment `env`; params: its own keys, e.g. `agents=5`. UserError for wrong ones."""
    from coterie.envs.make import make as made

    return made(env, params, copies, seed, device, with_state)


def as_multiagent_env(
    env: str, seed: int = 0, replay_dir: str = "", replay_prefix: str = "", **params: Any
) -> MultiAgentWorld:
    """One copy of the environment `env` with the methods of PyMARL's `MultiAgentEnv`, for code written for SMAC.

    seed: of its first episode, after which it draws on; replay_dir, replay_prefix: where `save_replay()` writes;
    params: as in `make`. UserError for environments of several teams, of other than one discrete choice an agent, and
    without a limit of steps.
    """
    from coterie.envs.export.multiagent import MultiAgentWorld

    return MultiAgentWorld(env, seed, replay_dir, replay_prefix, **params)


# ---------------------------------------------------------------------------------------------------------- their parts


def _folder(run: Any) -> Path:
    """The folder of what stands for a run."""
    import os
    from pathlib import Path

    from coterie.errors import UserError

    if isinstance(run, str | os.PathLike):
        return Path(run)
    folder = getattr(run, "run", getattr(run, "path", None))  # a Result or what was loaded
    if not isinstance(folder, Path):
        raise UserError(f"run={run!r}: expected a run's folder, or what coterie.train returned")
    return folder


def _baseline(settings: dict[str, Any], seed: int | None) -> Any:
    from coterie.config import resolve_kwargs
    from coterie.errors import UserError

    if not settings:
        raise UserError("expected a run, or algo= and env=, e.g. algo='random', env='particle/simple_spread'")
    return resolve_kwargs(None, **settings if seed is None else settings | {"seed": seed})


def _refuse(settings: dict[str, Any]) -> None:
    from coterie.errors import UserError

    if settings:
        raise UserError(f"a run brings its own settings: leave out {', '.join(settings)}, or leave out the run")


def _overrides(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line writes them."""
    import json

    from coterie.settings import flatten

    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in flatten(settings)]
