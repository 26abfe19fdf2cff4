"""Executes commands with mutated settings, words and files, and counts those that do not end as documented.

    python benchmarks/fuzz.py [--cases 10000] [--seed 0] [--jobs 1] [--first 0] [--out FILE]

`fuzz_cases` draws the cases: settings of every algorithm and every family of environments, words of all commands, and
damaged runs, checkpoints, demonstrations, exported policies, recordings and YAML files. Each case is a command in a
folder of its own, in a process that is forked from this one. A case fails if

- its output contains a traceback,
- it needs more than 60 s of CPU time, or does not end within 180 s,
- a signal ends it, or its exit code is not documented,
- it fails without a message, or writes a line of more than 1,000 characters to stderr,
- or processes are left that do not end within ten seconds.

Runs that may rightly take long, because the mutated setting asks for it, are interrupted after two seconds of CPU time,
and commands that serve a page when they have written its address. They have to end with the documented code, too.

Writes FILE and a page next to it. Exits with 1 if a case failed. --show executes a single case and prints its words,
its output and its end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch starts its threads, also in new processes
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # of the kernels; cases have another home

import fuzz_files
import fuzz_runs
import reporting
from fuzz_cases import Case, Deck, preparations, run_words
from kills import preload

from coterie.core.files import write_text
from coterie.kernels.build import available_library

HERE = Path(__file__).resolve().parent
ENDS = {"succeeded": {0}, "refused": {2}, "failed": {3}, "check failed": {1}, "interrupted": {130}}
"""Names of documented exit codes, as columns of the page."""

PRELOADED = (
    *("safetensors.numpy", "scipy.stats", "optuna.storages", "sqlalchemy.dialects.sqlite", "alembic.command"),
    *("onnx", "onnxscript", "onnxscript.function_libs.torch_lib.ops", "sympy.combinatorics", "PIL.WebPImagePlugin"),
    *("coterie.sweeps.tuning.search", "coterie.commands.compare", "coterie.commands.report", "coterie.commands.play"),
    *("coterie.export.export", "coterie.commands.league", "coterie.commands.diagnose", "coterie.playing.page"),
)
"""Modules that some commands need, besides those of runs."""

_TAIL = 1500


@dataclass(frozen=True)
class Campaign:
    """Executes the cases of a deck.

    Attributes:
        deck: The cases.
        prepared: Folder of the prepared files.
        folder: Folder of the cases.
        kept: Folder that keeps the folders of failed cases, or None.
    """

    deck: Deck
    prepared: Path
    folder: Path
    kept: Path | None

    def run(self, index: int) -> dict[str, Any]:
        """Executes case `index` and returns its result."""
        case = self.deck.draw(index)
        folder = self.folder / str(index)
        try:
            self._lay_out(case, index, folder / "work")
            ended = fuzz_runs.execute(case.words, folder, serves=case.serves, may_be_long=case.may_be_long)
            failure = fuzz_runs.failure_of(case.command, ended)
            if failure and self.kept:
                shutil.copytree(folder, self.kept / str(index), symlinks=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return {
            "case": index, "command": case.command, "mutation": case.mutation, "kind": _kind(case), "code": ended.code,
            "failure": failure, "cpu": round(ended.cpu, 2), "wall": round(ended.wall, 2), "words": case.words,
            "damaged": case.damaged, "files": case.files, "out": ended.out[-_TAIL:], "err": ended.err[-_TAIL:],
        }  # fmt: skip

    def _lay_out(self, case: Case, index: int, work: Path) -> None:
        """Copies and writes the files of a case, and damages one of them."""
        work.mkdir(parents=True)
        for name in case.needs:
            fuzz_runs.copy(self.prepared / name, work / name)
        for name, text in case.files.items():
            (work / name).write_text(text, errors="surrogateescape")
        if case.damaged is not None:
            name, kind = case.damaged
            others = [
                path for path in self.prepared.rglob("*") if path.is_file() and path.suffix not in {".png", ".svg"}
            ]
            fuzz_files.damage(work / name, kind, random.Random(f"damage/{index}"), sorted(others))


def _kind(case: Case) -> str:
    if case.damaged is None:
        return "settings and words"
    name = Path(case.damaged[0])
    kinds = {".yaml": "YAML", ".jsonl": "metrics", ".safetensors": "safetensors", ".json": "JSON", ".onnx": "ONNX"}
    return f"file: {kinds.get(name.suffix, name.name if not name.name.startswith('0') else 'other')}"


@contextlib.contextmanager
def prepared_folder() -> Iterator[Path]:
    """Yields a folder with a folder `prepared`, which contains the files that cases read."""
    with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as name:
        folder = Path(name)
        work = folder / "prepared" / "work"
        work.mkdir(parents=True)
        for words in preparations():
            ended = fuzz_runs.execute(words, folder / "prepared")
            if ended.code != 0:
                raise RuntimeError(f"{shlex.join(words)} ended with {ended.code}: {ended.out}{ended.err}")
        yield folder


# ----------------------------------------------------------------------------------------------------------- results


def summary(results: list[dict[str, Any]], key: str) -> dict[str, dict[str, int]]:
    """Returns counts of cases, ends and failures for each value of `key`."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        counts = found.setdefault(result[key], Counter())
        counts["cases"] += 1
        end = next((name for name, codes in ENDS.items() if result["code"] in codes), None)
        counts[result["failure"] or end or "?"] += 1
    names = ("cases", *ENDS, *fuzz_runs.FAILURES)
    return {value: {name: counts[name] for name in names} for value, counts in sorted(found.items())}


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    facts = content["machine"]
    failures = Counter(failure["failure"] for failure in content["failures"])
    counted = ", ".join(f"{failures[name]} {name}" for name in fuzz_runs.FAILURES)
    lines = [
        "# Mutated settings and files",
        "",
        f"{content['cases']:,} cases, of {content['settings']:,} settings and {len(content['command_ends'])} commands: "
        f"{counted}. The longest took {content['longest_cpu']:.0f} s of CPU time.",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({facts['revision']}), seed {content['seed']}, {content['date']}. `{content['command']}`",
    ]
    for title, key in (("command", "command_ends"), ("mutation", "mutation_ends"), ("what was mutated", "kind_ends")):
        columns = [title, "cases", *ENDS, "failures of the campaign"]
        rows = [[name, *_cells(counts)] for name, counts in content[key].items()]
        lines += ["", *reporting.table(columns, rows)]
    return "\n".join(lines) + "\n"


