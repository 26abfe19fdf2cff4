"""Retention over agents and time: attention without a softmax, whose memory is a matrix per head that decays over time.

Every head has queries, keys and values of all agents at all timesteps, and a decay k per timestep:

    S_t = k [no episode starts at t] S_{t-1} + sum_i k_{t,i}^T v_{t,i};    out_{t,i} = q_{t,i} S_t        (encoder)

With `causal`, agent i reads only agents up to itself of its own timestep (decoder). With k = 0, nothing is kept over
time. The three forms of this module give the same outputs: agent by agent (`retention_recurrent`), all timesteps at
once (`retention_parallel`), and in chunks whose memory is linear in the number of agents (`retention`).

Shapes: M environments or sequences, T timesteps, n agents, H heads, d features of a head. A state is [M, H, d, d].
Sources: Sun et al. 2023 (retention), Mahjoub et al. 2025, section 4 and appendix (Sable: agents, resets).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coterie.core import precision
from coterie.nets.layers import LayerNorm

CHUNK = 128
"""Entries (agents x timesteps) of a chunk. Forward and backward, 32 timesteps of 10 agents with one head of 64 features
took 17 ms in chunks of 24 entries, 11 ms with 64, 10 ms with 128 and 13 ms with 192 on one thread of an AMD EPYC; of
100 agents 50, 28, 23 and 24 ms.
"""


def retention_decays(heads: int, scale: float) -> Tensor:
    """Returns the decay per timestep of each head [H], from 1 - 1/32 to 1 - 1/512 times `scale`.

    Source: Sun et al. 2023, section 2.1, scaled as in Mahjoub et al. 2025.
    """
    return (1 - torch.linspace(math.log(1 / 32), math.log(1 / 512), heads).exp()) * scale


def retention_recurrent(
    query: Tensor, key: Tensor, value: Tensor, first: Tensor, decay: Tensor, state: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Retention by its definition, one timestep after the other, and with `causal` agent by agent.

    Args:
        query, key, value: [M, T, n, H, d].
        first: [M, T] bool, True where an episode starts: the state is reset before the timestep.
        decay: Decay per timestep [H], in [0, 1].
        state: Before the first timestep [M, H, d, d].
        causal: Agents read only agents up to themselves, in the order of the agent axis.

    Returns:
        Outputs [M, T, n, H, d], and the state after the last timestep.
    """
    out = []
    for t in range(query.shape[1]):
        state = carried(state, first[:, t], decay)
        q, k, v = (x[:, t].transpose(1, 2) for x in (query, key, value))  # [M, H, n, d]
        if causal:
            agents = []
            for i in range(q.shape[2]):
                state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
                agents.append(q[:, :, i : i + 1] @ state)
            out.append(torch.cat(agents, 2))
        else:
            state = state + k.transpose(-1, -2) @ v
            out.append(q @ state)
    return torch.stack([x.transpose(1, 2) for x in out], 1), state


def carried(state: Tensor, first: Tensor, decay: Tensor) -> Tensor:
    """Returns a state [M, H, d, d] as the next timestep finds it: decayed, or zero where an episode starts.

    Args:
        state: After the timestep before.
        first: [M] bool, True where an episode starts at this timestep.
        decay: Decay per timestep [H].
    """
    return state * (decay * ~first.unsqueeze(-1))[:, :, None, None]


