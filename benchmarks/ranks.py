"""Speed of several ranks on one machine, the time of all-reduces, and a cost model for more ranks.

    python benchmarks/ranks.py --rounds 5      # one process with two threads and two ranks with one thread, in turns
    python benchmarks/ranks.py --reduce 2 4    # all-reduces of 2 and 4 ranks, and the cost model

Writes what was measured to ranks.json and ranks.md in --results. The cost model of gloo, a ring, is fitted to the first
number of ranks and checked with the others. It is meant for one core per rank: with fewer, ranks wait for each other's
turns on a core, and the page has a note on that.

The work of the runs is that of the yardstick: `algo=ippo/yardstick env=particle/simple_spread`, 128 environments. The
limit is what two processes reach side by side that exchange nothing, with one thread and 64 environments each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import reporting
import torch

from coterie.core.files import write_text

HERE = Path(__file__).resolve().parent
_PROCESSES = ("one process, two threads", "two ranks, one thread each", "two processes that exchange nothing")
_BYTES = (1 << 10, 40_000, 1 << 17, 1 << 20, 1 << 23)
_MEASURED, _WARM_UP = 200, 20
_LATENCY_S, _BYTES_PER_S = 50e-6, 25e9 / 8
"""Stated network of the cost model: 50 microseconds per message, 25 Gbit/s."""


def started(folder: Path, *words: str, steps: int, threads: int) -> subprocess.Popen[bytes]:
    """Starts a run in a folder."""
    command = [sys.executable, "-m", "coterie", "train", "algo=ippo/yardstick", "env=particle/simple_spread"]
    command += [f"steps={steps}", f"threads={threads}", "eval.every=0", "checkpoint.every=0", *words]
    command += ["log.tensorboard=false", "progress=off", "checkpoint.policy_seconds=0", f"out={folder}"]
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)


def steps_per_second(*words: str, steps: int, threads: int, processes: int = 1) -> float:
    """Returns the median speed of runs side by side, summed over them, without their first entries."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(k) for k in range(processes)]
        runs = [started(folder, *words, steps=steps, threads=threads) for folder in folders]
        codes = [run.wait() for run in runs]
        if any(codes):
            raise SystemExit(f"a run failed: {' '.join(words)}")
        return sum(median_speed(folder) for folder in folders)


def median_speed(run: Path) -> float:
    """Returns the median speed of a run without its first entries, and prints its exchanges."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "time/steps_per_s" in row][3:]
    exchange = {name: round(x, 4) for name, x in rows[-1].items() if name.startswith("time/exchange")}
    if exchange:
        print(f"  {exchange}", flush=True)
    return statistics.median(row["time/steps_per_s"] for row in rows)


def compare(rounds: int, steps: int) -> dict[str, Any]:
    """Measures one process, two ranks, and two processes that exchange nothing, in turns.

    Returns:
        By name, the speeds of all rounds in steps per second, and their ratios to one process in the same round.
    """
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        alone = steps_per_second(steps=steps, threads=2)
        ranks = steps_per_second("ranks=2", steps=steps, threads=1)
        apart = steps_per_second("num_envs=64", steps=steps // 2, threads=1, processes=2)
        print(f"ranks {ranks / alone:.2f}, limit {apart / alone:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
        for name, speed in zip(_PROCESSES, (alone, ranks, apart), strict=True):
            found.setdefault(name, []).append(speed)
    one = found[_PROCESSES[0]]
    return {
        name: {"steps_per_s": speeds, "ratio": [x / y for x, y in zip(speeds, one, strict=True)]}
        for name, speeds in found.items()
    }


def ring_seconds(size: int, nbytes: int, latency: float, bandwidth: float) -> float:
    """Cost of a ring all-reduce: 2 (R - 1) (latency + bytes / (R bandwidth)).

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.
    """
    return 2 * (size - 1) * (latency + nbytes / (size * bandwidth))


def measure_reduces(size: int, transport: str) -> dict[int, float]:
    """Returns the median seconds of all-reduces of `size` ranks on this machine, by bytes."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, __file__, "--rank-of", transport, str(size), folder]
        processes = [subprocess.Popen([*command, str(rank)], env=env) for rank in range(size)]
        for process in processes:
            process.wait()
        return {int(key): x for key, x in json.loads((Path(folder) / "found.json").read_text()).items()}


