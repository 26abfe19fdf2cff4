"""The network of Sable: retention over the agents and timesteps of a team, by which agents decide one after another.

    encoder  x_i = LN(gelu(W LN(o_i))) + p_t;                  blocks of `RetentionEncoder`
    values   V_i = W_v LN(gelu(W x_i))
    decoder  y_m = LN(gelu(token of the action before m)) + p_t;    blocks of `RetentionDecoder`
             logits_m = W_a LN(gelu(W y_m))

p_t is a code of the number of timesteps since the start of the episode. Without memory there is none.

Source: Mahjoub et al. 2025, section 4, and Mava's code. Differences: each head is normalized by itself; dead agents
leave nothing in the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState
from coterie.nets.autoregressive import AutoregressiveActor, in_order, order_of
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import NetworkConfig
from coterie.nets.layers import LayerNorm
from coterie.nets.mat import AgentEmbedding, AgentValues, Head
from coterie.nets.retention import Retention, RetentionDecoder, RetentionEncoder, retention_decays, with_added
from coterie.nets.team import team_blocks
from coterie.nets.team_view import view_of

ENCODER, OWN, CROSS, STEP = "encoder", "own", "cross", "step"
"""Names in the hidden state: states of the blocks of the encoder, and of both retentions of those of the decoder
[B, L, H, d, d] each, and the number of timesteps since the start of the episode [B, 1].
"""


@dataclass(frozen=True)
class RetentionSizes:
    """Size of encoder and decoder.

    Attributes:
        features: Features F of an agent and of an action.
        blocks: Blocks L of the encoder, and of the decoder.
        heads: Heads H of each retention, which divide the features.
        decay_scale: Factor of the decays of the heads; None: no memory over time.
        gain: Gain of the initial output layers of retentions and of feed-forward layers.
    """

    features: int
    blocks: int
    heads: int
    decay_scale: float | None
    gain: float = 1.0

    @property
    def decays(self) -> Tensor | None:
        """Decay of each head per timestep [H]; None without memory."""
        return None if self.decay_scale is None else retention_decays(self.heads, self.decay_scale)


def episode_starts(first: Tensor, alive: Tensor) -> Tensor:
    """Returns True where an episode of the team starts [..]: all agents that are alive have just appeared.

    Args:
        first: [.., N] bool; or [.., 1], True where an episode starts.
        alive: [.., N] bool.
    """
    if first.shape[-1] == 1:
        return first.squeeze(-1)
    return (first | ~alive).all(-1) & first.any(-1)


def timesteps_since_start(starts: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the number of timesteps since the start of the episode [M, T], and that of the next timestep [M, 1].

    Args:
        starts: [M, T] bool, True where an episode starts.
        before: The number of the first timestep if no episode starts there [M, 1].
    """
    index = torch.arange(starts.shape[1], device=starts.device)
    last = torch.where(starts, index, -1).cummax(1).values
    number = torch.where(last < 0, before + index, index - last)
    return number, number[:, -1:] + 1


def position_code(number: Tensor, size: int) -> Tensor:
    """Returns sines and cosines of numbers of timesteps [..] at `size` / 2 frequencies [.., size].

    Source: Vaswani et al. 2017, section 3.5.
    """
    frequency = torch.exp(torch.arange(0, size, 2, device=number.device) * (-math.log(10_000.0) / size))
    angle = number.unsqueeze(-1) * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :size]


def of_blocks(states: list[Tensor]) -> Tensor:
    """Returns the states of blocks [M, H, d, d] as one tensor [M, L, H, d, d], of a single block without a copy."""
    return states[0].unsqueeze(1) if len(states) == 1 else torch.stack(states, 1)


def as_samples(x: Tensor, lead: int, *, memory: bool) -> Tensor:
    """Returns a tensor of the first `lead` axes and others as samples and timesteps [M, T, ..]: of sequences [T, M, ..]
    with memory, else of timesteps with any leading axes, each of which is a sample.
    """
    return x.transpose(0, 1).contiguous() if memory else x.reshape(-1, 1, *x.shape[lead:])


def as_given(x: Tensor, lead: torch.Size, *, memory: bool) -> Tensor:
    """Returns x [M, T, ..] with the leading axes that it had before `as_samples`."""
    return x.transpose(0, 1) if memory else x.reshape(*lead, *x.shape[2:])


