"""A batch of copies against many snapshots at once: each acts as its own, for a whole episode."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch

from coterie.borrowed import Borrowed
from coterie.build import algorithms, environment, teams_of
from coterie.config import resolve
from coterie.policy import Policy
from coterie.selfplay.opponents import Opponents
from coterie.selfplay.pool import LIVE, Pool
from coterie.types import Row, tree_leaves

CPU = torch.device("cpu")
COPIES = 12
KINDS: Mapping[str, tuple[str, ...]] = {
    "actor": ("algo=mappo",),
    "gru": ("algo=ippo", "algo.memory=gru", "algo.memory_size=6"),
    "lstm, own parameters": ("algo=ippo", "algo.memory=lstm", "algo.memory_size=6", "algo.share=none"),
    "normalised observations": ("algo=mappo", "algo.normalise_obs=true"),
    "values": ("algo=qmix", "algo.memory_size=6"),
    "squashed": ("algo=sac", "env.actions=continuous"),
    "deterministic": ("algo=maddpg", "env.actions=continuous"),
}


def setting(*choices: str) -> tuple[Policy, Row, Any]:
    """A policy of tag's adversaries, a row that they see, and what gives others."""
    config = resolve(["env=particle/simple_tag", f"copies={COPIES}", "algo.hidden=[8]", "device=cpu", *choices]).config
    env = environment(config, COPIES, "train", CPU)
    learner = algorithms(config, teams_of(config, env.spec), CPU)["adversary"]
    return learner.policy, env.reset().team(learner.policy.team), env


def shaken(policy: Policy, pool: Pool, times: int) -> list[dict[str, Any]]:
    """Makes snapshots of a policy that changes in between; the state of each, the last of which is the policy's."""
    states = []
    for k in range(times + 1):
        with torch.no_grad():
            for network in policy.networks:
                for x in network.parameters():
                    x += 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(k))
        states.append(deepcopy(policy.state_dict()))
        if k < times:
            pool.add()
    pool.refresh()
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_every_copy_acts_as_the_snapshot_that_it_plays(kind: str):
    """Also over rows with memory. Negative control: as another snapshot it would act otherwise."""
    policy, row, _ = setting(*KINDS[kind])
    if kind == "values":
        policy.epsilon = 0.0  # else all of them act at random
    pool = Pool(policy, 3)
    states = shaken(policy, pool, 3)
    several = Opponents(pool, Borrowed(policy.team, policy, "sample"))
    several.chances = torch.full((4,), 0.25)
    noise = several.noise(3, COPIES, torch.Generator().manual_seed(1))
    row = Row(row.obs, row.action_mask, {}, row.alive, row.first, row.acted)
    later = Row(row.obs, row.action_mask, {}, row.alive, torch.zeros_like(row.first), row.acted)
    carry, done, labels = several.start(COPIES), [], []
    with torch.inference_mode():
        for t in range(3):
            action, carry, note = several.act(later if t else row, carry, noise[t], "sample")
            done.append(action["adversary"])
            labels.append(note["label"])
    assert all(torch.equal(label, labels[0]) for label in labels)
    who = labels[0][:, 0]
    assert len(set(who.tolist())) == 4
    others = []
    for number in (LIVE, 0, 1, 2):
        policy.load_state_dict(states[number])
        memory, here = policy.start(COPIES), who == number
        with torch.inference_mode():
            for t in range(3):
                action, memory, _ = policy.act(later if t else row, memory, noise[t]["act"], "sample")
                for mine, its in zip(tree_leaves(done[t]), tree_leaves(action["adversary"]), strict=True):
                    assert torch.allclose(mine[here], its[here], atol=1e-5)
                    others.append(torch.allclose(mine[~here], its[~here], atol=1e-5))
    assert not all(others)


def test_an_opponent_stays_until_its_episode_ends():
    policy, row, _ = setting("algo=mappo")
    pool = Pool(policy, 8)
    shaken(policy, pool, 8)
    several = Opponents(pool, Borrowed(policy.team, policy, "sample"))
    several.chances = torch.full((9,), 1 / 9)
    noise = several.noise(3, COPIES, torch.Generator().manual_seed(1))
    closing = torch.arange(COPIES) % 2 == 0
    ends = Row(row.obs, row.action_mask, {}, row.alive, row.first, ~closing)
    with torch.inference_mode():
        _, carry, first = several.act(row, several.start(COPIES), noise[0], "sample")
        _, carry, second = several.act(ends, carry, noise[1], "sample")
        _, carry, third = several.act(row, carry, noise[2], "sample")
    first, second, third = (note["label"][:, 0] for note in (first, second, third))
    assert torch.equal(first, second)
    assert torch.equal(third[~closing], second[~closing])
    assert not torch.equal(third[closing], second[closing])


def test_opponents_come_as_often_as_their_chances_say():
    policy, row, _ = setting("algo=mappo")
    pool = Pool(policy, 2)
    shaken(policy, pool, 2)
    several = Opponents(pool, Borrowed(policy.team, policy, "sample"))
    several.chances = torch.tensor([0.5, 0.0, 0.5])
    counts = {LIVE: 0, 0: 0, 1: 0}
    with torch.inference_mode():
        for noise in several.noise(200, COPIES, torch.Generator().manual_seed(1)):
            _, _, note = several.act(row, several.start(COPIES), noise, "sample")
            for number in note["label"][:, 0].tolist():
                counts[number] += 1
    assert counts[0] == 0
    assert counts[LIVE] / sum(counts.values()) == pytest.approx(0.5, abs=0.04)


def test_the_oldest_snapshot_makes_room():
    policy, _, _ = setting("algo=mappo")
    pool = Pool(policy, 2)
    assert pool.numbers == [LIVE]
    assert [pool.add() for _ in range(3)] == [0, 1, 2]
    assert pool.numbers == [LIVE, 2, 1]
    assert [pool.numbers[slot] for slot in pool.oldest_first()] == [1, 2]


def test_a_snapshot_does_not_change_with_the_policy():
    policy, _, _ = setting("algo=mappo", "algo.normalise_obs=true")
    pool = Pool(policy, 2)
    pool.add()
    before = {name: x[1].clone() for name, x in pool.stacked.items()}
    shaken(policy, Pool(policy, 1), 0)
    pool.refresh()
    assert all(torch.equal(before[name], x[1]) for name, x in pool.stacked.items())
    assert not all(torch.equal(before[name], x[0]) for name, x in pool.stacked.items())
