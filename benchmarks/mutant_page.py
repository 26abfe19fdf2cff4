"""The page of the mutation campaign's results, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import reporting
from mutant_cases import PACKAGE
from provenance import fingerprint

PACKAGES = ("math", "algos", "nets")
DECLARATIONS = "config.py"
"""End of the names of modules that are left out: nearly all of their mutants are other defaults and limits of settings,
which a test could only repeat.
"""
FIRST, SECOND = "modules", "second"
"""Names of the two samples in the results."""


def score(killed: int, run: int, equivalent: int) -> float | None:
    """Returns the share of the mutants that are not equivalent that were killed, None if there are none."""
    return killed / (run - equivalent) if run > equivalent else None


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    facts, rows, both = content["machine"], content[FIRST], (content[FIRST], content.get(SECOND, {}))
    columns = ["module", "mutants", "run", "killed", "by time limit", "survived", "equivalent", "score"]
    columns += ["before more tests", "revision"]
    sums = [sum(_counts(row)[i] for row in rows.values()) for i in range(6)]
    total = score(sums[2], sums[1], sums[5])
    table = [
        [name, *map(str, _counts(row)), _percent(row["score"]), _percent(first_score(row)), _revision(name, row)]
        for name, row in rows.items()
    ]
    survivors = [f"- {_place(name, entry)}" for rows in both for name, row in rows.items() for entry in row["survived"]]
    equal = [f"- {_place(n, e)}. {e['reason']}" for rows in both for n, row in rows.items() for e in row["equivalent"]]
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
        *_second_sample(content.get(SECOND, {})),
        "## Survivors",
        "",
        *(survivors or ["None."]),
        "",
        "## Equivalent mutants",
        "",
        *(equal or ["None."]),
    ]
    return "\n".join(lines) + "\n"


def _second_sample(rows: dict[str, Any]) -> list[str]:
    """Returns the lines of the page about the second sample, none without rows."""
    if not rows:
        return []
    columns = ["module", "seed", "run", "killed at first", "killed after", "equivalent", "score at first"]
    counts = [_second_counts(row) for row in rows.values()]
    table = [
        [name, str(row["seed"]), *map(str, found), *_second_scores(found), _revision(name, row)]
        for (name, row), found in zip(rows.items(), counts, strict=True)
    ]
    sums = [sum(column) for column in zip(*counts, strict=True)]
    return [
        "## Second sample",
        "",
        "Other mutants than those of the first sample, drawn after tests were added for its survivors. The score at "
        "first says how much the tests find beyond the sample that they were written for. The second revision is "
        "that at which survivors of this sample were repeated, with tests added for them, or with tests that existed "
        "but had not been run for the module. The score after is that of then.",
        "",
        *reporting.table(
            [*columns, "score after", "revision"],
            [*table, ["**all**", "", *map(str, sums), *_second_scores(sums), ""]],
        ),
        "",
    ]


def _second_counts(row: dict[str, Any]) -> list[int]:
    return [row["run"], row.get("first_killed", row["killed"]), row["killed"], len(row["equivalent"])]


def _second_scores(counts: Sequence[int]) -> list[str]:
    run, first, killed, equivalent = counts
    return [_percent(score(number, run, equivalent)) for number in (first, killed)]


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
