"""Measures training throughput of Coterie and of JaxMARL's baselines on the same workloads, in turns.

    python benchmarks/jaxmarl_speed.py --jaxmarl CHECKOUT --jax-python PYTHON    # all rows: about half an hour
    python benchmarks/jaxmarl_speed.py --only vdn --rounds 3 --seconds 5         # Coterie and the yardstick only
    python benchmarks/jaxmarl_speed.py --page                                    # page and picture of the saved results

CHECKOUT is a checkout of https://github.com/FLAIROx/JaxMARL, and PYTHON the interpreter of an environment with
jax[cpu] flax optax distrax chex flashbax gymnax jaxtyping hydra-core omegaconf safetensors scipy matplotlib imageio
pygame. Each round takes for each row the yardstick, Coterie and JaxMARL, one after the other, each in its own process.
A sample of Coterie is one of `speed.py`. A sample of JaxMARL is one training after its compilation, of as many steps as
last about --seconds; how many that are is measured once before the first round. Samples whose yardstick fell below half
of its best are discarded and counted. Writes jaxmarl.json, jaxmarl.md and jaxmarl.png after each round.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import speed
from reporting import in_words, origin, table, whole_number

from coterie.core.errors import UserError, nearest
from coterie.core.process import available_cores

HERE = Path(__file__).resolve().parent
CALIBRATION = 0.1
"""Share of a workload's steps that JaxMARL trains for in order to measure how many last as long as a sample."""


@dataclass(frozen=True)
class Workload:
    """One configuration that both libraries train, a row of the table.

    Attributes:
        case: Case of `speed.py`, Coterie's side.
        required: Required speed of Coterie in yardsticks.
        script: Baseline of JaxMARL, relative to the folder `baselines` of its checkout.
        config: Its configuration, relative to the same folder.
        steps: Steps that last some seconds.
        settings: Entries of the configuration that are replaced.
    """

    name: str
    case: str
    meaning: str
    required: float
    script: str
    config: str
    steps: float
    settings: tuple[str, ...] = ()


_LARGE = ("NUM_ENVS=128", "NUM_STEPS=128")
WORKLOADS = (
    Workload(
        "ippo",
        "ippo",
        "IPPO, 128 environments x 128 steps, two tanh layers of 64",
        2.6,
        "IPPO/ippo_ff_mpe.py",
        "IPPO/config/ippo_ff_mpe.yaml",
        1e6,
        _LARGE,
    ),
    Workload(
        "rmappo",
        "rmappo",
        "recurrent MAPPO, 128 environments x 128 steps, GRU 128",
        0.38,
        "MAPPO/mappo_rnn_mpe.py",
        "MAPPO/config/mappo_homogenous_rnn_mpe.yaml",
        2e5,
        _LARGE,
    ),
    Workload(
        "rqmix",
        "rqmix",
        "recurrent QMIX, GRU 64, 8 environments x 26 steps, one gradient step of 32 episodes per rollout",
        0.7,
        "QLearning/qmix_rnn.py",
        "QLearning/config/alg/ql_rnn_mpe.yaml",
        1.5e5,
        ("LEARNING_STARTS=1000",),
    ),
    Workload(
        "vdn",
        "vdn",
        "VDN, 32 environments x 16 steps, one gradient step of 32 transitions per rollout",
        5.3,
        "QLearning/vdn_ff.py",
        "QLearning/config/alg/vdn_ff_mpe.yaml",
        1e6,
        ("NUM_LAYERS=4",),  # of which the script makes two hidden layers
    ),
    Workload(
        "pqn-vdn",
        "pqn-vdn",
        "PQN-VDN, 256 environments x 16 steps, two layers of 256 with layer norm, 4 epochs x 16 minibatches",
        1.1,
        "QLearning/pqn_vdn_ff.py",
        "QLearning/config/alg/pqn_vdn_ff_mpe.yaml",
        5e5,
    ),
)


