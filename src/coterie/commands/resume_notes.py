"""Differences of a run that is resumed: settings that are kept, and lines for the user."""

from __future__ import annotations

from typing import Literal

from coterie.assembly.arithmetic import configure_arithmetic
from coterie.assembly.environment import select_device
from coterie.assembly.rank_processes import exchange_of
from coterie.assembly.resolve import require_saved_settings
from coterie.config.schema import RunConfig
from coterie.core.process import measured_threads
from coterie.core.text import coterie_command
from coterie.kernels import switch
from coterie.ranks.ranks import Ranks
from coterie.runs import loggers
from coterie.runs.checkpoints import LoadedCheckpoint, decoding
from coterie.runs.folder import RunFolder
from coterie.training.rank_states import num_ranks


def resume_threads(folder: RunFolder, threads: int | Literal["auto"]) -> tuple[int, list[str]]:
    """Returns the number of threads, `auto` for that with which the run started, and a note if it differs from that."""
    before = folder.read_manifest().get("threads")
    if not isinstance(before, int):
        return measured_threads(threads), []
    if threads in ("auto", before):
        return before, []
    return threads, [f"threads: {before} before, {threads} now. Results may differ in the last bits"]


def resume_kernels(folder: RunFolder, config: RunConfig) -> tuple[switch.Choice, list[str]]:
    """Turns the kernels on or off as when the run started, if possible; returns the choice and a note if it differs."""
    before = folder.read_manifest().get("kernels", "off") == "on"
    choice = configure_arithmetic(config, before)
    if choice.on == before:
        return choice, []
    words = ("on", "off") if before else ("off", "on")
    reason = f": {choice.reason}" if choice.reason else ""
    return choice, [f"kernels were {words[0]} and are {words[1]}{reason}. Results differ in the last bits"]


def device_notes(folder: RunFolder, device: str, found: LoadedCheckpoint) -> list[str]:
    """Returns a note if a run continues on another kind of device than that of its checkpoint."""
    saved = found.metadata.get("device") or folder.read_manifest().get("device", "")
    before, now = str(saved).partition(":")[0], select_device(device).type
    if before in ("", now):
        return []
    return [
        f"device: {before} before, {now} now. Networks, optimizers and statistics continue exactly; random numbers "
        "differ"
    ]


def resume_notes(folder: RunFolder, saved: RunConfig, steps: int, found: LoadedCheckpoint) -> list[str]:
    """Returns what the user should know about the run that is resumed.

    Args:
        folder: Folder of the run.
        saved: The configuration in its `config.yaml`.
        steps: Environment steps that are requested now.
        found: The checkpoint.

    Raises:
        UserError: If `config.yaml` or `metrics.jsonl` is not that of the checkpoint.
    """
    notes = [found.warning] if found.warning else []
    with decoding(found):
        settings, metrics_bytes = dict(found.metadata["config"]), int(found.metadata["metrics_bytes"])
    notes += require_saved_settings(folder.config_path, saved, settings)
    logged = loggers.complete_bytes(folder.metrics_path, metrics_bytes)
    if logged < metrics_bytes:
        notes.append(
            f"{folder.metrics_path}: entries are missing, {logged:,} of the {metrics_bytes:,} bytes "
            "that the checkpoint knows are left"
        )
    if found.steps >= steps:
        notes.append(
            f"the run {folder.path} has finished its {steps:,} steps. "
            f"To train longer: {coterie_command('resume', folder.path, f'steps={2 * found.steps}')}"
        )
    return notes


def rank_notes(found: LoadedCheckpoint, ranks: Ranks) -> list[str]:
    """Returns a note if a run continues with another number of ranks, or if they exchange tensors in another way."""
    with decoding(found):
        before = num_ranks(found.state)
    if before == ranks.size:
        return _exchange_notes(found.metadata.get("exchange"), exchange_of(ranks), ranks.size)
    return [
        f"ranks: {before} before, {ranks.size} now. Networks, optimizers and statistics continue exactly; environments "
        "start new episodes with new seeds, hidden states start at zero, and replay buffers are empty"
    ]


def _exchange_notes(before: str | None, now: str | None, size: int) -> list[str]:
    """Returns a note if sums are computed in another way. Those of two numbers do not depend on the order."""
    if size < 3 or before is None or before == now:
        return []
    return [
        f"ranks: tensors were summed through {before}, and are now through {now}. Results may differ in the last bits"
    ]


def env_changes(before: dict[str, str] | None, now: dict[str, str]) -> list[str]:
    """Returns a line for each property of the environment that has changed; none if they were not recorded."""
    if before is None:
        return []
    names = dict.fromkeys((*before, *now))
    return [
        f"{name} was {before.get(name)} and is now {now.get(name)}. Results before and after are not comparable."
        for name in names
        if before.get(name) != now.get(name)
    ]
