"""Your own environment with PettingZoo's interface: three walkers in a corridor look for the exit.

python examples/own_pettingzoo.py [STEPS]

A walker that reaches the exit is terminated, the others continue. Masks exclude moves into walls.
"""

import sys

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

import coterie


class Corridor(ParallelEnv):
    def __init__(self, length=8):
        self.length, self.possible_agents = length, ["walker_0", "walker_1", "walker_2"]

    def observation_space(self, agent):
        return spaces.Box(0, self.length, (2,))

    def action_space(self, agent):
        return spaces.Discrete(2)  # left or right

    def reset(self, seed=None, options=None):
        random = np.random.default_rng(seed)
        self.agents, self.time = list(self.possible_agents), 0
        self.exit = random.integers(self.length)
        self.position = {agent: int(random.integers(self.length)) for agent in self.agents}
        return self._observations(), self._masks()

    def step(self, actions):
        self.time += 1
        for agent, action in actions.items():
            self.position[agent] += 1 if action else -1
        terminated = {agent: self.position[agent] == self.exit for agent in self.agents}
        obs, masks = self._observations(), self._masks()
        truncated = dict.fromkeys(self.agents, self.time == 2 * self.length)
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return obs, {agent: float(terminated[agent]) - 0.05 for agent in terminated}, terminated, truncated, masks

    def _observations(self):
        return {agent: np.array([self.position[agent], self.exit], np.float32) for agent in self.agents}

    def _masks(self):
        return {a: {"action_mask": [self.position[a] > 0, self.position[a] < self.length - 1]} for a in self.agents}


if __name__ == "__main__":
    run = coterie.train(algo="ippo", env="own_pettingzoo:Corridor", steps=sys.argv[1] if len(sys.argv) > 1 else "100k")
    print(coterie.evaluate(run, episodes=100)["teams"]["walker"])
