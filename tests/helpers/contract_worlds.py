"""Two small worlds that satisfy the contract, and a wrapper through which faults change one thing about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec, to_bounds
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.worlds.world import Observation, Outcome, State, World, WorldEnv

LIMIT = 6


class Pond(World):
    """Frogs (hybrid actions, they can drown and come back) are hunted by a stork (masked choices) until it is full."""

    def __init__(self) -> None:
        see = spaces.Box(-4, 4, (3,), np.float32)
        leap = spaces.Tuple((spaces.Discrete(2), spaces.Box(-0.5, 0.5, (1,), np.float32)))
        self.spec = EnvSpec(
            name="pond",
            roles=(
                RoleSpec("stork", "birds", ("stork",), spaces.Dict({"eye": see, "sky": see}), spaces.Discrete(3)),
                RoleSpec("frog", "frogs", ("frog_0", "frog_1"), see, leap),
            ),
            state_sizes={"global": 3, "frogs": 2},
            agents_can_die=True,
            has_group_reward=True,
            metrics=("eaten",),
            episode_limit=LIMIT,
        )
        self.reset_noise_size, self.step_noise_size = 3, 2

    def reset(self, noise: Tensor) -> State:
        nothing = torch.zeros(len(noise))
        return {"at": 2 * noise - 1, "gone": torch.zeros(len(noise), 2, dtype=torch.int64), "eaten": nothing}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        assert noise is not None
        alive = self.observe(state).alive
        frogs, stork = action["frog"], action["stork"]
        assert alive is not None
        assert frogs.discrete is not None
        assert frogs.continuous is not None
        assert stork.discrete is not None
        leap = to_bounds(frogs.continuous, self.spec.roles[1].action)[..., 0] * frogs.discrete[..., 0]
        alive_frogs = alive[:, 1:]
        at = state["at"] + 0.1 * torch.cat((stork.discrete[:, 0] - 1, leap * alive_frogs), 1)
        caught = alive_frogs & (noise < 0.1)
        eaten = state["eaten"] + caught.sum(1)
        gone = torch.where(caught, 2, (state["gone"] - 1).clamp(min=0))
        reward = torch.cat((caught.sum(1, keepdim=True).float(), -caught.float()), 1)
        group_reward = torch.stack((torch.zeros(len(at)), 0.1 * alive_frogs.sum(1)), 1)
        now = {"at": at.clamp(-2, 2), "gone": gone, "eaten": eaten}
        return now, Outcome(
            reward, group_reward, eaten >= 2, torch.cat((caught[:, :1] & False, caught), 1), {"eaten": eaten}
        )

    def observe(self, state: State) -> Observation:
        alive = torch.cat((torch.ones(len(state["gone"]), 1, dtype=torch.bool), state["gone"] == 0), 1)
        at = state["at"]
        mask = torch.stack((at[:, :1] > -1, torch.ones_like(at[:, :1], dtype=torch.bool), at[:, :1] < 1), -1)
        frogs = at[:, 1:, None] * torch.tensor([1.0, 0.5, -1.0])
        obs: dict[str, Any] = {"stork": {"eye": at[:, None], "sky": -at[:, None]}, "frog": frogs}
        return Observation(obs, {"stork": mask}, {"global": at, "frogs": at[:, 1:]}, alive)

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size // 2, size, 3), np.uint8)


class Plain(World):
    """One agent that walks forever; only its initial position is random."""

    def __init__(self, limit: int | None = LIMIT) -> None:
        see, walk = spaces.Box(-9, 9, (1,), np.float32), spaces.MultiDiscrete([3, 2])
        role = RoleSpec("walker", "walkers", ("walker",), see, walk)
        self.spec = EnvSpec("plain", (role,), {}, episode_limit=limit)
        self.reset_noise_size = 1

    def reset(self, noise: Tensor) -> State:
        return {"at": noise}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        chosen = action["walker"].discrete
        assert chosen is not None
        at = (state["at"] + 0.1 * (chosen[:, :, 0] - 1)).clamp(-8, 8)
        return {"at": at}, Outcome(-at.abs())

    def observe(self, state: State) -> Observation:
        return Observation({"walker": state["at"][..., None]})

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)


class Wrapped(VectorEnv):
    """An unchanged environment; subclasses change one thing about it."""

    def __init__(self, world: World, num_envs: int, seed: int):
        self.inner = WorldEnv(world, num_envs, seed)
        self.spec, self.num_envs, self.device = self.inner.spec, num_envs, self.inner.device
        self.closed = 0
        everyone = torch.ones(num_envs, self.spec.n, dtype=torch.bool)
        self.before = Timestep({}, {}, {}, everyone, everyone, everyone[:, 0])

    def reset(self, seed: int | None = None) -> Timestep:
        self.before = self.changed_timestep(self.inner.reset(seed))
        return self.before

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        before = self.before
        step, timestep = self.inner.step(self.changed_action(action))
        timestep = self.changed_timestep(timestep)
        self.before = timestep
        return self.changed_step(step, before, timestep), timestep

    def changed_action(self, action: dict[str, Action]) -> dict[str, Action]:
        return action

    def changed_timestep(self, timestep: Timestep) -> Timestep:
        return timestep

    def changed_step(self, step: Step, before: Timestep, timestep: Timestep) -> Step:
        return step

    def state_dict(self) -> dict[str, Any]:
        # The faults read `before`, so it must be restored as well.
        return {"inner": self.inner.state_dict(), "acted": self.before.acted, "alive": self.before.alive}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.before = Timestep({}, {}, {}, state["alive"], state["alive"], state["acted"])

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        return self.inner.render(env_index, size)

    def close(self) -> None:
        self.closed += 1
