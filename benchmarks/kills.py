"""Kills training runs at random moments, resumes them, and compares the results with those of uninterrupted runs.

    python benchmarks/kills.py [--kills 1000] [--seed 0] [--only NAME ...] [--jobs 1] [--out FILE]

Every configuration of `kill_cases` is trained once without interruption. The same run is then started again, killed,
resumed by `coterie resume`, killed again, and so on until it ends, and every bit of both is compared. A run that is
killed before its manifest is written is started again, as the command line recommends. Sweeps and searches are resumed
by the same command. `kill_runs` describes processes and moments: most processes are forks of this one, and about one
kill in twenty hits a genuinely new process.

Moments are drawn from a seeded generator, but the exact instant depends on the speed of the machine. The kills are
distributed equally over the configurations. Writes FILE and a page next to it after each configuration. Kills that FILE
already contains count, so an interrupted campaign continues and a finished one can be extended. Exits with 1 if a
resume failed or a bit differs; --runs keeps the runs in which that happened.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch starts its threads, also in new processes

import reporting
import torch
from kill_cases import configurations, experiments, preparations
from kill_runs import KINDS, NEVER, NEW, PHASES, Moment, differences, draw, forked, new_process, phase_of, unfinished

from coterie.algos import registry as algo_registry
from coterie.core.files import write_text
from coterie.envs import registry as env_registry

HERE = Path(__file__).resolve().parent
NEW_SHARE = 0.05
PRELOADED = (
    *("coterie.cli.app", "coterie.commands.train", "coterie.imitation.recorder", "coterie.envs.external.gymnasium"),
    *("torch._dynamo", "torch.utils.tensorboard", "torch.profiler._cupti_monitor", "matplotlib.pyplot"),
)


@dataclass
class Campaign:
    """The kills of one configuration.

    Attributes:
        words: Settings of the run, without its folder; or the command of an experiment of several runs.
        folder: Folder of the runs.
        seed: Seed of the moments.
        startup: Seconds that a new process needs to import everything.
    """

    words: list[str]
    folder: Path
    seed: str
    startup: float
    kills: int = 0
    runs: int = 0
    failed: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> dict[str, Any]:
        """Kills and resumes runs until there were `kills` kills and the last run has ended; returns the result."""
        started = time.monotonic()
        generator = random.Random(self.seed)
        reference = self.folder / "reference"
        reference.mkdir(parents=True)
        whole = forked(self._words(reference), reference)
        if whole.code != 0:
            raise RuntimeError(f"the uninterrupted run ended with {whole.code}: {whole.output[-2000:]}")
        while self.kills < kills:
            folder = self.folder / f"run{self.runs}"
            self.runs += 1
            folder.mkdir()
            if self._run_to_its_end(folder, kills, generator, whole):
                found = differences(reference / "run", folder / "run")
                self.differ += [f"{folder.name}: {place}" for place in found[:5]]
                if not found:
                    shutil.rmtree(folder)
        return {
            "kills": self.kills, "runs": self.runs, "failed": self.failed, "differ": self.differ,
            "phases": {name: self.phases[name] for name in PHASES}, "kinds": {name: self.kinds[name] for name in KINDS},
            "seconds": round(time.monotonic() - started, 1), "settings": self.words,
        }  # fmt: skip

    def _run_to_its_end(self, folder: Path, kills: int, generator: random.Random, whole: Any) -> bool:
        """Starts, kills and resumes one run. Returns False if a start or resume failed."""
        steps = next(int(word.partition("=")[2]) for word in self.words if word.startswith("steps="))
        while True:
            before = unfinished(folder / "run")
            if self.kills >= kills:
                moment = NEVER
            elif generator.random() < NEW_SHARE:
                moment = Moment(NEW, seconds=generator.uniform(0, self.startup + whole.seconds))
            else:
                moment = draw(generator, whole.seconds, whole.operations)
            ended = (new_process if moment.kind == NEW else forked)(self._words(folder), folder, moment)
            if not ended.killed:
                if ended.code != 0:
                    self.failed.append(f"{folder.name}: exit code {ended.code}: {ended.output[-2000:]}")
                return ended.code == 0
            self.kills += 1
            self.kinds[moment.kind] += 1
            self.phases[PHASES[-1] if self._repeats else phase_of(folder / "run", before, steps)] += 1

    @property
    def _repeats(self) -> bool:
        """True if the command is repeated instead of resuming its run."""
        return "{out}" in " ".join(self.words)

    def _words(self, folder: Path) -> list[str]:
        run = folder / "run"
        if self._repeats:
            return [word.replace("{out}", str(run)) for word in self.words]
        resumes = (run / "manifest.json").exists()
        return ["resume", str(run)] if resumes else ["train", *self.words, f"out={run}"]


def preload(settings: list[list[str]]) -> float:
    """Imports what the runs need, so that forks do not, and returns the seconds that it took."""
    started = time.monotonic()
    torch.set_num_threads(1)
    targets = (*algo_registry.ALGOS.values(), *algo_registry.VARIANTS.values())
    for module in (*PRELOADED, *(target.partition(":")[0] for target in targets)):
        importlib.import_module(module)
    for name in {word[4:] for words in settings for word in words if word.startswith("env=")}:
        env_registry.environment(name)
    return time.monotonic() - started


# ----------------------------------------------------------------------------------------------------------- results


def merged(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of both campaigns of a configuration."""
    sums = {name: earlier[name] + later[name] for name in ("kills", "runs", "failed", "differ", "seconds")}
    counts = {name: {key: n + later[name][key] for key, n in earlier[name].items()} for name in ("phases", "kinds")}
    return later | sums | counts | {"revisions": sorted({*earlier["revisions"], *later["revisions"]})}


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    facts, found = content["machine"], content["found"]
    revisions = ", ".join(sorted({revision for result in found.values() for revision in result["revisions"]}))
    kills, runs = _total(found, "kills"), _total(found, "runs")
    columns = ["configuration", "kills", "runs", "resumes that failed", "runs that differ", *PHASES]
    rows = [
        [name, *(f"{n:,}" for n in (result["kills"], result["runs"], *_bad(result), *result["phases"].values()))]
        for name, result in found.items()
    ]
    bad = [sum(_bad(result)[i] for result in found.values()) for i in (0, 1)]
    phases = [sum(result["phases"][name] for result in found.values()) for name in PHASES]
    rows.append(["**all**", *(f"{n:,}" for n in (kills, runs, *bad, *phases))])
    kinds = [f"{sum(result['kinds'][name] for result in found.values()):,} {name}" for name in KINDS]
    lines = [
        "# Killed runs",
        "",
        f"{kills:,} kills by SIGKILL in {runs:,} runs of {len(found)} configurations: "
        f"{'; '.join(kinds)}. Every run was resumed until it ended and compared bit for bit with an uninterrupted one.",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({revisions}), seed {content['seed']}, {content['date']}. `{content['command']}`",
        "",
        *reporting.table(columns, rows),
    ]
    return "\n".join(lines) + "\n"


