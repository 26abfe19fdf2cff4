"""A critic of any number of team members: values of the team, and of the team without one member's action."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.nets.attention import ResidualAttention, draw_normal
from coterie.nets.bodies import Mlp
from coterie.nets.joint import action_size, encoded
from coterie.nets.layers import ACTIVATIONS, Activation, Linear
from coterie.nets.memory import Carry, Memory
from coterie.nets.sensors import Sensors
from coterie.nets.team import Shape
from coterie.types import Action, RoleSpec, TeamSpec, Tree


class Encoder(nn.Module):
    """Embeddings of a role's agents: by what they observe, and by what they observe and do."""

    def __init__(self, role: RoleSpec, size: int, activation: Activation, generator: torch.Generator):
        super().__init__()
        self.role = role
        self.sensors = Sensors(role.observation_space, None, generator)
        self.activation = ACTIVATIONS[activation]
        self.seen = Linear(self.sensors.features, size, None, 1.0, generator)
        self.done = Linear(self.sensors.features + action_size(role.action), size, None, 1.0, generator)

    def forward(self, obs: Tree, action: Action | None, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """[M, n, E] by observation, and by observation and action if one is given; present: [M, n] or None."""
        seen = self.sensors(obs)
        embedded = self._embed(self.seen, seen, present)
        if action is None:
            return embedded, None
        return embedded, self._embed(self.done, torch.cat([seen, encoded(self.role.action, action)], -1), present)

    def _embed(self, layer: Linear, x: Tensor, present: Tensor | None) -> Tensor:
        if present is not None:  # before the product, where it would reach the weights' gradient
            x = torch.where(present.unsqueeze(-1), x, 0.0)
        return self.activation(layer(x.flatten(0, -2))).unflatten(0, x.shape[:-1])


class EntityCritic(nn.Module):
    """V of the team from all members' observations, and the baseline b_i of every member i, which knows its observation
    and the others' observations and actions: one network reads 1 + N contexts.

    Encoders of each role, residual attention, hidden layers, memory, and a linear head of K outputs over features and
    the share of members that are present, 2 n / N - 1. Absent members change nothing else. With memory, every context
    has its own, [M, 1 + N, H]; all of them begin anew with the copy, so that they know of the same past.
    Source: Cohen et al. 2022.
    """

    def __init__(self, team: TeamSpec, signals: int, size: int, shape: Shape, generator: torch.Generator):
        super().__init__()
        self.agents, self.shape = team.n, shape
        self.roles = team.roles
        self.encoders = nn.ModuleDict({r.name: Encoder(r, size, shape.activation, generator) for r in team.roles})
        self.attention = ResidualAttention(size, generator)
        self.body = Mlp(size, shape.hidden, shape.activation, shape.layer_norm, None, generator)
        draw_normal(self.encoders, size, generator)
        draw_normal(self.body, shape.hidden[0], generator)
        self.memory = None
        features = self.body.features
        if shape.memory != "none":
            self.memory = Memory(shape.memory, features, shape.memory_size, None, generator)
            features = shape.memory_size
        self.head = Linear(features + 1, signals, None, 1.0, generator)
        every = torch.arange(team.n)
        own = torch.eye(team.n, dtype=torch.bool)
        contexts = torch.cat([every.unsqueeze(0), torch.where(own, every, every + team.n)])
        self.register_buffer("contexts", contexts, persistent=False)

    def start(self, copies: int, device: torch.device) -> Carry:
        """Empty memories of `copies` copies, by name [B, 1 + N, H]; {} without memory."""
        names = () if self.memory is None else self.memory.names
        size = self.shape.memory_size
        return {name: torch.zeros(copies, 1 + self.agents, size, device=device) for name in names}

    def forward(
        self,
        obs: dict[str, Tree],
        action: dict[str, Action] | None,
        present: Tensor | None,
        first: Tensor | None,
        carry: Carry,
    ) -> tuple[Tensor, Carry]:
        """Values [.., 1 + N, K], V before the baselines; V alone [.., 1, K] without actions.

        obs, action: by role [.., n, ..]; present: [.., N] bool, None: all are; first: [T, M, 1], and carry [M, 1 + N,
        H] ([M, 1, H] for V alone), with memory.
        """
        entities, at = [], 0
        for role in self.roles:
            here = None if present is None else present[..., at : at + role.n]
            at += role.n
            entities.append(self.encoders[role.name](obs[role.name], action and action[role.name], here))
        seen, done = zip(*entities, strict=True)
        parts = seen if action is None else (*seen, *done)
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
        lead = x.shape[:-2]
        if present is not None:
            present = present.flatten(0, -2)
            count = present.sum(-1).to(x.dtype) * (2 / self.agents) - 1
        else:
            count = x.new_ones(lead.numel())
        if action is not None and present is not None:
            present = torch.cat([present, present], -1)
        contexts: Tensor = self.contexts[:1] if action is None else self.contexts  # pyright: ignore
        pooled = self.attention(x.flatten(0, -3), present, contexts)  # [M, C, E]
        features = self.body(pooled.flatten(0, 1))
        if self.memory is not None:
            assert first is not None
            features, carry = self._remember(features.view(*lead, len(contexts), -1), first, carry)
        count = count.unsqueeze(-1).expand(-1, len(contexts)).reshape(-1, 1)
        return self.head(torch.cat([features, count], -1)).view(*lead, len(contexts), -1), carry

    def _remember(self, x: Tensor, first: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """x [T, M, C, F] through the memories of all contexts: [T M C, H]."""
        assert self.memory is not None
        steps, contexts = len(x), x.shape[-2]
        inner = {name: value.flatten(0, 1) for name, value in carry.items()}
        out, inner = self.memory(x.flatten(1, 2), first.expand(-1, -1, contexts).reshape(steps, -1), inner)
        return out.flatten(0, 1), {name: value.unflatten(0, (-1, contexts)) for name, value in inner.items()}
