"""The two-step game: the first agent chooses which matrix game both play."""

from __future__ import annotations

from typing import final

import torch
from pydantic import BaseModel, ConfigDict

from coterie.envs.matrix.game import Cooperative, Game


class TwoStepConfig(BaseModel):
    """Settings of matrix/two_step."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    last_action: bool = False
    """Agents see what both chose in the step before; zeros in the first."""


@final
class TwoStep(Cooperative):
    """Choice 0 of agent 0 leads to 2A, where everything pays 7; its choice 1 to 2B, [[0, 1], [1, 8]].

    Agents observe which of the three states they are in. Least squares of a sum values 2B at 6.5 and takes the 7; a
    monotonic mixer represents 8. Source: Rashid et al. 2018, section 5.
    """

    Config = TwoStepConfig

    def __init__(self, config: TwoStepConfig, with_state: bool = False):
        self.config = config
        tables = torch.tensor([[0.0, 0, 0, 0], [7, 7, 7, 7], [0, 1, 1, 8]])
        game = Game(
            name="two_step",
            choices=("0", "1"),
            players=2,
            payoff=tables[..., None],
            onward=torch.tensor([[1, 1, 2, 2], [1, 1, 1, 1], [2, 2, 2, 2]]),
            tally=(tables == 8).float(),
            metric="optimal",
            limit=2,
            ends=True,
            last_action=config.last_action,
            stages=("1", "2A", "2B"),
        )
        super().__init__(game, with_state)
