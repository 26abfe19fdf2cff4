"""Networks that read an observation as entities: the agent itself, and what it sees of others and of objects.

Every kind of entity has an encoder of its own, and attention combines any number of entities, so that parameters depend
on neither the number of agents nor that of objects. Actions that aim at an entity are scored by its token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.core.device_constants import constant
from coterie.core.errors import UserError
from coterie.core.specs import Entities, RoleSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import NetworkConfig
from coterie.nets.layers import MLP, LayerNorm, Linear
from coterie.nets.recurrent import build_rnn, unroll
from coterie.nets.team_bodies import TransformerLayer, apply


def require_entities(roles: Sequence[RoleSpec]) -> tuple[Entities, ...]:
    """Returns the kinds of entities that roles with one network observe, `own` first.

    Raises:
        UserError: If they declare none, or others than their observations have, or not the same.
    """
    role = roles[0]
    fix = "Choose another network, such as tarmac or mlp"
    shape = role.observation_space.shape or ()
    if not role.parts.entities or len(shape) != 1:
        raise UserError(
            f"algo.network=attention: role '{role.name}' declares no entities in its observation. Declare them with "
            f"coterie.ObservationParts. {fix}."
        )
    problem = role.parts.problem(shape[0], role.action)
    if problem is not None:
        raise UserError(f"algo.network=attention: entities of role '{role.name}': {problem}. Correct the declaration.")
    if any(other.parts != role.parts for other in roles):
        raise UserError(
            f"algo.network=attention: roles {', '.join(other.name for other in roles)} declare other entities. Set "
            "algo.share_params=role."
        )
    return tuple(sorted(role.parts.entities, key=lambda part: part.kind != "own"))


def entity_features(obs: Tensor, part: Entities) -> Tensor:
    """Returns the features of the entities of a kind: [.., D] to [.., E, F]."""
    return obs[..., constant(part.features, obs.device, torch.int64)]


def entities_present(features: Tensor, part: Entities) -> Tensor:
    """Returns True where an entity is seen [.., E], from the features [.., E, F] that the environment returned."""
    if part.absent is None:
        return torch.ones_like(features[..., 0], dtype=torch.bool)
    return (features != constant(part.absent, features.device, features.dtype)).any(-1)


class EntityBody(nn.Module):
    """Tokens of the entities that an agent observes, and attention between them.

        token = MLP_kind(features);    tokens <- transformer layers(tokens);    LN

    Absent entities are not attended to. Sources: Hu et al. 2021 (UPDeT); Gallici et al. 2023 (TransfQMix).

    Args:
        parts: Kinds of entities, `own` first.
        extra_size: Number of inputs besides observations, which belong to the agent itself.
        config: Architecture: the last hidden layer has the units of a token.
        generator: Source of the initial weights.

    Attributes:
        features: Units of a token.
        aims: True if outputs are those of actions, and some of these aim at an entity.
    """

    def __init__(self, parts: tuple[Entities, ...], extra_size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.parts = tuple(part for part in parts if part.count)
        self.aims = config.part != "critic" and any(part.choices for part in self.parts)
        self.features = config.hidden_sizes[-1]
        sizes = {part.kind: part.size + (extra_size if part.kind == "own" else 0) for part in self.parts}
        self.encoders = ModulesByName({kind: MLP(size, config, generator) for kind, size in sizes.items()})
        self.layers = nn.ModuleList(
            TransformerLayer(self.features, config, generator) for _ in range(config.rounds or 1)
        )
        self.norm = LayerNorm(self.features, None)

    def forward(self, obs: Tensor, extra: Tensor | None, present: Tensor | None) -> Tensor:
        """Returns tokens [M, 1 + E, F], that of the agent first; only its own if no action aims at an entity.

        Args:
            obs: [M, D].
            extra: [M, X] inputs besides observations.
            present: [M, E] bool, entities that are seen besides the agent itself; None: all.
        """
        tokens = []
        for part, encode in zip(self.parts, self.encoders.values(), strict=True):
            features = entity_features(obs, part)  # [M, E, F]
            if part.kind == "own" and extra is not None:
                features = torch.cat([features, extra.unsqueeze(-2)], -1)
            tokens.append(apply(encode, features))
        x = torch.cat(tokens, -2)
        visible = None
        if present is not None:
            visible = nn.functional.pad(present, (1, 0), value=True).unsqueeze(-2)
        for i, layer in enumerate(self.layers):
            needed = None if self.aims or i + 1 < len(self.layers) else 1
            x = layer(x, visible, needed)  # pyright: ignore[reportCallIssue]
        return self.norm(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class EntityNetwork(nn.Module):
    """Entities, recurrent layer if `config.rnn` asks for one, and head of a block's agents: [.., n, D] to [.., n, out].

    The head reads the agent's own features h, the recurrent layer's if there is one. An output for a choice that aims
    at an entity is the product of its token with a query of h,

        y_k = (W h + b) token_k / sqrt(F)

    Args:
        roles: Roles of the block.
        agents: Number of agents n.
        out_features: Number of outputs, of which the first belong to the choices of the discrete action.
        config: Architecture.
        generator: Source of the initial weights.
        head_gain: Gain of the orthogonal initialization of the output layer.
        extra_size: Number of inputs besides observations.

    Raises:
        UserError: If the roles declare no entities.
    """

    def __init__(
        self,
        roles: tuple[RoleSpec, ...],
        agents: int,
        out_features: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        head_gain: float = 1.0,
        extra_size: int = 0,
    ):
        super().__init__()
        parts = require_entities(roles)
        ids = torch.eye(agents) if config.obs_agent_id and agents > 1 else None
        self.register_buffer("ids", ids, persistent=False)
        self.body = EntityBody(parts, extra_size + (0 if ids is None else agents), config, generator)
        features, self.rnn = self.body.features, None
        if config.rnn != "none":
            self.rnn = build_rnn(config.rnn, features, config.rnn_size, None, generator=generator)
            features = config.rnn_size
        aimed = [choice for part in self.body.parts for choice in part.choices] if self.body.aims else []
        self.head = Linear(features, out_features - len(aimed), gain=head_gain, generator=generator, init=config.init)
        self.queries = ModulesByName()
        if self.body.aims:
            for part in self.body.parts:
                if part.choices:
                    query = Linear(features, self.body.features, gain=head_gain, generator=generator, init=config.init)
                    self.queries[part.kind] = query
        others = [i for i in range(out_features) if i not in set(aimed)]
        self._order = tuple([*others, *aimed].index(i) for i in range(out_features)) if aimed else None

    def forward(
        self,
        obs: Tree,
        first: Tensor | None,
        hidden_state: HiddenState,
        extra: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, HiddenState]:
        """Returns [.., n, out] and the next hidden state; see `TeamNetwork.forward`, and `TeamView` for `present`."""
        lead = obs.shape[:-1]
        tokens = self.tokens(obs, extra, present)  # [M, 1 + E, F]
        h = tokens[:, 0]
        if self.rnn is not None:
            assert first is not None
            h, hidden_state = unroll(self.rnn, h, first, hidden_state)
        out = self.head(h)
        if self._order is not None:
            out = torch.cat([out, *self._scores(h, tokens)], -1)[:, constant(self._order, out.device, torch.int64)]
        return out.reshape(*lead, -1), hidden_state

    def tokens(self, obs: Tensor, extra: Tensor | None, present: Tensor | None) -> Tensor:
        """Returns the tokens of all agents [M, 1 + E, F], M rows for [.., n]."""
        lead = obs.shape[:-1]
        parts = [] if extra is None else [extra]
        if self.ids is not None:
            parts.append(self.ids.expand(*lead, -1))  # pyright: ignore[reportCallIssue]
        more = torch.cat(parts, -1).flatten(0, -2) if parts else None
        return self.body(obs.flatten(0, -2), more, None if present is None else present.flatten(0, -2))

    def _scores(self, h: Tensor, tokens: Tensor) -> list[Tensor]:
        """Outputs of the choices that aim at entities [M, E], by kind."""
        found, start = [], 0
        for part in self.body.parts:
            if part.choices:
                aimed = tokens[:, start : start + part.count]
                query = self.queries[part.kind](h) * tokens.shape[-1] ** -0.5
                found.append((aimed @ query.unsqueeze(-1)).squeeze(-1))
            start += part.count
        return found
