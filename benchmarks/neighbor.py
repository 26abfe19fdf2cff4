"""Speed of training while another process keeps one core busy.

    python benchmarks/neighbor.py [--rounds 5] [--seconds 20] [--results FOLDER]

Each sample is a run of `coterie train` in its own process, stopped after --seconds; the last third of this time counts.
The neighbor is an endless loop in one thread. It starts before the run, or after the first third of the time. The cases
are interleaved. Writes neighbor.json and neighbor.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

from reporting import in_words, origin, table, whole_number

HERE = Path(__file__).resolve().parent
SETTINGS = ("algo=ippo/yardstick", "env=particle/simple_spread", "device=cpu", "steps=1G", "eval.every=0")
NEIGHBOR = "while True: pass"


@dataclass(frozen=True)
class Case:
    """One measured situation.

    Attributes:
        threads: Setting of the run.
        neighbor: When the other process starts, as a share of the run's time; None for none, -1 for before the run.
    """

    threads: str
    neighbor: float | None = None


CASES = {
    "one thread, alone": Case("1"),
    "`threads=auto`, alone": Case("auto"),
    "one thread, busy neighbor": Case("1", -1),
    "`threads=auto`, busy neighbor": Case("auto", -1),
    "`threads=auto`, busy neighbor later": Case("auto", 1 / 3),
    "two threads, busy neighbor later": Case("2", 1 / 3),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="samples per case")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of one sample")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    given = parser.parse_args(argv)
    made = origin()
    speeds: dict[str, list[float]] = {name: [] for name in CASES}
    for number in range(given.rounds):
        for name, case in CASES.items():
            speeds[name].append(sample(case, given.seconds))
            print(f"round {number + 1} of {given.rounds}: {name}, {whole_number(speeds[name][-1])} steps/s", flush=True)
    content = {**made, "rounds": given.rounds, "seconds": given.seconds, "steps_per_s": speeds}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "neighbor.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "neighbor.md").write_text(page(content))
    print(given.results / "neighbor.md")
    return 0


def sample(case: Case, seconds: float) -> float:
    """Environment steps per second of a run in the last third of its time.

    The time begins with the first log entry, so that the import and the measurement of `threads=auto` do not count.
    """
    neighbor = _neighbor() if case.neighbor == -1 else None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run/metrics.jsonl"
        words = [*SETTINGS, f"threads={case.threads}", "progress=off", f"out={log.parent}"]
        run = subprocess.Popen([sys.executable, "-m", "coterie", "train", *words], stdout=DEVNULL, stderr=DEVNULL)
        try:
            while not log.exists() or not log.stat().st_size:
                if run.poll() is not None:
                    raise RuntimeError(f"the run ended with {run.returncode}")
                time.sleep(0.05)
            if case.neighbor is not None and case.neighbor >= 0:
                time.sleep(seconds * case.neighbor)
                neighbor = _neighbor()
            time.sleep(seconds * (1 - max(0.0, case.neighbor or 0.0)))
        finally:
            run.send_signal(signal.SIGINT)
            run.wait()
            if neighbor is not None:
                neighbor.kill()
                neighbor.wait()
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows = [row for row in rows if "time/steps_per_s" in row]
    *earlier, last = rows
    first = next((row for row in earlier if row["time/wall_s"] >= last["time/wall_s"] - seconds / 3), earlier[-1])
    return (last["steps"] - first["steps"]) / (last["time/wall_s"] - first["time/wall_s"])


def _neighbor() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", NEIGHBOR])


def page(content: dict[str, object]) -> str:
    """Results as Markdown."""
    speeds: dict[str, list[float]] = content["steps_per_s"]  # pyright: ignore[reportAssignmentType]
    alone = speeds["one thread, alone"]
    lines = []
    for name, found in speeds.items():
        ratios = [mine / one for mine, one in zip(found, alone, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append([name, whole_number(statistics.median(found)), f"**{statistics.median(ratios):.2f}**", spread])
    machine: dict[str, object] = content["machine"]  # pyright: ignore[reportAssignmentType]
    return "\n".join(
        [
            "# Training beside a busy process",
            "",
            f"{in_words(machine)} ({machine['revision']}), {content['date']}. `{content['command']}`",
            "",
            f"IPPO on simple spread (`{' '.join(SETTINGS[:2])}`), {content['rounds']} rounds of "
            f"{content['seconds']:g} s. *Ratio*: to one thread alone in the same round, median and range.",
            "",
            *table(["case", "steps/s", "ratio", "lowest to highest"], lines),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
