"""Train a team, evaluate it, and let it act in the environment of another package (pip install mpe2).

python examples/train_and_load.py [STEPS]
"""

import sys

import numpy as np
from mpe2 import simple_spread_v3

import coterie

steps = sys.argv[1] if len(sys.argv) > 1 else "1M"
run = coterie.train(algo="mappo", env="particle/simple_spread", steps=steps)
mean_return = coterie.evaluate(run, episodes=500)["teams"]["agent"]["return_mean"]
print(f"mean return in Coterie: {mean_return:.1f}")

player = coterie.load(run).player(mode="greedy")
env = simple_spread_v3.parallel_env(max_cycles=25)
returns = []
for seed in range(20):
    obs, _ = env.reset(seed=seed)
    player.reset()
    total = 0.0
    while env.agents:
        obs, rewards, *_ = env.step(player.act(obs))
        total += sum(rewards.values())
    returns.append(total)
print(f"mean return in mpe2, greedy: {np.mean(returns):.1f}")
