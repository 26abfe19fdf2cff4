"""Changes one place of a module at a time and counts the changes that its tests detect.

    python benchmarks/mutants.py [--only MODULE ...] [--sample 40] [--seed 0] [--out FILE]
    python benchmarks/mutants.py --survivors     # repeats only the mutants that survived, after tests were added
    python benchmarks/mutants.py --write         # writes the page again, which marks modules that changed since

Cosmic Ray (`pip install 'coterie[mutation]'`) makes the mutants: other operators, comparisons and constants, conditions
negated, loops without iterations, decorators removed. Annotations are left out. It does not change strings, so
docstrings and the texts of messages have no mutants. `mutant_cases` lists the modules and the tests that answer for
each. A module with more mutants than --sample gets a random sample, drawn such that as many places as possible change.

A mutant is killed if a test fails or if the tests take much longer than without it. `mutant_equivalents.json` lists
survivors that no test can kill, each with the reason; they do not count in the score. Writes FILE and a page next to it
after each module. Exits with 1 if less than 95% of the other mutants of a module were killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import reporting
from mutant_cases import CASES, PACKAGE, ROOT, Mutant, sample, tests_of
from mutant_runs import SURVIVED, TIMEOUT, Nursery, Trial, Verdict
from provenance import fingerprint

from coterie.core.files import write_text

HERE = Path(__file__).resolve().parent
EQUIVALENTS = HERE / "mutant_equivalents.json"
PACKAGES = ("math", "algos", "nets")
DECLARATIONS = "config.py"
"""End of the names of modules that are left out: nearly all of their mutants are other defaults and limits of settings,
which a test could only repeat.
"""
GOAL = 0.95
_FIRST_LIMIT = 600.0
_DIGITS = 12


@dataclass(frozen=True)
class Plan:
    """Number of mutants per module and the seed of the sample."""

    sample: int
    seed: int


def equivalents() -> dict[str, list[dict[str, str]]]:
    """Returns the mutants that no test can kill, by module: where, before, after, reason."""
    return json.loads(EQUIVALENTS.read_text(encoding="utf-8"))


def reason(module: str, mutant: Mutant) -> str | None:
    """Returns the reason for which a mutant is equivalent, or None if none is known."""
    key = {"where": mutant.where, "before": mutant.before, "after": mutant.after}
    found = [entry["reason"] for entry in equivalents().get(module, ()) if key.items() <= entry.items()]
    return found[0] if found else None


def measure(module: str, plan: Plan, only: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Runs the tests of a module against a sample of its mutants and returns the result.

    Args:
        module: File of the module, relative to the package.
        plan: Size and seed of the sample.
        only: Survivors of an earlier result; if given, only these mutants of the sample are run.

    Raises:
        RuntimeError: If the tests fail without a mutant, before or after the others.
    """
    source = (PACKAGE / module).read_text(encoding="utf-8")
    mutants, total = sample(source, plan.sample, f"{plan.seed}/{module}")
    if only is not None:
        known = [(entry["where"], entry["before"], entry["after"]) for entry in only]
        mutants = [mutant for mutant in mutants if (mutant.where, mutant.before, mutant.after) in known]
    started, found = time.monotonic(), {"revision": revision(module), **hashes(module)}
    verdicts = _verdicts(module, mutants)
    survived, wrong = [], []
    for mutant, verdict in zip(mutants, verdicts, strict=True):
        entry: dict[str, Any] = {"line": mutant.line, "where": mutant.where}
        entry |= {"before": mutant.before, "after": mutant.after}
        if verdict.result == SURVIVED:
            survived.append(entry)
        elif reason(module, mutant) is not None:
            wrong.append(entry)
    row = {
        "mutants": total, "run": len(mutants), "killed": sum(verdict.result != SURVIVED for verdict in verdicts),
        "timeouts": sum(verdict.result == TIMEOUT for verdict in verdicts),
        "survived": survived, "equivalent": [], "killed_though_called_equivalent": wrong,
        "sample": plan.sample, "seed": plan.seed, "seconds": round(time.monotonic() - started, 1),
        "tests": tests_of(module), "marks": CASES[module].marks, "names": CASES[module].names, **found,
    }  # fmt: skip
    return classified(module, row)


