"""Every algorithm collects and updates on a fake CUDA device, with a known number of reads by the host."""

import pytest
import torch
from torch.func import functional_call

from algo_worlds import Everything, env_of
from coterie.core.tree import tree_map
from coterie.training.collector import Collector
from fakecuda import CUDA, fake_cuda
from learners import collect_rollout
from preset_learners import CLASSES, FAMILIES, LEARNERS, preset_learner, supports_actions

COLLECT = {"training/collector:_checked_counts": 1}
"""Reads by the host per rollout: sums that show NaN, the timesteps acted on, and the episodes that ended."""
METRICS = {"algos/optimizer:mean_metrics": 1}
REPLAY = {"algos/replay/buffer:add": 1, "algos/replay/buffer:insert": 1} | METRICS
DDPG = REPLAY | {"algos/optimizer:mean_metrics": 2}  # of the critics and, if they were trained, of the actors
SEQUENTIAL = {"algos/optimizer:mean_metrics": 2, "algos/happo:_agents_in_order": 1}
"""Metrics of agents and critic, and the agents that acted at all, where agents can die."""
UPDATE = {
    "ippo": METRICS, "mappo": METRICS, "ia2c": METRICS, "maa2c": METRICS, "ppo": METRICS, "poca": METRICS,
    **dict.fromkeys(("happo", "haa2c"), SEQUENTIAL),
    "hatrpo": SEQUENTIAL,
    "mat": METRICS, "mat_dec": METRICS, "sable": METRICS, "ff_sable": METRICS, "magpo": METRICS,
    "vdac": METRICS, "seac": METRICS, "pac": METRICS,
    **dict.fromkeys(("pqn", "pqn_vdn", "pqn_qmix"), METRICS | {"algos/clipped_learner:acted_candidates": 1}),
    "coma": METRICS | {"algos/coma:update": 1},
    "ddqn": REPLAY, "iql": REPLAY, "vdn": REPLAY, "qmix": REPLAY, "qplex": REPLAY, "wqmix": REPLAY,
    "qfix": REPLAY,
    "ddpg": DDPG, "maddpg": DDPG, "td3": DDPG, "matd3": DDPG,
    "sac": REPLAY, "masac": REPLAY, "hasac": REPLAY,
}  # fmt: skip
"""Reads by the host per update, however many epochs, minibatches and gradient steps it has."""
FEEDFORWARD = {"mappo", "poca", "mat", "mat_dec"}
"""One more read, the number of timesteps that minibatches are drawn from."""

CASES = [
    *((name, "continuous" if supports_actions(name, "continuous") else "discrete", "gru") for name in FAMILIES),
    *((name, "discrete", "none") for name in CLASSES if name not in FAMILIES),
    *((name, "discrete", "none") for name in ("mappo", "poca", "coma", "qmix", "masac")),
    *((name, "discrete", "none") for name in ("qplex", "qfix")),  # mixers
]
"""Every class of learners, with a recurrent network and without one. Others differ from them in their presets."""


def test_every_algorithm_has_its_line_in_the_table():
    assert set(LEARNERS) == UPDATE.keys()


@torch.no_grad()
def central_difference(actor, inputs, direction, step=1e-2):
    """Replaces the exact derivative along a direction, since the fake device has no forward mode."""
    found = []
    for sign in (1, -1):
        weights = {name: p + sign * step * direction[name] for name, p in actor.named_parameters()}
        found.append(functional_call(actor, weights, inputs))
    return tree_map(lambda a, b: (a - b) / (2 * step), *found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "rnn"), CASES)
def test_training_stays_on_the_device(name, kind, rnn, monkeypatch):
    """Two roles, masks, deaths and group rewards. The metrics are those of the same update on the CPU."""
    monkeypatch.setattr("coterie.algos.hatrpo.tangent", central_difference)
    updates = []
    with fake_cuda() as cuda:
        env = env_of(Everything(kind, dead=0.0), 4, device=CUDA)
        learner = preset_learner(name, env, rnn, rollout_length=6)
        collector = Collector(env, {env.spec.default_teams()[0].name: learner.behavior_policy}, seed=0)
        for update in range(2):
            cuda.reads.clear()
            cuda.copies.clear()
            rollout = collect_rollout(learner, collector)
            assert cuda.reads == COLLECT
            assert cuda.copies == {"training/rollout_builder:team_rollout": 1}  # the team's groups
            cuda.reads.clear()
            cuda.copies.clear()
            metrics = learner.update(rollout, update / 2)
            extra = {"algos/clipped_learner:acted_candidates": 1} if rnn == "none" and name in FEEDFORWARD else {}
            trials = cuda.reads.pop("algos/hatrpo:_trust_region_step", 0)  # of the line search, 1 to 10 per agent
            assert 3 <= trials <= 30 if name == "hatrpo" else trials == 0
            assert cuda.reads == UPDATE[name] | extra
            assert cuda.copies == {}
            updates.append((tree_map(lambda x: x.cpu(), rollout), metrics))
    on_host = preset_learner(name, env_of(Everything(kind, dead=0.0), 4), rnn, rollout_length=6)
    for update, (rollout, metrics) in enumerate(updates):
        assert metrics == pytest.approx(on_host.update(rollout, update / 2), rel=2e-3, abs=2e-5)
