"""escape: the dragon has the key, and the agent that takes it from the dragon is lost.

A task in the spirit of MA-POCA's dungeon escape (Cohen et al. 2022); room, rules and sizes are Coterie's own.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.coop.rooms import CoopConfig, CoopWorld, Layout, Scene, Sprite, first_of, scaled
from coterie.envs.worlds.world import Observation, Outcome, State


class EscapeConfig(CoopConfig):
    """Settings of coop/escape."""

    agents: int = Field(3, ge=2, le=16)
    """Number of agents at the start."""
    size: int = Field(5, ge=4, le=16)
    """Side length of the room in squares."""
    pace: int = Field(3, ge=1, le=64)
    """Number of steps that the dragon needs per square."""
    cost: float = Field(0.0, ge=0, le=1000)
    """Individual penalty of an agent for meeting the dragon."""
    episode_limit: int | None = Field(25, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""


@final
class Escape(CoopWorld):
    """The group receives 1 when one of its members opens the door.

    In each step the agents move, and every `pace` steps the dragon moves one square toward its portal. An agent that
    shares the dragon's square dies together with it, and the key appears where the dragon died. The first agent on that
    square takes the key, and opens the door on the door's square. The episode ends when the door opens, when the dragon
    reaches the portal, or when all agents are dead. Dying has no reward (or -`cost`).

    Metrics, at the last step: `escaped`, `slain` (the dragon died), `fallen` (number of dead agents).
    """

    Config = EscapeConfig

    def __init__(self, config: EscapeConfig, with_state: bool = False):
        super().__init__(
            "escape",
            config,
            with_state,
            layout=Layout(size=(config.size, config.size), agents=config.agents, items=4, marks=1, shared=1),
            metrics=("escaped", "slain", "fallen"),
            agents_can_die=True,
        )
        self.config = config
        self.reset_noise_size = 3 + config.agents
        self.parameters = {
            "pace": Parameter(config.pace, 1, 64, "steps per square of the dragon", integer=True),
            "cost": Parameter(config.cost, 0, 100, "individual penalty for meeting the dragon"),
        }

    def reset(self, noise: Tensor) -> State:
        size, num_envs = self.config.size, len(noise)
        top = size * (size - 1)
        door = scaled(noise[:, 0], size)
        dragon = (door + 1 + scaled(noise[:, 2], size - 1)) % size
        return {
            "agents": size + scaled(noise[:, 3:], size * (size - 2)),  # neither in the top row nor in the bottom row
            "alive": torch.ones_like(noise[:, 3:], dtype=torch.bool),
            "dragon": top + dragon,
            "slain": torch.zeros_like(door, dtype=torch.bool),
            "holder": torch.full_like(door, -1),
            "door": top + door,
            "portal": scaled(noise[:, 1], size),
            "age": torch.zeros_like(door),
            "pace": torch.full_like(door, self.config.pace),
            "cost": noise.new_full((num_envs,), self.config.cost),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        room, alive, slain = self.grid(state["agents"]), state["alive"], state["slain"]
        agents = torch.where(alive, room.moved(state["agents"], self.moves(action)), state["agents"])
        age, before = state["age"] + 1, state["dragon"]
        walks = ~slain & (age % state["pace"] == 0)
        dragon = torch.where(walks, room.moved(before, room.way(before, state["portal"])), before)
        met = (agents == before[:, None]) | (agents == dragon[:, None])
        falls = alive & met & ~slain[:, None]
        alive, slain = alive & ~falls, slain | falls.any(1)
        # The key appears on the square where the dragon died.
        lies = slain & (state["holder"] < 0)
        finder = first_of(alive & (agents == dragon[:, None]) & lies[:, None])
        holder = torch.maximum(state["holder"], finder)
        holds = agents.gather(1, holder.clamp(min=0)[:, None])[:, 0] == state["door"]
        opened = (holder >= 0) & holds
        ended = opened | (~slain & (dragon == state["portal"])) | ~alive.any(1)
        now = {"agents": agents, "alive": alive, "dragon": dragon, "slain": slain, "holder": holder, "age": age}
        return state | now, Outcome(
            reward=falls * -state["cost"][:, None],
            group_reward=opened[:, None].float(),
            terminated=ended,
            agent_terminated=falls,
            metrics=lambda: {
                "escaped": opened.float(),
                "slain": slain.float(),
                "fallen": (~alive).sum(1).float(),
            },
        )

    def observe(self, state: State) -> Observation:
        slain, holder = state["slain"], state["holder"]
        everywhere = torch.ones_like(slain)
        members = torch.arange(self.config.agents, device=holder.device)
        next_walks = ~slain & ((state["age"] + 1) % state["pace"] == 0)
        return self.build_observation(
            state["agents"],
            torch.stack((state["dragon"], state["dragon"], state["door"], state["portal"]), 1),
            torch.stack((~slain, slain & (holder < 0), everywhere, everywhere), 1),
            alive=state["alive"],
            marks=(holder[:, None] == members).unsqueeze(-1).float(),
            shared=next_walks[:, None].float(),
        )

    def scene(self, state: State) -> Scene:
        slain, holder = bool(state["slain"]), int(state["holder"])
        sprites = [Sprite("door", int(state["door"]), mark="open" if holder >= 0 else "")]
        sprites.append(Sprite("portal", int(state["portal"])))
        sprites.append(Sprite("key" if slain and holder < 0 else "ashes" if slain else "dragon", int(state["dragon"])))
        squares, alive = state["agents"][0].tolist(), state["alive"][0].tolist()
        for i, square in enumerate(squares):
            if alive[i]:
                sprites.append(Sprite("agent", square, i, mark="key" if i == holder else ""))
        score = {"fallen": float(alive.count(False)), "step": float(state["age"])}
        return Scene("escape", self._size, tuple(sprites), score)
