"""Targets of PPO and MA-POCA as CUDA graphs, on a fake device that replays operations without their Python."""

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.sequences import select_envs
from coterie.assembly.resolve import resolve
from coterie.core.errors import UserError
from coterie.rewards.rewarded import make_rewarded
from coterie.training.collector import Collector
from fakecuda import CUDA, fake_cuda
from graph_training import (
    assert_a_global_critic_reads_as_without_graphs,
    assert_targets_are_those_without_graphs,
    assert_training_is_that_without_graphs,
    on_policy,
    transfers_of_an_update,
)

STAND_IN = ["MAPPO, recurrent", "MAPPO, recurrent, one episode", "MA-POCA, recurrent, several signals"]
"""One case per mechanism. All of them are tested on a GPU, in `test_graphs_on_gpu.py`."""
FAST = {"MAPPO, recurrent"}


@pytest.fixture
def cuda():
    with fake_cuda() as found:
        yield found


def each(cases):
    return [pytest.param(case, marks=() if case in FAST else pytest.mark.slow) for case in cases]


def test_targets_are_those_without_graphs_bit_for_bit(cuda):
    """Where training is not compared bit for bit."""
    assert_targets_are_those_without_graphs("IPPO, several signals", CUDA, rtol=0, atol=0)


@pytest.mark.parametrize("case", each(STAND_IN))
def test_training_is_that_without_graphs_bit_for_bit(cuda, case):
    """Where minibatches have equal sizes: of sequences, or of one episode. Others are filled up with masked samples."""
    assert_training_is_that_without_graphs(case, CUDA, rtol=0, atol=0)


@pytest.mark.slow
def test_curiosity_and_novelty_are_learned_from_as_without_graphs_bit_for_bit(cuda):
    """Their rewards and their training are not captured, and targets read the rewards."""
    overrides = ["algo.rnn=gru", "algo.rnn_size=4", "algo.hidden_sizes=[8]", "algo.rollout_length=6", "algo.epochs=1"]
    overrides += ["rewards.icm.weight=0.1", "rewards.rnd.weight=0.1", "rewards.rnd.weight_schedule=linear"]
    config = resolve(["algo=ippo", "env=probe/both", *overrides]).config
    found = []
    for setting in ("off", "on"):
        env = env_of(Everything(dead=0.0), 4, device=CUDA)
        (team,) = env.spec.default_teams()
        context = AlgorithmContext(team=team, num_envs=4, seed=0, device=env.device, cuda_graphs=setting == "on")
        learner = make_rewarded(config.algo, config.rewards, context)
        collector = Collector(env, {team.name: learner.behavior_policy}, seed=0, cuda_graphs=setting == "on")
        found.append([learner.update(collector.advance(6)[0][team.name], k / 2) for k in range(2)])
    assert found[0] == found[1]
    assert learner.algorithm._compute_samples.captures == 1


def test_moments_and_hidden_states_of_an_update_are_not_changed_by_the_next(cuda):
    """They are copies of a graph's results, which the next replay overwrites."""
    training = on_policy("MAPPO, recurrent", "on", CUDA)
    training.update(0.0)
    state = training.learner.state_dict()
    kept = [*state["value_moments"].values(), *state["hidden_state"].values()]
    before = [x.clone() for x in kept]
    training.update(0.5)
    assert all(torch.equal(x, y) for x, y in zip(kept, before, strict=True))
    state = training.learner.state_dict()
    now = [*state["value_moments"].values(), *state["hidden_state"].values()]
    assert not any(torch.equal(x, y) for x, y in zip(now, before, strict=True))


def test_an_update_copies_the_weights_of_signals_only_and_reads_as_without_graphs(cuda):
    """Whatever the number of signals. The read besides metrics is the number of timesteps that were acted on."""
    case = "IPPO, several signals"
    trainings = [on_policy(case, setting, CUDA) for setting in ("off", "on")]
    for training in trainings:
        training.update(0.0)
    off, on = (transfers_of_an_update(cuda, training) for training in trainings)
    reads = {"algos/clipped_learner:acted_candidates": 1, "algos/optimizer:mean_metrics": 1}
    assert on == off == (reads, {"algos/reward_streams:weights": 1})


def test_another_number_of_envs_is_captured_again(cuda):
    training = on_policy("IPPO, several signals", "on", CUDA)
    rollout = training.collect()
    for part in (slice(None), slice(2), slice(None)):
        training.learner._samples(select_envs(rollout, torch.arange(4, device=CUDA)[part]), 0.0)
    assert training.learner._compute_samples.captures == 2


def test_weights_in_another_tensor_are_captured_again(cuda):
    training = on_policy("IPPO, several signals", "on", CUDA)
    rollout = training.collect()
    before = training.learner._samples(rollout, 0.0)[0].batch.value.clone()
    layer = next(m for m in training.learner.critic.modules() if "weight" in dict(m.named_parameters(recurse=False)))
    layer.weight = torch.nn.Parameter(torch.zeros_like(layer.weight))
    after = training.learner._samples(rollout, 0.0)[0].batch.value
    assert not torch.equal(before, after)
    assert training.learner._compute_samples.captures == 2


def test_targets_of_a_global_critic_read_other_teams(cuda):
    assert_a_global_critic_reads_as_without_graphs(
        *("mappo", "gru", CUDA), critic_of=lambda x: x.critic, captures_of=lambda x: x._compute_samples.captures
    )


def test_targets_that_read_on_the_host_are_refused_in_one_line(cuda):
    training = on_policy("IPPO, several signals", "on", CUDA)
    advantages = training.learner.advantages
    training.learner.advantages = lambda rollout, value, valid: advantages(
        rollout, value * rollout.reward.sum().item(), valid
    )
    with pytest.raises(UserError) as error:
        training.update(0.0)
    assert str(error.value).startswith(
        "cuda_graphs=on: the targets of team all cannot be captured as a CUDA graph (read by the host"
    )
    assert str(error.value).endswith("). Use cuda_graphs=off.")
