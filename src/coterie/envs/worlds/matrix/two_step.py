"""The two-step game: the first agent chooses which matrix game both play."""

from __future__ import annotations

from typing import final

import torch
from pydantic import BaseModel, ConfigDict

from coterie.envs.worlds.matrix.matrix_game import CooperativeGame, MatrixGame


class TwoStepConfig(BaseModel):
    """Settings of matrix/two_step."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    last_action: bool = False
    """Observe the choices of both agents in the previous step; zeros in the first."""


@final
class TwoStep(CooperativeGame):
    """Choice 0 of agent 0 leads to state 2A, where every payoff is 7; its choice 1 to state 2B, [[0, 1], [1, 8]].

    Agents observe which of the three states they are in. A least-squares fit of a sum of individual values estimates 2B
    at 6.5 and settles for 7; a monotonic mixer represents 8. Source: Rashid et al. 2018, section 5.
    """

    Config = TwoStepConfig

    def __init__(self, config: TwoStepConfig, with_state: bool = False):
        self.config = config
        tables = torch.tensor([[0.0, 0, 0, 0], [7, 7, 7, 7], [0, 1, 1, 8]])
        game = MatrixGame(
            name="two_step",
            choices=("0", "1"),
            players=2,
            payoff=tables[..., None],
            next_stage=torch.tensor([[1, 1, 2, 2], [1, 1, 1, 1], [2, 2, 2, 2]]),
            metric_increment=(tables == 8).float(),
            metric="optimal",
            episode_limit=2,
            terminate_at_limit=True,
            last_action=config.last_action,
            stages=("1", "2A", "2B"),
        )
        super().__init__(game, with_state)
