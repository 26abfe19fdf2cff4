"""Exports the teams of a run to files that other programs read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.numpy import save

from coterie.algos.algorithm import Algorithm
from coterie.assembly.learners import eval_modes, load_run
from coterie.core.errors import UserError, nearest
from coterie.core.files import disk_error, sync_folder, write_bytes, write_text
from coterie.core.observations import Entry
from coterie.core.specs import RoleSpec
from coterie.core.terminal import print_message, print_progress
from coterie.envs.external.spaces import space_entry
from coterie.export.onnx_graph import kernels_off, require_libraries, write_onnx
from coterie.export.portable.policy_files import FORMAT_VERSION
from coterie.export.signature import inputs, noise_parts, outputs
from coterie.export.subject import Subject, observation_entry, subject_of
from coterie.export.unity_graph import require_unity, write_unity
from coterie.export.weights import NetworkDescription, require_own_layers
from coterie.runs.folder import RunFolder, read_manifest

PLAYER, TORCH_POLICY, JAVASCRIPT_PLAYER = "coterie_player.py", "coterie_policy_torch.py", "coterie_player.mjs"

_PORTABLE = "export/portable"
_PLAYER_PARTS = (
    f"{_PORTABLE}/policy_files.py",
    f"{_PORTABLE}/network.py",
    f"{_PORTABLE}/policy.py",
    f"{_PORTABLE}/checked_numbers.py",
    "core/observations.py",
    f"{_PORTABLE}/observation_reader.py",
    f"{_PORTABLE}/native_actions.py",
    f"{_PORTABLE}/player.py",
)
_TORCH_PARTS = (
    f"{_PORTABLE}/policy_files.py",
    f"{_PORTABLE}/checked_numbers.py",
    "core/observations.py",
    f"{_PORTABLE}/observation_reader.py",
    f"{_PORTABLE}/native_actions.py",
    f"{_PORTABLE}/torch_policy.py",
)
_SAFE = """An export holds numbers and
descriptions: reading it executes no code from it. Files that were truncated or changed are refused with `PolicyError`.
"""

_PLAYER_HEADER = '''"""Acts with teams that `coterie export` wrote, without Coterie and PyTorch.

    from coterie_player import Player

    player = Player("exported")
    player.reset()
    actions = player.act({"agent_0": obs_0, "agent_1": obs_1, "agent_2": obs_2})

This file needs Python 3.11, NumPy, and onnxruntime for exports to ONNX. Copy it next to your program. {safe}"""
'''

_TORCH_HEADER = '''"""Loads teams that `coterie export --format torch` wrote as PyTorch modules, without Coterie.

    from coterie_policy_torch import TorchPolicy

    policy = TorchPolicy("exported/agent")
    outputs = policy(policy.first_inputs({"agent_0": obs_0, "agent_1": obs_1}))
    actions = policy.actions(outputs, "greedy")

This file needs Python 3.11, NumPy and PyTorch. Copy it next to your program. {safe}"""
'''


def player_source() -> str:
    """Returns the source of `coterie_player.py`."""
    return _joined(_PLAYER_PARTS, _PLAYER_HEADER)


def torch_source() -> str:
    """Returns the source of `coterie_policy_torch.py`."""
    return _joined(_TORCH_PARTS, _TORCH_HEADER)


def javascript_source() -> str:
    """Returns the source of `coterie_player.mjs`."""
    return (resources.files("coterie") / _PORTABLE / JAVASCRIPT_PLAYER).read_text(encoding="utf-8")


def _joined(names: tuple[str, ...], header: str) -> str:
    """Modules that need no others in one file, with their imports at the top."""
    imports: set[str] = set()
    bodies = []
    for name in names:
        text = (resources.files("coterie") / name).read_text(encoding="utf-8")
        lines = text.split('"""', 2)[2].lstrip("\n").splitlines()
        start = next(i for i, line in enumerate(lines) if line and not line.startswith(("import ", "from ")))
        imports |= {line for line in lines[:start] if line and not line.startswith("from coterie.")}
        bodies.append("\n".join(lines[start:]).strip())
    future = "from __future__ import annotations"
    packages = sorted(line for line in imports if line.split()[1].partition(".")[0] in {"numpy", "torch"})
    standard = sorted(imports - set(packages) - {future})
    head = [header.replace("{safe}", _SAFE), future, "", *standard, "", *packages]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def describe(subject: Subject, backend: str, provenance: Entry) -> Entry:
    """Returns everything but the entries of the format, checksums and `sha256`."""
    return {
        "format": "coterie-policy",
        "version": FORMAT_VERSION,
        "backend": backend,
        "team": subject.team.name,
        "agents": list(subject.team.agents),
        "roles": [_role(subject, role) for role in subject.team.roles],
        "mode": subject.mode,
        "centralized": subject.policy.communicates,
        "inputs": [asdict(entry) for entry in inputs(subject)],
        "outputs": [asdict(entry) for entry in outputs(subject)],
        "provenance": provenance,
    }


