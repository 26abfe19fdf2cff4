"""pushblock: blocks that only as many agents together can push as they are heavy.

A task in the spirit of MA-POCA's cooperative push block (Cohen et al. 2022); room, rules and sizes are this project's
own.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from pydantic import Field, model_validator
from torch import Tensor

from coterie.envs.coop.grid import MOVES
from coterie.envs.coop.render import Scene, Sprite
from coterie.envs.coop.task import CoopConfig, CoopWorld, scaled
from coterie.envs.parameters import Parameter
from coterie.envs.world import Outcome, State, View
from coterie.types import Action

Weight = Annotated[int, Field(ge=1, le=16)]


class PushBlockConfig(CoopConfig):
    """Settings of coop/pushblock."""

    agents: int = Field(3, ge=1, le=16)
    """How many agents."""
    size: int = Field(5, ge=5, le=16)
    """Squares along each side of the room."""
    weights: tuple[Weight, ...] = Field((1, 2, 3), min_length=1)
    """How heavy each block is: so many agents move it, and so much it is worth."""
    sight: int | None = Field(2, ge=1)
    """How many squares agents see along each axis; None: the whole room."""
    push: float = Field(0.1, ge=0)
    """What the group earns, times a block's weight, for every square that the block comes nearer to the goal, and pays
    for every square back."""
    step_cost: float = Field(0.01, ge=0)
    """What the group pays for every step."""
    episode_limit: int | None = Field(50, ge=1)
    """Steps after which an episode is cut; None: never."""

    @model_validator(mode="after")
    def _fits(self) -> PushBlockConfig:
        if len(self.weights) > self.size:
            raise ValueError(f"{len(self.weights)} weights do not fit in size={self.size} rows: a block has its own")
        if max(self.weights) > self.agents:
            raise ValueError(f"a weight of {max(self.weights)} cannot be moved by agents={self.agents}: choose less")
        return self


@final
class PushBlock(CoopWorld):
    """The group is paid a block's weight when it comes into the goal, the rightmost column, a little of it for every
    square on the way there, and pays for every step.

    A step: an agent that walks towards a block beside it pushes. A block moves one square if at least as many agents
    push it from one side as it weighs, if not two sides do so at once, and if the square behind it is free of blocks
    and of agents and not in the leftmost column (from where nobody could push it out). Those who pushed follow; who
    pushes in vain stays. Agents can stand on one square together. Delivered blocks are gone. The episode ends when all
    are.

    Metrics, at the last step: `delivered`, blocks; `value`, their weights added up; `done` (all were delivered).
    """

    Config = PushBlockConfig

    def __init__(self, config: PushBlockConfig, with_state: bool = False):
        super().__init__(
            "pushblock",
            config,
            with_state,
            size=(config.size, config.size),
            agents=config.agents,
            things=len(config.weights),
            marks=0,
            shared=0,
            metrics=("delivered", "value", "done"),
            mortal=False,
        )
        self.config, self._far = config, config.size - 3
        self.restart_noise = config.agents + config.size + len(config.weights)
        self.parameters = {
            "step_cost": Parameter(config.step_cost, 0, 10, "what the group pays for every step"),
            "push": Parameter(config.push, 0, 10, "what a square nearer to the goal earns, times the block's weight"),
            "reach": Parameter(self._far, 1, self._far, "most squares from a block to the goal at the start", True),
        }
        self.adjusted = self._adjusted
        self._weights = torch.tensor(config.weights)
        # [K, K]: block j stands before block k in their order
        self._earlier = torch.ones(len(config.weights), len(config.weights), dtype=torch.bool).tril(-1)

    def restart(self, noise: Tensor) -> State:
        n, size, k = self.config.agents, self.config.size, len(self.config.weights)
        agents, rows, columns = noise.split([n, size, k], dim=1)
        at = scaled(agents, 2 * size)
        row = rows.argsort(1)[:, :k]
        return {
            "agents": at // 2 * size + at % 2,  # the two columns on the left
            "blocks": row * size + 2 + scaled(columns, size - 3),  # one push from the goal at the nearest
            "there": torch.ones_like(row, dtype=torch.bool),
            "step_cost": noise.new_full((len(noise),), self.config.step_cost),
        }

    def _adjusted(self, state: State) -> State:
        if "reach" not in state:
            return state
        blocks, size = state["blocks"], self.config.size
        away = size - 1 - blocks % size  # 1 to `far`, brought to 1 to `reach` in equal shares
        nearer = torch.ceil(away * state["reach"].unsqueeze(1) / self._far).long()
        return {**state, "blocks": blocks + away - nearer}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        room, size = self.grid(state["agents"]), self.config.size
        move, agents, there = self.moves(action), state["agents"], state["there"]
        weight = self._weights.to(agents.device)
        target = room.moved(agents, move)
        blocks = torch.where(there, state["blocks"], -1)
        at_block = (target[:, :, None] == blocks[:, None]) & (target != agents)[:, :, None]  # [B, N, K]
        moved = self._pushed(move, at_block, blocks, agents)
        stopped = (target[:, :, None] == moved[:, None]).any(2)  # also where a block has just come
        agents = torch.where(stopped, agents, target)
        home = there & (moved % size == size - 1)
        there = there & ~home
        value = (home * weight).sum(1).float()
        nearer = torch.where(blocks >= 0, moved % size - blocks % size, 0)
        pushed = (nearer * weight).sum(1).float()
        now = {"agents": agents, "blocks": moved.clamp(min=0), "there": there}
        done = ~there.any(1)
        gone = ~there
        return state | now, Outcome(
            reward=torch.zeros_like(agents, dtype=state["step_cost"].dtype),
            group_reward=(value + state.get("push", self.config.push) * pushed - state["step_cost"])[:, None],
            ended=done,
            metrics=lambda: {
                "delivered": gone.sum(1).float(),
                "value": (gone * weight).sum(1).float(),
                "done": done.float(),
            },
        )

    def _pushed(self, move: Tensor, at_block: Tensor, blocks: Tensor, agents: Tensor) -> Tensor:
        """[B, K]: where the blocks are after the agents' `move` [B, N]; -1 for one that is not there.

        at_block: [B, N, K], the agent walks towards that block; blocks: [B, K], -1 likewise; agents: [B, N].
        """
        room, weight = self.grid(agents), self._weights.to(agents.device)
        sides = torch.arange(1, len(MOVES), device=move.device)
        pushing = (move[:, :, None] == sides).float()  # [B, N, 4]
        force = torch.bmm(at_block.float().transpose(1, 2), pushing)  # [B, K, 4]
        strong = force >= weight[:, None]
        one = strong.sum(2) == 1
        side = strong.byte().argmax(2) + 1
        ahead = torch.where(one, room.moved(blocks.clamp(min=0), side), blocks)
        walled = (ahead == blocks) | (ahead % self.config.size == 0)
        occupied = (ahead[:, :, None] == blocks[:, None]).any(2) | (ahead[:, :, None] == agents[:, None]).any(2)
        goes = one & ~walled & ~occupied
        # Two blocks to one square: the earlier one has it.
        same = (ahead[:, :, None] == ahead[:, None]) & goes[:, None] & self._earlier.to(move.device)
        return torch.where(goes & ~same.any(2), ahead, blocks)

    def view(self, state: State) -> View:
        return self.show(state["agents"], state["blocks"], state["there"], sight=self.config.sight)

    def scene(self, state: State) -> Scene:
        blocks, there = state["blocks"][0].tolist(), state["there"][0].tolist()
        size, weights = self.config.size, self.config.weights
        things = [Sprite("goal", y * size + size - 1) for y in range(size)]
        things += [
            Sprite("block", square, weight, mark=str(weight))
            for square, weight, here in zip(blocks, weights, there, strict=True)
            if here
        ]
        things += [Sprite("agent", square, i) for i, square in enumerate(state["agents"][0].tolist())]
        value = sum(weight for weight, here in zip(weights, there, strict=True) if not here)
        return Scene("pushblock", self._size, tuple(things), {"delivered": float(value)})
