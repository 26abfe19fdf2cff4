"""baton: each runner takes one baton in its life, delivers it at the bell and leaves, and the next runner enters.

A task in the spirit of MA-POCA's baton pass (Cohen et al. 2022); room, rules and sizes are Coterie's own.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field, model_validator
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.coop.rooms import CoopConfig, CoopWorld, Layout, Scene, Sprite, first_of, scaled
from coterie.envs.worlds.world import Observation, Outcome, State


class BatonConfig(CoopConfig):
    """Settings of coop/baton."""

    agents: int = Field(3, ge=2, le=16)
    """Number of agent slots; at least one is empty."""
    runners: int = Field(2, ge=1, le=15)
    """Number of runners at any time."""
    batons: int = Field(10, ge=1, le=1000)
    """Number of batons, one after the other; the episode ends when the last one is taken."""
    size: int = Field(5, ge=4, le=16)
    """Side length of the room in squares."""
    episode_limit: int | None = Field(50, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""

    @model_validator(mode="after")
    def _leaves_a_slot(self) -> BatonConfig:
        if self.runners >= self.agents:
            raise ValueError(
                f"runners={self.runners} leaves no empty slot with agents={self.agents}. Choose fewer runners."
            )
        return self


@final
class Baton(CoopWorld):
    """The group receives 1 for every baton taken and nothing for delivering one.

    In each step the runners move. The first runner on the baton's square that has not carried one takes it, and the
    next baton appears on another square. A runner that delivers a baton at the bell leaves (its slot stays empty for at
    least one timestep), and a new runner enters at the gate in a slot that was empty. The episode ends when the last
    baton is taken.

    A runner with a baton can earn no further reward; leaving is its contribution to the group.
    Metrics, at the last step: `taken`, `passed` (delivered), `done` (all batons were taken).
    """

    Config = BatonConfig

    def __init__(self, config: BatonConfig, with_state: bool = False):
        super().__init__(
            "baton",
            config,
            with_state,
            layout=Layout(size=(config.size, config.size), agents=config.agents, items=3, marks=1, shared=2),
            metrics=("taken", "passed", "done"),
            agents_can_die=True,
        )
        self.config = config
        self.reset_noise_size = 3 + config.runners
        self.step_noise_size = 1
        self.parameters = {"batons": Parameter(config.batons, 1, 1000, "number of batons", integer=True)}

    def reset(self, noise: Tensor) -> State:
        config, size = self.config, self.config.size
        bell = scaled(noise[:, 0], size) * size + size - 1
        alive = torch.arange(config.agents, device=noise.device) < config.runners
        middle = self._middle(noise[:, 3:])
        agents = torch.nn.functional.pad(middle, (0, config.agents - config.runners))
        return {
            "agents": agents,
            "alive": alive.expand(len(noise), -1),
            "carries": torch.zeros_like(agents, dtype=torch.bool),
            "baton": self._middle(noise[:, 2]),
            "bell": bell,
            "gate": scaled(noise[:, 1], size) * size,
            "waiting": torch.zeros_like(bell),
            "taken": torch.zeros_like(bell),
            "passed": torch.zeros_like(bell),
            "batons": torch.full_like(bell, config.batons),
        }

    def _middle(self, noise: Tensor) -> Tensor:
        """Squares neither in the column of the gate nor in the column of the bell."""
        inner = self.config.size - 2
        at = scaled(noise, inner * self.config.size)
        return at // inner * self.config.size + 1 + at % inner

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        assert noise is not None
        room, alive, carries = self.grid(state["agents"]), state["alive"], state["carries"]
        agents = torch.where(alive, room.moved(state["agents"], self.moves(action)), state["agents"])
        taker = first_of(alive & ~carries & (agents == state["baton"][:, None]))
        takes = taker >= 0
        slots = torch.arange(self.config.agents, device=agents.device)
        carries = carries | (taker[:, None] == slots)
        baton = torch.where(takes, self._elsewhere(state["baton"], noise[:, 0]), state["baton"])
        leaves = alive & carries & (agents == state["bell"][:, None])
        left = leaves.sum(1)
        waiting = state["waiting"] + left
        # Only slots that were empty in the previous timestep.
        free = ~alive
        enters = free & (free.cumsum(1) <= waiting[:, None])
        taken = state["taken"] + takes
        passed = state["passed"] + left
        done = taken >= state["batons"]
        now = {
            "agents": torch.where(enters, state["gate"][:, None], agents),
            "alive": (alive & ~leaves) | enters,
            "carries": carries & ~leaves & ~enters,
            "baton": baton,
            "waiting": waiting - enters.sum(1),
            "taken": taken,
            "passed": passed,
        }
        return state | now, Outcome(
            reward=torch.zeros_like(agents, dtype=noise.dtype),
            group_reward=takes[:, None].float(),
            terminated=done,
            agent_terminated=leaves,
            metrics=lambda: {"taken": taken.float(), "passed": passed.float(), "done": done.float()},
        )

    def _elsewhere(self, square: Tensor, noise: Tensor) -> Tensor:
        """Another square of the middle area, uniformly at random."""
        size, inner = self.config.size, self.config.size - 2
        at = square // size * inner + square % size - 1
        at = (at + 1 + scaled(noise, inner * size - 1)) % (inner * size)
        return at // inner * size + 1 + at % inner

    def observe(self, state: State) -> Observation:
        present = torch.ones_like(state["bell"], dtype=torch.bool)[:, None].expand(-1, 3)
        left = 1 - state["taken"] / state["batons"]
        waiting = state["waiting"] / self.config.agents
        return self.build_observation(
            state["agents"],
            torch.stack((state["baton"], state["bell"], state["gate"]), 1),
            present,
            alive=state["alive"],
            marks=state["carries"].unsqueeze(-1).float(),
            shared=torch.stack((left, waiting), 1),
        )

    def scene(self, state: State) -> Scene:
        sprites = [Sprite("bell", int(state["bell"])), Sprite("gate", int(state["gate"]))]
        sprites.append(Sprite("baton", int(state["baton"])))
        squares, alive, carries = (state[name][0].tolist() for name in ("agents", "alive", "carries"))
        for i, square in enumerate(squares):
            if alive[i]:
                sprites.append(Sprite("agent", square, i, mark="baton" if carries[i] else ""))
        score = {"taken": float(state["taken"]), "passed": float(state["passed"])}
        return Scene("baton", self._size, tuple(sprites), score)
