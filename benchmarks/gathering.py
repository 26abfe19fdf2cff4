"""Collects the results of the learning benchmark and its baselines: learning.json, learning.md and curves."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jobs import COMMON, JOBS, Job
from learning_pictures import draw_pictures
from provenance import is_present, is_verified, measured, resolved_job
from reporting import in_words, origin, table, whole_number

from coterie.algos import registry
from coterie.assembly.resolve import load_resolved, resolve
from coterie.commands.evaluate import evaluate_baseline, evaluate_run
from coterie.config import sources
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.curves import Run

BASELINE_EPISODES = 10_000


def gather(jobs: Sequence[Job], runs: Path, results: Path, episodes_per_run: int) -> None:
    """Updates the results with all finished runs and prints the unfinished ones."""
    results.mkdir(parents=True, exist_ok=True)
    made = origin()  # before files of this repository are changed
    written = results / "learning.json"
    found: dict[str, dict[str, Any]] = json.loads(written.read_text())["jobs"] if written.exists() else {}
    for job in jobs:
        episodes = job.episodes or episodes_per_run
        seeds = {folder.name.removeprefix("seed"): folder for folder in sorted((runs / job.name).glob("seed[0-9]*/"))}
        read = {seed: one_run(job, folder, episodes) for seed, folder in seeds.items() if finished(folder)}
        missing = [seed for seed in seeds if seed not in read]
        if missing or not read:
            print(f"{job.name}: {'seeds ' + ', '.join(missing) + ' are' if missing else 'is'} not finished")
        if read:
            print(f"{job.name}: {len(read)} runs", flush=True)
            found[job.name] = report(job, read, episodes)
            entries = {job.name: found[job.name] for job in JOBS if job.name in found}
            content = {**made, "common": list(COMMON), "final_episodes": episodes_per_run, "jobs": entries}
            written.write_text(json.dumps(content, indent=2) + "\n")
    draw_pictures(results, found)
    print(write_page(results))


def write_page(results: Path) -> Path:
    """Writes learning.md from learning.json and returns its path."""
    written = results / "learning.md"
    written.write_text(page(json.loads((results / "learning.json").read_text())))
    return written


def finished(folder: Path) -> bool:
    """True if the run completed all its steps."""
    if not (folder / "config.yaml").exists():
        return False
    last = Checkpoints(folder / "checkpoints").latest()
    return last is not None and last.steps >= load_resolved(folder / "config.yaml").config.steps


# ------------------------------------------------------------------------------------------------------------- one run


def one_run(job: Job, folder: Path, episodes: int) -> dict[str, Any]:
    """Learning curve of one seed, and the returns of its best and last checkpoints in fresh evaluation episodes."""
    run = Run.load(folder)
    if job.measure:
        curve = run.curve("", f"eval/metric/{job.measure}")
    else:
        curve = run.curve(job.team, "eval/return_mean") or run.curve("", "eval/return_mean")
    assert curve is not None
    mode = load_resolved(folder / "config.yaml").config.eval.mode
    best = evaluate_run(folder, episodes, mode, "best")
    last = evaluate_run(folder, episodes, mode, "last")
    n = len(best["teams"][job.team]["return_by_agent"]) if job.scale == "agent" and not job.measure else 1
    value = curve.value / n
    passed = {}
    for level in job.passes:
        at = (value >= level).nonzero()[0]
        where = int(at[0]) if len(at) else None
        passed[f"{level:g}"] = None if where is None else [int(curve.steps[where]), float(curve.wall_s[where])]
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        "steps": int(run.rows[-1]["steps"]),
        "wall_s": float(run.rows[-1]["time/wall_s"]),
        "start": float(value[0]),
        "last": float(value[-1]),
        "best": float(value.max()),
        "best_at_steps": int(best["steps"]),
        "evaluations": [[int(at), round(float(x), 4)] for at, x in zip(curve.steps, value, strict=True)],
        "final": best["teams"],
        "final_last": last["teams"],
        "metrics": best["metrics"],
        "metrics_last": last["metrics"],
        "first_passes": passed,
        "date": manifest["started"].partition("T")[0],
        "machine": in_words({**manifest["hardware"], **manifest["versions"]}),
        "git": manifest["git"],
        "command": shlex.join(["coterie", *_portable(manifest["command"][1:], job, folder)]),
    }


def _portable(words: Sequence[str], job: Job, folder: Path) -> list[str]:
    """Arguments of a run with the folder in which the benchmark puts it, instead of the machine's."""
    return [f"out=benchmarks/runs/{job.name}/{folder.name}" if word.startswith("out=") else word for word in words]


