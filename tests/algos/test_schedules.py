"""Schedules of hyperparameters."""

import pytest

from algo_worlds import Everything, env_of
from coterie.algos.optimizer import Optimizer, scheduled
from learners import collect_rollout, ddpg_learner, q_learner, sac_learner


@pytest.mark.parametrize(
    ("schedule", "progress", "value"),
    [
        ("constant", 0.7, 1.0),
        ("linear", 0.0, 1.0),
        ("linear", 0.5, 0.505),
        ("linear", 1.0, 0.01),
        ("exponential", 0.5, 0.1),
        ("exponential", 2.0, 0.01),
    ],
)
def test_schedule_values(schedule, progress, value):
    assert scheduled(schedule, 1.0, 0.01, progress) == pytest.approx(value)


OFF_POLICY = {
    "qlearning": (lambda **settings: q_learner(env_of(Everything(dead=0.0), 16), **settings), {"value": 1e-3}),
    "ddpg": (lambda **settings: ddpg_learner(Everything(dead=0.0), **settings), {"policy": 1e-3, "critic": 4e-3}),
    "sac": (
        lambda **settings: sac_learner(Everything(dead=0.0), temperature_lr=2e-3, **settings),
        {"policy": 1e-3, "critic": 4e-3, "temperature": 2e-3},
    ),
}
"""Per learner: its constructor and the learning rates of its modules at the start of a run."""


@pytest.mark.parametrize("name", OFF_POLICY)
def test_optimizers_of_off_policy_learners_get_scheduled_learning_rates(name, monkeypatch):
    """At half of the run a linear schedule to 0.1 has come to 0.55."""
    build, initial = OFF_POLICY[name]
    critic_lr = {} if name == "qlearning" else {"critic_lr": 4e-3}
    algorithm, collector = build(lr=1e-3, lr_schedule="linear", lr_end=0.1, learning_starts=0, **critic_lr)
    used = {}
    step = Optimizer.step

    def spy(self, loss, lrs):
        used.update(lrs)
        return step(self, loss, lrs)

    monkeypatch.setattr(Optimizer, "step", spy)
    for progress, fraction in ((0.0, 1.0), (0.5, 0.55)):
        for _ in range(2):
            metrics = algorithm.update(collect_rollout(algorithm, collector), progress)
        assert used == pytest.approx({module: lr * fraction for module, lr in initial.items()})
        assert metrics["policy/lr"] == pytest.approx(1e-3 * fraction)
