"""pushblock: a block moves only if at least as many agents push it as its weight.

A task in the spirit of MA-POCA's cooperative push block (Cohen et al. 2022); room, rules and sizes are Coterie's own.
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from pydantic import Field, model_validator
from torch import Tensor

from coterie.core.device_constants import DeviceConstant
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.coop.rooms import MOVES, CoopConfig, CoopWorld, Layout, Scene, Sprite, scaled
from coterie.envs.worlds.world import Observation, Outcome, State

Weight = Annotated[int, Field(ge=1, le=16)]


class PushBlockConfig(CoopConfig):
    """Settings of coop/pushblock."""

    agents: int = Field(3, ge=1, le=16)
    """Number of agents."""
    size: int = Field(6, ge=5, le=16)
    """Side length of the room in squares."""
    weights: tuple[Weight, ...] = Field((1, 2, 3), min_length=1)
    """Weight of each block: the number of agents needed to move it, and its reward."""
    sight: int | None = Field(None, ge=1, le=1000)
    """View range in squares along each axis; None: the whole room."""
    push: float = Field(0.0, ge=0, le=1000)
    """Group reward per unit of weight for every square that a block moves toward the goal, negative for squares away
    from it.
    """
    step_cost: float = Field(0.01, ge=0, le=1000)
    """Group penalty per step."""
    episode_limit: int | None = Field(50, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""

    @model_validator(mode="after")
    def _fits(self) -> PushBlockConfig:
        if len(self.weights) > self.size:
            raise ValueError(
                f"{len(self.weights)} weights do not fit in size={self.size} rows. Give at most one block per row."
            )
        if max(self.weights) > self.agents:
            raise ValueError(
                f"a block of weight {max(self.weights)} cannot be moved by agents={self.agents}. "
                "Lower the weight or raise agents."
            )
        return self


@final
class PushBlock(CoopWorld):
    """The group receives a block's weight when it reaches the goal, the rightmost column, minus a step penalty.

    With `push` it also receives a shaping reward for every square that a block moves toward the goal.

    In each step, an agent that moves toward an adjacent block pushes it. A block moves one square if at least as many
    agents as its weight push it from one side, if it is not pushed from two sides at once, and if the square behind it
    is free of blocks and agents and not in the leftmost column (from which it could never be pushed out). Successful
    pushers follow the block; the others stay. Agents can share a square. Delivered blocks disappear. The episode ends
    when all are delivered.

    Metrics, at the last step: `delivered` (blocks), `value` (sum of their weights), `done` (all were delivered).
    """

    Config = PushBlockConfig

    def __init__(self, config: PushBlockConfig, with_state: bool = False):
        super().__init__(
            "pushblock",
            config,
            with_state,
            layout=Layout(size=(config.size, config.size), agents=config.agents, items=len(config.weights)),
            metrics=("delivered", "value", "done"),
            agents_can_die=False,
        )
        self.config, self._far = config, config.size - 3
        self.reset_noise_size = config.agents + config.size + len(config.weights)
        self.parameters = {
            "step_cost": Parameter(config.step_cost, 0, 10, "group penalty per step"),
            "push": Parameter(config.push, 0, 10, "reward per square toward the goal, times the block's weight"),
            "reach": Parameter(
                self._far, 1, self._far, "maximum initial distance of a block from the goal, in squares", integer=True
            ),
        }
        self.apply_parameters = self._apply_parameters
        self._weights = DeviceConstant(torch.tensor(config.weights))
        # [K, K]: block j precedes block k
        earlier = torch.ones(len(config.weights), len(config.weights), dtype=torch.bool).tril(-1)
        self._earlier = DeviceConstant(earlier)

    def reset(self, noise: Tensor) -> State:
        n, size, k = self.config.agents, self.config.size, len(self.config.weights)
        agents, rows, columns = noise.split([n, size, k], dim=1)
        at = scaled(agents, 2 * size)
        row = rows.argsort(1)[:, :k]
        return {
            "agents": at // 2 * size + at % 2,  # the two leftmost columns
            "blocks": row * size + 2 + scaled(columns, size - 3),  # at least one push away from the goal
            "present": torch.ones_like(row, dtype=torch.bool),
            "step_cost": noise.new_full((len(noise),), self.config.step_cost),
        }

    def _apply_parameters(self, state: State) -> State:
        if "reach" not in state:
            return state
        blocks, size = state["blocks"], self.config.size
        away = size - 1 - blocks % size  # distances 1 to `far` are mapped uniformly to 1 to `reach`
        nearer = torch.ceil(away * state["reach"].unsqueeze(1) / self._far).long()
        return {**state, "blocks": blocks + away - nearer}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        room, size = self.grid(state["agents"]), self.config.size
        move, agents, present = self.moves(action), state["agents"], state["present"]
        weight = self._weights.on(agents.device)
        target = room.moved(agents, move)
        blocks = torch.where(present, state["blocks"], -1)
        at_block = (target[:, :, None] == blocks[:, None]) & (target != agents)[:, :, None]  # [B, N, K]
        moved = self._pushed(move, at_block, blocks, agents)
        stopped = (target[:, :, None] == moved[:, None]).any(2)  # including squares that a block has just entered
        agents = torch.where(stopped, agents, target)
        home = present & (moved % size == size - 1)
        present = present & ~home
        value = (home * weight).sum(1).float()
        nearer = torch.where(blocks >= 0, moved % size - blocks % size, 0)
        pushed = (nearer * weight).sum(1).float()
        now = {"agents": agents, "blocks": moved.clamp(min=0), "present": present}
        done = ~present.any(1)
        gone = ~present
        return state | now, Outcome(
            reward=torch.zeros_like(agents, dtype=state["step_cost"].dtype),
            group_reward=(value + state.get("push", self.config.push) * pushed - state["step_cost"])[:, None],
            terminated=done,
            metrics=lambda: {
                "delivered": gone.sum(1).float(),
                "value": (gone * weight).sum(1).float(),
                "done": done.float(),
            },
        )

    def _pushed(self, move: Tensor, at_block: Tensor, blocks: Tensor, agents: Tensor) -> Tensor:
        """Squares [B, K] of the blocks after the agents' `move` [B, N]; -1 for delivered blocks.

        Args:
            at_block: [B, N, K], True if the agent moves toward that block.
            blocks: [B, K], squares of the blocks, -1 for delivered ones.
            agents: [B, N], squares of the agents.
        """
        room, weight = self.grid(agents), self._weights.on(agents.device)
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
        # If two blocks move to the same square, the earlier one gets it.
        same = (ahead[:, :, None] == ahead[:, None]) & goes[:, None] & self._earlier.on(move.device)
        return torch.where(goes & ~same.any(2), ahead, blocks)

    def observe(self, state: State) -> Observation:
        return self.build_observation(state["agents"], state["blocks"], state["present"], sight=self.config.sight)

    def scene(self, state: State) -> Scene:
        blocks, present = state["blocks"][0].tolist(), state["present"][0].tolist()
        size, weights = self.config.size, self.config.weights
        sprites = [Sprite("goal", y * size + size - 1) for y in range(size)]
        sprites += [
            Sprite("block", square, weight, mark=str(weight))
            for square, weight, shown in zip(blocks, weights, present, strict=True)
            if shown
        ]
        sprites += [Sprite("agent", square, i) for i, square in enumerate(state["agents"][0].tolist())]
        value = sum(weight for weight, shown in zip(weights, present, strict=True) if not shown)
        return Scene("pushblock", self._size, tuple(sprites), {"delivered": float(value)})
