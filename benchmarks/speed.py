"""Measures environment and training throughput relative to the yardstick, so that machines can be compared.

    python benchmarks/speed.py                        # all cases: about half an hour
    python benchmarks/speed.py --only ippo --rounds 3 --seconds 5
    python benchmarks/speed.py --cuda                 # the cases on a GPU, next to eager PyTorch on the same GPU
    python benchmarks/speed.py --yardstick other.py   # another script that takes SECONDS and prints steps a second

Shared machines lose cores for seconds at a time. Each sample therefore runs in its own process right after a run of the
yardstick, with the same settings of OpenMP, the cases are interleaved over several rounds, and the result is the median
of the speeds with the lowest and the highest. Samples whose yardstick fell below half of its best are discarded and
counted. Writes speed.json, speed.md and speed.png. On a GPU the yardstick runs there, too, with as many environments.
If JaxMARL is installed, its simple_spread is measured, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting import origin, table, whole_number

from coterie.core.errors import UserError, nearest
from coterie.core.process import available_cores

HERE = Path(__file__).resolve().parent
DISCARD_BELOW = 0.5
"""Samples are discarded when their yardstick ran at less than this fraction of its best speed."""
OPENMP = {"GOMP_SPINCOUNT": "3000"}
"""Environment variables that the `coterie` command sets before loading PyTorch; the yardstick runs with them, too."""

_PLAIN = ("algo.normalize_obs=false", "algo.bootstrap_at_limit=true", "algo.value_time_left=false")
"""The work of earlier measurements, and of other libraries: raw observations, values that do not read the time."""
_RECURRENT = (
    *_PLAIN,
    *("algo=mappo", "algo.rnn=gru", "algo.rnn_size=128", "algo.hidden_sizes=[128]", "algo.critic=joint"),
    *("algo.epochs=4", "algo.num_minibatches=4", "algo.rollout_length=128", "algo.sequence_length=128", "num_envs=128"),
)
_EPISODES = (
    *(*_PLAIN, "algo.reward_scale=none", "algo.target_update_interval=200"),
    *("algo=qmix", "algo.rnn=gru", "algo.rnn_size=64", "algo.hidden_sizes=[64]", "algo.obs_last_action=true"),
    *(
        "algo.n_step=1",
        "algo.batch_size=32",
        "algo.rollout_length=26",
        "algo.learning_starts=1000",
        "algo.buffer_size=130000",
    ),
)
"""Recurrent QMIX: 32 whole episodes of 26 timesteps per gradient step."""
_TRANSITIONS = (
    *(*_PLAIN, "algo=vdn", "algo.reward_scale=none", "algo.target_update_interval=200"),
    *("num_envs=32", "algo.rollout_length=16", "algo.hidden_sizes=[64,64]", "algo.batch_size=32"),
    *("algo.gradient_steps=1", "algo.n_step=1", "algo.learning_starts=1000", "algo.buffer_size=130000"),
)
"""Feed-forward VDN: 32 transitions per gradient step."""
_NO_REPLAY = (
    *(
        *_PLAIN,
        "algo=pqn_vdn",
        "algo.reward_scale=none",
        "algo.center_values=false",
        "num_envs=256",
        "algo.rollout_length=16",
    ),
    *("algo.hidden_sizes=[256,256]", "algo.layer_norm=hidden", "algo.epochs=4", "algo.num_minibatches=16"),
)
"""PQN-VDN: four passes over each rollout in 16 minibatches."""


@dataclass(frozen=True)
class Case:
    """One measured configuration, a line of the table.

    Attributes:
        kind: `world` for the environment alone with random actions, `train` for the whole training loop.
        least: Required speed in steps per second, or in yardsticks if `relative`.
        stretch: Desired speed in the same unit.
    """

    name: str
    kind: str
    overrides: tuple[str, ...]
    meaning: str
    least: float | None = None
    stretch: float | None = None
    relative: bool = False
    cuda_envs: int = 0
    """Environments on the GPU; 0 on the CPU."""


def _cases() -> list[Case]:
    import torch

    rows = [
        Case(
            f"world-{num_envs}", "world", (f"num_envs={num_envs}", "algo=random", "device=cpu"), meaning, least, stretch
        )
        for num_envs, meaning, least, stretch in (
            (128, "simple_spread alone, 128 environments", 2.5e6, 10e6),
            (1024, "simple_spread alone, 1,024 environments", 8e6, 20e6),
            (8192, "simple_spread alone, 8,192 environments", 15e6, 25e6),
        )
    ]
    rows += [
        Case(
            f"{family}-{task}",
            "world",
            (f"env={family}/{task}", "num_envs=1024", "algo=random", "device=cpu"),
            f"{family}/{task} alone, 1,024 environments",
            0.3e6,
        )
        for family, task in (
            ("foraging", "8x8-2p-2f"),
            ("warehouse", "small-4ag"),
        )
    ]
    rows += [
        Case(
            "ippo", "train", ("algo=ippo/yardstick", "device=cpu"), "IPPO, same work as the yardstick", 1.8, 2.5, True
        ),
        Case("rmappo", "train", (*_RECURRENT, "device=cpu"), "recurrent MAPPO, GRU 128", 0.22, 0.3, True),
        Case(
            "rqmix",
            "train",
            (*_EPISODES, "num_envs=8", "algo.gradient_steps=1", "device=cpu"),
            "recurrent QMIX, GRU 64, 8 environments, one gradient step per 208 steps",
            *(0.32, 0.5, True),
        ),
        Case(
            "rqmix-128",
            "train",
            (*_EPISODES, "num_envs=128", "algo.gradient_steps=16", "device=cpu"),
            "the same with 128 environments, 16 gradient steps per 3,328 steps",
            *(0.5, 0.8, True),
        ),
        Case(
            "vdn",
            "train",
            (*_TRANSITIONS, "device=cpu"),
            "VDN, 32 environments, one gradient step per 512 steps",
        ),
        Case(
            "pqn-vdn",
            "train",
            (*_NO_REPLAY, "device=cpu"),
            "PQN-VDN, 256 environments, 64 gradient steps per 4,096 steps",
        ),
        Case(
            "coma-original",
            "train",
            ("algo=coma/original", "device=cpu"),
            "COMA, preset `coma/original`, one update per 50 steps of all environments",
        ),
        Case(
            "coma-original-500",
            "train",
            ("algo=coma/original", "algo.rollout_length=510", "device=cpu"),
            "the same, one update per 500 steps",
            *(0.7, 1.0, True),
        ),
        Case(
            "maddpg-original",
            "train",
            ("algo=maddpg/original", "device=cpu"),
            "MADDPG, preset `maddpg/original`, one update per 100 steps of all environments",
        ),
        Case(
            "maddpg-original-500",
            "train",
            ("algo=maddpg/original", "algo.rollout_length=500", "device=cpu"),
            "the same, one update per 500 steps",
            *(0.9, 1.4, True),
        ),
    ]
    return rows + _cuda_cases() if torch.cuda.is_available() else rows


def _cuda_cases() -> list[Case]:
    """Cases on a GPU, with 128 and 16,384 environments."""
    rows = []
    for count, text, name in ((128, "128", ""), (16384, "16,384", "-16k")):
        size = (f"num_envs={count}", "device=cuda")
        on = f"on CUDA, {text} environments"
        world = ("algo=random", *size)
        ippo, rmappo = (3e6, 5e5) if name else (None, None)
        rows += [
            Case(f"world-cuda{name}", "world", world, f"simple_spread alone {on}", cuda_envs=count),
            Case(
                f"ippo-cuda{name}", "train", ("algo=ippo/yardstick", *size), f"IPPO {on}", None, ippo,
                cuda_envs=count,
            ),
            Case(
                f"rmappo-cuda{name}", "train", (*_RECURRENT, *size), f"recurrent MAPPO {on}", None, rmappo,
                cuda_envs=count,
            ),
            Case(
                f"rmappo-cuda{name}-bf16", "train", (*_RECURRENT, *size, "precision=bfloat16"),
                f"the same with precision=bfloat16, {text} environments", cuda_envs=count,
            ),
            Case(
                f"ippo-cuda{name}-graphs", "train", ("algo=ippo/yardstick", *size, "cuda_graphs=on"),
                f"IPPO with cuda_graphs=on, {text} environments", cuda_envs=count,
            ),
            Case(
                f"rmappo-cuda{name}-graphs", "train", (*_RECURRENT, *size, "cuda_graphs=on"),
                f"recurrent MAPPO with cuda_graphs=on, {text} environments", cuda_envs=count,
            ),
        ]  # fmt: skip
        if importlib.util.find_spec("jaxmarl") is not None:
            meaning = f"JaxMARL's simple_spread alone {on}"
            rows.append(Case(f"jaxmarl-world{name}", "jaxmarl", (f"num_envs={count}",), meaning, cuda_envs=count))
    return rows


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.sample is not None:
        print(json.dumps(sample(case_named(given.sample), given.seconds, given.threads)))
        return 0
    if given.cuda and not _has_gpu():
        print("--cuda: PyTorch finds no GPU here, so nothing was measured.", file=sys.stderr)
        return 2
    rows = [case_named(name) for name in given.only] or (_cuda_cases() if given.cuda else _cases())
    for number, samples in enumerate(measure(rows, given), 1):
        write(samples, number, given)
    print((given.results / "speed.md").read_text())
    return 0


def write(samples: dict[Case, list[dict[str, Any]]], rounds: int, given: argparse.Namespace) -> None:
    """Writes the results of the rounds so far."""
    content = {
        **origin(),
        "threads": given.threads,
        "yardstick": given.yardstick.name,
        "rounds": rounds,
        "seconds": given.seconds,
        "rows": [summarize(row, taken) for row, taken in samples.items()],
    }
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "speed.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "speed.md").write_text(page(content))
    picture(content).savefig(given.results / "speed.png", dpi=150)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="a case; may be given several times"
    )
    parser.add_argument("--cuda", action="store_true", help="only the cases on a GPU")
    parser.add_argument("--rounds", type=int, default=7, help="samples per case")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of one sample")
    parser.add_argument("--threads", type=int, default=available_cores(), help="PyTorch threads of every process")
    parser.add_argument(
        "--yardstick", type=Path, default=HERE / "yardstick.py", metavar="FILE", help="reference script"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    parser.add_argument("--sample", metavar="CASE", help=argparse.SUPPRESS)  # used when this script starts itself
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def case_named(name: str) -> Case:
    found = {row.name: row for row in _cases()}
    if name not in found:
        raise UserError(f"--only {name}: no such case. {nearest(name, found).capitalize()}")
    return found[name]


# ------------------------------------------------------------------------------------------------------------ measuring


def sample(row: Case, seconds: float, threads: int) -> dict[str, Any]:
    """Measures a case in this process: steps_per_s and memory; for training also mean_steps_per_s, phases_ms."""
    import torch

    if row.kind == "jaxmarl":
        import jaxmarl_world

        return {"steps_per_s": jaxmarl_world.measure(row.cuda_envs, seconds), "memory": {"peak_mb": None}}

    from coterie.assembly.resolve import resolve
    from coterie.commands.benchmark import bench, measure_env, memory
    from coterie.core.process import configure_process
    from coterie.kernels import switch

    resolved = resolve(["env=particle/simple_spread", *row.overrides, f"threads={threads}"])
    if row.kind == "world":
        configure_process(threads)
        device = torch.device(resolved.config.device)
        switch.configure(resolved.config.kernels, resolved.config.device)
        return {"steps_per_s": measure_env(resolved.config, device, seconds), "memory": memory(device)}
    report = bench(resolved, seconds)
    phases = {name: phase["ms_per_round"] for name, phase in report["time"].items()}
    speeds = {"steps_per_s": report["steps_per_s_quiet"], "mean_steps_per_s": report["steps_per_s"]}
    return {**speeds, "memory": report["memory"], "phases_ms": phases}


def measure(rows: list[Case], given: argparse.Namespace) -> Iterator[dict[Case, list[dict[str, Any]]]]:
    """Yields after each round the samples of all cases, each with the yardstick run just before it."""
    samples: dict[Case, list[dict[str, Any]]] = {row: [] for row in rows}
    for number in range(given.rounds):
        for row in rows:
            taken = take(row, given)
            samples[row].append(taken)
            print(
                f"round {number + 1} of {given.rounds}: {row.name} {whole_number(taken['steps_per_s'])} steps/s, "
                f"yardstick {whole_number(taken['yardstick']['steps_per_s_quiet'])}",
                file=sys.stderr,
                flush=True,
            )
        yield samples


def take(row: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Runs the yardstick and then the case, each in its own process, and returns the sample with its `yardstick`."""
    own = given.yardstick.resolve() == HERE / "yardstick.py"
    reference = [sys.executable, str(given.yardstick), str(given.seconds / 2), *["--json"] * own]
    on_gpu = ["--cuda", str(row.cuda_envs)] if own and row.cuda_envs else []
    output = last_line([*reference, *on_gpu], given.threads)
    stick = output if isinstance(output, dict) else {"steps_per_s_quiet": output}
    duration = ["--seconds", str(given.seconds), "--threads", str(given.threads)]
    mine = [sys.executable, str(Path(__file__).resolve()), *duration, "--sample", row.name]
    return last_line(mine, given.threads) | {"yardstick": stick}


