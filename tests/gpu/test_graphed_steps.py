"""Gradient steps on replayed samples as CUDA graphs, on a fake device that replays operations without their Python."""

import pytest

from algo_worlds import env_of
from coterie.algos.graphed import GraphedStep
from coterie.core.errors import UserError
from fakecuda import CUDA, fake_cuda
from graph_training import (
    assert_a_global_critic_reads_as_without_graphs,
    assert_a_resumed_learner_continues_exactly,
    assert_coma_is_that_without_graphs,
    assert_gradient_steps_are_those_without_graphs,
    assert_same,
    coma,
    off_policy,
    transfers_of_an_update,
)
from preset_learners import preset_learner
from two_teams import TwoSides


@pytest.fixture
def cuda():
    with fake_cuda() as found:
        yield found


STAND_IN = ("double DQN", "QMIX with burn-in", "MADDPG", "MASAC")
"""One case per learner. All of them are tested on a GPU, in `test_graphs_on_gpu.py`."""


@pytest.mark.slow
@pytest.mark.parametrize("case", STAND_IN)
def test_gradient_steps_are_those_without_graphs_bit_for_bit_and_read_no_more(cuda, case):
    """However many gradient steps there are. The numbers of reads are those of `test_algorithms.py`."""
    training = assert_gradient_steps_are_those_without_graphs(case, CUDA, rtol=0, atol=0)
    reads = {"algos/replay/buffer:add": 1, "algos/replay/buffer:insert": 1}
    reads["algos/optimizer:mean_metrics"] = 2 if case == "MADDPG" else 1
    assert transfers_of_an_update(cuda, training) == (reads, {})


@pytest.mark.slow
def test_steps_of_coma_are_those_without_graphs_bit_for_bit_and_read_no_more(cuda):
    training = assert_coma_is_that_without_graphs("soft updates, components", CUDA, rtol=0, atol=0)
    reads = {"algos/optimizer:mean_metrics": 1, "algos/coma:update": 1}
    assert transfers_of_an_update(cuda, training) == (reads, {})


def test_the_end_of_exploration_is_captured_again(cuda):
    """COMA's steps evaluate the policy that is mixed with uniform choices."""
    eager, training = (coma("XuanCe's", setting, CUDA) for setting in ("off", "on"))
    expected, found = ([], [])
    for k, epsilon in enumerate((0.5, 0.2, 0.0)):
        for one, metrics in ((eager, expected), (training, found)):
            one.learner.policy.epsilon = epsilon
            metrics.append(one.update(k / 3))
    assert training.learner._step_function.captures == 2
    assert_same(expected, eager, found, training, rtol=0, atol=0)


def test_steps_of_coma_read_other_teams(cuda):
    """Observations and actions of theirs."""
    assert_a_global_critic_reads_as_without_graphs(
        *("coma", "none", CUDA), critic_of=lambda x: x.critic, captures_of=lambda x: x._step_function.captures
    )


@pytest.mark.slow
def test_a_resumed_learner_continues_exactly_with_and_without_graphs(cuda):
    assert_a_resumed_learner_continues_exactly(lambda setting: off_policy("QMIX", setting, CUDA))


def test_a_step_that_reads_on_the_host_is_refused_in_one_line(cuda):
    training = off_policy("QMIX", "on", CUDA)
    loss = training.learner.loss
    training.learner.loss = lambda batch, weight: loss(batch, weight) * batch.q.sum().item()
    with pytest.raises(UserError) as error:
        training.update(0.0)
    assert str(error.value).startswith(
        "cuda_graphs=on: the update of team all cannot be captured as a CUDA graph (read by the host"
    )
    assert str(error.value).endswith("). Use cuda_graphs=off.")


def test_a_critic_that_reads_other_teams_steps_without_graphs_and_says_so(cuda):
    env = env_of(TwoSides(dead=0.0), 4, device=CUDA)
    team = env.spec.default_teams()[0]
    learner = preset_learner("maddpg", env, "none", team, critic="global", cuda_graphs=True)
    assert not isinstance(learner._step_function, GraphedStep)
    assert learner.notes[-1] == (
        f"cuda_graphs=on: gradient steps of team {team.name} are not captured: its critic reads other teams"
    )
    assert isinstance(preset_learner("maddpg", env, "none", team, cuda_graphs=True)._step_function, GraphedStep)


def test_learners_step_without_graphs_unless_they_are_asked_for(cuda):
    assert not isinstance(off_policy("SAC", "off", CUDA).learner._step_function, GraphedStep)
