"""The random algorithm: its settings, its policy, and that it does not learn."""

from __future__ import annotations

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import ALL_ACTIONS
from coterie.algos.scripted import Random, RandomConfig
from coterie.policies.base import RandomPolicy
from learners import collect_rollout, learner_of

(TEAM,) = Everything().spec.default_teams()


def test_it_acts_at_random_and_learns_nothing():
    learner, collector = learner_of(Random, RandomConfig(rollout_length=4), env_of(Everything("hybrid"), 2))
    assert isinstance(learner.policy, RandomPolicy)
    assert learner.update(collect_rollout(learner, collector), 0.5) == {}
    state = learner.state_dict()
    assert state == {"policy": {}}
    learner.load_state_dict(state)
    supported = Random.capabilities
    assert (supported.actions, supported.images, supported.learns) == (ALL_ACTIONS, True, False)
