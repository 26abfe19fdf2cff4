"""Critics: values of what agents see, of what they do, and of everything that one of them could do instead."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from coterie.nets.joint import JointAction, action_size
from coterie.nets.memory import Carry
from coterie.nets.sensors import Sensors
from coterie.nets.team import Block, Core, Shape, Share, TeamNet, blocks, join, join_choices
from coterie.types import TeamSpec, Tree


class TeamView(nn.Module):
    """What the whole team sees (joint), an environment state (state_size > 0), or both, as one vector [.., D]."""

    def __init__(self, team: TeamSpec, joint: bool, state_size: int, generator: torch.Generator):
        super().__init__()
        seen = team.roles if joint else ()
        self.sensors = nn.ModuleDict({r.name: Sensors(r.observation_space, None, generator) for r in seen})
        sizes = [int(self.sensors[role.name].features) * role.n for role in seen]  # pyright: ignore[reportArgumentType]
        self.features = state_size + sum(sizes)

    def forward(self, obs: dict[str, Tree], state: Tensor | None) -> Tensor:
        parts = [sensors(obs[role]).flatten(-2) for role, sensors in self.sensors.items()]
        if state is not None:
            parts.append(state)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class OwnCritic(nn.Module):
    """Values from every agent's own observation: [.., N, K]."""

    def __init__(
        self, team: TeamSpec, signals: int, shape: Shape, share: Share, agent_id: bool, generator: torch.Generator
    ):
        super().__init__()
        outputs = {block.name: signals for block in blocks(team, share)}
        self.net = TeamNet(team, outputs, 1.0, shape, share, agent_id, generator)
        self.agents = team.n

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, carry: Carry
    ) -> tuple[Tensor, Carry]:
        out, carry = self.net(obs, first, carry)
        return join(out, self.net.blocks, -2), carry


class TeamCritic(nn.Module):
    """Values from what the whole team sees, an environment state, or both; read once a copy: [.., N, K].

    The input is the same for all agents, so the network runs once and has an output an agent. With memory, first is
    [T, M, 1] and the carry [M, 1, H].
    """

    def __init__(
        self, team: TeamSpec, signals: int, joint: bool, state_size: int, shape: Shape, generator: torch.Generator
    ):
        super().__init__()
        self.view = TeamView(team, joint, state_size, generator)
        self.core = Core(self.view.features, team.n * signals, 1.0, shape, None, generator)
        self.agents = team.n

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, carry: Carry
    ) -> tuple[Tensor, Carry]:
        value, carry = self.core(self.view(obs, state).unsqueeze(-2), first, carry)
        return value.squeeze(-2).unflatten(-1, (self.agents, -1)), carry


class _AgentInputs(nn.Module):
    """One network a block over each agent's own observation, what all share, and who it is: [.., n, out] a block."""

    def __init__(
        self,
        team: TeamSpec,
        outputs: dict[str, int],
        extra: dict[str, int],
        shape: Shape,
        share: Share,
        agent_id: bool,
        generator: torch.Generator,
    ):
        super().__init__()
        self.blocks = blocks(team, share)
        self.agent_id = agent_id
        self.sensors, self.cores = nn.ModuleDict(), nn.ModuleDict()
        for block in self.blocks:
            sets = block.n if share == "none" else None
            sensors = Sensors(block.roles[0].observation_space, sets, generator)
            inputs = sensors.features + extra[block.name] + (block.n if agent_id else 0)
            self.sensors[block.name] = sensors
            self.cores[block.name] = Core(inputs, outputs[block.name], 1.0, shape, sets, generator)

    def one(
        self, block: Block, obs: dict[str, Tree], extra: list[Tensor], first: Tensor | None, carry: Carry
    ) -> tuple[Tensor, Carry]:
        """The block's outputs [.., n, out]; extra: tensors [.., n, D]; first, carry: of the whole team."""
        x = self.sensors[block.name](block.gather(obs))
        parts = [x, *extra]
        if self.agent_id:
            parts.append(torch.eye(block.n, device=x.device).expand(*x.shape[:-1], block.n))
        agents = slice(block.start, block.stop)
        inner = {name: value[:, agents] for name, value in carry.items()}
        return self.cores[block.name](torch.cat(parts, -1), None if first is None else first[..., agents], inner)


