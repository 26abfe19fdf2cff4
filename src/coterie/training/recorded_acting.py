"""Acting by recordings: the operations of a policy at a timestep, without the Python code that leads to them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.kernels.recording import Recording, equal, record
from coterie.policies.base import Mode, Policy

_MOST_SIZES = 4
"""Numbers of environments for which a policy is recorded; with more it acts without recordings."""

_Actions = tuple[dict[str, Action], HiddenState, dict[str, Any]]
"""Results of `Policy.act`."""


@dataclass
class _Recorded:
    """Acting in one mode for one number of environments.

    Attributes:
        recording: None if acting cannot be recorded.
        repeat: Acts in this rollout. None before its first timestep, or before the recording is checked.
        is_checked: True if the recording once had the same results as the policy.
    """

    recording: Recording | None
    repeat: Callable[..., _Actions] | None = None
    is_checked: bool = False


class RecordedActor:
    """Acts like a policy whose `cuda_graphs` is True, which promises what a recording needs.

    The first timestep is recorded, the second one is computed with and without the recording. If the results differ in
    any bit, or there is no recording, the policy acts as usual.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Policy):
        self.team, self.policy = policy.team, policy
        self._recorded: dict[tuple[Mode, int], _Recorded] = {}
        self._constants, self._tensors = self._present()

    def _present(self) -> tuple[Hashable, list[int]]:
        """Returns the values that recordings depend on, and the identities of the networks' tensors."""
        networks = self.policy.networks
        tensors = [id(x) for network in networks for x in (*network.parameters(), *network.buffers())]
        return self.policy.constants, tensors

    def start_rollout(self) -> None:
        """Discards recordings of other networks or constants, and what they computed from parameters."""
        constants, tensors = self._present()
        if constants != self._constants or tensors != self._tensors:
            self._constants, self._tensors = constants, tensors
            self._recorded.clear()
        for recorded in self._recorded.values():
            recorded.repeat = None

    def act(self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode) -> _Actions:
        """See `Policy.act`."""
        recorded = self._recorded.get((mode, len(timestep.first)))
        if recorded is not None and recorded.repeat is not None:
            return recorded.repeat(timestep, hidden_state, noise)
        return self._act_first(recorded, timestep, hidden_state, noise, mode)

    def _act_first(
        self, recorded: _Recorded | None, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> _Actions:
        """Acts at the first timesteps of recordings and of rollouts."""
        inputs = (timestep, hidden_state, noise)
        if recorded is None and len(self._recorded) < _MOST_SIZES:
            recorded, results = self._record(*inputs, mode)
            self._recorded[mode, len(timestep.first)] = recorded
            return results
        if recorded is None or recorded.recording is None:
            return self.policy.act(*inputs, mode)
        repeat = recorded.recording()
        results = repeat(*inputs)
        if not recorded.is_checked:
            expected = self.policy.act(*inputs, mode)
            if not equal(results, expected):
                recorded.recording = None
                return expected
            recorded.is_checked = True
        recorded.repeat = repeat
        return results

    def _record(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[_Recorded, _Actions]:
        def act(timestep: Timestep, hidden_state: HiddenState, noise: Tree) -> _Actions:
            return self.policy.act(timestep, hidden_state, noise, mode)

        try:
            recording, results = record(act, timestep, hidden_state, noise)
        except Exception:
            return _Recorded(None), self.policy.act(timestep, hidden_state, noise, mode)
        return _Recorded(recording), results
