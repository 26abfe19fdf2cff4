"""The setting `cuda_graphs`: rollouts, targets and gradient steps are captured as CUDA graphs."""

from __future__ import annotations

from typing import Literal

Setting = Literal["off", "on"]

enabled = False
"""True while learners and collectors that can capture their operations do so. Only this module assigns to it."""


def configure(setting: Setting) -> None:
    """Turns the capture of rollouts, targets and gradient steps in this process on or off."""
    global enabled
    enabled = setting == "on"
