"""The critic of soft actor-critics: what every choice of an agent is worth, given its numbers and what others do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.nets.critics import TeamView
from coterie.nets.joint import JointAction, encoded
from coterie.nets.memory import Carry
from coterie.nets.sensors import Sensors
from coterie.nets.team import Block, Core, Shape, Share, blocks, join_choices
from coterie.types import Action, TeamSpec, Tree


class SoftCritic(nn.Module):
    """Q of every choice that an agent has: [.., N, A], surplus places zero; who has no choices has one place.

    Reads the agent's own observation, its own numbers and who it is; a critic of the team (central) also what the team
    sees (joint), an environment state, and the others' actions. The agent's own choices are never read: there is an
    output for each. With memory, a recurrent layer reads what is seen and not what is done, so that judging other
    actions does not change what is remembered.
    """

    def __init__(
        self,
        team: TeamSpec,
        central: bool,
        joint: bool,
        state_size: int,
        shape: Shape,
        share: Share,
        agent_id: bool,
        generator: torch.Generator,
        device: torch.device,
    ):
        super().__init__()
        self.blocks = blocks(team, share)
        self.shape, self.agents, self.agent_id, self.central = shape, team.n, agent_id, central
        self.view = TeamView(team, joint, state_size, generator)
        self.joint = JointAction(team, device)
        self._choices, self._numbers = _parts(team, self.joint, device)
        self.sensors, self.pasts, self.heads = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        plain = replace(shape, memory="none")
        for block in self.blocks:
            spec, sets = block.roles[0].action, block.n if share == "none" else None
            sensors = Sensors(block.roles[0].observation_space, sets, generator)
            features = sensors.features + self.view.features + (block.n if agent_id else 0)
            self.sensors[block.name] = sensors
            if shape.memory != "none":
                self.pasts[block.name] = Core(features, shape.memory_size, 1.0, shape, sets, generator)
                features = shape.memory_size
            done = self.joint.size if central else spec.continuous
            self.heads[block.name] = Core(features + done, max(1, spec.mask_size), 1.0, plain, sets, generator)

    def start(self, copies: int, device: torch.device) -> Carry:
        """Empty memories of `copies` copies, by name [B, N, H]; {} without memory."""
        names = {"none": (), "gru": ("h",), "lstm": ("h", "c")}[self.shape.memory]
        return {name: torch.zeros(copies, self.agents, self.shape.memory_size, device=device) for name in names}

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        action: dict[str, Action],
        fresh: dict[str, Action] | None,
        first: Tensor | None,
        carry: Carry,
    ) -> Tensor:
        """action: what all do, by role; fresh: where every agent's own numbers are taken from instead, None: nowhere.

        With memory, first is [T, M, N] and carry the memory before the first row [M, N, H].
        The gradient of entry i reaches the fresh numbers of agent i alone.
        """
        own = action if fresh is None else fresh
        done = self._done(action, own) if self.central else None
        shared = self.view(obs, state) if self.view.features else None
        out = {}
        for block in self.blocks:
            agents = slice(block.start, block.stop)
            seen = self._seen(block, obs, shared, None if first is None else first[..., agents], carry)
            if done is not None:
                seen = torch.cat([seen, done[..., agents, :]], -1)
            elif block.roles[0].action.continuous:
                numbers = block.action(own).continuous
                assert numbers is not None
                seen = torch.cat([seen, numbers], -1)
            out[block.name] = self.heads[block.name](seen, None, {})[0]
        return join_choices(out, self.blocks, 0.0)

    def taken(self, action: dict[str, Action]) -> Tensor:
        """What was chosen, as ones among zeros: [.., N, A]; Q of what was done is the sum of Q over these."""
        out = {}
        for block in self.blocks:
            spec, done = block.roles[0].action, block.action(action)
            if spec.choices:
                out[block.name] = encoded(replace(spec, continuous=0), Action(done.discrete))
            else:
                assert done.continuous is not None
                out[block.name] = torch.ones_like(done.continuous[..., :1])
        return join_choices(out, self.blocks, 0.0)

    def _seen(
        self, block: Block, obs: dict[str, Tree], shared: Tensor | None, first: Tensor | None, carry: Carry
    ) -> Tensor:
        """What the agents of a block know of where they are: [.., n, D]."""
        parts = [self.sensors[block.name](block.gather(obs))]
        lead = parts[0].shape[:-1]
        if shared is not None:
            parts.append(shared.unsqueeze(-2).expand(*lead, -1))
        if self.agent_id:
            parts.append(torch.eye(block.n, device=parts[0].device).expand(*lead, block.n))
        seen = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self.shape.memory == "none":
            return seen
        inner = {name: value[:, block.start : block.stop] for name, value in carry.items()}
        return self.pasts[block.name](seen, first, inner)[0]

    def _done(self, action: dict[str, Action], own: dict[str, Action]) -> Tensor:
        """For every agent what all do [.., N, J]: its own numbers from `own`, its own choices hidden."""
        joint = self.joint.join(self.joint.vectors(action)).unsqueeze(-2)
        if own is not action:
            fresh = self.joint.join(self.joint.vectors(own)).unsqueeze(-2)
            joint = torch.where(self._numbers, fresh, joint)
        return joint.masked_fill(self._choices, 0)


class TwinCritic(nn.Module):
    """Two critics that differ in their first weights alone; the smaller of their Q is the one to trust: [2, .., N, A].

    Source: Fujimoto et al. 2018, section 4.2. Arguments as of `SoftCritic`.
    """

    def __init__(self, *args: Any):
        super().__init__()
        self.one, self.other = SoftCritic(*args), SoftCritic(*args)

    def start(self, copies: int, device: torch.device) -> Carry:
        return self.one.start(copies, device)

    def taken(self, action: dict[str, Action]) -> Tensor:
        return self.one.taken(action)

    def forward(self, *args: Any) -> Tensor:
        return torch.stack([self.one(*args), self.other(*args)])


def _parts(team: TeamSpec, joint: JointAction, device: torch.device) -> tuple[Tensor, Tensor]:
    """[N, J] bool: which places of the joint action are an agent's own choices, and which are its own numbers."""
    chosen = [
        place < role.action.mask_size
        for role in team.roles
        for _ in role.agents
        for place in range(role.action.mask_size + role.action.continuous)
    ]
    is_choice = torch.tensor(chosen, device=device)
    return joint.own & is_choice, joint.own & ~is_choice