def merged(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Returns a result with its survivors replaced by what became of them when they were repeated.

    Raises:
        ValueError: If the module has changed in between, so that the others would have to be repeated as well.
    """
    if earlier["module_hash"] != later["module_hash"]:
        raise ValueError("the module has changed since. Run all of its mutants again.")
    killed = earlier["killed"] + later["killed"]
    return earlier | {
        "killed": killed, "first_killed": earlier.get("first_killed", earlier["killed"]),
        "timeouts": earlier["timeouts"] + later["timeouts"],
        "survived": [*later["survived"], *later["equivalent"]],
        "killed_though_called_equivalent": later["killed_though_called_equivalent"], "repeated": later["revision"],
        "tests": later["tests"], "marks": later["marks"], "names": later["names"], "tests_hash": later["tests_hash"],
    }  # fmt: skip


def classified(module: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a result with those survivors marked as equivalent for which there is a reason by now."""
    survived, equivalent = [], []
    for entry in (*row["survived"], *row["equivalent"]):
        entry = {name: entry[name] for name in ("line", "where", "before", "after")}
        why = reason(module, Mutant(**entry, source=""))
        (survived if why is None else equivalent).append(entry | ({} if why is None else {"reason": why}))
    found = score(row["killed"], row["run"], len(equivalent))
    return row | {"survived": survived, "equivalent": equivalent, "score": found}


def _verdicts(module: str, mutants: Sequence[Mutant]) -> list[Verdict]:
    case = CASES[module]
    name = ".".join(("coterie", *Path(module).with_suffix("").parts))

    def trial(source: str | None, limit: float) -> Trial:
        return Trial(name, source, tests_of(module), case.marks, limit=limit, names=case.names)

    nursery = Nursery()
    try:
        for _ in range(2):  # the first one imports, so that the second one tells how long the tests take
            control = nursery.run(trial(None, _FIRST_LIMIT))
            _check(module, control)
        limit = _limit(control.seconds)
        found = [nursery.run(trial(mutant.source, limit)) for mutant in mutants]
        _check(module, nursery.run(trial(None, limit)))
    finally:
        nursery.close()
    return found


def _limit(seconds: float) -> float:
    """Returns the time limit of tests that take `seconds` without a mutant."""
    return 15 + 8 * seconds


def _check(module: str, control: Verdict) -> None:
    if control.result != SURVIVED:
        raise RuntimeError(f"{module}: the tests fail without a mutant: {control.output}")


def revision(module: str) -> str:
    """Returns the present revision, with a note if the module or its tests have changes that are not committed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    changes = git("status", "--porcelain", "--", str(PACKAGE / module), *tests_of(module))
    return git("rev-parse", "--short=10", "HEAD") + (" and changes" if changes else "")


def score(killed: int, run: int, equivalent: int) -> float | None:
    """Returns the share of the mutants that are not equivalent that were killed, None if there are none."""
    return killed / (run - equivalent) if run > equivalent else None


def hashes(module: str) -> dict[str, str]:
    """Returns the fingerprints of a module and of its tests, which depend on neither comments nor formatting."""
    tests = "".join(fingerprint((ROOT / name).read_text(encoding="utf-8")) for name in tests_of(module))
    found = fingerprint((PACKAGE / module).read_text(encoding="utf-8"))
    return {"module_hash": found, "tests_hash": hashlib.sha256(tests.encode()).hexdigest()[:_DIGITS]}


# ----------------------------------------------------------------------------------------------------------- the page


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    facts, rows = content["machine"], content["modules"]
    columns = ["module", "mutants", "run", "killed", "by time limit", "survived", "equivalent", "score"]
    columns += ["before more tests", "revision"]
    sums = [sum(_counts(row)[i] for row in rows.values()) for i in range(6)]
    total = score(sums[2], sums[1], sums[5])
    table = [
        [name, *map(str, _counts(row)), _percent(row["score"]), _percent(first_score(row)), _revision(name, row)]
        for name, row in rows.items()
    ]
    survivors = [f"- {_place(name, entry)}" for name, row in rows.items() for entry in row["survived"]]
    equal = [f"- {_place(n, entry)}. {entry['reason']}" for n, row in rows.items() for entry in row["equivalent"]]
    lines = [
        "# Mutants",
        "",
        f"{reporting.in_words(facts)}, Python {facts['python']}, Cosmic Ray {content['cosmic_ray']}, "
        f"{content['date']}. `{content['command']}`",
        "",
        "A module with more mutants than were run has a random sample of this size (`--sample`). The score is the "
        "share of killed mutants among those that are not equivalent. A second revision is that at which only the "
        "survivors were repeated, after tests were added; the score before that, where it was kept, says more about "
        "mutants outside the sample. Parentheses mean that the module's code has changed since.",
        "",
        *reporting.table(columns, [*table, ["**all**", *map(str, sums), _percent(total), "", ""]]),
        "",
        f"Not measured yet: {', '.join(f'`{name}`' for name in unmeasured(rows)) or 'none'}. Modules of settings "
        f"(`*{DECLARATIONS}`) are left out: nearly all of their mutants are other defaults and limits, which a test "
        "could only repeat.",
        "",
        "## Survivors",
        "",
        *(survivors or ["None."]),
        "",
        "## Equivalent mutants",
        "",
        *(equal or ["None."]),
    ]
    return "\n".join(lines) + "\n"


def unmeasured(rows: dict[str, Any]) -> list[str]:
    """Returns the modules of the packages of the campaign that have no result, apart from those of settings."""
    paths = sorted(path for package in PACKAGES for path in (PACKAGE / package).rglob("*.py") if path.name[0] != "_")
    names = [path.relative_to(PACKAGE).as_posix() for path in paths]
    return [name for name in names if name not in rows and not name.endswith(DECLARATIONS)]


def _counts(row: dict[str, Any]) -> list[int]:
    counts = [row[name] for name in ("mutants", "run", "killed", "timeouts")]
    return [*counts, len(row["survived"]), len(row["equivalent"])]


def first_score(row: dict[str, Any]) -> float | None:
    """Returns the score before tests for survivors of the sample were added, None if it was not kept."""
    killed = row.get("first_killed", None if "repeated" in row else row["killed"])
    return None if killed is None else score(killed, row["run"], len(row["equivalent"]))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def is_current(module: str, row: dict[str, Any]) -> bool:
    """Returns True if the code of a module is that of its result."""
    path = PACKAGE / module
    return path.is_file() and fingerprint(path.read_text(encoding="utf-8")) == row["module_hash"]


def _revision(module: str, row: dict[str, Any]) -> str:
    revisions = row["revision"] + (f", {row['repeated']}" if "repeated" in row else "")
    return revisions if is_current(module, row) else f"({revisions})"


def _place(module: str, entry: dict[str, Any]) -> str:
    change = f"`` {entry['before']} `` becomes `` {entry['after']} ``" if entry["after"] else f"no `{entry['before']}`"
    return f"`{module}`, `{entry['where']}`: {change}"


def line(module: str, row: dict[str, Any]) -> str:
    """Returns a line of progress."""
    mutants, run, killed, late, survived, equivalent = _counts(row)
    return (
        f"{module:32} {run} of {mutants}: killed {killed} ({late} by time limit), survived {survived}, "
        f"equivalent {equivalent}, score {_percent(row['score'])}, {row['seconds']:.0f} s"
    )


def _save(out: Path, content: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    order = list(CASES)
    content["modules"] = dict(sorted(content["modules"].items(), key=lambda item: order.index(item[0])))
    write_text(out, json.dumps(content, indent=1) + "\n")
    write_text(out.with_suffix(".md"), page(content))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="files of modules, relative to the package, or their folders")
    parser.add_argument("--sample", type=int, default=40, help="most mutants of a module")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    parser.add_argument("--survivors", action="store_true", help="repeat only those that survived")
    parser.add_argument("--write", action="store_true", help="write the page again; runs nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "mutants.json", help="results as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(argv)
    only = given.only or list(CASES)
    chosen = [name for name in CASES if any(name == word or name.startswith(f"{word}/") for word in only)]
    unknown = [word for word in only if not any(name == word or name.startswith(f"{word}/") for name in CASES)]
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}. Known: {', '.join(CASES)}")
    content = json.loads(given.out.read_text()) if given.out.exists() else {"modules": {}}
    if given.write:
        rows = content["modules"].items()  # known equivalents are those of the present code, so older rows stay
        content["modules"] = {name: classified(name, row) if is_current(name, row) else row for name, row in rows}
        _save(given.out, content)
        return 0
    return _run_all(chosen, given, content)


def _run_all(chosen: Sequence[str], given: argparse.Namespace, content: dict[str, Any]) -> int:
    """Measures modules, prints their survivors, and writes the results after each."""
    facts, below = reporting.machine(), False
    for module in chosen:
        plan, only = Plan(given.sample, given.seed), None
        if given.survivors:
            earlier = content["modules"].get(module, {"survived": []})
            if not earlier["survived"]:
                continue
            plan, only = Plan(earlier["sample"], earlier["seed"]), earlier["survived"]
        row = measure(module, plan, only)
        if only is not None:
            row = classified(module, merged(content["modules"][module], row))
        print(line(module, row), flush=True)
        for entry in (*row["survived"], *row["killed_though_called_equivalent"]):
            print(f"    line {entry['line']}, {entry['where']}\n      - {entry['before']}\n      + {entry['after']}")
        below |= bool(row["killed_though_called_equivalent"]) or (row["score"] is not None and row["score"] < GOAL)
        date = datetime.now().astimezone().date().isoformat()
        content["modules"][module] = row | {"date": date}
        command = f"python benchmarks/mutants.py --seed {given.seed}"
        content |= {"machine": facts, "date": date, "command": command, "cosmic_ray": version("cosmic-ray")}
        _save(given.out, content)
    return int(below)


if __name__ == "__main__":
    sys.exit(main())
