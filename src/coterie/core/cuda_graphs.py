"""The setting `cuda_graphs`: gradient steps are captured as CUDA graphs and replayed."""

from __future__ import annotations

from typing import Literal

Setting = Literal["off", "on"]

enabled = False
"""True while learners that can capture their gradient steps do so. Only this module assigns to it."""


def configure(setting: Setting) -> None:
    """Turns the capture of gradient steps in this process on or off."""
    global enabled
    enabled = setting == "on"
