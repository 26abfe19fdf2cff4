"""Networks of MAT: an encoder over the agents of a team, values of its outputs, and a decoder over their actions.

    encoder  x_i = LN(gelu(W o_i));    x <- LN(x + attention(x, x));    x <- LN(x + mlp(x))
    values   V_i = W_v LN(gelu(W x_i))
    decoder  y_m = LN(gelu(token of the action before m));    y <- LN(y + causal attention(y, y));
             z <- LN(x + causal attention(x, y));    y <- LN(z + mlp(z));    logits_m = W_a LN(gelu(W y_m))

Source: Wen et al. 2022, section 4 and its code. Differences: dead agents are neither attended to nor do they attend;
observations have no layer normalization, which would remove their scale and, of a single number, all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from coterie.core.device_constants import constant
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState
from coterie.nets.attention import attend
from coterie.nets.autoregressive import AgentOrder, AutoregressiveActor, in_order, order_of
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import NetworkConfig
from coterie.nets.layers import GAINS, LayerNorm, Linear
from coterie.nets.team import Block, BlockInputs, team_blocks
from coterie.nets.team_bodies import apply, fill_dead
from coterie.nets.team_view import view_of

SMALL_GAIN = 0.01
"""Gain of attention, of the second layer of each feed-forward network, and of output layers, as in the paper's code."""


@dataclass(frozen=True)
class TransformerSizes:
    """Size of a transformer over agents: features of a token, layers, and heads of attention."""

    features: int
    blocks: int
    heads: int


class Hidden(nn.Module):
    """LN(gelu(W x)) of rows."""

    def __init__(self, in_features: int, size: int, generator: torch.Generator):
        super().__init__()
        self.layer = Linear(in_features, size, gain=GAINS["gelu"], generator=generator)
        self.norm = LayerNorm(size, None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(gelu(self.layer(x)))


class Head(nn.Module):
    """W LN(gelu(W' x)) of rows."""

    def __init__(self, in_features: int, size: int, outputs: int, generator: torch.Generator):
        super().__init__()
        self.hidden = Hidden(in_features, size, generator)
        self.out = Linear(size, outputs, gain=SMALL_GAIN, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x))


class FeedForward(nn.Module):
    """LN(x + W_2 gelu(W_1 x)) of tokens."""

    def __init__(self, size: int, generator: torch.Generator):
        super().__init__()
        self.first = Linear(size, size, gain=GAINS["gelu"], generator=generator)
        self.second = Linear(size, size, gain=SMALL_GAIN, generator=generator)
        self.norm = LayerNorm(size, None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + apply(self.second, gelu(apply(self.first, x))))


