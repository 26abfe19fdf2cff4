"""Steps a second of worlds and of training, each beside the yardstick, so that figures of different machines compare.

    python benchmarks/speed.py                        # every row: about 20 minutes
    python benchmarks/speed.py --only ippo --rounds 3 --seconds 5
    python benchmarks/speed.py --yardstick other.py   # another script that takes SECONDS and prints steps a second

Cores of shared machines are taken away for seconds at a time. So every sample is a process of its own with the
yardstick run beside it, rows take turns for several rounds, and the result is the upper quartile of the speeds;
samples whose yardstick fell below half of its best (a storm) are left out and counted. Writes speed.json, speed.md and
speed.png.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from reporting import machine, table, whole_number

from coterie.errors import UserError, nearest
from coterie.schema import available_cores

HERE = Path(__file__).resolve().parent
STORM = 0.5
"""Samples beside a yardstick slower than this part of its best are left out."""
AS_COTERIE = {"GOMP_SPINCOUNT": "3000"}
"""What the command `coterie` sets before PyTorch is loaded; the yardstick runs with PyTorch's own default."""

_RECURRENT = (
    *("algo=mappo", "algo.memory=gru", "algo.memory_size=128", "algo.hidden=[128]", "algo.critic=joint"),
    *("algo.epochs=4", "algo.minibatches=4", "algo.horizon=128", "algo.sequence=128", "copies=128"),
)
_EPISODES = (
    *("algo=qmix", "algo.memory=gru", "algo.memory_size=64", "algo.hidden=[64]", "algo.last_action=true"),
    *("algo.n_step=1", "algo.batch=32", "algo.horizon=26", "algo.learning_starts=1000", "algo.replay=130000"),
)
"""Recurrent QMIX: 32 whole episodes of 26 rows a gradient step."""


@dataclass(frozen=True)
class Row:
    """One line of the table. kind: `world`, the environment alone with random actions, or `train`, the whole loop.

    least, stretch: what is asked of it, in steps a second, or in yardsticks if `relative`.
    """

    name: str
    kind: str
    overrides: tuple[str, ...]
    meaning: str
    least: float | None = None
    stretch: float | None = None
    relative: bool = False


