"""The random algorithm: its settings, its policy, and that it does not learn."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext
from coterie.algos.scripted import Random, RandomConfig
from coterie.policies.base import RandomPolicy
from learners import collect_rollout, learner_of
from policy_cases import CPU

(TEAM,) = Everything().spec.default_teams()


def test_settings_have_limits_and_cannot_be_changed():
    assert RandomConfig().rollout_length == 128
    assert [RandomConfig(rollout_length=n).rollout_length for n in (1, 10**6)] == [1, 10**6]
    for length in (0, 10**6 + 1):
        with pytest.raises(ValidationError, match="rollout_length"):
            RandomConfig(rollout_length=length)
    with pytest.raises(ValidationError, match="lr"):
        RandomConfig(lr=0.1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValidationError, match="frozen"):
        RandomConfig().rollout_length = 3
    assert RandomConfig.model_fields["rollout_length"].description


@pytest.mark.parametrize(("length", "expected"), [(None, 7), (3, 3)])
def test_rollouts_have_the_length_of_the_context_or_else_the_configured_one(length: int | None, expected: int):
    context = AlgorithmContext(team=TEAM, num_envs=2, seed=0, device=CPU, rollout_length=length)
    assert Random(RandomConfig(rollout_length=7), context).rollout_length == expected


def test_it_acts_at_random_and_learns_nothing():
    learner, collector = learner_of(Random, RandomConfig(rollout_length=4), env_of(Everything("hybrid"), 2))
    assert isinstance(learner.policy, RandomPolicy)
    assert learner.update(collect_rollout(learner, collector), 0.5) == {}
    state = learner.state_dict()
    assert state == {"policy": {}}
    learner.load_state_dict(state)
    supported = Random.capabilities
    assert (supported.actions, supported.images, supported.learns) == (ALL_ACTIONS, True, False)
