"""Learning curves of the learning benchmark, drawn from the evaluations in learning.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jobs import JOBS, Job
from matplotlib.figure import Figure

from coterie.runs.plots import COLORS, mean_and_band

ORIGINAL = Path(__file__).resolve().parent / "original_curves.json"
"""Written by original_curves.py."""


def draw_pictures(results: Path, jobs: Mapping[str, dict[str, Any]]) -> None:
    """Writes learning-NAME.png for every picture that a job belongs to, and removes those of no job.

    Args:
        results: Folder of the pictures.
        jobs: Entries of learning.json by job.
    """
    shown: dict[str, list[Job]] = {}
    for job in JOBS:
        if job.name in jobs:
            shown.setdefault(job.picture, []).append(job)
    for name, together in shown.items():
        draw({job: jobs[job.name] for job in together}).savefig(results / f"learning-{name}.png", dpi=150)
    for file in results.glob("learning-*.png"):
        if file.stem.removeprefix("learning-") not in shown:
            file.unlink()


def draw(entries: Mapping[Job, dict[str, Any]]) -> Figure:
    """Draws mean and range over seeds of the evaluations of jobs, with their reference levels."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    original = json.loads(ORIGINAL.read_text())["curves"]
    for (job, entry), color in zip(entries.items(), COLORS * len(entries), strict=False):
        curves = [np.array(run["evaluations"]).T for run in entry["seeds"].values()]
        band = mean_and_band([(x, y) for x, y in curves])
        assert band is not None
        grid, mean, low, high = band
        label = f"{job.name} ({len(curves)} seeds)"
        axes.plot(grid / 1e6, mean, color=color, label=label)
        axes.fill_between(grid / 1e6, low, high, color=color, alpha=0.2, linewidth=0)
        if job.curve is not None:
            steps, rewards = np.array(original[job.curve]["points"]).T
            axes.plot(steps / 1e6, rewards, color=color, linestyle=":", label=f"{job.curve} by its author, one seed")
    for level in sorted({job.level for job in entries if job.level is not None}):
        axes.axhline(level, color="0.3", linewidth=1, linestyle=(0, (5, 2)), label=f"level {level:g}")
    axes.set_xlabel("environment steps (millions)")
    axes.set_ylabel("evaluation, mean and range over seeds")
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure
