"""Train a team, look at what it earns, and let it act in an environment of another package (pip install mpe2).

python examples/train_and_load.py [STEPS]
"""

import sys

import numpy as np
from mpe2 import simple_spread_v3

import coterie

steps = sys.argv[1] if len(sys.argv) > 1 else "1M"
run = coterie.train(algo="mappo", env="particle/simple_spread", steps=steps)
earned = coterie.evaluate(run, episodes=500)["teams"]["agent"]["return_mean"]
print(f"the team earns {earned:.1f} an episode")

player = coterie.load(run).player(mode="greedy")
world = simple_spread_v3.parallel_env(max_cycles=25)
returns = []
for seed in range(20):
    obs, _ = world.reset(seed=seed)
    player.reset()
    total = 0.0
    while world.agents:
        obs, rewards, *_ = world.step(player.act(obs))
        total += sum(rewards.values())
    returns.append(total)
print(f"and in mpe2, playing greedily, {np.mean(returns):.1f}")
