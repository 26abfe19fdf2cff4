"""Recurrent Q-networks on sequences from a replay buffer, with stored hidden states and burn-in.

Source: Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.algos.replay.buffer import STEP_FIELDS, TIMESTEP_FIELDS
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, Rollout
from coterie.functional.returns import present_agents
from coterie.nets.mixers import TeamQNetwork
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy

Q = dict[str, Tensor]
Inputs = tuple[dict[str, Tree], Tensor | None, HiddenState, dict[str, Tensor] | None]
"""Arguments of a `TeamNetwork`: observations, `first`, hidden state and further inputs."""


class RecurrentReader:
    """Evaluates recurrent Q-networks on sequences; all timesteps after the burn-in are learned from.

    Args:
        policy: The policy, which prepares the inputs of the networks.
        burn_in: Timesteps that only warm up the hidden state.
        online: Online networks by name.
        target: Target networks by name.
    """

    def __init__(
        self,
        policy: EpsilonGreedyPolicy,
        burn_in: int,
        online: dict[str, TeamQNetwork],
        target: dict[str, TeamQNetwork],
    ):
        self._policy, self._burn_in, self._online, self._target = policy, burn_in, online, target

    def start(self, rollout: Rollout) -> tuple[Rollout, dict[str, Inputs], dict[str, Inputs]]:
        """Returns the sequences without burn-in, and the inputs of online and target networks, by name.

        The stored hidden state is the one of the network that acted. That of Q* starts at zero.
        """
        stored = dict(rollout.hidden_state) or self._policy.initial_hidden_state(rollout.num_envs)
        hidden_states = {"value": stored}
        if "central" in self._online:
            hidden_states["central"] = {name: torch.zeros_like(x) for name, x in stored.items()}
            if "last" in stored:
                hidden_states["central"]["last"] = stored["last"]
        online = target = hidden_states
        if self._burn_in:
            warm_up, rollout = _split_timesteps(rollout, self._burn_in)
            online, target = (
                {name: self._warmed_up(value, warm_up, hidden_states[name]) for name, value in networks.items()}
                for networks in (self._online, self._target)
            )
        obs, first, state, extra = self._policy.network_inputs(
            rollout.obs, rollout.action, rollout.first, online["value"], present_agents(rollout)
        )

        def inputs(hidden_states: dict[str, HiddenState]) -> dict[str, Inputs]:
            """All networks read the same besides their hidden states."""
            return {
                network: (obs, first, {name: hidden[name] for name in state}, extra)
                for network, hidden in hidden_states.items()
            }

        return rollout, inputs(online), inputs(target)

    @torch.no_grad()
    def _warmed_up(self, value: TeamQNetwork, rollout: Rollout, hidden_state: HiddenState) -> HiddenState:
        """Hidden state of a network after the burn-in."""
        inputs = self._policy.network_inputs(rollout.obs, rollout.action, rollout.first, hidden_state, rollout.alive)
        after = dict(value.net(*inputs)[1])
        if self._policy.reads_last_action:
            last = {name: Action(x.discrete[-1]) for name, x in rollout.action.items() if x.discrete is not None}
            after["last"] = self._policy.encode_last(last)
        return after

    def online(self, value: TeamQNetwork, inputs: Inputs) -> tuple[Q, Q]:
        """Returns Q of all timesteps but the last, and of all but the first without gradient."""
        q, _ = value.net(*inputs)
        return {name: x[:-1] for name, x in q.items()}, {name: x[1:].detach() for name, x in q.items()}

    def learned(self, value: TeamQNetwork, inputs: Inputs) -> Q:
        """Returns Q of the timesteps to learn from."""
        return {name: x[:-1] for name, x in value.net(*inputs)[0].items()}

    def successors(self, value: TeamQNetwork, inputs: Inputs) -> Q:
        """Returns Q of all timesteps but the first."""
        return {name: x[1:] for name, x in value.net(*inputs)[0].items()}


def _split_timesteps(rollout: Rollout, length: int) -> tuple[Rollout, Rollout]:
    """Splits a rollout: its first `length` timesteps, without one to bootstrap from, and the rest."""

    def part(names: tuple[str, ...], index: slice) -> dict[str, Any]:
        return {name: tree_map(lambda x: x[index], value) for name, value in vars(rollout).items() if name in names}

    names = TIMESTEP_FIELDS + STEP_FIELDS
    return replace(rollout, **part(names, slice(length))), replace(rollout, **part(names, slice(length, None)))
