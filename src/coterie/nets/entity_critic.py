"""MA-POCA's critic: values of a team of any size and counterfactual baselines of its members, by attention."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState
from coterie.kernels import switch
from coterie.kernels.attention import Projections, attention
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import Activation, NetworkConfig
from coterie.nets.encoders import build_encoder
from coterie.nets.joint_actions import action_size, encode_actions
from coterie.nets.layers import Linear, activated
from coterie.nets.recurrent import build_rnn, unroll, zero_hidden_state
from coterie.nets.user_body import build_body

HEADS = 4
EPS = 1e-5


class EntityEncoder(nn.Module):
    """Embeddings of a role's agents: of their observations, and of their observations and actions."""

    def __init__(
        self, role: RoleSpec, size: int, activation: Activation, generator: torch.Generator, *, state_size: int
    ):
        super().__init__()
        self.role = role
        self.encoder = build_encoder(role.observation_space, None, generator)
        self.activation: Activation = activation
        obs_size = self.encoder.features + state_size
        self.obs_layer = Linear(obs_size, size, gain=1.0, generator=generator)
        self.obs_action_layer = Linear(obs_size + action_size(role.action), size, gain=1.0, generator=generator)

    def forward(
        self, obs: Tree, state: Tensor | None, action: Action | None, alive: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns two embeddings [M, n, E], the second None without actions; state [M, S] or None, alive [M, n] or
        None.
        """
        x = self.encoder(obs)
        if state is not None:
            x = torch.cat([x, state.unsqueeze(-2).expand(*x.shape[:-1], -1)], -1)
        obs_embedding = self._embed(self.obs_layer, x, alive)
        if action is None:
            return obs_embedding, None
        x = torch.cat([x, encode_actions(self.role.action, action)], -1)
        return obs_embedding, self._embed(self.obs_action_layer, x, alive)

    def _embed(self, layer: Linear, x: Tensor, alive: Tensor | None) -> Tensor:
        if alive is not None:  # before the product, where it would reach the gradient of the weights
            x = torch.where(alive.unsqueeze(-1), x, 0.0)
        return activated(layer, x.flatten(0, -2), self.activation).unflatten(0, x.shape[:-1])


class EntityCritic(nn.Module):
    """V of the team, and for every member i a baseline b_i without its action.

        V = f(o_1, .., o_N);   b_i = f(o_i, (o_j, a_j) for j != i)

    One network f reads these 1 + N contexts: encoders of each role, residual attention, hidden layers, a recurrent
    layer, and a linear head of K outputs over features and the fraction of members that are alive, 2 n / N - 1. Absent
    members change nothing else. With a recurrent layer, every context has a hidden state, [M, 1 + N, H], which is reset
    only at the start of an episode, so that all contexts cover the same history. Source: Cohen et al. 2022.

    Args:
        team: The team.
        num_signals: Number of reward signals K.
        embedding_size: Units of an entity's embedding E.
        config: Architecture after the attention.
        generator: Source of the initial weights.
        state_size: Features of a state, such as the time left, which are added to every observation.
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        *,
        embedding_size: int,
        config: NetworkConfig,
        generator: torch.Generator,
        state_size: int = 0,
    ):
        super().__init__()
        self.num_agents, self.config = team.n, config
        self.roles = team.roles
        self.encoders = ModulesByName(
            {
                role.name: EntityEncoder(role, embedding_size, config.activation, generator, state_size=state_size)
                for role in team.roles
            }
        )
        self.attention = ResidualAttention(embedding_size, generator)
        self.body = build_body(embedding_size, replace(config, init="orthogonal"), generator)
        redraw_normal(self.encoders, embedding_size, generator)
        redraw_normal(self.body, config.hidden_sizes[0], generator)
        self.rnn = None
        features = self.body.features
        if config.rnn != "none":
            self.rnn = build_rnn(config.rnn, features, config.rnn_size, None, generator=generator)
            features = config.rnn_size
        self.head = Linear(features + 1, num_signals, gain=1.0, generator=generator)
        members = torch.arange(team.n)
        is_own = torch.eye(team.n, dtype=torch.bool)
        contexts = torch.cat([members.unsqueeze(0), torch.where(is_own, members, members + team.n)])
        self.register_buffer("contexts", contexts, persistent=False)

    def initial_hidden_state(self, num_envs: int, device: torch.device) -> HiddenState:
        """Returns zeros by name [B, 1 + N, H]; {} without a recurrent layer."""
        return zero_hidden_state(self.config.rnn, (num_envs, 1 + self.num_agents, self.config.rnn_size), device)

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        action: dict[str, Action] | None,
        alive: Tensor | None,
        first: Tensor | None,
        hidden_state: HiddenState,
    ) -> tuple[Tensor, HiddenState]:
        """Returns values [.., 1 + N, K], V before the baselines, and the next hidden state.

        Args:
            obs: By role [.., n, ..].
            state: [.., S]; None if it is not read.
            action: By role [.., n, ..]; None for V alone, [.., 1, K].
            alive: [.., N] bool; None: all are alive.
            first: [T, M, 1] bool, needed by recurrent critics.
            hidden_state: By name [M, 1 + N, H], or [M, 1, H] for V alone; {} without a recurrent layer.
        """
        entities = self._embed(obs, state, action, alive)
        lead = entities.shape[:-2]
        if alive is not None:
            alive = alive.flatten(0, -2)
            fraction = alive.sum(-1).to(entities.dtype) * (2 / self.num_agents) - 1
            if action is not None:
                alive = torch.cat([alive, alive], -1)
        else:
            fraction = entities.new_ones(lead.numel())
        contexts: Tensor = self.contexts[:1] if action is None else self.contexts  # pyright: ignore
        pooled = self.attention(entities.flatten(0, -3), alive, contexts)  # [M, C, E]
        features = self.body(pooled.flatten(0, 1))
        if self.rnn is not None:
            assert first is not None
            features, hidden_state = unroll(self.rnn, features, first.expand(-1, -1, len(contexts)), hidden_state)
        fraction = fraction.unsqueeze(-1).expand(-1, len(contexts)).reshape(-1, 1)
        return self.head(torch.cat([features, fraction], -1)).view(*lead, len(contexts), -1), hidden_state

    def _embed(
        self, obs: dict[str, Tree], state: Tensor | None, action: dict[str, Action] | None, alive: Tensor | None
    ) -> Tensor:
        """Entities [.., S, E]: members by observation, then, with actions, members by observation and action."""
        embeddings, start = [], 0
        for role in self.roles:
            role_alive = None if alive is None else alive[..., start : start + role.n]
            start += role.n
            own_action = action and action[role.name]
            embeddings.append(self.encoders[role.name](obs[role.name], state, own_action, role_alive))
        by_obs, by_obs_action = zip(*embeddings, strict=True)
        parts = by_obs if action is None else (*by_obs, *by_obs_action)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def redraw_normal(module: nn.Module, units: int, generator: torch.Generator) -> None:
    """Redraws the weights of all linear layers of `module` with a standard deviation of sqrt(0.125 / units)."""
    for part in module.modules():
        if isinstance(part, Linear):
            nn.init.normal_(part.weight, 0.0, (0.125 / units) ** 0.5, generator)


