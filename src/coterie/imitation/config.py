"""Settings of imitation. They import nothing heavy: every run's configuration has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

DemosPath = Annotated[Path, AfterValidator(Path.absolute)]
"""A file of demonstrations, wherever the run is resumed from."""


class ImitationConfig(BaseModel):
    """How a team's policy is fitted to what others did, before the run, beside its learner, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    demos: DemosPath | None = None
    """File of demonstrations (coterie record); null: no imitation."""
    steps: int = Field(default=1000, ge=0, le=10**9)
    """Gradient steps before the first window; 0: no warm start."""
    epochs: float | None = Field(default=None, gt=0, le=10**6)
    """Passes over the demonstrations before the first window, in place of `steps`."""
    batch: int = Field(default=256, ge=1, le=1_000_000)
    """Rows of a gradient step; policies with a memory read whole episodes, as many as come to so many rows."""
    lr: float | None = Field(default=None, gt=0, lt=1)
    """Adam's learning rate; the algorithm's if not given."""
    strength: float = Field(default=0.0, ge=0, le=1000)
    """Beside the learner: the learning rate of the steps after every window as a share of `lr`; 0: none are taken."""
    updates: int = Field(default=1, ge=1, le=100_000)
    """Gradient steps after every window."""
    schedule: Literal["constant", "linear"] = "linear"
    """How the strength goes from the start to nothing."""
    until: float = Field(default=0.5, gt=0, le=1)
    """Share of the run after which nothing of the strength is left."""
    fit_spread: bool = False
    """Policies of Gaussian numbers fit their spread too; if not, only their means, and go on exploring as before. A
    spread that is fitted to a script goes to its lower bound.
    """
    margin: float = Field(default=0.8, gt=0)
    """Q learning: by how much the Q of what was done is to exceed that of every other choice."""

    def warm_steps(self, rows: int) -> int:
        """Gradient steps of the warm start on demonstrations of so many rows."""
        return self.steps if self.epochs is None else max(1, round(self.epochs * rows / self.batch))

    def strength_at(self, progress: float) -> float:
        """What is left of the strength at a share of the run."""
        if progress >= self.until:
            return 0.0
        return self.strength if self.schedule == "constant" else self.strength * (1 - progress / self.until)
