"""Acting by traces: the operations of a policy at a timestep, without the Python code that leads to them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.kernels.tracing import CannotTraceError, Trace, equal, trace
from coterie.nets.user_body import have_user_modules, is_ours
from coterie.policies.base import Mode, Policy

_MOST_SIZES = 4
"""Numbers of environments for which a policy is traced; with more it acts without traces."""

_Actions = tuple[dict[str, Action], HiddenState, dict[str, Any]]
"""Results of `Policy.act`."""


def can_be_traced(policy: Policy) -> bool:
    """True if the policy promises by `cuda_graphs` what a trace needs, itself and not by its base class only, and
    contains no networks of a user, who promised nothing."""
    kind = type(policy)
    if not policy.cuda_graphs or not (is_ours(kind) or "cuda_graphs" in vars(kind)):
        return False
    return not have_user_modules(policy.networks)


@dataclass
class _Traced:
    """Acting in one mode for one number of environments.

    Attributes:
        trace: None if acting cannot be traced.
        act: Acts in this rollout. None before its first timestep, or before the trace is checked.
        is_checked: True if the trace once had the same results as the policy.
    """

    trace: Trace | None
    act: Callable[..., _Actions] | None = None
    is_checked: bool = False


class TracedActor:
    """Acts like a policy that can be traced.

    The first timestep is traced, the second one is computed with and without the trace. If the results differ in any
    bit, or there is no trace, the policy acts as usual.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Policy):
        self.team, self.policy = policy.team, policy
        self._traced: dict[tuple[Mode, int], _Traced] = {}
        self._constants, self._tensors = self._present()

    def _present(self) -> tuple[Hashable, list[int]]:
        """Returns the values that traces depend on, and the identities of the networks' tensors."""
        networks = self.policy.networks
        tensors = [id(x) for network in networks for x in (*network.parameters(), *network.buffers())]
        return self.policy.constants, tensors

    def start_rollout(self) -> None:
        """Discards traces of other networks or constants, and what they computed from parameters."""
        constants, tensors = self._present()
        if constants != self._constants or tensors != self._tensors:
            self._constants, self._tensors = constants, tensors
            self._traced.clear()
        for traced in self._traced.values():
            traced.act = None

    def act(self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode) -> _Actions:
        """See `Policy.act`."""
        traced = self._traced.get((mode, len(timestep.first)))
        if traced is not None and traced.act is not None:
            return traced.act(timestep, hidden_state, noise)
        return self._act_first(traced, timestep, hidden_state, noise, mode)

    def _act_first(
        self, traced: _Traced | None, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> _Actions:
        """Acts at the first timesteps of traces and of rollouts."""
        inputs = (timestep, hidden_state, noise)
        if traced is None and len(self._traced) < _MOST_SIZES:
            traced, results = self._trace(*inputs, mode)
            self._traced[mode, len(timestep.first)] = traced
            return results
        if traced is None or traced.trace is None:
            return self.policy.act(*inputs, mode)
        act = traced.trace()
        results = act(*inputs)
        if not traced.is_checked:
            expected = self.policy.act(*inputs, mode)
            if not equal(results, expected):
                traced.trace = None
                return expected
            traced.is_checked = True
        traced.act = act
        return results

    def _trace(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[_Traced, _Actions]:
        def act(timestep: Timestep, hidden_state: HiddenState, noise: Tree) -> _Actions:
            return self.policy.act(timestep, hidden_state, noise, mode)

        try:
            found, results = trace(act, timestep, hidden_state, noise)
        except CannotTraceError as refusal:
            return _Traced(None), refusal.results
        return _Traced(found), results
