"""Plays episodes and writes down what was seen, done and earned: demonstrations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.collect import due, live, lost_in, stepping
from coterie.envs.vector import VectorEnv, begin
from coterie.errors import UserError
from coterie.evaluation import CHUNK, Told
from coterie.imitation.demos import DemoRole, Demos, flattened
from coterie.imitation.faults import returns_of
from coterie.policy import Mode, Policy
from coterie.seeds import generator
from coterie.types import Action, EnvSpec, Row, Step, Tree, tree_map

Rows = dict[str, Tensor]
"""Tensors of demonstrations by name, with rows of [T, B] in front, or [rows]."""


def record(
    env: VectorEnv,
    policies: dict[str, Policy],
    episodes: int,
    mode: dict[str, Mode],
    seed: int,
    name: str,
    params: dict[str, Any],
    made: dict[str, Any],
    most_steps: int = 100_000,
    told: Told | None = None,
) -> Demos:
    """Plays `episodes` episodes, divided evenly over the copies of `env`, the first that each finishes.

    name, params, made: as in `Demos`; others as in `coterie.evaluation.evaluate`. The same arguments make the same
    bits. UserError if a copy has not played its share after `most_steps` steps.
    """
    copies = torch.arange(env.copies, device=env.device)
    quota = episodes // env.copies + (copies < episodes % env.copies)
    noises = {team: generator(seed, "noise", team, device=env.device) for team in policies}
    played, begun = torch.zeros_like(quota), torch.zeros_like(quota)  # whole episodes, and those that were begun
    kept: list[Rows] = []
    whole: list[Tensor] = []
    with stepping(env, policies.values()):
        row = begin(env, seed)
        carry = {team: policy.start(env.copies) for team, policy in policies.items()}
        for _ in range(0, most_steps, CHUNK):
            noise = {team: p.noise(CHUNK, env.copies, noises[team]) for team, p in policies.items()}
            lived = live(env, policies, row, carry, noise, mode)
            row, carry = lived.rows[-1], lived.carry
            rows = _rows(env.spec, lived.rows[:-1], lived.steps, lived.actions)
            lost = lost_in(lived.steps)
            ended = rows.pop("ended")
            acted = rows.pop("acted")
            if lost is not None:
                acted, ended = acted & ~lost, ended | lost
            good = ended if lost is None else ended & ~lost
            before = begun + ended.long().cumsum(0) - ended.long()  # which of its copy's episodes a row is of
            done = played + good.long().cumsum(0) - good.long()
            rows |= {"copy": copies.expand(CHUNK, -1), "number": before}
            wanted = acted & (done < quota)
            kept.append({key: x[wanted].cpu() for key, x in rows.items()})
            whole.append(torch.stack([copies.expand(CHUNK, -1), before], -1)[good & (done < quota)].cpu())
            begun, played = begun + ended.sum(0), (played + good.sum(0)).minimum(quota)
            if told is not None:
                told(int(played.sum()), episodes)
            if bool((played >= quota).all()):
                break
        else:
            raise UserError(
                f"recording of {name}: {int((played < quota).sum())} of {env.copies} copies did not finish their "
                f"episodes within {most_steps} steps: give the environment an episode limit (env.episode_limit=...)"
            )
    tensors = _laid_out({key: torch.cat([part[key] for part in kept]) for key in kept[0]}, torch.cat(whole))
    demos = Demos(name, params, tuple(DemoRole.of(role) for role in env.spec.roles), tensors, made, seed)
    tensors["episode/return"] = returns_of(demos)
    return demos


def _rows(spec: EnvSpec, rows: list[Row], steps: list[Step], actions: list[dict[str, Action]]) -> Rows:
    """What is written down of T rows of B copies, and where episodes end."""
    acted = torch.stack([row.acted for row in rows])
    alive = torch.stack([row.alive for row in rows])
    reward = due(torch.stack([step.reward for step in steps]), acted, alive)
    found: Rows = {
        "acted": acted,
        "ended": torch.stack([step.episode_terminated | step.episode_truncated for step in steps]),
        "episode_terminated": torch.stack([step.episode_terminated for step in steps]),
    }
    if spec.paid_by_group:
        found["group_reward"] = due(torch.stack([step.group_reward for step in steps]), acted)
    for name in rows[0].state:
        found[f"state/{name}"] = torch.stack([row.state[name] for row in rows])
    for role, agents in spec.role_slices().items():
        here = alive[..., agents]
        seen: Tree = tree_map(lambda *x: torch.stack(x), *(row.obs[role] for row in rows))
        done: Action = tree_map(lambda *x: torch.stack(x), *(action[role] for action in actions))
        parts = flattened(f"{role}/obs", seen)
        if done.discrete is not None:
            parts[f"{role}/discrete"] = done.discrete
        if done.continuous is not None:
            parts[f"{role}/continuous"] = done.continuous.clamp(-1, 1)  # as the environment takes them
        if spec.mortal:  # nothing of what stands in the place of the dead is written down
            parts = {key: torch.where(here.view(*here.shape, *[1] * (x.ndim - 3)), x, 0) for key, x in parts.items()}
        found |= parts
        if role in rows[0].action_mask:
            found[f"{role}/action_mask"] = torch.stack([row.action_mask[role] for row in rows])
        found[f"{role}/alive"], found[f"{role}/reward"] = here, reward[..., agents]
        for flag in ("terminated", "truncated"):
            found[f"{role}/{flag}"] = torch.stack([getattr(step, flag)[:, agents] for step in steps]) & here
        found[f"{role}/truncated"] &= ~found[f"{role}/terminated"]
    return found


def _laid_out(rows: Rows, whole: Tensor) -> Rows:
    """Rows of whole episodes [E, 2] (copy and number), copy by copy in the order of time, with their offsets."""
    most = int(max(rows["number"].max(), whole[:, 1].max())) + 1
    key, kept = rows["copy"] * most + rows["number"], whole[:, 0] * most + whole[:, 1]
    order = key.argsort(stable=True)
    order = order[torch.isin(key[order], kept)]
    found = {name: x[order].contiguous() for name, x in rows.items() if name not in ("copy", "number")}
    _, length = key[order].unique_consecutive(return_counts=True)
    offset = length.cumsum(0) - length
    found |= {"episode/offset": offset, "episode/length": length}
    found["episode/terminated"] = found.pop("episode_terminated")[offset + length - 1]
    return found
