"""Kills or stops ranks of runs at random moments, resumes the runs, and compares them with undisturbed ones.

    python benchmarks/rank_kills.py [--kills 50] [--seed 0] [--only NAME ...] [--out FILE]

Every configuration is trained once without interruption. The same run is then started again with the same number of
ranks, one rank is killed (SIGKILL) or stopped (SIGSTOP), the run is resumed by `coterie resume`, disturbed again, and
so on until it ends. All ranks have to end, with one message that names the disturbed one. Every bit of the finished run
is compared with the undisturbed one.

One moment in five is at a random time after the start, before the first checkpoint of the session. The others are at a
random time after that checkpoint. Ranks are only killed before the first checkpoint: one that is stopped before it has
joined the others counts as failed after two minutes. Rank, signal and moment are drawn from a seeded generator, but the
exact instant depends on the speed of the machine. The configurations take turns. Writes FILE and a page next to it
after each run. Kills that FILE already contains count, so an interrupted campaign continues and a finished one can be
extended. Exits with 1 if a message was wrong, a resume failed or a bit differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import reporting
from kill_runs import differences

from coterie.core.files import write_text

HERE = Path(__file__).resolve().parent
STARTING, TRAINING = "before the first checkpoint of the session", "after it"
_STARTING_SHARE, _STOP_SHARE = 0.2, 0.25
_MOST_SECONDS = 300.0
"""Seconds after which ranks that have not ended count as failed."""
_POLL_SECONDS = 0.01

_SMALL = (
    *("env=particle/simple_spread", "num_envs=8", "algo.rollout_length=25", "threads=1", "device=cpu", "progress=off"),
    *("eval.every=2000", "eval.episodes=4", "eval.num_envs=4", "eval.min_episodes=4", "log.tensorboard=false"),
    *("checkpoint.every=200", "checkpoint.policy_seconds=0", "algo.hidden_sizes=[16]"),
)
_REPLAY = ("algo.learning_starts=200", "algo.batch_size=8", "algo.buffer_size=2000", "algo.gradient_steps=4")
CASES: dict[str, tuple[str, ...]] = {
    "mappo": ("algo=mappo", *_SMALL),
    "qmix, priorities": ("algo=qmix", *_SMALL, *_REPLAY, "algo.rnn=none", "algo.obs_last_action=false")
    + ("algo.priority_alpha=0.6",),
    "ippo, GRU": ("algo=ippo", *_SMALL, "algo.rnn=gru", "algo.rnn_size=8", "algo.sequence_length=5"),
}


@dataclass(frozen=True)
class Kill:
    """A rank that was disturbed.

    Attributes:
        rank: Its number.
        signal: SIGKILL or SIGSTOP.
        moment: STARTING or TRAINING.
        seconds: Time until the command and all ranks had ended.
        message: Everything that it printed to the terminal's error output.
    """

    rank: int
    signal: str
    moment: str
    seconds: float
    message: str

    @property
    def is_named(self) -> bool:
        """True if the command printed one line that names the rank."""
        return len(self.message.splitlines()) == 1 and f"rank {self.rank} " in self.message


@dataclass
class Campaign:
    """The disturbed runs of one configuration.

    Attributes:
        words: Settings of the run, without its folder.
        folder: Folder of the runs.
        draw: Source of ranks, signals and moments.
        starting, training: Seconds of an undisturbed run before and after its first checkpoint.
    """

    words: list[str]
    folder: Path
    draw: random.Random
    kills: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0
    failed: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    starting: float = 0.0
    training: float = 0.0

    def run(self, kills: int) -> None:
        """Starts one run, disturbs it at most `kills` times, and compares it when it has ended."""
        reference, run = self.folder / "reference", self.folder / f"run{self.runs}"
        if not reference.exists():
            self._measure(reference)
        self.runs += 1
        if self._run_to_its_end(run, len(self.kills) + kills):
            self.differ += [f"{run.name}: {place}" for place in differences(reference, run)[:5]]

    def _measure(self, run: Path) -> None:
        """Trains without interruption, and measures the seconds to the first checkpoint and from there to the end."""
        started = time.monotonic()
        process = _start(["train", *self.words, f"out={run}"])
        while process.poll() is None and not last_checkpoint(run):
            time.sleep(_POLL_SECONDS)
        self.starting = time.monotonic() - started
        _, message = process.communicate()
        self.training = time.monotonic() - started - self.starting
        if process.returncode != 0:
            raise RuntimeError(f"the undisturbed run ended with {process.returncode}: {message}")

    def _run_to_its_end(self, run: Path, kills: int) -> bool:
        """Starts, disturbs and resumes one run. Returns False if a start or a resume failed."""
        while True:
            resumes = (run / "manifest.json").exists()
            process = _start(["resume", str(run)] if resumes else ["train", *self.words, f"out={run}"])
            kill = self._disturb(process, run) if len(self.kills) < kills else None
            if kill is None:
                _, message = process.communicate()
                if process.returncode != 0:
                    self.failed.append(f"{run.name}: exit code {process.returncode}: {message[-2000:]}")
                return process.returncode == 0
            self.kills.append(asdict(kill))
            if not kill.is_named:
                self.failed.append(f"{run.name}: {kill.signal} of rank {kill.rank}: {kill.message[-2000:]}")
            print(f"{len(self.kills)}: {kill.signal} of rank {kill.rank} {kill.moment}, {kill.seconds:.1f} s: "
                  f"{kill.message[:110]}", flush=True)  # fmt: skip

    def _disturb(self, process: subprocess.Popen[str], run: Path) -> Kill | None:
        """Kills or stops a rank at a random moment, and waits for the end. None if the run ends before."""
        moment = STARTING if self.draw.random() < _STARTING_SHARE else TRAINING
        stops = self.draw.random() < _STOP_SHARE and moment == TRAINING
        pause = self.draw.uniform(0, self.starting if moment == STARTING else self.training / 2)
        before = last_checkpoint(run)
        while process.poll() is None and not _has_begun(process.pid, run, moment, before):
            time.sleep(_POLL_SECONDS)
        time.sleep(pause)
        ranks = ranks_of(process.pid) if process.poll() is None else []
        if len(ranks) < 2:
            return None
        rank, name = self.draw.randrange(len(ranks)), "SIGSTOP" if stops else "SIGKILL"
        started = time.monotonic()
        try:
            os.kill(ranks[rank], getattr(signal, name))
        except ProcessLookupError:
            return None
        try:
            _, message = process.communicate(timeout=_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in (*ranks, process.pid):
                with contextlib.suppress(ProcessLookupError):  # some of them may have ended
                    os.kill(pid, signal.SIGKILL)
            _, message = process.communicate()
            message = f"did not end within {_MOST_SECONDS:.0f} s\n{message}"
        if process.returncode == 0:  # the rank had done its work before the signal
            return None
        return Kill(rank, name, moment, round(time.monotonic() - started, 2), message.strip())


def _start(words: list[str]) -> subprocess.Popen[str]:
    """Starts a command of Coterie."""
    command = [sys.executable, "-m", "coterie", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _has_begun(pid: int, run: Path, moment: str, before: str) -> bool:
    """True when the time of a moment starts: all ranks run, or there is another checkpoint than `before`."""
    return len(ranks_of(pid)) > 1 if moment == STARTING else last_checkpoint(run) != before


def ranks_of(parent: int) -> list[int]:
    """Returns the processes of the ranks that a command started, in order; [] if it has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def last_checkpoint(run: Path) -> str:
    """Returns the name of the last checkpoint; "" if there is none."""
    pointer = run / "checkpoints" / "last"
    return pointer.read_text().strip() if pointer.exists() else ""


