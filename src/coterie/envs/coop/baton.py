"""baton: each runner can take one baton in its life; it hands it over at the bell, leaves, and the next one enters.

A task in the spirit of MA-POCA's baton pass (Cohen et al. 2022); room, rules and sizes are this project's own.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field, model_validator
from torch import Tensor

from coterie.envs.coop.render import Scene, Sprite
from coterie.envs.coop.task import CoopConfig, CoopWorld, first_of, scaled
from coterie.envs.parameters import Parameter
from coterie.envs.world import Outcome, State, View
from coterie.types import Action


class BatonConfig(CoopConfig):
    """Settings of coop/baton."""

    agents: int = Field(3, ge=2, le=16)
    """How many slots there are for runners; one at least is empty."""
    runners: int = Field(2, ge=1, le=15)
    """How many run at a time."""
    batons: int = Field(10, ge=1, le=1000)
    """How many batons there are, one after the other; the task is done when the last is taken."""
    size: int = Field(5, ge=4, le=16)
    """Squares along each side of the room."""
    episode_limit: int | None = Field(50, ge=1)
    """Steps after which an episode is cut; None: never."""

    @model_validator(mode="after")
    def _leaves_a_slot(self) -> BatonConfig:
        if self.runners >= self.agents:
            raise ValueError(f"runners={self.runners} leaves no slot empty of agents={self.agents}: choose fewer")
        return self


@final
class Baton(CoopWorld):
    """The group is paid 1 for every baton that is taken, and nothing for handing one over.

    A step: runners move; the first one on the baton's square that has had none takes it, and the next baton appears on
    another square; whoever brings one to the bell leaves (its slot is empty for a row at least), and a new runner
    enters at the gate in a slot that was empty. The episode ends when the last baton is taken.

    So a runner with a baton can earn nothing any more; what it does for the group is to leave.
    Metrics, at the last step: `taken`, `passed` (handed over), `done` (all were taken).
    """

    Config = BatonConfig

    def __init__(self, config: BatonConfig, with_state: bool = False):
        super().__init__(
            "baton",
            config,
            with_state,
            size=(config.size, config.size),
            agents=config.agents,
            things=3,
            marks=1,
            shared=2,
            metrics=("taken", "passed", "done"),
            mortal=True,
        )
        self.config = config
        self.restart_noise = 3 + config.runners
        self.step_noise = 1
        self.parameters = {"batons": Parameter(config.batons, 1, 1000, "batons until the task is done", True)}

    def restart(self, noise: Tensor) -> State:
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
        """Squares neither in the column of the gate nor in the one of the bell."""
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
        # Only slots that were empty in the row just shown.
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
            ended=done,
            agent_ended=leaves,
            metrics=lambda: {"taken": taken.float(), "passed": passed.float(), "done": done.float()},
        )

    def _elsewhere(self, square: Tensor, noise: Tensor) -> Tensor:
        """Another square of the middle, each as likely."""
        size, inner = self.config.size, self.config.size - 2
        at = square // size * inner + square % size - 1
        at = (at + 1 + scaled(noise, inner * size - 1)) % (inner * size)
        return at // inner * size + 1 + at % inner

    def view(self, state: State) -> View:
        there = torch.ones_like(state["bell"], dtype=torch.bool)[:, None].expand(-1, 3)
        left = 1 - state["taken"] / state["batons"]
        waiting = state["waiting"] / self.config.agents
        return self.show(
            state["agents"],
            torch.stack((state["baton"], state["bell"], state["gate"]), 1),
            there,
            alive=state["alive"],
            marks=state["carries"].unsqueeze(-1).float(),
            shared=torch.stack((left, waiting), 1),
        )

    def scene(self, state: State) -> Scene:
        things = [Sprite("bell", int(state["bell"])), Sprite("gate", int(state["gate"]))]
        things.append(Sprite("baton", int(state["baton"])))
        squares, alive, carries = (state[name][0].tolist() for name in ("agents", "alive", "carries"))
        for i, square in enumerate(squares):
            if alive[i]:
                things.append(Sprite("agent", square, i, mark="baton" if carries[i] else ""))
        score = {"taken": float(state["taken"]), "passed": float(state["passed"])}
        return Scene("baton", self._size, tuple(things), score)