def _total(found: dict[str, dict[str, Any]], key: str) -> int:
    return sum(result[key] for result in found.values())


def _bad(result: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of failed resumes and of runs that differ."""
    return len(result["failed"]), len({place.partition(":")[0] for place in result["differ"]})


def row(name: str, result: dict[str, Any]) -> str:
    """Returns a line of progress."""
    failed, differ = _bad(result)
    per_kill = result["seconds"] / max(1, result["kills"])
    phases = " ".join(str(n) for n in result["phases"].values())
    return (
        f"{name:40} {result['kills']:4} kills, failed {failed}, differ {differ}, phases {phases}, {per_kill:.2f} s each"
    )


@contextmanager
def work_folder(kept: Path | None) -> Iterator[Path]:
    """Yields the folder of the runs: `kept`, which must not exist, or a temporary one."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="coterie-kills-") as folder:
            yield Path(folder)
    else:
        kept.mkdir(parents=True)
        yield kept.resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="kills of all configurations together")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs and of the moments")
    parser.add_argument("--only", nargs="*", help="names of configurations")
    parser.add_argument("--jobs", type=int, default=1, help="configurations at the same time")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kills.json", help="results as JSON")
    parser.add_argument("--runs", type=Path, help="new folder, which keeps the runs that failed or differ")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(argv)
    content = json.loads(given.out.read_text()) if given.out.exists() else {"seed": given.seed, "found": {}}
    if content["seed"] != given.seed:
        parser.error(f"--seed: {given.out} contains kills with seed {content['seed']}. Choose another --out.")
    with work_folder(given.runs) as folder:
        cases = configurations(folder) | experiments()
        unknown = set(given.only or ()) - cases.keys()
        if unknown:
            parser.error(f"--only: unknown {', '.join(sorted(unknown))}. Known: {', '.join(cases)}")
        chosen = {name: words for name, words in cases.items() if not given.only or name in given.only}
        startup = preload(list(chosen.values()))
        for words in preparations(folder):
            prepared = forked(words, folder)
            if prepared.code != 0:
                raise RuntimeError(prepared.output)
        print(f"imports take {startup:.1f} s", flush=True)
        _run_all(chosen, given, content, folder=folder, startup=startup)
    return int(any(sum(_bad(result)) for result in content["found"].values()))


def _run_all(
    cases: dict[str, list[str]], given: argparse.Namespace, content: dict[str, Any], *, folder: Path, startup: float
) -> None:
    """Runs the configurations that `content` lacks, and writes the results after each."""
    found = content["found"]
    count, extra = divmod(given.kills, len(cases))
    known = {name: found[name]["kills"] if name in found else 0 for name in cases}
    kills = {name: count + (i < extra) - known[name] for i, name in enumerate(cases)}
    missing = {name: kills[name] for name in cases if kills[name] > 0}
    campaigns = [
        Campaign(
            [*cases[name], *([] if "{out}" in " ".join(cases[name]) else [f"seed={given.seed}"])],
            folder / str(i),
            f"{given.seed}/{name}/{known[name]}",
            startup,
        )
        for i, name in enumerate(missing)
    ]
    facts = reporting.machine()
    content |= {"machine": facts, "date": "", "command": ""}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for name, result in zip(missing, pool.map(Campaign.run, campaigns, missing.values()), strict=True):
            content["date"] = datetime.now().astimezone().date().isoformat()
            result["revisions"] = [facts["revision"]]
            result["settings"] = [word.replace(f"{folder}/", "") for word in result["settings"]]
            found[name] = merged(found[name], result) if name in found else result
            content["command"] = f"python benchmarks/kills.py --kills {_total(found, 'kills')} --seed {given.seed}"
            write_text(given.out, json.dumps(content, indent=1) + "\n")
            write_text(given.out.with_suffix(".md"), page(content))
            print(row(name, result), flush=True)
    print(f"wrote {given.out} and {given.out.with_suffix('.md')}")


if __name__ == "__main__":
    sys.exit(main())
