"""Deterministic actors: numbers in [-1, 1] straight from the network, choices drawn from its logits."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from coterie.fittable import Demonstrated, Fittable, Manner
from coterie.math import exploration
from coterie.math.imitation import agrees, deterministic_error
from coterie.nets.memory import Carry
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Block, Shape, Share, TeamNet, blocks, join
from coterie.policy import Inspectable, Mode, Thought
from coterie.types import Action, ActionSpec, Row, TeamSpec, Tree

NoiseKind = Literal["gaussian", "ornstein_uhlenbeck"]

_DRIFT = "drift"
"""Name in the policy's memory of the Ornstein-Uhlenbeck noise: [B, N, most numbers of an agent]."""


class DeterministicPolicy(Inspectable, Fittable):
    """Numbers are tanh of the network's outputs; choices are drawn from the softmax of its logits.

    mode: `greedy` takes the numbers and the likeliest choices; `sample` draws the choices; `explore` also adds noise to
    the numbers, or draws everything uniformly while `uniform` is set. The learner sets `noise_std` and `uniform`
    between windows. theta: of the Ornstein-Uhlenbeck noise, whose state lies in the memory and begins at zero with
    every life.
    """

    def __init__(
        self,
        team: TeamSpec,
        shape: Shape,
        share: Share,
        agent_id: bool,
        noise: NoiseKind,
        theta: float,
        normalise_obs: bool,
        generator: torch.Generator,
        device: torch.device,
    ):
        self.team, self.device = team, device
        self.blocks = blocks(team, share)
        outputs = {b.name: b.roles[0].action.mask_size + b.roles[0].action.continuous for b in self.blocks}
        self.net = TeamNet(team, outputs, 0.01, shape, share, agent_id, generator).to(device)
        self.scale = ObservationScale(self.blocks, normalise_obs, device)
        self.networks = (self.net, self.scale.read)
        numbers = max(role.action.continuous for role in team.roles)
        self._drift = numbers if noise == "ornstein_uhlenbeck" else 0
        self._theta = theta
        self.noise_std = 0.0
        self.uniform = False

    def start(self, copies: int) -> Carry:
        carry = self.net.start(copies, self.device)
        if self._drift:
            carry[_DRIFT] = torch.zeros(copies, self.team.n, self._drift, device=self.device)
        return carry

    def memory(self, carry: Carry) -> Carry:
        """The part of the policy's memory that belongs to its network."""
        return {name: value for name, value in carry.items() if name != _DRIFT}

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn = {name: noise.unbind(0) for name, noise in self.draw((steps, copies), generator).items()}
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def draw(self, lead: tuple[int, ...], generator: torch.Generator) -> dict[str, Tensor]:
        """Noise by block [*lead, n, sum A + C]: Gumbel for every choice, normal for every number."""
        found = {}
        for block in self.blocks:
            spec, parts = block.roles[0].action, []
            if spec.choices:  # log log of uniform numbers: an eighth of the time of exponential ones
                shape = (*lead, block.n, spec.mask_size)
                drawn = torch.rand(shape, generator=generator, device=self.device)
                parts.append(drawn.clamp_(min=1e-20).log_().neg_().log_().neg_())
            if spec.continuous:
                shape = (*lead, block.n, spec.continuous)
                parts.append(torch.randn(shape, generator=generator, device=self.device))
            found[block.name] = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return found

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        out, memory = self.net(self.scale(row.obs), row.first, self.memory(carry))
        drift = carry.get(_DRIFT)
        drifts = []
        actions = {}
        for block in self.blocks:
            spec, params = block.roles[0].action, out[block.name]
            drawn = None if mode == "greedy" else noise[block.name]
            discrete = continuous = None
            if spec.choices:
                logits = params[..., : spec.mask_size]
                if mode == "explore" and self.uniform:
                    logits = torch.zeros_like(logits)
                discrete = _picks(spec, logits, block.mask(row.action_mask), drawn)
            if spec.continuous:
                continuous = torch.tanh(params[..., spec.mask_size :])
            if mode == "explore" and (spec.continuous or drift is not None):
                normal = drawn[..., spec.mask_size :]  # pyright: ignore[reportOptionalSubscript]
                added = normal
                if drift is not None:
                    state = self._drifted(block, drift, row.first, normal)
                    drifts.append(state)
                    added = state[..., : spec.continuous]
                if continuous is not None:
                    continuous = (
                        exploration.uniform(normal)
                        if self.uniform
                        else exploration.noisy(continuous, added * self.noise_std)
                    )
            actions.update(block.split(Action(discrete, continuous)))
        if drift is not None:
            memory = memory | {_DRIFT: torch.cat(drifts, -2) if drifts else drift}
        return actions, memory, {}

    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        out, _ = self.net(self.scale(row.obs), row.first, self.memory(carry))
        explores = mode == "explore"
        thoughts: dict[str, Thought] = {}
        for block in self.blocks:
            spec, params, drawn, mean = block.roles[0].action, out[block.name], None, None
            if explores and self.uniform:
                params = torch.zeros_like(params)
            if spec.choices:
                mask = block.mask(row.action_mask)
                drawn = exploration.drawn_from(params[..., : spec.mask_size], spec.choices, mask)
            if spec.continuous:
                mean = torch.tanh(params[..., spec.mask_size :])
            thoughts |= block.split(Thought(drawn, mean=mean))
        return thoughts

    def _drifted(self, block: Block, drift: Tensor, first: Tensor, normal: Tensor) -> Tensor:
        """The block's next Ornstein-Uhlenbeck state [B, n, most numbers]."""
        agents = slice(block.start, block.stop)
        state = drift[:, agents].masked_fill(first[:, agents].unsqueeze(-1), 0)
        noise = functional.pad(normal, (0, self._drift - normal.shape[-1]))
        return exploration.ornstein_uhlenbeck(state, noise, self._theta)

    # ----------------------------------------------------------------------------------------------------- learning

    def misfit(self, batch: Demonstrated, manner: Manner) -> tuple[Tensor, Tensor]:
        carry = self.net.start(batch.live.shape[1], self.device)
        out, _ = self.net(self.scale(batch.obs), batch.first if carry else None, carry)
        losses, same = {}, {}
        for block in self.blocks:
            spec, mask, done = block.roles[0].action, block.mask(batch.action_mask), block.action(batch.action)
            params = out[block.name]
            losses[block.name] = deterministic_error(spec, params, mask, done)
            with torch.no_grad():
                picks = _picks(spec, params[..., : spec.mask_size], mask, None) if spec.choices else None
                numbers = torch.tanh(params[..., spec.mask_size :]) if spec.continuous else None
                same[block.name] = agrees(Action(picks, numbers), done)
        return join(losses, self.blocks, -1), join(same, self.blocks, -1)

    def vectors(
        self,
        out: dict[str, Tensor],
        action_mask: dict[str, Tensor],
        noise: dict[str, Tensor],
        temperature: float,
        smoothing: tuple[float, float] | None = None,
    ) -> dict[str, Tensor]:
        """Actions as vectors by role [.., n, P] from the network's outputs by block, differentiable.

        Choices are drawn, one-hot with the gradient of the relaxed ones; noise: of `draw`; smoothing: spread and clip
        of the noise that is added to numbers, None for none.
        """
        found = {}
        for block in self.blocks:
            spec, params = block.roles[0].action, out[block.name]
            mask, at, parts = block.mask(action_mask), 0, []
            for choices in spec.choices:
                part = slice(at, at + choices)
                logits, drawn = params[..., part], noise[block.name][..., part]
                available = None if mask is None else mask[..., part]
                parts.append(exploration.straight_through(logits, available, drawn, temperature))
                at += choices
            if spec.continuous:
                numbers = torch.tanh(params[..., at:])
                if smoothing is not None:
                    numbers = exploration.noisy(numbers, exploration.smoothing(noise[block.name][..., at:], *smoothing))
                parts.append(numbers)
            vector = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
            pieces = vector.split([role.n for role in block.roles], -2)
            found.update({role.name: piece for role, piece in zip(block.roles, pieces, strict=True)})
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "module": self.net.state_dict(),
            "moments": self.scale.state_dict(),
            "noise_std": self.noise_std,
            "uniform": self.uniform,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["module"])
        self.scale.load_state_dict(state["moments"])
        self.noise_std, self.uniform = state["noise_std"], state["uniform"]


def _picks(spec: ActionSpec, logits: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
    """A choice of every component [.., K], the likeliest ones if `noise` is None."""
    picks, at = [], 0
    for choices in spec.choices:
        part = slice(at, at + choices)
        available, drawn = (None if x is None else x[..., part] for x in (mask, noise))
        picks.append(exploration.pick(logits[..., part], available, drawn))
        at += choices
    return torch.stack(picks, -1)
