"""The code behind each row of the learning benchmark, and whether it is still the present code.

    python benchmarks/provenance.py             # rows whose code or settings changed since they were measured
    python benchmarks/provenance.py --write     # writes learning.md again, which marks these rows

A row records the fingerprints of the modules that its runs used and of its settings. A fingerprint does not depend on
comments, docstrings and formatting. A test compares the marks on the page with the code, so that a change of an
algorithm or a world cannot leave a figure that claims to be of the present code: measure it again, or write the marks.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from coterie.algos import registry as algo_registry
from coterie.assembly.resolve import Resolved, resolve
from coterie.config.sources import flatten
from coterie.envs import registry as env_registry
from coterie.rewards import rewarded

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
PACKAGE = REPOSITORY / "src" / "coterie"

IRRELEVANT = ("cli", "commands", "config", "playing", "runs")
"""Packages that do not change what a run learns, apart from its settings, which have a fingerprint of their own."""

SIDE_SETTINGS = ("out", "seed", "threads", "device", "progress", "checkpoint", "log")
"""Settings that do not belong to a row's fingerprint."""

KERNELS = "kernels/native.py"
"""Module whose compiled source belongs to the code, too."""

_DIGITS = 12


@cache
def fingerprint(source: str) -> str:
    """Returns a hash of Python source without comments, docstrings and formatting."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:_DIGITS]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def imported(source: str) -> frozenset[str]:
    """Returns the dotted names that source imports from Coterie, those of modules and of what they define."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(name for name in names if name.partition(".")[0] == "coterie")


def code_path(package: Path, modules: Iterable[str]) -> dict[str, str]:
    """Returns the fingerprints of modules and of all that they import, by file in the package.

    Args:
        package: Folder of Coterie's source.
        modules: Dotted names of the modules to start from.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        path = _file(package, waiting.pop())
        name = None if path is None else path.relative_to(package).as_posix()
        if path is None or name is None or name in found or name.partition("/")[0] in IRRELEVANT:
            continue
        source = path.read_text(encoding="utf-8")
        found[name] = fingerprint(source)
        waiting += imported(source)
        if name == KERNELS:
            found |= {file.relative_to(package).as_posix(): _hash(file) for file in _compiled(package)}
    return dict(sorted(found.items()))


def _compiled(package: Path) -> list[Path]:
    """Source of the compiled kernels."""
    return [path for path in sorted((package / "kernels" / "source").iterdir()) if path.suffix in (".cpp", ".hpp")]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]


def _file(package: Path, module: str) -> Path | None:
    """The file of a module; None for a package, whose own file only describes it, and for what modules define."""
    path = package.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return path if path.is_file() else None


def modules_of(resolved: Resolved) -> list[str]:
    """Returns the modules from which all code of a run can be reached: learners, environment, rewards, training."""
    config = resolved.config
    algorithms = {config.algo.name, *(team.algo.name for team in config.teams.values() if team.algo is not None)}
    classes = [algo_registry.algorithm(name) for name in sorted(algorithms)]
    classes += [env_registry.environment(config.env.name), *(rewarded.SIGNALS[name] for name in config.rewards.signals)]
    modules = [*(cls.__module__ for cls in classes), "coterie.training.trainer", "coterie.training.evaluation"]
    return [*modules, *["coterie.imitation.cloning"] * (config.imitation.demos is not None)]


def settings_of(resolved: Resolved) -> str:
    """Returns the fingerprint of a run's settings, of which demonstrations count by the name of their file."""
    entries = ((k, Path(v).name if k.endswith(".demos") and v else v) for k, v in flatten(resolved.config.tree()))
    values = {k: v for k, v in entries if k.partition(".")[0] not in SIDE_SETTINGS}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


def resolved_job(overrides: Sequence[str]) -> Resolved:
    """Returns the configuration of settings, of which later ones win."""
    return resolve([f"{key}={value}" for key, value in dict(word.split("=", 1) for word in overrides).items()])


def present(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns settings and code of a job by the present source."""
    resolved = resolved_job(overrides)
    return {"settings": settings_of(resolved), "code": code_path(PACKAGE, modules_of(resolved))}


def present_digest(overrides: Sequence[str]) -> str:
    """Returns a hash of what `present` returns."""
    return hashlib.sha256(json.dumps(present(overrides), sort_keys=True).encode()).hexdigest()[:_DIGITS]


def measured(overrides: Sequence[str], git: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns settings and code of the runs of a job, or None if their code is unknown or not the same.

    Args:
        overrides: Settings of the job.
        git: Revision of each run and whether files were changed, as in its manifest.
    """
    revisions = {entry["revision"] for entry in git}
    if None in revisions or any(entry["modified"] for entry in git):
        return None
    resolved, found = resolved_job(overrides), []
    for revision in sorted(revisions):
        with source_at(revision) as package:
            found.append(code_path(package, modules_of(resolved)))
    return {"settings": settings_of(resolved), "code": found[0]} if all(code == found[0] for code in found) else None


@contextmanager
def source_at(revision: str) -> Iterator[Path]:
    """The package as it was at a revision of this repository, in a temporary folder.

    Raises:
        subprocess.CalledProcessError: If the repository does not have it.
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "source.tar"
        words = ["git", "-C", str(REPOSITORY), "archive", "-o", str(archive), revision, "src/coterie"]
        subprocess.run(words, check=True, capture_output=True)
        with tarfile.open(archive) as file:
            file.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
            file.extractall(folder)
        yield Path(folder) / "src" / "coterie"


def is_present(entry: dict[str, Any]) -> bool:
    """True if a row of learning.json was measured with the present code and settings."""
    known = entry.get("provenance")
    return known is not None and known == present([*entry["common"], *entry["overrides"]])


def is_verified(entry: dict[str, Any], overrides: Sequence[str]) -> bool:
    """True if `verification.py` found that the present code and settings of a row's job repeat the row.

    Args:
        entry: The row in learning.json.
        overrides: Present settings of the job.
    """
    known = entry.get("verified")
    return known is not None and known["present"] == present_digest(overrides)


def main(argv: Sequence[str]) -> int:
    from gathering import write_page
    from jobs import COMMON, JOBS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write learning.md again")
    given = parser.parse_args(argv)
    jobs = json.loads((HERE / "results" / "learning.json").read_text())["jobs"]
    words = {job.name: [*COMMON, *job.overrides] for job in JOBS}
    for name, entry in jobs.items():
        if name not in words:
            print(f"{name}: no job any more")
        elif not is_present(entry) and not is_verified(entry, words[name]):
            print(f"{name}: measured with other code or settings")
    if given.write:
        print(write_page(HERE / "results"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
