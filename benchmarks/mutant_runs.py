"""Runs tests against mutants of a module, each in a fork of a process that has imported what the module cannot affect.

`Nursery` starts this file as a script. The script reads one `Trial` per line from its input as JSON and writes one
`Verdict` per line. A mutant exists only in the memory of its process: the files of the package stay as they are.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SURVIVED, KILLED, TIMEOUT = "survived", "killed", "timeout"
_ADDRESS_SPACE = 16 << 30
_FILE_SIZE = 1 << 30
_BROKEN, _NO_TESTS = 99, 5
_OPTIONS = (
    *("--noconftest",),  # it imports all of Coterie, for tests of whole runs
    *("-x", "-q", "-n0", "--tb=no", "--no-header", "-p", "no:cacheprovider"),
    *("--hypothesis-seed=0", "--rootdir", str(ROOT), "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(frozen=True)
class Trial:
    """Tests to run against one version of a module.

    Attributes:
        module: Dotted name of the module.
        source: Its source, or None for the file's.
        tests: Test files, relative to the repository, in this order.
        marks: Expression that selects tests by their marks, as pytest's -m; empty for all.
        limit: Seconds after which the tests are stopped.
        names: Expression that selects tests by their names, as pytest's -k; empty for all.
    """

    module: str
    source: str | None
    tests: list[str]
    marks: str
    limit: float
    names: str = ""


@dataclass(frozen=True)
class Verdict:
    """Result of a trial: SURVIVED, KILLED or TIMEOUT; pytest's exit code, seconds, and the end of its output."""

    result: str
    code: int
    seconds: float
    output: str


class Nursery:
    """Process that runs trials of one module. It imports what the first of them needed, so later ones start sooner."""

    def __init__(self) -> None:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": ""}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environ,
            start_new_session=True,
        )

    def run(self, trial: Trial) -> Verdict:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(trial)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that runs the tests ended with {self._process.wait()}")
        return Verdict(**json.loads(line))

    def close(self) -> None:
        with self._process:  # closes its pipes and waits
            pass


# ------------------------------------------------------------------------------------------- the process of the script


class _Mutant(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Finds and loads one module from a string instead of its file."""

    def __init__(self, module: str, source: str) -> None:
        path = ROOT.joinpath("src", *module.split(".")).with_suffix(".py")
        super().__init__(module, str(path))
        self._source = source

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.path)

    def get_code(self, fullname: str) -> CodeType:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tests turn warnings into errors, but a warned-of mutant can be imported
            return compile(self._source, self.path, "exec", dont_inherit=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _limit()
    preloaded = False
    for line in sys.stdin:
        trial = Trial(**json.loads(line))
        with tempfile.TemporaryDirectory(prefix="coterie-mutant-") as folder:
            verdict = _run(trial, Path(folder), report=not preloaded)
            if not preloaded:
                _preload(Path(folder) / "modules.json")
                preloaded = True
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


def _limit() -> None:
    """A mutant that allocates without end fails instead of filling memory or disk."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run(trial: Trial, folder: Path, report: bool) -> Verdict:
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        _child(trial, folder, report)
    code, result = None, ""
    while code is None:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
        elif time.monotonic() - started > trial.limit:
            result = TIMEOUT
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        else:
            time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # processes that the tests left
    output = (folder / "output.txt").read_text(errors="replace")[-1500:]
    if code in (_BROKEN, _NO_TESTS):
        raise RuntimeError(f"{trial.tests}: the tests did not run, exit code {code}: {output}")
    return Verdict(result or (KILLED if code else SURVIVED), code, time.monotonic() - started, output)


def _child(trial: Trial, folder: Path, report: bool) -> None:
    """Runs the tests in this process, which ends with pytest's exit code."""
    code = _BROKEN
    try:
        os.setsid()
        descriptor = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ |= {
            "TMPDIR": str(folder),
            "XDG_STATE_HOME": str(folder),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder),
        }
        tempfile.tempdir = None
        if trial.source is not None:
            sys.meta_path.insert(0, _Mutant(trial.module, trial.source))
        import pytest

        marks = [*["-m", trial.marks] * bool(trial.marks), *["-k", trial.names] * bool(trial.names)]
        code = int(pytest.main([*_OPTIONS, "--basetemp", str(folder / "pytest"), *marks, *trial.tests]))
        if report:
            (folder / "modules.json").write_text(json.dumps(_unaffected(trial.module)))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _unaffected(module: str) -> list[str]:
    """Returns the imported modules that neither belong to the tests nor import `module`, in the order of import."""
    files = {name: Path(getattr(found, "__file__", None) or "/") for name, found in list(sys.modules.items())}
    ours = {name: _imported(path) for name, path in files.items() if path.is_relative_to(ROOT / "src")}
    affected = {module}
    while more := {name for name, names in ours.items() if names & affected} - affected:
        affected |= more
    tests = {name for name, path in files.items() if path.is_relative_to(ROOT / "tests")}
    return [name for name in files if name not in affected | tests | {"__main__"}]


def _imported(path: Path) -> set[str]:
    """Returns the dotted names that a file imports anywhere, those of modules and of what they define."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _preload(path: Path) -> None:
    """Imports the modules listed in a file, apart from those that cannot be imported by themselves."""
    for name in json.loads(path.read_text()) if path.exists() else ():
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


if __name__ == "__main__":
    main()
