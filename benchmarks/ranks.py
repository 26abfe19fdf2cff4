"""Speed of several ranks on one machine, the time of all-reduces, and a cost model for more ranks.

    python benchmarks/ranks.py --rounds 5      # one process with two threads and two ranks with one thread, in turns
    python benchmarks/ranks.py --reduce 2 4    # all-reduces of 2 and 4 ranks, and the cost model

The work is that of the yardstick: `algo=ippo/yardstick env=particle/simple_spread`, 128 environments. The limit is what
two processes reach side by side that exchange nothing, with one thread and 64 environments each.
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
from pathlib import Path

import torch

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


def compare(rounds: int, steps: int) -> None:
    """Prints the speeds of one process, of two ranks, and of two processes that exchange nothing, in turns."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        alone = steps_per_second(steps=steps, threads=2)
        ranks = steps_per_second("ranks=2", steps=steps, threads=1)
        apart = steps_per_second("num_envs=64", steps=steps // 2, threads=1, processes=2)
        print(f"ranks {ranks / alone:.2f}, limit {apart / alone:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
        for name, speed in (("one process", alone), ("two ranks", ranks), ("two processes apart", apart)):
            found.setdefault(name, []).append(speed)
    for name, speeds in found.items():
        print(f"{name}: {', '.join(f'{x:,.0f}' for x in speeds)} steps/s, median {statistics.median(speeds):,.0f}")
    for name in ("two ranks", "two processes apart"):
        ratios = [x / one for x, one in zip(found[name], found["one process"], strict=True)]
        print(f"{name}: {statistics.median(ratios):.2f} times one process, {min(ratios):.2f} to {max(ratios):.2f}")


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
    from coterie.commands.rank_processes import share_memory
    from coterie.core.process_ranks import ProcessRanks, file_store

    torch.set_num_threads(1)
    store = file_store(folder / "store", size)
    ranks = ProcessRanks(store, number, size, timeout=60.0, device=torch.device("cpu"))
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


def model(sizes: list[int]) -> None:
    """Prints measured all-reduces, the model fitted to the first number of ranks, and its check and extrapolation."""
    for size in sizes:
        for nbytes, seconds in measure_reduces(size, "memory").items():
            print(f"{size} ranks, {nbytes:>9,} bytes: {seconds * 1e6:9.0f} us through shared memory")
    measured = {size: measure_reduces(size, "gloo") for size in sizes}
    first = sizes[0]
    small, large = measured[first][_BYTES[0]], measured[first][_BYTES[-1]]
    latency = small / (2 * (first - 1))
    bandwidth = 2 * (first - 1) * _BYTES[-1] / first / max(large - small, 1e-9)
    print(f"fitted to {first} ranks: latency {latency * 1e6:.0f} us, bandwidth {bandwidth / 1e9:.2f} GB/s")
    for size, times in measured.items():
        for nbytes, seconds in times.items():
            expected = ring_seconds(size, nbytes, latency, bandwidth)
            print(
                f"{size} ranks, {nbytes:>9,} bytes: {seconds * 1e6:9.0f} us with gloo, model {expected * 1e6:9.0f} us"
            )
    print(f"network of {_LATENCY_S * 1e6:.0f} us and {_BYTES_PER_S * 8 / 1e9:.0f} Gbit/s:")
    for size in (8, 16, 32, 64):
        costs = [
            f"{nbytes:,} bytes {ring_seconds(size, nbytes, _LATENCY_S, _BYTES_PER_S) * 1e3:.2f} ms"
            for nbytes in _BYTES[2:]
        ]
        print(f"{size} ranks: {', '.join(costs)}")


def main() -> None:
    """Runs what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800_000)
    parser.add_argument("--reduce", type=int, nargs="*", default=[])
    parser.add_argument("--rank-of", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of is not None:
        transport, size, folder, number = options.rank_of
        rank(transport, int(size), Path(folder), int(number))
        return
    if options.rounds:
        compare(options.rounds, options.steps)
    if options.reduce:
        model(options.reduce)


if __name__ == "__main__":
    main()
