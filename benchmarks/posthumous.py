"""MA-POCA on coop/escape, and the same learner in which an agent's return stops at its own end: who learns to fall?

    python benchmarks/posthumous.py [--steps 1M] [--seeds 0,1,2] [--results FOLDER]

Escape pays the group when a door is opened, and somebody has to fall first. The control differs from MA-POCA in one
thing: what the group earns after an agent's end is not counted to the agent. Writes posthumous.json and posthumous.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch
from reporting import machine, table

import coterie
from coterie.algos.poca import POCA
from coterie.math.returns import bootstrap_masks, lambda_return, valid_mask
from coterie.math.statistics import standardize

HERE = Path(__file__).resolve().parent
ENV = "coop/escape"

_whole = POCA._targets


def truncated_targets(self: POCA, window):
    """Targets as ever, and advantages from returns that stop at an agent's own end."""
    batch, starts, explained = _whole(self, window)
    mean, scale = self._value_scale()
    real = batch.value * scale + mean  # [T, B, 1 + N, K], V of the group first
    _, last, _ = self._values(self.policy.normalize(window.obs), window, None)
    following = torch.cat([real[1:, :, :1], last * scale + mean])
    ended, boundary = (x.unsqueeze(-1) for x in bootstrap_masks(window, as_team=False, agents_can_die=True))
    reward = torch.stack([signal.reward(window) for signal in self.signals], -1)
    own = lambda_return(
        reward.expand(*ended.shape[:-1], -1), following.expand(*ended.shape[:-1], -1), ended, boundary, self._gamma,
        self.config.td_lambda,
    )  # fmt: skip
    gain = (own - real[:, :, 1:]).mean(-1)
    return replace(batch, advantage=standardize(gain, valid_mask(window))), starts, explained


def trained(seed: int, steps: str, mistaken: bool) -> dict[str, float]:
    """Mean return and length of 1,000 episodes after training."""
    POCA._targets = truncated_targets if mistaken else _whole
    with tempfile.TemporaryDirectory() as folder:
        run = coterie.train(
            algo="poca", env=ENV, steps=steps, seed=seed, device="cpu", out=f"{folder}/run", progress="off",
            eval={"every": 0}, log={"tensorboard": False},
        ).run  # fmt: skip
        found = coterie.evaluate(run, episodes=1000, checkpoint="last")["teams"]["team"]
    return {"return": found["return_mean"], "length": found["length_mean"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1M")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = {}
    for name, mistaken in (("MA-POCA", False), ("its agents' futures cut at their ends", True)):
        found[name] = [trained(seed, given.steps, mistaken) for seed in seeds]
        print(name, found[name], flush=True)
    date = datetime.now().astimezone().date().isoformat()
    content = {"machine": machine(), "date": date, "env": ENV, "steps": given.steps, "seeds": seeds, "found": found}
    (given.results / "posthumous.json").write_text(json.dumps(content, indent=2) + "\n")
    rows = [
        [name, f"{statistics.mean(returns):.3f}", " ".join(f"{x:.3f}" for x in returns)]
        for name, runs in found.items()
        for returns in [[run["return"] for run in runs]]
    ]
    head = f"# Who learns to fall\n\nShare of {ENV}'s episodes in which the group gets out, after {given.steps} steps; "
    tail = f"seeds {given.seeds}, 1,000 episodes each, sampled actions. `python benchmarks/posthumous.py`, {date}.\n"
    lines = "\n".join(table(["learner", "mean", "seeds"], rows))
    (given.results / "posthumous.md").write_text(f"{head}{tail}\n{lines}\n")


if __name__ == "__main__":
    main()
