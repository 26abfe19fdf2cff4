"""Your own environment with the methods of PyMARL's MultiAgentEnv: three carriers meet to lift a beam.

python examples/own_multiagentenv.py [STEPS]

They move along a line of cells and lift when all are in the same cell. Masks exclude moves into walls.
"""

import sys

import numpy as np

import coterie


class Beam:
    def __init__(self, cells=7, limit=15):
        self.cells, self.limit, self.random = cells, limit, np.random.default_rng()

    def get_env_info(self):
        return {"n_agents": 3, "n_actions": 3, "obs_shape": 5, "state_shape": 3, "episode_limit": self.limit}

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.time, self.position = 0, self.random.integers(self.cells, size=3)

    def step(self, actions):  # stay, left, right
        self.time += 1
        self.position = self.position + np.array([0, -1, 1])[actions]
        lifted = len(set(self.position.tolist())) == 1
        truncated = self.time == self.limit and not lifted
        return float(lifted), lifted or truncated, {"lifted": lifted, "episode_limit": truncated}

    def get_obs(self):
        others = [np.delete(self.position, i) - self.position[i] for i in range(3)]
        return [np.array([self.position[i], *others[i], i, self.time], np.float32) / self.cells for i in range(3)]

    def get_state(self):
        return self.position / self.cells

    def get_avail_actions(self):
        return [[1, x > 0, x < self.cells - 1] for x in self.position]

    def close(self):
        pass


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "30k"
    run = coterie.train(algo="vdn", env="own_multiagentenv:Beam", steps=steps)
    print(coterie.evaluate(run, episodes=100)["teams"]["agent"])