def main(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    file = given.results / "jaxmarl.json"
    if given.page:
        draw(json.loads(file.read_text()) if file.exists() else None, given.results)
        return 0
    check(given)
    rows = [workload_named(name) for name in given.only] or list(WORKLOADS)
    for number, samples in enumerate(measure(rows, given), 1):
        content = {
            **origin(),
            "threads": given.threads,
            "rounds": number,
            "seconds": given.seconds,
            "rows": [summarize(row, taken) for row, taken in samples.items()],
        }
        if given.jaxmarl is not None:
            content["command"] += " --jaxmarl CHECKOUT --jax-python PYTHON"
            content["jaxmarl"] = samples[rows[0]][0]["jaxmarl"]["versions"]
        given.results.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=2) + "\n")
        draw(content, given.results)
    print((given.results / "jaxmarl.md").read_text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="a row; may be given several times")
    parser.add_argument("--rounds", type=int, default=7, help="samples per row")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of one sample")
    parser.add_argument("--jaxmarl", type=Path, metavar="CHECKOUT", help="checkout of JaxMARL")
    parser.add_argument("--jax-python", metavar="PYTHON", help="interpreter of an environment with JAX")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    parser.add_argument("--page", action="store_true", help="measure nothing; write page and picture again")
    # JAX uses all cores, so the others do, too.
    parser.set_defaults(threads=available_cores(), yardstick=HERE / "yardstick.py")
    return parser


def check(given: argparse.Namespace) -> None:
    """Raises UserError for no rounds, one of the options for JaxMARL alone, or a folder that is no checkout of it."""
    if given.rounds < 1:
        raise UserError(f"--rounds {given.rounds}: expected at least 1.")
    if (given.jaxmarl is None) != (given.jax_python is None):
        raise UserError("--jaxmarl and --jax-python: only one of them is given. Give both to measure JaxMARL.")
    if given.jaxmarl is not None and not (given.jaxmarl / "baselines").is_dir():
        raise UserError(
            f"--jaxmarl {given.jaxmarl}: no folder baselines in it. Give a checkout of "
            "https://github.com/FLAIROx/JaxMARL."
        )


def workload_named(name: str) -> Workload:
    found = {row.name: row for row in WORKLOADS}
    if name not in found:
        raise UserError(f"--only {name}: no such row. {nearest(name, found).capitalize()}")
    return found[name]


# ------------------------------------------------------------------------------------------------------------ measuring


def measure(rows: list[Workload], given: argparse.Namespace) -> Iterator[dict[Workload, list[dict[str, Any]]]]:
    """Yields after each round the samples of all rows: of Coterie with its `yardstick`, and with that of `jaxmarl`."""
    steps = {} if given.jaxmarl is None else {row: steps_of_a_sample(row, given) for row in rows}
    samples: dict[Workload, list[dict[str, Any]]] = {row: [] for row in rows}
    for number in range(given.rounds):
        for row in rows:
            taken = speed.take(speed.case_named(row.case), given)
            if row in steps:
                taken["jaxmarl"] = baseline(row, steps[row], given)
            samples[row].append(taken)
            print(f"round {number + 1} of {given.rounds}: {row.name} {_speeds(taken)}", file=sys.stderr, flush=True)
        yield samples


def steps_of_a_sample(row: Workload, given: argparse.Namespace) -> float:
    """Measures how many steps JaxMARL trains for in the duration of a sample."""
    return baseline(row, CALIBRATION * row.steps, given)["steps_per_s"] * given.seconds


def baseline(row: Workload, steps: float, given: argparse.Namespace) -> dict[str, Any]:
    """Trains JaxMARL's side of a workload in its own process, see `jaxmarl_baseline.py`."""
    script = [given.jax_python, str(HERE / "jaxmarl_baseline.py")]
    words = [*script, str(given.jaxmarl), row.script, row.config, f"{steps:.0f}", *row.settings]
    return speed.last_line(words, given.threads)


def _speeds(taken: dict[str, Any]) -> str:
    speeds = {
        "Coterie": taken["mean_steps_per_s"],
        **({"JaxMARL": taken["jaxmarl"]["steps_per_s"]} if "jaxmarl" in taken else {}),
        "yardstick": taken["yardstick"]["steps_per_s"],
    }
    return ", ".join(f"{name} {whole_number(steps_per_s)} steps/s" for name, steps_per_s in speeds.items())