def report(job: Job, read: dict[str, dict[str, Any]], episodes: int) -> dict[str, Any]:
    """Summary of a job over its seeds, on both scales, with the baselines of its environment."""
    n = len(next(iter(read.values()))["final"][job.team]["return_by_agent"])
    divisor = n if job.scale == "agent" and not job.measure else 1

    def over_seeds(kind: str, team: str) -> dict[str, Any]:
        total = [run[kind][team]["return_mean"] for run in read.values()]
        agents = len(next(iter(read.values()))[kind][team]["return_by_agent"])
        return {"sum": _spread(total), "agent": _spread([value / agents for value in total])}

    teams, metrics = (list(next(iter(read.values()))[kind]) for kind in ("final", "metrics"))
    return {
        "common": list(COMMON),
        "overrides": list(job.overrides),
        "provenance": measured([*COMMON, *job.overrides], [run["git"] for run in read.values()]),
        "team": job.team,
        "agents": n,
        "scale": job.scale,
        "measure": job.measure,
        "metrics": {name: _spread([run["metrics"][name] for run in read.values()]) for name in metrics},
        "metrics_last": {name: _spread([run["metrics_last"][name] for run in read.values()]) for name in metrics},
        "final": {team: over_seeds("final", team) for team in teams},
        "final_last": {team: over_seeds("final_last", team) for team in teams},
        "final_episodes": episodes,
        "peak": peak([[x for _, x in run["evaluations"]] for run in read.values()]),
        "curve_best": _spread([run["best"] for run in read.values()]),
        "wall_s": _spread([run["wall_s"] for run in read.values()]),
        "baselines": {name: value / divisor for name, value in baselines(job).items()},
        "seeds": read,
    }


def peak(curves: list[list[float]]) -> float:
    """Maximum over evaluations of the mean over seeds; `curves` holds the evaluations of each seed in order."""
    return max(statistics.fmean(values) for values in zip(*curves, strict=False))


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "lowest": min(values),
        "highest": max(values),
    }


def baselines(job: Job) -> dict[str, float]:
    """Mean return of the team (sum over agents), or the measure, of random play and of the script."""
    episodes = min(job.episodes or BASELINE_EPISODES, BASELINE_EPISODES)
    world = tuple(setting for setting in job.overrides if setting.startswith("env"))
    found = {"random": _played(world, job.team, job.measure, (), episodes)}
    if job.script is not None:
        team = f"teams.{job.team}.algo"
        words = (f"{team}=scripted", f"{team}.script={job.script}")
        found[job.script] = _played(world, job.team, None, words, episodes)
    return found


@cache
def _played(world: tuple[str, ...], team: str, measure: str | None, words: tuple[str, ...], episodes: int) -> float:
    """Mean return of a team, or the measure, of random play except for the given settings; jobs of a world share it."""
    found = evaluate_baseline(resolve(["algo=random", *words, *world, "device=cpu", "threads=1"]), episodes)
    return found["metrics"][measure] if measure else found["teams"][team]["return_mean"]


# ------------------------------------------------------------------------------------------------------------ the page


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    lines = [
        "# Learning",
        "",
        "Every run is one process with one thread. Trained by `python benchmarks/learning.py` and collected with "
        f"`--collect`, job by job. All jobs share `{shlex.join(content['common'])}`.",
        "",
        f"*Result*: the checkpoint with the best evaluation during training, evaluated again in "
        f"{content['final_episodes']:,} episodes with other seeds, with sampled or greedy actions as the method was "
        f"published or by `eval.mode`; mean over training seeds, and range from the lowest to the highest seed. "
        f"Baselines are means over {BASELINE_EPISODES:,} episodes, or over the episodes of a job that uses fewer. "
        "*Peak*: the highest mean over seeds of one evaluation during training, as reported by Papoudakis et al. The "
        "maximum of many noisy estimates is biased upward, more so with few episodes per evaluation. *Level*: a "
        "reference, *better* if it is higher than the result, with the conditions that differ from those of the row; "
        "its source is given below the table. Continuous actions of DDPG and TD3 have no noise in evaluations.",
        "",
        *_tuning(content["jobs"]),
        "",
        *table(
            [
                *("job", "seeds", "steps", "return of", "result", "last checkpoint", "peak", "random", "script"),
                *("level", "minutes", "measured"),
            ],
            [_row(name, entry) for name, entry in content["jobs"].items()],
        ),
        "",
    ]
    lines += [*_origins(content["jobs"]), ""]
    jobs = {job.name: job for job in JOBS if job.name in content["jobs"] and job.level is not None}
    levels = [f"- {name}: level {job.level:g}, {job.source}" for name, job in jobs.items()]
    levels += [
        f"- {name}: the result is a mean over {entry['final_episodes']:,} episodes"
        for name, entry in content["jobs"].items()
        if entry.get("final_episodes", content["final_episodes"]) != content["final_episodes"]
    ]
    lines += levels + [""] * bool(levels)
    lines += [
        "Steps and time at which an evaluation first reached a level, by seed:",
        "",
        *_passes(content["jobs"]),
        "",
    ]
    lines += ["Commands:", ""]
    lines += [f"- {name}: `coterie train {shlex.join(entry['overrides'])}`" for name, entry in content["jobs"].items()]
    lines += [""]
    pictures = dict.fromkeys(job.picture for job in JOBS if job.name in content["jobs"])
    lines += [f"![{name}](learning-{name}.png)" for name in pictures]
    return "\n".join(lines) + "\n"


