"""Networks of a team: observations by role in, one tensor over the team's agents out; and normalized observations.

A *block* is the set of consecutive roles that one network reads: a single role, or all roles if they share parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.specs import ActionSpec, RoleSpec, TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, Rollout
from coterie.functional.returns import present_agents
from coterie.functional.statistics import Moments, Reduction, initial_moments, mean_and_std, update_moments
from coterie.kernels import switch
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import CentralInputs, ModuleFactory, NetworkConfig, ShareParams
from coterie.nets.encoders import build_encoder, can_share_network, concatenate_observations
from coterie.nets.entities import EntityBody, EntityNetwork, require_entities
from coterie.nets.layers import Linear
from coterie.nets.recurrent import build_rnn, unroll, zero_hidden_state
from coterie.nets.team_bodies import TeamBody, build_team_body, fill_dead
from coterie.nets.team_view import VIEW, TeamView, view_of
from coterie.nets.user_body import UserTeamBody, build_body

R = TypeVar("R")


@dataclass(frozen=True)
class Block:
    """Consecutive roles that one network reads; `start` and `stop` are their slice of the team's agents."""

    name: str
    roles: tuple[RoleSpec, ...]
    start: int
    stop: int

    @cached_property
    def n(self) -> int:
        """Number of agents."""
        return self.stop - self.start

    @cached_property
    def action_spec(self) -> ActionSpec:
        """Action space of each agent."""
        return self.roles[0].action

    def join_obs(self, obs: dict[str, Tree]) -> Tree:
        """Concatenates the roles' observations [.., n, ..] along the agent axis."""
        if len(self.roles) == 1:
            return obs[self.roles[0].name]
        return concatenate_observations([obs[role.name] for role in self.roles], self.roles[0].observation_space)

    def join_masks(self, by_role: dict[str, Tensor]) -> Tensor | None:
        """Concatenates the roles' action masks [.., n, sum A]; None if every choice of every role is available."""
        given = next((by_role[role.name] for role in self.roles if role.name in by_role), None)
        if given is None or len(self.roles) == 1:
            return given
        all_available = {
            r.name: given.new_ones(*given.shape[:-2], r.n, given.shape[-1]) for r in self.roles if r.name not in by_role
        }
        by_role = by_role | all_available
        return torch.cat([by_role[role.name] for role in self.roles], -2)

    def join_actions(self, by_role: dict[str, Action]) -> Action:
        """Concatenates the roles' actions along the agent axis."""
        if len(self.roles) == 1:
            return by_role[self.roles[0].name]
        parts = [by_role[role.name] for role in self.roles]
        discrete = [part.discrete for part in parts if part.discrete is not None]
        continuous = [part.continuous for part in parts if part.continuous is not None]
        return Action(torch.cat(discrete, -2) if discrete else None, torch.cat(continuous, -2) if continuous else None)

    def split_by_role(self, joined: R) -> dict[str, R]:
        """Splits a tree of tensors [.., n, ..] of the block's agents, such as an action, into roles."""
        if len(self.roles) == 1:
            return {self.roles[0].name: joined}
        stops = list(accumulate(role.n for role in self.roles))
        return {
            role.name: tree_map(lambda x, agents=slice(stop - role.n, stop): x[..., agents, :], joined)
            for role, stop in zip(self.roles, stops, strict=True)
        }


def join_by_block(by_role: dict[str, Tensor], blocks: Iterable[Block]) -> dict[str, Tensor]:
    """Concatenates the roles' vectors [.., n, P] along the agent axis, by block."""
    parts = {block.name: [by_role[role.name] for role in block.roles] for block in blocks}
    return {name: own[0] if len(own) == 1 else torch.cat(own, -2) for name, own in parts.items()}