def rank(transport: str, size: int, folder: Path, number: int) -> None:
    """Measures all-reduces as one of several ranks."""
    from coterie.assembly.rank_processes import share_memory
    from coterie.ranks.process_ranks import ProcessRanks
    from coterie.ranks.rank_stores import FolderStore, file_store

    torch.set_num_threads(1)
    store, group = FolderStore(folder / "values"), file_store(folder / "store", size)
    ranks = ProcessRanks(store, number, size, group=group, timeout=60.0, device=torch.device("cpu"))
    if transport == "memory":
        share_memory(ranks, 60.0)
    found = {}
    for nbytes in _BYTES:
        x, times = torch.zeros(nbytes // 4), []
        for _ in range(_WARM_UP + _MEASURED):
            started = time.perf_counter()
            ranks.sum_(x)
            times.append(time.perf_counter() - started)
        found[nbytes] = statistics.median(times[_WARM_UP:])
    if ranks.is_first:
        (folder / "found.json").write_text(json.dumps(found))
    ranks.close()


def model(sizes: list[int]) -> dict[str, Any]:
    """Measures all-reduces, fits the cost model to the first number of ranks, and applies it to all others.

    Returns:
        The fitted latency in seconds and bandwidth in bytes per second; measured and expected seconds of every number
        of ranks and bytes; and expected seconds in the stated network.
    """
    memory = {size: measure_reduces(size, "memory") for size in sizes}
    gloo = {size: measure_reduces(size, "gloo") for size in sizes}
    latency, bandwidth = fitted(sizes[0], gloo[sizes[0]])
    rows = [
        {
            "ranks": size, "bytes": nbytes, "memory_s": memory[size][nbytes], "gloo_s": gloo[size][nbytes],
            "model_s": ring_seconds(size, nbytes, latency, bandwidth),
        }
        for size in sizes for nbytes in _BYTES
    ]  # fmt: skip
    network = [
        {"ranks": size, "bytes": nbytes, "model_s": ring_seconds(size, nbytes, _LATENCY_S, _BYTES_PER_S)}
        for size in (8, 16, 32, 64) for nbytes in _BYTES[2:]
    ]  # fmt: skip
    return {"latency_s": latency, "bytes_per_s": bandwidth, "rows": rows, "network": network}


def fitted(size: int, seconds: Mapping[int, float]) -> tuple[float, float]:
    """Returns latency and bandwidth with which the model equals the times of the fewest and of the most bytes.

    With seconds = c (latency + bytes / (R bandwidth)) and c = 2 (R - 1), their difference gives the bandwidth.
    """
    rounds, few, many = 2 * (size - 1), _BYTES[0], _BYTES[-1]
    slope = max(seconds[many] - seconds[few], 1e-9) / (many - few)
    bandwidth = rounds / (size * slope)
    return max(seconds[few] / rounds - few / (size * bandwidth), 0.0), bandwidth


# ----------------------------------------------------------------------------------------------------------- results


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    facts = content["machine"]
    lines = [
        "# Speed of ranks",
        "",
        f"{reporting.in_words(facts)} ({facts['revision']}), {content['date']}, load average {content['load'][0]:.1f} "
        f"before and {content['load'][1]:.1f} after. `{content['command']}`",
    ]
    if "speed" in content:
        rows = [
            [name, *_spread(found["steps_per_s"], "{:,.0f}"), *_spread(found["ratio"], "{:.2f}")]
            for name, found in content["speed"].items()
        ]
        columns = ["processes", "steps/s", "lowest to highest", "relative to one process", "lowest to highest"]
        lines += ["", *reporting.table(columns, rows)]
    return "\n".join(lines + (_model_lines(content["model"], facts["cores"]) if "model" in content else [])) + "\n"


def _spread(values: list[float], form: str) -> tuple[str, str]:
    """Returns the median, and the lowest and the highest value."""
    low, high = form.format(min(values)), form.format(max(values))
    return form.format(statistics.median(values)), f"{low} to {high}"


def _model_lines(found: dict[str, Any], cores: int) -> list[str]:
    """Lines on all-reduces and the cost model."""
    rows = [
        [
            str(row["ranks"]),
            f"{row['bytes']:,}",
            *(f"{1e3 * row[key]:.3f}" for key in ("memory_s", "gloo_s", "model_s")),
        ]
        for row in found["rows"]
    ]
    network = [[str(row["ranks"]), f"{row['bytes']:,}", f"{1e3 * row['model_s']:.2f}"] for row in found["network"]]
    first, most = found["rows"][0]["ranks"], max(row["ranks"] for row in found["rows"])
    note = f" {most} ranks share {cores} cores here, which the model does not know." if most > cores else ""
    return [
        "",
        f"Milliseconds of an all-reduce, medians of {_MEASURED}. The model is a ring, 2 (R - 1) (latency + bytes / (R "
        f"bandwidth)), with the latency ({found['latency_s'] * 1e6:.0f} microseconds) and the bandwidth "
        f"({found['bytes_per_s'] / 1e9:.2f} GB/s) of gloo with {first} ranks.{note}",
        "",
        *reporting.table(["ranks", "bytes", "shared memory", "gloo", "model"], rows),
        "",
        f"The same model in a network of {_LATENCY_S * 1e6:.0f} microseconds per message and "
        f"{_BYTES_PER_S * 8 / 1e9:.0f} Gbit/s, not measured:",
        "",
        *reporting.table(["ranks", "bytes", "milliseconds"], network),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800_000)
    parser.add_argument("--reduce", type=int, nargs="*", default=[])
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    parser.add_argument("--rank-of", nargs=4, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.rank_of is not None:
        transport, size, folder, number = given.rank_of
        rank(transport, int(size), Path(folder), int(number))
        return
    if not given.rounds and not given.reduce:
        parser.error("nothing to measure. Add --rounds 5 or --reduce 2 4.")
    before = os.getloadavg()[0]
    content = reporting.origin()
    content |= {"speed": compare(given.rounds, given.steps)} if given.rounds else {}
    content |= {"model": model(given.reduce)} if given.reduce else {}
    content["load"] = [before, os.getloadavg()[0]]
    given.results.mkdir(parents=True, exist_ok=True)
    write_text(given.results / "ranks.json", json.dumps(content, indent=1) + "\n")
    write_text(given.results / "ranks.md", page(content))
    print(page(content))


if __name__ == "__main__":
    main()
