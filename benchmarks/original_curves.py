"""Learning curves of the 2020 trainer, from its public training logs: writes original_curves.json.

    git clone https://github.com/shawnmanuel000/MultiAgentFootball
    python benchmarks/original_curves.py MultiAgentFootball

Each curve has the means of the logged episodes within a fiftieth of the run. A logged step is one step of 16
environments. Actions are drawn from the policy.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent / "original_curves.json"
ENVIRONMENTS, POINTS = 16, 50

LOGS = {
    "mappo/original": ("mappo/simple_spread/logs_98.txt", 3_200_000),
    "mappo/original_best": ("mappo/simple_spread/logs_99.txt", 3_200_000),
    "coma/original": ("coma/simple_spread/logs_158.txt", 3_200_000),
    "maddpg/original": ("maddpg/simple_spread/logs_117.txt", 3_200_000),
    "mappo/original_tag": ("mappo/simple_tag/logs_1.txt", 1_600_000),
}
"""Log and environment steps that are shown, by preset. The reward is that of the first agent: a predator in
simple_tag."""


def curve(text: str, most: int) -> list[list[float]]:
    """Returns environment steps and mean rewards of the first agent from the text of a log."""
    found = re.findall(r"^Step:\s*(\d+), Reward: \[\s*(-?[\d.]+)", text, re.MULTILINE)
    steps, rewards = np.array(found, dtype=float).T
    steps *= ENVIRONMENTS
    place = np.ceil(steps / most * POINTS).clip(1)
    return [
        [round(k * most / POINTS), round(float(rewards[place == k].mean()), 2)]
        for k in range(1, POINTS + 1)
        if (place == k).any()
    ]


def main(repository: str) -> int:
    git = ("git", "-C", repository)
    revision = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    curves = {}
    for preset, (name, most) in LOGS.items():
        shown = subprocess.run([*git, "show", f"HEAD:logs/{name}"], check=True, capture_output=True, text=True)
        curves[preset] = {"log": f"logs/{name}", "points": curve(shown.stdout, most)}
    content = {"repository": "https://github.com/shawnmanuel000/MultiAgentFootball", "revision": revision}
    OUT.write_text(json.dumps(content | {"curves": curves}) + "\n")
    print(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
