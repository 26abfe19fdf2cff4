"""Every family of algorithms behind one face: its targets of a window, and a critic that says what it is told to."""

from __future__ import annotations

from typing import Any

import torch

from algos import test_coma, test_ddpg, test_poca, test_ppo, test_qlearning, test_sac
from algos.worlds import Probe, env_of
from coterie.nets.joint import beside
from coterie.replay import Sample


def ppo_targets(algorithm, window):
    return algorithm._targets(window)[0].target[..., 0]


def poca_targets(algorithm, window):
    return algorithm._targets(window)[0].target[..., 0].expand_as(window.reward)


def coma_targets(algorithm, window):
    algorithm._ahead.manual_seed(0)
    vectors = algorithm._joint.vectors(window.action)
    pi = algorithm.policy.choices(window.obs, window.action_mask, None, window.carry, None).exp()
    joint = algorithm._joint_action(vectors, pi[-1], window)
    return algorithm._targets(window, window.obs, joint, None, pi, beside(vectors))


def q_targets(algorithm, window):
    target = algorithm._batch(window).target
    return target if target.ndim == 3 else target.unsqueeze(-1).expand(*target.shape, window.reward.shape[-1])


def ddpg_targets(algorithm, window):
    algorithm._draw.manual_seed(0)
    index = torch.arange(window.copies)
    return algorithm._targets(algorithm._batch(Sample(window, index, torch.ones(window.copies))))


def sac_targets(algorithm, window):
    algorithm._noise.manual_seed(0)
    draw, spread = algorithm._draw(window)
    return algorithm._targets(window, draw, spread, torch.zeros(()))  # no temperature: nothing but rewards and Q


def q_learner(world, copies, **settings):
    return test_qlearning.learner(env_of(world, copies), **settings)


RAW = {"normalise_value": False, "normalise_advantage": False}
GRU = {"memory": "gru"}  # without one, learners from replay have targets of a sequence's first row alone
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "ppo": (test_ppo.learner, ppo_targets, RAW, "gae_lambda"),
    "mappo": (test_ppo.learner, ppo_targets, RAW | {"critic": "joint"}, "gae_lambda"),
    "poca": (test_poca.learner, poca_targets, RAW, "td_lambda"),
    "coma": (test_coma.learner, coma_targets, {}, "td_lambda"),
    "iql": (q_learner, q_targets, GRU, "trace_decay"),
    "vdn": (q_learner, q_targets, GRU | {"mixer": "sum"}, "trace_decay"),
    "ddpg": (test_ddpg.learner, ddpg_targets, GRU, ""),
    "maddpg": (test_ddpg.learner, ddpg_targets, GRU | {"critic": "joint"}, ""),
    "sac": (test_sac.learner, sac_targets, GRU, ""),
    "masac": (test_sac.learner, sac_targets, GRU | {"critic": "joint"}, ""),
}
"""How a learner is made, how its targets are had, with which settings, and the name of its lambda."""
OF_AGENTS = ("ppo", "iql", "ddpg", "sac")
WITH_LAMBDA = [name for name, family in FAMILIES.items() if family[3]]
WITH_STEPS = [name for name in FAMILIES if name in {"iql", "vdn", "ddpg", "maddpg", "sac", "masac"}]


def made(name, world, copies=4, **settings):
    """A learner of a family, its collector and its function of targets."""
    build, targets, own, _ = FAMILIES[name]
    algorithm, collector = build(world, copies, **own | {"horizon": 8} | settings)
    return algorithm, collector, targets


def teach(name, algorithm, worth):
    """From now on the critic that targets ask says worth[x] of who sees the number x, whatever is done."""
    table = torch.tensor(worth)

    def of(obs):
        return table[obs["agent"].long()]  # [.., N, 1]

    def group(obs, window, begins):
        value = of(obs)
        return torch.cat([value[:-1, :, :1], value[:-1]], 2), value[-1:, :, :1], []

    if name in {"ppo", "mappo"}:
        algorithm._values = lambda obs, state, begins: of(obs)
    elif name == "poca":
        algorithm._values = group
    elif name == "coma":
        algorithm.target.module = test_coma.Table(lambda obs, joint: table[obs.long()].expand(*obs.shape[:-1], 2))
    elif name in {"iql", "vdn"}:
        algorithm._worth = lambda value, q, picks, rows: of(rows.obs)[..., 0 if name == "vdn" else slice(None), 0]
    elif name in {"ddpg", "maddpg"}:
        algorithm._read = lambda critic, batch, start, stop: of(batch.rows.obs)[start:stop, ..., 0]
        algorithm._judge = lambda critic, seen, action: seen
    else:
        algorithm._q = lambda critics, window, rows, action, fresh: of(window.obs)[rows].expand(2, -1, -1, -1, 2)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def clock(pay, length, limit, n=1):
    """Shows the age of an episode, and pays what a table says of it."""
    paid = torch.tensor(pay)
    return Probe(
        lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: paid[age.long()].view(-1, 1), n=n, length=length,
        limit=limit,
    )  # fmt: skip