def seal(info: Entry, folder: Path, names: list[str]) -> str:
    """Returns the text of `policy.json`, with the checksums of the files in `folder` and of itself."""
    files = {}
    for name in names:
        content = (folder / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    info = json.loads(json.dumps({**info, "files": files}))
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()
    return json.dumps({**info, "sha256": digest}, indent=2) + "\n"


def provenance(manifest: Entry, run: str, checkpoint: Entry, algorithm: str) -> Entry:
    """Returns the origin of the weights: run, checkpoint, algorithm, environment, seed and versions."""
    return {
        "run": run,
        "env": manifest.get("env"),
        "algo": algorithm,
        "seed": manifest.get("seed"),
        "started": manifest.get("started"),
        "git": manifest.get("git"),
        "trained_with": manifest.get("versions"),
        "checkpoint": checkpoint,
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "exported_with": {name: metadata.version(name) for name in ("coterie", "torch", "numpy")},
    }


def _role(subject: Subject, role: RoleSpec) -> Entry:
    return {
        **observation_entry(role),
        "choices": list(role.action.choices),
        "continuous": role.action.continuous,
        "action": space_entry(role.action_space, bounds=True),
        "noise": [{"kind": kind, "size": size} for kind, size in noise_parts(subject, role)],
    }


_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\xa0%\\/:*?"<>|\u2000-\u206f\ufeff\ud800-\udfff]')
"""Characters that some file systems do not allow, or that are not visible."""
_LONGEST = 120
_MAX_DESCRIPTION = 1 << 24
_FIRST_WORDS = b'"""Acts with teams', b'"""Loads teams that', b"// Acts with teams"


def team_folders(teams: Iterable[str]) -> dict[str, str]:
    """Returns the name of each team's folder: that of the team, with characters escaped that not all systems allow.

    Names that differ by capital letters only, which some systems take for one, get a number.
    """
    found: dict[str, str] = {}
    for team in teams:
        folder = _UNSAFE.sub(_escaped, team)[:_LONGEST] or "%"
        folder = folder.replace(".", "%2E", 1) if folder.startswith(".") else folder
        taken, base = {other.lower() for other in found.values()}, folder
        while folder.lower() in taken:
            folder = f"{base}%{len(found)}"
        found[team] = folder
    return found


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogatepass"))


def require_free(out: Path, teams: list[str], sources: list[str], provenance: dict[str, Any] | None) -> None:
    """Raises UserError if an export would overwrite something else, or be mixed with teams of another export.

    Args:
        out: Folder of the export.
        teams: Folders of the teams to write.
        sources: Names of the files with source code to write.
        provenance: Origin of the teams, if teams of the same run may remain; None if none may.
    """
    for team in teams:
        if os.path.lexists(out / team) and _description(out / team) is None:
            raise UserError(f"--out {out}: {out / team} exists and is no export. Choose another folder.")
    for name in sources:
        if os.path.lexists(out / name) and not _is_source(out / name):
            raise UserError(f"--out {out}: {out / name} was not written by an export. Choose another folder.")
    for folder in sorted(out.iterdir()) if out.is_dir() else []:
        info = None if folder.name in teams or folder.name.startswith(".") else _description(folder)
        if info is not None and not _same_run(info, provenance):
            raise UserError(
                f"--out {out}: {folder} is a team of another export, and a player would act with both. Remove it, or "
                "choose another folder."
            )


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of `target` at the end; nothing changes if writing fails."""
    place, old = (target.with_name(f".{kind}-{target.name}") for kind in ("writing", "old"))
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        yield place
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.replace(target, old)
        os.replace(place, target)
        sync_folder(target.parent)
    except OSError as error:
        raise disk_error("the folder", target, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _description(folder: Path) -> dict[str, Any] | None:
    """The content of `policy.json` if a folder holds an export of a team and nothing else, otherwise None."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        path = folder / "policy.json"
        if folder.is_symlink() or path.stat().st_size > _MAX_DESCRIPTION:
            return None
        info = json.loads(path.read_bytes())
        names = {x.name for x in folder.iterdir()}
        if info["format"] == "coterie-policy" and names <= {"policy.json", *info["files"]}:
            return info
    return None


def _same_run(info: dict[str, Any], provenance: dict[str, Any] | None) -> bool:
    if provenance is None or not isinstance(info.get("provenance"), dict):
        return False
    return all(info["provenance"].get(key) == provenance[key] for key in ("run", "started", "seed"))


def _is_source(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return not path.is_symlink() and path.read_bytes().startswith(_FIRST_WORDS)
    return False


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
    sources |= {JAVASCRIPT_PLAYER: javascript_source()} if form in {"numpy", "torch"} else {}
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
                if policy.communicates:
                    print_message(
                        f"team {name}: centralized execution: its agents act by what others observe, so that the "
                        "export acts for the whole team at once"
                    )
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
