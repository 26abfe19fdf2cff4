"""Random and scripted policies on the cooperative worlds and in duels, the baselines on the environments' pages.

    python benchmarks/baselines.py [--episodes 10000] [--battles 1000] [--results FOLDER]

Writes baselines.json and baselines.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from reporting import in_words, origin, table

from coterie.assembly.resolve import resolve
from coterie.commands.evaluate import evaluate_baseline
from coterie.envs.make import make
from coterie.envs.worlds.coop.scripts import pushblock_heaviest_first
from coterie.envs.worlds.world import WorldEnv

HERE = Path(__file__).resolve().parent
COMMON = ("device=cpu", "threads=1", "progress=off")
SCRIPTED = ("escape", "baton")
DUELS = ("3m_duel", "2s3z_duel")
NEAREST, WEAKEST = (f"algo=scripted algo.script=attack_{target}" for target in ("nearest", "weakest"))
SIDES = {
    "random against random": ("algo=random", "algo=random"),
    "attack nearest against random": (NEAREST, "algo=random"),
    "attack nearest against attack nearest": (NEAREST, NEAREST),
    "attack nearest against attack weakest": (NEAREST, WEAKEST),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="episodes of a policy on a cooperative world")
    parser.add_argument("--battles", type=int, default=1000, help="battles of each duel")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args(argv)
    coop = {world: {"random": played(world, "random", given.episodes)} for world in (*SCRIPTED, "pushblock")}
    for world in SCRIPTED:
        coop[world]["script"] = played(world, "scripted", given.episodes)
    coop["pushblock"]["script"] = pushed(given.episodes)
    duels = {
        sides: {battle: fought(battle, *policies, given.battles) for battle in DUELS}
        for sides, policies in SIDES.items()
    }
    content = {**origin(), "coop": coop, "duels": duels}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "baselines.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "baselines.md").write_text(page(content))


def played(world: str, algo: str, episodes: int) -> dict[str, float]:
    """Mean return of the team with its standard error, and mean steps per episode."""
    found = evaluate_baseline(resolve([f"algo={algo}", f"env=coop/{world}", *COMMON]), episodes)
    team = found["teams"]["team"]
    error = team["return_std"] / found["episodes"] ** 0.5
    return {"episodes": found["episodes"], "return": team["return_mean"], "error": error, "steps": team["length_mean"]}


def pushed(episodes: int) -> dict[str, float]:
    """The same for the script of pushblock, which reads the world's state; every environment plays one episode."""
    env = make("coop/pushblock", {}, episodes, 0)
    assert isinstance(env, WorldEnv)
    env.reset(0)
    returns, steps, running = torch.zeros(episodes), torch.zeros(episodes), torch.ones(episodes, dtype=torch.bool)
    while running.any():
        step, _ = env.step(pushblock_heaviest_first(env.world, env.state_dict()["state"]))  # pyright: ignore
        returns += torch.where(running, step.group_reward[:, 0], 0)
        steps += running
        running &= ~(step.episode_terminated | step.episode_truncated)
    error = float(returns.std()) / episodes**0.5
    return {"episodes": episodes, "return": float(returns.mean()), "error": error, "steps": float(steps.mean())}


def fought(battle: str, left: str, right: str, battles: int) -> dict[str, float]:
    """Fractions of battles won by each side."""
    words = [f"env=skirmish/{battle}", "algo=random", *COMMON]
    for side, policy in (("left", left), ("right", right)):
        words += [f"teams.{side}.{word}" for word in policy.split()]
    metrics = evaluate_baseline(resolve(words), battles)["metrics"]
    return {"left": metrics["left_won"], "right": metrics["right_won"]}


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    policies = [(world, name, found) for world, found in content["coop"].items() for name in found]
    rows = [
        [
            f"`coop/{world}`",
            name,
            f"{found[name]['return']:.3f} ± {found[name]['error']:.3f}",
            f"{found[name]['steps']:.1f}",
            f"{found[name]['episodes']:,}",
        ]
        for world, name, found in policies
    ]
    battles = [
        [sides, *(f"{found[battle]['left']:.2f}, {found[battle]['right']:.2f}" for battle in DUELS)]
        for sides, found in content["duels"].items()
    ]
    lines = [
        "# Baselines",
        "",
        f"Measured by `{content['command']}`: {in_words(content['machine'])} ({content['machine']['revision']}), "
        f"{content['date']}. Mean return of the team with its standard error, and mean steps per episode.",
        "",
        *table(["world", "policy", "return", "steps", "episodes"], rows),
        "",
        "Fractions of battles won by left and right:",
        "",
        *table(["sides", *(f"`{battle}`" for battle in DUELS)], battles),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