def _rows() -> list[Row]:
    import torch

    rows = [
        Row(f"world-{copies}", "world", (f"copies={copies}", "algo=random", "device=cpu"), meaning, least, stretch)
        for copies, meaning, least, stretch in (
            (128, "simple_spread alone, 128 copies", 0.5e6, 1.2e6),
            (1024, "simple_spread alone, 1,024 copies", 1.5e6, 3.5e6),
            (8192, "simple_spread alone, 8,192 copies", 2.5e6, 5e6),
        )
    ]
    rows += [
        Row("ippo", "train", ("algo=ippo/yardstick", "device=cpu"), "IPPO, the yardstick's work", 0.9, 1.6, True),
        Row("rmappo", "train", (*_RECURRENT, "device=cpu"), "recurrent MAPPO, GRU 128", 5000, 9000),
        Row(
            "rqmix",
            "train",
            (*_EPISODES, "copies=8", "algo.updates=1", "device=cpu"),
            "recurrent QMIX, GRU 64, 8 copies, a gradient step every 208 steps",
            10_000,
            16_000,
        ),
        Row(
            "rqmix-128",
            "train",
            (*_EPISODES, "copies=128", "algo.updates=16", "device=cpu"),
            "the same with 128 copies: 16 gradient steps every 3,328 steps",
        ),
        Row(
            "coma-original",
            "train",
            ("algo=coma/original", "algo.horizon=510", "device=cpu"),
            "COMA, the original's settings, an update every 500 steps of all copies",
            20_000,
        ),
        Row("coma-original-50", "train", ("algo=coma/original", "device=cpu"), "the same, an update every 50"),
        Row(
            "maddpg-original",
            "train",
            ("algo=maddpg/original", "algo.horizon=500", "device=cpu"),
            "MADDPG, the original's settings, an update every 500 steps of all copies",
            20_000,
        ),
        Row("maddpg-original-100", "train", ("algo=maddpg/original", "device=cpu"), "the same, an update every 100"),
    ]
    if torch.cuda.is_available():
        big = ("copies=16384", "device=cuda")
        rows += [
            Row("ippo-cuda", "train", ("algo=ippo/yardstick", "device=cuda"), "IPPO on CUDA, 128 copies"),
            Row("ippo-cuda-16k", "train", ("algo=ippo/yardstick", *big), "IPPO on CUDA, 16,384 copies", None, 3e6),
            Row("rmappo-cuda", "train", (*_RECURRENT, "device=cuda"), "recurrent MAPPO on CUDA, 128 copies"),
            Row("rmappo-cuda-16k", "train", (*_RECURRENT, *big), "recurrent MAPPO on CUDA, 16,384", None, 5e5),
        ]
    return rows


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.sample is not None:
        print(json.dumps(sample(_row(given.sample), given.seconds, given.threads)))
        return 0
    rows = [_row(name) for name in given.only] or _rows()
    results = [gather(row, samples) for row, samples in measure(rows, given).items()]
    content = {
        "machine": machine(),
        "date": datetime.now().astimezone().date().isoformat(),
        "command": shlex.join(["python", "benchmarks/speed.py", *argv]),
        "threads": given.threads,
        "yardstick": given.yardstick.name,
        "rounds": given.rounds,
        "seconds": given.seconds,
        "rows": results,
    }
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "speed.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "speed.md").write_text(page(content))
    picture(content).savefig(given.results / "speed.png", dpi=150)
    print((given.results / "speed.md").read_text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="a row; may be given several times")
    parser.add_argument("--rounds", type=int, default=7, help="samples of every row")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a sample measures")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of PyTorch, everywhere")
    parser.add_argument(
        "--yardstick", type=Path, default=HERE / "yardstick.py", metavar="FILE", help="what to run beside"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where results are written")
    parser.add_argument("--sample", metavar="ROW", help=argparse.SUPPRESS)  # how this script calls itself
    return parser


def _row(name: str) -> Row:
    found = {row.name: row for row in _rows()}
    if name not in found:
        raise UserError(f"there is no row '{name}': {nearest(name, found)}")
    return found[name]


# ------------------------------------------------------------------------------------------------------------ measuring


def sample(row: Row, seconds: float, threads: int) -> dict[str, Any]:
    """What this process measures for a row: steps_per_s, memory, and for training the milliseconds of its phases."""
    import torch

    from coterie.benchmark import bench, memory, world_alone
    from coterie.config import resolve
    from coterie.process import settle

    resolved = resolve([*row.overrides, f"threads={threads}", "env=particle/simple_spread"])
    if row.kind == "world":
        settle(threads)
        device = torch.device(resolved.config.device)
        return {"steps_per_s": world_alone(resolved.config, device, seconds), "memory": memory(device)}
    report = bench(resolved, seconds)
    phases = {name: phase["ms_per_round"] for name, phase in report["time"].items()}
    return {"steps_per_s": report["steps_per_s_quiet"], "memory": report["memory"], "phases_ms": phases}


def measure(rows: list[Row], given: argparse.Namespace) -> dict[Row, list[dict[str, Any]]]:
    """Samples of every row, taken in turns, each with that of the yardstick run just before it."""
    mine = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--seconds",
        str(given.seconds),
        "--threads",
        str(given.threads),
    ]
    own = given.yardstick.resolve() == HERE / "yardstick.py"
    beside = [sys.executable, str(given.yardstick), str(given.seconds), *["--json"] * own]
    samples: dict[Row, list[dict[str, Any]]] = {row: [] for row in rows}
    for number in range(given.rounds):
        for row in rows:
            said = _run(beside, given.threads)
            stick = said if isinstance(said, dict) else {"steps_per_s_quiet": said}
            taken = _run([*mine, "--sample", row.name], given.threads, AS_COTERIE) | {"yardstick": stick}
            samples[row].append(taken)
            print(
                f"round {number + 1} of {given.rounds}: {row.name} {whole_number(taken['steps_per_s'])} steps/s, "
                f"yardstick {whole_number(stick['steps_per_s_quiet'])}",
                file=sys.stderr,
                flush=True,
            )
    return samples


def _run(words: list[str], threads: int, more: dict[str, str] | None = None) -> Any:
    """What a process prints on its last line, as JSON; more: environment variables that it gets."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} | (more or {}),
    )
    if done.returncode:
        raise UserError(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def gather(row: Row, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A row's result: quartiles of its speed, of the yardstick's, and of their ratio."""
    best = max(taken["yardstick"]["steps_per_s_quiet"] for taken in samples)
    calm = [taken for taken in samples if taken["yardstick"]["steps_per_s_quiet"] >= STORM * best]
    speeds = [taken["steps_per_s"] for taken in calm]
    sticks = [taken["yardstick"]["steps_per_s_quiet"] for taken in calm]
    result = {
        "name": row.name,
        "meaning": row.meaning,
        "overrides": list(row.overrides),
        "least": row.least,
        "stretch": row.stretch,
        "relative": row.relative,
        "steps_per_s": upper_quartile(speeds),
        "yardstick": upper_quartile(sticks),
        "ratio": upper_quartile(speeds) / upper_quartile(sticks),
        "ratio_by_pair": statistics.median(mine / stick for mine, stick in zip(speeds, sticks, strict=True)),
        "storms": len(samples) - len(calm),
        "peak_mb": max(taken["memory"]["peak_mb"] or 0 for taken in samples),
        "samples": samples,
    }
    if "phases_ms" in calm[0]:
        names = calm[0]["phases_ms"]
        result["phases_ms"] = {name: -upper_quartile([-taken["phases_ms"][name] for taken in calm]) for name in names}
    if "gpu_peak_mb" in calm[0]["memory"]:
        result["gpu_peak_mb"] = max(taken["memory"]["gpu_peak_mb"] for taken in samples)
    parts = [taken["yardstick"] for taken in calm if "collect_ms" in taken["yardstick"]]
    if parts:
        for name in ("collect_ms", "update_ms"):
            result[f"yardstick_{name}"] = -upper_quartile([-part[name] for part in parts])
    return result


