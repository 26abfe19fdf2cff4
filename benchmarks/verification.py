"""Shows which rows of the learning benchmark would come out the same with the present code.

    python benchmarks/verification.py                     # all rows whose code or settings have changed since
    python benchmarks/verification.py --only simple-ppo --only rooms-ppo
    python benchmarks/verification.py --write             # records rows that are the same and writes learning.md
    python benchmarks/verification.py --against REVISION  # short runs of all algorithms, then and now

The first iterations of a row are trained twice: by the code of the row's revision with the settings of that time, and
by the present code with the present settings. The row stands if every tensor of the last checkpoint (parameters,
optimizers, statistics, environments, random generators) and every metric apart from times has the same bits. Both
runs use one thread. If the kernels changed their rounding, the runs are compared once more without kernels.

Rows without a known, committed revision cannot be compared and must be measured again.

With `--against`, short runs of every algorithm, feed-forward and recurrent, with and without kernels, with one team and
several, are compared in the same way: a change that only moves code leaves all of them as they were.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import provenance
from jobs import COMMON, JOBS, Job
from provenance import is_present, present_digest, resolved_job, source_at
from reporting import origin
from safetensors import safe_open

ITERATIONS = 4
"""Rollouts and updates that are compared, after the steps that fill a replay buffer."""

LEAST_STEPS = 2000
"""Steps that are compared at least; environments of one instance take few steps per iteration."""


SMALL = (
    *("num_envs=4", "algo.hidden_sizes=[16,16]", "steps=1200", "seed=3", "threads=1", "device=cpu", "progress=off"),
    *("log.tensorboard=false", "eval.every=600", "eval.episodes=4", "eval.num_envs=4", "eval.min_episodes=1"),
)
"""Settings of a short run, which a case may override."""

ON_POLICY = ("ippo", "mappo", "ia2c", "maa2c", "poca", "coma")
OFF_POLICY = ("iql", "vdn", "qmix", "qplex", "wqmix", "maddpg", "matd3", "masac")


def short_runs() -> dict[str, list[str]]:
    """Returns the settings of the runs that `--against` compares, by name."""
    spread, early = "env=particle/simple_spread", ("algo.learning_starts=200", "algo.buffer_size=2000")
    cases: dict[str, list[str]] = {}
    for algo in (*ON_POLICY, *OFF_POLICY):
        more = ["algo.rollout_length=25"] if algo in ON_POLICY else list(early)
        world = f"{spread} env.actions=continuous".split() if algo == "matd3" else [spread]
        for kernels in ("on", "off"):
            for memory in ("none", "gru") if algo not in ("qplex", "wqmix", "maddpg", "matd3", "masac") else ("none",):
                rnn = [] if memory == "none" else ["algo.rnn=gru", "algo.rnn_size=8", "num_envs=8"]
                cases[f"{algo}, rnn {memory}, kernels {kernels}"] = [
                    *(f"algo={algo}", *world, *more, *rnn),
                    f"kernels={kernels}",
                ]
    for original in ("mappo/original", "coma/original", "maddpg/original"):
        cases[original] = [f"algo={original}", spread, "num_envs=16"]
    tag = "env=particle/simple_tag"
    cases["several teams"] = [tag, "algo=mappo", "algo.rollout_length=25", "teams.agent.algo=ippo"]
    cases["several teams off-policy"] = [tag, "algo=qmix", *early, "teams.agent.algo=iql"]
    cases["several teams continuous"] = [tag, "env.actions=continuous", "algo=masac", *early, "teams.agent.algo=td3"]
    cases["several teams scripted"] = ["env=particle/simple_adversary", "algo=poca", "teams.adversary.algo=random"]
    cases["skirmish with masks and deaths"] = ["env=skirmish/3m", "algo=mappo"]
    cases["foraging with own rewards"] = ["env=foraging/8x8-2p-2f", "algo=vdn", *early]
    cases["curiosity"] = [spread, "algo=mappo", "rewards.icm.weight=0.1"]
    cases["random network distillation"] = [spread, "algo=ippo", "rewards.rnd.weight=0.1"]
    cases["self-play"] = ["env=board/tictactoe", "algo=ippo", "selfplay.opponents=latest"]
    cases["Gymnasium"] = ["env=gym/CartPole-v1", "algo=ppo"]
    cases["images"] = ["env=probe/image", "algo=ppo"]
    return cases


def compare_revision(revision: str, only: Sequence[str]) -> int:
    """Prints for every short run whether the package at a revision and the present one give the same bits.

    Returns:
        The number of runs that differ.
    """
    different = 0
    with tempfile.TemporaryDirectory() as folder, source_at(revision) as package:
        for number, (name, settings) in enumerate(short_runs().items()):
            if only and not any(part in name for part in only):
                continue
            words = last_of([*SMALL, *settings])
            try:
                found = differences(
                    train(package, words, Path(folder) / f"{number}-old"),
                    train(provenance.PACKAGE, words, Path(folder) / f"{number}-new"),
                )
            except RuntimeError as error:
                found = [f"a run failed: {error}"]
            different += bool(found)
            print(f"{name}: {'; '.join(found) or 'the same'}", flush=True)
    return different


def short(job: Job) -> int:
    """Environment steps that fill the replay buffer and contain `ITERATIONS` updates."""
    config = resolved_job([*COMMON, *job.overrides]).config
    settings = [config.algo.params, *(team.algo.params for team in config.teams.values())]
    length = max(getattr(algo, "rollout_length", 1) for algo in settings)
    starts = max(getattr(algo, "learning_starts", 0) for algo in settings)
    return max(LEAST_STEPS, starts + starts // 4 + ITERATIONS * config.num_envs * length)


def train(package: Path, words: Sequence[str], out: Path) -> dict[str, Any]:
    """Trains with the source of a package and returns what can be compared.

    Returns:
        `tensors`, how often each content occurs in the last checkpoint, and `metrics`, the rows without times.

    Raises:
        RuntimeError: If the run fails; the message is the end of its output.
    """
    command = [sys.executable, "-m", "coterie", "train", *words, f"out={out}"]
    environment = os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1", "COTERIE_TRUST": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip())[-400:])
    last = max(path for path in (out / "checkpoints").iterdir() if path.name.isdigit())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "tensors": contents(last.glob("*.safetensors")),
        "metrics": [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows],
    }


def contents(files: Any) -> Counter[str]:
    """Counts tensors by type, shape and bits; their names may change without changing the results."""
    found: Counter[str] = Counter()
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                value = file.get_tensor(name).contiguous()
                data = hashlib.sha256(value.reshape(-1).view(_bytes()).numpy().tobytes()).hexdigest()
                found[f"{value.dtype} {tuple(value.shape)} {data}"] += 1
    return found


def _bytes() -> Any:
    import torch

    return torch.uint8


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the differences between two runs, empty if the new one repeats the old one.

    Tensors and metrics that only the new run has are no difference: a version may record more.
    """
    found = []
    missing = old["tensors"] - new["tensors"]
    if missing:
        shapes = ", ".join(sorted({key.rpartition(" ")[0] for key in missing})[:3])
        found.append(f"{missing.total()} of {old['tensors'].total()} tensors differ ({shapes})")
    if [row["steps"] for row in old["metrics"]] != [row["steps"] for row in new["metrics"]]:
        return [*found, "metrics are recorded at other steps"]
    for before, now in zip(old["metrics"], new["metrics"], strict=True):
        changed = [key for key in before if key in now and not _same(before[key], now[key])]
        if changed:
            return [*found, f"at step {before['steps']:,}: {', '.join(changed[:4])}"]
    return found