class _Attention(torch.autograd.Function):
    """Dot-product attention with samples along the last axis, where elementwise code is fastest.

        w = softmax_s(q_i k_s / sqrt(E) over visible s);  out_i = sum_s w_is v_s

    parts: queries, keys and values [S, 3, heads, d, M]; slots: [Q] int64, the entity of each query; visible: [Q, S, 1,
    M or 1] bool, the entities that the query attends to. Returns [Q, heads, d, M], zero where nothing is visible. On a
    CPU, batched matrix products of a handful of entities cost several times as much.
    """

    @staticmethod
    def forward(ctx, parts: Tensor, slots: Tensor, visible: Tensor) -> Tensor:  # type: ignore[override]
        entities, _, heads, width, samples = parts.shape
        query, key, value = parts.unbind(1)
        score = parts.new_zeros(entities, entities, heads, samples)
        scale = (heads * width) ** -0.5
        for f in range(width):
            score.addcmul_(query[:, None, :, f], key[None, :, :, f], value=scale)
        weight = torch.where(visible, score.index_select(0, slots), torch.finfo(parts.dtype).min).softmax(1)
        if visible.shape[-1] > 1:  # it may be that nothing is visible
            weight = torch.where(visible, weight, 0.0)
        out = parts.new_empty(len(slots), heads, width, samples)
        for f in range(width):
            torch.sum(weight * value[:, :, f], 1, out=out[:, :, f])
        ctx.save_for_backward(parts, slots, weight)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        parts, slots, weight = ctx.saved_tensors
        entities, _, heads, width, _ = parts.shape
        query, key, value = parts.unbind(1)
        d_parts, d_weight = torch.empty_like(parts), torch.zeros_like(weight)
        d_query, d_key, d_value = d_parts.unbind(1)
        for f in range(width):
            part = grad[:, None, :, f]
            d_weight.addcmul_(part, value[None, :, :, f])
            torch.sum(weight * part, 0, out=d_value[:, :, f])
        d_weight.sub_((d_weight * weight).sum(1, keepdim=True)).mul_(weight).mul_((heads * width) ** -0.5)
        d_score = parts.new_zeros(entities, *d_weight.shape[1:]).index_add_(0, slots, d_weight)
        for f in range(width):
            torch.sum(d_score * key[None, :, :, f], 1, out=d_query[:, :, f])
            torch.sum(d_score * query[:, None, :, f], 0, out=d_key[:, :, f])
        return d_parts, None, None


