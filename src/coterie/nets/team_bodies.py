"""Bodies that see the team: every agent's features depend on what the agents that it hears observe.

They map [B, N, in] to [B, N, features] with `alive` [B, N] bool and `edges` [B, N, N] bool, True where the first agent
hears the second; None: every agent hears all others. Dead agents neither send nor hear, and an agent that hears nobody
reads a message of zeros. Parameters do not depend on the number of agents.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.nets.attention import attend, masked_softmax
from coterie.nets.config import NetworkConfig
from coterie.nets.layers import GAINS, MLP, LayerNorm, Linear

KEY_SIZE, MESSAGE_SIZE = 16, 32
"""Sizes of TarMAC's signatures and messages. Source: Das et al. 2019, section 5."""
FEED_FORWARD = 2
"""Width of the feed-forward layer of a transformer, relative to that of its tokens."""


def heard_agents(alive: Tensor, edges: Tensor | None, *, self_loops: bool) -> Tensor:
    """Returns [B, N, N] bool, True where an agent hears another one, and with `self_loops` itself."""
    heard = alive.unsqueeze(-1) & alive.unsqueeze(-2)
    own = torch.eye(alive.shape[-1], dtype=torch.bool, device=alive.device)
    if edges is not None:
        heard = heard & (edges | own)
    return heard if self_loops else heard & ~own


def fill_dead(features: Tensor, alive: Tensor) -> Tensor:
    """Returns features [.., N, F], of dead agents the mean of those that are alive [.., N]; zeros if nobody is."""
    alive = alive.unsqueeze(-1)
    mean = torch.where(alive, features, 0.0).sum(-2, keepdim=True) / alive.sum(-2, keepdim=True).clamp(min=1)
    return torch.where(alive, features, mean)


