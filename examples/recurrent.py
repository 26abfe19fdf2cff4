"""A recurrent policy: a GRU in actor and critic, trained on sequences of one episode.

python examples/recurrent.py [STEPS]
"""

import sys

import numpy as np

import coterie

steps = sys.argv[1] if len(sys.argv) > 1 else "1M"
run = coterie.train(
    algo={"name": "mappo", "rnn": "gru", "rnn_size": 64, "sequence_length": 26, "rollout_length": 52},
    env="particle/simple_reference",
    steps=steps,
)

player = coterie.load(run).player(mode="greedy")
zeros = {agent: np.zeros(21) for agent in ("agent_0", "agent_1")}
print("actions for the same observation, repeated:", [player.act(zeros)["agent_0"] for _ in range(5)])
player.reset()
print("after a reset:", [player.act(zeros)["agent_0"] for _ in range(5)])