def summarize(row: Workload, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Result of a row: the speeds of the libraries, and the median of the ratios of their speeds in each round.

    All speeds are steps by the whole time of a sample: a training of JaxMARL is one program, whose iterations cannot be
    timed one by one.
    """
    calm = speed.undisturbed(samples)
    sticks = [taken["yardstick"]["steps_per_s"] for taken in calm]
    coterie = [taken["mean_steps_per_s"] for taken in calm]
    result = {
        "name": row.name,
        "meaning": row.meaning,
        "required": row.required,
        "overrides": list(speed.case_named(row.case).overrides),
        "script": row.script,
        "settings": list(row.settings),
        "yardstick": statistics.median(sticks),
        "coterie": _speed(coterie, sticks),
        "discarded": len(samples) - len(calm),
        "samples": samples,
    }
    if "jaxmarl" in calm[0]:
        jaxmarl = [taken["jaxmarl"]["steps_per_s"] for taken in calm]
        result["jaxmarl"] = _speed(jaxmarl, sticks)
        result["ratio"] = _median_ratio(coterie, jaxmarl)
    return result


def _speed(speeds: list[float], sticks: list[float]) -> dict[str, float]:
    middle, ratio = statistics.median(speeds), _median_ratio(speeds, sticks)
    return {"median": middle, "lowest": min(speeds), "highest": max(speeds), "yardsticks": ratio}


def _median_ratio(speeds: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(speeds, others, strict=True))


# ----------------------------------------------------------------------------------------------------------- the report


def draw(content: dict[str, Any] | None, folder: Path) -> None:
    """Writes the page and the picture; without results only a page that says so."""
    folder.mkdir(parents=True, exist_ok=True)
    if content is None:
        (folder / "jaxmarl.md").write_text("# Beside JaxMARL\n\nNothing is measured yet.\n")
        return
    (folder / "jaxmarl.md").write_text(page(content))
    speed.picture({"rows": bars(content)}).savefig(folder / "jaxmarl.png", dpi=150)


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    columns = ["workload", "Coterie, steps/s", "JaxMARL, steps/s", "Coterie / JaxMARL"]
    lines = [
        "# Beside JaxMARL",
        "",
        f"{in_words(content['machine'])} ({content['machine']['revision']}), {_versions(content.get('jaxmarl'))}, "
        f"threads: {content['threads']}, {content['date']}.",
        f"Made by `{content['command']}`, rounds: {content['rounds']}, {content['seconds']:g} s per sample.",
        "",
        *table([*columns, "yardsticks", "required", "discarded"], [_line(row) for row in content["rows"]]),
        "",
        "Speeds are medians, with the lowest and the highest sample. *Yardsticks* is the speed of Coterie divided by "
        "that of `yardstick.py`.",
        "",
        *(_settings(row) for row in content["rows"]),
        "",
        "![Speed in yardsticks of Coterie and JaxMARL](jaxmarl.png)",
    ]
    return "\n".join(lines) + "\n"


def _versions(found: dict[str, str | None] | None) -> str:
    if found is None:
        return "without JaxMARL"
    commit = f"commit {found['commit'][:10]}" if found["commit"] else "commit unknown"
    return f"JaxMARL {found['jaxmarl']} ({commit}), jax {found['jax']}, jaxlib {found['jaxlib']}"


def _line(row: dict[str, Any]) -> list[str]:
    measured = "jaxmarl" in row
    return [
        row["meaning"],
        _range(row["coterie"]),
        _range(row["jaxmarl"]) if measured else "not measured",
        f"**{row['ratio']:.2f}**" if measured else "",
        f"{row['coterie']['yardsticks']:.2f}",
        f"{row['required']:g}",
        str(row["discarded"]),
    ]


def _range(speeds: dict[str, float]) -> str:
    return f"{speeds['median']:,.0f} ({speeds['lowest']:,.0f} to {speeds['highest']:,.0f})"


def _settings(row: dict[str, Any]) -> str:
    theirs = shlex.join([row["script"], *row["settings"]])
    return f"- {row['meaning'].partition(',')[0]}: Coterie `{shlex.join(row['overrides'])}`, JaxMARL `{theirs}`"


def bars(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the picture of `speed.py`: for each workload Coterie and, if measured, JaxMARL."""
    return [
        {
            "meaning": f"{row['meaning'].partition(',')[0]}, {library}",
            "steps_per_s": row[key]["median"],
            "ratio": row[key]["yardsticks"],
            "least": required,
            "stretch": None,
            "relative": True,
        }
        for row in content["rows"]
        for library, key, required in (("Coterie", "coterie", row["required"]), ("JaxMARL", "jaxmarl", None))
        if key in row
    ]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
