"""Kills or stops ranks of a run at random moments, resumes it each time, and compares the end with an undisturbed run.

    python benchmarks/rank_kills.py --kills 50

Every failure has to end all ranks within seconds, with one message that names the rank. The last checkpoint must have
the bytes of a run that was never disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_RUN = [
    "algo=mappo",
    "env=particle/simple_spread",
    "algo.hidden_sizes=[16]",
    "num_envs=8",
    "rollout_length=25",
    "progress=off",
    "eval.every=0",
    "log.tensorboard=false",
    "checkpoint.policy_seconds=0",
]


@dataclass(frozen=True)
class Kill:
    """A rank that was disturbed.

    Attributes:
        rank: Its number.
        signal: KILL or STOP.
        seconds: Time until the command ended.
        message: What it printed.
    """

    rank: int
    signal: str
    seconds: float
    message: str


def command(*words: str) -> list[str]:
    """Returns a command of Coterie."""
    return [sys.executable, "-m", "coterie", *words]


def ranks_of(parent: int) -> list[int]:
    """Returns the processes of the ranks that a command started, in order."""
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def last_checkpoint(run: Path) -> str:
    """Returns the name of the last checkpoint; "" if there is none."""
    pointer = run / "checkpoints" / "last"
    return pointer.read_text().strip() if pointer.exists() else ""


def disturb(process: subprocess.Popen[str], run: Path, draw: random.Random) -> Kill | None:
    """Kills or stops a rank after a random time since the first checkpoint of this session; None if the run ends first.

    Args:
        process: The command.
        run: Folder of the run.
        draw: Source of the rank, the signal and the time.
    """
    before = last_checkpoint(run)
    while process.poll() is None and last_checkpoint(run) == before:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.5))
    ranks = ranks_of(process.pid) if process.poll() is None else []
    if len(ranks) < 2:
        process.wait()
        return None
    rank, name = draw.randrange(len(ranks)), draw.choice(["KILL", "KILL", "KILL", "STOP"])
    started = time.monotonic()
    try:
        os.kill(ranks[rank], getattr(signal, f"SIG{name}"))
    except ProcessLookupError:
        process.wait()
        return None
    _, message = process.communicate(timeout=120)
    return Kill(rank, name, time.monotonic() - started, message.strip())


def digest(run: Path) -> str:
    """Returns the hash of the tensors of the last checkpoint."""
    return hashlib.sha256((run / "checkpoints" / last_checkpoint(run) / "state.safetensors").read_bytes()).hexdigest()


def entries(run: Path) -> list[dict[str, float]]:
    """Returns the log without times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in row.items() if not name.startswith("time/")} for row in rows]


def campaign(
    folder: Path, *, kills: int, steps: int, ranks: int, seed: int, every: int, timeout: float = 3
) -> list[Kill]:
    """Disturbs a run `kills` times and lets it finish. Raises AssertionError if anything is lost."""
    words = [*_RUN, f"ranks={ranks}", f"steps={steps}", f"checkpoint.every={every}", f"rank_timeout={timeout}"]
    done: list[Kill] = []
    draw, run = random.Random(seed), folder / "disturbed"
    words_of_session = command("train", *words, f"out={run}")
    while len(done) < kills:
        process = subprocess.Popen(words_of_session, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        kill = disturb(process, run, draw)
        words_of_session = command("resume", str(run))
        if kill is None:
            break
        done.append(kill)
        print(f"{len(done)}: rank {kill.rank} {kill.signal} {kill.seconds:.1f} s: {kill.message[:90]}", flush=True)
        assert len(kill.message.splitlines()) == 1, kill.message
        assert f"rank {kill.rank} " in kill.message, kill.message
    subprocess.run(command("resume", str(run)), check=True, stdout=subprocess.DEVNULL)
    undisturbed = folder / "undisturbed"
    subprocess.run(command("train", *words, f"out={undisturbed}"), check=True, stdout=subprocess.DEVNULL)
    assert digest(run) == digest(undisturbed)
    assert entries(run) == entries(undisturbed)
    return done


def main() -> None:
    """Runs the campaign and prints a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=0, help="steps of the run; 0: enough for all kills")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=3, help="rank_timeout; more on a machine with much other work")
    options = parser.parse_args()
    every = 200
    steps = options.steps or every * 10 * (options.kills + 1)
    with tempfile.TemporaryDirectory() as name:
        done = campaign(
            Path(name),
            kills=options.kills,
            steps=steps,
            ranks=options.ranks,
            seed=options.seed,
            every=every,
            timeout=options.timeout,
        )
    for kind in ("KILL", "STOP"):
        seconds = sorted(kill.seconds for kill in done if kill.signal == kind)
        if seconds:
            print(f"SIG{kind}: {len(seconds)} times, ended in {seconds[0]:.1f} to {seconds[-1]:.1f} s")
    print(f"{len(done)} kills: the last checkpoint and the log are those of an undisturbed run")


if __name__ == "__main__":
    main()
