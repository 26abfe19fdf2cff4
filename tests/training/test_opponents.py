"""A batch of environments against several snapshots: each plays its own opponent for a whole episode."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch

from coterie.assembly.environment import assign_teams, make_environment
from coterie.assembly.learners import make_algorithms
from coterie.assembly.resolve import resolve
from coterie.core.tree import tree_leaves
from coterie.core.types import Timestep
from coterie.policies.base import Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.training.opponents import CURRENT_POLICY, OpponentPolicy, SnapshotPool

CPU = torch.device("cpu")
NUM_ENVS = 12
KINDS: Mapping[str, tuple[str, ...]] = {
    "actor": ("algo=mappo",),
    "gru": ("algo=ippo", "algo.rnn=gru", "algo.rnn_size=6"),
    "lstm, own parameters": ("algo=ippo", "algo.rnn=lstm", "algo.rnn_size=6", "algo.share_params=none"),
    "normalized observations": ("algo=mappo", "algo.normalize_obs=true"),
    "q values": ("algo=qmix", "algo.rnn_size=6"),
    "squashed": ("algo=sac", "env.actions=continuous"),
    "deterministic": ("algo=maddpg", "env.actions=continuous"),
}


def setting(*choices: str) -> tuple[Policy, Timestep, Any]:
    """Returns the policy of the adversaries in tag, a timestep, and the environment."""
    config = resolve(
        ["env=particle/simple_tag", f"num_envs={NUM_ENVS}", "algo.hidden_sizes=[8]", "device=cpu", *choices]
    ).config
    env = make_environment(config, "train", num_envs=NUM_ENVS, device=CPU)
    learner = make_algorithms(config, assign_teams(config.teams, env.spec), CPU)["adversary"]
    return learner.policy, env.reset().team(learner.policy.team), env


def add_snapshots(policy: Policy, pool: SnapshotPool, times: int) -> list[dict[str, Any]]:
    """Makes snapshots of a policy that changes in between. Returns their states and, last, the policy's."""
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
def test_every_environment_acts_as_the_snapshot_that_it_plays(kind: str):
    """Over several timesteps, with hidden states. Negative control: another snapshot acts differently."""
    policy, timestep, _ = setting(*KINDS[kind])
    if kind == "q values":
        policy.epsilon = 0.0  # otherwise all of them act at random
    pool = SnapshotPool(policy, 3)
    states = add_snapshots(policy, pool, 3)
    several = OpponentPolicy(pool, RemappedPolicy(policy.team, policy, "sample"))
    several.probabilities = torch.full((4,), 0.25)
    noise = several.draw_noise(3, NUM_ENVS, torch.Generator().manual_seed(1))
    timestep = Timestep(timestep.obs, timestep.action_mask, {}, timestep.alive, timestep.first, timestep.acted)
    later = Timestep(
        timestep.obs, timestep.action_mask, {}, timestep.alive, torch.zeros_like(timestep.first), timestep.acted
    )
    hidden_state, done, labels = several.initial_hidden_state(NUM_ENVS), [], []
    with torch.inference_mode():
        for t in range(3):
            action, hidden_state, extras = several.act(later if t else timestep, hidden_state, noise[t], "sample")
            done.append(action["adversary"])
            labels.append(extras["label"])
    assert all(torch.equal(label, labels[0]) for label in labels)
    who = labels[0][:, 0]
    assert len(set(who.tolist())) == 4
    others = []
    for number in (CURRENT_POLICY, 0, 1, 2):
        policy.load_state_dict(states[number])
        memory, here = policy.initial_hidden_state(NUM_ENVS), who == number
        with torch.inference_mode():
            for t in range(3):
                action, memory, _ = policy.act(later if t else timestep, memory, noise[t]["act"], "sample")
                for mine, its in zip(tree_leaves(done[t]), tree_leaves(action["adversary"]), strict=True):
                    assert torch.allclose(mine[here], its[here], atol=1e-5)
                    others.append(torch.allclose(mine[~here], its[~here], atol=1e-5))
    assert not all(others)


def test_an_opponent_stays_until_its_episode_ends():
    policy, timestep, _ = setting("algo=mappo")
    pool = SnapshotPool(policy, 8)
    add_snapshots(policy, pool, 8)
    several = OpponentPolicy(pool, RemappedPolicy(policy.team, policy, "sample"))
    several.probabilities = torch.full((9,), 1 / 9)
    noise = several.draw_noise(3, NUM_ENVS, torch.Generator().manual_seed(1))
    final = torch.arange(NUM_ENVS) % 2 == 0
    ends = Timestep(timestep.obs, timestep.action_mask, {}, timestep.alive, timestep.first, ~final)
    with torch.inference_mode():
        _, hidden_state, first = several.act(timestep, several.initial_hidden_state(NUM_ENVS), noise[0], "sample")
        _, hidden_state, second = several.act(ends, hidden_state, noise[1], "sample")
        _, hidden_state, third = several.act(timestep, hidden_state, noise[2], "sample")
    first, second, third = (extras["label"][:, 0] for extras in (first, second, third))
    assert torch.equal(first, second)
    assert torch.equal(third[~final], second[~final])
    assert not torch.equal(third[final], second[final])


@pytest.mark.slow
def test_opponents_are_sampled_with_their_probabilities():
    policy, timestep, _ = setting("algo=mappo")
    pool = SnapshotPool(policy, 2)
    add_snapshots(policy, pool, 2)
    several = OpponentPolicy(pool, RemappedPolicy(policy.team, policy, "sample"))
    several.probabilities = torch.tensor([0.5, 0.0, 0.5])
    counts = {CURRENT_POLICY: 0, 0: 0, 1: 0}
    with torch.inference_mode():
        for noise in several.draw_noise(200, NUM_ENVS, torch.Generator().manual_seed(1)):
            _, _, extras = several.act(timestep, several.initial_hidden_state(NUM_ENVS), noise, "sample")
            for number in extras["label"][:, 0].tolist():
                counts[number] += 1
    assert counts[0] == 0
    assert counts[CURRENT_POLICY] / sum(counts.values()) == pytest.approx(0.5, abs=0.04)


def test_the_oldest_snapshot_is_replaced():
    policy, _, _ = setting("algo=mappo")
    pool = SnapshotPool(policy, 2)
    assert pool.numbers == [CURRENT_POLICY]
    assert [pool.add() for _ in range(3)] == [0, 1, 2]
    assert pool.numbers == [CURRENT_POLICY, 2, 1]
    assert [pool.numbers[slot] for slot in pool.oldest_first()] == [1, 2]


def test_the_next_replaced_slot_is_that_of_the_oldest_snapshot():
    policy, _, _ = setting("algo=mappo")
    pool, replaced = SnapshotPool(policy, 2), []
    for _ in range(4):
        replaced.append(pool.next_replaced_slot)
        pool.add()
    assert replaced == [None, None, 1, 2]


def test_a_snapshot_does_not_change_with_the_policy():
    policy, _, _ = setting("algo=mappo", "algo.normalize_obs=true")
    pool = SnapshotPool(policy, 2)
    pool.add()
    before = {name: x[1].clone() for name, x in pool.stacked.items()}
    add_snapshots(policy, SnapshotPool(policy, 1), 0)
    pool.refresh()
    assert all(torch.equal(before[name], x[1]) for name, x in pool.stacked.items())
    assert not all(torch.equal(before[name], x[0]) for name, x in pool.stacked.items())
