"""Settings of off-policy learners, the replay buffer that they create, notes for the user, and checkpoints."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.graphed import GraphedStep
from coterie.algos.off_policy import OffPolicyConfig, make_replay_buffer
from learners import collect_rollout, ddpg_learner, q_learner, sac_learner
from policy_cases import CPU
from preset_learners import preset_learner
from rank_threads import ThreadRanks

(TEAM,) = Everything().spec.default_teams()


def context(length: int | None = None, limit: int | None = 7) -> AlgorithmContext:
    team = replace(TEAM, episode_limit=limit)
    return AlgorithmContext(team=team, num_envs=4, seed=3, device=CPU, rollout_length=length)


def buffer_of(settings: dict[str, Any], **given: Any) -> Any:
    """The specification of the buffer, of 3-step sequences for feed-forward networks."""
    config = OffPolicyConfig(**{"rollout_length": 6, "buffer_size": 48, "batch_size": 5} | settings)
    hidden_state = {"h": torch.zeros(4, 3, 2)}
    buffer = make_replay_buffer(config, context(**given), n_step=3, states=("global",), hidden_state=hidden_state)
    return buffer.spec


def test_the_buffer_of_a_feed_forward_network_has_sequences_of_n_steps():
    spec = buffer_of({"priority_alpha": 0.6, "priority_beta": 0.3, "buffer_storage": "cpu", "burn_in": 2})
    assert (spec.sequence_length, spec.sequence_start, spec.hidden_state) == (3, "timestep", {})
    assert (spec.num_envs, spec.rollout_length, spec.capacity, spec.min_sequences) == (4, 6, 48, 5)
    assert (spec.priority_alpha, spec.priority_beta, spec.storage) == (0.6, 0.3, "cpu")
    assert (spec.states, spec.seed, spec.device, spec.team.n) == (("global",), 3, CPU, 3)
    assert buffer_of({}, length=12).rollout_length == 12


@pytest.mark.parametrize(("buffer_size", "capacity"), [(144, 48), (145, 49)])
def test_ranks_share_the_buffer_and_the_batch(buffer_size: int, capacity: int):
    """Three ranks, of which each has a third, rounded up: five sequences of a batch are two per rank."""
    ranks = ThreadRanks(0, threading.Barrier(3), [None] * 3)
    config = OffPolicyConfig(rollout_length=6, buffer_size=buffer_size, batch_size=5)
    given = replace(context(), ranks=ranks)
    spec = make_replay_buffer(config, given, n_step=1, states=(), hidden_state={}).spec
    assert (spec.capacity, spec.min_sequences, spec.num_envs) == (capacity, 2, 4)
    assert spec.ranks is ranks


@pytest.mark.parametrize(
    ("settings", "given", "length", "start"),
    [
        ({}, {"limit": 6}, 6, "episode"),
        ({}, {"limit": 7}, 6, "rollout"),
        ({}, {"limit": None}, 6, "rollout"),
        ({}, {"limit": 7, "length": 8}, 8, "episode"),
        ({"sequence_length": 7}, {"limit": 7, "length": 12}, 7, "episode"),
        ({"sequence_length": 5}, {"limit": 7, "length": 12}, 5, "rollout"),
        ({"burn_in": 1, "sequence_length": 7}, {"limit": 7, "length": 12}, 8, "rollout"),
        ({"burn_in": 2}, {"limit": 2, "length": 12}, 14, "rollout"),
        ({"sequence_start": "rollout"}, {"limit": 6}, 6, "rollout"),
        ({"sequence_start": "episode", "burn_in": 2}, {"limit": 9}, 8, "episode"),
    ],
)
def test_the_buffer_of_a_recurrent_network_has_training_sequences_with_their_burn_in(
    settings: dict[str, Any], given: dict[str, Any], length: int, start: str
):
    spec = buffer_of({"rnn": "gru", "buffer_size": 192} | settings, **given)
    assert (spec.sequence_length, spec.sequence_start) == (length, start)
    assert set(spec.hidden_state) == ({"h"} if start == "rollout" else set())


@pytest.mark.parametrize(
    ("settings", "limit", "expected"),
    [
        ({}, 7, ()),
        ({"sequence_length": 3, "burn_in": 2, "sequence_start": "episode"}, 7, ()),
        ({"rnn": "gru"}, 12, ()),
        ({"rnn": "gru", "sequence_length": 12, "sequence_start": "rollout"}, 13, ()),
        ({"rnn": "gru", "sequence_length": 5, "sequence_start": "rollout"}, 5,
         ("algo.sequence_length=5: sequences start with rollouts of 12 timesteps, and only the first 5 are learned "
          "from. Omit it, or set algo.rollout_length=5.",)),
        ({"rnn": "gru", "burn_in": 3, "sequence_start": "rollout"}, 5, ()),
        ({"rnn": "gru", "sequence_length": 14, "sequence_start": "rollout"}, 20, ()),
        ({"rnn": "gru", "sequence_start": "episode"}, 7, ()),
        ({"rnn": "gru", "sequence_start": "episode"}, 12, ()),
        ({"rnn": "gru", "sequence_start": "episode"}, None, ()),
        ({"rnn": "gru", "sequence_start": "episode", "sequence_length": 5, "burn_in": 3}, 6,
         ("algo.sequence_length=5: episodes have up to 6 steps, and those after step 5 are never learned from. Set "
          "algo.sequence_length=6 or algo.sequence_start=rollout.",
          "algo.burn_in=3: the first 3 steps of each episode only warm up the hidden state and are never learned from. "
          "Set algo.sequence_start=rollout, or omit algo.burn_in.")),
    ],
)  # fmt: skip
def test_notes_name_timesteps_that_are_not_learned_from(
    settings: dict[str, Any], limit: int | None, expected: tuple[str, ...]
):
    assert OffPolicyConfig(**settings).skipped_timesteps(replace(TEAM, episode_limit=limit), 12) == expected


@pytest.mark.parametrize(
    ("length", "envs", "configured", "steps"), [(3, 16, None, 1), (8, 16, None, 2), (8, 11, None, 1), (12, 16, 7, 7)]
)
def test_there_is_a_gradient_step_per_64_steps_of_a_rollout_unless_configured(
    length: int, envs: int, configured: int | None, steps: int
):
    algorithm, collector = sac_learner(Everything(dead=0.0), envs, rollout_length=length, gradient_steps=configured)
    metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert metrics["replay/updates"] == steps


@pytest.mark.parametrize(("name", "alpha"), [("q", 0.5), ("q", 0.0), ("ddpg", 0.5), ("sac", 0.5)])
def test_a_gradient_step_updates_the_priorities_of_its_sample(name: str, alpha: float):
    build: Any = {"q": lambda world, n, **s: q_learner(env_of(world, n), **s), "ddpg": ddpg_learner, "sac": sac_learner}
    algorithm, collector = build[name](Everything(dead=0.0), 4, gradient_steps=2, priority_alpha=alpha)
    samples, drawn, found = algorithm.buffer.samples, [], []

    def spy(size: int, count: int) -> Any:
        for sample in samples(size, count):
            drawn.append(sample)
            yield sample

    algorithm.buffer.samples = spy
    algorithm.buffer.update_priorities = lambda index, error: found.append((index, error))
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert len(drawn) == 2
    assert len(found) == (2 if alpha else 0)
    for of, (index, error) in zip(drawn, found, strict=False):
        assert index is of.index
        assert error.shape == index.shape
        assert not error.requires_grad


@pytest.mark.parametrize("name", ["q", "sac"])
def test_statistics_of_rewards_count_a_rollout_once_and_are_changed_in_place(name: str):
    """CUDA graphs read them where they are."""
    build: Any = {"q": lambda world, n, **s: q_learner(env_of(world, n), **s), "sac": sac_learner}
    algorithm, collector = build[name](
        Everything(dead=0.0, groups=False), 4, gradient_steps=2, reward_scale="standardize"
    )
    before, count = algorithm.reward_moments, int(algorithm.reward_moments["count"])
    tensors = dict(before)
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    assert all(algorithm.reward_moments[key] is x for key, x in tensors.items())
    valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    assert int(before["count"]) == count + int(valid.sum())
    assert before["mean"] != 0


@pytest.mark.parametrize(("learns_temperature", "optimizers"), [(True, 3), (False, 2)])
def test_a_graph_contains_the_generators_and_optimizers_of_its_step(learns_temperature: bool, optimizers: int):
    env = env_of(Everything(dead=0.0), 4)
    q = preset_learner("qmix", env, "none", cuda_graphs=True)
    sac = preset_learner("masac", env, "none", cuda_graphs=True, learn_temperature=learns_temperature)
    for algorithm, generators, count in ((q, (), 1), (sac, (sac.generator,), optimizers)):
        assert isinstance(algorithm._step_function, GraphedStep)
        assert algorithm._step_function._generators == generators
        assert len(algorithm._step_function._optimizers) == count
        assert algorithm.capabilities.cuda_graphs