def apply(layer: nn.Module, x: Tensor) -> Tensor:
    """Applies a layer of rows [M, in] to [.., in]."""
    return layer(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class TeamBody(nn.Module):
    """Base of these bodies: h = MLP(x) with the hidden layers of `config` for every agent, then rounds of messages.

    Attributes:
        features: Features of an agent, as many as units of the last hidden layer.
    """

    default_rounds = 1

    def __init__(self, in_features: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.encoder = MLP(in_features, config, generator)
        self.features = self.encoder.features
        rounds = config.rounds or self.default_rounds
        self.rounds = nn.ModuleList(self._round(config, generator) for _ in range(rounds))

    @abstractmethod
    def _round(self, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
        """Returns the layers of a round: called as `layers(h, alive, edges)` with features [B, N, F], returns these."""

    def forward(self, x: Tensor, alive: Tensor, edges: Tensor | None) -> Tensor:
        h = apply(self.encoder, x)
        for layers in self.rounds:
            h = layers(h, alive, edges)
        return h


class CommNet(TeamBody):
    """Means of the others' features as messages.

        c_i = mean_{j heard by i} h_j;    h_i <- tanh(W [h_i, c_i])

    Source: Sukhbaatar et al. 2016, section 3.
    """

    def _round(self, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
        return _MeanRound(self.features, config, generator)


class _MeanRound(nn.Module):
    def __init__(self, size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.update = Linear(2 * size, size, gain=GAINS["tanh"], generator=generator, init=config.init)

    def forward(self, h: Tensor, alive: Tensor, edges: Tensor | None, sent: Tensor | None = None) -> Tensor:
        heard = heard_agents(alive, edges, self_loops=False).to(h.dtype)
        message = heard / heard.sum(-1, keepdim=True).clamp(min=1) @ (h if sent is None else sent)
        return torch.tanh(apply(self.update, torch.cat([h, message], -1)))


class IC3Net(TeamBody):
    """CommNet whose agents decide whether they send.

        g_j = 1[w h_j + b > 0];    c_i = mean_{j heard by i} g_j h_j;    h_i <- tanh(W [h_i, c_i])

    The gate's gradient is that of sigmoid(w h_j + b). Gates are open at the start.
    Source: Singh et al. 2019, section 3; gradient: Bengio et al. 2013, section 4. Differences: the gate is a
    function of the present features, not a sampled action of the timestep before, so that it is trained with any
    algorithm's loss; messages are features of the same timestep. As published, agents learn whether to send from
    rewards of their own, `algo.common_reward=false`.
    """

    def _round(self, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
        return _GatedRound(self.features, config, generator)


class _GatedRound(nn.Module):
    def __init__(self, size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.mean = _MeanRound(size, config, generator)
        self.gate = Linear(size, 1, gain=0.01, generator=generator, init=config.init)
        nn.init.ones_(self.gate.bias)

    def forward(self, h: Tensor, alive: Tensor, edges: Tensor | None) -> Tensor:
        likely = torch.sigmoid(apply(self.gate, h))
        sends = (likely > 0.5).to(h.dtype) + likely - likely.detach()
        return self.mean(h, alive, edges, sent=sends * h)


class TarMAC(TeamBody):
    """Targeted messages: a signature decides who listens to whom.

        q_i, k_i, v_i = W_q h_i, W_k h_i, W_v h_i;    a_ij = softmax_{j heard by i, or i}(q_i k_j / sqrt(d));
        c_i = sum_j a_ij v_j;    h_i <- tanh(W [h_i, c_i])

    Two rounds by default. The hidden state over time is that of the recurrent layer after the body.
    Source: Das et al. 2019, section 3. Difference: tanh after every round.
    """

    default_rounds = 2

    def _round(self, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
        return _TargetedRound(self.features, config, generator)


class _TargetedRound(nn.Module):
    def __init__(self, size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        sent = 2 * KEY_SIZE + MESSAGE_SIZE
        self.send = Linear(size, sent, gain=1.0, generator=generator, init=config.init)
        self.update = Linear(size + MESSAGE_SIZE, size, gain=GAINS["tanh"], generator=generator, init=config.init)

    def forward(self, h: Tensor, alive: Tensor, edges: Tensor | None) -> Tensor:
        query, key, value = apply(self.send, h).split((KEY_SIZE, KEY_SIZE, MESSAGE_SIZE), -1)
        score = query @ key.transpose(-1, -2) * KEY_SIZE**-0.5
        message = masked_softmax(score, heard_agents(alive, edges, self_loops=True)) @ value
        return torch.tanh(apply(self.update, torch.cat([h, message], -1)))


class Graph(TeamBody):
    """Graph attention over neighbors, with H heads whose messages are concatenated.

        e_ij = LeakyReLU(a [W h_i, W h_j]);    c_i = sum_{j heard by i} softmax_j(e_ij) W h_j;
        h_i <- tanh(V h_i + c_i)

    Source: Velickovic et al. 2018, section 2.1. Difference: an agent's own features have weights V of their own in
    place of an edge to itself, so that an agent without neighbors reads c_i = 0.
    """

    def _round(self, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
        return _GraphRound(self.features, config, generator)


class _GraphRound(nn.Module):
    def __init__(self, size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        heads = require_divisible(size, config)
        self.heads = heads
        self.send = Linear(size, size, gain=1.0, generator=generator, init=config.init)
        self.own = Linear(size, size, gain=GAINS["tanh"], generator=generator, init=config.init)
        bound = (6 / (2 * size // heads + 1)) ** 0.5  # Glorot's, as published
        self.score = nn.Parameter(torch.empty(2, heads, size // heads).uniform_(-bound, bound, generator=generator))

    def forward(self, h: Tensor, alive: Tensor, edges: Tensor | None) -> Tensor:
        sent = apply(self.send, h).unflatten(-1, (self.heads, -1))  # [B, N, H, F / H]
        listener, speaker = ((sent * part).sum(-1).transpose(-1, -2) for part in self.score.unbind(0))  # [B, H, N]
        score = nn.functional.leaky_relu(listener.unsqueeze(-1) + speaker.unsqueeze(-2), 0.2)
        heard = heard_agents(alive, edges, self_loops=False).unsqueeze(1)
        message = masked_softmax(score, heard) @ sent.transpose(1, 2)  # [B, H, N, F / H]
        return torch.tanh(apply(self.own, h) + message.transpose(1, 2).flatten(-2))


class TeamAttention(TeamBody):
    """A transformer whose tokens are agents, see `Transformer`: critics read the whole team by it."""

    def _round(self, config: NetworkConfig, generator: torch.Generator) -> nn.Module:
        return _AttentionRound(self.features, config, generator)


class _AttentionRound(nn.Module):
    def __init__(self, size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.layer = TransformerLayer(size, config, generator)

    def forward(self, h: Tensor, alive: Tensor, edges: Tensor | None) -> Tensor:
        return self.layer(h, heard_agents(alive, edges, self_loops=True))


class TransformerLayer(nn.Module):
    """Self-attention of tokens and a feed-forward layer, each with a residual connection.

        y_i = x_i + W sum_j softmax_{j visible to i}(q_i k_j / sqrt(d)) v_j,    q, k, v = W_q, W_k, W_v of LN(x);
        z_i = y_i + W_2 relu(W_1 LN(y_i))

    Source: Vaswani et al. 2017, with normalization before the layers (Xiong et al. 2020).
    """

    def __init__(self, size: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.heads = require_divisible(size, config)

        def linear(rows: int, columns: int, gain: float) -> Linear:
            return Linear(rows, columns, gain=gain, generator=generator, init=config.init)

        self.first_norm, self.second_norm = LayerNorm(size, None), LayerNorm(size, None)
        self.query, self.key_value = linear(size, size, 1.0), linear(size, 2 * size, 1.0)
        self.out = linear(size, size, 1.0)
        self.hidden, self.last = (
            linear(size, FEED_FORWARD * size, GAINS["relu"]),
            linear(FEED_FORWARD * size, size, 1.0),
        )

    def forward(self, x: Tensor, visible: Tensor | None, queries: int | None = None) -> Tensor:
        """Returns tokens [B, Q, F].

        Args:
            x: Tokens [B, E, F].
            visible: [B, 1 or Q, E] bool, tokens that are attended to; None: all.
            queries: Number Q of the first tokens that are computed; None: all.
        """
        normal, x = self.first_norm(x), x if queries is None else x[:, :queries]
        query = apply(self.query, normal if queries is None else normal[:, :queries])
        if queries == 1:
            mixed = self._mixed_for_one(query[:, 0].unflatten(-1, (self.heads, -1)), normal, visible)
        else:
            key, value = apply(self.key_value, normal).chunk(2, -1)
            mixed = attend(query, key, value, visible, self.heads)
        y = x + apply(self.out, mixed)
        return y + apply(self.last, apply(self.hidden, self.second_norm(y)).relu())

    def _mixed_for_one(self, query: Tensor, normal: Tensor, visible: Tensor | None) -> Tensor:
        """Returns the values [B, 1, F] that the first token reads, without keys and values of each token.

        q (W_k x + b) = (q W_k) x + const, and sum_j a_j W_v x_j = W_v sum_j a_j x_j, so that a product with the weights
        is needed once, not for every token. query: [B, heads, d].
        """
        key, value = (part.unflatten(-1, (self.heads, -1)) for part in self.key_value.weight.chunk(2, -1))
        folded = torch.einsum("bhd,fhd->bhf", query, key)
        score = folded @ normal.transpose(-1, -2) * query.shape[-1] ** -0.5  # [B, heads, E]
        weight = masked_softmax(score, visible)
        mixed = torch.einsum("bhf,fhd->bhd", weight @ normal, value)
        bias = self.key_value.bias.chunk(2, -1)[1].unflatten(-1, (self.heads, -1))
        return (mixed + bias * weight.sum(-1, keepdim=True)).flatten(1).unsqueeze(1)


def require_divisible(size: int, config: NetworkConfig) -> int:
    """Returns the number of heads. UserError if the units of the last hidden layer cannot be split into them."""
    if size % config.heads:
        raise UserError(
            f"algo.network_heads={config.heads}: does not divide the {size} units of the last hidden layer. Set "
            f"algo.network_heads={math.gcd(config.heads, size)}, or change algo.hidden_sizes."
        )
    return config.heads


_KINDS: dict[str, type[TeamBody]] = {
    "attention": TeamAttention,
    "graph": Graph,
    "commnet": CommNet,
    "ic3net": IC3Net,
    "tarmac": TarMAC,
}


def build_team_body(in_features: int, config: NetworkConfig, generator: torch.Generator) -> TeamBody:
    """Returns the body of Coterie's that `config.body` names."""
    assert isinstance(config.body, str)
    return _KINDS[config.body](in_features, config, generator)
