"""A world of one's own: agents on a line want to meet. All copies are stepped at once by tensor arithmetic.

python examples/own_world.py [STEPS]
"""

import sys

import numpy as np
import torch
from gymnasium import spaces

import coterie
from coterie.envs.world import Outcome, View, World, WorldEnv
from coterie.types import EnvSpec, RoleSpec


class Meeting(World):
    restart_noise = 3

    def __init__(self):
        role = RoleSpec("walker", "walker", ("a", "b", "c"), spaces.Box(-9, 9, (3,)), spaces.Discrete(3))
        self.spec = EnvSpec("meeting", roles=(role,), state_sizes={}, episode_limit=20)

    def restart(self, noise):
        return {"place": noise * 2 - 1}  # [B, 3] in [-1, 1]

    def step(self, state, action, noise):
        move = action["walker"].discrete[..., 0] - 1  # left, stay, right
        place = state["place"] + 0.1 * move
        apart = place.amax(1, keepdim=True) - place.amin(1, keepdim=True)
        return {"place": place}, Outcome(reward=-apart.expand(-1, 3))

    def view(self, state):
        place = state["place"]
        others = torch.stack([place.roll(-1, 1), place.roll(-2, 1)], -1) - place[..., None]
        return View({"walker": torch.cat([place[..., None], others], -1)})

    def render(self, state, size):
        picture = np.full((size // 8, size, 3), 255, np.uint8)
        at = ((state["place"][0].clamp(-2, 2) / 4 + 0.5) * (size - 9)).long()
        for i, x in enumerate(at.tolist()):
            picture[:, x : x + 8] = np.eye(3)[i] * 200
        return picture


def make(copies, seed, device):
    return WorldEnv(Meeting(), copies, seed, device)


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "300k"
    run = coterie.train(algo="ippo", env="own_world:make", steps=steps, horizon=21)
    print(coterie.play(run, video="meeting.gif", size=240))
