"""Self-play figures: cost of many opponents, ratings over time, best responses, and cross-play in tag.

    python benchmarks/selfplay.py --runs FOLDER [--only cost elo matrix] [--results FOLDER] [--quick]

Existing runs in the folder are read, missing ones are trained. Writes selfplay.json and selfplay.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reporting

from coterie.assembly.resolve import resolve
from coterie.commands import league
from coterie.commands import train as training
from coterie.commands.best_response import exploit

BALL = ("algo=ippo", "env=particle/simple_ball", "threads=1", "log.tensorboard=false")
ONE = ("selfplay.opponents=latest",)
EIGHT = ("selfplay.opponents=uniform", "selfplay.window=7", "selfplay.latest_ratio=0.125")
TAG = ("mappo", "maddpg", "qmix")


@dataclass(frozen=True)
class Measurement:
    """Folders of runs and of results, and True if a thousandth of the steps is enough, as in a test."""

    runs: Path
    results: Path
    quick: bool = False

    def steps(self, count: int) -> int:
        return count // 1000 if self.quick else count

    def episodes(self, count: int) -> int:
        return 8 if self.quick else count

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Settings of short evaluations, for quick measurements."""
        return ("eval.num_envs=8", "eval.episodes=8", "eval.min_episodes=8") if self.quick else ()

    def trained(self, name: str, *settings: str) -> Path:
        """Folder of a run, which is trained if it does not exist."""
        folder = self.runs / name
        small = ("num_envs=8", "eval.every=0", "algo.rollout_length=25", *self.evaluations) if self.quick else ()
        if not (folder / "curves.png").exists():
            given = dict.fromkeys([*settings, *small])
            training.train(resolve([*given, f"out={folder}", "progress=lines"]))
        return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def cost(job: Measurement) -> str:
    """Steps per second in the second half of short runs without evaluations."""
    short = (
        f"steps={job.steps(400_000)}",
        "eval.every=0",
        "checkpoint.every=0",
        f"selfplay.snapshot_interval={job.steps(20_000)}",
        f"selfplay.rating_episodes={job.episodes(16)}",
    )
    lines = ["| opponents in the batch | steps/s |", "|---|---|"]
    for name, given in (("1, the current policy", ONE), ("8, the current policy and seven snapshots", EIGHT)):
        folder = job.trained(f"cost-{name[0]}", *BALL, *given, *short)
        speeds = [row["time/steps_per_s"] for row in rows(folder) if "time/steps_per_s" in row]
        late = sorted(speeds[len(speeds) // 2 :])
        lines.append(f"| {name} | {late[len(late) // 2]:,.0f} |")
    return "\n".join(lines)


def ladder(job: Measurement) -> str:
    """Ratings of ten snapshots of one run, and the exploitability of three of its checkpoints."""
    interval = job.steps(300_000)
    folder = job.trained(
        "ball", *BALL, "selfplay.opponents=uniform", f"selfplay.snapshot_interval={interval}", "seed=0",
        f"steps={10 * interval}", f"checkpoint.every={interval}", "checkpoint.keep=true",
        f"selfplay.rating_episodes={job.episodes(128)}",
    )  # fmt: skip
    lines = ["| snapshot at | Elo | standard error |", "|---|---|---|"]
    last = None
    for row in rows(folder):
        if row.get("selfplay/elo", last) != last:
            last = row["selfplay/elo"]
            lines.append(f"| {row['steps']:,} | {last:.0f} | {row['selfplay/elo_error']:.0f} |")
    lines += ["", "| checkpoint | return of the response | own return | gap | response wins |", "|---|---|---|---|---|"]
    kept = sorted(int(path.name) for path in (folder / "checkpoints").glob("0*"))
    for steps in (kept[1], kept[len(kept) // 2], kept[-1]):
        noted = job.runs / f"gap-{steps}.json"
        if not noted.exists():
            response = {"steps": job.steps(600_000), "episodes": job.episodes(400), "checkpoint": str(steps)}
            found = exploit(folder, ["checkpoint.every=0", *job.evaluations], **response)
            noted.write_text(json.dumps(found.report()))
        gap = json.loads(noted.read_text())
        lines.append(
            f"| {steps:,} | {gap['response_return']:.2f} ± {gap['response_error']:.2f} | {gap['own_return']:.2f} ± "
            f"{gap['own_error']:.2f} | {gap['gap']:.2f} ± {gap['gap_error']:.2f} | {gap['response_won']:.2f} |"
        )
    return "\n".join(lines)


def matrix(job: Measurement) -> str:
    """Cross-play of all members in tag."""
    tag = ("env=particle/simple_tag", f"steps={job.steps(1_000_000)}", "threads=1")
    members = [f"{algo}={job.trained(f'tag-{algo}', f'algo={algo}', *tag)}" for algo in TAG]
    options = league.LeagueOptions(episodes=job.episodes(500), checkpoint="last")
    found = league.league([*members, "random", "scripted"], options=options)
    league.draw(found).savefig(job.results / "selfplay_tag.png", dpi=70)
    parts = []
    for title, columns, lines in league.tables(found):
        table = [columns, ["---"] * len(columns), *lines]
        parts.append("\n".join([f"{title[0].upper()}{title[1:]}:", "", *(f"| {' | '.join(line)} |" for line in table)]))
    return "\n\n".join(parts)


PARTS = {
    "cost": (
        cost, "## Cost of opponents",
        "IPPO on particle/simple_ball, 128 environments, one thread, median of the second half.",
    ),
    "elo": (
        ladder, "## Ratings over time",
        "IPPO on particle/simple_ball, 3 M steps, seed 0, opponents sampled uniformly from ten snapshots, half of the "
        "episodes against the current policy. The second table compares the return of a best response, trained from "
        "scratch for 600,000 steps against a checkpoint, with the return of the run's own policy. A goal is worth 2.",
    ),
    "matrix": (
        matrix, "## Cross-play in tag",
        "Both teams are trained by one algorithm for 1 M steps, seed 0, and then paired with the teams of the others: "
        "last checkpoints, about 500 episodes per pair, equal seeds for all pairs.",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="a thousandth of the steps, to test the script")
    given = parser.parse_args(argv)
    given.results.mkdir(parents=True, exist_ok=True)
    job = Measurement(given.runs, given.results, given.quick)
    noted = given.results / "selfplay.json"
    known = json.loads(noted.read_text())["parts"] if noted.exists() else {}
    for name in given.only:
        known[name] = {**reporting.origin(), "seeds": [0], "text": PARTS[name][0](job)}
    content = {**reporting.origin(), "parts": known}
    noted.write_text(json.dumps(content, indent=1) + "\n")
    (given.results / "selfplay.md").write_text(page(content))


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    lines = ["# Self-play", ""]
    for name, (_, title, how) in PARTS.items():
        if part := content["parts"].get(name):
            facts = part["machine"]
            made = f"{reporting.in_words(facts)} ({facts['revision']}), {part['date']}: `{part['command']}`."
            lines += [title, "", f"{how} {made}", "", part["text"], ""]
    lines += ["![Returns of both teams by pair](selfplay_tag.png)"] if "matrix" in content["parts"] else []
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