# ----------------------------------------------------------------------------------------------------------- results


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    facts, found = content["machine"], content["found"]
    kills = [kill for result in found.values() for kill in result["kills"]]
    runs = sum(result["runs"] for result in found.values())
    columns = ["configuration", "kills and stops", "runs", "wrong messages or failed resumes", "runs that differ"]
    rows = [
        [name, *(str(n) for n in (len(result["kills"]), result["runs"], *_bad(result)))]
        for name, result in found.items()
    ]
    bad = [sum(_bad(result)[i] for result in found.values()) for i in (0, 1)]
    rows.append(["**all**", *(str(n) for n in (len(kills), runs, *bad))])
    groups: dict[tuple[str, str], list[float]] = {}
    for kill in kills:
        groups.setdefault((kill["signal"], kill["moment"]), []).append(kill["seconds"])
    times = [
        [name, moment, str(len(x)), f"{statistics.median(x):.1f}", f"{min(x):.1f} to {max(x):.1f}"]
        for (name, moment), x in sorted(groups.items())
    ]
    machine = f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, PyTorch {facts['torch']}"
    lines = [
        "# Killed and stopped ranks",
        "",
        f"{len(kills)} times, one of {content['ranks']} ranks was killed or stopped at a random moment, in {runs} runs "
        f"of {len(found)} configurations with `rank_timeout={content['timeout']:g}`. Every run was resumed until it "
        "ended and compared bit for bit with an undisturbed one.",
        "",
        f"{machine}, Coterie {facts['coterie']} ({', '.join(content['revisions'])}), seed {content['seed']}, "
        f"{content['date']}. Load average {content['load'][0]} to {content['load'][1]}{content['priority']}. "
        f"`{content['command']}`",
        "",
        *reporting.table(columns, rows),
        "",
        "Seconds from the signal until the command and all ranks had ended:",
        "",
        *reporting.table(["signal", "moment", "times", "median", "lowest to highest"], times),
    ]
    return "\n".join(lines) + "\n"


