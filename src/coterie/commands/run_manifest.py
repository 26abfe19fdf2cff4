"""The manifest of a new run: what it was made from, what it runs on, and returns to compare it with."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from coterie.assembly.rank_processes import exchange_of
from coterie.assembly.resolve import saved_settings, signature_of
from coterie.assembly.warm_start import WarmStart
from coterie.config import callables
from coterie.config.schema import Choice, RunConfig, TeamConfig
from coterie.core.process import available_cores
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.core.teams import team_records, why
from coterie.envs import registry
from coterie.kernels import switch
from coterie.policies.base import Mode, Policy, RandomPolicy
from coterie.runs.description import describe, installed_versions, project_record
from coterie.runs.folder import RunFolder
from coterie.runs.progress import PeriodicProgress, Progress
from coterie.training.evaluation import PATIENCE, EndlessEpisodesError, Evaluation, ProgressCallback, evaluate
from coterie.training.run_parts import RunComponents
from coterie.training.trajectory import Watch


def new_manifest(
    config: RunConfig,
    folder: RunFolder,
    components: RunComponents,
    *,
    threads: int,
    now: datetime,
    kernels: switch.Choice,
    warm: WarmStart | None,
) -> dict[str, Any]:
    """Returns the manifest of a run that starts, whose `config.yaml` was written.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        components: Its environments and teams.
        threads: Number of PyTorch threads.
        now: Time of the start.
        kernels: The choice of kernels.
        warm: Weights that were taken from another run.
    """
    spec = components.collector.env.spec
    more: dict[str, Any] = callables.sources(saved_settings(config))
    if warm is not None:
        more["init"] = warm.record
    exchange = exchange_of(components.ranks)
    if exchange is not None:
        more["ranks"] = {"exchange": exchange, "cores_each": available_cores()}
    if config.log.git_patch:
        more["project"] = project_record(project_folders(config))
    return describe(
        config.seed,
        sys.argv,
        threads,
        now,
        env=config.env.name,
        algo=config.algo.name,
        device=str(components.collector.env.device),
        kernels=kernels.describe(),
        precision=config.precision,
        cuda_graphs=config.cuda_graphs,
        exact_resume=spec.exact_resume,
        episode_limit=spec.episode_limit,
        environment=spec.env_info,
        signature=signature_of(folder.config_path),
        teams=team_records(components.teams),
        teams_because=why(spec, teams_with_roles(config.teams)),
        installed=installed_versions(),
        **more,
    )


def teams_with_roles(settings: Mapping[str, TeamConfig]) -> list[str]:
    """Returns the teams whose roles the settings of single teams list."""
    return [name for name, team in settings.items() if team.roles is not None]


def project_folders(config: RunConfig) -> list[Path]:
    """Returns the folders of the user's modules that a run uses, and the current folder."""
    used: list[Any] = [type(choice.params) for choice in (config.algo, *(t.algo for t in config.teams.values()))]
    used = [found for found in used if found.__module__.partition(".")[0] != "coterie"]
    if registry.is_factory(config.env.name):
        used.insert(0, registry.factory(config.env.name))
    folders = []
    for found in used:
        target = found if hasattr(found, "__qualname__") else type(found)
        try:
            file = inspect.getsourcefile(inspect.unwrap(target))
        except (OSError, TypeError, ValueError):  # typed at a prompt, or built in
            file = None
        if file is not None and Path(file).is_file():
            folders.append(Path(file).resolve().parent)
    return [*folders, Path.cwd()]


def write_reference_returns(
    config: RunConfig, folder: RunFolder, components: RunComponents, display: Progress, watch: Watch | None
) -> None:
    """Writes returns to compare with into the manifest: random policies', and published ones. Once per run.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        components: Its environments and teams.
        display: Shows that episodes are played.
        watch: Reads what the environment returns in them.
    """
    ranks = components.ranks
    manifest = folder.read_manifest()
    if not ranks.is_first:
        ranks.broadcast(None)  # the others wait
        return
    if "random" not in manifest and config.eval.every != 0:
        waiting = PeriodicProgress(display.print_line, "random policy, for comparison")
        seed = seed_of(config.seed, "random")
        try:
            found = _random_evaluation(components, config.eval.episodes, seed, waiting, watch).report()
        except EndlessEpisodesError as error:
            display.print_note(error.in_training("random policy"))
            components.evaluator.awaits_end, found = True, {}
        random = {name: team["return_mean"] for name, team in found.items()}
        errors = {name: team["return_error"] for name, team in found.items()}
        published = published_scores(
            config.env, components.teams, {name: config.algo_of(name).name for name in components.teams}
        )
        levels = {"random": random} | ({"published": published} if published else {})
        measured = {"random": random, "random_error": errors, "published": published, "levels": levels}
        folder.write_manifest(manifest | measured)
    if ranks.size > 1:
        ranks.broadcast(b"")


def _random_evaluation(
    components: RunComponents, episodes: int, seed: int, on_progress: ProgressCallback, watch: Watch | None
) -> Evaluation:
    """Evaluates all teams acting at random."""
    env = components.evaluator.env
    policies: dict[str, Policy] = {name: RandomPolicy(team, env.device) for name, team in components.teams.items()}
    modes: dict[str, Mode] = dict.fromkeys(policies, "sample")
    return evaluate(
        env,
        policies,
        episodes=episodes,
        modes=modes,
        seed=seed,
        patience=PATIENCE,
        on_progress=on_progress,
        watch=watch,
    )


def published_scores(env: Choice, teams: Mapping[str, TeamSpec], algos: Mapping[str, str]) -> dict[str, float]:
    """Returns published mean returns by team for a run's environment, its settings and each team's algorithm.

    The table is `config/reference_scores.yaml`. Scores per agent (`scale: agent`) are multiplied by the number
    of agents, because the return of a team is the sum over its agents. Teams without a published score are omitted.

    Args:
        env: The environment and its settings.
        teams: Teams by name.
        algos: Name of each team's algorithm, whose variants have the scores of the algorithm.
    """
    params = env.params.model_dump()
    scores = {}
    for name, team in teams.items():
        algo = algos[name].partition("/")[0]
        for entry in _reference_scores():
            if _matches(entry, env.name, params) and algo in entry["levels"]:
                scale = team.n if entry["scale"] == "agent" else 1
                scores[name] = entry["levels"][algo] * scale
    return scores


@functools.cache
def _reference_scores() -> list[dict[str, Any]]:
    path = resources.files("coterie.config") / "reference_scores.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _matches(entry: dict[str, Any], env: str, params: dict[str, Any]) -> bool:
    return entry["env"] == env and all(params.get(key) == value for key, value in entry["params"].items())