def upper_quartile(values: list[float]) -> float:
    """The value that a quarter of them reach or pass; of few values the highest but one, of up to three the highest."""
    return sorted(values, reverse=True)[len(values) // 4]


# ----------------------------------------------------------------------------------------------------------- the report


def page(content: dict[str, Any]) -> str:
    """The results as Markdown."""
    facts = content["machine"]
    lines = [
        "# Speed",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, {', '.join(facts['gpus']) or 'no GPU'}, PyTorch {facts['torch']}, "
        f"threads: {content['threads']}, Coterie {facts['coterie']} ({facts['revision']}), {content['date']}.",
        f"Made by `{content['command']}`: {content['rounds']} rounds of {content['seconds']:g} s, "
        f"upper quartile of the speeds; the yardstick is `{content['yardstick']}`, run beside every sample.",
        "",
        *table(
            ["what", "steps/s", "yardstick beside it", "ratio", "asked for", "storms", "peak MB"],
            [_line(row) for row in content["rows"]],
        ),
        "",
    ]
    for row in content["rows"]:
        if "phases_ms" in row:
            lines += [f"{row['meaning']}: `{shlex.join(row['overrides'])}`", "", *_cost(row), ""]
    return "\n".join([*lines, "![speed](speed.png)"]) + "\n"


def _line(row: dict[str, Any]) -> list[str]:
    unit = " x" if row["relative"] else ""
    asked = [
        f"{value:g}{unit}" if row["relative"] else whole_number(value)
        for value in (row["least"], row["stretch"])
        if value
    ]
    memory = f"{row['peak_mb']:.0f}" + (f" + {row['gpu_peak_mb']:.0f} on the GPU" if "gpu_peak_mb" in row else "")
    return [
        row["meaning"],
        f"**{row['steps_per_s']:,.0f}**",
        f"{row['yardstick']:,.0f}",
        f"{row['ratio']:.2f}",
        " / ".join(asked),
        str(row["storms"]),
        memory,
    ]


def _cost(row: dict[str, Any]) -> list[str]:
    """Where an iteration's time goes, beside the bare script's two parts for the same work."""
    phases = row["phases_ms"]
    collect = phases["environment"] + phases["acting"] + phases["storing"]
    update = phases["targets"] + phases["update"]
    columns = ["milliseconds an iteration", *phases, "collect", "update in all"]
    rows = [["Coterie", *(f"{t:.1f}" for t in phases.values()), f"{collect:.1f}", f"{update:.1f}"]]
    if row["relative"] and "yardstick_collect_ms" in row:
        bare = (row["yardstick_collect_ms"], row["yardstick_update_ms"])
        rows.append(["the bare script", *[""] * len(phases), *(f"{t:.1f}" for t in bare)])
        rows.append(["ratio", *[""] * len(phases), f"{collect / bare[0]:.2f}", f"{update / bare[1]:.2f}"])
    return table(columns, rows)


def picture(content: dict[str, Any]) -> Any:
    """Bars of every row's speed in yardsticks, with what is asked of it."""
    from matplotlib.figure import Figure

    rows = list(reversed(content["rows"]))
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows):
        axes.barh(y, row["ratio"], height=0.62, color="#0072B2")
        for value, style in ((row["least"], "-"), (row["stretch"], ":")):
            if value:
                level = value if row["relative"] else value / row["yardstick"]
                axes.plot([level, level], [y - 0.4, y + 0.4], color="black", linestyle=style, linewidth=1.4)
        figures = f"{row['steps_per_s']:,.0f} steps/s"
        axes.text(1.01, y, figures, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["meaning"] for row in rows])
    axes.set_xlabel("speed in yardsticks (line: asked for, dotted: hoped for)")
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