def decay_masks(first: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how much of a timestep is left at later ones.

        D[t, s] = k^(t - s) for s <= t without an episode start in (s, t], else 0
        xi[t]   = k^(t + 1) without an episode start in [0, t], else 0

    Args:
        first: [M, T] bool, True where an episode starts.
        decay: Decay per timestep [H]; with 0, D is the identity.

    Returns:
        D [M, H, T, T], and xi [M, H, T], what is left of the state before the first timestep.
    """
    steps = torch.arange(first.shape[1], device=first.device)
    started = first.cumsum(1)
    elapsed = steps[:, None] - steps
    same = (started[:, :, None] == started[:, None, :]) & (elapsed >= 0)
    power = decay[:, None, None] ** elapsed.clamp(min=0)
    since_state = decay[:, None] ** (steps + 1)
    return torch.where(same.unsqueeze(1), power, 0.0), torch.where((started == 0).unsqueeze(1), since_state, 0.0)


def retention_parallel(
    query: Tensor, key: Tensor, value: Tensor, first: Tensor, decay: Tensor, state: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Retention of all timesteps at once, which needs (T n)^2 numbers per head. Arguments as `retention_recurrent`.

        out = (Q K^T * D) V + (Q * xi) S_0;    S_T = K^T (V * D[T]) + S_0 xi[T]

    with D and xi of `decay_masks`, equal for all agents of a timestep; with `causal`, D is 0 for later agents, too.
    """
    steps, n = query.shape[1:3]
    masks, since_state = decay_masks(first, decay)
    q, k, v = (x.flatten(1, 2).transpose(1, 2) for x in (query, key, value))  # [M, H, T n, d]
    visible = masks.repeat_interleave(n, -2).repeat_interleave(n, -1)
    visible = visible.tril() if causal else visible
    out = (q @ k.transpose(-1, -2) * visible) @ v
    out = out + q * since_state.repeat_interleave(n, -1).unsqueeze(-1) @ state
    left = masks[:, :, -1].repeat_interleave(n, -1).unsqueeze(-1)
    state = k.transpose(-1, -2) @ (v * left) + state * since_state[:, :, -1, None, None]
    return out.transpose(1, 2).unflatten(1, (steps, n)), state


def retention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    decay: Tensor,
    state: Tensor,
    *,
    causal: bool,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Retention in chunks, between which the state is passed on. Arguments as `retention_recurrent`.

    A chunk has as many timesteps as have at most `chunk` entries of agents. A timestep of more agents is read in groups
    of agents, so that memory is linear in agents and timesteps.
    """
    steps, n = query.shape[1:3]
    alone = n > chunk or steps == 1
    length = 1 if alone else chunk // n
    if length >= steps and not alone:
        return retention_parallel(query, key, value, first, decay, state, causal=causal)
    out = []
    for q, k, v, starts in zip(*(x.split(length, 1) for x in (query, key, value, first)), strict=True):
        if alone:
            state = carried(state, starts[:, 0], decay)
            found, after = timestep_retention(q[:, 0], k[:, 0], v[:, 0], state, causal=causal, chunk=chunk)
            assert after is not None
            out.append(found.unsqueeze(1))
            state = after
        else:
            found, state = retention_parallel(q, k, v, starts, decay, state, causal=causal)
            out.append(found)
    return torch.cat(out, 1), state


def timestep_retention(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor | None, *, causal: bool, chunk: int = CHUNK
) -> tuple[Tensor, Tensor | None]:
    """Retention of a single timestep whose state is already `carried`, in groups of at most `chunk` agents.

    Args:
        query, key, value: [M, n, H, d].
        state: [M, H, d, d]; None: nothing is kept over time.
        causal: Agents read only agents up to themselves.
        chunk: Largest number of agents of a group.

    Returns:
        Outputs [M, n, H, d], and the state after the timestep, None without one.
    """
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [M, H, n, d]
    if state is None and q.shape[2] <= chunk:
        score = q @ k.transpose(-1, -2)
        return ((score.tril() if causal else score) @ v).transpose(1, 2), None
    if not causal:
        kept = with_added(state, k, v)
        return (q @ kept).transpose(1, 2), None if state is None else kept
    out, kept = [], state
    for own_q, own_k, own_v in zip(*(x.split(chunk, 2) for x in (q, k, v)), strict=True):
        within = (own_q @ own_k.transpose(-1, -2)).tril() @ own_v
        out.append(within if kept is None else within + own_q @ kept)
        kept = with_added(kept, own_k, own_v)
    return torch.cat(out, 2).transpose(1, 2), None if state is None else kept


def with_added(state: Tensor | None, key: Tensor, value: Tensor) -> Tensor:
    """Returns a state [M, H, d, d], None for zeros, with the keys and values [M, H, n, d] of agents added to it."""
    if state is None:
        return key.transpose(-1, -2) @ value
    added = (x.flatten(0, 1) for x in (state, key.transpose(-1, -2), value))
    return torch.baddbmm(*added).unflatten(0, state.shape[:2])


class SwiGLU(nn.Module):
    """(silu(x W_1) * x W_2) W_3, as wide as its input; `gain` is that of the initial W_3. Source: Shazeer 2020."""

    def __init__(self, size: int, generator: torch.Generator, *, gain: float = 1.0):
        super().__init__()
        self.gate, self.hidden = (normal_weight(size, size, generator) for _ in range(2))
        self.out = normal_weight(size, size, generator, gain)

    def forward(self, x: Tensor) -> Tensor:
        return product(nn.functional.silu(product(x, self.gate)) * product(x, self.hidden), self.out)


def normal_weight(rows: int, columns: int, generator: torch.Generator, gain: float = 1.0) -> nn.Parameter:
    """Returns a weight [rows, columns] from a normal distribution of variance gain^2 / rows."""
    return nn.Parameter(torch.randn(rows, columns, generator=generator) * rows**-0.5 * gain)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Returns x W in the precision of networks."""
    return precision.in_bfloat16(torch.matmul, x, weight) if precision.reduced else x @ weight


class Retention(nn.Module):
    """Retention of several heads with decays of their own, and a gate.

        y = (silu(x W_g) * norm(retention(x W_q, u W_k, u W_v))) W_o

    x are the inputs of queries, u those of keys and values, and each head is normalized by itself.

    Args:
        size: Features of inputs and outputs.
        decay: Decay of each head per timestep [H]; None: nothing is kept over time, and there is no state.
        heads: Number of heads H.
        causal: Agents read only agents up to themselves.
        generator: Source of the initial weights.
        gain: Gain of the initial W_o.

    Sources: Sun et al. 2023, section 2.3; Mahjoub et al. 2025. Difference: the code of the latter normalizes groups of
    features across heads.
    """

    def __init__(
        self,
        size: int,
        decay: Tensor | None,
        heads: int,
        generator: torch.Generator,
        *,
        causal: bool,
        gain: float = 1.0,
    ):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.register_buffer("decay", decay, persistent=False)
        self.query, self.gate, self.key, self.value = (normal_weight(size, size, generator) for _ in range(4))
        self.out = normal_weight(size, size, generator, gain)
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the queries [.., H, d] and gates [.., F] of inputs [.., F]."""
        query = product(x, self.query).unflatten(-1, (self.heads, -1))
        return query, nn.functional.silu(product(x, self.gate))

    def keys_and_values(self, x: Tensor, alive: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the keys and values [.., H, d] of inputs [.., F]; keys of dead agents, by `alive` [..], are zero."""
        key, value = (product(x, weight).unflatten(-1, (self.heads, -1)) for weight in (self.key, self.value))
        return key if alive is None else torch.where(alive[..., None, None], key, 0.0), value

    def outputs(self, retained: Tensor, gate: Tensor) -> Tensor:
        """Returns the outputs [.., F] of what queries retained [.., H, d], and their gates [.., F]."""
        normal = nn.functional.layer_norm(retained, retained.shape[-1:]).flatten(-2)
        return product(gate * torch.addcmul(self.shift, normal, self.scale), self.out)

    def carried(self, state: Tensor, first: Tensor) -> Tensor:
        """Returns the state [M, H, d, d] as the next timestep finds it, see `carried`."""
        assert self.decay is not None
        return carried(state, first, self.decay)  # pyright: ignore[reportArgumentType]

    def forward(
        self, x: Tensor, u: Tensor, alive: Tensor | None, first: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns outputs [M, T, n, F], and the state after the last timestep.

        Args:
            x, u: Inputs of queries and of keys and values [M, T, n, F].
            alive: [M, T, n] bool; None: all agents are alive.
            first: [M, T] bool, True where an episode starts; None without memory.
            state: [M, H, d, d]; None without memory.
        """
        query, gate = self.queries(x)
        key, value = self.keys_and_values(u, alive)
        if self.decay is None or first is None or state is None:
            q, k, v = (part.flatten(0, 1) for part in (query, key, value))
            retained, _ = timestep_retention(q, k, v, None, causal=self.causal)
            retained = retained.unflatten(0, x.shape[:2])
        else:
            retained, state = retention(query, key, value, first, self.decay, state, causal=self.causal)  # pyright: ignore[reportArgumentType]
        return self.outputs(retained, gate), state


class RetentionEncoder(nn.Module):
    """A block over observations: x <- norm(x + retention(x, x)); x <- norm(x + SwiGLU(x))."""

    def __init__(self, size: int, decay: Tensor | None, heads: int, generator: torch.Generator, *, gain: float = 1.0):
        super().__init__()
        self.retention = Retention(size, decay, heads, generator, causal=False, gain=gain)
        self.hidden = SwiGLU(size, generator, gain=gain)
        self.norms = nn.ModuleList(LayerNorm(size, None) for _ in range(2))

    def forward(
        self, x: Tensor, alive: Tensor | None, first: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns features [M, T, n, F] and the state after the last timestep; arguments as in `Retention`."""
        mixed, state = self.retention(x, x, alive, first, state)
        x = self.norms[0](x + mixed)
        return self.norms[1](x + self.hidden(x)), state


class RetentionDecoder(nn.Module):
    """A block over the actions before each agent's own, y, and the encoder's features, x.

        y <- norm(y + retention(y, y));  z <- norm(x + retention(x, y));  y <- norm(z + SwiGLU(z))

    Both retentions are causal.
    """

    def __init__(self, size: int, decay: Tensor | None, heads: int, generator: torch.Generator, *, gain: float = 1.0):
        super().__init__()
        self.own = Retention(size, decay, heads, generator, causal=True, gain=gain)
        self.cross = Retention(size, decay, heads, generator, causal=True, gain=gain)
        self.hidden = SwiGLU(size, generator, gain=gain)
        self.norms = nn.ModuleList(LayerNorm(size, None) for _ in range(3))

    def forward(
        self,
        y: Tensor,
        x: Tensor,
        alive: Tensor | None,
        first: Tensor | None,
        own_state: Tensor | None,
        cross_state: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns features [M, T, n, F] and both states after the last timestep; arguments as in `Retention`."""
        mixed, own_state = self.own(y, y, alive, first, own_state)
        y = self.norms[0](y + mixed)
        mixed, cross_state = self.cross(x, y, alive, first, cross_state)
        return self.after(x, mixed), own_state, cross_state

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Returns the features [.., F] of agents with the encoder's features x and what cross-retention gave them."""
        z = self.norms[1](x + mixed)
        return self.norms[2](z + self.hidden(z))
