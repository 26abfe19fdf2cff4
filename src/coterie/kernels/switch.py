"""The setting `kernels`: True or False for this process, read by the code that has a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.errors import UserError
from coterie.kernels import native
from coterie.kernels.build import KernelsUnavailableError
from coterie.kernels.setting import Setting

AUTO_IS_ON = True
"""The choice that `kernels=auto` stands for where the kernels can be built."""

on = False
"""True while code that has a kernel calls it. Only this module assigns to it."""


@dataclass(frozen=True)
class Choice:
    """The use of kernels by a process.

    Attributes:
        on: True if they are used.
        reason: Why they are off although they were asked for; empty otherwise.
    """

    on: bool
    reason: str = ""

    def describe(self) -> str:
        """Returns `on`, `off`, or `off (reason)`."""
        return "on" if self.on else f"off ({self.reason})" if self.reason else "off"


def configure(setting: Setting, device: str = "cpu", *, before: bool | None = None) -> Choice:
    """Turns the kernels of this process on or off.

    Args:
        setting: `on`, `off`, or `auto`.
        device: Device of the run. There are kernels for the CPU only.
        before: The choice with which the run started, which `auto` repeats if possible; None for a new run.

    Raises:
        UserError: If the setting is `on`, and the kernels cannot be built or the device is another.
    """
    global on
    on = False
    choice = _choose(setting, device, AUTO_IS_ON if before is None else before)
    on = choice.on
    return choice


def _choose(setting: Setting, device: str, auto: bool) -> Choice:
    if setting == "off" or (setting == "auto" and not auto):
        return Choice(False)
    if not device.startswith("cpu"):
        if setting == "on":
            raise UserError(f"kernels=on: there are none for device={device}. Use kernels=off or device=cpu.")
        return Choice(False, f"device={device}")
    try:
        native.load()
    except KernelsUnavailableError as error:
        if setting == "on":
            raise UserError(
                f"kernels=on: {error}. Install a C++17 compiler (Debian: apt-get install g++), or use kernels=off."
            ) from error
        return Choice(False, str(error))
    return Choice(True)