def _carried(parts: list[Carry]) -> Carry:
    """The blocks' memories as the team's."""
    return {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}


class _Judge(nn.Module):
    """Q of actions after what was seen, for agents [.., n, ..] with one set of parameters or `sets` of them.

    A memory reads what is seen alone: one pass over a sequence, and any action can be judged in any of its rows.
    """

    def __init__(
        self, seen: int, actions: int, outputs: int, shape: Shape, sets: int | None, generator: torch.Generator
    ):
        super().__init__()
        self.trace = None
        if shape.memory != "none":
            self.trace = Core(seen, shape.memory_size, 1.0, shape, sets, generator)
            seen = shape.memory_size
        self.core = Core(seen + actions, outputs, 1.0, replace(shape, memory="none"), sets, generator)

    def read(self, seen: Tensor, first: Tensor | None, carry: Carry) -> tuple[Tensor, Carry]:
        """What is remembered of `seen` [.., n, D] in every row, and the memory; without one `seen` itself."""
        return (seen, carry) if self.trace is None else self.trace(seen, first, carry)

    def forward(self, seen: Tensor, action: Tensor) -> Tensor:
        return self.core(torch.cat([seen, action], -1), None, {})[0]


class OwnActionCritic(nn.Module):
    """Q of what every agent sees and does itself: [.., N, K].

    With memory, first is [T, M, N] and the carry [M, N, H] by name.
    """

    def __init__(
        self, team: TeamSpec, signals: int, shape: Shape, share: Share, agent_id: bool, generator: torch.Generator
    ):
        super().__init__()
        self.blocks = blocks(team, share)
        self.agent_id = agent_id
        self.sensors, self.judges = nn.ModuleDict(), nn.ModuleDict()
        for block in self.blocks:
            sets = block.n if share == "none" else None
            role = block.roles[0]
            sensors = Sensors(role.observation_space, sets, generator)
            seen = sensors.features + (block.n if self._named(block) else 0)
            self.sensors[block.name] = sensors
            self.judges[block.name] = _Judge(seen, action_size(role.action), signals, shape, sets, generator)

    def _named(self, block: Block) -> bool:
        return self.agent_id and block.n > 1

    def read(self, obs: dict[str, Tree], first: Tensor | None, carry: Carry) -> tuple[dict[str, Tensor], Carry]:
        """What every agent has seen, by block [.., n, F], and the memory."""
        seen, carries = {}, []
        for block in self.blocks:
            x = self.sensors[block.name](block.gather(obs))
            if self._named(block):
                x = torch.cat([x, torch.eye(block.n, device=x.device).expand(*x.shape[:-1], block.n)], -1)
            agents = slice(block.start, block.stop)
            inner = {name: value[:, agents] for name, value in carry.items()}
            judge = self.judges[block.name]
            seen[block.name], inner = judge.read(x, None if first is None else first[..., agents], inner)  # pyright: ignore
            carries.append(inner)
        return seen, _carried(carries)

    def judge(self, seen: dict[str, Tensor], action: dict[str, Tensor]) -> Tensor:
        """Q [.., N, K] of actions, vectors by role [.., n, P], hard or relaxed, after what `read` gave."""
        out = {}
        for block in self.blocks:
            own = [action[role.name] for role in block.roles]
            out[block.name] = self.judges[block.name](seen[block.name], own[0] if len(own) == 1 else torch.cat(own, -2))
        return join(out, self.blocks, -2)

    def forward(
        self, obs: dict[str, Tree], action: dict[str, Tensor], first: Tensor | None, carry: Carry
    ) -> tuple[Tensor, Carry]:
        """action: vectors by role [.., n, P], hard or relaxed."""
        seen, carry = self.read(obs, first, carry)
        return self.judge(seen, action), carry