def _tuning(jobs: dict[str, dict[str, Any]]) -> list[str]:
    """Lines on the seeds with which the settings were chosen."""
    tuned = [name for name, entry in jobs.items() if has_preset(entry["overrides"])]
    exceptions = f" Exceptions, with a preset that was tuned for the task: {', '.join(tuned)}." * bool(tuned)
    return [
        "*Tuning*: rows have the defaults, which were chosen with other seeds, mostly on other tasks, or the original "
        f"trainer's settings.{exceptions}",
    ]


def has_preset(overrides: Sequence[str]) -> bool:
    """True if the package has a preset of the algorithm for the environment, other than an original trainer's."""
    settings = dict(setting.split("=", 1) for setting in overrides)
    algo, env = settings["algo"], settings["env"]
    return "original" not in algo and bool(sources.preset("algo_env", f"{algo}/{env}"))


def _action_mode(job: Job) -> str:
    """`sampled` or `greedy`, the way in which the evaluations of a job select actions."""
    config = resolved_job([*COMMON, *job.overrides]).config
    mode = config.eval.mode
    if mode == "auto":
        mode = registry.algorithm(config.algo_of(job.team).name).capabilities.eval_mode
    return {"sample": "sampled", "greedy": "greedy"}[mode]


def _level(job: Job, result: float) -> str:
    """Reference level, with a note if it is better than the result, and the conditions that differ from the row's."""
    if job.level is None:
        return ""
    notes = ", ".join(note for note in ("better" if job.level > result else "", job.conditions) if note)
    return f"{job.level:g} ({notes})" if notes else f"{job.level:g}"


def _row(name: str, entry: dict[str, Any]) -> list[str]:
    job = next(job for job in JOBS if job.name == name)
    steps = max(run["steps"] for run in entry["seeds"].values())
    if measure := entry.get("measure"):
        final, last = entry["metrics"][measure], entry["metrics_last"][measure]
    else:
        final, last = (entry[kind][entry["team"]][entry["scale"]] for kind in ("final", "final_last"))
    who = f"{entry['team']}, per agent" if entry["scale"] == "agent" else f"{entry['team']}, sum"
    who = f"{f'fraction {measure}' if measure else who}, {_action_mode(job)}"
    script = next((value for kind, value in entry["baselines"].items() if kind != "random"), None)
    return [
        name,
        str(len(entry["seeds"])),
        whole_number(steps),
        who,
        f"**{_short(final['mean'])}** ({_short(final['lowest'])} to {_short(final['highest'])})",
        _short(last["mean"]),
        _short(entry["peak"]) if "peak" in entry else "",
        _short(entry["baselines"]["random"]),
        "" if script is None else _short(script),
        _level(job, final["mean"]),
        f"{entry['wall_s']['mean'] / 60:.1f}",
        _measured(job, entry),
    ]


def _measured(job: Job, entry: dict[str, Any]) -> str:
    """Dates and revisions of a row's runs, with the marks that `_origins` explains."""
    runs = entry["seeds"].values()
    dates = sorted({run["date"] for run in runs})
    revisions = {(run["git"]["revision"] or "?")[:7] + "*" * run["git"]["modified"] for run in runs}
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    mark = "" if is_present(entry) else " ‡" if is_verified(entry, [*COMMON, *job.overrides]) else " †"
    return f"{days}, {', '.join(sorted(revisions))}{mark}"


def _origins(jobs: dict[str, dict[str, Any]]) -> list[str]:
    """Lines on machines, versions and marks."""
    machines = {run["machine"] for entry in jobs.values() for run in entry["seeds"].values()}
    return [
        f"*Measured*: date and revision of Coterie ({'; '.join(sorted(machines))}). A star stands for changes that "
        "were not committed, a question mark for an unknown revision. A dagger (†) marks rows whose algorithm, "
        "environment or settings have changed since, by `python benchmarks/provenance.py`; they were not measured "
        "again. A double dagger (‡) marks those whose first updates the present code repeats bit for bit, by `python "
        "benchmarks/verification.py`.",
    ]


def _short(value: float) -> str:
    """Return with an appropriate number of digits."""
    return f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"


def _passes(jobs: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for name, entry in jobs.items():
        runs = entry["seeds"].values()
        for level in next(iter(runs))["first_passes"]:
            reached = [run["first_passes"][level] for run in runs]
            words = ["never" if at is None else f"{whole_number(at[0])} ({at[1] / 60:.1f} min)" for at in reached]
            rows.append([name, level, *words])
    most = max((len(row) for row in rows), default=2)
    return table(
        ["job", "level", *(f"seed {k}" for k in range(most - 2))], [row + [""] * (most - len(row)) for row in rows]
    )