class SableEncoder(nn.Module):
    """Encoder over the agents and timesteps of a team.

    Args:
        team: The team.
        config: Inputs; its layers are not used.
        sizes: Size.
        generator: Source of the initial weights.
    """

    def __init__(self, team: TeamSpec, config: NetworkConfig, sizes: RetentionSizes, generator: torch.Generator):
        super().__init__()
        self.blocks = team_blocks(team, config.share_params)
        self.agents_can_die, self.sizes = team.agents_can_die, sizes
        self.embedding = AgentEmbedding(self.blocks, config, sizes.features, generator)
        decays = sizes.decays
        self.layers = nn.ModuleList(
            RetentionEncoder(sizes.features, decays, sizes.heads, generator, gain=sizes.gain)
            for _ in range(sizes.blocks)
        )

    def forward(
        self, obs: dict[str, Tree], first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, Tensor | None, HiddenState]:
        """Returns features, position codes [M, T, 1, F], and the next hidden state. Without memory, T is 1.

        Args:
            obs: By role [M, n, ..] as networks read them, or sequences [T, M, n, ..] with memory.
            first: [T, M, N] or [T, M, 1] bool, see `episode_starts`; None without memory.
            hidden_state: `ENCODER` and `STEP` before the first timestep; {} without memory.

        Returns:
            Features [M, T, N, F] by agent, the codes or None, and `ENCODER` and `STEP` after the last timestep.
        """
        x, alive, memory = self.embedding(obs), view_of(obs).alive, bool(hidden_state)
        lead = alive.ndim - 1
        x = as_samples(x, lead, memory=memory)
        kept = as_samples(alive, lead, memory=memory) if self.agents_can_die else None
        if not memory:
            for layer in self.layers:
                x, _ = layer(x, kept, None, None)
            return x, None, {}
        assert first is not None
        starts = as_samples(episode_starts(first, alive), lead, memory=True)
        number, step = timesteps_since_start(starts, hidden_state[STEP])
        code = position_code(number, self.sizes.features).unsqueeze(2)
        x = x + code
        states = []
        for layer, state in zip(self.layers, hidden_state[ENCODER].unbind(1), strict=True):
            x, state = layer(x, kept, starts, state)
            states.append(state)
        return x, code, {ENCODER: of_blocks(states), STEP: step}


