import gymnasium
import numpy as np


class Rough(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.position = np.zeros(2, np.float32)
        return self.position, {}

    def step(self, action):
        self.position += 0.01 * (action - 0.5)
        return self.position, np.ones(1), False, False, {}