def team_blocks(team: TeamSpec, share_params: ShareParams) -> tuple[Block, ...]:
    """Returns one block per role, or a single block if all roles share parameters.

    Raises:
        ValueError: If `share_params` is `all` and the roles differ in their spaces.
    """
    if share_params == "all":
        if not can_share_network(team.roles):
            raise ValueError(f"team {team.name}: its roles differ in their spaces")
        return (Block(team.roles[0].name, team.roles, 0, team.n),)
    blocks, start = [], 0
    for role in team.roles:
        blocks.append(Block(role.name, (role,), start, start + role.n))
        start += role.n
    return tuple(blocks)


class AgentNetwork(nn.Module):
    """Hidden layers, recurrent layer if `config.rnn` asks for one, and linear head over [.., n, in].

    There is one set of parameters, or `sets`, one for each of the n agents.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        sets: int | None = None,
        head_gain: float = 1.0,
    ):
        super().__init__()
        self.sets = sets
        self.body = build_body(in_features, config, generator, sets)
        self.rnn, features = None, self.body.features
        if config.rnn != "none":
            self.rnn = build_rnn(config.rnn, features, config.rnn_size, sets, generator=generator)
            features = config.rnn_size
        self.head = Linear(features, out_features, gain=head_gain, generator=generator, sets=sets, init=config.init)

    def forward(self, x: Tensor, first: Tensor | None, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        """Returns [.., n, out] and the next hidden state.

        Args:
            x: [.., n, in]; a recurrent network reads sequences [T, M, n, in], or one timestep [M, n, in].
            first: [T, M, n] or [M, n] bool, True where the hidden state is reset before the timestep is read.
            hidden_state: By name [M, n, H]; {} for feed-forward networks.
        """
        by_set = x.flatten(0, -2) if self.sets is None else x.flatten(0, -3).transpose(0, 1)  # [M n, in] or [n, M, in]
        if self.rnn is None:
            out = self.body(by_set, self.head)
        else:
            assert first is not None
            features, hidden_state = unroll(self.rnn, self.body(by_set), first, hidden_state)
            out = self.head(features)
        out = out if self.sets is None else out.transpose(0, 1)
        return out.reshape(*x.shape[:-1], out.shape[-1]), hidden_state


class BlockNetwork(nn.Module):
    """Encoder and network of the agents of one block: observations [.., n, ..] to [.., n, out]."""

    def __init__(
        self,
        block: Block,
        out_features: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        head_gain: float = 1.0,
        extra_size: int = 0,
    ):
        super().__init__()
        sets, config = config.parameter_sets(block.n), config.of_role(block.name)
        ids = torch.eye(block.n) if config.obs_agent_id and block.n > 1 else None
        self.register_buffer("ids", ids, persistent=False)
        self.encoder = build_encoder(block.roles[0].observation_space, sets, generator)
        in_features = self.encoder.features + extra_size + (block.n if ids is not None else 0)
        self.network = AgentNetwork(in_features, out_features, config, generator, sets=sets, head_gain=head_gain)

    def forward(
        self, obs: Tree, first: Tensor | None, hidden_state: HiddenState, extra: Tensor | None = None
    ) -> tuple[Tensor, HiddenState]:
        """Returns [.., n, out] and the next hidden state; see `TeamNetwork.forward`."""
        x = self.encoder(obs)
        parts = [x] if extra is None else [x, extra]
        if self.ids is not None:
            parts.append(self.ids.expand(*x.shape[:-1], -1))  # pyright: ignore[reportCallIssue]
        return self.network(x if len(parts) == 1 else torch.cat(parts, -1), first, hidden_state)


class BlockInputs(nn.Module):
    """What a body that sees the team reads of the agents of one block: observations [.., n, ..] to [.., n, features].

    These are the encoded observation, further inputs and the agent's id; with `attention`, the features of the agent
    among the entities that it observes.
    """

    def __init__(self, block: Block, config: NetworkConfig, generator: torch.Generator, *, extra_size: int):
        super().__init__()
        ids = torch.eye(block.n) if config.obs_agent_id and block.n > 1 else None
        self.register_buffer("ids", ids, persistent=False)
        extra_size += 0 if ids is None else block.n
        self.entities = None
        if config.reads_entities:
            self.entities = EntityBody(require_entities(block.roles), extra_size, config, generator)
            self.features = self.entities.features
        else:
            self.encoder = build_encoder(block.roles[0].observation_space, None, generator)
            self.features = self.encoder.features + extra_size

    def forward(self, obs: Tree, extra: Tensor | None, present: Tensor | None) -> Tensor:
        x = obs if self.entities is not None else self.encoder(obs)
        lead = x.shape[:-1]
        parts = [] if extra is None else [extra]
        if self.ids is not None:
            parts.append(self.ids.expand(*lead, -1))  # pyright: ignore[reportCallIssue]
        if self.entities is None:
            return torch.cat([x, *parts], -1) if parts else x
        more = torch.cat(parts, -1).flatten(0, -2) if parts else None
        tokens = self.entities(x.flatten(0, -2), more, None if present is None else present.flatten(0, -2))
        return tokens[:, 0].unflatten(0, lead)


class Readout(nn.Module):
    """Recurrent layer if `config.rnn` asks for one, and linear head of a block's agents: [.., n, F] to [.., n, out]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        head_gain: float = 1.0,
    ):
        super().__init__()
        self.rnn, features = None, in_features
        if config.rnn != "none":
            self.rnn = build_rnn(config.rnn, features, config.rnn_size, None, generator=generator)
            features = config.rnn_size
        self.head = Linear(features, out_features, gain=head_gain, generator=generator, init=config.init)

    def forward(self, x: Tensor, first: Tensor | None, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        """Returns [.., n, out] and the next hidden state; arguments as in `AgentNetwork`."""
        h = x.flatten(0, -2)
        if self.rnn is not None:
            assert first is not None
            h, hidden_state = unroll(self.rnn, h, first, hidden_state)
        return self.head(h).unflatten(0, x.shape[:-1]), hidden_state


class MessageLayers(nn.Module):
    """A body that sees the team, and what it reads of every block's agents: [.., n, F] by block.

    Blocks with inputs of different sizes have a linear layer each, to the units of the first hidden layer. With
    `reads_dead`, dead agents have the mean of the others' features, and a last one says who is alive.
    """

    def __init__(
        self,
        blocks: tuple[Block, ...],
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        extra_sizes: dict[str, int] | None,
        reads_dead: bool,
    ):
        super().__init__()
        self.blocks = blocks
        inputs = {
            block.name: BlockInputs(block, config, generator, extra_size=extra_sizes[block.name] if extra_sizes else 0)
            for block in blocks
        }
        self.inputs, self.entries = ModulesByName(inputs), ModulesByName()
        size = inputs[blocks[0].name].features
        if len(blocks) > 1 and not config.reads_entities:
            size = config.hidden_sizes[0]
            for name, part in inputs.items():
                self.entries[name] = Linear(part.features, size, gain=1.0, generator=generator, init=config.init)
        self.body: TeamBody | UserTeamBody
        if isinstance(config.body, ModuleFactory):
            self.body = UserTeamBody(size, config, config.body, generator)
        else:
            self.body = build_team_body(size, config, generator)
        self.features, self._reads_dead = self.body.features + reads_dead, reads_dead

    def forward(self, obs: dict[str, Tree], extra: dict[str, Tensor] | None) -> dict[str, Tensor]:
        view, parts = view_of(obs), []
        for block, read in zip(self.blocks, self.inputs.values(), strict=True):
            block_extra = None if extra is None else extra[block.name]
            x = read(block.join_obs(obs), block_extra, view.present.get(block.name))
            if block.name in self.entries:
                x = self.entries[block.name](x.flatten(0, -2)).unflatten(0, x.shape[:-1])
            parts.append(x)
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
        lead = x.shape[:-2]
        edges = None if view.edges is None else view.edges.flatten(0, -3)
        features = self.body(x.flatten(0, -3), view.alive.flatten(0, -2), edges).unflatten(0, lead)
        if self._reads_dead:
            features = torch.cat([fill_dead(features, view.alive), view.alive.unsqueeze(-1).to(features.dtype)], -1)
        return {block.name: features[..., block.start : block.stop, :] for block in self.blocks}


class TeamNetwork(nn.Module):
    """A network for every agent of a team: observations by role [.., n, ..] in, [.., n, out] by block out.

    With a body that sees the team, blocks have inputs and heads of their own, and the body is one for all agents. Such
    networks, and those that read entities, also read the `TeamView` that observations contain under `VIEW`.

    Args:
        team: The team.
        outputs: Number of outputs per agent, by block.
        config: Architecture and parameter sharing.
        generator: Source of the initial weights.
        head_gain: Gain of the orthogonal initialization of the output layer.
        extra_sizes: Number of inputs besides observations, by block; None: no further inputs.
        reads_dead: With a body that sees the team, outputs of dead agents depend on what the others observe.
    """

    def __init__(
        self,
        team: TeamSpec,
        outputs: dict[str, int],
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        head_gain: float = 1.0,
        extra_sizes: dict[str, int] | None = None,
        reads_dead: bool = False,
    ):
        super().__init__()
        self.blocks = team_blocks(team, config.share_params)
        self.config, self.num_agents = config, team.n
        self.messages = None
        if config.sees_team:
            self.messages = MessageLayers(
                self.blocks, config, generator, extra_sizes=extra_sizes, reads_dead=reads_dead
            )
        networks: dict[str, BlockNetwork | EntityNetwork | Readout] = {}
        for block in self.blocks:
            extra_size, out_features = 0 if extra_sizes is None else extra_sizes[block.name], outputs[block.name]
            options = {"head_gain": head_gain, "extra_size": extra_size}
            if self.messages is not None:
                features = self.messages.features
                networks[block.name] = Readout(features, out_features, config, generator, head_gain=head_gain)
            elif config.reads_entities:
                networks[block.name] = EntityNetwork(block.roles, block.n, out_features, config, generator, **options)
            else:
                networks[block.name] = BlockNetwork(block, out_features, config, generator, **options)
        self.networks = ModulesByName(networks)

    def initial_hidden_state(self, num_envs: int, device: torch.device) -> HiddenState:
        """Returns zeros by name [B, N, H]; {} for feed-forward networks."""
        return zero_hidden_state(self.config.rnn, (num_envs, self.num_agents, self.config.rnn_size), device)

    def forward(
        self,
        obs: dict[str, Tree],
        first: Tensor | None,
        hidden_state: HiddenState,
        extra: dict[str, Tensor] | None = None,
    ) -> tuple[dict[str, Tensor], HiddenState]:
        """Returns the outputs by block [.., n, out] and the next hidden state.

        Recurrent networks read sequences [T, M, n, ..] with `first` [T, M, N], or one timestep [M, n, ..] with `first`
        [M, N]; `hidden_state` is [M, N, H] by name. `extra` holds further inputs by block [.., n, E].
        """
        outputs, hidden_states = {}, []
        features = None if self.messages is None else self.messages(obs, extra)
        for block, network in zip(self.blocks, self.networks.values(), strict=True):
            block_extra = None if extra is None else extra[block.name]
            block_first, block_state = slice_agents(block, first, hidden_state)
            if features is not None:
                outputs[block.name], block_state = network(features[block.name], block_first, block_state)
            elif self.config.reads_entities:
                present = view_of(obs).present.get(block.name)
                outputs[block.name], block_state = network(
                    block.join_obs(obs), block_first, block_state, block_extra, present
                )
            else:
                outputs[block.name], block_state = network(block.join_obs(obs), block_first, block_state, block_extra)
            hidden_states.append(block_state)
        return outputs, join_hidden_states(hidden_states)


def observation_network(team: TeamSpec, config: NetworkConfig, generator: torch.Generator) -> TeamNetwork | None:
    """Returns a network that encodes observations for critics that also read actions, so that no agent reads actions
    from messages; None if `config` has no body that reads a `TeamView`. It has no recurrent layer.
    """
    if not config.reads_view:
        return None
    outputs = {block.name: config.hidden_sizes[-1] for block in team_blocks(team, config.share_params)}
    return TeamNetwork(team, outputs, replace(config, rnn="none", obs_agent_id=False, part="critic"), generator)


class PooledTeam(nn.Module):
    """Input of a centralized network [.., D]: the mean of the features of agents that are alive, and a state.

    It replaces `CentralEncoder` for bodies that see the team. Source: Nayak et al. 2023 (InforMARL), section 3.
    """

    def __init__(self, network: TeamNetwork, state_size: int):
        super().__init__()
        self.network = network
        self.features = network.config.hidden_sizes[-1] + state_size

    def forward(self, obs: dict[str, Tree], state: Tensor | None) -> Tensor:
        features = join_blocks(self.network(obs, None, {})[0], self.network.blocks, -2)
        alive = view_of(obs).alive.unsqueeze(-1)
        mean = torch.where(alive, features, 0.0).sum(-2) / alive.sum(-2).clamp(min=1)
        return mean if state is None else torch.cat([mean, state], -1)


class CentralEncoder(nn.Module):
    """Input of a centralized network as one vector [.., D].

    The parts are the joint observation of the team, the observations of other teams, and the environment's state.

    Args:
        team: The team.
        inputs: Parts of the input.
        generator: Source of the initial weights of image encoders.
    """

    def __init__(self, team: TeamSpec, inputs: CentralInputs, generator: torch.Generator):
        super().__init__()
        roles = (*(team.roles if inputs.joint_obs else ()), *inputs.other_roles)
        encoders = {role.name: build_encoder(role.observation_space, None, generator) for role in roles}
        self.encoders, self._roles = ModulesByName(encoders), tuple(encoders)
        self.features = inputs.state_size + sum(encoders[role.name].features * role.n for role in roles)

    def forward(self, obs: dict[str, Tree], state: Tensor | None) -> Tensor:
        parts = [
            encode(obs[role]).flatten(-2) for role, encode in zip(self._roles, self.encoders.values(), strict=True)
        ]
        if state is not None:
            parts.append(state)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def slice_agents(block: Block, first: Tensor | None, hidden_state: HiddenState) -> tuple[Tensor | None, HiddenState]:
    """Returns the block's part of `first` [.., N] and of a hidden state by name [M, N, H]."""
    if first is None and not hidden_state:
        return None, hidden_state
    if block.n == (next(iter(hidden_state.values())).shape[1] if first is None else first.shape[-1]):
        return first, hidden_state  # the team's only block
    agents = slice(block.start, block.stop)
    return (
        None if first is None else first[..., agents],
        {name: value[:, agents] for name, value in hidden_state.items()},
    )


def join_hidden_states(by_block: list[HiddenState]) -> HiddenState:
    """Concatenates the blocks' hidden states along the agent axis."""
    if len(by_block) == 1:
        return by_block[0]
    return {name: torch.cat([part[name] for part in by_block], 1) for name in by_block[0]}


def join_blocks(parts: dict[str, Tensor], blocks: Sequence[Block], dim: int) -> Tensor:
    """Concatenates the blocks' tensors along the agent axis `dim`."""
    if len(blocks) == 1:
        return parts[blocks[0].name]
    return torch.cat([parts[block.name] for block in blocks], dim)


def join_choices(parts: dict[str, Tensor], blocks: Sequence[Block], fill: float) -> Tensor:
    """Concatenates the blocks' values by choice [.., n, A of the block] to [.., N, A], padded with `fill`."""
    width = max(part.shape[-1] for part in parts.values())
    padded = {
        name: part if part.shape[-1] == width else nn.functional.pad(part, (0, width - part.shape[-1]), value=fill)
        for name, part in parts.items()
    }
    return join_blocks(padded, blocks, -2)


class RunningScale(nn.Module):
    """Scales a vector by running mean and standard deviation, and clips it to [-clip, clip]."""

    def __init__(self, size: int, device: torch.device, clip: float = 10.0):
        super().__init__()
        self.clip = clip
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(size, device=device))
        self.register_buffer("std", torch.ones(size, device=device))

    def set(self, moments: Moments) -> None:
        """Sets mean and standard deviation, in place, since CUDA graphs read them where they are."""
        for name, value in zip(("mean", "std"), mean_and_std(moments), strict=True):
            self.get_buffer(name).copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x [.., size] on the scale of the statistics."""
        return ((x - self.mean) / self.std).clamp(-self.clip, self.clip)


ReadView = Callable[[dict[str, Tree], Tensor | None], TeamView]
"""Returns the view of observations by role [.., n, ..], with `alive` [.., N] bool or None."""


class ObservationNormalizer:
    """Normalizes vector observations by their running mean and standard deviation and clips them to [-clip, clip].

    Blocks have statistics of their own; images, and observations of roles in no block, are left unchanged.

    Args:
        blocks: The blocks whose observations are normalized.
        device: Device of the statistics.
        clip: Largest absolute value.
        view: Reads what networks that see the team need besides observations, see `ViewReader`; None if there are none.

    Attributes:
        scales: The scale of each block, whose buffers normalization reads.
    """

    def __init__(
        self, blocks: tuple[Block, ...], device: torch.device, clip: float = 10.0, *, view: ReadView | None = None
    ):
        self._view = view
        self._blocks = tuple(block for block in blocks if len(obs_shape(block)) == 1)
        self._device, sizes = device, {block.name: obs_shape(block)[0] for block in self._blocks}
        self._moments: dict[str, Moments] = {name: initial_moments(size, device) for name, size in sizes.items()}
        self.scales = ModulesByName({name: RunningScale(size, device, clip) for name, size in sizes.items()})

    def __call__(self, obs: dict[str, Tree], alive: Tensor | None = None) -> dict[str, Tree]:
        """Returns observations by role [.., n, D] as networks read them: normalized, and for networks that see the team
        with a `TeamView`, which needs `alive` [.., N] bool if agents can die.
        """
        normalized = dict(obs)
        if self._view is not None:
            normalized[VIEW] = self._view(obs, alive)
        for block, scale in zip(self._blocks, self.scales.values(), strict=True):
            for role in block.roles:
                normalized[role.name] = scale(obs[role.name])
        return normalized

    def of_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        """Returns the observations of a rollout [T + 1, B, n, D] as networks read them."""
        return self(rollout.obs, None if self._view is None else present_agents(rollout))

    def update(self, obs: dict[str, Tree], valid: Tensor, reduction: Reduction | None = None) -> None:
        """Adds observations by role [.., n, D] to the statistics where `valid` [.., N] is True."""
        for block in self._blocks:
            block_valid = valid[..., block.start : block.stop]
            self._moments[block.name] = update_moments(
                self._moments[block.name], block.join_obs(obs), block_valid, reduction, kernels=switch.on
            )
        self._set_scales()

    def _set_scales(self) -> None:
        for moments, scale in zip(self._moments.values(), self.scales.values(), strict=True):
            scale.set(moments)  # pyright: ignore[reportCallIssue]

    def state_dict(self) -> dict[str, Any]:
        return self._moments

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments = {
            name: {key: value.to(self._device) for key, value in state[name].items()} for name in self._moments
        }
        self._set_scales()


def obs_shape(block: Block) -> tuple[int, ...]:
    """Returns the shape of an agent's observation; () if it is not one array."""
    return block.roles[0].observation_space.shape or ()
