"""Type of the setting `kernels`, which configurations use without PyTorch."""

from __future__ import annotations

from typing import Literal

Setting = Literal["auto", "on", "off"]
