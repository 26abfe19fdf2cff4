"""Acting by a kernel: of policies with discrete actions, whose agents share their parameters; and rollouts by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core import precision
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.worlds.world import WorldEnv
from coterie.kernels.particle import StepMemory
from coterie.kernels.rollout import Acted, Actor, Inputs, Layers, PreparedActor, has_kernel
from coterie.nets.layers import MLP, Linear, VectorEncoder
from coterie.nets.recurrent import GRU
from coterie.nets.team import BlockNetwork, ObservationNormalizer, RunningScale
from coterie.policies.base import Mode, Policy
from coterie.policies.epsilon_greedy import LAST, EpsilonGreedyPolicy
from coterie.policies.stochastic import StochasticPolicy
from coterie.training.trajectory import StackedTrajectory


class KernelActor:
    """Acts like a policy, with the same results.

    Args:
        policy: The policy.
        actor: It as the kernel reads it, see `start_rollout`.
    """

    def __init__(self, policy: EpsilonGreedyPolicy | StochasticPolicy, actor: Actor):
        self.team, self.policy, self._role = policy.team, policy, policy.team.roles[0].name
        self._addresses: list[int] = []
        self._prepared: dict[tuple[Any, ...], PreparedActor | None] = {}
        self.start_rollout(actor)

    def start_rollout(self, actor: Actor) -> None:
        """Sets the policy's present tensors and numbers."""
        addresses = [x.data_ptr() for x in actor.tensors]
        if addresses != self._addresses:
            self._prepared, self._addresses = {}, addresses
        self._actor = actor

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Any]]:
        """See `Policy.act`."""
        prepared = self.prepared(timestep)
        if prepared is None:
            return self.policy.act(timestep, hidden_state, noise, mode)
        acted = prepared(self._inputs(timestep, hidden_state), self._noise([noise], mode))
        extras = {} if acted.log_prob is None else {"log_prob": acted.log_prob[0]}
        return {self._role: Action(acted.action[0])}, self._hidden_state(acted), extras

    def advance(
        self, world: StepMemory, timestep: Timestep, hidden_state: HiddenState, noise: Sequence[Tree], mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Any]]:
        """Acts and steps as often as `world` says. Returns what `act` does, with a time axis."""
        prepared = self.prepared(timestep)
        assert prepared is not None
        acted = prepared(self._inputs(timestep, hidden_state), self._noise(noise, mode), world)
        extras = {} if acted.log_prob is None else {"log_prob": acted.log_prob}
        return {self._role: Action(acted.action)}, self._hidden_state(acted), extras

    def prepared(self, timestep: Timestep) -> PreparedActor | None:
        """Returns the kernel for timesteps of this size; None if there is none."""
        obs = timestep.obs[self._role]
        if not isinstance(obs, Tensor):
            return None
        key = (obs.dtype, *obs.shape)
        if key not in self._prepared:
            self._prepared[key] = PreparedActor(self._actor, obs) if has_kernel(self._actor, obs) else None
        prepared = self._prepared[key]
        if prepared is not None:
            prepared.epsilon = self._actor.epsilon
        return prepared

    def _inputs(self, timestep: Timestep, state: HiddenState) -> Inputs:
        mask = timestep.action_mask.get(self._role)
        return Inputs(timestep.obs[self._role], timestep.first, mask, state.get("h"), state.get(LAST))

    def _noise(self, noise: Sequence[Tree], mode: Mode) -> list[Tensor] | None:
        if mode == "greedy":
            return None
        block = self.policy.blocks[0].name
        return [(step[block] if isinstance(step, dict) else step).contiguous() for step in noise]

    def _hidden_state(self, acted: Acted) -> HiddenState:
        found = {"h": acted.h, LAST: acted.last}
        return {name: x for name, x in found.items() if x is not None}


def kernel_actor(policy: Policy, known: Any = None) -> KernelActor | None:
    """Returns a policy that acts by the kernel in a rollout, `known` if that is of the same policy; None if the policy
    has parts that the kernel has not.
    """
    if type(policy) not in (EpsilonGreedyPolicy, StochasticPolicy) or precision.reduced:
        return None
    assert isinstance(policy, EpsilonGreedyPolicy | StochasticPolicy)
    (block, *others), normalizer = policy.blocks, policy.obs_normalizer
    block_network, config = next(iter(policy.net.networks.values())), policy.net.config
    if others or len(block.roles) > 1 or block.action_spec.continuous or config.view != "none":
        return None
    if not isinstance(block_network, BlockNetwork) or type(normalizer) is not ObservationNormalizer:
        return None
    network, q_values = block_network.network, isinstance(policy, EpsilonGreedyPolicy)
    body, rnn = network.body, network.rnn
    if not isinstance(block_network.encoder, VectorEncoder) or type(body) is not MLP or not body.layers:
        return None
    if network.sets is not None or not isinstance(rnn, GRU | None) or (config.obs_last_action and not q_values):
        return None
    scale = next(iter(normalizer.scales.values()), None)
    actor = Actor(
        body=_layers(body, network.head if rnn is None else None),
        rnn=None if rnn is None else (rnn.input_weight, rnn.weight, rnn.bias, rnn.recurrent_bias),
        head=None if rnn is None else Layers([network.head.weight], [network.head.bias]),
        choices=block.action_spec.choices,
        categorical=not q_values,
        scale=(scale.mean, scale.std, scale.clip) if isinstance(scale, RunningScale) else None,
        ids=block_network.ids is not None,
        last_action=config.obs_last_action,
        epsilon=policy.epsilon if isinstance(policy, EpsilonGreedyPolicy) else 0.0,
    )
    if not isinstance(known, KernelActor) or known.policy is not policy:
        return KernelActor(policy, actor)
    known.start_rollout(actor)
    return known


def _layers(body: MLP, head: Linear | None) -> Layers:
    layers: list[Any] = [*body.layers] if head is None else [*body.layers, head]
    norms: list[Any] = [] if body.norms is None else [*body.norms]
    return Layers(
        [layer.weight for layer in layers],
        [layer.bias for layer in layers],
        [(norm.weight, norm.bias) for norm in norms],
        body.activation_name,
        len(body.layers),
    )


def collect_by_kernel(
    env: VectorEnv,
    actors: Mapping[str, Any],
    timestep: Timestep,
    hidden_state: dict[str, Tree],
    *,
    noise: dict[str, list[Tree]],
    modes: dict[str, Mode],
) -> StackedTrajectory | None:
    """Does what `collect` does in a built-in world by one call of the kernel; None if it cannot."""
    if len(actors) != 1 or not isinstance(env, WorldEnv) or timestep.action_mask:
        return None
    ((name, actor),) = actors.items()
    if not isinstance(actor, KernelActor) or not actor.team.is_entire_env or actor.prepared(timestep) is None:
        return None
    with torch.inference_mode(False), torch.no_grad():
        world = env.several_steps(len(noise[name]))
        if world is None:
            return None
        actions, state, extras = actor.advance(world.arguments, timestep, hidden_state[name], noise[name], modes[name])
        timesteps, steps, metrics = env.take_several(world, timestep)
        last = tree_map(lambda x: x[-1], timesteps)
    return StackedTrajectory(timesteps, last, steps, metrics, actions, {name: extras}, {name: state})
