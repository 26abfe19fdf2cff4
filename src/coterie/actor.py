"""Stochastic actors: categorical choices, Gaussian numbers, or both at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.fittable import Demonstrated, Fittable, Manner
from coterie.math.distributions import draw_noise, evaluate, floored, log_choices, sample
from coterie.math.imitation import agrees
from coterie.nets.joint import JointAction, action_size, beside, by_role, last_actions
from coterie.nets.memory import Carry
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Block, Shape, Share, TeamNet, blocks, join, join_choices
from coterie.policy import Inspectable, Mode, Thought
from coterie.types import Action, Row, TeamSpec, Tree


class ActorPolicy(Inspectable, Fittable):
    """A stochastic actor over observations: categorical choices, Gaussian numbers, or both at once.

    state_std: the Gaussians' spread is an output of the network, not a parameter; init_std: their standard deviation at
    the start; normalise_obs: observations are shifted and scaled by running moments and clipped to [-10, 10];
    last_action: the network reads what its agent did in the row before; remembers: the memory holds last actions
    (`last` [B, N, P]) even if the network does not read them.

    `epsilon` is the share of uniform draws among available choices in what explores and in `choices`.
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
        last_action: bool = False,
        remembers: bool = False,
    ):
        self.team, self.device, self.shape = team, device, shape
        self.epsilon = 0.0
        self.last_action, self.remembers = last_action, remembers or last_action
        self.joint = JointAction(team, device)
        self._state_std = state_std
        self.blocks = blocks(team, share)
        specs = {block.name: block.roles[0].action for block in self.blocks}
        outputs = {name: s.mask_size + s.continuous * (2 if state_std else 1) for name, s in specs.items()}
        extra = {name: action_size(spec) for name, spec in specs.items()} if last_action else None
        self.net = TeamNet(team, outputs, 0.01, shape, share, agent_id, generator, extra)
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
        self.networks = (self.module, self.scale.read)

    # ------------------------------------------------------------------------------------------------------- acting

    def start(self, copies: int) -> Carry:
        carry = self.net.start(copies, self.device)
        if self.remembers:
            width = max(action_size(role.action) for role in self.team.roles)
            carry["last"] = torch.zeros(copies, self.team.n, width, device=self.device)
        return carry

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn = {}
        for block in self.blocks:
            shape = (steps, copies, block.n)
            drawn[block.name] = draw_noise(block.roles[0].action, shape, generator, self.device).unbind(0)
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        out, carry = self._read(row, carry)
        actions, log_probs = {}, {}
        for block in self.blocks:
            params, log_std = self._params(block, out[block.name])
            mask = block.mask(row.action_mask)
            if mode == "explore":
                params = floored(block.roles[0].action, params, mask, self.epsilon)
            drawn = None if mode == "greedy" else noise[block.name]
            action, log_probs[block.name] = sample(block.roles[0].action, params, log_std, mask, drawn)
            actions.update(block.split(action))
        if self.remembers:
            done = beside(self.joint.vectors(actions))
            if self.team.mortal:
                done = torch.where((row.alive & row.acted.unsqueeze(-1)).unsqueeze(-1), done, 0.0)
            carry = carry | {"last": done}
        return actions, carry, {"log_prob": join(log_probs, self.blocks, -1)}

    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        out, _ = self._read(row, carry)
        thoughts: dict[str, Thought] = {}
        for block in self.blocks:
            spec, mask = block.roles[0].action, block.mask(row.action_mask)
            params, log_std = self._params(block, out[block.name])
            if mode == "explore":
                params = floored(spec, params, mask, self.epsilon)
            mean = params[..., spec.mask_size :]
            thought = Thought(
                log_choices(spec, params, mask).exp() if spec.choices else None,
                mean=mean if spec.continuous else None,
                spread=None if log_std is None else log_std.exp().expand_as(mean),
            )
            thoughts |= block.split(thought)
        return thoughts

    def _read(self, row: Row, carry: Carry) -> tuple[dict[str, Tensor], Carry]:
        """The network's outputs by block on a row, and its memory."""
        last = None
        if self.last_action:
            last = by_role(self.team, carry["last"].masked_fill(row.first.unsqueeze(-1), 0))
        return self.net(self.scale(row.obs), row.first, _memory(carry), self._extra(last))

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

    def choices(
        self,
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        first: Tensor | None,
        carry: Carry,
        last: dict[str, Tensor] | None,
    ) -> Tensor:
        """Log-probabilities of every choice [.., N, A], floored by `epsilon`; the lowest finite number where a choice
        is masked or is none of the agent's.

        last: what agents did in the row before, by role [.., n, P], if the network reads it; others as in `evaluate`.
        """
        out, _ = self.net(obs, first, _memory(carry), self._extra(last))
        found = {}
        for block in self.blocks:
            spec, mask = block.roles[0].action, block.mask(action_mask)
            params, _ = self._params(block, out[block.name])
            # What is floored is normalised already, and log_softmax leaves it so.
            found[block.name] = log_choices(spec, floored(spec, params, mask, self.epsilon), mask)
        return join_choices(found, self.blocks, torch.finfo(torch.float32).min)

    def misfit(self, batch: Demonstrated, manner: Manner) -> tuple[Tensor, Tensor]:
        last = None
        if self.last_action:
            last = last_actions(self.joint.vectors(batch.action), batch.first, self.joint.vectors(batch.before))
        carry = self.net.start(batch.live.shape[1], self.device)
        out, _ = self.net(self.scale(batch.obs), batch.first if carry else None, carry, self._extra(last))
        losses, same = {}, {}
        for block in self.blocks:
            spec, mask, done = block.roles[0].action, block.mask(batch.action_mask), block.action(batch.action)
            params, log_std = self._params(block, out[block.name])
            if log_std is not None and not manner.fit_spread:
                log_std = log_std.detach()
            losses[block.name] = -evaluate(spec, params, log_std, mask, done)[0]
            with torch.no_grad():
                same[block.name] = agrees(sample(spec, params, log_std, mask, None)[0], done)
        return join(losses, self.blocks, -1), join(same, self.blocks, -1)

    def unroll(self, obs: dict[str, Tree], first: Tensor, carry: Carry, last: dict[str, Tensor] | None = None) -> Carry:
        """The memory of the network after the rows of normalised obs [L, M, n, D]."""
        return self.net(obs, first, _memory(carry), self._extra(last))[1]

    def _extra(self, last: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Last actions by role as blocks read them; None where the network reads none."""
        if not self.last_action:
            return None
        assert last is not None
        return {block.name: torch.cat([last[role.name] for role in block.roles], -2) for block in self.blocks}

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


def _memory(carry: Carry) -> Carry:
    """The part of a policy's memory that belongs to its network."""
    return {name: value for name, value in carry.items() if name != "last"} if "last" in carry else carry
