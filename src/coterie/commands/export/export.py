"""Exports the teams of a run to files that other programs read."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.numpy import save

from coterie.algos.algorithm import Algorithm
from coterie.commands.export.description import describe, provenance, seal
from coterie.commands.export.onnx_graph import kernels_off, require_libraries, write_onnx
from coterie.commands.export.out_folder import replaced, require_free, team_folders
from coterie.commands.export.player_file import PLAYER, TORCH_POLICY, player_source, torch_source
from coterie.commands.export.subject import Subject, subject_of
from coterie.commands.export.unity_graph import require_unity, write_unity
from coterie.commands.export.weights import NetworkDescription, require_own_layers
from coterie.commands.learners import eval_modes, load_run
from coterie.core.errors import UserError, nearest
from coterie.core.files import write_bytes, write_text
from coterie.core.terminal import print_message, print_progress
from coterie.runs.folder import RunFolder
from coterie.runs.manifest import read_manifest

Format = Literal["onnx", "torch", "numpy", "mlagents"]
FORMATS: tuple[Format, ...] = ("onnx", "torch", "numpy", "mlagents")


def export(
    run: Path, out: Path, form: Format = "onnx", *, checkpoint: str = "auto", team: str | None = None
) -> dict[str, Any]:
    """Writes a folder for every team of a run that has networks, and the player next to them.

    Args:
        run: Folder of the run.
        out: Folder to write. Teams of an earlier export are replaced. With `team`, other teams of the run may remain.
        form: `onnx`, `torch`, `numpy` or `mlagents`.
        checkpoint: auto, best, best:TEAM, last or a number of steps.
        team: The only team to export; None for all.

    Returns:
        Format, checkpoint, folders and files by team, and reasons for teams that were not exported.

    Raises:
        UserError: If nothing can be exported, or the folder cannot be written.
    """
    if form not in FORMATS:
        raise UserError(f"--format {form}: no such format. {nearest(str(form), FORMATS)}")
    if form in {"onnx", "mlagents"}:
        require_libraries(form)
    trained = load_run(run, checkpoint, torch.device("cpu"), team=team, announce=False)
    assert trained.choice is not None
    algorithms = trained.algorithms
    if team is not None and team not in algorithms:
        raise UserError(f"--team {team}: the run {run} has no such team. {nearest(team, algorithms)}")
    subjects, skipped = _subjects(algorithms, form, team)
    folder = RunFolder.open(run).path
    manifest, chosen = read_manifest(folder / "manifest.json"), trained.choice.report()
    report: dict[str, Any] = {"format": form, "out": str(out), "checkpoint": chosen, "teams": {}, "skipped": skipped}
    origins = {
        name: provenance(manifest, folder.name, chosen, trained.config.algo_of(name).name)
        for name in (subject.team.name for subject in subjects)
    }
    sources = {} if form == "mlagents" else {PLAYER: player_source()}
    sources |= {TORCH_POLICY: torch_source()} if form == "torch" else {}
    folders = team_folders(origins)
    require_free(out, list(folders.values()), list(sources), None if team is None else origins[team])
    with contextlib.ExitStack() as all_at_once, kernels_off():
        for subject in subjects:
            name = subject.team.name
            print_progress(f"exporting team {name}")
            place = all_at_once.enter_context(replaced(out / folders[name]))
            report["teams"][name] = write_team(subject, form, origins[name], place)
    for name, source in sources.items():
        write_text(out / name, source)
    return report


def _subjects(algorithms: dict[str, Algorithm], form: Format, team: str | None) -> tuple[list[Subject], dict[str, str]]:
    """Returns the teams to export, and the reasons for others. UserError if there are none."""
    subjects, skipped, modes = [], {}, eval_modes("auto", algorithms)
    for name, algorithm in algorithms.items():
        if team in (None, name):
            policy = algorithm.policy
            try:
                subject = subject_of(policy.team, policy, modes[name])
                if form != "onnx":
                    require_own_layers(subject)
                if form == "mlagents":
                    require_unity(subject)
                subjects.append(subject)
            except UserError as error:
                skipped[name] = str(error)
    if not subjects:
        raise UserError(next(iter(skipped.values())))
    for reason in skipped.values():
        print_message(reason)
    return subjects, skipped


def write_team(subject: Subject, form: Format, origin: dict[str, Any], folder: Path) -> list[str]:
    """Writes a team's files into a new folder and returns their names."""
    info = describe(subject, form, origin)
    if form == "onnx":
        names, info["onnx"] = ["policy.onnx"], write_onnx(subject, folder / "policy.onnx")
    elif form == "mlagents":
        names = write_unity(subject, info, folder)
    else:
        network = NetworkDescription(subject)
        names, info["network"] = ["weights.safetensors"], network.blocks
        write_bytes(folder / names[0], save(network.tensors))
    write_text(folder / "policy.json", seal(info, folder, names))
    return ["policy.json", *names]
