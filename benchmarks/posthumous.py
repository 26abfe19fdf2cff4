"""MA-POCA on coop/escape, and the same learner in which an agent's return stops at its death.

    python benchmarks/posthumous.py [--steps 1M] [--seeds 0,1,2] [--results FOLDER]

In escape, the group is rewarded when a door opens, for which an agent has to die first. The control differs from
MA-POCA in one thing: rewards of the group after an agent's death do not count for the agent. Writes posthumous.json and
posthumous.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from reporting import in_words, origin, table

import coterie
from coterie.algos.clipped_learner import Targets, ValueState
from coterie.algos.poca import POCA, group_rewards
from coterie.core.types import Rollout
from coterie.math.returns import bootstrap_masks, lambda_return, valid_mask
from coterie.math.statistics import standardize

HERE = Path(__file__).resolve().parent
ENV = "coop/escape"

poca_targets = POCA.targets


def truncated_targets(
    self: POCA, rollout: Rollout, before: ValueState, stream_weights: torch.Tensor | None, *, as_sequences: bool
) -> Targets:
    """MA-POCA's targets with advantages from returns that stop when the agent dies."""
    mean, std = self.value_scale(before.moments)
    found = poca_targets(self, rollout, before, stream_weights, as_sequences=as_sequences)
    batch = found.batch
    value = batch.value * std + mean  # [T, B, 1 + N, K], the group's first
    obs = {name: x[-1:] for name, x in self.policy.normalize(rollout.obs).items()}
    last_value = self.critic(obs, None, rollout.alive[-1:], None, {})[0] * std + mean
    next_value = torch.cat([value[1:, :, :1], last_value])
    terminated, boundary = (x.unsqueeze(-1) for x in bootstrap_masks(rollout, centralized=False, agents_can_die=True))
    shape = (*terminated.shape[:-1], value.shape[-1])
    own = lambda_return(
        reward=group_rewards(rollout).unsqueeze(-1).expand(shape),
        next_value=next_value.expand(shape),
        terminated=terminated,
        boundary=boundary,
        gamma=self.config.gamma,
        td_lambda=self.config.td_lambda,
    )
    advantage = (own - value[:, :, 1:]).squeeze(-1)
    return found._replace(batch=replace(batch, advantage=standardize(advantage, valid_mask(rollout))))


def trained(seed: int, steps: str, truncated: bool) -> dict[str, float]:
    """Mean return and length of 1,000 episodes after training."""
    POCA.targets = truncated_targets if truncated else poca_targets
    with tempfile.TemporaryDirectory() as folder:
        run = coterie.train(
            algo="poca", env=ENV, steps=steps, seed=seed, device="cpu", out=f"{folder}/run", progress="off",
            eval={"every": 0}, log={"tensorboard": False},
        ).run  # fmt: skip
        found = coterie.evaluate(run, episodes=1000, checkpoint="last")["teams"]["team"]
    return {"return": found["return_mean"], "length": found["length_mean"]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1M")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args(argv)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = {}
    given.results.mkdir(parents=True, exist_ok=True)
    for name, truncated in (("MA-POCA", False), ("returns stop at an agent's death", True)):
        found[name] = [trained(seed, given.steps, truncated) for seed in seeds]
        print(name, found[name], flush=True)
    content = {**origin(), "env": ENV, "steps": given.steps, "seeds": seeds, "found": found}
    (given.results / "posthumous.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "posthumous.md").write_text(page(content))


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    facts, seeds = content["machine"], ", ".join(map(str, content["seeds"]))
    rows = [
        [name, f"{statistics.mean(returns):.3f}", " ".join(f"{x:.3f}" for x in returns)]
        for name, runs in content["found"].items()
        for returns in [[run["return"] for run in runs]]
    ]
    lines = [
        "# Credit after death",
        "",
        f"Fraction of episodes of {content['env']} in which the group escapes, after {content['steps']} steps; seeds "
        f"{seeds}, 1,000 episodes each, sampled actions. Measured by `{content['command']}`: {in_words(facts)} "
        f"({facts['revision']}), {content['date']}.",
        "",
        *table(["learner", "mean", "seeds"], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
