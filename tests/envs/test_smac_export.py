"""Worlds of ours behind PyMARL's interface: the world to the bit, a loop like PyMARL's, replays, refusals."""

from __future__ import annotations

import pytest
import torch

from coterie.envs.check import check
from coterie.envs.make import make
from coterie.envs.paths import random_actions
from coterie.seeds import seed_of

BATTLE, SPREAD = "squads:battle", "squads:spread"


def compared(name: str, ours: str, seed: int, steps: int, reward: str = "shaped") -> tuple[int, list[str]]:
    """Steps the exported world that was brought in again and the world itself with the same choices: how many episodes
    ended, and what differed.
    """
    params = {"reward": reward} if name == BATTLE else {}
    there = make(name, params, copies=1, seed=seed, with_state=True)
    here = make(ours, {}, copies=1, seed=seed_of(seed, "env", name, 0) >> 32, with_state=True)
    there_row, row, generator = there.reset(), here.reset(), torch.Generator().manual_seed(seed)
    theirs, own = there.spec.roles[0].name, here.spec.roles[0].name
    ended, wrong = 0, []
    for t in range(steps):
        pairs = {
            "obs": (there_row.obs[theirs], row.obs[own]),
            "mask": (there_row.action_mask[theirs], row.action_mask.get(own, there_row.action_mask[theirs])),
            **{key: (getattr(there_row, key), getattr(row, key)) for key in ("alive", "first", "acted")},
        }
        if row.state:
            pairs["state"] = there_row.state["global"], row.state["global"]
        action = random_actions(here.spec, row, generator)
        there_step, there_row = there.step({theirs: action[own]})
        step, row = here.step(action)
        pairs |= {key: (getattr(there_step, key), getattr(step, key)) for key in ENDS}
        paid = step.group_reward[:, 0] + step.reward.sum(1)
        pairs["reward"] = there_step.group_reward[:, 0], paid
        pairs |= {key: (there_step.metrics[key], step.metrics[key]) for key in here.spec.metrics}
        wrong += [f"{key} at {t}" for key, (a, b) in pairs.items() if not torch.equal(a, b)]
        ended += int(step.episode_terminated | step.episode_truncated)
    return ended, wrong


ENDS = ("terminated", "truncated", "episode_terminated", "episode_truncated")


@pytest.mark.parametrize("seed", [0, 7])
def test_a_battle_exported_and_brought_in_again_is_the_same_to_the_bit(seed: int):
    ended, wrong = compared(BATTLE, "skirmish/3m", seed, steps=150)
    assert ended >= 3
    assert not wrong


def test_the_comparison_sees_what_differs():
    ended, wrong = compared(BATTLE, "skirmish/3m", 0, steps=60, reward="sparse")
    assert ended
    assert {text.split()[0] for text in wrong} == {"reward"}


def test_a_world_without_deaths_and_masks_is_the_same_to_the_bit():
    ended, wrong = compared(SPREAD, "particle/simple_spread", 3, steps=80)
    assert ended == 3
    assert not wrong


@pytest.mark.parametrize(("name", "short"), [(BATTLE, {"limit": 12}), (SPREAD, {})])
def test_what_is_brought_in_again_keeps_the_contract(name: str, short: dict[str, int]):
    report = check(lambda copies, seed: make(name, short, copies, seed, with_state=True), steps=20, copies=2)
    assert not [finding for finding in report.findings if finding.rule != "slow"], report
