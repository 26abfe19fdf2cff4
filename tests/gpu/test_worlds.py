"""Every built-in world runs on a fake CUDA device, with one read by the host per rollout and no copies.

Hence rollouts can be captured as CUDA graphs.
"""

import pytest
import torch

from coterie.envs import registry
from coterie.envs.make import make
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from fakecuda import CUDA, fake_cuda

SIZES = {"matrix": 5, "foraging": 3, "skirmish": 6, "overcooked": 2, "warehouse": 7}
"""Families whose names share their code, and every how many names one is tested."""
WORLDS = [
    f"{family}/{name}"
    for family, package in registry.FAMILIES.items()
    for name in list(package.SCENARIOS)[:: SIZES.get(family, 1)]
]
FAST = ("particle/simple_spread", "coop/escape")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in WORLDS])
def test_a_rollout_stays_on_the_device(name):
    with fake_cuda() as cuda:
        env = make(name, {}, num_envs=4, seed=0, device=torch.device(CUDA), with_state=True)
        policies = {team.name: RandomPolicy(team, CUDA) for team in env.spec.default_teams()}
        collector = Collector(env, policies, seed=0)
        collector.advance(1)  # computes constants
        cuda.reads.clear()
        cuda.copies.clear()
        collector.advance(2)
        assert cuda.reads == {"training/collector:_checked_counts": 1}
        assert cuda.copies == {"training/rollout_builder:team_rollout": len(policies)}  # the teams' groups
