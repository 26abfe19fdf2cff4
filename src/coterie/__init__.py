"""Coterie trains teams of agents: multi-agent reinforcement learning on PyTorch.

    import coterie

    result = coterie.train(algo="mappo", env="particle/simple_spread", steps=1e6)
    player = coterie.load(result).player()
    actions = player.act({"agent_0": obs_0, "agent_1": obs_1, "agent_2": obs_2})

The functions are the commands of `coterie` with the same settings. PyTorch is imported on first use.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from coterie.core.spinning import limit_spinning

limit_spinning()


class _CallableModule(ModuleType):
    """The package `coterie.runs`, which is also the function: importing a module of it would hide such a function."""

    def __call__(self, *paths: Any, **options: Any) -> Any:
        """Returns a table of runs, see `coterie.reports.run_table.runs`."""
        from coterie.reports.run_table import runs as table_of_runs

        return table_of_runs(*paths, **options)


if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch
    from typing_extensions import Unpack

    from coterie.assembly.learners import EvalMode
    from coterie.commands.best_response import Exploitability
    from coterie.commands.check import check_algorithm, check_env
    from coterie.commands.compare import compare
    from coterie.commands.diagnose import diagnose
    from coterie.commands.league import LeagueResult
    from coterie.commands.player import Loaded, Player
    from coterie.commands.report import report
    from coterie.commands.saved_run import TrainingResult
    from coterie.config.typed_settings import (
        AlgoName,
        AlgoSettings,
        Code,
        EnvName,
        EnvSettings,
        TrainSettings,
    )
    from coterie.core.errors import NonFiniteError, UserError
    from coterie.core.specs import Entities, ObservationParts
    from coterie.envs.contract.vector import VectorEnv
    from coterie.envs.external.gymnasium_export import GymnasiumWorld
    from coterie.envs.external.multi_agent_export import MultiAgentWorld
    from coterie.envs.external.parallel_export import ParallelWorld
    from coterie.imitation.demonstrations import Demos
    from coterie.reports.run_table import runs
    from coterie.training.callback import Callback, Event

    Run = str | os.PathLike[str] | TrainingResult | Loaded
    __version__: str
else:
    from coterie import runs

    runs.__class__ = _CallableModule

__all__ = [
    "Callback",
    "Demos",
    "Entities",
    "Event",
    "Loaded",
    "NonFiniteError",
    "ObservationParts",
    "Player",
    "TrainSettings",
    "TrainingResult",
    "UserError",
    "VectorEnv",
    "__version__",
    "as_multiagent_env",
    "as_parallel_env",
    "as_vector_env",
    "check_algorithm",
    "check_env",
    "compare",
    "diagnose",
    "evaluate",
    "exploit",
    "league",
    "load",
    "make",
    "play",
    "record",
    "report",
    "resume",
    "runs",
    "train",
]

_LAZY = {
    "Callback": "coterie.training.callback",
    "Demos": "coterie.imitation.demonstrations",
    "Entities": "coterie.core.specs",
    "Event": "coterie.training.callback",
    "Loaded": "coterie.commands.player",
    "NonFiniteError": "coterie.core.errors",
    "ObservationParts": "coterie.core.specs",
    "Player": "coterie.commands.player",
    "TrainSettings": "coterie.config.typed_settings",
    "TrainingResult": "coterie.commands.saved_run",
    "UserError": "coterie.core.errors",
    "check_algorithm": "coterie.commands.check",
    "check_env": "coterie.commands.check",
    "compare": "coterie.commands.compare",
    "diagnose": "coterie.commands.diagnose",
    "report": "coterie.commands.report",
    "VectorEnv": "coterie.envs.contract.vector",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        return import_module("importlib.metadata").version("coterie")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'coterie' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def train(
    algo: AlgoName | str | Code | AlgoSettings | None = None,
    env: EnvName | str | Code | EnvSettings | None = None,
    *,
    config_file: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    overwrite: bool = False,
    **settings: Unpack[TrainSettings],
) -> TrainingResult:
    """Trains like `coterie train` and returns the run's folder and summary.

    Editors complete the settings, also within nested ones: `algo={"name": "ippo", "lr": 3e-4}`.

    Args:
        algo: Name of the algorithm, its class, or a dict of its settings with its `name`.
        env: Name of the environment, the function or class that makes it, or a dict of its settings with its `name`.
        config_file: YAML file of settings, which the others override.
        callbacks: Functions that the run calls after rollouts, updates, evaluations and checkpoints.
        overwrite: Replace the run in the folder `out`, as when a cell of a notebook is executed again.
        **settings: Settings of the command line, nested or dotted: `steps=1e6`, `eval={"episodes": 100}`,
            `**{"algo.lr": 5e-4, "teams.adversary.algo": "random"}`. `network` and `mixer` may be functions
            or classes.

    Raises:
        UserError: If a setting is invalid. Nothing has been written or replaced then.
        NonFiniteError: If a NaN or infinity occurs during training.
    """
    from pathlib import Path

    from coterie.assembly.resolve import resolve_kwargs
    from coterie.commands import train as command
    from coterie.commands.saved_run import TrainingResult
    from coterie.training.callback import require_callbacks

    hooks = require_callbacks(callbacks)
    named = {key: value for key, value in (("algo", algo), ("env", env)) if value is not None}
    resolved = resolve_kwargs(None if config_file is None else Path(config_file), **named, **settings)
    return TrainingResult(**vars(command.train(resolved, hooks, overwrite=overwrite)))


def resume(run: Run, *, callbacks: Sequence[Callback] = (), **settings: Any) -> TrainingResult:
    """Resumes a run like `coterie resume`.

    Args:
        run: Run to resume.
        callbacks: As in `train`. They are not stored in the run.
        **settings: Settings that may change, such as `steps`. `env`, `algo`, `network` and `mixer` are the functions
            or classes that were passed to `train` if they cannot be imported.

    Raises:
        UserError: If there is no such run or a setting cannot be changed.
    """
    from coterie.commands import train as command
    from coterie.commands.arguments import known_run_folder, to_overrides
    from coterie.commands.saved_run import TrainingResult
    from coterie.training.callback import require_callbacks

    folder = known_run_folder(run, settings)
    return TrainingResult(**vars(command.resume(folder, to_overrides(settings), require_callbacks(callbacks))))


def evaluate(
    run: Run | None = None,
    *,
    episodes: int = 100,
    mode: EvalMode = "auto",
    checkpoint: str = "auto",
    seed: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluates a checkpoint of a run, or, without a run, an algorithm that needs no training (`algo="random"`).

    Args:
        run: Run to evaluate.
        episodes: Minimum number of episodes.
        mode: `greedy`, `sample`, or `auto` for the mode in which the algorithm was published.
        checkpoint: `best`, `best:TEAM`, `last` or a number of steps, which takes the nearest one at or below it.
        seed: Seed of the episodes. Default: the run's.
        **settings: Settings of the baseline, or those that differ from the run's. Functions and classes as in `resume`.

    Returns:
        A dict with env, algo, episodes, the means of the environment's metrics under `metrics` (such as `won`), and
        return_mean, return_error, return_interval (95%), return_std, return_by_group, return_by_agent and length_mean
        by team under `teams`. `return_mean` includes group rewards, `return_by_agent` does not: it has None for agents
        that got group rewards only. Of a run also the `checkpoint` and how it was chosen.

    Raises:
        UserError: If a setting is invalid, or the policies do not fit the environment.
    """
    from coterie.commands import evaluate as command
    from coterie.commands.arguments import baseline, changed_run

    if run is not None:
        folder, overrides = changed_run(run, settings)
        return command.evaluate_run(folder, episodes, mode, checkpoint, seed=seed, overrides=overrides)
    return command.evaluate_baseline(baseline(settings, seed), episodes, mode)