class Attention(nn.Module):
    """LN(x + W sum_j softmax_{j visible}(q k_j / sqrt(d)) v_j) with the query of x and keys and values of y.

    A single head has one matrix in place of W_q W_k^T, and one in place of W_v W, which are the same functions with
    half the products.

    Tokens are [M, agents, D].
    """

    def __init__(self, sizes: TransformerSizes, generator: torch.Generator):
        super().__init__()
        size, self.heads = sizes.features, sizes.heads
        self.query = Linear(size, size, gain=SMALL_GAIN, generator=generator)
        self.key_value = None
        if self.heads > 1:
            self.key_value = Linear(size, 2 * size, gain=SMALL_GAIN, generator=generator)
        self.out = Linear(size, size, gain=SMALL_GAIN, generator=generator)
        self.norm = LayerNorm(size, None)

    def forward(self, x: Tensor, y: Tensor, visible: Tensor | None) -> Tensor:
        """Returns tokens [M, Q, D].

        Args:
            x: Tokens that attend [M, Q, D].
            y: Tokens that are attended to [M, E, D].
            visible: [M or 1, Q, E] bool; None: all.
        """
        return self.mix(x, apply(self.query, x), self.keys_and_values(y), visible)

    def keys_and_values(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values [M, E, D] of tokens."""
        if self.key_value is None:
            return y, y
        key, value = apply(self.key_value, y).chunk(2, -1)
        return key, value

    def mix(self, x: Tensor, query: Tensor, found: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        """Returns the result for tokens x [M, Q, D] with given queries [M, Q, D], keys and values [M, E, D]."""
        return self.norm(x + apply(self.out, attend(query, *found, visible, self.heads)))


class AgentEmbedding(nn.Module):
    """LN(gelu(W o_i)): observations by role [.., n, ..] to tokens [.., N, D] by agent.

    Each block has a layer of its own, so that observations may have different sizes.

    Args:
        blocks: Blocks of the team.
        config: Inputs; its layers are not used.
        size: Features D of a token.
        generator: Source of the initial weights.
    """

    def __init__(self, blocks: tuple[Block, ...], config: NetworkConfig, size: int, generator: torch.Generator):
        super().__init__()
        self.blocks = blocks
        inputs = {block.name: BlockInputs(block, config, generator, extra_size=0) for block in blocks}
        self.inputs = ModulesByName(inputs)
        self.layers = ModulesByName({name: Hidden(part.features, size, generator) for name, part in inputs.items()})

    def forward(self, obs: dict[str, Tree]) -> Tensor:
        parts = []
        for block in self.blocks:
            x = self.inputs[block.name](block.join_obs(obs), None, None)
            parts.append(self.layers[block.name](x.flatten(0, -2)).unflatten(0, x.shape[:-1]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


class AgentEncoder(nn.Module):
    """Encoder over agents: observations by role [.., n, ..] to tokens [.., N, D] by agent.

    Args:
        team: The team.
        config: Inputs; its layers are not used.
        sizes: Size of the transformer.
        generator: Source of the initial weights.
    """

    def __init__(self, team: TeamSpec, config: NetworkConfig, sizes: TransformerSizes, generator: torch.Generator):
        super().__init__()
        self.blocks: tuple[Block, ...] = team_blocks(team, config.share_params)
        self._agents_can_die = team.agents_can_die
        self.embedding = AgentEmbedding(self.blocks, config, sizes.features, generator)
        self.attention = nn.ModuleList(Attention(sizes, generator) for _ in range(sizes.blocks))
        self.feed_forward = nn.ModuleList(FeedForward(sizes.features, generator) for _ in range(sizes.blocks))

    def forward(self, obs: dict[str, Tree]) -> Tensor:
        alive, x = view_of(obs).alive, self.embedding(obs).flatten(0, -3)
        visible = _visible(alive) if self._agents_can_die else None
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = feed_forward(attention(x, x, visible))
        return x.unflatten(0, alive.shape[:-1])


class AgentValues(nn.Module):
    """Values of the encoder's tokens, [.., N, K] for K reward signals.

    Dead agents have the mean of the live agents' tokens, and tokens say who is dead: rewards of the team after an
    agent's death belong to the return of its actions.

    Args:
        team: The team.
        num_signals: K.
        sizes: Size of the encoder.
        state_size: Features of a state that are read besides, the same for all agents.
        generator: Source of the initial weights.
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        sizes: TransformerSizes,
        generator: torch.Generator,
        *,
        state_size: int,
    ):
        super().__init__()
        self._agents_can_die = team.agents_can_die
        more = state_size + (1 if team.agents_can_die else 0)
        self.head = Head(sizes.features + more, sizes.features, num_signals, generator)

    def forward(self, tokens: Tensor, alive: Tensor, state: Tensor | None) -> Tensor:
        """Returns values of tokens [.., N, D], with `alive` [.., N] and a state [.., S] or None."""
        parts = [tokens]
        if self._agents_can_die:
            parts = [fill_dead(tokens, alive), alive.unsqueeze(-1).to(tokens.dtype)]
        if state is not None:
            parts.append(state.unsqueeze(-2).expand(*tokens.shape[:-1], -1))
        return apply(self.head, torch.cat(parts, -1) if len(parts) > 1 else tokens)


class EncoderCritic(nn.Module):
    """A critic of an encoder over agents of its own."""

    def __init__(self, encoder: AgentEncoder, values: AgentValues):
        super().__init__()
        self.encoder, self.values = encoder, values

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values [.., N, K] and the hidden state as it is; arguments as in `DecentralizedCritic`."""
        return self.values(self.encoder(obs), view_of(obs).alive, state), hidden_state


class TokenCritic(nn.Module):
    """A critic of the tokens of an encoder that belongs to the policy."""

    def __init__(self, encoder: AgentEncoder, values: AgentValues):
        super().__init__()
        self.values = values
        self._encoder = (encoder,)  # in a tuple: it is no part of the critic's parameters

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values [.., N, K] and the hidden state as it is; arguments as in `DecentralizedCritic`."""
        return self.values(self._encoder[0](obs), view_of(obs).alive, state), hidden_state


class DecoderBlock(nn.Module):
    """Attention among actions, attention of agents to actions, and a feed-forward layer."""

    def __init__(self, sizes: TransformerSizes, generator: torch.Generator):
        super().__init__()
        self.actions, self.agents = Attention(sizes, generator), Attention(sizes, generator)
        self.feed_forward = FeedForward(sizes.features, generator)

    def forward(self, x: Tensor, y: Tensor, visible: Tensor) -> Tensor:
        """Returns tokens [M, N, D] of agents x and actions y in order [M, N, D]; visible: [M or 1, N, N] bool."""
        return self.feed_forward(self.agents(x, self.actions(y, y, visible), visible))