def last_line(words: list[str], threads: int) -> Any:
    """Runs a process and returns the last line that it prints, parsed as JSON."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        env=os.environ | OPENMP | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
    )
    if done.returncode:
        raise UserError(f"{shlex.join(words)} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def undisturbed(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples whose yardstick ran at not less than `DISCARD_BELOW` of its best speed."""
    best = max(taken["yardstick"]["steps_per_s_quiet"] for taken in samples)
    return [taken for taken in samples if taken["yardstick"]["steps_per_s_quiet"] >= DISCARD_BELOW * best]


def summarize(row: Case, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Result of a case: medians of its speed, of the yardstick and of their ratio, and the range of the speed."""
    calm = undisturbed(samples)
    speeds = [taken["steps_per_s"] for taken in calm]
    sticks = [taken["yardstick"]["steps_per_s_quiet"] for taken in calm]
    result = {
        "name": row.name,
        "meaning": row.meaning,
        "overrides": list(row.overrides),
        "least": row.least,
        "stretch": row.stretch,
        "relative": row.relative,
        "steps_per_s": statistics.median(speeds),
        "range": [min(speeds), max(speeds)],
        "yardstick": statistics.median(sticks),
        "ratio": statistics.median(mine / stick for mine, stick in zip(speeds, sticks, strict=True)),
        "discarded": len(samples) - len(calm),
        "peak_mb": max(taken["memory"]["peak_mb"] or 0 for taken in samples),
        "samples": samples,
    }
    if "phases_ms" in calm[0]:
        names = calm[0]["phases_ms"]
        result["phases_ms"] = {name: statistics.median(taken["phases_ms"][name] for taken in calm) for name in names}
    if "gpu_peak_mb" in calm[0]["memory"]:
        result["gpu_peak_mb"] = max(taken["memory"]["gpu_peak_mb"] for taken in samples)
    parts = [taken["yardstick"] for taken in calm if "collect_ms" in taken["yardstick"]]
    if parts:
        for name in ("collect_ms", "update_ms"):
            result[f"yardstick_{name}"] = statistics.median(part[name] for part in parts)
    return result


# ----------------------------------------------------------------------------------------------------------- the report


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    facts = content["machine"]
    lines = [
        "# Speed",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, {', '.join(facts['gpus']) or 'no GPU'}, PyTorch {facts['torch']}, "
        f"threads: {content['threads']}, Coterie {facts['coterie']} ({facts['revision']}), {content['date']}.",
        f"Made by `{content['command']}`: {_rounds(content['rounds'])} of {content['seconds']:g} s, "
        f"median of the speeds and range. The yardstick is `{content['yardstick']}`, run for half as long before every "
        "sample; *ratio* is the median of the ratios of a sample and its yardstick.",
        "",
        *table(
            [
                "case",
                "steps/s",
                "lowest to highest",
                "yardstick",
                "ratio",
                "required / desired",
                "discarded",
                "peak MB",
            ],
            [_line(row) for row in content["rows"]],
        ),
        "",
    ]
    for row in content["rows"]:
        if "phases_ms" in row:
            lines += [f"{row['meaning']}: `{shlex.join(row['overrides'])}`", "", *_cost(row), ""]
    return "\n".join([*lines, "![speed](speed.png)"]) + "\n"


def _rounds(count: int) -> str:
    return f"{count} round" if count == 1 else f"{count} rounds"


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
        " to ".join(f"{speed:,.0f}" for speed in row["range"]),
        f"{row['yardstick']:,.0f}",
        f"{row['ratio']:.2f}",
        " / ".join(asked),
        str(row["discarded"]),
        memory,
    ]


def _cost(row: dict[str, Any]) -> list[str]:
    """Time of each phase of an iteration, next to the two phases of the bare script for the same work."""
    phases = row["phases_ms"]
    collect = phases["environment"] + phases["acting"] + phases["storing"]
    update = phases["targets"] + phases["update"]
    columns = ["milliseconds per iteration", *phases, "collect", "total update"]
    rows = [["Coterie", *(f"{t:.1f}" for t in phases.values()), f"{collect:.1f}", f"{update:.1f}"]]
    if row["name"].startswith("ippo") and "yardstick_collect_ms" in row:
        bare = (row["yardstick_collect_ms"], row["yardstick_update_ms"])
        rows.append(["the bare script", *[""] * len(phases), *(f"{t:.1f}" for t in bare)])
        rows.append(["ratio", *[""] * len(phases), f"{collect / bare[0]:.2f}", f"{update / bare[1]:.2f}"])
    return table(columns, rows)


def picture(content: dict[str, Any]) -> Any:
    """Bar chart of the speed of every case in yardsticks, with the required and desired levels."""
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
    axes.set_xlabel("speed in yardsticks (solid: required, dotted: desired)")
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
