"""Steps of `mappo/original` as CUDA graphs, on a fake device that replays operations without their Python."""

import pytest

from fakecuda import CUDA, fake_cuda
from graph_training import (
    assert_a_global_critic_reads_as_without_graphs,
    assert_a_resumed_learner_continues_exactly,
    assert_original_is_that_without_graphs,
    original,
    transfers_of_an_update,
)


@pytest.fixture
def cuda():
    with fake_cuda() as found:
        yield found


@pytest.mark.slow
def test_training_is_that_without_graphs_bit_for_bit_and_reads_no_more(cuda):
    """However many epochs and minibatches it has. The other cases are tested on a GPU, in `test_graphs_on_gpu.py`."""
    trainings = assert_original_is_that_without_graphs("parts of two sizes", CUDA, rtol=0, atol=0)
    off, on = (transfers_of_an_update(cuda, training) for training in trainings)
    assert on == off == ({"algos/optimizer:mean_metrics": 1}, {})


def test_a_step_is_a_replay_that_executes_no_python(cuda):
    training = original("parts", "on", CUDA)
    rates = [training.update(0.0)["policy/lr"]]
    for part, name in ((training.learner, "targets"), (training.learner, "_train_critic")):
        setattr(part, name, None)
    rates.append(training.update(0.5)["policy/lr"])
    assert rates[1] < rates[0]
    assert training.learner._step_function.captures == 1


def test_a_divergence_above_the_target_ends_the_update(cuda):
    """The host reads it once per epoch."""
    found = []
    for setting in ("off", "on"):
        training = original("parts", setting, CUDA)
        training.learner.config = training.learner.config.model_copy(update={"epochs": 9, "target_kl": 1e-6, "lr": 0.1})
        found.append(training.update(0.0))
    assert found[0] == found[1]
    assert 1 <= found[1]["policy/epochs"] < 9


def test_the_critic_reads_other_teams(cuda):
    assert_a_global_critic_reads_as_without_graphs(
        *("mappo/original", "none", CUDA),
        critic_of=lambda x: x.critic,
        captures_of=lambda x: x._step_function.captures,
        num_minibatches=2,
        critic_time_chunks=2,
        sequence_length=4,
        epochs=1,
    )


@pytest.mark.slow
def test_a_resumed_learner_continues_exactly_with_and_without_graphs(cuda):
    assert_a_resumed_learner_continues_exactly(
        lambda setting: original("batches of a size, several signals", setting, CUDA)
    )