class TeamActionCritic(nn.Module):
    """Q of what the team sees and does: [.., N, K].

    A network an agent (`apart`); or one network with an output an agent, or (`together`) with a single one that is
    everybody's, for a team that is paid together. With memory, first is [T, M, 1] and the carry [M, 1, H] by name, or
    [M, N, H] for a network an agent.
    """

    def __init__(
        self,
        team: TeamSpec,
        signals: int,
        joint: bool,
        state_size: int,
        shape: Shape,
        apart: bool,
        together: bool,
        generator: torch.Generator,
    ):
        super().__init__()
        self.view = TeamView(team, joint, state_size, generator)
        actions = sum(action_size(role.action) * role.n for role in team.roles)
        self.agents, self.apart, self.together = team.n, apart, together
        outputs, sets = (signals, team.n) if apart else (signals * (1 if together else team.n), None)
        self.judges = _Judge(self.view.features, actions, outputs, shape, sets, generator)

    def read(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, carry: Carry
    ) -> tuple[Tensor, Carry]:
        """What the team has seen, [.., 1, F] or for a network an agent [.., N, F], and the memory."""
        seen = self.view(obs, state).unsqueeze(-2)
        if self.apart:
            seen = seen.expand(*seen.shape[:-2], self.agents, -1)
        return self.judges.read(seen, None if first is None else first.expand(seen.shape[:-1]), carry)

    def judge(self, seen: Tensor, joint: Tensor) -> Tensor:
        """Q [.., N, K] of what all do, after what `read` gave.

        joint: the same for every agent [.., J], or as every agent is to judge it [.., N, J], hard or relaxed.
        """
        by_agent = joint.ndim == seen.ndim
        joint = joint if by_agent else joint.unsqueeze(-2)
        count = self.agents if by_agent or self.apart else 1
        out = self.judges(seen.expand(*seen.shape[:-2], count, -1), joint.expand(*joint.shape[:-2], count, -1))
        if self.apart:
            return out
        if self.together:
            return out.expand(*out.shape[:-2], self.agents, -1)
        values = out.unflatten(-1, (self.agents, -1))  # [.., 1 or N, N, K]
        return values.diagonal(dim1=-3, dim2=-2).movedim(-1, -2) if by_agent else values.squeeze(-3)

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, joint: Tensor, first: Tensor | None, carry: Carry
    ) -> tuple[Tensor, Carry]:
        """joint: what all do [.., J], the same for every agent; or [.., N, J], as every agent is to judge it."""
        seen, carry = self.read(obs, state, first, carry)
        return self.judge(seen, joint), carry


class ChoiceCritic(nn.Module):
    """Q of every choice that an agent has, given what the others do: [.., N, A], surplus choices zero.

    Reads what the team sees (joint), an environment state, the agent's own observation, the others' actions (the own
    block zeroed), who it is, and, if wanted, everyone's last actions. Source: Foerster et al. 2018, section 4.
    """

    def __init__(
        self,
        team: TeamSpec,
        joint: bool,
        state_size: int,
        last_action: bool,
        shape: Shape,
        share: Share,
        agent_id: bool,
        generator: torch.Generator,
        device: torch.device,
    ):
        super().__init__()
        self.view = TeamView(team, joint, state_size, generator)
        self.joint = JointAction(team, device)
        found = blocks(team, share)
        extra = self.view.features + self.joint.size * (2 if last_action else 1)
        outputs = {block.name: block.roles[0].action.mask_size for block in found}
        self.net = _AgentInputs(team, outputs, dict.fromkeys(outputs, extra), shape, share, agent_id, generator)

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        joint: Tensor,
        last: Tensor | None,
        first: Tensor | None,
        carry: Carry,
    ) -> tuple[Tensor, Carry]:
        """joint: what all do in this row [.., J]; last: what all did in the row before [.., J], zero at a begin."""
        others = self.joint.others(joint)
        shared = self.view(obs, state) if self.view.features else joint[..., :0]
        if last is not None:
            shared = torch.cat([shared, last], -1)
        shared = shared.unsqueeze(-2).expand(*others.shape[:-1], -1)
        out, carries = {}, []
        for block in self.net.blocks:
            agents = slice(block.start, block.stop)
            extra = [shared[..., agents, :], others[..., agents, :]]
            out[block.name], inner = self.net.one(block, obs, extra, first, carry)
            carries.append(inner)
        return join_choices(out, self.net.blocks, 0.0), _carried(carries)
