"""Weighted QMIX: QMIX whose targets come from an unrestricted Q* and whose loss weights joint actions.

Source: Rashid et al. 2020, Weighted QMIX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.algos.recurrent_q import Inputs
from coterie.core.types import Timestep
from coterie.functional.policy_gradient import value_error
from coterie.functional.statistics import Reduction, masked_mean
from coterie.nets.mixers import Choices, TeamQNetwork

Q = dict[str, Tensor]


def weighted_td_loss(
    q: Tensor, central_q: Tensor, target: Tensor, *, valid: Tensor, weight: Tensor, importance: Tensor,
    huber_delta: float | None, reduction: Reduction | None = None,
) -> Tensor:  # fmt: skip
    """Loss of weighted QMIX, of Q_tot and of the unrestricted Q* together.

        L = sum valid i (w l(Q_tot - y) + l(Q* - y)) / sum valid,    l(e) = e^2 / 2, linear beyond |e| = huber_delta

    Source: Rashid et al. 2020, eq. 5 and 6.

    Args:
        q: Q_tot of the actions taken [T, S].
        central_q: Q* of the actions taken [T, S].
        target: y [T, S], without gradient.
        valid: [T, S] bool, entries that are learned from.
        weight: w, weights of the joint actions [T, S].
        importance: i, importance weights of the sequences [S].
        huber_delta: Error beyond which the loss is linear; None for the squared error.
        reduction: Processes whose entries the mean is over; None for this one's.

    Returns:
        The loss [].
    """
    error = value_error(q, target, huber_delta) * weight + value_error(central_q, target, huber_delta)
    return masked_mean(error * importance.view(1, -1), valid, reduction)


def optimistic_weights(q: Tensor, target: Tensor, alpha: float) -> Tensor:
    """Weights of OW-QMIX: 1 where Q_tot < y, else alpha. Source: Rashid et al. 2020, eq. 7."""
    return torch.where(q < target, 1.0, alpha)


def central_weights(is_greedy: Tensor, target: Tensor, greedy_central_q: Tensor, alpha: float) -> Tensor:
    """Weights of CW-QMIX: 1 where the joint action is greedy or y > Q*(greedy joint action), else alpha.

    Source: Rashid et al. 2020, section 5.1.
    """
    return torch.where(is_greedy | (target > greedy_central_q), 1.0, alpha)


class CentralQ:
    """The unrestricted Q* of weighted QMIX.

    Args:
        value: Networks of Q*.
        target_value: Its target networks.
        reader: Evaluates networks on sequences.
        evaluate: Returns the team's Q of joint actions, as `QLearning.evaluate`.
        greedy: Returns the greedy actions of Q-values at some timesteps.
        rule: Rule of the weights.
        alpha: Weight of the other joint actions.
    """

    def __init__(
        self,
        value: TeamQNetwork,
        target_value: TeamQNetwork,
        reader: Any,
        *,
        evaluate: Callable[[TeamQNetwork, Q, Choices, Timestep], Tensor],
        greedy: Callable[[Q, Timestep], Choices],
        rule: Literal["none", "optimistic", "central"],
        alpha: float,
    ):
        self.value, self.target_value = value, target_value
        self._reader, self._evaluate, self._greedy, self._rule, self._alpha = reader, evaluate, greedy, rule, alpha

    def next_value(self, inputs: Inputs, actions: Choices, next_timesteps: Timestep) -> Tensor:
        """Returns the target network's Q* of actions at all successors [T, S]."""
        q = self._reader.successors(self.target_value, inputs)
        return self._evaluate(self.target_value, q, actions, next_timesteps)

    def evaluate_batch(
        self, inputs: Inputs, *, q: Q, q_taken: Tensor, target: Tensor, actions: Choices,
        timesteps: Timestep,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Returns Q* and the weights of the joint actions taken, both [T, S].

        Args:
            inputs: Inputs of Q*.
            q: Q-values of the policy's choices at `timesteps`.
            q_taken: Q_tot of the actions taken.
            target: Targets.
            actions: Actions taken.
            timesteps: Timesteps that are learned from.
        """
        central = self._reader.learned(self.value, inputs)
        central_q = self._evaluate(self.value, central, actions, timesteps)
        with torch.no_grad():
            if self._rule == "optimistic":
                return central_q, optimistic_weights(q_taken, target, self._alpha)
            greedy = self._greedy(q, timesteps)
            agreed = self.value.same_actions(greedy, actions) | ~timesteps.alive  # actions of dead agents do not matter
            greedy_q = self._evaluate(self.value, central, greedy, timesteps)
            return central_q, central_weights(agreed.all(-1), target, greedy_q, self._alpha)
