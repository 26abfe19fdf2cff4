"""An environment of one's own with PettingZoo's interface: three walkers in a corridor look for the way out.

python examples/own_pettingzoo.py [STEPS]

Whoever gets out is done, the others go on. Masks keep them from walking into walls.
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
        self.agents, self.now = list(self.possible_agents), 0
        self.exit = random.integers(self.length)
        self.place = {agent: int(random.integers(self.length)) for agent in self.agents}
        return self._seen(), self._masks()

    def step(self, actions):
        self.now += 1
        for agent, action in actions.items():
            self.place[agent] += 1 if action else -1
        out = {agent: self.place[agent] == self.exit for agent in self.agents}
        seen, masks = self._seen(), self._masks()
        late = dict.fromkeys(self.agents, self.now == 2 * self.length)
        self.agents = [agent for agent in self.agents if not (out[agent] or late[agent])]
        return seen, {agent: float(out[agent]) - 0.05 for agent in out}, out, late, masks

    def _seen(self):
        return {agent: np.array([self.place[agent], self.exit], np.float32) for agent in self.agents}

    def _masks(self):
        return {a: {"action_mask": [self.place[a] > 0, self.place[a] < self.length - 1]} for a in self.agents}


if __name__ == "__main__":
    run = coterie.train(algo="ippo", env="own_pettingzoo:Corridor", steps=sys.argv[1] if len(sys.argv) > 1 else "100k")
    print(coterie.evaluate(run, episodes=100)["teams"]["walker"])
