"""Your own batched world: agents on a line have to meet. Tensor arithmetic steps all environments at once.

python examples/own_world.py [STEPS]
"""

import sys

import numpy as np
import torch
from gymnasium import spaces

import coterie
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.worlds.world import Observation, Outcome, World, WorldEnv


class Meeting(World):
    reset_noise_size = 3

    def __init__(self, stride):
        self.stride = stride
        role = RoleSpec("walker", "walker", ("a", "b", "c"), spaces.Box(-9, 9, (3,)), spaces.Discrete(3))
        self.spec = EnvSpec("meeting", roles=(role,), state_sizes={}, episode_limit=20)

    def reset(self, noise):
        return {"position": noise * 2 - 1}  # [B, 3] in [-1, 1]

    def step(self, state, action, noise):
        move = action["walker"].discrete[..., 0] - 1  # left, stay, right
        position = state["position"] + self.stride * move
        distance = position.amax(1, keepdim=True) - position.amin(1, keepdim=True)
        return {"position": position}, Outcome(reward=-distance.expand(-1, 3))

    def observe(self, state):
        position = state["position"]
        others = torch.stack([position.roll(-1, 1), position.roll(-2, 1)], -1) - position[..., None]
        return Observation({"walker": torch.cat([position[..., None], others], -1)})

    def render(self, state, size):
        picture = np.full((size // 8, size, 3), 255, np.uint8)
        at = ((state["position"][0].clamp(-2, 2) / 4 + 0.5) * (size - 9)).long()
        for i, x in enumerate(at.tolist()):
            picture[:, x : x + 8] = np.eye(3)[i] * 200
        return picture


def make(num_envs, seed, device, stride=0.1):  # further parameters are settings: env.stride=0.2
    return WorldEnv(Meeting(stride), num_envs, seed, device=device)


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "300k"
    run = coterie.train(algo={"name": "ippo", "rollout_length": 21}, env="own_world:make", steps=steps)
    print(coterie.play(run, video="meeting.gif", size=240))