class _NormalizedMean(torch.autograd.Function):
    """mean_i LN(z_i) [C, E, M] of z [C, N, E, M] over members, with LN over E without learned parameters.

    weight: [C, N, 1, M], a member's weight in the mean, or one number for all. It is one function because the
    intermediate results would be the largest tensors of the critic.
    """

    @staticmethod
    def forward(ctx, z: Tensor, weight: Tensor | float) -> Tensor:  # type: ignore[override]
        y = z - z.mean(2, keepdim=True)
        scale = (y.square().mean(2, keepdim=True) + EPS).rsqrt_()
        y.mul_(scale)
        ctx.weight = weight
        ctx.save_for_backward(y, scale)
        return y.sum(1).mul_(weight) if isinstance(weight, float) else (y * weight).sum(1)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        y, scale = ctx.saved_tensors
        grad = grad.unsqueeze(1) * ctx.weight
        projection = (y * grad).mean(2, keepdim=True)
        return torch.addcmul(grad - grad.mean(2, keepdim=True), y, projection, value=-1).mul_(scale), None


class ResidualAttention(nn.Module):
    """Self-attention with 4 heads, a residual connection, and the mean over entities.

        x = LN(x);  z_i = LN(x_i + W sum_k softmax_k(q_i k_k / sqrt(E)) v_k);  out = mean_i z_i

    LN has no learned parameters. Absent entities are neither attended to nor averaged; without any entity the output is
    zero. Entities can be read in `C` contexts, each a subset of them; projections are computed once per entity, not
    once per context. Source: Vaswani et al. 2017; Baker et al. 2020 (residual, masked mean); Cohen et al. 2022.
    """

    def __init__(self, size: int, generator: torch.Generator):
        super().__init__()
        self.size = size
        self.query_key_value = Linear(size, 3 * size, gain=1.0, generator=generator)
        self.out = Linear(size, size, gain=1.0, generator=generator)
        redraw_normal(self, size, generator)

    def forward(self, x: Tensor, present: Tensor | None = None, contexts: Tensor | None = None) -> Tensor:
        """Returns [M, C, E].

        Args:
            x: Entities [M, S, E].
            present: [M, S] bool; None: all are present.
            contexts: [C, N] int64, indices of the entities of each context; None: a single context of all entities.
        """
        samples, entities, size = x.shape
        if contexts is None:
            contexts = torch.arange(entities, device=x.device).unsqueeze(0)
        if switch.on:
            project, mix = self.query_key_value, self.out
            parameters = Projections(project.weight, project.bias, mix.weight, mix.bias)
            out = attention(x, present, contexts, parameters, HEADS)
            if out is not None:
                return out
        slots = contexts.flatten()
        x = layer_norm(x, (size,)).permute(1, 2, 0).contiguous()  # [S, E, M]
        parts = _linear_features_first(self.query_key_value, x).view(entities, 3, HEADS, -1, samples)
        visible = torch.zeros(len(contexts), entities, dtype=torch.bool, device=x.device).scatter(1, contexts, True)
        visible = visible.repeat_interleave(contexts.shape[1], 0)[:, :, None, None]
        if present is not None:
            visible = visible & present.T.unsqueeze(1)
        mixed: Tensor = _Attention.apply(parts, slots, visible)  # pyright: ignore[reportAssignmentType]
        z = (_linear_features_first(self.out, mixed.flatten(1, 2)) + x.index_select(0, slots)).unflatten(
            0, contexts.shape
        )
        weight: Tensor | float = 1 / contexts.shape[1]
        if present is not None:
            counts = present.T[contexts].unsqueeze(2).to(z.dtype)  # [C, N, 1, M]
            weight = counts / counts.sum(1, keepdim=True).clamp(min=1)
        return _NormalizedMean.apply(z, weight).permute(2, 0, 1)  # pyright: ignore[reportOptionalMemberAccess]


def _linear_features_first(layer: Linear, x: Tensor) -> Tensor:
    """Applies `layer` to features that precede the samples: [S, in, M] to [S, out, M]."""
    return torch.baddbmm(layer.bias.unsqueeze(-1), layer.weight.T.expand(len(x), -1, -1), x)