def play(
    run: Run | None = None,
    *,
    video: str | os.PathLike[str] | None = None,
    episodes: int = 1,
    mode: EvalMode = "auto",
    checkpoint: str = "auto",
    seed: int | None = None,
    size: int = 480,
    replay: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Path | None:
    """Records episodes, or shows them in a window. The remaining arguments are those of `evaluate`.

    Args:
        run: Run whose policies act.
        video: Video file to record (.mp4 or .gif).
        episodes: Number of episodes.
        mode: As in `evaluate`.
        checkpoint: As in `evaluate`.
        seed: As in `evaluate`.
        size: Length of the longer side in pixels.
        replay: Folder to which the environment's library writes its own replay.
        record: File to record for `coterie view` (.zip).
        **settings: Settings of the baseline, or with a run only `env`, as in `evaluate`.

    Returns:
        The file or folder that was written, or None.
    """
    from pathlib import Path

    from coterie.commands import play as command
    from coterie.commands.arguments import baseline, only_run_folder
    from coterie.commands.play import PlayOptions

    folder = None if run is None else only_run_folder(run, settings)
    resolved = baseline(settings, seed) if run is None else None
    if record is not None:
        from coterie.playing.play_by_hand import record_episodes
        from coterie.playing.seating import GameRequest, open_game

        request = GameRequest(run=folder, resolved=resolved, mode=mode, checkpoint=checkpoint, seed=seed, size=size)
        with open_game(request) as (game, title):
            return record_episodes(game, title, episodes, Path(record))
    options = PlayOptions(
        video=None if video is None else Path(video),
        replay=None if replay is None else Path(replay),
        episodes=episodes,
        mode=mode,
        checkpoint=checkpoint,
        seed=seed,
        size=size,
    )
    return command.play(folder, resolved, options)


def record(
    run: Run | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    episodes: int = 20,
    mode: EvalMode = "auto",
    checkpoint: str = "auto",
    seed: int | None = None,
    **settings: Any,
) -> Demos:
    """Records demonstrations with a run's checkpoint, or with an algorithm that needs no training.

    Args:
        run: Run whose policies act.
        out: File to write. Default: demos.safetensors in the run's folder, or in the current folder without a run.
        episodes: Number of episodes.
        mode: As in `evaluate`.
        checkpoint: As in `evaluate`.
        seed: As in `evaluate`.
        **settings: Settings of the baseline, or with a run only `env`, as in `evaluate`.

    Raises:
        UserError: If both a run and settings are given.
    """
    from pathlib import Path

    from coterie.commands import demos as command
    from coterie.commands.arguments import baseline, only_run_folder

    options = command.RecordOptions(
        out=None if out is None else Path(out), episodes=episodes, mode=mode, checkpoint=checkpoint, seed=seed
    )
    if run is not None:
        return command.record_run(only_run_folder(run, settings), options)[1]
    return command.record_baseline(baseline(settings, None), options)[1]


def league(
    members: Mapping[str, Run | str],
    *,
    episodes: int = 200,
    mode: EvalMode = "auto",
    checkpoint: str = "auto",
    seed: int = 0,
    **settings: Any,
) -> LeagueResult:
    """Plays all pairs of members: `coterie.league({"old": run_a, "new": run_b, "random": "random"})`.

    Args:
        members: Runs by name, or `random`, `scripted` or `scripted:NAME`.
        episodes: Number of episodes per pair.
        mode: As in `evaluate`.
        checkpoint: As in `evaluate`.
        seed: Seed of the episodes, equal for all pairs.
        **settings: Settings of the environment if no member is a run. Functions and classes as in `resume`.

    Raises:
        UserError: If there are fewer than two members, or if they were trained on different environments.
    """
    from coterie.commands.arguments import keep_code, run_folder, runs_of, to_overrides
    from coterie.commands.league import LeagueOptions
    from coterie.commands.league import league as command

    named = [f"{name}={member if isinstance(member, str) else run_folder(member)}" for name, member in members.items()]
    options = LeagueOptions(episodes=episodes, mode=mode, checkpoint=checkpoint, seed=seed)
    return command(named, to_overrides(keep_code(runs_of(members), settings)), options)


def exploit(
    run: Run,
    *,
    team: str | None = None,
    steps: float | None = None,
    episodes: int = 400,
    checkpoint: str = "auto",
    **settings: Any,
) -> Exploitability:
    """Trains a best response to one team of a run and measures its gain over the run's own opponent team.

    Args:
        run: Run to exploit.
        team: Team to exploit. Default: the second.
        steps: Environment steps to train the best response. Default: a fifth of the run's.
        episodes: Number of episodes to measure the gap.
        checkpoint: As in `evaluate`.
        **settings: Settings of the best response that differ from the run's; `env` as in `evaluate`.
    """
    from coterie.commands.arguments import changed_run
    from coterie.commands.best_response import exploit as command

    folder, overrides = changed_run(run, settings)
    steps = None if steps is None else int(steps)
    return command(folder, overrides, team=team, steps=steps, episodes=episodes, checkpoint=checkpoint)


def load(run: Run, checkpoint: str = "auto", device: str | torch.device = "cpu", **code: Any) -> Loaded:
    """Loads the policies of a run, which map NumPy observations to actions.

    `load(run).act(obs)` acts without hidden state; `load(run).player()` returns an object with `reset()` and
    `act(obs)`.

    Args:
        run: Run to load.
        checkpoint: As in `evaluate`.
        device: Device of the networks.
        **code: `env`, `algo`, `network` and `mixer` as in `resume`.

    Raises:
        UserError: If there is no such run or checkpoint.
    """
    from coterie.commands.arguments import only_run_folder
    from coterie.commands.player import Loaded

    return Loaded(only_run_folder(run, code), checkpoint, device)


def make(
    env: str,
    num_envs: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
    with_state: bool = False,
    **params: Any,
) -> VectorEnv:
    """Creates a batch of environments.

    Args:
        env: Name of the environment.
        num_envs: Number of parallel environments.
        seed: Seed of the episodes.
        device: Device of the tensors.
        with_state: True to return the global state.
        **params: Settings of the environment, such as `agents=5`.

    Raises:
        UserError: If a setting is invalid.
    """
    from coterie.envs.make import make as make_env

    return make_env(env, params, num_envs, seed, device=device, with_state=with_state)


def as_multiagent_env(
    env: str, seed: int = 0, replay_dir: str = "", replay_prefix: str = "", **params: Any
) -> MultiAgentWorld:
    """Creates one environment with the methods of PyMARL's `MultiAgentEnv`, for code written for SMAC.

    Args:
        env: Name of the environment.
        seed: Seed of the first episode. Later episodes continue the random stream.
        replay_dir: Folder to which `save_replay()` writes.
        replay_prefix: Prefix of the replay files.
        **params: As in `make`.

    Raises:
        UserError: If it has several teams, actions other than one discrete choice per agent, or no step limit.
    """
    from coterie.envs.external.multi_agent_export import MultiAgentWorld

    return MultiAgentWorld(env, seed, replay_dir, replay_prefix, **params)


def as_parallel_env(env: str, seed: int = 0, **params: Any) -> ParallelWorld:
    """Creates one environment as a `ParallelEnv` of PettingZoo, for code written for PettingZoo.

    Args:
        env: Name of the environment.
        seed: Seed of the first episode. Later episodes continue the random stream.
        **params: As in `make`.

    Raises:
        UserError: If a setting is invalid, or PettingZoo is not installed.
    """
    from coterie.core.errors import UserError
    from coterie.core.installation import install_extra

    try:
        from coterie.envs.external.parallel_export import ParallelWorld
    except ModuleNotFoundError as error:
        raise UserError(
            f"as_parallel_env: PettingZoo is not installed ({error}). Install it: {install_extra('pettingzoo')}"
        ) from error
    return ParallelWorld(env, seed, **params)


def as_vector_env(env: str, num_envs: int = 1, seed: int = 0, **params: Any) -> GymnasiumWorld:
    """Creates a batch of environments as a `VectorEnv` of Gymnasium, for code written for Gymnasium.

    With several agents, observations and actions are dicts by agent, and the reward is the team's.

    Args:
        env: Name of the environment.
        num_envs: Number of environments.
        seed: Seed of the first episodes. Later episodes continue the random stream.
        **params: As in `make`.

    Raises:
        UserError: If it has several teams, or a setting is invalid.
    """
    from coterie.envs.external.gymnasium_export import GymnasiumWorld

    return GymnasiumWorld(env, num_envs, seed, **params)
