"""The manifest of a new run: what it was made from and what it runs on."""

from __future__ import annotations

import inspect
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.commands.rank_processes import exchange_of
from coterie.commands.warm_start import WarmStart
from coterie.config import callables, registry
from coterie.config.resolve import saved_settings, signature_of
from coterie.config.schema import RunConfig
from coterie.core.team_report import team_records, why
from coterie.core.threads import available_cores
from coterie.kernels import switch
from coterie.runs.description import describe
from coterie.runs.folder import RunFolder
from coterie.runs.project import installed_versions, project_record
from coterie.training.run_parts import RunComponents


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
        environment=spec.env_info,
        signature=signature_of(folder.config_path),
        teams=team_records(components.teams),
        teams_because=why(spec, teams_with_roles(config)),
        installed=installed_versions(),
        **more,
    )


def teams_with_roles(config: RunConfig) -> list[str]:
    """Returns the teams whose roles the configuration lists."""
    return [name for name, team in config.teams.items() if team.roles is not None]


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
