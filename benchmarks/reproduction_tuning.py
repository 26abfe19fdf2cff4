"""Tunes a family of a published table: every column with the same number of trials, steps and seeds.

    python benchmarks/reproduction_tuning.py matrix            # searches, or continues, and writes the results
    python benchmarks/reproduction_tuning.py matrix --collect  # writes the results of the searches so far

The seeds are not among those that the table reports. Each search starts from the settings of the table's file at that
revision, and varies the learning rate and the setting that decides how long the algorithm explores. The best trials
become the family's configurations in `config/tables`, for all of its rows. Writes TABLE-tuning.json and .md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning import RESULTS, RUNS
from reporting import in_words, origin, table, whole_number

from coterie.cli.job_gate import job_gate
from coterie.reports import published
from coterie.reports.published import PublishedTable
from coterie.sweeps.tuning.report import report_of
from coterie.sweeps.tuning.search import tune
from coterie.sweeps.tuning.study import TunePlan, make_plan, open_study

TABLE = "papoudakis2021"
SEEDS = "1000,1001"


@dataclass(frozen=True)
class Family:
    """Search of a family.

    Attributes:
        row: Row on which it is tuned.
        steps: Environment steps of a run.
        trials: Trials of each column. The first one has the settings of the table's file.
        ranges: Ranges by algorithm.
    """

    row: str
    steps: int
    trials: int
    ranges: Mapping[str, tuple[str, ...]]


_ENTROPY = ("algo.lr=log(1e-3,1e-2)", "algo.entropy_coef=log(0.3,10)")
_EPSILON = ("algo.lr=log(1e-3,1e-2)", "algo.epsilon_decay_steps=log(1e4,2e5)")
FAMILIES = {
    "matrix": Family(
        row="climbing",
        steps=200_000,
        trials=12,
        ranges={
            **dict.fromkeys(("ippo", "mappo", "coma", "ia2c", "maa2c"), _ENTROPY),
            **dict.fromkeys(("iql", "vdn", "qmix"), _EPSILON),
            "maddpg": ("algo.lr=log(1e-3,1e-2)", "algo.random_steps=log(5e3,1e5)"),
        },
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--algo", default="", help="columns, separated by commas; all by default")
    parser.add_argument("--steps", type=int, help="steps of each run, for a test")
    parser.add_argument("--trials", type=int, help="trials of each column, for a test")
    parser.add_argument("--collect", action="store_true", help="collect results instead of searching")
    parser.add_argument("--runs", type=Path, default=RUNS / "reproduction_tuning", help="folder of the studies")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output folder")
    given = parser.parse_args(argv)
    family, chosen = FAMILIES[given.family], published.load(TABLE)
    trials = given.trials or family.trials
    algorithms = [name for name in chosen.algorithms if not given.algo or name in given.algo.split(",")]
    made = origin()
    plans = {algo: plan(chosen, family, algo, given) for algo in algorithms}
    if not given.collect:
        gate = job_gate()
        gate.preload()
        for one in plans.values():
            if code := tune(one, trials=trials, prunes=False, gate=gate):
                return code
    written = given.results / f"{TABLE}-tuning.json"
    known = json.loads(written.read_text())["families"] if written.exists() else {}
    known[given.family] = known.get(given.family, {}) | {algo: result(one) for algo, one in plans.items()}
    content = {**made, "families": known}
    given.results.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(content, indent=2) + "\n")
    written.with_suffix(".md").write_text(page(content))
    print(written.with_suffix(".md"))
    return 0


def plan(chosen: PublishedTable, family: Family, algo: str, given: argparse.Namespace) -> TunePlan:
    """The search of a column."""
    words = [*chosen.settings(chosen.row(family.row), algo, given.steps or family.steps), *family.ranges[algo]]
    out = given.runs / given.family / algo
    return make_plan([*words], seeds=SEEDS, out=out)


def result(done: TunePlan) -> dict[str, Any]:
    """Trials of a search, the best one, and where they ran."""
    report = report_of(done, open_study(done))
    manifests = [json.loads((Path(run) / "manifest.json").read_text()) for t in report["trials"] for run in t["runs"]]
    return {
        "command": ["coterie", "tune", *done.words, *(f"{key}={value}" for key, value in report["space"].items())],
        "seeds": report["seeds"],
        "steps": done.resolved.config.steps,
        "env": done.resolved.config.env.name,
        "revisions": sorted({m["git"]["revision"][:10] + "*" * m["git"]["modified"] for m in manifests}),
        "machines": sorted({in_words({**m["hardware"], **m["versions"]}) for m in manifests}),
        "dates": sorted({m["started"][:10] for m in manifests}),
        **{key: report[key] for key in ("space", "default", "best")},
        "trials": [{key: trial[key] for key in ("trial", "state", "settings", "values")} for trial in report["trials"]],
    }


def page(content: Mapping[str, Any]) -> str:
    """Results as Markdown."""
    lines = ["# Tuning of the families", ""]
    for name, columns in content["families"].items():
        first = next(iter(columns.values()))
        machines = "; ".join(sorted({one for column in columns.values() for one in column["machines"]}))
        revisions = ", ".join(sorted({one for column in columns.values() for one in column["revisions"]}))
        dates = ", ".join(sorted({one for column in columns.values() for one in column["dates"]}))
        lines += [
            f"## {name}",
            "",
            f"Mean return on {first['env']} in the last evaluation of {whole_number(first['steps'])} steps, seeds "
            f"{', '.join(map(str, first['seeds']))}. Every column has the same number of trials. The first one has the "
            f"settings that the family had before. Trained on {machines} ({revisions}), {dates}, by "
            f"`{content['command']}`.",
            "",
            *table(["algo", "trials", "first trial", "best trial", "its settings", "searched"], rows(columns)),
            "",
        ]
    return "\n".join(lines)


def rows(columns: Mapping[str, Any]) -> list[list[str]]:
    """A line per column."""
    return [
        [
            algo,
            str(len(column["trials"])),
            f"{column['default']['value']:.4g}",
            f"{column['best']['value']:.4g}",
            " ".join(f"`{key}={_short(value)}`" for key, value in column["best"]["settings"].items())
            or "the first ones",
            " ".join(f"`{key}={value}`" for key, value in column["space"].items()),
        ]
        for algo, column in columns.items()
    ]


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
