"""Settings of behavior cloning. Loading them imports no heavy package, because every configuration includes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.config.needs import Needs

DemosPath = Annotated[Path, AfterValidator(Path.absolute)]
"""File of demonstrations, made absolute so that a run can be resumed from any directory."""


class ImitationConfig(BaseModel):
    """Behavior cloning of a team's policy on demonstrations: before the run, after each rollout, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    demos: DemosPath | None = None
    """File of demonstrations (coterie record); null: no behavior cloning."""
    steps: Annotated[int, Needs("epochs=null")] = Field(default=1000, ge=0, le=10**9)
    """Gradient steps of pretraining, before the first rollout; 0: no pretraining."""
    epochs: float | None = Field(default=None, gt=0, le=10**6)
    """Epochs of pretraining, i.e. passes over the demonstrations; replaces `steps`."""
    batch_size: int = Field(default=256, ge=1, le=1_000_000)
    """Timesteps per gradient step. Recurrent policies use as many whole episodes as amount to this number,
    and at least one.
    """
    lr: float | None = Field(default=None, gt=0, lt=1)
    """Learning rate of Adam. Default: the algorithm's."""
    weight: float = Field(default=0.0, ge=0, le=1000)
    """Learning rate of the gradient steps after each rollout, as a multiple of `lr`; 0: no such steps."""
    gradient_steps: Annotated[int, Needs("weight!=0")] = Field(default=1, ge=1, le=100_000)
    """Gradient steps after each rollout."""
    weight_schedule: Annotated[Literal["constant", "linear"], Needs("weight!=0")] = "linear"
    """Schedule of `weight` until `end_fraction`: constant, or a linear decay to 0."""
    end_fraction: Annotated[float, Needs("weight!=0")] = Field(default=0.5, gt=0, le=1)
    """Fraction of the run after which `weight` is 0."""
    fit_std: Annotated[bool, Needs("gaussian_actions=true")] = False
    """Fit the standard deviation of Gaussian policies as well. If false, only the mean is fitted and exploration does
    not change. On demonstrations of a deterministic script the standard deviation decreases to its lower bound.
    """
    margin: Annotated[float, Needs("q_values=true")] = Field(default=0.8, gt=0, le=10**6)
    """Q-learning: margin by which the Q-value of the demonstrated action must exceed those of all other actions."""

    def pretraining_steps(self, timesteps: int) -> int:
        """Returns the gradient steps of pretraining on demonstrations of that many timesteps."""
        return self.steps if self.epochs is None else max(1, round(self.epochs * timesteps / self.batch_size))

    def weight_at(self, progress: float) -> float:
        """Returns the weight at a fraction of the run."""
        if progress >= self.end_fraction:
            return 0.0
        return self.weight if self.weight_schedule == "constant" else self.weight * (1 - progress / self.end_fraction)
