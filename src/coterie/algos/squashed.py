"""The actor of soft actor-critics: categorical choices, Gaussian numbers squashed into [-1, 1], or both at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.fittable import Demonstrated, Fittable, Manner
from coterie.math.choices import taken
from coterie.math.distributions import draw_noise
from coterie.math.imitation import agrees, squashed_log_prob
from coterie.math.squashed import bounded_log_std, choice_spread, most_entropy, squash
from coterie.nets.memory import Carry
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Block, Shape, Share, TeamNet, blocks, join, join_choices
from coterie.policy import Inspectable, Mode, Thought
from coterie.types import Action, Row, TeamSpec, Tree, record


@record
@dataclass(frozen=True)
class Draw:
    """A policy at some rows, and one action drawn from it.

    prob, log_prob: of every choice [.., N, A], as in `coterie.math.squashed`; log_density: of the numbers drawn
    [.., N]; most: the entropy of choosing uniformly among what is available [.., N]; action: by role, numbers with
    their gradient.
    """

    prob: Tensor
    log_prob: Tensor
    log_density: Tensor
    most: Tensor
    action: dict[str, Action]


class SquashedPolicy(Inspectable, Fittable):
    """A stochastic actor whose numbers are tanh of Gaussians with a spread that depends on what is seen.

    Greedy takes the likeliest choice and tanh of the mean. While `warming`, exploring draws uniformly instead.
    """

    def __init__(
        self,
        team: TeamSpec,
        shape: Shape,
        share: Share,
        agent_id: bool,
        normalise_obs: bool,
        generator: torch.Generator,
        device: torch.device,
    ):
        self.team, self.device = team, device
        self.blocks = blocks(team, share)
        specs = {block.name: block.roles[0].action for block in self.blocks}
        outputs = {name: spec.mask_size + 2 * spec.continuous for name, spec in specs.items()}
        self.net = TeamNet(team, outputs, 0.01, shape, share, agent_id, generator).to(device)
        self.scale = ObservationScale(self.blocks, normalise_obs, device)
        self.networks = (self.net, self.scale.read)
        self.warming = False

    def start(self, copies: int) -> Carry:
        return self.net.start(copies, self.device)

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn = {name: rows.unbind(0) for name, rows in self.draw((steps, copies), generator).items()}
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> dict[str, Tensor]:
        """Noise by block [*shape, n, sum A + C]."""
        return {
            block.name: draw_noise(block.roles[0].action, (*shape, block.n), generator, self.device)
            for block in self.blocks
        }

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        out, carry = self.net(self.scale(row.obs), row.first, carry)
        actions: dict[str, Action] = {}
        for block in self.blocks:
            mask, drawn = block.mask(row.action_mask), None if mode == "greedy" else noise[block.name]
            if mode == "explore" and self.warming:
                action = _uniform(block, noise[block.name], mask)
            else:
                action = _action(block, out[block.name], drawn, mask)
            actions.update(block.split(action))
        return actions, carry, {}

    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        out, _ = self.net(self.scale(row.obs), row.first, carry)
        thoughts: dict[str, Thought] = {}
        for block in self.blocks:
            spec, params, drawn, mean = block.roles[0].action, out[block.name], None, None
            if mode == "explore" and self.warming:
                params = torch.zeros_like(params)
            if spec.choices:
                logits = params[..., : spec.mask_size]
                drawn, _ = choice_spread(spec.choices, logits, block.mask(row.action_mask))
            if spec.continuous:
                mean = torch.tanh(_gaussian(block, params)[0])
            thoughts |= block.split(Thought(drawn, mean=mean))
        return thoughts

    def __call__(
        self,
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        first: Tensor | None,
        carry: Carry,
        noise: dict[str, Tensor],
    ) -> Draw:
        """The policy on scaled observations [M, n, D] by role, or on sequences [L, M, n, D] with first [L, M, N] and
        the memory before their first row; noise: of `draw`.
        """
        out, _ = self.net(obs, first, carry)
        probs, log_probs, densities, mosts, actions = {}, {}, {}, {}, {}
        for block in self.blocks:
            spec, params, name = block.roles[0].action, out[block.name], block.name
            mask, drawn = block.mask(action_mask), noise[name]
            lead = params.shape[:-1]
            if spec.choices:
                logits = params[..., : spec.mask_size]
                probs[name], log_probs[name] = choice_spread(spec.choices, logits, mask)
                given = mask if mask is not None else torch.ones_like(logits, dtype=torch.bool)
                mosts[name] = most_entropy(spec.choices, given)
            else:
                probs[name], log_probs[name] = params.new_ones(*lead, 1), params.new_zeros(*lead, 1)
                mosts[name] = params.new_zeros(lead)
            numbers = None
            densities[name] = params.new_zeros(lead)
            if spec.continuous:
                mean, log_std = _gaussian(block, params)
                numbers, densities[name] = squash(mean, log_std, drawn[..., spec.mask_size :])
            actions.update(block.split(Action(_picks(block, params, drawn, mask), numbers)))
        return Draw(
            join_choices(probs, self.blocks, 0.0),
            join_choices(log_probs, self.blocks, 0.0),
            join(densities, self.blocks, -1),
            join(mosts, self.blocks, -1),
            actions,
        )

    def misfit(self, batch: Demonstrated, manner: Manner) -> tuple[Tensor, Tensor]:
        carry = self.start(batch.live.shape[1])
        out, _ = self.net(self.scale(batch.obs), batch.first if carry else None, carry)
        losses, same = {}, {}
        for block in self.blocks:
            spec, mask, done = block.roles[0].action, block.mask(batch.action_mask), block.action(batch.action)
            params, log_prob = out[block.name], 0.0
            if done.discrete is not None:
                _, choices = choice_spread(spec.choices, params[..., : spec.mask_size], mask)
                log_prob = log_prob + taken(choices, done.discrete, spec.choices)
            if done.continuous is not None:
                mean, log_std = _gaussian(block, params)
                log_std = log_std if manner.fit_spread else log_std.detach()
                log_prob = log_prob + squashed_log_prob(mean, log_std, done.continuous)
            losses[block.name] = -torch.as_tensor(log_prob)
            with torch.no_grad():
                same[block.name] = agrees(_action(block, params, None, mask), done)
        return join(losses, self.blocks, -1), join(same, self.blocks, -1)

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.net.state_dict(), "moments": self.scale.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["module"])
        self.scale.load_state_dict(state["moments"])


def _gaussian(block: Block, params: Tensor) -> tuple[Tensor, Tensor]:
    """Means and logs of the spread [.., n, C] of a block's numbers."""
    spec = block.roles[0].action
    mean, raw = params[..., spec.mask_size :].split(spec.continuous, -1)
    return mean, bounded_log_std(raw)


