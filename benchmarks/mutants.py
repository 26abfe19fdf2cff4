"""Changes one place of a module at a time and counts the changes that its tests detect.

    python benchmarks/mutants.py [--only MODULE ...] [--sample 40] [--seed 0] [--out FILE]
    python benchmarks/mutants.py --survivors     # repeats only the mutants that survived, after tests were added
    python benchmarks/mutants.py --second        # draws other mutants of modules that have a result
    python benchmarks/mutants.py --write         # writes the page again, which marks modules that changed since

Cosmic Ray (`pip install 'coterie[mutation]'`) makes the mutants: other operators, comparisons and constants, conditions
negated, loops without iterations, decorators removed. Annotations are left out. It does not change strings, so
docstrings and the texts of messages have no mutants. `mutant_cases` lists the modules and the tests that answer for
each. A module with more mutants than --sample gets a random sample, drawn such that as many places as possible change.

Tests that are added for survivors raise the score of their sample more than that of other mutants. A second sample
(--second, and --second --survivors) leaves out the mutants of the first one and tells how far the score carries over.

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
from mutant_page import FIRST, SECOND, is_current, line, page, score
from mutant_runs import SURVIVED, TIMEOUT, Nursery, Trial, Verdict
from provenance import fingerprint

from coterie.core.files import write_text

HERE = Path(__file__).resolve().parent
EQUIVALENTS = HERE / "mutant_equivalents.json"
GOAL = 0.95
_FIRST_LIMIT = 600.0
_DIGITS = 12


@dataclass(frozen=True)
class Plan:
    """Number of mutants per module, the seed of the sample, and an earlier sample whose mutants are left out."""

    sample: int
    seed: int
    without: Plan | None = None


def equivalents() -> dict[str, list[dict[str, str]]]:
    """Returns the mutants that no test can kill, by module: where, before, after, reason."""
    return json.loads(EQUIVALENTS.read_text(encoding="utf-8"))


def reason(module: str, mutant: Mutant) -> str | None:
    """Returns the reason for which a mutant is equivalent, or None if none is known."""
    key = {"where": mutant.where, "before": mutant.before, "after": mutant.after}
    found = [entry["reason"] for entry in equivalents().get(module, ()) if key.items() <= entry.items()]
    return found[0] if found else None


def draw(module: str, plan: Plan) -> tuple[list[Mutant], int]:
    """Returns the sample of a module's mutants, and the number that the module has."""
    source, seed = (PACKAGE / module).read_text(encoding="utf-8"), f"{plan.seed}/{module}"
    if plan.without is None:
        return sample(source, plan.sample, seed)
    earlier = {mutant.source for mutant in draw(module, plan.without)[0]}
    mutants, total = sample(source, plan.sample + len(earlier), seed)
    return [mutant for mutant in mutants if mutant.source not in earlier][: plan.sample], total


def measure(module: str, plan: Plan, only: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Runs the tests of a module against a sample of its mutants and returns the result.

    Args:
        module: File of the module, relative to the package.
        plan: The sample.
        only: Survivors of an earlier result; if given, only these mutants of the sample are run.

    Raises:
        RuntimeError: If the tests fail without a mutant, before or after the others.
        ValueError: If `only` are at other lines now.
    """
    mutants, total = draw(module, plan)
    if only is not None:
        known = [(entry["line"], entry["where"], entry["before"], entry["after"]) for entry in only]
        mutants = [m for m in mutants if (m.line, m.where, m.before, m.after) in known]
        if len(mutants) != len(known):
            raise ValueError(f"{module}: lines have moved since. Run all of its mutants again.")
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
    if plan.without is not None:
        row["without"] = {"sample": plan.without.sample, "seed": plan.without.seed}
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


def hashes(module: str) -> dict[str, str]:
    """Returns the fingerprints of a module and of its tests, which depend on neither comments nor formatting."""
    tests = "".join(fingerprint((ROOT / name).read_text(encoding="utf-8")) for name in tests_of(module))
    found = fingerprint((PACKAGE / module).read_text(encoding="utf-8"))
    return {"module_hash": found, "tests_hash": hashlib.sha256(tests.encode()).hexdigest()[:_DIGITS]}


def _save(out: Path, content: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    order = list(CASES)
    for name in {FIRST, SECOND} & set(content):
        content[name] = dict(sorted(content[name].items(), key=lambda item: order.index(item[0])))
    write_text(out, json.dumps(content, indent=1) + "\n")
    write_text(out.with_suffix(".md"), page(content))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="files of modules, relative to the package, or their folders")
    parser.add_argument("--sample", type=int, default=40, help="most mutants of a module")
    parser.add_argument("--seed", type=int, help="seed of the samples; by default 0, or 1 of the second sample")
    parser.add_argument("--survivors", action="store_true", help="repeat only those that survived")
    parser.add_argument("--second", action="store_true", help="the sample is a second one, without the first's mutants")
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
    content = json.loads(given.out.read_text()) if given.out.exists() else {FIRST: {}}
    if given.write:
        for part in {FIRST, SECOND} & set(content):
            rows = content[part].items()  # known equivalents are those of the present code, so older rows stay
            content[part] = {name: classified(name, row) if is_current(name, row) else row for name, row in rows}
        _save(given.out, content)
        return 0
    return _run_all(chosen, given, content)


def _plan(module: str, given: argparse.Namespace, content: dict[str, Any]) -> Plan:
    """Returns the sample that the arguments ask for.

    Raises:
        ValueError: If it is a second one, but the first one is missing or was one of other code.
    """
    if not given.second:
        return Plan(given.sample, given.seed or 0)
    first = content[FIRST].get(module)
    if first is None or not is_current(module, first):
        raise ValueError(f"{module} has no first sample of its present code. Run that at first.")
    return Plan(given.sample, 1 if given.seed is None else given.seed, Plan(first["sample"], first["seed"]))


def _run_all(chosen: Sequence[str], given: argparse.Namespace, content: dict[str, Any]) -> int:
    """Measures modules, prints their survivors, and writes the results after each."""
    facts, below = reporting.machine(), False
    part = SECOND if given.second else FIRST
    for module in chosen:
        rows = content.setdefault(part, {})
        if given.survivors:
            earlier = rows.get(module, {"survived": []})
            if not earlier["survived"]:
                continue
            without = Plan(**earlier["without"]) if given.second else None
            plan, only = Plan(earlier["sample"], earlier["seed"], without), earlier["survived"]
        else:
            plan, only = _plan(module, given, content), None
        row = measure(module, plan, only)
        if only is not None:
            row = classified(module, merged(rows[module], row))
        print(line(module, row), flush=True)
        for entry in (*row["survived"], *row["killed_though_called_equivalent"]):
            print(f"    line {entry['line']}, {entry['where']}\n      - {entry['before']}\n      + {entry['after']}")
        below |= bool(row["killed_though_called_equivalent"]) or (row["score"] is not None and row["score"] < GOAL)
        date = datetime.now().astimezone().date().isoformat()
        rows[module] = row | {"date": date}
        content |= {"machine": facts, "date": date, "cosmic_ray": version("cosmic-ray")}
        if not given.second:
            content["command"] = f"python benchmarks/mutants.py --seed {plan.seed}"
        _save(given.out, content)
    return int(below)


if __name__ == "__main__":
    sys.exit(main())