def _bad(result: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of wrong messages and failed resumes, and of runs that differ."""
    return len(result["failed"]), len({place.partition(":")[0] for place in result["differ"]})


def _niceness() -> str:
    """Note for the page if the benchmark ran at low priority."""
    nice = os.nice(0)
    return f", at low priority (nice {nice})" if nice else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="kills and stops of all configurations together")
    parser.add_argument("--steps", type=int, default=8000, help="steps of every run")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs and of the moments")
    parser.add_argument("--timeout", type=float, default=5, help="rank_timeout; more on a machine with much other work")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="names of configurations")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "rank_kills.json", help="results as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(argv)
    content = json.loads(given.out.read_text()) if given.out.exists() else {"revisions": [], "found": {}, "load": []}
    same = {name: getattr(given, name) for name in ("seed", "ranks", "steps", "timeout")}
    for name, value in same.items():
        if content.setdefault(name, value) != value:
            parser.error(f"--{name}: {given.out} has kills with --{name} {content[name]}. Choose another --out.")
    origin = reporting.origin()
    content["revisions"] = sorted({*content["revisions"], origin["machine"]["revision"]})
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coterie-rank-kills-") as folder:
        for name in _campaigns(given, content["found"], Path(folder)):
            load = os.getloadavg()[0]
            content["load"] = [round(min([load, *content["load"]]), 1), round(max([load, *content["load"]]), 1)]
            content |= origin | {"date": reporting.origin()["date"], "priority": _niceness()}
            write_text(given.out, json.dumps(content, indent=1) + "\n")
            write_text(given.out.with_suffix(".md"), page(content))
            print(f"{name}: failed, differ: {_bad(content['found'][name])}", flush=True)
    print(f"wrote {given.out} and {given.out.with_suffix('.md')}")
    return int(any(sum(_bad(result)) for result in content["found"].values()))


def _campaigns(given: argparse.Namespace, found: dict[str, dict[str, Any]], folder: Path) -> Iterator[str]:
    """Runs the configurations in turns, until `found` has enough kills. Yields the name of each one that has ended."""
    settings = [f"steps={given.steps}", f"ranks={given.ranks}", f"rank_timeout={given.timeout:g}", f"seed={given.seed}"]
    campaigns = {}
    for i, (name, words) in enumerate(CASES.items()):
        if not given.only or name in given.only:
            known = {key: value for key, value in found.get(name, {}).items() if key != "settings"}
            draw = random.Random(f"{given.seed}/{name}/{len(known.get('kills', ()))}")
            (folder / str(i)).mkdir()
            campaigns[name] = Campaign([*words, *settings], folder / str(i), draw, **known)
    while (missing := given.kills - sum(len(campaign.kills) for campaign in campaigns.values())) > 0:
        name = min(campaigns, key=lambda name: len(campaigns[name].kills))
        campaign = campaigns[name]
        campaign.run(missing)
        found[name] = {
            "kills": campaign.kills, "runs": campaign.runs, "failed": campaign.failed, "differ": campaign.differ,
            "settings": campaign.words,
        }  # fmt: skip
        yield name


if __name__ == "__main__":
    sys.exit(main())
