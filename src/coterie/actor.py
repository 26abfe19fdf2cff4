"""Stochastic actors: categorical choices, Gaussian numbers, or both at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.math.distributions import draw_noise, evaluate, sample
from coterie.nets.memory import Carry
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Block, Shape, Share, TeamNet, blocks, join
from coterie.policy import Mode, Policy
from coterie.types import Action, Row, TeamSpec, Tree


class ActorPolicy(Policy):
    """A stochastic actor over observations: categorical choices, Gaussian numbers, or both at once.

    state_std: the Gaussians' spread is an output of the network, not a parameter; init_std: their standard deviation at
    the start; normalise_obs: observations are shifted and scaled by running moments and clipped to [-10, 10].
    """

    def __init__(
        self,
        team: TeamSpec,
        shape: Shape,
        share: Share,
        agent_id: bool,
        state_std: bool,
        init_std: float,
        normalise_obs: bool,
        generator: torch.Generator,
        device: torch.device,
    ):
        self.team, self.device, self.shape = team, device, shape
        self._state_std = state_std
        self.blocks = blocks(team, share)
        specs = {block.name: block.roles[0].action for block in self.blocks}
        outputs = {name: s.mask_size + s.continuous * (2 if state_std else 1) for name, s in specs.items()}
        self.net = TeamNet(team, outputs, 0.01, shape, share, agent_id, generator)
        start = torch.tensor(init_std).log().item()
        self._start_log_std = start
        spread = {
            block.name: nn.Parameter(
                torch.full((block.n if share == "none" else 1, specs[block.name].continuous), start)
            )
            for block in self.blocks
            if specs[block.name].continuous and not state_std
        }
        self.log_std = nn.ParameterDict(spread)
        self.module = nn.ModuleDict({"net": self.net, "log_std": self.log_std}).to(device)
        self.scale = ObservationScale(self.blocks, normalise_obs, device)

    # ------------------------------------------------------------------------------------------------------- acting

    def start(self, copies: int) -> Carry:
        return self.net.start(copies, self.device)

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn = {}
        for block in self.blocks:
            shape = (steps, copies, block.n)
            drawn[block.name] = draw_noise(block.roles[0].action, shape, generator, self.device).unbind(0)
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        out, carry = self.net.row(self.scale(row.obs), row.first, carry)
        actions, log_probs = {}, {}
        for block in self.blocks:
            params, log_std = self._params(block, out[block.name])
            mask = block.mask(row.action_mask)
            drawn = None if mode == "greedy" else noise[block.name]
            action, log_probs[block.name] = sample(block.roles[0].action, params, log_std, mask, drawn)
            actions.update(block.split(action))
        return actions, carry, {"log_prob": join(log_probs, self.blocks, -1)}

    # ----------------------------------------------------------------------------------------------------- learning

    def evaluate(
        self,
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        action: dict[str, Action],
        first: Tensor | None,
        carry: Carry,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [.., N] of `action` on normalised observations.

        obs: by role [M, n, D], or sequences [L, M, n, D] with first [L, M, N] and the carry before their first row.
        """
        out, _ = self.net(obs, first, carry)
        log_probs, entropies = {}, {}
        for block in self.blocks:
            params, log_std = self._params(block, out[block.name])
            mask = block.mask(action_mask)
            log_probs[block.name], entropies[block.name] = evaluate(
                block.roles[0].action, params, log_std, mask, block.action(action)
            )
        return join(log_probs, self.blocks, -1), join(entropies, self.blocks, -1)

    def unroll(self, obs: dict[str, Tree], first: Tensor, carry: Carry) -> Carry:
        """The memory after the rows of normalised obs [L, M, n, D]."""
        return self.net(obs, first, carry)[1]

    def _params(self, block: Block, out: Tensor) -> tuple[Tensor, Tensor | None]:
        """The distribution's parameters of a block: [.., n, sum A + C] and the log of the spread [.., n, C] or [n,
        C].
        """
        spec = block.roles[0].action
        if not spec.continuous:
            return out, None
        if not self._state_std:
            return out, self.log_std[block.name].clamp(-5, 2)
        params, spread = out.split([spec.mask_size + spec.continuous, spec.continuous], -1)
        return params, (spread + self._start_log_std).clamp(-5, 2)

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "moments": self.scale.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.scale.load_state_dict(state["moments"])
