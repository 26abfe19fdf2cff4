"""Your own environment with Gymnasium's interface: a falling lander has to touch down softly.

python examples/own_gymnasium.py [STEPS]
"""

import sys

import gymnasium
import numpy as np

import coterie


class Lander(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-30, 30, (2,))
    action_space = gymnasium.spaces.Discrete(2)  # fall or thrust

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.height, self.speed = 0, self.np_random.uniform(0.5, 1), 0.0
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        self.speed += 0.02 if action else -0.01
        self.height = min(self.height + self.speed, 2.0)
        landed = self.height <= 0
        return self._observation(), 1 - 9 * abs(self.speed) if landed else -0.01, landed, self.time == 100, {}

    def _observation(self):
        return np.array([self.height, 10 * self.speed], np.float32)


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "100k"
    run = coterie.train(algo="ppo", env="own_gymnasium:Lander", steps=steps)
    print(coterie.evaluate(run, episodes=100)["teams"])