def _cells(counts: dict[str, int]) -> list[str]:
    bad = sum(counts[name] for name in fuzz_runs.FAILURES)
    return [f"{n:,}" for n in (counts["cases"], *(counts[name] for name in ENDS), bad)]


def _content(results: list[dict[str, Any]], given: argparse.Namespace, deck: Deck) -> dict[str, Any]:
    """Returns the contents of the file of results."""
    failures = [result for result in results if result["failure"]]
    ends = {f"{key}_ends": summary(results, key) for key in ("command", "mutation", "kind")}
    return {
        **reporting.origin(), "seed": given.seed, "cases": len(results), "settings": deck.settings,
        "longest_cpu": max((result["cpu"] for result in results), default=0.0), **ends, "failures": failures,
    }  # fmt: skip


def _show(result: dict[str, Any], damaged: Sequence[str] | None) -> None:
    print(shlex.join(["coterie", *result["words"]]), result["files"] or "", damaged or "")
    print(f"--- stdout\n{result['out']}\n--- stderr\n{result['err']}")
    print(f"--- code {result['code']}, {result['failure'] or 'as documented'}, {result['cpu']} s of CPU time")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--show", type=int, nargs="+", help="execute only these cases and print their output")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "fuzz.json", help="results as JSON")
    parser.add_argument("--kept", type=Path, help="new folder, which keeps the folders of cases that failed")
    parser.add_argument("--log", type=Path, help="file for the results of all cases, one line of JSON each")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    preload([list(words) for words in run_words() if _is_installed(words)])
    for name in PRELOADED:
        importlib.import_module(name)
    available_library()
    with prepared_folder() as folder:
        deck = Deck(given.seed, folder / "prepared" / "work")
        if given.kept is not None:
            given.kept.mkdir(parents=True)
        campaign = Campaign(deck, folder / "prepared" / "work", folder / "prepared" / "cases", given.kept)
        if given.show:
            for index in given.show:
                result = campaign.run(index)
                _show(result, result["damaged"])
            return 0
        results = list(_all(campaign, given))
    content = _content(results, given, deck)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(given.out, json.dumps(content, indent=1) + "\n")
    write_text(given.out.with_suffix(".md"), page(content))
    print(f"wrote {given.out} and {given.out.with_suffix('.md')}")
    return int(bool(content["failures"]))


def _all(campaign: Campaign, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the results of all cases, prints failures and progress, and writes the log."""
    started, failed = time.monotonic(), 0
    indices = range(given.first, given.first + given.cases)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(given.log.open("w")) if given.log else None
        context = multiprocessing.get_context("fork")
        pool = stack.enter_context(ProcessPoolExecutor(given.jobs, mp_context=context))
        for number, result in enumerate(pool.map(campaign.run, indices), 1):
            failed += result["failure"] is not None
            if log is not None:
                log.write(json.dumps(result) + "\n")
                log.flush()
            if result["failure"]:
                print(f"case {result['case']}: {result['failure']}: {shlex.join(result['words'])[:300]}", flush=True)
            if number % 100 == 0:
                print(f"{number:,} cases, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
            yield result


def _is_installed(words: Sequence[str]) -> bool:
    from coterie.assembly.resolve import resolve
    from coterie.core.errors import ReportedError

    try:
        resolve(list(words))
    except ReportedError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