@dataclass
class Cache:
    """Keys and values [B, 1, D] of the places so far."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def add(self, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Adds those of a place and returns those of all [B, m, D]."""
        self.keys.append(found[0])
        self.values.append(found[1])
        return torch.cat(self.keys, 1), torch.cat(self.values, 1)


@dataclass
class Decoding:
    """State of the decoder while acting.

    Attributes:
        tokens: Tokens of the encoder in order [B, N, D].
        queries: Their queries in each block [B, N, D].
        alive: [B, N] bool in order; None: all agents are alive.
        caches: Of both attentions of each block.
    """

    tokens: Tensor
    queries: list[Tensor]
    alive: Tensor | None
    caches: list[tuple[Cache, Cache]]


class MATActor(AutoregressiveActor):
    """Encoder and decoder of MAT.

    Args:
        encoder: The encoder.
        sizes: Size of encoder and decoder.
        generator: Source of the initial weights.
        state_dependent_std, init_std: See `ActionParameters`.
    """

    def __init__(
        self,
        encoder: AgentEncoder,
        sizes: TransformerSizes,
        generator: torch.Generator,
        *,
        state_dependent_std: bool,
        init_std: float,
    ):
        super().__init__(
            encoder.blocks,
            sizes.features,
            generator,
            state_dependent_std=state_dependent_std,
            init_std=init_std,
        )
        self.encoder = encoder
        self.norm = LayerNorm(sizes.features, None)
        self.decoder = nn.ModuleList(DecoderBlock(sizes, generator) for _ in range(sizes.blocks))
        self.heads = ModulesByName(
            {
                block.name: Head(sizes.features, sizes.features, self.num_outputs(block.action_spec), generator)
                for block in self.blocks
            }
        )

    def start(self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState) -> Decoding:
        order = order_of(view_of(obs).place)
        tokens = self.encoder(obs)
        tokens = tokens if order is None else order.arrange(tokens)
        alive = in_order(view_of(obs).alive, order) if self.agents_can_die else None
        queries = [apply(block.agents.query, tokens) for block in self._blocks]
        return Decoding(tokens, queries, alive, [(Cache(), Cache()) for _ in queries])

    def step(self, decoding: Decoding, place: int, token: Tensor) -> Tensor:
        own = slice(place, place + 1)
        x, y = decoding.tokens[:, own], self.norm(gelu(token)).unsqueeze(1)
        visible = None if decoding.alive is None else decoding.alive[:, : place + 1].unsqueeze(1)
        for block, queries, (actions, agents) in zip(self._blocks, decoding.queries, decoding.caches, strict=True):
            known = actions.add(block.actions.keys_and_values(y))
            y = block.actions.mix(y, apply(block.actions.query, y), known, visible)
            known = agents.add(block.agents.keys_and_values(y))
            y = block.feed_forward(block.agents.mix(x, queries[:, own], known, visible))
        return y.squeeze(1)

    def features(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor | None, hidden_state: HiddenState
    ) -> Tensor:
        return self.decode(self.encoder(obs), obs, action)

    def decode(self, tokens: Tensor, obs: dict[str, Tree], action: dict[str, Action]) -> Tensor:
        """Returns the features of agents in order [.., N, D], from the encoder's tokens by agent [.., N, D]."""
        view = view_of(obs)
        order: AgentOrder | None = order_of(view.place)
        x = (tokens if order is None else order.arrange(tokens)).flatten(0, -3)
        y = self.norm(gelu(self.tokens_before(obs, action, order).flatten(0, -3)))
        visible = _causal(self.num_agents, x.device)
        if self.agents_can_die:
            visible = visible & _visible(in_order(view.alive, order))
        for block in self._blocks:
            y = block(x, y, visible)
        return y.unflatten(0, tokens.shape[:-2])

    @property
    def _blocks(self) -> Sequence[Any]:
        """Blocks of the decoder."""
        return [*self.decoder]


def _causal(agents: int, device: torch.device) -> Tensor:
    """Returns [1, N, N] bool, True where the second agent is not after the first."""
    places = constant(range(agents), device, torch.int64)
    return (places <= places.unsqueeze(1)).unsqueeze(0)


def _visible(alive: Tensor) -> Tensor:
    """Returns [M, N, N] bool, True where both agents are alive [.., N]."""
    alive = alive.flatten(0, -2)
    return alive.unsqueeze(-1) & alive.unsqueeze(-2)
