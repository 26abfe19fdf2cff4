"""Policies: what acts. Evaluation, opponents, play and export need nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.math.distributions import draw_noise, evaluate, sample
from coterie.math.running import Moments, count_scale, count_start, count_update
from coterie.nets.memory import Carry
from coterie.nets.team import Block, Shape, Share, TeamNet, blocks, join
from coterie.types import Action, Row, TeamSpec, Tree

Mode = Literal["greedy", "sample", "explore"]


class Policy(ABC):
    """Acts for one team: pure in the row, the memory and the noise."""

    team: TeamSpec

    @abstractmethod
    def start(self, copies: int) -> Carry:
        """The memory before the first row, by name [B, N, H]; {} without memory."""

    @abstractmethod
    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        """Noise for `act` on each of `steps` rows of `copies` copies."""

    @abstractmethod
    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        """What the team does on a row of its own, its memory after it, and what it notes, by name [B, N].

        mode: greedy takes the most likely action and needs no noise; sample draws from the policy; explore draws as the
        algorithm does while it collects.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that acting needs."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""


class RandomPolicy(Policy):
    """Draws uniformly: among the available choices, and from [-1, 1]."""

    def __init__(self, team: TeamSpec, device: torch.device):
        self.team, self.device = team, device

    def start(self, copies: int) -> Carry:
        return {}

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn: dict[str, tuple[Tensor, ...]] = {}
        for role in self.team.roles:
            size = role.action.mask_size + role.action.continuous
            shape = (steps, copies, role.n, size)
            drawn[role.name] = torch.rand(shape, generator=generator, device=self.device).unbind(0)
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        actions = {}
        for role in self.team.roles:
            spec, uniform = role.action, noise[role.name]
            mask = row.action_mask.get(role.name)
            picks = []
            if spec.choices:
                score = uniform[..., : spec.mask_size]
                score = score if mask is None else torch.where(mask, score, -1.0)
                picks = [part.argmax(-1, keepdim=True) for part in score.split(spec.choices, -1)]
            actions[role.name] = Action(
                torch.cat(picks, -1) if picks else None,
                uniform[..., spec.mask_size :] * 2 - 1 if spec.continuous else None,
            )
        return actions, carry, {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


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
        net = TeamNet(team, outputs, 0.01, shape, share, agent_id, generator)
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
        self.module = nn.ModuleDict({"net": net, "log_std": self.log_std}).to(device)
        self.moments: dict[str, Moments] = {}
        if normalise_obs:
            self.moments = {block.name: count_start(block.features, device) for block in self.blocks}
        self._scales = {name: count_scale(moments) for name, moments in self.moments.items()}

    # ------------------------------------------------------------------------------------------------------- acting

    def start(self, copies: int) -> Carry:
        if self.shape.memory == "none":
            return {}
        names = ("h",) if self.shape.memory == "gru" else ("h", "c")
        return {name: torch.zeros(copies, self.team.n, self.shape.memory_size, device=self.device) for name in names}

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn = {}
        for block in self.blocks:
            shape = (steps, copies, block.n)
            drawn[block.name] = draw_noise(block.roles[0].action, shape, generator, self.device).unbind(0)
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        if carry:
            sequence = {name: x.unsqueeze(0) for name, x in self.normalised(row.obs).items()}
            out, carry = self.module["net"](sequence, row.first.unsqueeze(0), carry)
            out = {name: x.squeeze(0) for name, x in out.items()}
        else:
            out, _ = self.module["net"](self.normalised(row.obs), None, carry)
        actions, log_probs = {}, {}
        for block in self.blocks:
            params, log_std = self._params(block, out[block.name])
            mask = block.mask(row.action_mask)
            drawn = None if mode == "greedy" else noise[block.name]
            action, log_probs[block.name] = sample(block.roles[0].action, params, log_std, mask, drawn)
            actions.update(self._by_role(block, action))
        return actions, carry, {"log_prob": join(log_probs, self.blocks, -1)}

    # ----------------------------------------------------------------------------------------------------- learning

    def evaluate(
        self,
        obs: dict[str, Tensor],
        action_mask: dict[str, Tensor],
        action: dict[str, Action],
        first: Tensor | None,
        carry: Carry,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [.., N] of `action` on normalised observations.

        obs: by role [M, n, D], or sequences [L, M, n, D] with first [L, M, N] and the carry before their first row.
        """
        out, _ = self.module["net"](obs, first, carry)
        log_probs, entropies = {}, {}
        for block in self.blocks:
            params, log_std = self._params(block, out[block.name])
            mask = block.mask(action_mask)
            log_probs[block.name], entropies[block.name] = evaluate(
                block.roles[0].action, params, log_std, mask, self._together(block, action)
            )
        return join(log_probs, self.blocks, -1), join(entropies, self.blocks, -1)

    def unroll(self, obs: dict[str, Tensor], first: Tensor, carry: Carry) -> Carry:
        """The memory after the rows of normalised obs [L, M, n, D]."""
        return self.module["net"](obs, first, carry)[1]

    def normalised(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Observations by role [.., n, D] as the networks read them."""
        if not self.moments:
            return obs
        out = {}
        for block in self.blocks:
            mean, scale = self._scales[block.name]
            for role in block.roles:
                out[role.name] = ((obs[role.name] - mean) / scale).clamp(-10, 10)
        return out

    def observe(self, obs: dict[str, Tensor], weight: Tensor) -> None:
        """Takes rows [.., n, D] into the observation statistics, once, where `weight` [.., N] holds."""
        if not self.moments:
            return
        for block in self.blocks:
            live = weight[..., block.start : block.stop]
            self.moments[block.name] = count_update(self.moments[block.name], block.gather(obs), live)
        self._scales = {name: count_scale(moments) for name, moments in self.moments.items()}

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

    @staticmethod
    def _by_role(block: Block, action: Action) -> dict[str, Action]:
        if len(block.roles) == 1:
            return {block.roles[0].name: action}
        discrete = {} if action.discrete is None else block.scatter(action.discrete)
        continuous = {} if action.continuous is None else block.scatter(action.continuous)
        return {role.name: Action(discrete.get(role.name), continuous.get(role.name)) for role in block.roles}

    @staticmethod
    def _together(block: Block, action: dict[str, Action]) -> Action:
        if len(block.roles) == 1:
            return action[block.roles[0].name]
        parts = [action[role.name] for role in block.roles]
        discrete = [part.discrete for part in parts if part.discrete is not None]
        continuous = [part.continuous for part in parts if part.continuous is not None]
        return Action(torch.cat(discrete, -2) if discrete else None, torch.cat(continuous, -2) if continuous else None)

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "moments": self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.moments = {
            name: {key: value.to(self.device) for key, value in moments.items()}
            for name, moments in state["moments"].items()
        }
        self._scales = {name: count_scale(moments) for name, moments in self.moments.items()}