def _same(one: Any, other: Any) -> bool:
    """Equal, or both NaN."""
    return one == other or (one != one and other != other)


def verify(job: Job, entry: Mapping[str, Any]) -> dict[str, Any] | str:
    """Compares a row's code with the present one.

    Returns:
        What learning.json records of a row that stands, otherwise the reason why it does not.
    """
    revisions = {run["git"]["revision"] for run in entry["seeds"].values()}
    if None in revisions or any(run["git"]["modified"] for run in entry["seeds"].values()):
        return "its revision is unknown or was not committed"
    steps, why = short(job), ""
    for extra in ((), ("kernels=off",)):
        try:
            equal, why = _compare(job, entry, sorted(revisions), steps, extra)
        except RuntimeError as error:
            return why or f"a run failed: {error}"
        if equal:
            return {
                "present": present_digest([*COMMON, *job.overrides]),
                "steps": steps,
                "settings": ["seed=0", *extra],
                **origin(),
            }
    return why


def _compare(
    job: Job, entry: Mapping[str, Any], revisions: Sequence[str], steps: int, extra: Sequence[str]
) -> tuple[bool, str]:
    """True and nothing if all revisions repeat the present run, otherwise False and the first difference."""
    size = [f"steps={steps}", "seed=0", *extra]
    with tempfile.TemporaryDirectory() as folder:
        new = train(provenance.PACKAGE, last_of([*COMMON, *job.overrides, *size]), Path(folder) / "new")
        for revision in revisions:
            with source_at(revision) as package:
                mine = size if (package / "kernels" / "switch.py").exists() else size[:2]
                words = last_of([*entry["common"], *entry["overrides"], *mine])
                old = train(package, words, Path(folder) / revision)
            if found := differences(old, new):
                return False, f"{revision[:7]}: {'; '.join(found)}"
    return True, ""


def last_of(words: Sequence[str]) -> list[str]:
    """Settings of which the last one wins, once each."""
    return [f"{key}={value}" for key, value in dict(word.split("=", 1) for word in words).items()]


def main(argv: Sequence[str]) -> int:
    from gathering import write_page

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a job; may be given several times")
    parser.add_argument("--write", action="store_true", help="record rows that stand, and write learning.md again")
    parser.add_argument("--results", type=Path, default=provenance.HERE / "results", help="folder of learning.json")
    parser.add_argument("--against", metavar="REVISION", help="compare short runs of all algorithms with a revision")
    given = parser.parse_args(argv)
    if given.against:
        return min(compare_revision(given.against, given.only), 1)
    path = given.results / "learning.json"
    content = json.loads(path.read_text())
    if given.write and origin()["machine"]["revision"].endswith("and changes"):
        print("error: commit your changes first, so that the verified revision is known", file=sys.stderr)
        return 2
    for job in JOBS:
        entry = content["jobs"].get(job.name)
        if entry is None or (given.only and job.name not in given.only) or is_present(entry):
            continue
        found = verify(job, entry)
        print(f"{job.name}: {found if isinstance(found, str) else 'the same'}", flush=True)
        entry.pop("verified", None)
        if not isinstance(found, str):
            entry["verified"] = found
        if given.write:
            path.write_text(json.dumps(content, indent=2) + "\n")
    if given.write:
        print(write_page(given.results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
