"""Critics of soft actor-critics: what every choice of an agent is worth, given its numbers and what others do."""

from __future__ import annotations

from dataclasses import replace

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

    Reads the agent's own observation and who it is, what the team sees (joint), an environment state, and `told`
    numbers by block of what is done. With memory, a recurrent layer reads what is seen and not what is done, so that
    judging other actions does not change what is remembered.
    """

    def __init__(
        self,
        team: TeamSpec,
        joint: bool,
        state_size: int,
        told: dict[str, int],
        shape: Shape,
        share: Share,
        agent_id: bool,
        generator: torch.Generator,
    ):
        super().__init__()
        self.blocks = blocks(team, share)
        self.recurrent, self.agent_id = shape.memory != "none", agent_id
        self.view = TeamView(team, joint, state_size, generator)
        self.sensors, self.pasts, self.heads = nn.ModuleDict(), nn.ModuleDict(), nn.ModuleDict()
        plain = replace(shape, memory="none")
        for block in self.blocks:
            spec, sets = block.roles[0].action, block.n if share == "none" else None
            sensors = Sensors(block.roles[0].observation_space, sets, generator)
            features = sensors.features + self.view.features + (block.n if agent_id else 0)
            self.sensors[block.name] = sensors
            if self.recurrent:
                self.pasts[block.name] = Core(features, shape.memory_size, 1.0, shape, sets, generator)
                features = shape.memory_size
            inputs = features + told[block.name]
            self.heads[block.name] = Core(inputs, max(1, spec.mask_size), 1.0, plain, sets, generator)

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, done: dict[str, Tensor], first: Tensor | None, carry: Carry
    ) -> Tensor:
        """done: by block [.., n, told], no entry where nothing is told; first: [T, M, N] and carry: the memory before
        the first row [M, N, H] by name, with memory.
        """
        shared = self.view(obs, state) if self.view.features else None
        out = {}
        for block in self.blocks:
            seen = self._seen(block, obs, shared, first, carry)
            if block.name in done:
                seen = torch.cat([seen, done[block.name]], -1)
            out[block.name] = self.heads[block.name](seen, None, {})[0]
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
        if not self.recurrent:
            return seen
        assert first is not None
        agents = slice(block.start, block.stop)
        inner = {name: value[:, agents] for name, value in carry.items()}
        return self.pasts[block.name](seen, first[..., agents], inner)[0]


class TwinCritic(nn.Module):
    """Two critics that differ in their first weights alone, of which the smaller Q is the one to trust: [2, .., N, A].

    An agent's own choices are never read, there is an output for each; its own numbers are. A critic of the team
    (central) also reads what the others do. Source: Fujimoto et al. 2018, section 4.2 (two critics); Foerster et al.
    2018, section 4 (an output for each own choice, given the others').
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
        self._shape, self._agents, self._device = shape, team.n, device
        self._joint = JointAction(team, device) if central else None
        if self._joint is not None:
            self._choices, self._numbers = _parts(team, self._joint)
            told = {block.name: self._joint.size for block in self.blocks}
        else:
            told = {block.name: block.roles[0].action.continuous for block in self.blocks}
        args = (team, joint, state_size, told, shape, share, agent_id, generator)
        self.one, self.other = SoftCritic(*args), SoftCritic(*args)
        self.to(device)

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        action: dict[str, Action],
        fresh: dict[str, Action] | None,
        first: Tensor | None,
        alive: Tensor | None = None,
    ) -> Tensor:
        """action: what all do, by role; fresh: where every agent's own numbers are taken from instead, None: nowhere;
        alive: [.., N], what others do is not told; None: all do.

        With memory, rows are sequences [T, M, ..] that begin with an empty one, and first is [T, M, N].
        The gradient of entry i reaches the fresh numbers of agent i alone.
        """
        done = self._done(action, action if fresh is None else fresh, alive)
        carry = {} if first is None else self._start(first.shape[1])
        return torch.stack([critic(obs, state, done, first, carry) for critic in (self.one, self.other)])

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

    def _done(self, action: dict[str, Action], own: dict[str, Action], alive: Tensor | None) -> dict[str, Tensor]:
        """What every agent is told of what is done, by block: its own numbers from `own`, its own choices hidden."""
        if self._joint is None:
            numbers = {block.name: block.action(own).continuous for block in self.blocks}
            return {name: x for name, x in numbers.items() if x is not None}
        joint = self._joint.join(self._joint.vectors(action))
        joint = (joint if alive is None else self._joint.present(joint, alive)).unsqueeze(-2)
        if own is not action:
            fresh = self._joint.join(self._joint.vectors(own)).unsqueeze(-2)
            joint = torch.where(self._numbers, fresh, joint)
        told = joint.masked_fill(self._choices, 0)
        return {block.name: told[..., block.start : block.stop, :] for block in self.blocks}

    def _start(self, copies: int) -> Carry:
        names = {"none": (), "gru": ("h",), "lstm": ("h", "c")}[self._shape.memory]
        size = self._shape.memory_size
        return {name: torch.zeros(copies, self._agents, size, device=self._device) for name in names}


def _parts(team: TeamSpec, joint: JointAction) -> tuple[Tensor, Tensor]:
    """[N, J] bool: which places of the joint action are an agent's own choices, and which are its own numbers."""
    chosen = [
        place < role.action.mask_size
        for role in team.roles
        for _ in role.agents
        for place in range(role.action.mask_size + role.action.continuous)
    ]
    is_choice = torch.tensor(chosen, device=joint.own.device)
    return joint.own & is_choice, joint.own & ~is_choice
