"""Checks of algorithms from outside Coterie after they are constructed."""

from __future__ import annotations

from coterie.algos.algorithm import Algorithm
from coterie.core.errors import UserError
from coterie.policies.base import Policy


def require_complete(algorithm: Algorithm, name: str) -> None:
    """Checks that an algorithm has the attributes of the interface.

    Args:
        algorithm: The algorithm.
        name: Its name, `package.module:Class`.

    Raises:
        UserError: If `policy`, `rollout_length` or the policy's state is missing.
    """
    prefix = f"algorithm '{name}'"
    policy = getattr(algorithm, "policy", None)
    if not isinstance(policy, Policy):
        found = "no policy" if policy is None else f"a policy of type {type(policy).__name__}"
        raise UserError(f"{prefix}: its constructor set {found}. Set self.policy to a coterie.policies.base.Policy.")
    length = getattr(algorithm, "rollout_length", None)
    if not isinstance(length, int) or length < 1:
        raise UserError(
            f"{prefix}: its constructor set rollout_length to {length}. Set self.rollout_length = "
            "context.rollout_length or config.rollout_length."
        )
    state = algorithm.state_dict()
    if not isinstance(state, dict) or "policy" not in state:
        raise UserError(
            f"{prefix}: state_dict() has no entry 'policy', which evaluations load. Add "
            "'policy': self.policy.state_dict()."
        )