def _picks(block: Block, logits: Tensor, noise: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Choices [.., n, K] drawn by the Gumbel-max trick; the likeliest ones without noise; None for who has none."""
    spec = block.roles[0].action
    if not spec.choices:
        return None
    score = logits[..., : spec.mask_size].detach()
    score = score if noise is None else score + noise[..., : spec.mask_size]
    score = score if mask is None else score.masked_fill(~mask, -math.inf)
    return torch.cat([part.argmax(-1, keepdim=True) for part in score.split(spec.choices, -1)], -1)


def _action(block: Block, params: Tensor, noise: Tensor | None, mask: Tensor | None) -> Action:
    """What a block does: drawn with noise, the likeliest without."""
    spec = block.roles[0].action
    numbers = None
    if spec.continuous:
        mean, log_std = _gaussian(block, params)
        numbers = torch.tanh(mean if noise is None else mean + noise[..., spec.mask_size :] * log_std.exp())
    return Action(_picks(block, params, noise, mask), numbers)


def _uniform(block: Block, noise: Tensor, mask: Tensor | None) -> Action:
    """Uniform choices and numbers from the same noise: normal numbers are pushed through their own distribution."""
    spec = block.roles[0].action
    numbers = torch.erf(noise[..., spec.mask_size :] / math.sqrt(2)) if spec.continuous else None
    return Action(_picks(block, torch.zeros_like(noise), noise, mask), numbers)


class Temperature(nn.Module):
    """What entropy is worth: one positive number a block of agents, kept as its logarithm."""

    def __init__(self, order: tuple[Block, ...], start: float, device: torch.device):
        super().__init__()
        self.log = nn.Parameter(torch.full((len(order),), math.log(start), device=device))
        owner = torch.repeat_interleave(torch.arange(len(order)), torch.tensor([block.n for block in order]))
        self._owner = owner.to(device)

    def forward(self) -> Tensor:
        """The logarithm of every agent's temperature [N]."""
        return self.log[self._owner]