class SableCritic(nn.Module):
    """A critic of the features of an encoder that belongs to the policy."""

    def __init__(self, encoder: SableEncoder, values: AgentValues):
        super().__init__()
        self.values = values
        self._encoder = (encoder,)  # in a tuple: it is no part of the critic's parameters

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values [.., N, K] and the next hidden state; `state`: [.., S] or None, others as `SableEncoder`."""
        alive = view_of(obs).alive
        x, _, after = self._encoder[0](obs, first, hidden_state)
        return self.values(as_given(x, alive.shape[:-1], memory=bool(hidden_state)), alive, state), after


@dataclass
class Places:
    """A causal retention while agents decide: what the agents so far have added to the state of the timestep before.

    Attributes:
        layer: The retention.
        state: The carried state [B, H, d, d]; None without memory.
        keys, values: Of the places so far [B, H, 1, d] each.
    """

    layer: Retention
    state: Tensor | None
    keys: list[Tensor]
    values: list[Tensor]

    def add(self, u: Tensor, alive: Tensor | None) -> None:
        """Adds the keys and values of inputs u [B, F] at the next place; alive: [B] bool."""
        key, value = self.layer.keys_and_values(u, alive)
        self.keys.append(key.unsqueeze(2))
        self.values.append(value.unsqueeze(2))

    def read(self, query: Tensor) -> Tensor:
        """Returns what a query [B, H, d] reads of all places so far and of the state [B, H, d]."""
        query = query.unsqueeze(2)
        keys, values = torch.cat(self.keys, 2), torch.cat(self.values, 2)
        found = (query @ keys.transpose(-1, -2)) @ values
        return (found if self.state is None else found + query @ self.state).squeeze(2)

    def next_state(self) -> Tensor:
        """Returns the state after the timestep."""
        assert self.state is not None
        return with_added(self.state, torch.cat(self.keys, 2), torch.cat(self.values, 2))


@dataclass
class Decoding:
    """State of the decoder while acting.

    Attributes:
        x: Features of the encoder in order [B, N, F].
        code: Position codes [B, F]; None without memory.
        alive: [B, N] bool in order; None: all agents are alive.
        queries: Of cross-retention in each block: queries [B, N, H, d] and gates [B, N, F].
        own, cross: Both retentions of each block.
        hidden_state: The encoder's next hidden state.
    """

    x: Tensor
    code: Tensor | None
    alive: Tensor | None
    queries: list[tuple[Tensor, Tensor]]
    own: list[Places]
    cross: list[Places]
    hidden_state: HiddenState


class SableActor(AutoregressiveActor):
    """Encoder and decoder of Sable.

    Args:
        encoder: The encoder.
        generator: Source of the initial weights.
        state_dependent_std, init_std: See `ActionParameters`.
    """

    def __init__(
        self, encoder: SableEncoder, generator: torch.Generator, *, state_dependent_std: bool, init_std: float
    ):
        sizes = self._sizes = encoder.sizes
        super().__init__(
            encoder.blocks, sizes.features, generator, state_dependent_std=state_dependent_std, init_std=init_std
        )
        self.encoder, decays = encoder, sizes.decays
        self.norm = LayerNorm(sizes.features, None)
        self.decoder = nn.ModuleList(
            RetentionDecoder(sizes.features, decays, sizes.heads, generator, gain=sizes.gain)
            for _ in range(sizes.blocks)
        )
        self.heads = ModulesByName(
            {
                block.name: Head(sizes.features, sizes.features, self.num_outputs(block.action_spec), generator)
                for block in self.blocks
            }
        )

    def initial_hidden_state(self, num_envs: int, device: torch.device) -> HiddenState:
        sizes = self._sizes
        if sizes.decay_scale is None:
            return {}
        head = sizes.features // sizes.heads
        shape = (num_envs, sizes.blocks, sizes.heads, head, head)
        states = {name: torch.zeros(shape, device=device) for name in (ENCODER, OWN, CROSS)}
        return states | {STEP: torch.zeros(num_envs, 1, dtype=torch.int64, device=device)}

    # ------------------------------------------------------------------------------------------------------- acting

    def start(self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState) -> Decoding:
        view, memory = view_of(obs), bool(hidden_state)
        order = order_of(view.place)
        x, code, encoded = self._encode(_one_timestep(obs) if memory else obs, first.unsqueeze(0), hidden_state)
        x = x[:, 0] if order is None else order.arrange(x[:, 0])
        own: list[Places] = []
        cross: list[Places] = []
        starts = episode_starts(first, view.alive)
        for index, block in enumerate(self._layers):
            for name, layer, places in ((OWN, block.own, own), (CROSS, block.cross, cross)):
                state = layer.carried(hidden_state[name][:, index], starts) if memory else None
                places.append(Places(layer, state, [], []))
        return Decoding(
            x=x,
            code=None if code is None else code[:, 0, 0],
            alive=in_order(view.alive, order) if self.agents_can_die else None,
            queries=[block.cross.queries(x) for block in self._layers],
            own=own,
            cross=cross,
            hidden_state=encoded,
        )

    def step(self, decoding: Decoding, place: int, token: Tensor) -> Tensor:
        alive = None if decoding.alive is None else decoding.alive[:, place]
        x, y = decoding.x[:, place], self._embedded(token, decoding.code)
        parts = zip(self._layers, decoding.queries, decoding.own, decoding.cross, strict=True)
        for block, (queries, gates), own, cross in parts:
            query, gate = block.own.queries(y)
            own.add(y, alive)
            y = block.norms[0](y + block.own.outputs(own.read(query), gate))
            cross.add(y, alive)
            y = block.after(x, block.cross.outputs(cross.read(queries[:, place]), gates[:, place]))
        return y

    def finish(self, decoding: Decoding) -> HiddenState:
        if not decoding.hidden_state:
            return {}
        states = {OWN: decoding.own, CROSS: decoding.cross}
        return decoding.hidden_state | {
            name: of_blocks([places.next_state() for places in parts]) for name, parts in states.items()
        }

    # ----------------------------------------------------------------------------------------------------- learning

    def features(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor | None, hidden_state: HiddenState
    ) -> Tensor:
        return self.decode(obs, action, first, hidden_state)[0]

    def unroll(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor, hidden_state: HiddenState
    ) -> HiddenState:
        return self.decode(obs, action, first, hidden_state)[2]

    def decode(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, Tensor, HiddenState]:
        """Returns the features of actions in order and of the encoder by agent [.., N, F], and the next hidden state.

        Arguments as in `features`.
        """
        view, memory = view_of(obs), bool(hidden_state)
        order, lead = order_of(view.place), view.alive.shape[:-1]
        encoded, code, after = self._encode(obs, first, hidden_state)
        encoded = as_given(encoded, lead, memory=memory)
        inputs = encoded if order is None else order.arrange(encoded)
        x = as_samples(inputs, len(lead), memory=memory)
        y = self._embedded(as_samples(self.tokens_before(obs, action, order), len(lead), memory=memory), code)
        alive = starts = None
        if self.agents_can_die:
            alive = as_samples(in_order(view.alive, order), len(lead), memory=memory)
        if memory:
            assert first is not None
            starts = as_samples(episode_starts(first, view.alive), len(lead), memory=True)
        states: dict[str, list[Tensor]] = {OWN: [], CROSS: []}
        for index, block in enumerate(self._layers):
            before = (hidden_state[name][:, index] if memory else None for name in states)
            y, own, cross = block(y, x, alive, starts, *before)
            states[OWN].append(own)
            states[CROSS].append(cross)
        if memory:
            after = after | {name: of_blocks(parts) for name, parts in states.items()}
        return as_given(y, lead, memory=memory), encoded, after

    def _encode(
        self, obs: dict[str, Tree], first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, Tensor | None, HiddenState]:
        return self.encoder(obs, first, {name: hidden_state[name] for name in (ENCODER, STEP) if hidden_state})

    def _embedded(self, tokens: Tensor, code: Tensor | None) -> Tensor:
        """Returns the decoder's inputs of action tokens."""
        y = self.norm(gelu(tokens))
        return y if code is None else y + code

    @property
    def _layers(self) -> list[Any]:
        """Blocks of the decoder."""
        return [*self.decoder]


def _one_timestep(obs: dict[str, Tree]) -> dict[str, Tree]:
    """Returns observations of a timestep [B, ..] as a sequence [1, B, ..]."""
    return tree_map(lambda x: x.unsqueeze(0), obs)
